"""Making sure that the rows of a shard come in order.

What lives here: the check of rows by key group, key and arrival, for keys of one integer and for
none. What does not: who sorts them so, by one number that need not say everything (`frames`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from statekit.errors import UnsortedError

__all__ = ["in_order"]


def in_order(
    batches: Iterator[pa.RecordBatch], key: Sequence[str], operator: str
) -> Iterator[pa.RecordBatch]:
    """Batches of a shard, once they are known to be sorted.

    Parameters:
        batches: with the key group as their first column, and the arrival as their last.
        key: the names of the columns of the key.
        operator: whose rows they are.

    Raises:
        UnsortedError: a row comes behind one that it belongs before.
    """
    last: tuple[Any, ...] = ()
    for batch in batches:
        columns = [batch.column(name) for name in (0, *key, batch.num_columns - 1)]
        is_checked = len(key) < 2 and all(pa.types.is_integer(column.type) for column in columns)
        if is_checked and batch.num_rows:
            if _row(columns, 0) <= last or not _ascends(columns):
                raise UnsortedError(
                    f"{operator}: the rows of a shard are not in the order of their keys and "
                    "arrival; nothing of this epoch is committed: start the job again, and report "
                    "it if it happens once more, as Spark was asked to sort them"
                )
            last = _row(columns, -1)
        yield batch


def _row(columns: Sequence[pa.Array], at: int) -> tuple[Any, ...]:
    """What a row is sorted by; null comes first."""
    values = [column[at].as_py() for column in columns]
    return tuple((value is not None, value) for value in values)


def _ascends(columns: Sequence[pa.Array]) -> bool:
    """Whether each row is above the one before."""
    *others, arrival = columns
    above = pc.greater(arrival.slice(1), arrival.slice(0, len(arrival) - 1))
    for column in reversed(others):
        parts = [column]
        if column.null_count:
            parts = [pc.is_valid(column).cast(pa.int8()), pc.fill_null(column, 0)]
        for part in reversed(parts):
            before, after = part.slice(0, len(part) - 1), part.slice(1)
            above = pc.or_(pc.greater(after, before), pc.and_(pc.equal(after, before), above))
    return pc.all(above, min_count=0).as_py() is True
