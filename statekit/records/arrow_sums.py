"""Exact sums, minima and maxima of Arrow columns. A result that does not fit is an error."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

DIGITS = 38
"""The maximum digits of Spark's decimals, and of 128-bit decimals."""


def aggregable(verb: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column that Arrow aggregates exactly. Arrow's own sums overflow silently."""
    if pa.types.is_duration(column.type):
        column = column.cast(pa.int64())
    if verb != "sum":
        return column
    if pa.types.is_decimal(column.type):
        return column.cast(pa.decimal256(2 * DIGITS, column.type.scale))
    if not pa.types.is_integer(column.type):
        return column
    ends = pc.min_max(column).as_py().values()
    if max((abs(end) for end in ends if end is not None), default=0) * len(column) < 2**63:
        return column
    return column.cast(pa.decimal128(DIGITS, 0))


def stored_type(verb: str, input_type: pa.DataType) -> pa.DataType:
    """Return the type of the results of an aggregate. A sum may need a wider type than its input.

    >>> stored_type("sum", pa.int16()), stored_type("max", pa.float32())
    (DataType(int64), DataType(float))
    """
    if pa.types.is_decimal(input_type) and verb == "sum":
        return pa.decimal128(DIGITS, input_type.scale)
    if pa.types.is_integer(input_type):
        return pa.int64()
    if pa.types.is_floating(input_type) and verb == "sum":
        return pa.float64()
    return input_type


def cast_stored(values: pa.ChunkedArray, target: pa.DataType) -> pa.ChunkedArray:
    """Cast aggregates to their stored type.

    Raises:
        pa.ArrowInvalid: a value does not fit.
    """
    if pa.types.is_duration(target):  # Arrow casts only integers to durations
        values = values.cast(pa.int64())
    return values.cast(target)


def fits(values: pa.ChunkedArray, target: pa.DataType) -> bool:
    """Return whether all results fit their stored type."""
    try:
        cast_stored(values, target)
    except pa.ArrowInvalid:
        return False
    return True
