"""Tables of shards, also of ten thousand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text

# Of more rows than this, a table shows the ends and the fullest.
_ROWS_MAX = 24
_SHOWN_AT_ENDS = 4


def chosen(sizes: Sequence[int]) -> Iterator[int | None]:
    """The numbers of all; of many, the first, the fullest and the last, None in between.

    >>> list(chosen([5, 0, 7])), list(chosen([1] * 50 + [9] + [1] * 49))
    ([0, 1, 2], [0, 1, 2, 3, None, 50, None, 96, 97, 98, 99])
    """
    last = len(sizes) - 1
    if last < _ROWS_MAX:
        yield from range(len(sizes))
        return
    fullest = sorted(range(len(sizes)), key=lambda number: -sizes[number])[:_SHOWN_AT_ENDS]
    ends = [*range(_SHOWN_AT_ENDS), *range(last - _SHOWN_AT_ENDS + 1, last + 1)]
    before = -1
    for number in sorted({*ends, *fullest}):
        if number != before + 1:
            yield None
        yield number
        before = number


def table_of_numbers(title: str | None, headings: Sequence[str]) -> Table:
    """An empty table whose columns are flush right."""
    table = Table(title=Text(title) if title else None, title_justify="left")
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def range_text(groups: tuple[int, int]) -> str:
    """Key groups, first and last, as people write them.

    >>> range_text((3, 7)), range_text((3, 3))
    ('3–7', '3')
    """
    first, last = groups
    return str(first) if first == last else f"{first}–{last}"
