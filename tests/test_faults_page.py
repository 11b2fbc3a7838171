"""The page about faults is true: its examples run, and do what it says."""

from __future__ import annotations

import doctest
from pathlib import Path

PAGE = Path(__file__).parent.parent / "docs" / "testing-faults.md"


def test_the_examples_of_the_page_do_what_it_says() -> None:
    found = doctest.testfile(str(PAGE), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert found.attempted > 10
    assert not found.failed
