from __future__ import annotations

import doctest

from tests.support.places import DOCS

FORMAT = DOCS / "reference" / "format.md"


def test_every_example_of_the_format_is_true() -> None:
    results = doctest.testfile(str(FORMAT), module_relative=False, encoding="utf-8")
    assert results.attempted > 30
    assert results.failed == 0
