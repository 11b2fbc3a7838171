"""The order of rows by columns of Arrow.

What lives here: which row comes before which, with null before everything else. What does not: what
rows have to be in order for (`panes`, `spark.in_order`).
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["order_by", "ranks", "sortable"]


def sortable(column: pa.ChunkedArray) -> pa.Array:
    """What a column is sorted by: integers for anything that is like them, or texts and bytes."""
    kind = column.type
    if pa.types.is_temporal(kind) or pa.types.is_boolean(kind):
        column = column.cast(pa.int32() if kind.bit_width <= 32 else pa.int64())
    return column.combine_chunks()


def ranks(column: pa.Array) -> list[pa.Array]:
    """Integers by which rows are sorted as they are by a column; null comes first.

    >>> [rank.to_pylist() for rank in ranks(pa.array(["b", None, "a"]))]
    [[1, 0, 1], [2, 0, 1]]
    """
    if not pa.types.is_integer(column.type):
        values = column.dictionary_encode()  # fewer are compared
        column = pc.rank(values.dictionary, tiebreaker="first").take(values.indices)
    if not column.null_count:
        return [column]
    return [column.is_valid().cast(pa.int8()), column.fill_null(0)]


def order_by(columns: Sequence[pa.Array]) -> pa.Array:
    """The numbers of rows in their order by columns of integers, none of which is null.

    >>> order_by([pa.array([1, 0, 1]), pa.array([5, 7, 3])]).to_pylist()
    [1, 2, 0]
    """
    rows = pa.record_batch({str(n): column for n, column in enumerate(columns)})
    return pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in rows.schema.names])
