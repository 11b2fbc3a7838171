"""Pages about testing, whose examples have the results that they show."""

from __future__ import annotations

import doctest
import re

from statekit.testing.effort import Effort, set_default_effort
from tests.support.effort import SOAK
from tests.support.places import DOCS

_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


_QUICK = Effort("quick")


def check_examples(page: str, effort: Effort = _QUICK) -> None:
    """Check that the examples of a page have the results on the page.

    Parameters:
        page: a page of the guide.
        effort: of the checks in the examples, but in the soak. Numbers of histories may then be
            other ones than on the page.
    """
    text = (DOCS / "guide" / f"{page}.md").read_text()
    if not SOAK:
        text = re.sub(r"\b\d+ histories", "... histories", text)
    names = {"__name__": "__main__"}
    examples = doctest.DocTestParser().get_doctest(text, names, f"{page}.md", None, 0)
    set_default_effort(Effort() if SOAK else effort)
    try:
        found = doctest.DocTestRunner(optionflags=_FLAGS).run(examples)
    finally:
        set_default_effort(Effort())
    assert found.attempted > 5
    assert found.failed == 0
