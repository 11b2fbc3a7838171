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
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from statekit.checkpoint.job_file import TIMERS, WAITING, OperatorRecord, StateRecord
from statekit.checkpoint.state_kinds import RowShape
from statekit.codec.key_codec import schema_key_codec
from statekit.codec.schema import Schema
from statekit.codec.value_codec import PickleCodec, checked_decode
from statekit.errors import CorruptCheckpointError
from statekit.maintenance.savepoint.columns import (
    TIMESTAMP,
    Column,
    key_column,
    or_none,
    value_column,
)
from statekit.reader import key_schema
from statekit.state.event_time_buffer import record_of_row
from statekit.state.row_versions import generation_of
from statekit.state.timers import timer_of_row
from statekit.state.ttl import PERMANENT, unstamped
from statekit.timestamp import instant, micros_of_sortable

EXACT = ("_key", "_subkey", "_row")
"""The columns that a savepoint is restored from."""

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
