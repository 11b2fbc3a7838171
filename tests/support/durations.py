"""How long each test takes, as last measured by `make durations`: long ones are slow tests."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable

import pytest

from tests.support.places import ROOT

_FILE = ROOT / "tests/durations.json"

_LONG_S = 2.0
"""Tests that take longer are slow ones."""

_STORED_S = 0.5
"""Tests that take less time are not in the file."""


def function_of(test: str) -> str:
    """Return the name of a test without its parameters.

    >>> function_of("tests/unit/test_layers.py::test_imports[a::b]")
    'tests/unit/test_layers.py::test_imports'
    """
    return test.partition("[")[0]


def long_tests() -> frozenset[str]:
    """Return the functions of tests that take long with one of their parameters at least."""
    stored: dict[str, float] = json.loads(_FILE.read_text())
    return frozenset(name for name, seconds in stored.items() if seconds > _LONG_S)


class Measured:
    """A plugin of pytest that stores how long tests have taken, setup and teardown included."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration

    def pytest_sessionfinish(self) -> None:
        store(self._seconds.items())


def store(measured: Iterable[tuple[str, float]]) -> None:
    """Add measured seconds of tests to the file. Functions that were not run stay as they are."""
    longest: defaultdict[str, float] = defaultdict(float)
    for test, seconds in measured:
        longest[function_of(test)] = max(longest[function_of(test)], seconds)
    known: dict[str, float] = json.loads(_FILE.read_text()) if _FILE.exists() else {}
    there = {
        name: round(seconds, 1)
        for name, seconds in sorted({**known, **longest}.items())
        if seconds >= _STORED_S and (ROOT / name.partition("::")[0]).exists()
    }
    _FILE.write_text(json.dumps(there, indent=0) + "\n")
