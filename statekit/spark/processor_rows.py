"""Rows as a stateful processor of Spark's is given them, and as it gives them.

What lives here: Arrow batches to `Row`s and back, as Spark's own workers do it. What does not: the
processor (`processors`).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple, Self

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql import types as sql
from pyspark.sql.pandas.types import to_arrow_schema

from statekit.errors import ProcessError
from statekit.outputs import OutputType
from statekit.records import RecordReader, RecordType

__all__ = ["RowOutputs", "RowRecords"]


class RowRecords(RecordType):
    """Records that are `Row`s of all columns, with the values that Arrow gives for them."""

    __slots__ = ()

    @classmethod
    def of_schema(cls, schema: sql.StructType) -> Self:
        """Rows with these columns."""
        fields = RecordType.of(_named_tuple("Row", schema), where="rows").fields
        return cls(_row_class(schema.names), "Row", "namedtuple", fields, "rows")

    def coerce(self, value: Any) -> Any:
        """A row of all columns, by their names where it has any."""
        names = self.field_names
        if isinstance(value, Row) and value.__fields__ != list(names):
            value = value.asDict()
        if isinstance(value, Mapping):
            value = [value.get(name) for name in names]
        if not isinstance(value, list | tuple) or len(value) != len(names):
            raise ProcessError(f"{value!r:.200} is no row with the columns {', '.join(names)}")
        return tuple.__new__(self.cls, value)

    def reader(self, schema: Any, *, first_column: int = 0) -> RecordReader:
        return _RowReader(schema, first_column)


def _row_class(names: Sequence[str]) -> type[Row]:
    """Rows of these columns, quick to make and to read."""
    # What Row finds by searching for the name; a name that all rows have means what it did.
    getters = {
        name: property(itemgetter(place))
        for place, name in reversed([*enumerate(names)])
        if not hasattr(Row, name)
    }
    own = {"__fields__": list(names), "__module__": Row.__module__}
    return type("Row", (Row,), {**getters, **own})


class _RowReader(RecordReader):
    def __init__(self, schema: pa.Schema, first_column: int) -> None:
        self._first = first_column
        names = schema.names[first_column:]
        self._row: Callable[[tuple[Any, ...]], Row] = partial(tuple.__new__, _row_class(names))

    def read(self, batch: pa.RecordBatch) -> list[Any]:
        columns = [column.to_pylist() for column in batch.columns[self._first :]]
        return list(map(self._row, zip(*columns, strict=True)))


class RowOutputs(OutputType):
    """Outputs that are `Row`s, whose fields are taken by their names, as Spark takes them."""

    _schema: pa.Schema

    @classmethod
    def annotation(cls, schema: sql.StructType) -> Any:
        """A type with the columns for fields."""
        return _named_tuple("Output", schema)

    @classmethod
    def of_schema(cls, schema: sql.StructType) -> Self:
        made = cls(cls.annotation(schema), "output")
        made._schema = to_arrow_schema(schema, timezone="UTC")
        made.__dict__["arrow_schema"] = made._schema
        made._is_flat = not any(map(pa.types.is_nested, made._schema.types))
        return made

    _is_flat = False

    def to_batch(self, records: list[Any]) -> pa.RecordBatch:
        try:
            return self._batch(records)
        except Exception as error:
            raise ProcessError(
                f"a row does not fit the output schema: {type(error).__name__}: {error}. The first "
                f"row of its batch is {records[0]!r:.200}; nothing of this epoch is committed"
            ) from error

    def check_all(self, records: list[Any]) -> None:
        self.to_batch(records)

    def _batch(self, rows: list[Any]) -> pa.RecordBatch:
        schema = self._schema
        names = schema.names
        if self._is_flat and all(row.__fields__ == names for row in rows):
            columns = zip(*rows, strict=True)
            arrays = [pa.array(c, of) for c, of in zip(columns, schema.types, strict=True)]
            return pa.RecordBatch.from_arrays(arrays, schema=schema)
        return pa.RecordBatch.from_pylist([row.asDict(True) for row in rows], schema=schema)


def _named_tuple(name: str, schema: sql.StructType) -> Any:
    return NamedTuple(name, [(field.name, _annotation(field.dataType)) for field in schema])


def _annotation(of: sql.DataType) -> Any:
    """What Python has for values of a simple type; anything for others."""
    for kinds, found in _PYTHON:
        if isinstance(of, kinds):
            return found | None
    return Any


_PYTHON: tuple[tuple[type[sql.DataType], Any], ...] = (
    (sql.BooleanType, bool),
    (sql.IntegralType, int),
    (sql.StringType, str),
    (sql.BinaryType, bytes),
    (sql.DateType, dt.date),
    (sql.TimestampType, dt.datetime),
)
