"""How tests are collected: of some hundred modules, by each of the processes that run them."""

from __future__ import annotations

import gc
from collections.abc import Generator
from pathlib import Path

import pytest
from _pytest.doctest import DoctestModule


class Collection:
    """A plugin of pytest that looks for doctests only where there are some, and keeps what was
    collected out of the search for garbage.
    """

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
            gc.freeze()
            gc.enable()
