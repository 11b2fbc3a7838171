"""Typed Arrow columns for stored types, without the user's classes.

Types that every tool knows are kept: scalars, lists, structs and maps. A set is a list, a tuple a
struct of `_1`, `_2`, …, an enum its value, a Decimal and a UUID text. Other types are JSON text:
unions, recursive types, dicts whose keys are not scalars, keys of plain dicts.

The metadata `statekit.json` of a field, also of a nested one, says how JSON shows it (`json_rows`):
"all" if it is JSON text, "array" if it is a struct of the parts of a tuple.

A column is built from all of its values at once: the items of lists are concatenated, structs are
divided into fields, and Arrow converts each such sequence in one call. In the same way all values
of a column are read.
"""

from __future__ import annotations

import datetime as dt
import decimal
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, islice, pairwise
from operator import attrgetter, itemgetter
from typing import Any, Optional

import msgspec
import pyarrow as pa

from statekit.codec.json_form import json_form
from statekit.codec.schema import Schema
from statekit.codec.schema_codec import key_from_json, may_be_none, show_wire, wire_from_json
from statekit.codec.value_codec import checked_decode
from statekit.codec.value_plan import is_map
from statekit.errors import CorruptCheckpointError
from statekit.records.arrow_reader import timestamp_reader
from statekit.records.nested_types import marked_field, parts_of, tuple_names, with_parts
from statekit.shown import shown, shown_text
from statekit.timestamp import timedelta_to_micros

Values = Sequence[Any]
_Outer = Mapping[str, Schema]

TIMESTAMP = pa.timestamp("us", tz="UTC")

DURATION = pa.duration("us")


INT = pa.int64()
WIDE_INT = pa.decimal128(20, 0)
"""MessagePack has ints up to 2^64-1."""


def with_text(schema: pa.Schema) -> pa.Schema:
    """Return a schema with text in place of ints of 20 digits.

    >>> with_text(pa.schema({"n": WIDE_INT, "of": pa.list_(WIDE_INT)})).types
    [DataType(string), ListType(list<item: string>)]
    """
    fields = [field.with_type(_with_text(field.type)) for field in schema]
    return pa.schema(fields, schema.metadata)


def _with_text(type_: pa.DataType) -> pa.DataType:
    if type_ == WIDE_INT:
        return pa.string()
    parts = parts_of(type_)
    return with_parts(type_, [part.with_type(_with_text(part.type)) for part in parts])


@dataclass(frozen=True)
class Column:
    """An Arrow type, and the conversion of values to an array of it and back.

    Parameters:
        type: of the column. Any value may be null.
        wire: the type that `msgspec` decodes a value as.
        array: returns values, None among them, as an array.
        values: returns the values of an array of the type, for `ENCODER` or for a key codec. They
            are not checked.
        mark: the metadata `JSON_MARK` of its fields; None for none.
        nullable: whether None is a value. If not, a null in a struct is an absent field.
    """

    type: pa.DataType
    wire: Any
    array: Callable[[Values], pa.Array]
    values: Callable[[pa.Array], list[Any]]
    mark: str | None = None
    nullable: bool = False

    def field(self, name: str, metadata: Mapping[str, str] | None = None) -> pa.Field:
        """Return a field of the column, with the mark in its metadata."""
        return marked_field(name, self.type, self.mark, metadata)


def value_column(
    schema: Schema, *, wide: bool = False, outer: Mapping[str, Schema] | None = None
) -> Column:
    """Return the column for stored values of a schema.

    Parameters:
        outer: the enclosing structs of a part of a type, by name.
        wide: give ints 20 digits, for states with ints beyond 64 bits with a sign.

    >>> column = value_column(Schema("list", (Schema("int"),)))
    >>> column.array([[1, 2], None, []]).to_pylist()
    [[1, 2], None, []]
    """
    return _Columns(_WIRE_SCALARS, _wire_text, wide).of(schema, outer or {})


def key_column(schema: Schema, *, wide: bool = False) -> Column:
    """Return the column for keys of a schema, as `schema_key_codec` decodes them."""
    return _Columns(_KEY_SCALARS, _key_text, wide).of(schema, {})


def json_column(
    brief: str, to_json: Callable[[Any], Any], from_json: Callable[[Any], Any]
) -> Column:
    """Return a column of JSON text.

    Parameters:
        brief: the type of the values, for messages.
        to_json: converts a value other than None to JSON-able data.
        from_json: the inverse.
    """

    def text(value: Any) -> str:
        try:
            return msgspec.json.encode(to_json(value)).decode()
        except Exception as error:
            raise CorruptCheckpointError(
                f"{shown(value, 100)} is not a value of type {brief} ({shown_text(error)}): check "
                "that the "
                "declared type can read the stored rows, else restore an earlier epoch"
            ) from error

    def value(text: str) -> Any:
        return from_json(msgspec.json.decode(text))

    return replace(_converted(pa.string(), Any, text, value), mark="all")


# --------------------------------------------------------------------------------- decoding


class Decoder:
    """Decodes many MessagePack values in one call.

    The values are joined to one MessagePack array, with a nil after each. If a row is cut short, or
    has more than its value, the nils are at the wrong places, and the values are decoded one by
    one to find the row.

    Parameters:
        wire: the type of a value; None is accepted too.
        brief: the type as text, for messages.

    >>> Decoder(int, "int")([bytes([7]), bytes([0xC0])])
    [7, None]
    """

    def __init__(self, wire: Any, brief: str) -> None:
        self._many = msgspec.msgpack.Decoder(list[_or_none(wire)]).decode  # type: ignore[misc]
        one = msgspec.msgpack.Decoder(_or_none(wire)).decode
        self._one = checked_decode(brief, one, None)

    def __call__(self, values: Sequence[bytes]) -> list[Any]:
        """Return the decoded values.

        Raises:
            CorruptCheckpointError: one is not of this type.
        """
        count = len(values)
        # 0xdd begins a MessagePack array whose length has 4 bytes: each value, and a nil after it.
        header = b"\xdd" + (2 * count).to_bytes(4, "big")
        try:
            found = self._many(b"".join((header, _NIL.join(values), _NIL if count else b"")))
        except Exception:  # noqa: BLE001 - the values are decoded one by one, which says which
            return [self._one(value) for value in values]
        if b"" in values or found[1::2].count(None) != count:
            return [self._one(value) for value in values]
        decoded: list[Any] = found[::2]
        return decoded


_NIL = b"\xc0"


def _or_none(wire: Any) -> Any:
    return wire if wire is Any else Optional[wire]  # noqa: UP045 - it is a value here


# ---------------------------------------------------------------------------------- scalars


def _direct(
    type_: pa.DataType, wire: Any, values: Callable[[pa.Array], list[Any]] = pa.Array.to_pylist
) -> Column:
    return Column(type_, wire, lambda values: pa.array(values, type_), values)


def _converted(
    type_: pa.DataType, wire: Any, convert: Callable[[Any], Any], back: Callable[[Any], Any]
) -> Column:
    def array(values: Values) -> pa.Array:
        return pa.array([None if value is None else convert(value) for value in values], type_)

    return Column(type_, wire, array, _each(back))


def _each(convert: Callable[[Any], Any]) -> Callable[[pa.Array], list[Any]]:
    """Return a function that converts each value of an array that is not null."""
    return lambda array: [None if value is None else convert(value) for value in array.to_pylist()]


def _durations(array: pa.Array) -> list[Any]:
    return _each(lambda micros: dt.timedelta(microseconds=micros))(array.cast(pa.int64()))


def _wire_text(schema: Schema, outer: _Outer) -> Column:
    return json_column(
        schema.brief,
        lambda wire: show_wire(schema, wire, outer),
        lambda data: wire_from_json(schema, data, outer),
    )


def _key_text(schema: Schema, outer: _Outer) -> Column:
    return json_column(
        schema.brief, lambda key: show_wire(schema, key), lambda data: key_from_json(schema, data)
    )


def _duration_of_text(text: str) -> dt.timedelta:
    return msgspec.convert(text, dt.timedelta)


_WIDE = {
    "int": _direct(WIDE_INT, int, _each(int)),
    "timedelta": _converted(pa.string(), dt.timedelta, json_form, _duration_of_text),
}
"""Columns of all ints and durations that can be stored, whatever their size."""


def _itself(value: Any) -> Any:
    return value


_SCALARS: dict[str, Column] = {
    "int": _direct(INT, int),
    "timedelta": replace(
        _converted(DURATION, dt.timedelta, timedelta_to_micros, _itself), values=_durations
    ),
    "null": _direct(pa.string(), None),
    "bool": _direct(pa.bool_(), bool),
    "float": _direct(pa.float64(), float),
    "str": _direct(pa.string(), str),
    "bytes": _direct(pa.binary(), bytes),
    "date": _direct(pa.date32(), dt.date),
    "datetime": _direct(TIMESTAMP, dt.datetime, timestamp_reader(TIMESTAMP)),
}
_WIRE_SCALARS = {
    **_SCALARS,
    "decimal": _direct(pa.string(), str),
    "uuid": _direct(pa.string(), str),
}
_KEY_SCALARS = {
    **_SCALARS,
    "decimal": _converted(pa.string(), Any, str, decimal.Decimal),
    "uuid": _converted(pa.string(), Any, str, uuid.UUID),
}


# ------------------------------------------------------------------------------- composites


class _Columns:
    """Columns of composite types, built from those of scalars and of text."""

    def __init__(
        self, scalars: Mapping[str, Column], text: Callable[[Schema, _Outer], Column], wide: bool
    ) -> None:
        self._scalars = {**scalars, **_WIDE} if wide else scalars
        self._text = text
        self._of_keys = scalars is _KEY_SCALARS

    def of(self, schema: Schema, outer: _Outer) -> Column:
        return replace(self._of(schema, outer), nullable=may_be_none(schema))

    def _of(self, schema: Schema, outer: _Outer) -> Column:
        match schema.kind:
            case "optional":
                return self.of(schema.items[0], outer)
            case "enum" | "literal":
                return self._choice(schema, outer)
            case "list" | "set" | "frozenset" | "variadic":
                return _sequence(self.of(schema.items[0], outer), tuple if self._of_keys else list)
            case "tuple" if schema.items:
                names = tuple_names(len(schema.items))
                return _tuple(names, [self.of(item, outer) for item in schema.items])
            case "dict" if is_map(schema):
                return _map(*(self.of(item, outer) for item in schema.items))
            case "struct" if schema.fields:
                inner = {**outer, schema.name: schema}
                columns = {field.name: self.of(field.schema, inner) for field in schema.fields}
                if self._of_keys:  # a NamedTuple, which is decoded as a tuple
                    return _tuple([*columns], [*columns.values()])
                return Struct(columns).column
        if schema.kind not in self._scalars:
            return self._text(schema, outer)
        return self._scalars[schema.kind]

    def _choice(self, schema: Schema, outer: _Outer) -> Column:
        """Return the column of an enum or a literal, if all of its values have one type."""
        kinds = {type(value) for _, value in schema.values if value is not None}
        if len(kinds) != 1:
            return json_column(schema.brief, _itself, _itself)
        return self.of(Schema(kinds.pop().__name__), outer)


class Struct:
    """The columns of the fields of a struct.

    Parameters:
        columns: by field. Stored structs may have other fields, and lack some of these.
    """

    def __init__(self, columns: Mapping[str, Column]) -> None:
        self.columns = dict(columns)
        # A name of a field need not be one of Python.
        aliases = {f"f{number}": name for number, name in enumerate(columns)}
        fields = [(alias, _or_none(columns[name].wire), None) for alias, name in aliases.items()]
        self.wire = msgspec.defstruct("Struct", fields, rename=aliases, gc=False)
        self._getters = [attrgetter(alias) for alias in aliases]
        self._blank = self.wire()
        written = [(alias, Any, msgspec.UNSET) for alias in aliases]
        self._written = msgspec.defstruct("Struct", written, rename=aliases, gc=False)

    def arrays(self, values: Values) -> list[pa.Array]:
        """Return an array for each field of decoded structs, with nulls for None."""
        blank = self._blank
        if None in values:
            values = [blank if value is None else value for value in values]
        columns = self.columns.values()
        return [
            column.array(list(map(get, values)))
            for get, column in zip(self._getters, columns, strict=True)
        ]

    def values(self, arrays: Sequence[pa.Array]) -> list[Any]:
        """Return structs for `ENCODER` with the values of some arrays, one for each field."""
        parts = [
            _without_nulls(column.values(array), column.nullable)
            for column, array in zip(self.columns.values(), arrays, strict=True)
        ]
        return list(map(self._written, *parts))

    @property
    def column(self) -> Column:
        """All fields as one column."""
        names, columns = [*self.columns], [*self.columns.values()]
        return _record(names, columns, self.wire, self.arrays, self.values)


def _without_nulls(values: list[Any], nullable: bool) -> list[Any]:
    """Return the values of a field. A null that is no value becomes an absent field."""
    if nullable or None not in values:
        return values
    return [msgspec.UNSET if value is None else value for value in values]


def _record(
    names: Sequence[str],
    columns: Sequence[Column],
    wire: Any,
    arrays: Callable[[Values], list[pa.Array]],
    records: Callable[[Sequence[pa.Array]], list[Any]],
) -> Column:
    fields = [column.field(name) for name, column in zip(names, columns, strict=True)]

    def array(values: Values) -> pa.Array:
        return pa.StructArray.from_arrays(arrays(values), fields=fields, mask=_mask(values))

    def values(array: pa.Array) -> list[Any]:
        return _with_nulls(array, records(array.flatten()))

    return Column(pa.struct(fields), wire, array, values)


def _with_nulls(array: pa.Array, values: list[Any]) -> list[Any]:
    """Return the values of an array, with None where the array is null."""
    if not array.null_count:
        return values
    is_valid = array.is_valid().to_pylist()
    return [value if valid else None for value, valid in zip(values, is_valid, strict=True)]


def _tuple(names: Sequence[str], columns: Sequence[Column]) -> Column:
    getters = [itemgetter(number) for number in range(len(columns))]
    blank = (None,) * len(columns)

    def arrays(values: Values) -> list[pa.Array]:
        filled = [blank if value is None else value for value in values]
        return [
            column.array(list(map(get, filled)))
            for get, column in zip(getters, columns, strict=True)
        ]

    def records(arrays: Sequence[pa.Array]) -> list[Any]:
        parts = (column.values(array) for column, array in zip(columns, arrays, strict=True))
        return list(zip(*parts, strict=True))

    wire = tuple.__class_getitem__(tuple(_or_none(column.wire) for column in columns))
    return replace(_record(names, columns, wire, arrays, records), mark="array")


def _sequence(item: Column, make: type) -> Column:
    type_ = pa.list_(item.field("item"))

    def array(values: Values) -> pa.Array:
        items = item.array(list(chain.from_iterable(filter(None, values))))
        return pa.ListArray.from_arrays(_bounds(values), items, type=type_, mask=_mask(values))

    def values(array: pa.Array) -> list[Any]:
        items = iter(item.values(array.flatten()))
        sizes = array.value_lengths().to_pylist()
        return [None if size is None else make(islice(items, size)) for size in sizes]

    return Column(type_, list[_or_none(item.wire)], array, values)  # type: ignore[misc]


def _map(key: Column, item: Column) -> Column:
    type_ = pa.map_(key.field("key").with_nullable(False), item.field("value"))

    def array(values: Values) -> pa.Array:
        some = list(filter(None, values))
        keys = key.array(list(chain.from_iterable(some)))
        items = item.array(list(chain.from_iterable(value.values() for value in some)))
        bounds = _bounds(values)
        return pa.MapArray.from_arrays(bounds, keys, items, type=type_, mask=_mask(values))

    def values(array: pa.Array) -> list[Any]:
        offsets = array.offsets.to_pylist()  # absolute, also in a slice
        first, size = offsets[0] if offsets else 0, offsets[-1] - offsets[0] if offsets else 0
        keys = key.values(array.keys.slice(first, size))
        entries = zip(keys, item.values(array.items.slice(first, size)), strict=True)
        return _with_nulls(
            array, [dict(islice(entries, end - at)) for at, end in pairwise(offsets)]
        )

    wire = dict.__class_getitem__((key.wire, _or_none(item.wire)))
    return Column(type_, wire, array, values)


def _bounds(values: Values) -> pa.Array:
    """Return the offset of the first item of each value among the items of all values."""
    return pa.array(accumulate((len(value or ()) for value in values), initial=0), pa.int32())


def _mask(values: Values) -> pa.Array | None:
    """Return the mask of the values that are None; None if there is no such value."""
    return pa.array([value is None for value in values]) if None in values else None
