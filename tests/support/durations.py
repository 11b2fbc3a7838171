"""How long each test takes, as last measured by `make durations`: long ones are slow tests, of
which a share runs each time.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Self

import pytest

from tests.support.places import ROOT

_FILE = ROOT / "tests/durations.json"

LONG_S = 0.7
"""A function is a slow test if it takes longer with one of its parameters."""

FUNCTION_S = 2.0
FILE_S = 6.0
"""A function has so much time, or one of its parameters, and the long functions of a file so much
together, or the first of them. The others run in `make soak`.
"""

_STORED_S = 0.05
"""Functions that take less time are not in the file."""


@dataclass(frozen=True)
class Durations:
    """How long the functions of tests take, with the parameters that take longest.

    Parameters:
        seconds: by the name of the function.

    >>> durations = Durations({"test_a.py::test_sum": 3.0})
    >>> durations.of("test_a.py::test_sum[a::b]"), durations.of("test_a.py::test_mean")
    (3.0, 0.0)
    """

    seconds: Mapping[str, float]

    @classmethod
    @cache
    def stored(cls) -> Self:
        """Return what was measured last."""
        return cls(json.loads(_FILE.read_text()))

    def of(self, test: str) -> float:
        """Return the seconds of a test; 0 if it takes next to none, or is new."""
        return self.seconds.get(_function_of(test), 0.0)

    def has_long(self, file: str) -> bool:
        """Return whether a file has functions that are slow tests.

        >>> Durations({"test_a.py::test_sum": 3.0}).has_long("test_a.py")
        True
        """
        return file in self._files_with_long

    @cached_property
    def _files_with_long(self) -> set[str]:
        return {file_of(name) for name, seconds in self.seconds.items() if seconds > LONG_S}

    def share_of(self, tests: Iterable[str]) -> set[str]:
        """Return the tests that run each time: as many parameters of a function as fit into
        `FUNCTION_S`, spread evenly over all, and the long functions of a file that come first.

        >>> durations = Durations({"a.py::sum": 0.8, "a.py::copy": 0.9, "a.py::kill": 7.0})
        >>> sums = [f"a.py::sum[{number}]" for number in range(5)]
        >>> sorted(durations.share_of([*sums, "a.py::copy", "a.py::kill"]))
        ['a.py::copy', 'a.py::sum[0]', 'a.py::sum[2]']
        """
        of_functions: defaultdict[str, list[str]] = defaultdict(list)
        for test in tests:
            of_functions[_function_of(test)].append(test)
        shares: set[str] = set()
        spent: defaultdict[str, float] = defaultdict(float)
        for function, there in of_functions.items():
            seconds, file = self.of(function), file_of(function)
            fit = min(len(there), max(1, int(FUNCTION_S / seconds))) if seconds else len(there)
            if seconds > LONG_S:
                if spent[file] and spent[file] + fit * seconds > FILE_S:
                    continue
                spent[file] += fit * seconds
            shares.update(there[number * len(there) // fit] for number in range(fit))
        return shares

    def store(self) -> None:
        """Write them to the file. Functions of files that are gone are left out."""
        there = {
            name: round(seconds, 2)
            for name, seconds in sorted(self.seconds.items())
            if seconds >= _STORED_S and (ROOT / file_of(name)).exists()
        }
        _FILE.write_text(json.dumps(there, indent=0) + "\n")


class Measured:
    """A plugin of pytest that stores how long tests have taken, setup and teardown included."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration

    def pytest_sessionfinish(self) -> None:
        longest: defaultdict[str, float] = defaultdict(float)
        for test, seconds in self._seconds.items():
            longest[_function_of(test)] = max(longest[_function_of(test)], seconds)
        Durations({**Durations.stored().seconds, **longest}).store()


def _function_of(test: str) -> str:
    """Return a test without its parameters."""
    return test.partition("[")[0]


def file_of(test: str) -> str:
    """Return the file of a test."""
    return test.partition("::")[0]
