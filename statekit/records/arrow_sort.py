"""Sort rows by Arrow columns."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc


def comparable(column: pa.ChunkedArray) -> pa.Array:
    """Return a column that sorts in the same order faster: integers, or bytes for text."""
    kind = column.type
    if pa.types.is_temporal(kind) or pa.types.is_boolean(kind):
        column = column.cast(pa.int32() if kind.bit_width <= 32 else pa.int64())
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        column = column.cast(pa.binary() if pa.types.is_string(kind) else pa.large_binary())
    return column.combine_chunks()


def comparable_parts(column: pa.ChunkedArray) -> list[pa.Array]:
    """Return columns that sort together as one does: a struct is one column for whether it is
    null, and those of its fields.
    """
    if not pa.types.is_struct(column.type):
        return [comparable(column)]
    whole = column.combine_chunks()
    parts = (comparable_parts(pa.chunked_array([part])) for part in whole.flatten())
    return [whole.is_valid().cast(pa.int8()), *(each for part in parts for each in part)]


def row_numbers(count: int) -> pa.Array:
    """Return the numbers of so many rows.

    >>> row_numbers(3).to_pylist()
    [0, 1, 2]
    """
    # A tenth of the time of `pa.array` of a range.
    return pc.cumulative_sum(pa.repeat(pa.scalar(1, pa.int64()), count), start=-1)


def sort_keys(column: pa.Array) -> list[pa.Array]:
    """Return columns without nulls that sort like this one, nulls first.

    >>> [key.to_pylist() for key in sort_keys(pa.array([3, None, 1]))]
    [[1, 0, 1], [3, 3, 1]]
    """
    if not column.null_count:
        return [column]
    is_valid = column.is_valid().cast(pa.int8())
    valid = column.drop_null()
    return [is_valid, column.fill_null(valid[0])] if valid else [is_valid]


def order_by(keys: Sequence[pa.Array]) -> pa.Array:
    """Return the row numbers in the order of columns without null.

    >>> order_by([pa.array([1, 0, 1]), pa.array([b"b", b"c", b"a"])]).to_pylist()
    [1, 2, 0]
    """
    rows = pa.record_batch({str(n): _rank(key) for n, key in enumerate(keys)})
    return pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in rows.schema.names])


def _rank(key: pa.Array) -> pa.Array:
    """Return integers with the same order. Equal values are compared once."""
    if pa.types.is_integer(key.type):
        return key
    values = key.dictionary_encode()
    return pc.rank(values.dictionary, tiebreaker="first").take(values.indices)
