"""Stored values and keys as typed columns, without the user's classes.

Types that every tool knows are kept: scalars, lists, structs and maps. A set is a list, a tuple a
struct of `_1`, `_2`, …, an enum its value, a timedelta its microseconds, a Decimal and a UUID text.
Other types are JSON text: unions, recursive types, dicts whose keys are not scalars, keys of plain
dicts. Pickled values are null: nothing is unpickled.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from statekit.codec.schema import Schema
from statekit.codec.schema_codec import expect, show_wire
from statekit.codec.value_plan import is_map
from statekit.timestamp import timedelta_to_micros

Convert = Callable[[Any], Any]
_Outer = Mapping[str, Schema]

TIMESTAMP = pa.timestamp("us", tz="UTC")

_INT = pa.int64()
_WIDE_INT = pa.decimal128(20, 0)  # MessagePack has ints up to 2^64-1


class Column(NamedTuple):
    """A type, and the conversion of values for Arrow.

    Parameters:
        type: of the column. Any value may be null.
        convert: for values other than None; None for no conversion.
    """

    type: pa.DataType
    convert: Convert | None = None


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
