"""How tests are collected: of some hundred modules, by each of the processes that run them."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from _pytest.doctest import DoctestModule


class Collection:
    """A plugin of pytest that leaves out files without a test of this run, looks for doctests only
    where there are some, and keeps what was collected out of the search for garbage.

    Parameters:
        has_tests: whether a file may have tests of this run.
    """

    def __init__(self, has_tests: Callable[[Path], bool]) -> None:
        self._has_tests = has_tests

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        is_left_out = collection_path.suffix == ".py" and not self._has_tests(collection_path)
        return is_left_out or None  # pytest itself may leave it out, too

    @pytest.hookimpl(wrapper=True)
    def pytest_collect_file(
        self, file_path: Path
    ) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
        found = yield
        of_doctests = [each for each in found if isinstance(each, DoctestModule)]
        if of_doctests and ">>>" not in file_path.read_text():
            return [each for each in found if each not in of_doctests]
        return found

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Generator[None, object, object]:
        gc.disable()
        try:
            return (yield)
        finally:
            if sys.version_info < (3, 14):  # there, Hypothesis would take what it uses for garbage
                gc.freeze()
            gc.enable()
