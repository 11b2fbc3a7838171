"""The pages about testing show what their examples have for results."""

from __future__ import annotations

import doctest
import re

from statekit.testing.effort import Effort, set_default_effort
from tests.support.effort import SOAK
from tests.support.places import DOCS

PAGES = ("testing-checks", "testing-parts", "replay")
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def test_the_examples_of_the_pages_have_the_results_on_the_pages() -> None:
    for page in PAGES:
        path = str(DOCS / "guide" / f"{page}.md")
        found = doctest.testfile(path, module_relative=False, optionflags=FLAGS)
        assert found.attempted > 10, page
        assert found.failed == 0, page


def test_the_examples_of_the_first_page_have_the_results_on_the_page() -> None:
    """It checks a function completely: with fewer histories than on the page, but in the soak."""
    text = (DOCS / "guide" / "testing.md").read_text()
    if not SOAK:
        text = re.sub(r"\b\d+ histories", "... histories", text)
    examples = doctest.DocTestParser().get_doctest(
        text, {"__name__": "__main__"}, "testing.md", None, 0
    )
    set_default_effort(Effort() if SOAK else Effort("quick"))
    try:
        found = doctest.DocTestRunner(optionflags=FLAGS).run(examples)
    finally:
        set_default_effort(Effort())
    assert found.attempted > 10
    assert found.failed == 0
