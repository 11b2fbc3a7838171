"""Tests that are written for the user: the lines that all of them need."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

_MODULES = ("datetime", "decimal", "uuid", "pytest")


def with_imports(name: str, body: Iterable[str], kit: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a test, with what it imports besides the user's own names.

    Parameters:
        name: of what is tested; any text.
        body: the lines of the function.
        kit: names of `statekit.testing` that it may use.
    """
    lines = list(body)
    text = "\n".join(lines)
    for module in _MODULES:
        if re.search(rf"\b{module}\.", text):
            yield f"import {module}"
    used = sorted(each for each in kit if re.search(rf"\b{each}\(", text))
    yield f"from statekit.testing import {', '.join(used)}"
    words = re.sub(r"\W+", "_", name)
    yield ""
    yield f"def test_{words}() -> None:"
    yield from (f"    {line}" for line in lines)
