"""The page about faults is true: its examples run, and do what it says."""

from __future__ import annotations

import doctest

from tests.support.places import DOCS

PAGE = DOCS / "guide" / "testing-faults.md"


def test_the_examples_of_the_page_have_the_results_on_the_page() -> None:
    found = doctest.testfile(str(PAGE), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert found.attempted > 10
    assert not found.failed
