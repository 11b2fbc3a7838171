"""Patterns of LIKE, as regular expressions for Python and for RE2, which Arrow uses."""

from __future__ import annotations

from collections.abc import Iterator

ESCAPE = "\\"


def pattern_fault(pattern: str) -> str:
    """Return why a pattern is not valid; empty if it is.

    >>> pattern_fault("100%"), pattern_fault(r"100\\%")
    ('', '')
    >>> pattern_fault("a\\\\b")
    'a backslash in a pattern stands before %, _ or another backslash'
    """
    try:
        _ = list(_pieces(pattern))
    except ValueError as error:
        return str(error)
    return ""


def regular_expression(pattern: str) -> str:
    """Return the regular expression of a pattern, without anchors, for texts with any characters.

    >>> regular_expression("a.%_")
    '(?s:a\\\\x2e.*.)'
    """
    return f"(?s:{''.join(_pieces(pattern))})"


def _pieces(pattern: str) -> Iterator[str]:
    characters = iter(pattern)
    for character in characters:
        if character == "%":
            yield ".*"
        elif character == "_":
            yield "."
        elif character == ESCAPE:
            escaped = next(characters, "")
            if escaped not in ("%", "_", ESCAPE):
                raise ValueError("a backslash in a pattern stands before %, _ or another backslash")
            yield _literal(escaped)
        else:
            yield _literal(character)


def _literal(character: str) -> str:
    is_plain = character.isalnum() or not character.isascii()
    return character if is_plain else f"\\x{ord(character):02x}"
