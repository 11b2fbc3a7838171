"""The pages about testing show what their examples have for results."""

from __future__ import annotations

import doctest
import re

from statekit.testing.counterexamples import Effort, set_default_effort
from tests.support.effort import SOAK
from tests.support.places import DOCS

PAGES = ("testing", "testing-checks", "testing-parts", "replay")


def test_the_examples_of_the_pages_have_the_results_on_the_pages() -> None:
    """The numbers of histories are those of the page in the soak alone."""
    set_default_effort(Effort() if SOAK else Effort("quick"))
    try:
        for page in PAGES:
            found = results_of(page)
            assert found.attempted > 10, page
            assert found.failed == 0, page
    finally:
        set_default_effort(Effort())


def results_of(page: str) -> doctest.TestResults:
    """Run the examples of a page."""
    text = (DOCS / "guide" / f"{page}.md").read_text()
    if not SOAK:
        text = re.sub(r"\b\d+ histories", "... histories", text)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    return runner.run(doctest.DocTestParser().get_doctest(text, {}, page, page, 0))
