"""Exact sums, minima and maxima of Arrow columns, or an error."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

DIGITS = 38
"""Of Spark's decimals, and of those of 128 bits."""


def summable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column whose sum is exact, where a type holds it: Arrow's sums overflow silently."""
    if pa.types.is_duration(column.type):
        column = column.cast(pa.int64())
    if pa.types.is_decimal(column.type):
        return column.cast(pa.decimal256(2 * DIGITS, column.type.scale))
    if not pa.types.is_integer(column.type):
        return column
    ends = pc.min_max(column).as_py().values()
    if max((abs(end) for end in ends if end is not None), default=0) * len(column) < 2**63:
        return column
    return column.cast(pa.decimal128(DIGITS, 0))


def comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column of which Arrow finds the least and largest values."""
    return column.cast(pa.int64()) if pa.types.is_duration(column.type) else column


def kept_as(verb: str, given: pa.DataType) -> pa.DataType:
    """What an aggregate of values of a type is kept as: it may be more than one of them.

    >>> kept_as("sum", pa.int16()), kept_as("max", pa.float32())
    (DataType(int64), DataType(float))
    """
    if pa.types.is_decimal(given) and verb == "sum":
        return pa.decimal128(DIGITS, given.scale)
    if pa.types.is_integer(given):
        return pa.int64()
    if pa.types.is_floating(given) and verb == "sum":
        return pa.float64()
    return given


def to_kept(values: pa.ChunkedArray, kept: pa.DataType) -> pa.ChunkedArray:
    """Aggregates as what they are kept as.

    Raises:
        pa.ArrowInvalid: one of them does not fit.
    """
    if pa.types.is_duration(kept):  # Arrow makes durations of integers only
        values = values.cast(pa.int64())
    return values.cast(kept)


def fits(values: pa.ChunkedArray, kept: pa.DataType) -> bool:
    """Whether all of these aggregates fit what they are to be kept as."""
    try:
        to_kept(values, kept)
    except pa.ArrowInvalid:
        return False
    return True
