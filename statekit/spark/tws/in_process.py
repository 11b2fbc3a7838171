"""A processor in this process, with rows from Python. Neither Spark nor a JVM runs.

A row has the values that Spark would pass to the processor: it is converted to Arrow by the schema
and read back as in a worker. Outputs are converted to the rows that `collect()` returns.
"""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import Annotated, Any, TypedDict

import pyarrow as pa
import pydantic
from pyspark.sql import types as sql
from pyspark.sql.conversion import ArrowTableToRowsConversion, LocalDataToArrowConversion

from statekit.checkpoint.manifest import ShardPlan
from statekit.errors import ProcessError, StateTypeError
from statekit.records.arrow_scalars import Decimals
from statekit.records.record_type import RecordType
from statekit.shown import shown, shown_text, type_name
from statekit.spark.frames.arrow_schemas import arrow_schema
from statekit.spark.tws.grouping_key import GroupingKey
from statekit.spark.tws.pandas_frames import FrameReader
from statekit.spark.tws.process import FIRST_TIME_US, ProcessorCalls, ProcessorProcess
from statekit.spark.tws.row_records import Initial, RowOutputs, RowRecords
from statekit.timestamp import MAX_MICROS, datetime_to_micros


@dataclass(frozen=True, slots=True)
class GivenRows(RecordType):
    """Records given as dicts, `Row`s or tuples, and passed on as Spark's `Row`s.

    Parameters:
        rows: the record type of Spark's `Row`s.
        schema: of the rows.
    """

    rows: RowRecords = field(kw_only=True, compare=False)
    schema: sql.StructType = field(kw_only=True, compare=False)

    @classmethod
    def grouped(cls, key: GroupingKey) -> GivenRows:
        """Return the record type of rows that are grouped by a key."""
        return cls.of_rows(RowRecords.grouped(key), key.rows, "rows")

    @classmethod
    def of_rows(cls, rows: RowRecords, schema: sql.StructType, where: str) -> GivenRows:
        """Return the record type for the record type of Spark's `Row`s."""
        given = dict_class(schema)
        return cls(given, "Row", "typeddict", rows.fields, where, rows=rows, schema=schema)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.of_rows, (self.rows, self.schema, self.where)  # a TypedDict cannot be pickled

    @property
    def skip(self) -> int:
        """The number of fields before the columns of a row."""
        return len(self.rows.cls.__fields__) - len(self.schema)

    def coerce(self, value: Any) -> Any:
        """Return a row with the values that Spark would pass.

        Raises:
            ProcessError: it has other columns, or a value does not fit its type.
        """
        if type(value) is self.rows.cls:
            return value
        names = value if isinstance(value, Mapping) else getattr(value, "__fields__", ())
        if unknown := [name for name in names if name not in self.schema.names]:
            raise ProcessError(
                f"{shown(value, 200)} has {', '.join(map(repr, unknown))}, and rows have the "
                f"columns {', '.join(self.schema.names)}"
            )
        (batch,) = _arrow_row(self.rows.coerce(value), self.schema).to_batches()
        (row,) = self.rows.reader(batch.schema).read(batch)
        return row

    def getter(self, fields: tuple[str, ...]) -> Callable[[Any], Any]:
        get = itemgetter(*[self.skip + self.schema.names.index(name) for name in fields])
        return lambda record: get(self.coerce(record))


def _arrow_row(row: Iterable[Any], schema: sql.StructType) -> pa.Table:
    """Return a row as `createDataFrame` converts it.

    Raises:
        ProcessError: a value does not fit its type.
    """
    values = [_without_zone(value, of) for value, of in zip(row, schema, strict=True)]
    try:
        return LocalDataToArrowConversion.convert([tuple(values)], schema, False)
    except Exception as error:
        misfits = [of for value, of in zip(values, schema, strict=True) if not _fits(value, of)]
        told = "".join(
            f", column {of.name!r} of type {of.dataType.simpleString()}" for of in misfits
        )
        raise ProcessError(
            f"{shown(row, 200)} does not fit the schema of the rows{told}: "
            f"{type_name(error)} {shown_text(error)}"
        ) from error


def _fits(value: Any, of: sql.StructField) -> bool:
    try:
        LocalDataToArrowConversion.convert([(value,)], sql.StructType([of]), False)
    except Exception:  # noqa: BLE001 - it was raised for the row, too
        return False
    return True


def _without_zone(value: Any, of: sql.StructField) -> Any:
    """Return a value of a row. A datetime for a column without time zones loses its zone:
    12:00+02:00 becomes 12:00, as in Spark.
    """
    is_zoned = isinstance(of.dataType, sql.TimestampNTZType) and isinstance(value, dt.datetime)
    return value.replace(tzinfo=None) if is_zoned else value


class CollectedRows(RowOutputs):
    """Outputs as `collect()` returns them, with the names and types of the schema."""

    _sql_schema: sql.StructType

    @classmethod
    def of_schema(cls, schema: sql.StructType) -> CollectedRows:
        outputs = super().of_schema(schema)
        outputs._sql_schema = schema
        return outputs

    def stored(self, records: list[Any]) -> list[Any]:
        if not records:
            return []
        table = pa.Table.from_batches([self.to_batch(records)])
        rows: list[Any] = ArrowTableToRowsConversion.convert(table, self._sql_schema)
        return rows


@dataclass(eq=False, repr=False)
class CallsInProcess(ProcessorCalls):
    """Calls a processor with rows that come from Python.

    Parameters:
        initial_rows: of the initial state.
    """

    initial_rows: Sequence[Any] = ()

    @property
    def records(self) -> Any:
        return GivenRows.grouped(self.key)

    def __call__(self, rows: Iterator[Any], context: Any, *states: Any) -> Any:
        given = rows if self.frames is None else self._rows_of_frames(rows)
        return super().__call__(given, context, *states)

    def _rows_of_frames(self, rows: Iterator[Any]) -> Iterator[Any]:
        """Yield the rows of a key as the tuples that pandas creates from rows of a frame."""
        for kind, some in groupby(rows, key=type):
            if kind is not Initial:
                yield from self._read(some, self.key)
            elif self.initial is not None:
                yield from map(Initial, self._read((given.row for given in some), self.initial))

    def _read(self, rows: Iterable[Any], key: GroupingKey) -> list[Any]:
        assert self.frames is not None, "it takes frames"
        schema = arrow_schema(key.rows)
        columns = list(zip(*rows, strict=True))[len(key.in_front) :]
        arrays = [pa.array(*column) for column in zip(columns, schema.types, strict=True)]
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        return FrameReader(self.frames, batch.schema, 0).read(batch)

    def first_rows(self) -> list[Initial]:
        """Return the rows of the initial state."""
        if self.initial is None:
            return []
        records = GivenRows.grouped(self.initial)
        return [Initial(records.coerce(row)) for row in self.initial_rows]


class InProcess(ProcessorProcess):
    """A process function that calls a processor with rows that come from Python."""

    calls: CallsInProcess

    def __init__(self, fn: CallsInProcess, *options: Any) -> None:
        super().__init__(fn, *options)
        self.output_type = CollectedRows.of_schema(fn.outputs)

    def combined(
        self, records: Sequence[Any], plan: ShardPlan, *, restores: bool = False
    ) -> Sequence[Any]:
        """Return the records. In the first epoch they follow the initial state.

        Raises:
            StateTypeError: there are several inputs; the initial state would be read for each.
        """
        if len(plan.inputs) > 1 and self.calls.initial is not None:
            raise StateTypeError(
                f"{self.name} has an initial state and the inputs {', '.join(plan.inputs)}: give "
                "it one input"
            )
        return records if plan.base_epoch is not None else [*self.calls.first_rows(), *records]

    def key_of(self) -> Callable[[Any], Any]:
        calls = self.calls
        of_row = calls.key.stored_key(len(calls.key.in_front))
        if calls.initial is None:
            return of_row
        of_initial = calls.initial.stored_key(len(calls.initial.in_front))
        return lambda record: of_initial(record.row) if type(record) is Initial else of_row(record)

    def time_of(self) -> Callable[[Any], int]:
        """Return a function from a row to its event time. A row without one is never late."""
        time_of = self._time_of_row()
        return lambda record: MAX_MICROS if (time := time_of(record)) is None else time

    def times_of_input(self, records: Sequence[Any]) -> Sequence[Any]:
        """Return the event times of rows; None for a row without one."""
        return list(map(self._time_of_row(), records))

    def _time_of_row(self) -> Callable[[Any], Any]:
        assert self.event_time is not None, "it is asked for event time"
        get = self.record_type.getter((self.event_time,))

        def time_of(record: Any) -> int | None:
            if type(record) is Initial:
                return FIRST_TIME_US
            at = get(record)
            if at is None:
                return None
            return datetime_to_micros(at if at.tzinfo else at.replace(tzinfo=dt.UTC))

        return time_of


# ------------------------------------------------------------------------- classes of given rows

_ANNOTATIONS: dict[type[sql.DataType], Any] = {
    sql.BooleanType: bool,
    sql.ByteType: Annotated[int, pydantic.Field(ge=-(2**7), lt=2**7)],
    sql.ShortType: Annotated[int, pydantic.Field(ge=-(2**15), lt=2**15)],
    sql.IntegerType: Annotated[int, pydantic.Field(ge=-(2**31), lt=2**31)],
    sql.LongType: int,
    sql.FloatType: float,
    sql.DoubleType: float,
    sql.StringType: str,
    sql.BinaryType: bytes,
    sql.DateType: dt.date,
    sql.TimestampType: dt.datetime,
    sql.DayTimeIntervalType: dt.timedelta,
    sql.NullType: None,
}


@lru_cache
def dict_class(schema: sql.StructType) -> Any:
    """Return a class of dicts with the columns of a schema, and their Python types without nulls.

    The annotation of a column whose values cannot be made is its SQL type.

    >>> dict_class(sql.StructType().add("n", "long").add("at", "date")).__annotations__
    {'n': <class 'int'>, 'at': <class 'datetime.date'>}
    """
    columns = {of.name: _annotation(of.dataType) for of in schema}
    for of in schema:
        if isinstance(of.dataType, sql.TimestampNTZType):  # rows lose the time zone
            columns[of.name] = dt.datetime
    return _class(columns)


def _class(columns: dict[str, Any]) -> Any:
    make: Any = TypedDict  # mypy accepts only literals here
    return make("Row", columns)


def _annotation(of: sql.DataType) -> Any:
    if isinstance(of, sql.ArrayType):
        return list[_annotation(of.elementType)]  # type: ignore[misc]
    if isinstance(of, sql.MapType):
        return dict[_annotation(of.keyType), _annotation(of.valueType)]  # type: ignore[misc]
    if isinstance(of, sql.StructType):
        return _class({field.name: _annotation(field.dataType) for field in of})
    if isinstance(of, sql.DecimalType):
        return Annotated[decimal.Decimal, Decimals(of.precision, of.scale)]
    return _ANNOTATIONS.get(type(of), type(of))
