"""Output of commands: lines, tables, JSON, errors and progress bars."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from statekit.backend.interface import StateSize
from statekit.errors import StatekitError

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)

# Of more rows than this, a table shows the ends and the fullest.
_ROWS_MAX = 24
_SHOWN_AT_ENDS = 4


def chosen(sizes: Sequence[int]) -> Iterator[int | None]:
    """Yield all numbers; of many, the first, the fullest and the last, with None in between.

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


def print_title(title: str) -> None:
    """Print the title of a table above it, as wide as the screen and not as the table."""
    out.print(Text(title), style="table.title")


def empty_table(numbers: Sequence[str], *, texts: Sequence[str] = ()) -> Table:
    """Return a table without rows.

    Parameters:
        numbers: headings of the right columns, which are flush right.
        texts: headings of the left columns, whose long texts are wrapped.
    """
    table = Table()
    for heading in texts:
        table.add_column(heading, overflow="fold")
    for heading in numbers:
        table.add_column(heading, justify="right")
    return table


def print_table(
    numbers: Sequence[str],
    rows: Iterable[Sequence[str | Text]],
    *,
    texts: Sequence[str] = (),
    title: str | None = None,
) -> None:
    """Print a table, for headings see `empty_table`, below its title."""
    if title is not None:
        print_title(title)
    table = empty_table(numbers, texts=texts)
    for row in rows:
        table.add_row(*row)
    out.print(table)


def print_shards(
    numbers: Sequence[str], rows: Sequence[tuple[int, Sequence[str]]], *, title: str | None = None
) -> None:
    """Print a table with the rows that `chosen` yields, and "…" for None.

    Parameters:
        rows: a size and the cells of each row.
    """
    left_out = ["…" for _ in numbers]
    shown = chosen([size for size, _ in rows])
    print_table(numbers, (left_out if n is None else rows[n][1] for n in shown), title=title)


def size_cells(size: StateSize | None) -> tuple[str, str]:
    """Return rows and bytes as cells of a table; – if they are unknown.

    >>> size_cells(StateSize(1200, 34000)), size_cells(None)
    (('1,200', '34,000'), ('–', '–'))
    """
    return ("–", "–") if size is None else (f"{size.rows:,}", f"{size.bytes:,}")


def count_text(number: int, one: str, many: str) -> str:
    """Return a number with the noun that is counted.

    >>> count_text(1, "copy", "copies"), count_text(1200, "copy", "copies")
    ('1 copy', '1,200 copies')
    """
    return f"{number:,} {one if number == 1 else many}"


def say(text: str) -> None:
    """Print a line unwrapped."""
    out.print(text, markup=False, soft_wrap=True)


def print_cells(names: Sequence[str], rows: Iterable[Iterable[Any]]) -> None:
    """Print a table of values, as JSON; texts are printed as they are, and None as nothing."""
    table = empty_table((), texts=names)
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row))
    out.print(table)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def print_line(data: Any, *, at_once: bool = False) -> None:
    """Print data as a line of JSON.

    Parameters:
        at_once: do not buffer the line.
    """
    print(msgspec.json.encode(data).decode(), flush=at_once)


def print_json(data: object) -> None:
    """Print data for programs."""
    print(json.dumps(data, indent=2))


def print_values(values: Any) -> None:
    """Print values in their JSON form."""
    print(json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False))


def print_error(error: StatekitError) -> None:
    """Print an error."""
    err.print(f"[bold red]{type(error).__name__}[/] ({error.kind})")
    err.print(str(error), markup=False)


@contextlib.contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int | None], None]]:
    """Show a bar. Yields a function to call with the number done and the total; silent in a log.

    Parameters:
        what: the unit, such as "rows".
    """
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn(what), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def range_text(groups: tuple[int, int]) -> str:
    """Return key groups, first and last, as text.

    >>> range_text((3, 7)), range_text((3, 3))
    ('3–7', '3')
    """
    first, last = groups
    return str(first) if first == last else f"{first}–{last}"
