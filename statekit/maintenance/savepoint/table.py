"""The tables of a savepoint: the columns of each, and rows as such columns.

Typed columns come first, for people and tools: the fields of the key under their own names, then

    a map                map_key
    a list               position, from 0
    timers               timer, clock, at
    buffered records     at
    all but timers       value
    operator state       shard, in place of a key
    states with a TTL    written

The last columns are the exact bytes, from which a savepoint is restored: `_key`, the encoded key,
`_subkey`, the rest of the row key, and `_row`. A key field whose name is taken gets the prefix
`key_`; names are compared without case, as in SQL.

Values and keys become typed columns without the user's classes. Types that every tool knows are
kept: scalars, lists, structs and maps. A set is a list, a tuple a struct of `_1`, `_2`, …, an enum
its value, a timedelta its microseconds, a Decimal and a UUID text. Other types are JSON text:
unions, recursive types, dicts whose keys are not scalars, keys of plain dicts. Pickled values are
null: nothing is unpickled.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from statekit.checkpoint.job_file import TIMERS, WAITING, OperatorRecord, StateRecord
from statekit.checkpoint.state_kinds import RowShape
from statekit.codec.key_codec import schema_key_codec
from statekit.codec.schema import Schema
from statekit.codec.schema_codec import expect, show_wire
from statekit.codec.value_codec import PickleCodec, checked_decode
from statekit.codec.value_plan import is_map
from statekit.errors import CorruptCheckpointError
from statekit.reader import key_schema
from statekit.state.event_time_buffer import record_of_row
from statekit.state.row_versions import generation_of
from statekit.state.timers import timer_of_row
from statekit.state.ttl import PERMANENT, unstamped
from statekit.timestamp import instant, micros_of_sortable, timedelta_to_micros

EXACT = ("_key", "_subkey", "_row")
"""The columns that a savepoint is restored from."""

Convert = Callable[[Any], Any]
_Outer = Mapping[str, Schema]

TIMESTAMP = pa.timestamp("us", tz="UTC")

_INT = pa.int64()
_WIDE_INT = pa.decimal128(20, 0)  # MessagePack has ints up to 2^64-1

_decode_wire = msgspec.msgpack.Decoder().decode


class SavedRow(NamedTuple):
    """A row of a savepoint.

    Parameters:
        key: encoded.
        subkey: the row key without key group and key.
        row: as stored.
        position: the number of rows of the same key before it.
    """

    key: bytes
    subkey: bytes
    row: bytes
    position: int


class Column(NamedTuple):
    """A type, and the conversion of values for Arrow.

    Parameters:
        type: of the column. Any value may be null.
        convert: for values other than None; None for no conversion.
    """

    type: pa.DataType
    convert: Convert | None = None


def key_of_shard(shard: int) -> bytes:
    """Return the bytes for a shard in place of a key."""
    return shard.to_bytes(4, "big")


def shard_of_key(key: bytes) -> int:
    """Return the inverse of `key_of_shard`."""
    return int.from_bytes(key, "big")


class TooWide(Exception):  # noqa: N818 - asks for wider columns
    """An int does not fit 64 bits with a sign."""


class _TableColumn(NamedTuple):
    """A column of a table, and the function that returns its value for a row."""

    name: str
    type: pa.DataType
    value: Callable[[SavedRow], Any]


class StateTable:
    """The columns of one state of an operator, of its timers or its buffered records.

    Parameters:
        operator: its operator.
        family: the name of the state, or `TIMERS`, or `WAITING`.
        wide: give ints 20 digits.
    """

    def __init__(self, operator: OperatorRecord, family: str, *, wide: bool = False) -> None:
        self.operator = operator
        self.family = family
        own = list(self._own(wide))
        names_of_own = [column.name for column in own]
        names = column_names([field.name for field in operator.key], [*names_of_own, *EXACT])
        self._columns = [*self._keys(names), *own, *_exact()]
        self.schema = pa.schema([(column.name, column.type) for column in self._columns])

    def batch(self, rows: Sequence[SavedRow]) -> pa.RecordBatch:
        """Return rows as columns.

        Raises:
            TooWide: an int needs a wide table.
            CorruptCheckpointError: a key or a value is not of its type.
        """
        try:
            arrays = [pa.array(list(map(of, rows)), type_) for _, type_, of in self._columns]
        except OverflowError as error:
            raise TooWide from error
        except (pa.ArrowException, CorruptCheckpointError) as error:
            raise CorruptCheckpointError(
                f"a row of {self.operator.name}.{self.family} is not of its type: {error}"
            ) from error
        return pa.record_batch(arrays, schema=self.schema)

    # ------------------------------------------------------------------------------- columns

    def _keys(self, names: Sequence[str]) -> Iterable[_TableColumn]:
        state = self._state
        if state is not None and state.is_local:
            yield _TableColumn("shard", pa.int32(), lambda row: shard_of_key(row.key))
            return
        decode = schema_key_codec(key_schema(self.operator)).decode
        is_one = len(self.operator.key) == 1

        def of_field(at: int, convert: Callable[[Any], Any]) -> Callable[[SavedRow], Any]:
            @lru_cache(maxsize=1)  # rows of one key come together
            def converted(key: bytes) -> Any:
                fields = decode(key)[0]
                return convert(fields if is_one else fields[at])

            return lambda row: converted(row.key)

        for at, (name, field) in enumerate(zip(names, self.operator.key, strict=True)):
            column = key_column(Schema.from_json(field.type))
            yield _TableColumn(name, column.type, of_field(at, or_none(column)))

    def _own(self, wide: bool) -> Iterable[_TableColumn]:
        if self.family == TIMERS:
            return _timer_columns()
        if self.family == WAITING:
            return self._waiting_columns(wide)
        assert self._state is not None, "all others are states"
        return _state_columns(self._state, wide)

    @property
    def _state(self) -> StateRecord | None:
        return next((state for state in self.operator.states if state.name == self.family), None)

    def _waiting_columns(self, wide: bool) -> Iterable[_TableColumn]:
        column, decode = _values(Schema.from_json(self.operator.ordered), "msgpack", wide)
        yield _TableColumn("at", TIMESTAMP, lambda row: instant(micros_of_sortable(row.subkey)))
        yield _TableColumn("value", column.type, lambda row: decode(record_of_row(row.subkey[8:])))


def column_names(wanted: Sequence[str], used_names: Sequence[str]) -> list[str]:
    """Return names for the fields of a key that differ from all other columns.

    >>> column_names(["user", "value", "Value"], ["value"])
    ['user', 'key_value', 'key_key_Value']
    """
    used = {name.lower() for name in used_names}
    names = []
    for name in wanted:
        while name.lower() in used:
            name = f"key_{name}"
        used.add(name.lower())
        names.append(name)
    return names


def _exact() -> Iterable[_TableColumn]:
    return [_TableColumn(name, pa.binary(), itemgetter(at)) for at, name in enumerate(EXACT)]


def _timer_columns() -> Iterable[_TableColumn]:
    yield _TableColumn("timer", pa.string(), lambda row: timer_of_row(row.subkey).name)
    yield _TableColumn("clock", pa.string(), lambda row: timer_of_row(row.subkey).clock)
    yield _TableColumn("at", TIMESTAMP, lambda row: timer_of_row(row.subkey).at)


def _state_columns(state: StateRecord, wide: bool) -> Iterable[_TableColumn]:
    if state.shape is RowShape.ENTRIES:
        schema = Schema.from_json(state.types["key"])
        map_key, decode_key = key_column(schema, wide=wide), schema_key_codec(schema).decode
        convert = or_none(map_key)
        yield _TableColumn("map_key", map_key.type, lambda row: convert(decode_key(row.subkey)[0]))
    if state.shape is RowShape.ELEMENTS:
        yield _TableColumn("position", pa.int64(), attrgetter("position"))
    column, decode = _values(Schema.from_json(state.types["value"]), state.codec, wide)

    def split(row: SavedRow) -> tuple[bytes, int]:
        return unstamped(row.row, state.era) if state.era else (row.row, PERMANENT)

    def value(row: SavedRow) -> Any:
        generation, value_bytes = generation_of(split(row)[0])
        return decode(value_bytes) if generation == state.generation else None  # of a former type

    def written(row: SavedRow) -> Any:
        stamp = split(row)[1]
        return None if stamp == PERMANENT else instant(stamp)

    yield _TableColumn("value", column.type, value)
    if state.ttl is not None:
        yield _TableColumn("written", TIMESTAMP, written)


def _values(schema: Schema, codec: str, wide: bool) -> tuple[Column, Callable[[bytes], Any]]:
    """Return the column of values, and the function that decodes them."""
    if codec == PickleCodec.name:
        return Column(pa.string()), lambda _: None
    column = value_column(schema, wide=wide)
    convert = None if column.convert is None else or_none(column)
    return column, checked_decode(schema.brief, _decode_wire, convert)


# -------------------------------------------------------------------------------- columns of types


def value_column(schema: Schema, *, wide: bool = False) -> Column:
    """Return the column for values of a schema, as MessagePack decodes them without a type.

    Parameters:
        wide: give ints 20 digits, for states with ints beyond 64 bits with a sign.
    """
    return _Columns(_WIRE_SCALARS, _wire_text, wide).of(schema, {})


def key_column(schema: Schema, *, wide: bool = False) -> Column:
    """Return the column for keys of a schema, as `schema_key_codec` decodes them."""
    return _Columns(_KEY_SCALARS, _key_text, wide).of(schema, {})


def _json(data: Any) -> str:
    return msgspec.json.encode(data).decode()


def _wire_text(schema: Schema, outer: _Outer) -> Column:
    return Column(pa.string(), lambda wire: _json(show_wire(schema, wire, outer)))


def _key_text(schema: Schema, outer: _Outer) -> Column:
    return Column(pa.string(), lambda key: _json(show_wire(schema, key)))


_SCALARS: dict[str, Column] = {
    "null": Column(pa.string()),
    "bool": Column(pa.bool_()),
    "int": Column(_INT),
    "float": Column(pa.float64(), float),
    "str": Column(pa.string()),
    "bytes": Column(pa.binary()),
    "date": Column(pa.date32()),
    "datetime": Column(TIMESTAMP),
    "timedelta": Column(_INT, timedelta_to_micros),
    "decimal": Column(pa.string(), str),
    "uuid": Column(pa.string(), str),
}
_KEY_SCALARS = _SCALARS
_WIRE_SCALARS = {
    **_SCALARS,
    "date": Column(pa.date32(), dt.date.fromisoformat),
    "timedelta": Column(
        _INT, lambda text: timedelta_to_micros(msgspec.convert(text, dt.timedelta))
    ),
    "decimal": Column(pa.string()),
    "uuid": Column(pa.string()),
}


class _Columns:
    """Columns of composite types, built from those of scalars and of text."""

    def __init__(
        self, scalars: Mapping[str, Column], text: Callable[[Schema, _Outer], Column], wide: bool
    ) -> None:
        self._scalars = scalars
        self._text = text
        self._int = _WIDE_INT if wide else _INT

    def of(self, schema: Schema, outer: _Outer) -> Column:
        match schema.kind:
            case "optional":
                return self.of(schema.items[0], outer)
            case "enum" | "literal":
                return self._choice(schema, outer)
            case "list" | "set" | "frozenset" | "variadic":
                return _sequence(self.of(schema.items[0], outer))
            case "tuple" if schema.items:
                names = [f"_{number}" for number in range(1, len(schema.items) + 1)]
                return _record(names, [self.of(item, outer) for item in schema.items])
            case "dict" if is_map(schema):
                return _map(*(self.of(item, outer) for item in schema.items))
            case "struct" if schema.fields:
                return self._struct(schema, {**outer, schema.name: schema})
        if schema.kind not in self._scalars:
            return self._text(schema, outer)
        column = self._scalars[schema.kind]
        return column._replace(type=self._int) if column.type == _INT else column

    def _choice(self, schema: Schema, outer: _Outer) -> Column:
        """Return the column of an enum or a literal, if all of its values have one type."""
        kinds = {type(value) for _, value in schema.values if value is not None}
        if len(kinds) != 1:
            return Column(pa.string(), _json)
        return self.of(Schema(kinds.pop().__name__), outer)

    def _struct(self, schema: Schema, inner: _Outer) -> Column:
        names = [field.name for field in schema.fields]
        columns = [self.of(field.schema, inner) for field in schema.fields]
        column = _record(names, columns)
        as_items = column.convert
        assert as_items is not None

        def convert(value: Any) -> Any:
            if isinstance(value, tuple):  # a key of several parts
                return as_items(list(value))
            fields = expect(value, dict)
            return as_items([fields.get(name) for name in names])

        return Column(column.type, convert)


def or_none(column: Column) -> Convert:
    """Return the conversion of a column's values, None included."""
    convert = column.convert
    if convert is None:
        return lambda value: value
    return lambda value: None if value is None else convert(value)


def _sequence(item: Column) -> Column:
    each = or_none(item)
    return Column(pa.list_(item.type), lambda values: [each(value) for value in _items(values)])


def _record(names: list[str], columns: list[Column]) -> Column:
    each = [or_none(column) for column in columns]
    fields = [pa.field(name, column.type) for name, column in zip(names, columns, strict=True)]

    def convert(values: Any) -> Any:
        parts = zip(names, each, _items(values), strict=True)
        return {name: turn(value) for name, turn, value in parts}

    return Column(pa.struct(fields), convert)


def _map(key: Column, item: Column) -> Column:
    key_of, item_of = or_none(key), or_none(item)

    def convert(value: Any) -> Any:
        return [(key_of(k), item_of(v)) for k, v in expect(value, dict).items()]

    return Column(pa.map_(key.type, item.type), convert)


def _items(values: Any) -> Any:
    return values if isinstance(values, tuple) else expect(values, list)
