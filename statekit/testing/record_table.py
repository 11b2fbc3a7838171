"""Records that differ, as a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile, zip_longest
from typing import Any

from statekit.codec.annotations import struct_fields, struct_flavour

_ROWS_MAX = 20
_CELL_MAX = 40
_ABSENT = "-"


def differing_rows(
    left: Sequence[Any], right: Sequence[Any], *, by_key: bool = False
) -> list[str] | None:
    """Return the lines of a table of the differences between two lists of records; None if they are
    no records.

    Parameters:
        by_key: they are pairs of a key and a value. A key that only one of them has is absent in
            the other.

    >>> from typing import NamedTuple
    >>> class Total(NamedTuple):
    ...     customer: str
    ...     cents: int
    >>> for line in differing_rows([Total("ada", 5), Total("bob", 1)], [Total("ada", 7)]) or []:
    ...     print(line)
    records differ (left of | is the first list)
         customer    cents
    0    ada         5 | 7
    1    bob | -     1 | -
    """
    pairs = _by_key(left, right) if by_key else _by_place(left, right)
    records = [record for _, one, other in pairs for record in (one, other) if record is not _NONE]
    if not records:
        return None
    names = _columns(records)
    if names is None:
        return None
    rows = [["", *names]]
    for label, one, other in pairs:
        if one is not _NONE and other is not _NONE and one == other:
            continue
        if len(rows) > _ROWS_MAX:
            rows.append(["…"])
            break
        cells = zip(_cells(one, names), _cells(other, names), strict=True)
        rows.append([label, *(_beside(a, b) for a, b in cells)])
    title = "records differ (left of | is the first list)"
    if by_key:
        title = "states differ (left of | is the first one)"
    return [title, *_aligned(rows)]


_NONE: Any = object()
_Pair = tuple[str, Any, Any]


def _by_place(left: Sequence[Any], right: Sequence[Any]) -> list[_Pair]:
    both = zip_longest(left, right, fillvalue=_NONE)
    return [(str(place), one, other) for place, (one, other) in enumerate(both)]


def _by_key(left: Iterable[Any], right: Iterable[Any]) -> list[_Pair]:
    first, second = dict(left), dict(right)
    keys = dict.fromkeys([*first, *second])
    return [(repr(key), first.get(key, _NONE), second.get(key, _NONE)) for key in keys]


def _columns(records: Sequence[Any]) -> list[str] | None:
    """Return the names of the fields of records of one class; None if they are something else."""
    classes = {type(record) for record in records}
    if len(classes) != 1:
        return None
    (cls,) = classes
    if struct_flavour(cls) is None:
        return None
    return [field.name for field in struct_fields(cls)]


def _cells(record: Any, names: Sequence[str]) -> list[Any]:
    return [_NONE if record is _NONE else getattr(record, name) for name in names]


def _beside(one: Any, other: Any) -> str:
    """Return the text of two values; of long ones the part in which they differ."""
    shown = _text(one), _text(other)
    if one is not _NONE and other is not _NONE and one != other and shown[0] == shown[1]:
        shown = repr(one), repr(other)  # such as 1 and "1"
    if shown[0] == shown[1]:
        return _short(shown[0], 0)
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*shown, strict=False)))
    begin = max(0, same - _CELL_MAX // 2) if max(map(len, shown)) > _CELL_MAX else 0
    return " | ".join(_short(text, begin) for text in shown)


def _text(value: Any) -> str:
    if value is _NONE:
        return _ABSENT
    return value if isinstance(value, str) else repr(value)


def _short(text: str, begin: int) -> str:
    """Return a part of a text from a position on, with marks at the cuts."""
    left = "…" if begin else ""
    right = "…" if len(text) > begin + _CELL_MAX else ""
    return f"{left}{text[begin : begin + _CELL_MAX]}{right}"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip_longest(*rows, fillvalue="")]
    lines = []
    for row in rows:
        cells = zip_longest(row, widths, fillvalue="")
        lines.append("    ".join(f"{cell:<{width}}" for cell, width in cells).rstrip())
    return lines
