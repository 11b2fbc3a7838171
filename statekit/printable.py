"""Printable text: text without characters that logs or terminals interpret."""

from __future__ import annotations


def printable(text: str) -> str:
    r"""Return a text with control characters, line and paragraph separators, and characters that
    change the direction of text as escapes.

    >>> print(printable("rome\n\x1b[31m\u2028\x85"))
    rome\n\x1b[31m\u2028\x85
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
