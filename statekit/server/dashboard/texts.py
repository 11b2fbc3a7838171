"""Texts of pages: numbers, sizes, durations and times for people, values and keys as JSON."""

from __future__ import annotations

import json
import re
from typing import Any

NONE = "–"
"""The text of an absent number."""

_UNITS = ("B", "KB", "MB", "GB", "TB", "PB")
_SHORT = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K"))
_DAY_S = 86_400

_HIDDEN = "\u007f-\u00a0\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"
_INVISIBLE = re.compile(f"[{_HIDDEN}]")
_NEEDS_QUOTES = re.compile(f"^$|^\\s|\\s$|[\\x00-\\x1f{_HIDDEN}]")

_LINE = 44
"""Length up to which a list or an object stays on one line."""


def count(value: float | None) -> str:
    """Return a number with separators.

    >>> count(1234567), count(None)
    ('1,234,567', '–')
    """
    return NONE if value is None else f"{value:,}"


def short_count(value: float | None) -> str:
    """Return a number in few characters.

    >>> [short_count(each) for each in (0.1234, 7, 9876, 12_345, 2_000_000)]
    ['0.123', '7', '9,876', '12.3K', '2M']
    """
    if value is None:
        return NONE
    size = abs(value)
    for step, name in _SHORT:
        if size >= max(step, 9_999.5):
            return f"{_trimmed(f'{value / step:.1f}')}{name}"
    if size < 10 and value != int(value):
        return f"{value:.3g}"
    return f"{round(value):,}"


def size(value: float | None) -> str:
    """Return a number of bytes.

    >>> [size(each) for each in (0, 999, 1_540, 123_456_789)]
    ['0 B', '999 B', '1.5 KB', '123 MB']
    """
    if value is None:
        return NONE
    step = 0
    while abs(value) >= 999.5 and step < len(_UNITS) - 1:
        value /= 1000
        step += 1
    return (
        f"{value:.0f} {_UNITS[step]}"
        if value >= 100 or step == 0
        else f"{value:.1f} {_UNITS[step]}"
    )


def duration(value: float | None) -> str:
    """Return a duration, from its seconds.

    >>> [duration(each) for each in (0.25, 4.2, 754, 90_000, -2)]
    ['250 ms', '4.2 s', '12 min 34 s', '25 h 0 min', '−2.0 s']
    """
    if value is None:
        return NONE
    if value < 0:
        return f"−{duration(-value)}"
    if value < 0.9995:
        return f"{value * 1000:.0f} ms"
    if value < 9.95:
        return f"{value:.1f} s"
    whole = round(value)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 2 * _DAY_S:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    days = whole / _DAY_S
    return f"{days:.0f} days" if days < 730 else f"{days / 365.25:.1f} years"


def time(text: str | None) -> str:
    """Return a time in UTC with seconds.

    >>> time("2026-01-31T12:00:05.123+00:00")
    '2026-01-31 12:00:05'
    """
    return text[:19].replace("T", " ") if text else NONE


def json_text(value: Any, space: int = 0, depth: int = 0) -> str:
    """Return a value as JSON.

    Parameters:
        space: spaces per level; 0 for one line.

    >>> json_text({"a": [1, "b"]})
    '{"a": [1, "b"]}'
    """
    if isinstance(value, dict):
        parts = [
            f"{json_text(name)}: {json_text(own, space, depth + 1)}" for name, own in value.items()
        ]
        begin, end = "{}"
    elif isinstance(value, list | tuple):
        parts = [json_text(own, space, depth + 1) for own in value]
        begin, end = "[]"
    else:
        return json.dumps(value, ensure_ascii=False)
    line = ", ".join(parts)
    if not space or len(line) + depth * space < _LINE:
        return begin + line + end
    pad = "\n" + " " * (space * (depth + 1))
    return f"{begin}{pad}{f',{pad}'.join(parts)}\n{' ' * (space * depth)}{end}"


def seen(text: str) -> str:
    """Return JSON with escapes for characters that would not be seen.

    >>> seen('"a\\u200b"')
    '"a\\\\u200b"'
    """
    return _INVISIBLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def value_text(value: Any) -> str:
    """Return a value on one line."""
    return seen(json_text(value))


def value_lines(value: Any) -> list[str]:
    """Return the lines of a value."""
    return seen(json_text(value, 2)).split("\n")


def shown_key(key: Any) -> str:
    """Return a key. A text that would not be seen as it is has quotes and escapes.

    >>> shown_key("ann"), shown_key(""), shown_key(["ann", 5])
    ('ann', '""', '["ann", 5]')
    """
    if not isinstance(key, str):
        return value_text(key)
    return value_text(key) if _NEEDS_QUOTES.search(key) else key


def _trimmed(text: str) -> str:
    return text.removesuffix(".0")
