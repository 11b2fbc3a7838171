"""Group the rows of columns with Arrow's hash aggregation, and aggregate each group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from statekit.errors import ProcessError
from statekit.records.arrow_sort import column_of_parts, column_parts, row_numbers
from statekit.records.group_lists import GroupLists, offsets
from statekit.records.panes import LATE
from statekit.shown import shown, shown_text

DIGITS = 38
"""The maximum digits of Spark's decimals, and of 128-bit decimals."""

Groups = dict[str, pa.ChunkedArray]
"""The columns that rows are grouped by, by name."""

Aggregates = list[tuple[str | GroupLists, pa.ChunkedArray | None]]
"""Functions or `GroupLists`, each with its column; None to count rows."""


class Grouped(NamedTuple):
    """One row per group: the grouping columns by name, and a column per aggregate."""

    keys: Groups
    values: list[pa.ChunkedArray]


def grouped(groups: Groups, aggregates: Aggregates, key: Sequence[str], where: str) -> Grouped:
    """Return the groups of rows, with the aggregates of each.

    Arrow lists the numbers of the rows of each group for a `GroupLists`, which then makes the lists
    of their values.

    Parameters:
        key: the names of the groups that identify a key, for messages.
        where: the records, for messages.

    Raises:
        ProcessError: a sum does not fit.
    """
    columns = [part for column in groups.values() for part in column_parts(column)]
    key_names = [f"key_{n}" for n in range(len(columns))]
    names = list(key_names)
    arrow_aggregates: list[tuple[Any, str]] = []
    for n, (verb, column) in enumerate(aggregates):
        if isinstance(verb, GroupLists):
            assert column is not None
            columns.append(pa.chunked_array([row_numbers(len(column))]))
            verb = "list"  # of the numbers of its rows
            names.append(f"value_{n}")
        elif column is not None:
            columns.append(_aggregable(verb, column))
            names.append(f"value_{n}")
        arrow_aggregates.append(([] if column is None else f"value_{n}", verb))
    table = pa.table(columns, names).group_by(key_names, use_threads=False)
    results = iter(table.aggregate(arrow_aggregates).columns)
    keys = {name: column_of_parts(of.type, results) for name, of in groups.items()}
    values = []
    for result, (verb, column) in zip(results, aggregates, strict=True):
        try:
            values.append(result if column is None else _stored(verb, result, column))
        except _TooLargeError as error:
            at = ", ".join(f"{name}={shown(keys[name][error.row].as_py())}" for name in key)
            raise ProcessError(
                f"{where}: a sum of {error.of} values, that of the key {at}, does not fit "
                f"{error.target}: {shown_text(error)}; sum a field of Decimal, or of float"
            ) from error
    return Grouped(keys, values)


class _TooLargeError(ArithmeticError):
    """A sum does not fit the type of combined rows."""

    def __init__(self, error: Exception, row: int, of: pa.DataType, target: pa.DataType) -> None:
        super().__init__(shown_text(error))
        self.row, self.of, self.target = row, of, target


def _stored(
    verb: str | GroupLists, result: pa.ChunkedArray, column: pa.ChunkedArray
) -> pa.ChunkedArray:
    """Return the results of an aggregate, in the type of combined rows.

    Parameters:
        column: that was aggregated.
    """
    if isinstance(verb, GroupLists):
        return pa.chunked_array([verb.of_groups(result.combine_chunks(), column)])
    if verb == "count":
        return result
    target = stored_type(verb, column.type)
    try:
        return _cast_stored(result, target)
    except pa.ArrowInvalid as error:
        row = next(n for n in range(len(result)) if not _fits(result.slice(n, 1), target))
        raise _TooLargeError(error, row, column.type, target) from error


def without_late(aggregates: Aggregates, panes: pa.ChunkedArray) -> Aggregates:
    """Return the same aggregates without the values of late records. Late records are only
    counted.
    """
    late = pc.equal(panes, LATE)
    if not pc.any(late).as_py():
        return aggregates
    return [
        (verb, column)
        if column is None or isinstance(verb, GroupLists)
        else (verb, pc.if_else(late, pa.scalar(None, column.type), column))
        for verb, column in aggregates
    ]


def listed(values: pa.ChunkedArray, times: pa.ChunkedArray | None) -> pa.ChunkedArray:
    """Return each value other than null as a list of one element, with its time if there are
    times.
    """
    elements = values.combine_chunks()
    is_valid = elements.is_valid()
    if times is not None:
        names = ["_1", "_2"]  # as a tuple has
        elements = pa.StructArray.from_arrays([times.combine_chunks(), elements], names)
    lists = pa.ListArray.from_arrays(offsets(is_valid), elements.filter(is_valid))
    return pa.chunked_array([lists])


# -------------------------------------- exact sums, minima and maxima


def _aggregable(verb: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
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


def _cast_stored(values: pa.ChunkedArray, target: pa.DataType) -> pa.ChunkedArray:
    """Cast aggregates to their stored type.

    Raises:
        pa.ArrowInvalid: a value does not fit.
    """
    if pa.types.is_duration(target):  # Arrow casts only integers to durations
        values = values.cast(pa.int64())
    return values.cast(target)


def _fits(values: pa.ChunkedArray, target: pa.DataType) -> bool:
    """Return whether all results fit their stored type."""
    try:
        _cast_stored(values, target)
    except pa.ArrowInvalid:
        return False
    return True
