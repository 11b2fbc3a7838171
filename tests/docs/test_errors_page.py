"""The examples of the page about records that fail run as they are shown."""

from __future__ import annotations

import doctest

from tests.support.places import DOCS

PAGE = DOCS / "guide" / "errors.md"


def test_the_page_about_records_that_fail_runs() -> None:
    found = doctest.testfile(str(PAGE), module_relative=False)
    assert found.attempted > 5
    assert found.failed == 0
