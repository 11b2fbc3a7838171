"""Sorting of rows by Arrow columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc


def comparable(column: pa.ChunkedArray) -> pa.Array:
    """Return a column that sorts in the same order, but faster: integers, or bytes for text."""
    kind = column.type
    if pa.types.is_temporal(kind) or pa.types.is_boolean(kind):
        column = column.cast(pa.int32() if kind.bit_width <= 32 else pa.int64())
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        column = column.cast(pa.binary() if pa.types.is_string(kind) else pa.large_binary())
    return column.combine_chunks()


def comparable_parts(column: pa.ChunkedArray) -> list[pa.Array]:
    """Return columns that together sort in the order of the given one, but faster."""
    return list(map(comparable, column_parts(column)))


def column_parts(column: pa.ChunkedArray) -> list[pa.ChunkedArray]:
    """Return columns that together sort and group like the given one. A struct becomes a column
    that is true where it is not null, and the columns of its fields.

    >>> structs = pa.chunked_array([[{"city": "oslo", "seat": 1}, None]])
    >>> [part.to_pylist() for part in column_parts(structs)]
    [[True, False], ['oslo', None], [1, None]]
    """
    if not pa.types.is_struct(column.type):
        return [column]
    fields = (column_parts(field) for field in column.flatten())
    return [pc.is_valid(column), *(part for field in fields for part in field)]


def column_of_parts(kind: pa.DataType, parts: Iterator[pa.ChunkedArray]) -> pa.ChunkedArray:
    """Return the column with these parts: the inverse of `column_parts`.

    Parameters:
        kind: its type.
        parts: those of the column come first.
    """
    if not pa.types.is_struct(kind):
        return next(parts)
    is_null = pc.invert(next(parts)).combine_chunks()
    fields = [column_of_parts(field.type, parts).combine_chunks() for field in kind]
    structs = pa.StructArray.from_arrays(fields, fields=list(kind), mask=is_null)
    return pa.chunked_array([structs])


def row_numbers(count: int) -> pa.Array:
    """Return row numbers from 0 on.

    >>> row_numbers(3).to_pylist()
    [0, 1, 2]
    """
    # A tenth of the time of `pa.array` of a range.
    return pc.cumulative_sum(pa.repeat(pa.scalar(1, pa.int64()), count), start=-1)


def sort_keys(column: pa.Array) -> list[pa.Array]:
    """Return columns without nulls that sort like the given one, nulls first.

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
    """Return integers in the order of the values. Each distinct value is compared once."""
    if pa.types.is_integer(key.type):
        return key
    values = key.dictionary_encode()
    return pc.rank(values.dictionary, tiebreaker="first").take(values.indices)
