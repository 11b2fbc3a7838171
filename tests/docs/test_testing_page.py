"""The page about testing shows what its examples have for results."""

from __future__ import annotations

import doctest

from tests.support.places import DOCS

PAGE = DOCS / "guide" / "testing.md"


def test_the_examples_of_the_page_have_the_results_on_the_page() -> None:
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    found = doctest.testfile(str(PAGE), module_relative=False, optionflags=flags)
    assert found.attempted > 40
    assert found.failed == 0
