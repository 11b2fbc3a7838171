"""The rows of a shard in the order of their keys.

What lives here: sorting rows that came by key group, as far as they are not in order already, and
making sure that all of them are. What does not: the single number that Spark sorted them by, which
need not say everything (`frames`).

In order means by key group, key and arrival. Arrow sorts whole key groups, in a fifth of the time
that Spark takes to compare rows by several columns. Of a key group that does not fit into memory
one piece after the other is looked at: they are in order if Spark sorted by all columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from statekit.column_order import order_by, ranks, sortable
from statekit.errors import UnsortedError

__all__ = ["in_order"]

# A piece ends with the key group in which it gets so large, or within one that is far larger.
_ENOUGH_ROWS = 50_000
_ENOUGH_BYTES = 8 * 1024 * 1024
_MOST_BYTES = 64 * 1024 * 1024


def in_order(
    batches: Iterator[pa.RecordBatch], key: Sequence[str], operator: str
) -> Iterator[pa.RecordBatch]:
    """The rows of a shard by key group, key and arrival.

    Parameters:
        batches: by key group, with that as their first column, and the arrival as their last.
        key: the names of the columns of the key.
        operator: whose rows they are.

    Raises:
        UnsortedError: rows are not in order, and a piece is too small to sort them; or came twice.
    """
    last: tuple[Any, ...] = ()
    for rows, batch_rows in _pieces(batches):
        sort_keys = [sortable(rows.column(name)) for name in (0, *key, rows.num_columns - 1)]
        by = [rank for column in sort_keys for rank in ranks(column)]
        ascends, first_at, last_at = _ascends(by), 0, len(rows) - 1
        if not ascends:
            order = order_by(by)
            rows = rows.combine_chunks().take(order)
            ascends = _ascends([rank.take(order) for rank in by])
            first_at, last_at = order[0].as_py(), order[-1].as_py()
        if not ascends or _place(sort_keys, first_at) <= last:
            raise UnsortedError(
                f"{operator}: the rows of a shard are not in the order of their keys and arrival; "
                "nothing of this epoch is committed: start the job again, and report it if it "
                "happens once more, as Spark was asked to sort them"
            )
        last = _place(sort_keys, last_at)
        yield from rows.to_batches(batch_rows)


def _pieces(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[pa.Table, int]]:
    """Whole key groups, or as much of one as fits into memory; and the rows of a large batch."""
    held: list[pa.RecordBatch] = []
    rows = size = largest = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        held.append(batch)
        rows, size, largest = rows + len(batch), size + batch.nbytes, max(largest, len(batch))
        if rows < _ENOUGH_ROWS and size < _ENOUGH_BYTES:
            continue
        first_group, last_group = held[0].column(0)[0], batch.column(0)[-1]
        if first_group == last_group and size < _MOST_BYTES:
            continue
        table = pa.Table.from_batches(held)
        rows = pc.index(table.column(0), last_group).as_py() or rows
        yield table.slice(0, rows), largest
        held = table.slice(rows).to_batches()
        rows, size = sum(map(len, held)), sum(of.nbytes for of in held)
    if held:
        yield pa.Table.from_batches(held), largest


def _ascends(columns: Sequence[pa.Array]) -> bool:
    """Whether each row is above the one before."""
    *others, last = columns
    above = pc.greater(last.slice(1), last.slice(0, len(last) - 1))
    for column in reversed(others):
        before, after = column.slice(0, len(column) - 1), column.slice(1)
        above = pc.or_(pc.greater(after, before), pc.and_(pc.equal(after, before), above))
    return pc.all(above, min_count=0).as_py() is True


def _place(sort_keys: Sequence[pa.Array], at: int) -> tuple[Any, ...]:
    """What a row is sorted by, to be compared with another one; null comes first."""
    values = [column[at].as_py() for column in sort_keys]
    return tuple((value is not None, value) for value in values)
