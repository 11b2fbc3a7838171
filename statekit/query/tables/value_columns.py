"""Value columns: one column per field of a struct, or one column for other values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, cached_property, partial
from typing import NamedTuple

import msgspec
import pyarrow as pa

from statekit.checkpoint.job_file import TIMERS, WAITING, StateRecord
from statekit.codec.schema import Schema
from statekit.codec.schema_codec import generic_decoder
from statekit.codec.value_codec import PickleCodec
from statekit.query.tables.columns import Column, Decoder, Struct, marked_field, value_column
from statekit.query.tables.key_columns import KeyColumn
from statekit.query.tables.row_parts import Family, RowParts
from statekit.state.row_versions import marked, row_decoder, value_schema


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
    decoder = cache(lambda: generic_decoder(schema, PickleCodec.name, allow_pickle))

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
