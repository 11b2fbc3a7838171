"""Spark `Row`s as records of a processor, as input and output."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple, Self

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql import types as sql

from statekit.codec.annotations import Field
from statekit.errors import ProcessError
from statekit.records.arrow_reader import timestamp_reader
from statekit.records.output_type import OutputType
from statekit.records.record_type import RecordReader
from statekit.shown import shown, shown_error
from statekit.spark.frames.arrow_schemas import arrow_schema
from statekit.spark.tws.grouping_key import Getter, GroupingKey
from statekit.spark.tws.sql_conversions import plain_type
from statekit.spark.worker.rows import ColumnRecords

ReaderOf = Callable[[pa.Schema, int], RecordReader]
"""Returns a reader of batches. The columns from a given one on have the given schema."""


class Initial(NamedTuple):
    """A row of the initial state. Its class distinguishes it from rows of the input."""

    row: Any


@dataclass(frozen=True, slots=True)
class RowRecords(ColumnRecords):
    """Records that are `Row`s with all columns.

    Parameters:
        widened: returns the values of a row from those of its columns, if a row has more fields.
        reads: returns the reader of batches, if records are no `Row`s.
    """

    widened: Getter | None = field(default=None, compare=False)
    reads: ReaderOf | None = field(default=None, compare=False)

    @classmethod
    def of_schema(cls, schema: sql.StructType) -> Self:
        """Return the record type of rows with this schema."""
        fields = {of.name: Field(of.name, _annotation(of.dataType), required=True) for of in schema}
        return cls(row_class(schema.names), "Row", "namedtuple", fields, "rows")

    @classmethod
    def grouped(
        cls, by: GroupingKey, key: GroupingKey | None = None, reads: ReaderOf | None = None
    ) -> Self:
        """Return the record type of the rows that a key groups.

        Parameters:
            by: the grouping key of these rows.
            key: the grouping key whose columns are the stored key, if it is another one.
        """
        plain = cls.of_schema(by.rows)
        derived = by.derived if key is None else by.as_of(key)
        types = dict(zip((key or by).columns, by.annotations, strict=True))
        keys = {name: Field(name, types[name] | None, required=True) for name in derived}
        fields = {**(plain.fields or {}), **keys}
        records = replace(plain, fields=fields, derived=derived, reads=reads)
        if not by.in_front:
            return records
        rows = row_class([*by.in_front, *by.rows.names])
        return replace(records, cls=rows, widened=by.put_in_front())

    @property
    def columns(self) -> list[str]:
        """The columns of a row."""
        return [name for name in self.field_names if name not in self.derived]

    def coerce(self, value: Any) -> Any:
        """Return a row with all columns, matched by name if the record has names."""
        names = self.columns
        if isinstance(value, Row) and value.__fields__ != names:
            value = value.asDict()
        if isinstance(value, Mapping):
            value = [value.get(name) for name in names]
        if not isinstance(value, list | tuple) or len(value) != len(names):
            raise ProcessError(f"{shown(value, 200)} is no row with the columns {', '.join(names)}")
        return tuple.__new__(self.cls, value)

    def getter(self, fields: tuple[str, ...]) -> Callable[[Any], Any]:
        if any(name in self.derived for name in fields):
            raise ProcessError(
                f"rows are grouped by {', '.join(fields)}, which Spark computes: run it on Spark"
            )
        return super(RowRecords, self).getter(fields)

    def reader(self, schema: Any, *, first_column: int = 0, restores: bool = False) -> RecordReader:
        columns = pa.schema(list(schema)[first_column : first_column + len(self.columns)])
        missing = [name for name in self.columns if name not in columns.names]
        if missing:
            raise ProcessError(f"rows have no column {', '.join(map(repr, missing))}")
        if self.reads is not None:
            return self.reads(columns, first_column)
        return _RowReader(self.cls, columns, first_column, self.widened)


def row_class(names: Sequence[str]) -> type[Row]:
    """Return a class of rows with these columns that is fast to create and to read."""
    # Row searches for a name; a name that all rows have keeps its meaning. The
    # getters of a named tuple read an item without the Python code of Row.
    places = namedtuple("Places", [f"place_{at}" for at in range(len(names))])  # type: ignore[misc]
    getters = {
        name: vars(places)[f"place_{at}"]
        for at, name in reversed([*enumerate(names)])
        if not hasattr(Row, name)
    }
    own = {"__fields__": list(names), "__module__": Row.__module__}
    return type("Row", (Row,), {**getters, **own})


class _RowReader(RecordReader):
    def __init__(
        self, cls: type[Row], schema: pa.Schema, first_column: int, widened: Getter | None
    ) -> None:
        self._columns = slice(first_column, first_column + len(schema))
        self._row: Callable[[tuple[Any, ...]], Row] = partial(tuple.__new__, cls)
        self._widened = widened
        self._readers = [
            timestamp_reader(of) if pa.types.is_timestamp(of) else pa.Array.to_pylist
            for of in schema.types
        ]

    def read(self, batch: pa.RecordBatch) -> list[Any]:
        columns = batch.columns[self._columns]
        values = [read(column) for read, column in zip(self._readers, columns, strict=True)]
        rows = zip(*values, strict=True)
        return list(map(self._row, rows if self._widened is None else map(self._widened, rows)))


_FIELDS = attrgetter("__fields__")


class RowOutputs(OutputType):
    """Outputs that are `Row`s. Their fields are matched by name, as in Spark."""

    _schema: pa.Schema

    @classmethod
    def annotation(cls, schema: sql.StructType) -> Any:
        """Return a type with a numbered field per column, because column names may not be valid in
        Python.
        """
        columns = [(f"field_{at}", _annotation(of.dataType)) for at, of in enumerate(schema)]
        return NamedTuple("Output", columns)

    @classmethod
    def of_schema(cls, schema: sql.StructType) -> Self:
        """Return the output type of rows with these columns."""
        outputs = cls(cls.annotation(schema), "output")
        outputs.record_type = RowRecords.of_schema(schema)
        outputs._schema = arrow_schema(schema)
        outputs.__dict__["arrow_schema"] = outputs._schema
        outputs._is_flat = not any(map(pa.types.is_nested, outputs._schema.types))
        return outputs

    _is_flat = False

    def to_batch(self, records: list[Any]) -> pa.RecordBatch:
        try:
            return self._batch(records)
        except Exception as error:
            raise ProcessError(
                f"a row does not fit the output schema: {shown_error(error)}. The first "
                f"row of its batch is {shown(records[0], 200)}; nothing of this epoch is committed"
            ) from error

    def check_all(self, records: list[Any]) -> None:
        self.to_batch(records)

    copy = None  # rows are tuples

    def stored(self, records: list[Any]) -> list[Any]:
        self.to_batch(records)
        return records

    def _batch(self, rows: list[Any]) -> pa.RecordBatch:
        schema = self._schema
        names = schema.names
        if self._is_flat and list(map(_FIELDS, rows)).count(names) == len(rows):
            columns = zip(*rows, strict=True)
            arrays = [pa.array(c, of) for c, of in zip(columns, schema.types, strict=True)]
            return pa.RecordBatch.from_arrays(arrays, schema=schema)
        return pa.RecordBatch.from_pylist([row.asDict(True) for row in rows], schema=schema)


def _annotation(of: sql.DataType) -> Any:
    """Return the Python type of a simple SQL type; Any for others."""
    python_type = plain_type(of)
    return Any if python_type is None else python_type | None
