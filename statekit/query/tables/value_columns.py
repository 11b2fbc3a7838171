"""Value columns: one column per field of a struct, or one column for other values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
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
    """A column of a table.

    Parameters:
        field: its name, type and metadata.
        array: returns its values.
    """

    field: pa.Field
    array: Callable[[RowParts], pa.Array]


class Offered(NamedTuple):
    """A column that a table can build.

    Parameters:
        name: its name, unless another column has it.
        build: returns the column, given its final name.
    """

    name: str
    build: Callable[[str], TableColumn]


def typed_field(name: str, column: Column | KeyColumn, schema: Schema) -> pa.Field:
    """Return a field with metadata: its stored type, and how JSON shows it."""
    return marked_field(name, column.type, column.mark, {"statekit.type": str(schema)})


def value_columns(family: Family, *, wide: bool, allow_pickle: bool) -> Iterator[Offered]:
    """Yield the columns of the values of a state, or of buffered records.

    Parameters:
        wide: give ints 20 digits.
        allow_pickle: unpickle values; if False, building a pickled column raises QueryError.
    """
    if family.name == TIMERS:
        return
    schema, codec = _stored_type(family)
    if codec == PickleCodec.name:
        yield Offered("value", lambda name: _pickled(name, schema, allow_pickle))
    elif schema.kind == "struct" and schema.fields:
        fields = _Fields(family, schema, wide)
        yield from (Offered(name, fields.builder(name)) for name in fields.columns)
    else:
        yield Offered("value", lambda _: whole_values(family, wide=wide))
    state = family.state
    if state is not None and state.past_generations:
        yield Offered("earlier", lambda name: _earlier(name, state, allow_pickle))


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
        self._schemas = {field.name: field.schema for field in schema.fields}
        outer = {schema.name: schema}
        self.columns = {
            name: value_column(part, wide=wide, outer=outer) for name, part in self._schemas.items()
        }
        self._wanted: list[str] = []
        self._last: tuple[RowParts, dict[str, pa.Array]] | None = None

    def builder(self, field: str) -> Callable[[str], TableColumn]:
        """Return the function that builds the column of a field."""

        def build(name: str) -> TableColumn:
            self._wanted.append(field)
            stored = typed_field(name, self.columns[field], self._schemas[field])
            return TableColumn(stored, lambda parts: self._arrays(parts)[field])

        return build

    @cached_property
    def _struct(self) -> tuple[Struct, Decoder]:
        struct = Struct({name: self.columns[name] for name in self._wanted})
        return struct, Decoder(struct.wire, self._schema.brief)

    def _arrays(self, parts: RowParts) -> dict[str, pa.Array]:
        """Return the wanted fields of a batch. They are decoded together, once per batch."""
        if self._last is None or self._last[0] is not parts:
            struct, decode = self._struct
            arrays = struct.arrays(decode(_encoded(self._family, parts)))
            self._last = parts, dict(zip(self._wanted, arrays, strict=True))
        return self._last[1]


def _pickled(name: str, schema: Schema, allow_pickle: bool) -> TableColumn:
    """Return the column of pickled values, as the text that `repr` returns."""
    decode = generic_decoder(schema, PickleCodec.name, allow_pickle)

    def array(parts: RowParts) -> pa.Array:
        values, earlier = parts.by_generation
        shown = (None if place in earlier else decode(value) for place, value in enumerate(values))
        return pa.array(list(shown), pa.string())

    field = pa.field(name, pa.string(), metadata={"statekit.type": str(schema)})
    return TableColumn(field, array)


def _earlier(name: str, state: StateRecord, allow_pickle: bool) -> TableColumn:
    """Return the column of values of earlier generations, as JSON text."""
    decode = row_decoder(state, allow_pickle)
    past = (value_schema(old) for rows in state.past_generations.values() for old in rows)

    def array(parts: RowParts) -> pa.Array:
        texts: list[str | None] = [None] * len(parts.rows.keys)
        for place, (generation, value) in parts.by_generation[1].items():
            shown = decode(marked(generation) + value)
            texts[place] = msgspec.json.encode(shown).decode()
        return pa.array(texts, pa.string())

    types = "; ".join(dict.fromkeys(map(str, past)))
    return TableColumn(marked_field(name, pa.string(), "all", {"statekit.type": types}), array)
