"""Conversion of stored bytes to JSON and back. It needs the schema only, not the user's classes."""

from __future__ import annotations

import contextlib
import datetime as dt
import enum
import json
import pickle
import re
import uuid
from collections.abc import Callable
from typing import Any, TypedDict

import msgspec

from statekit.codec.annotations import SCALARS
from statekit.codec.json_form import NOT_FINITE, json_form
from statekit.codec.key_codec import schema_key_codec
from statekit.codec.key_example import list_advice
from statekit.codec.schema import Schema
from statekit.codec.value_codec import PickleCodec, checked_decode
from statekit.codec.value_plan import ENCODER, is_map
from statekit.codec.value_union import split_member, tagged_members, tagged_value
from statekit.codec.value_walk import Structs, ValueWalk, expect
from statekit.errors import QueryError, StateTypeError
from statekit.shown import shown

Json = Any
"""None, bool, int, float, str, or a list or dict of them."""


# ------------------------------------------------------------------ values

_SCALARS = {kind: SCALARS[kind] for kind in ("bool", "int", "float", "str")}
"""Scalars whose decoded MessagePack form is JSON. A float may be stored as an int."""


# In MessagePack a NaN or an infinity is CB, a sign, and eleven bits that are set. Other bytes may
# look like that, too.
_MAY_BE_NOT_FINITE = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]").search


def _json_type(schema: Schema, *, all_fields: bool) -> Any:
    """Return the type with which values of a schema are decoded to JSON in one step; None if there
    is none.

    Parameters:
        all_fields: refuse structs that lack a field.
    """
    if schema.kind in _SCALARS:
        return _SCALARS[schema.kind]
    types = [_json_type(part, all_fields=all_fields) for part in schema.parts]
    if None in types:
        return None
    match schema.kind:
        case "optional":
            return types[0] | None
        case "list" | "variadic":
            return list[types[0]]  # type: ignore[valid-type]
        case "dict" if types[0] is str and is_map(schema):
            return dict[str, types[1]]  # type: ignore[valid-type]
        case "struct":
            names = [field.name for field in schema.fields]
            make: Any = TypedDict  # mypy knows only those that are declared
            return make("Fields", dict(zip(names, types, strict=True)), total=all_fields)
    return None


def json_value_decoder(
    schema: Schema,
    codec_name: str = "msgpack",
    allow_pickle: bool = False,
    *,
    as_stored: bool = False,
) -> Callable[[bytes], Json]:
    """Return a decoder of stored values. It needs their schema, not the user's classes.

    It returns what JSON can hold: structs and dicts are dicts, sequences and sets are lists, a dict
    whose keys are not scalars is a list of pairs, scalars are as `json_form` returns them, an enum
    is its value, a pickled value its repr. A field that a row does not have is None.

    Parameters:
        codec_name: the codec that wrote the values.
        allow_pickle: unpickle values, which can run any code.
        as_stored: leave out fields that a row does not have, and return NaN and infinities as
            floats.

    Raises:
        QueryError: the values are pickled and `allow_pickle` is False, or the codec is unknown.

    >>> from statekit.codec.value_codec import value_codec
    >>> from statekit.codec.schema import schema_of
    >>> read = json_value_decoder(schema_of(dict[str, dt.date]))
    >>> read(value_codec(dict[str, dt.date]).encode({"new year": dt.date(2013, 1, 1)}))
    {'new year': '2013-01-01'}
    """
    if codec_name == PickleCodec.name:
        if not allow_pickle:
            raise QueryError(
                f"values of {schema.brief} are pickled, and reading them can run any code:"
                " pass allow_pickle=True if you trust whoever wrote the checkpoint"
            )
        return checked_decode(schema.brief, pickle.loads, repr)
    if codec_name != "msgpack":
        raise QueryError(f"values were written by the codec {codec_name!r}: update statekit")
    read = msgspec.msgpack.Decoder().decode
    walk = _ToJson(as_stored)
    shown = checked_decode(schema.brief, read, lambda wire: walk.value(schema, wire))
    return _plain_decoder(schema, shown, as_stored=as_stored) or shown


def _plain_decoder(
    schema: Schema, shown: Callable[[bytes], Json], *, as_stored: bool
) -> Callable[[bytes], Json] | None:
    """Return a decoder of values that msgspec decodes to JSON in one step; None for other values.

    Parameters:
        shown: decodes in two steps, for rows without all fields or with floats that are not finite.
    """
    plain = _json_type(schema, all_fields=False)
    if plain is None:
        return None
    stored = checked_decode(schema.brief, msgspec.msgpack.Decoder(plain).decode, None)
    kinds = {part.kind for part in schema.walk()}
    if as_stored or kinds.isdisjoint(("float", "struct")):
        return stored
    complete = msgspec.msgpack.Decoder(_json_type(schema, all_fields=True)).decode
    has_floats = "float" in kinds

    def decode(row: bytes) -> Json:
        if not has_floats or _MAY_BE_NOT_FINITE(row) is None:
            try:
                return complete(row)
            except _INCOMPLETE:
                pass
        stored(row)  # checks the types
        return shown(row)

    return decode


_INCOMPLETE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for a row without one of the fields, and for a row that cannot be read."""


class _ToJson(ValueWalk):
    """Converts decoded MessagePack values, and decoded keys, to JSON.

    Parameters:
        as_stored: as for `json_value_decoder`.
    """

    def __init__(self, as_stored: bool = False) -> None:
        self._as_stored = as_stored

    def struct(self, schema: Schema, value: Any, outer: Structs) -> Json:
        if isinstance(value, tuple):  # a key: as a tuple
            fields = zip(schema.fields, value, strict=True)
            return [self.value(field.schema, part, outer) for field, part in fields]
        values, found = expect(value, dict), dict[str, Json]()
        for field in schema.fields:
            if field.name in values:
                found[field.name] = self.value(field.schema, values[field.name], outer)
            elif not self._as_stored:
                found[field.name] = None
        return found

    def entries(self, key: Schema, item: Schema, value: dict[Any, Any], outer: Structs) -> Json:
        shown_entries = (
            (self.value(key, k, outer), self.value(item, v, outer)) for k, v in value.items()
        )
        return {k if isinstance(k, str) else json.dumps(k): v for k, v in shown_entries}

    def union(self, schema: Schema, value: Any, outer: Structs) -> Json:
        return self.value(*split_member(schema, value), outer)

    def scalar(self, schema: Schema, value: Any) -> Json:
        if schema.kind == "float":
            value = float(value)
            if self._as_stored:
                return value
        elif schema.kind == "timedelta" and isinstance(value, str):
            value = msgspec.convert(value, dt.timedelta)
        elif schema.kind == "dynamic" and isinstance(value, tuple):
            return [self.scalar(schema, part) for part in value]
        try:
            return json_form(value)
        except TypeError as error:
            raise ValueError(f"{shown(value)} is not a {schema.kind}") from error


show_wire = _ToJson().value
"""Converts a decoded MessagePack value, or a key that `schema_key_codec` has decoded, to JSON.
Takes its schema, the value and the structs around it, by name.
"""


_TEXTS = frozenset({"str", "bytes", "date", "datetime", "timedelta", "decimal", "uuid", "enum"})


def is_shown_as_scalar(schema: Schema) -> bool:
    """Return whether all keys of a schema are text or ints in JSON, so that they can be the names
    of an object. None and bools cannot: they would equal the texts `null` and `true`.
    """
    if schema.values:
        return {type(value) for _, value in schema.values} in ({str}, {int})
    return schema.kind in _TEXTS | {"int"}


def json_value_encoder(schema: Schema) -> Callable[[Json], bytes]:
    """Return an encoder of JSON values in the form of `json_value_decoder`. It does not need the
    user's classes.

    JSON has None for a field that the stored row does not have. Such a field is left out, so that
    a reader of the bytes takes its default, unless None is a value of its type.

    Raises:
        StateTypeError: it is not a value of that type, or a value of several members of a union.

    >>> from statekit.codec.value_codec import value_codec
    >>> from statekit.codec.schema import schema_of
    >>> encode = json_value_encoder(schema_of(dict[str, dt.date]))
    >>> value_codec(dict[str, dt.date]).decode(encode({"new year": "2013-01-01"}))
    {'new year': datetime.date(2013, 1, 1)}
    """

    def encode(data: Json) -> bytes:
        try:
            return ENCODER.encode(wire_from_json(schema, data))
        except _KEY_ERRORS as error:
            why = "it is nested too deep" if isinstance(error, RecursionError) else error
            raise StateTypeError(
                f"{shown(data, 100)} is not a value of type {schema.brief}: {why}"
            ) from error

    return encode


class _FromJson(ValueWalk):
    """Converts JSON to values that MessagePack can write. The inverse of `_ToJson`."""

    def struct(self, schema: Schema, value: Json, outer: Structs) -> dict[str, Any]:
        data = expect(value, dict)
        if unknown := data.keys() - {field.name for field in schema.fields}:
            raise ValueError(f"{schema.brief} has no field {', '.join(sorted(unknown))}")
        return {
            field.name: self.value(field.schema, data[field.name], outer)
            for field in schema.fields
            if data.get(field.name) is not None or may_be_none(field.schema)
        }

    def entries(self, key: Schema, item: Schema, value: dict[str, Json], outer: Structs) -> Any:
        is_text = key.kind in _TEXTS
        keys = [
            self.value(key, k if is_text or k in NOT_FINITE else json.loads(k), outer)
            for k in value
        ]
        items = (self.value(item, part, outer) for part in value.values())
        return dict(zip(keys, items, strict=True))

    def union(self, schema: Schema, value: Json, outer: Structs) -> Any:
        """Return the value of the single member whose JSON form is `value`. JSON does not contain
        the member.
        """
        tagged, found = tagged_members(schema.items), []
        for member in schema.items:
            try:
                wire = self.value(member, value, outer)
                stored = msgspec.msgpack.decode(ENCODER.encode(wire))
                is_shown_so = json.dumps(show_wire(member, stored, outer)) == json.dumps(value)
            except _KEY_ERRORS:
                continue
            if is_shown_so:
                found.append((member.brief, wire))
        if len(found) != 1:
            names = " and ".join(name for name, _ in found) or "no member"
            raise ValueError(f"in JSON it could be {names} of {schema.brief}")
        ((name, wire),) = found
        return tagged_value(name, wire) if name in tagged else wire

    def scalar(self, schema: Schema, value: Json) -> Any:
        match schema.kind:
            case "enum" | "literal":
                return _choice_from_json(schema, value)
            case "bytes":
                return bytes.fromhex(expect(value, str))
            case "int":
                return expect(_integer(_number(value)), int)
            case "float":
                return float(value if value in NOT_FINITE else _number(value))
            case "null" | "bool" | "str":
                return expect(value, SCALARS[schema.kind])
            case kind if kind in _TEXTS:
                # MessagePack has no dates: they are text, which readers parse.
                return json_form(msgspec.convert(expect(value, str), SCALARS[kind]))
        return value


def _number(value: Json) -> int | float:
    """Return a JSON number. Text and bools are none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{shown(value, 60)} is not a number")
    return value


wire_from_json = _FromJson().value
"""Converts JSON to a value that MessagePack can write: the inverse of `show_wire`. Takes its
schema, the JSON and the structs around it, by name.
"""


def may_be_none(schema: Schema) -> bool:
    """Return whether None is a value of a type."""
    nullable = schema.kind in ("optional", "null") or ("None", None) in schema.values
    return nullable or (schema.kind == "union" and any(map(may_be_none, schema.items)))


# ------------------------------------------------------------------ keys


def json_key_decoder(schema: Schema) -> Callable[..., tuple[Json, int]]:
    """Return a decoder of stored keys. It does not need the user's classes.

    Returns:
        `(data, offset=0)` to the key, in the form that `json_value_decoder` gives values, and the
        offset after it.

    >>> from statekit.codec.key_codec import key_codec
    >>> from statekit.codec.schema import schema_of
    >>> stored = key_codec(tuple[str, int]).encode(("UA", 1))
    >>> json_key_decoder(schema_of(tuple[str, int]))(stored)
    (['UA', 1], 12)
    """
    decode = schema_key_codec(schema).decode

    def decode_json(data: bytes, offset: int = 0) -> tuple[Json, int]:
        value, end = decode(data, offset)
        return show_wire(schema, value), end

    return decode_json


def text_key_encoder(schema: Schema) -> Callable[[Json], bytes]:
    """Return an encoder of keys given as text or JSON.

    A str key is the text itself. For every other type the text is parsed: `5`, `true`,
    `2013-01-01`, `["UA", 1545]`, `null`. Data that is not text is parsed JSON already. Bytes are
    hex, an enum is a member's value or name, a NamedTuple an array or an object.

    Raises:
        StateTypeError: the text is not a key of that type.

    >>> from statekit.codec.key_codec import key_codec
    >>> from statekit.codec.schema import schema_of
    >>> encode = text_key_encoder(schema_of(tuple[str, int]))
    >>> encode('["UA", 1545]') == key_codec(tuple[str, int]).encode(("UA", 1545))
    True
    """
    return _key_encoder(schema, is_text=True)


def json_key_encoder(schema: Schema) -> Callable[[Json], bytes]:
    """Return an encoder of JSON keys in the form of `json_key_decoder`.

    Text is not parsed as JSON once more: the text `null` is not null. Where the type has no JSON of
    its own, it is text as for `text_key_encoder`, and an int may be text, too.

    Raises:
        StateTypeError: it is not a key of that type.

    >>> from statekit.codec.key_codec import key_codec
    >>> from statekit.codec.schema import schema_of
    >>> encode = json_key_encoder(schema_of(str | None))
    >>> encode("null") == key_codec(str | None).encode("null")
    True
    """
    return _key_encoder(schema, is_text=False)


def key_prefix_encoder(schema: Schema, *, is_text: bool) -> Callable[[Json], bytes]:
    """Return an encoder of prefixes of keys: the beginning of a text or of bytes, or the first
    parts of a tuple.

    Parameters:
        is_text: they are given as for `text_key_encoder`; else as for `json_key_encoder`.

    Raises:
        StateTypeError: keys of that type have no such prefix.

    >>> from statekit.codec.key_codec import key_codec
    >>> from statekit.codec.schema import schema_of
    >>> encode = key_prefix_encoder(schema_of(tuple[dt.date, int]), is_text=True)
    >>> days = key_codec(tuple[dt.date, int])
    >>> encode('["2013-01-01"]') == days.encode_prefix((dt.date(2013, 1, 1),))
    True
    """
    return _key_encoder(schema, is_text=is_text, is_prefix=True)


def _key_encoder(
    schema: Schema, *, is_text: bool, is_prefix: bool = False
) -> Callable[[Json], bytes]:
    codec, noun = schema_key_codec(schema), "prefix of keys" if is_prefix else "key"
    encode = codec.encode_prefix if is_prefix else codec.encode

    def encode_json(given: Json) -> bytes:
        try:
            return encode(key_from_json(schema, given, is_text, is_prefix))
        except _KEY_ERRORS as error:
            why = "it is nested too deep" if isinstance(error, RecursionError) else error
            advice = list_advice(schema)
            raise StateTypeError(
                f"{shown(given, 100)} is not a {noun} of type {schema.brief}: {why}{advice}"
            ) from error
        except StateTypeError as error:
            if advice := list_advice(schema):
                raise StateTypeError(f"{error}{advice}") from error
            raise

    return encode_json


_KEY_ERRORS = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)
_KEY_PARSERS: dict[str, Callable[[str], Any]] = {
    "bool": json.loads,
    "int": int,
    "float": float,
    "bytes": bytes.fromhex,
    "date": dt.date.fromisoformat,
    "datetime": dt.datetime.fromisoformat,
    "timedelta": lambda text: msgspec.convert(text, dt.timedelta),
    "uuid": uuid.UUID,
}


def key_from_json(
    schema: Schema, data: Json, is_text: bool = False, is_prefix: bool = False
) -> Any:
    """Return a key from JSON, as `schema_key_codec` takes it.

    Parameters:
        is_text: whether text is parsed: `null`, a quoted text, and a list.
        is_prefix: whether a tuple may have its first parts alone.
    """
    match schema.kind:
        case "optional":
            if is_text and isinstance(data, str) and (data == "null" or data.startswith('"')):
                data = json.loads(data)
            if data is None:
                return None
            return key_from_json(schema.items[0], data, is_text, is_prefix)
        case "dynamic":
            if is_text and isinstance(data, str):
                with contextlib.suppress(ValueError):
                    data = json.loads(data)
            return _dynamic_key(data)
        case "tuple" | "variadic" | "struct":
            return _tuple_key(schema, data, is_text, is_prefix)
    return _scalar_key(schema, data)


def _scalar_key(schema: Schema, data: Json) -> Any:
    if schema.kind in ("enum", "literal"):
        return _choice_from_json(schema, data)
    if schema.kind in _KEY_PARSERS and isinstance(data, str):
        return _KEY_PARSERS[schema.kind](data)
    return _integer(data) if schema.kind == "int" else data


def _integer(data: Json) -> Json:
    """Return the int for a JSON float such as 5.0. Only if no other int equals the same float."""
    is_exact = isinstance(data, float) and data.is_integer() and abs(data) < 2**53
    return int(data) if is_exact else data


def _tuple_key(schema: Schema, data: Json, is_text: bool, is_prefix: bool) -> tuple[Any, ...]:
    if is_text and isinstance(data, str):
        try:
            data = json.loads(data)
        except ValueError:
            raise ValueError("it is no JSON") from None
    if isinstance(data, dict) and schema.kind != "struct":
        raise ValueError("it is an object, and no list")
    if isinstance(data, dict):
        if absent := [field.name for field in schema.fields if field.name not in data]:
            raise ValueError(f"it has no {', '.join(map(repr, absent))}")
        data = [data[field.name] for field in schema.fields]
    if not isinstance(data, list | tuple):
        raise ValueError("it is one value")
    parts = schema.parts * len(data) if schema.kind == "variadic" else schema.parts
    if len(data) > len(parts) or (len(data) < len(parts) and not is_prefix):
        raise ValueError(f"it has {len(data)} of {len(parts)} parts")
    return tuple(
        key_from_json(part, value, is_text) for part, value in zip(parts, data, strict=False)
    )


def _choice_from_json(schema: Schema, data: Json) -> Any:
    """Return the value of an enum or literal. Its shown form has precedence, because the name of
    one member may be the value of another.
    """
    if schema.kind == "enum" and isinstance(data, enum.Enum):
        data = data.value
    shown = [(value, value) for _, value in schema.values]
    texts = [
        (text, value)
        for name, value in schema.values
        for text in (name, value, str(value), json.dumps(value))
    ]
    for text, value in (*shown, *texts):
        if type(data) is type(text) and data == text:
            return value
    raise ValueError(f"use one of {', '.join(name for name, _ in schema.values)}")


def _dynamic_key(data: Json) -> Any:
    return tuple(map(_dynamic_key, data)) if isinstance(data, list) else _integer(data)
