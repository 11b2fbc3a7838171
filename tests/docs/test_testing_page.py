"""The pages about testing show what their examples have for results."""

from __future__ import annotations

import doctest

from tests.support.places import DOCS

PAGES = ("testing", "testing-checks", "testing-parts", "replay")


def test_the_examples_of_the_pages_have_the_results_on_the_pages() -> None:
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    for page in PAGES:
        place = str(DOCS / "guide" / f"{page}.md")
        found = doctest.testfile(place, module_relative=False, optionflags=flags)
        assert found.attempted > 10, page
        assert found.failed == 0, page
