"""Tables of stored rows: the columns of a state, of timers or of buffered records.

    keyed state          the fields of the key
    operator state       shard
    a map                map_key
    a list               position, from 0
    timers               timer, clock, at
    buffered records     at
    all but timers       a column per field of a struct, else value
    states with hooks    earlier
    states with a TTL    written, expires

The columns depend only on the stored types. A value field whose name is taken gets the prefix
`value_`, and then a key field the prefix `key_`; names are compared without case, as in SQL.

The metadata of a column has its stored type (`statekit.type`). It has `statekit.json` if the column
is JSON text ("all"), or if parts of its values are JSON text ("parts").
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, cached_property, partial
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from statekit.checkpoint.era import PERMANENT
from statekit.checkpoint.job_file import TIMERS, WAITING, StateRecord
from statekit.checkpoint.state_kinds import RowShape
from statekit.codec.schema import Schema
from statekit.codec.schema_codec import json_value_decoder
from statekit.codec.value_codec import PickleCodec
from statekit.errors import CorruptCheckpointError, QueryError
from statekit.query.tables.columns import TIMESTAMP, Column, Decoder, Struct, value_column
from statekit.query.tables.key_columns import KeyColumn, checked_ends, packed_key_column
from statekit.query.tables.packed_bytes import RowBatch
from statekit.query.tables.row_parts import Family, Positions, RowParts, Times, instants
from statekit.records.nested_types import marked_field
from statekit.state.row_versions import marked, row_decoder, value_schema
from statekit.timestamp import MAX_MICROS, MIN_MICROS


class TableColumn(NamedTuple):
    """A column that a table can have.

    Parameters:
        field: its name, type and metadata.
        array: returns its values.
        choose: is called for each table that has the column, before its values are read.
    """

    field: pa.Field
    array: Callable[[RowParts], pa.Array]
    choose: Callable[[], object] = lambda: None


def typed_field(name: str, column: Column | KeyColumn, schema: Schema) -> pa.Field:
    """Return a field with metadata: its stored type, and how JSON shows it."""
    return marked_field(name, column.type, column.mark, {"statekit.type": str(schema)})


class TooWide(Exception):  # noqa: N818 - asks for wider columns
    """An int does not fit 64 bits with a sign."""


class Table:
    """Rows of one state as record batches.

    Parameters:
        family: the state.
        columns: the columns in order, at least one.
    """

    def __init__(self, family: Family, columns: Iterable[TableColumn]) -> None:
        self.family = family
        self._columns = list(columns)
        for column in self._columns:
            column.choose()
        self._positions = Positions()
        self.schema = pa.schema([column.field for column in self._columns])

    def no_rows(self) -> RowBatch:
        """Return an empty batch that can be extended."""
        return RowBatch([], [], [] if self.family.is_local else None)

    def batch(self, rows: RowBatch, *, expired_until: int | None = None) -> pa.RecordBatch:
        """Return rows as columns. The rows of a key must be adjacent, also across batches.

        Parameters:
            rows: the rows.
            expired_until: leave out rows written at this time or before; None to keep all.

        Raises:
            TooWide: an int needs a wide table.
            CorruptCheckpointError: a key or a value is not of its type.
        """
        try:
            parts = self._parts(rows, expired_until)
            if not parts.rows.keys:
                return pa.RecordBatch.from_pylist([], schema=self.schema)
            arrays = [column.array(parts) for column in self._columns]
        except OverflowError as error:
            raise TooWide from error
        except (pa.ArrowException, CorruptCheckpointError, ValueError, IndexError) as error:
            name = f"{self.family.operator.name}.{self.family.name}"
            raise CorruptCheckpointError(f"a row of {name} is not of its type: {error}") from error
        return pa.record_batch(arrays, schema=self.schema)

    def _parts(self, rows: RowBatch, expired_until: int | None) -> RowParts:
        parts = RowParts(self.family, rows, self._positions)
        if expired_until is None or (kept := parts.written > expired_until).all():
            return parts
        return RowParts(self.family, rows.where(kept), self._positions)


def table_for_reading(
    family: Family,
    *,
    wanted: Sequence[str] | None = None,
    wide: bool = False,
    allow_pickle: bool = False,
) -> Table:
    """Return the table of a state for people and tools.

    Parameters:
        family: the state.
        wanted: the names of columns, in order; None for all.
        wide: give ints 20 digits.
        allow_pickle: unpickle values.

    Raises:
        QueryError: there is no such column, or its values are pickled and `allow_pickle` is False.
    """
    offered = layout_of(family, wide=wide, allow_pickle=allow_pickle).columns
    by_name = dict(zip(names_of(offered), offered, strict=True))
    chosen = by_name if wanted is None else _checked(family, wanted, [*by_name])
    return Table(family, [by_name[name] for name in chosen])


class TableLayout(NamedTuple):
    """All columns of a table for people and tools, with their names.

    Parameters:
        key: the fields of the key, or the shard.
        place: the other parts of the row key: of a state, the map key or the position, if any.
        value: the fields of a struct, or the value.
        times: of states with a TTL.
    """

    key: Sequence[TableColumn]
    place: Sequence[TableColumn]
    value: Sequence[TableColumn]
    times: Sequence[TableColumn]

    @property
    def columns(self) -> list[TableColumn]:
        """All columns, in order."""
        return [*self.key, *self.place, *self.value, *self.times]


def layout_of(family: Family, *, wide: bool = False, allow_pickle: bool = False) -> TableLayout:
    """Return the columns of a state. The parameters are those of `table_for_reading`."""
    place, times = list(row_key_columns(family, wide)), []
    if family.state is not None and family.state.ttl is not None:
        times = [written_column(family), expires_column(family)]
    stored = value_columns(family, wide=wide, allow_pickle=allow_pickle)
    key, value = distinct_columns(family, stored, names_of([*place, *times]))
    return TableLayout(key, place, value, times)


def _checked(family: Family, wanted: Sequence[str], names: Sequence[str]) -> Sequence[str]:
    where = f"{family.operator.name}.{family.name}"
    for name in wanted:
        if name not in names:
            raise QueryError(f"{where} has no column {name!r}: it has {', '.join(names)}")
    if not wanted or len(set(wanted)) < len(wanted):
        raise QueryError(
            f"columns={list(wanted)} of {where}: name at least one column, and each one once"
        )
    return wanted


def names_of(columns: Iterable[TableColumn]) -> list[str]:
    """Return the names of columns."""
    return [column.field.name for column in columns]


def distinct_columns(
    family: Family, values: Iterable[TableColumn], used_names: Sequence[str]
) -> tuple[list[TableColumn], list[TableColumn]]:
    """Return the columns of the key and of the value, with names unique among all columns.

    Parameters:
        used_names: the names of the other columns.
    """
    values = renamed(values, used_names, "value_")
    return renamed(columns_of_key(family), [*used_names, *names_of(values)], "key_"), values


def renamed(
    columns: Iterable[TableColumn], used_names: Sequence[str], prefix: str
) -> list[TableColumn]:
    """Return columns with unique names: a prefix is added to names that are used already."""
    columns = list(columns)
    names = column_names(names_of(columns), used_names, prefix)
    pairs = zip(columns, names, strict=True)
    return [column._replace(field=column.field.with_name(name)) for column, name in pairs]


def column_names(wanted: Sequence[str], used_names: Sequence[str], prefix: str) -> list[str]:
    """Return unique names for columns: a prefix is added to names that are used already.

    >>> column_names(["user", "value", "Value"], ["value"], "key_")
    ['user', 'key_value', 'key_key_Value']
    """
    used = {name.lower() for name in used_names}
    names = []
    for name in wanted:
        while name.lower() in used:
            name = f"{prefix}{name}"
        used.add(name.lower())
        names.append(name)
    return names


def columns_of_key(family: Family) -> Iterator[TableColumn]:
    """Yield the columns of the key; of operator state, the shard."""
    if family.is_local:
        yield plain_column("shard", pa.int32(), lambda parts: parts.shards)
        return
    for number, (part, column) in enumerate(
        zip(family.operator.key, family.key.columns, strict=True)
    ):
        field = typed_field(part.name, column, Schema.from_json(part.type))
        yield TableColumn(field, partial(_key_field, number))


def _key_field(number: int, parts: RowParts) -> pa.Array:
    return parts.key_fields[number]


def plain_column(
    name: str, type_: pa.DataType, array: Callable[[RowParts], pa.Array]
) -> TableColumn:
    """Return a column without metadata."""
    return TableColumn(pa.field(name, type_), array)


def row_key_columns(family: Family, wide: bool) -> Iterator[TableColumn]:
    """Yield the columns of the other parts of the row key: timers, times, map keys or positions."""
    if family.name == TIMERS:
        yield plain_column("timer", pa.string(), lambda parts: parts.timer_names)
        yield plain_column("clock", pa.string(), lambda parts: parts.timer_clocks)
    if family.name in (TIMERS, WAITING):
        yield plain_column("at", TIMESTAMP, lambda parts: parts.times)
    if family.state is not None:
        yield from place_columns(family.state, wide=wide)


def place_columns(state: StateRecord, *, wide: bool) -> Iterator[TableColumn]:
    """Yield the column of map keys, or of the positions of list elements."""
    if state.shape is RowShape.ELEMENTS:
        yield plain_column("position", pa.int64(), lambda parts: parts.positions)
    if state.shape is not RowShape.ENTRIES:
        return
    schema = Schema.from_json(state.types["key"])
    column = packed_key_column(schema, wide=wide)

    def array(parts: RowParts) -> pa.Array:
        keys, ends = column.decode(parts.packed, parts.key_ends)
        checked_ends(parts.packed, ends)
        return keys

    yield TableColumn(typed_field("map_key", column, schema), array)


def written_column(family: Family) -> TableColumn:
    """Return the column of write times, moved by downtime that does not count; null for rows that
    do not expire.
    """
    paused_us = 0 if family.state is None else family.state.paused_us
    return plain_column(
        "written", TIMESTAMP, lambda parts: instants(_later(parts.written, paused_us))
    )


def expires_column(family: Family) -> TableColumn:
    """Return the column of deadlines; null for rows that do not expire."""
    ttl = None if family.state is None else family.state.ttl
    duration = 0
    if family.state is not None and ttl is not None:
        duration = min(ttl.duration_us + family.state.paused_us, MAX_MICROS - MIN_MICROS)

    def array(parts: RowParts) -> pa.Array:
        if ttl is None:
            return pa.nulls(len(parts.rows.keys), TIMESTAMP)
        return instants(_later(parts.written, duration))

    return plain_column("expires", TIMESTAMP, array)


def _later(written: Times, duration: int) -> Times:
    """Return times plus a duration; times of permanent rows are unchanged."""
    ends = np.clip(written, MIN_MICROS, MAX_MICROS) + duration
    return np.where(np.abs(written) == PERMANENT, written, ends)


# ------------------------------------------------------------------------------- values


def value_columns(family: Family, *, wide: bool, allow_pickle: bool) -> Iterator[TableColumn]:
    """Yield the columns of the values of a state, or of buffered records.

    Parameters:
        wide: give ints 20 digits.
        allow_pickle: unpickle values; if False, choosing a pickled column raises QueryError.
    """
    if family.name == TIMERS:
        return
    schema, codec = _stored_type(family)
    if codec == PickleCodec.name:
        yield _pickled(schema, allow_pickle)
    elif schema.kind == "struct" and schema.fields:
        yield from _Fields(family, schema, wide)
    else:
        yield whole_values(family, wide=wide)
    state = family.state
    if state is not None and state.past_generations:
        yield _earlier(state, allow_pickle)


def whole_values(family: Family, *, wide: bool) -> TableColumn:
    """Return one column with the values. Pickled values and earlier generations are null."""
    schema, codec = _stored_type(family)
    if codec == PickleCodec.name:
        text = pa.string()
        return TableColumn(
            pa.field("value", text), lambda parts: pa.nulls(len(parts.rows.keys), text)
        )
    column = value_column(schema, wide=wide)
    decode = Decoder(column.wire, schema.brief)
    return TableColumn(
        typed_field("value", column, schema),
        lambda parts: column.array(decode(_encoded(family, parts))),
    )


def _stored_type(family: Family) -> tuple[Schema, str]:
    if family.name == WAITING:
        return Schema.from_json(family.operator.ordered), "msgpack"
    assert family.state is not None, "all others are states"
    return value_schema(family.state), family.state.codec


def _encoded(family: Family, parts: RowParts) -> list[bytes]:
    return parts.records if family.name == WAITING else parts.by_generation[0]


class _Fields:
    """The fields of structs. Only the wanted fields are decoded.

    Parameters:
        family: the state.
        schema: the type of its values.
        wide: give ints 20 digits.
    """

    def __init__(self, family: Family, schema: Schema, wide: bool) -> None:
        self._family = family
        self._schema = schema
        outer = {schema.name: schema}
        self._columns = {
            field.name: value_column(field.schema, wide=wide, outer=outer)
            for field in schema.fields
        }
        self._wanted: list[str] = []
        self._last: tuple[RowParts, dict[str, pa.Array]] | None = None

    def __iter__(self) -> Iterator[TableColumn]:
        """Yield the column of each field."""
        for part in self._schema.fields:
            name = part.name
            field = typed_field(name, self._columns[name], part.schema)
            yield TableColumn(field, partial(self._array, name), partial(self._wanted.append, name))

    @cached_property
    def _struct(self) -> tuple[Struct, Decoder]:
        struct = Struct({name: self._columns[name] for name in self._wanted})
        return struct, Decoder(struct.wire, self._schema.brief)

    def _array(self, name: str, parts: RowParts) -> pa.Array:
        """Return a field of a batch. The wanted fields are decoded together, once per batch."""
        if self._last is None or self._last[0] is not parts:
            struct, decode = self._struct
            arrays = struct.arrays(decode(_encoded(self._family, parts)))
            self._last = parts, dict(zip(self._wanted, arrays, strict=True))
        return self._last[1][name]


def _pickled(schema: Schema, allow_pickle: bool) -> TableColumn:
    """Return the column of pickled values, as the text that `repr` returns."""
    decoder = cache(lambda: json_value_decoder(schema, PickleCodec.name, allow_pickle))

    def array(parts: RowParts) -> pa.Array:
        decode, (values, earlier) = decoder(), parts.by_generation
        shown = (None if place in earlier else decode(value) for place, value in enumerate(values))
        return pa.array(list(shown), pa.string())

    field = pa.field("value", pa.string(), metadata={"statekit.type": str(schema)})
    return TableColumn(field, array, decoder)


def _earlier(state: StateRecord, allow_pickle: bool) -> TableColumn:
    """Return the column of values of earlier generations, as JSON text."""
    decoder = cache(lambda: row_decoder(state, allow_pickle))
    past = (value_schema(old) for rows in state.past_generations.values() for old in rows)

    def array(parts: RowParts) -> pa.Array:
        decode, texts = decoder(), list[str | None]([None] * len(parts.rows.keys))
        for place, (generation, value) in parts.by_generation[1].items():
            shown = decode(marked(generation) + value)
            texts[place] = msgspec.json.encode(shown).decode()
        return pa.array(texts, pa.string())

    types = "; ".join(dict.fromkeys(map(str, past)))
    field = marked_field("earlier", pa.string(), "all", {"statekit.type": types})
    return TableColumn(field, array, decoder)
