"""Keys and values as bytes, and back.

What lives here: `key_codec` (bytes that sort as the values do and can be strung together),
`value_codec` (MessagePack), `PickleCodec` (asked for by name only), and the generic decoders that
need a schema and no classes. What does not: what a type looks like as data (`schema`), which key
group a key falls into (`keygroup`), and how rows are laid out.

The bytes are specified in docs/format.md; every example there is executed.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import itertools
import json
import keyword
import operator
import pickle
import struct
import typing
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar

import cloudpickle  # type: ignore[import-untyped]
import msgspec

from statekit.errors import CorruptCheckpointError, QueryError, StateTypeError
from statekit.schema import (
    FieldSpec,
    Schema,
    schema_of,
    struct_fields,
    struct_flavour,
    union_members,
    unwrap,
)

__all__ = [
    "UNION_EXT",
    "KeyCodec",
    "PickleCodec",
    "ValueCodec",
    "datetime_to_micros",
    "dynamic_key_codec",
    "generic_decoder",
    "generic_key_decoder",
    "generic_key_encoder",
    "key_codec",
    "micros_to_datetime",
    "value_codec",
]

T = TypeVar("T")

KeyEncode = Callable[[Any], bytes]
KeyDecode = Callable[[bytes, int], tuple[Any, int]]
Json = Any
"""None, bool, int, float, str, list or dict of those."""

# ------------------------------------------------------------------ instants

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_EPOCH_DAY = dt.date(1970, 1, 1).toordinal()
_MIN_MICROS = -62_135_596_800_000_000
_MAX_MICROS = 253_402_300_799_999_999


def datetime_to_micros(value: dt.datetime) -> int:
    """Microseconds since 1970-01-01 UTC.

    Args:
        value: an aware datetime.

    Raises:
        StateTypeError: it is naive, or outside of the years 1 to 9999 in UTC.

    >>> datetime_to_micros(dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC))
    1000000
    """
    if value.tzinfo is None or value.utcoffset() is None:
        raise StateTypeError(
            f"{value!r} has no timezone: attach one, for example value.replace(tzinfo=UTC)"
        )
    micros = _delta_to_micros(value - _EPOCH)
    if not _MIN_MICROS <= micros <= _MAX_MICROS:
        raise StateTypeError(f"{value!r} is not within the years 1 to 9999 in UTC: clip it")
    return micros


def micros_to_datetime(micros: int) -> dt.datetime:
    """The aware UTC datetime of that many microseconds since 1970-01-01.

    Raises:
        OverflowError: it is outside of the years 1 to 9999.

    >>> micros_to_datetime(1_000_000)
    datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=datetime.timezone.utc)
    """
    return _EPOCH + dt.timedelta(microseconds=micros)


def _delta_to_micros(delta: dt.timedelta) -> int:
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


# ------------------------------------------------------------------ keys: scalars

_SIGN64 = 1 << 63
_SIGN32 = 1 << 31
_pack_u64 = struct.Struct(">Q").pack
_unpack_u64 = struct.Struct(">Q").unpack_from
_pack_u32 = struct.Struct(">I").pack
_unpack_u32 = struct.Struct(">I").unpack_from
_pack_f64 = struct.Struct(">d").pack
_unpack_f64 = struct.Struct(">d").unpack
_MASK64 = (1 << 64) - 1


def _no_key(expected: str, value: object, hint: str = "") -> StateTypeError:
    return StateTypeError(
        f"a key of type {expected} cannot be {value!r:.100} ({type(value).__name__})"
        + (f": {hint}" if hint else f": use a value of type {expected}")
    )


def _encode_bool(value: Any) -> bytes:
    if value is True:
        return b"\x01"
    if value is False:
        return b"\x00"
    raise _no_key("bool", value)


def _decode_bool(data: bytes, offset: int) -> tuple[bool, int]:
    flag = data[offset]
    if flag > 1:
        raise ValueError(f"{flag} is not a bool")
    return flag == 1, offset + 1


def _encode_int(value: Any) -> bytes:
    if type(value) is not int:
        raise _no_key("int", value)
    try:
        return _pack_u64(value + _SIGN64)
    except struct.error:
        raise _no_key("int", value, "it must fit 64 bits with a sign") from None


def _decode_int(data: bytes, offset: int) -> tuple[int, int]:
    return _unpack_u64(data, offset)[0] - _SIGN64, offset + 8


def _encode_str(value: Any) -> bytes:
    if type(value) is not str:
        raise _no_key("str", value)
    try:
        if "\0" in value:
            value = value.replace("\0", "\0\x01")
        data: bytes = value.encode()
    except UnicodeEncodeError:
        raise _no_key("str", value, "it has lone surrogates, which no UTF-8 can hold") from None
    return data + b"\0\0"


def _decode_str(data: bytes, offset: int) -> tuple[str, int]:
    end = data.index(b"\0\0", offset)
    raw = data[offset:end]
    if 0 in raw:
        raw, _ = _decode_bytes(data, offset)
    return raw.decode(), end + 2


def _encode_bytes(value: Any) -> bytes:
    if type(value) is not bytes:
        raise _no_key("bytes", value)
    return value.replace(b"\0", b"\0\x01") + b"\0\0"


def _decode_bytes(data: bytes, offset: int) -> tuple[bytes, int]:
    end = data.index(b"\0\0", offset)
    raw = data[offset:end]
    if b"\0" in raw:
        plain = raw.replace(b"\0\x01", b"\0")
        if plain.replace(b"\0", b"\0\x01") != raw:
            raise ValueError("a zero byte is not escaped")
        raw = plain
    return raw, end + 2


def _encode_date(value: Any) -> bytes:
    if type(value) is not dt.date:
        raise _no_key("date", value)
    return _pack_u32(value.toordinal() - _EPOCH_DAY + _SIGN32)


def _decode_date(data: bytes, offset: int) -> tuple[dt.date, int]:
    days = _unpack_u32(data, offset)[0] - _SIGN32
    return dt.date.fromordinal(days + _EPOCH_DAY), offset + 4


def _encode_datetime(value: Any) -> bytes:
    if type(value) is not dt.datetime:
        raise _no_key("datetime", value)
    return _pack_u64(datetime_to_micros(value) + _SIGN64)


def _decode_datetime(data: bytes, offset: int) -> tuple[dt.datetime, int]:
    return micros_to_datetime(_unpack_u64(data, offset)[0] - _SIGN64), offset + 8


def _encode_timedelta(value: Any) -> bytes:
    if type(value) is not dt.timedelta:
        raise _no_key("timedelta", value)
    try:
        return _pack_u64(_delta_to_micros(value) + _SIGN64)
    except struct.error:
        raise _no_key("timedelta", value, "its microseconds must fit 64 bits") from None


def _decode_timedelta(data: bytes, offset: int) -> tuple[dt.timedelta, int]:
    return dt.timedelta(microseconds=_unpack_u64(data, offset)[0] - _SIGN64), offset + 8


def _encode_float(value: Any) -> bytes:
    if type(value) is not float and type(value) is not int:
        raise _no_key("float", value)
    if value != value:
        raise _no_key("float", value, "NaN equals nothing, so it cannot be found again")
    try:
        bits: int = _unpack_u64(_pack_f64(value + 0.0))[0]
    except OverflowError:
        raise _no_key("float", value, "it is too large for a float") from None
    return _pack_u64(bits ^ _MASK64 if bits & _SIGN64 else bits | _SIGN64)


def _decode_float(data: bytes, offset: int) -> tuple[float, int]:
    bits = _unpack_u64(data, offset)[0]
    bits = bits & ~_SIGN64 if bits & _SIGN64 else bits ^ _MASK64
    value: float = _unpack_f64(_pack_u64(bits))[0]
    if value != value or (value == 0 and bits):
        raise ValueError("NaN and -0.0 are not keys")
    return value, offset + 8


def _encode_uuid(value: Any) -> bytes:
    if type(value) is not uuid.UUID:
        raise _no_key("UUID", value)
    return value.bytes


def _decode_uuid(data: bytes, offset: int) -> tuple[uuid.UUID, int]:
    return uuid.UUID(bytes=data[offset : offset + 16]), offset + 16


def _encode_null(value: Any) -> bytes:
    if value is not None:
        raise _no_key("None", value)
    return b""


def _decode_null(_data: bytes, offset: int) -> tuple[None, int]:
    return None, offset


_KEY_SCALARS: dict[str, tuple[KeyEncode, KeyDecode]] = {
    "bool": (_encode_bool, _decode_bool),
    "int": (_encode_int, _decode_int),
    "str": (_encode_str, _decode_str),
    "bytes": (_encode_bytes, _decode_bytes),
    "date": (_encode_date, _decode_date),
    "datetime": (_encode_datetime, _decode_datetime),
    "timedelta": (_encode_timedelta, _decode_timedelta),
    "float": (_encode_float, _decode_float),
    "uuid": (_encode_uuid, _decode_uuid),
}

# ------------------------------------------------------------------ keys: composites


def _optional_key(encode: KeyEncode, decode: KeyDecode) -> tuple[KeyEncode, KeyDecode]:
    def encode_optional(value: Any) -> bytes:
        return b"\0" if value is None else b"\x01" + encode(value)

    def decode_optional(data: bytes, offset: int) -> tuple[Any, int]:
        present, offset = _decode_bool(data, offset)
        return decode(data, offset) if present else (None, offset)

    return encode_optional, decode_optional


def _tuple_key(
    parts: list[tuple[KeyEncode, KeyDecode]], cls: Any, name: str
) -> tuple[KeyEncode, KeyDecode]:
    encoders = [encode for encode, _ in parts]
    decoders = [decode for _, decode in parts]
    size = len(parts)
    make: Callable[[list[Any]], Any] = tuple if cls is tuple else lambda found: cls(*found)

    def encode_tuple(value: Any) -> bytes:
        if type(value) is not cls or len(value) != size:
            raise _no_key(name, value)
        return b"".join([encode(item) for encode, item in zip(encoders, value, strict=True)])

    def encode_pair(value: Any) -> bytes:
        if type(value) is not cls or len(value) != 2:
            raise _no_key(name, value)
        return encoders[0](value[0]) + encoders[1](value[1])

    def decode_tuple(data: bytes, offset: int) -> tuple[Any, int]:
        found = []
        for decode in decoders:
            item, offset = decode(data, offset)
            found.append(item)
        return make(found), offset

    return (encode_pair if size == 2 else encode_tuple), decode_tuple


def _variadic_key(encode: KeyEncode, decode: KeyDecode, name: str) -> tuple[KeyEncode, KeyDecode]:
    def encode_variadic(value: Any) -> bytes:
        if type(value) is not tuple:
            raise _no_key(name, value)
        return b"".join([b"\x01" + encode(item) for item in value]) + b"\0"

    def decode_variadic(data: bytes, offset: int) -> tuple[Any, int]:
        found = []
        more, offset = _decode_bool(data, offset)
        while more:
            item, offset = decode(data, offset)
            found.append(item)
            more, offset = _decode_bool(data, offset)
        return tuple(found), offset

    return encode_variadic, decode_variadic


def _choice_key(schema: Schema, members: Mapping[Any, Any] | None) -> tuple[KeyEncode, KeyDecode]:
    """An enum or a literal: its values, all of one type. `members` maps a value to its member."""
    kinds = {type(value) for _, value in schema.values}
    if len(kinds) != 1 or kinds == {type(None)}:
        raise StateTypeError(
            f"{schema} cannot be a key: its values must all be str, all int or all bool"
        )
    encode, decode = _KEY_SCALARS[next(iter(kinds)).__name__]
    found = members or {value: value for _, value in schema.values}
    encoded = {(type(member), member): encode(value) for value, member in found.items()}

    def encode_choice(value: Any) -> bytes:
        try:
            return encoded[type(value), value]
        except (KeyError, TypeError):
            raise _no_key(str(schema), value) from None

    def decode_choice(data: bytes, offset: int) -> tuple[Any, int]:
        value, offset = decode(data, offset)
        return found[value], offset

    return encode_choice, decode_choice


def _key_parts(schema: Schema, annotation: Any) -> tuple[KeyEncode, KeyDecode]:
    """Encoder and decoder of a key. `annotation` is None where only the schema is known."""
    annotation = unwrap(annotation)
    args = typing.get_args(annotation) or itertools.repeat(None)
    match schema.kind:
        case kind if kind in _KEY_SCALARS:
            return _KEY_SCALARS[kind]
        case "optional":
            members = union_members(annotation) or ()
            inner = next((member for member in members if member is not type(None)), None)
            return _optional_key(*_key_parts(schema.items[0], inner))
        case "tuple":
            parts = [_key_parts(*pair) for pair in zip(schema.items, args, strict=False)]
            return _tuple_key(parts, tuple, str(schema))
        case "variadic":
            return _variadic_key(*_key_parts(schema.items[0], next(iter(args))), str(schema))
        case "struct" if schema.flavour == "namedtuple":
            hints = (
                [field.annotation for field in struct_fields(annotation)] if annotation else args
            )
            schemas = [field.schema for field in schema.fields]
            parts = [_key_parts(*pair) for pair in zip(schemas, hints, strict=False)]
            return _tuple_key(parts, annotation or tuple, schema.name)
        case "enum":
            return _choice_key(schema, {m.value: m for m in annotation} if annotation else None)
        case "literal":
            return _choice_key(schema, None)
        case "dynamic":
            return _encode_dynamic, _decode_dynamic
    raise StateTypeError(
        f"{schema.brief} cannot be a key: use bool, int, str, bytes, date, datetime, timedelta,"
        " UUID, Enum, Literal, a NamedTuple or a tuple of those, or None beside one of those"
    )


# ------------------------------------------------------------------ keys: of unknown type

_DYNAMIC_KINDS = ("null", "bool", "int", "str", "bytes", "date", "datetime")
_DYNAMIC_PARTS = [(_encode_null, _decode_null), *(_KEY_SCALARS[k] for k in _DYNAMIC_KINDS[1:])]
_DYNAMIC_ENCODERS: dict[type, tuple[bytes, KeyEncode]] = {
    cls: (bytes([tag]), _DYNAMIC_PARTS[tag][0])
    for tag, cls in enumerate((type(None), bool, int, str, bytes, dt.date, dt.datetime))
}
_DYNAMIC_TUPLE = len(_DYNAMIC_KINDS)


def _encode_dynamic(value: Any) -> bytes:
    if type(value) is tuple:
        inner = b"".join([b"\x01" + _encode_dynamic(item) for item in value])
        return bytes([_DYNAMIC_TUPLE]) + inner + b"\0"
    try:
        tag, encode = _DYNAMIC_ENCODERS[type(value)]
    except KeyError:
        raise StateTypeError(
            f"{value!r:.100} ({type(value).__name__}) cannot be a key: use None, bool, int, str,"
            " bytes, date, datetime or a tuple of those"
        ) from None
    return tag + encode(value)


def _decode_dynamic(data: bytes, offset: int) -> tuple[Any, int]:
    tag = data[offset]
    if tag == _DYNAMIC_TUPLE:
        return _DYNAMIC_ITEMS(data, offset + 1)
    if tag > _DYNAMIC_TUPLE:
        raise ValueError(f"{tag} is not the tag of a key")
    return _DYNAMIC_PARTS[tag][1](data, offset + 1)


_DYNAMIC_ITEMS = _variadic_key(_encode_dynamic, _decode_dynamic, "tuple")[1]

# ------------------------------------------------------------------ keys: public


def _checked_decode(decode: KeyDecode, name: str) -> Callable[..., tuple[Any, int]]:
    def decode_key(data: bytes, offset: int = 0) -> tuple[Any, int]:
        try:
            value, end = decode(data, offset)
        except _KEY_ERRORS as error:
            raise _corrupt_key(name, data, error) from error
        if end > len(data):
            raise _corrupt_key(name, data, "it is cut off")
        return value, end

    return decode_key


_KEY_ERRORS = (ValueError, IndexError, KeyError, OverflowError, struct.error, RecursionError)


def _corrupt_key(name: str, data: bytes, why: object) -> CorruptCheckpointError:
    return CorruptCheckpointError(
        f"{data.hex()!r:.100} does not hold a key of type {name} ({why}):"
        " check that the type of the key was not changed, else restore an earlier epoch"
    )


@dataclasses.dataclass(frozen=True, slots=True)
class KeyCodec(Generic[T]):
    """Keys of one type as bytes that sort as the keys do.

    No encoded key is a prefix of another of the same type, so encodings can be strung together.

    Args:
        encode: the bytes of a key; StateTypeError where the type cannot hold it.
        decode: `(data, offset=0)` to the key and the offset behind it; CorruptCheckpointError.
        schema: the type as data.
        annotation: the type as declared.
    """

    encode: Callable[[T], bytes]
    decode: Callable[..., tuple[T, int]]
    schema: Schema
    annotation: Any


def key_codec(annotation: Any, *, allow_float: bool = True) -> KeyCodec[Any]:
    """The codec for keys of a type.

    Args:
        annotation: bool, int, float, str, bytes, date, datetime, timedelta, UUID, Enum, Literal,
            a tuple or NamedTuple of those, each optionally None.
        allow_float: refuse types with a float in them when False.

    Raises:
        StateTypeError: keys cannot be of that type.

    >>> codec = key_codec(tuple[str, int])
    >>> codec.encode(("UA", 1545)).hex()
    '554100008000000000000609'
    >>> codec.decode(codec.encode(("UA", 1545)))
    (('UA', 1545), 12)
    """
    schema = schema_of(annotation)
    if not allow_float and _mentions(schema, "float"):
        raise StateTypeError(
            f"{schema.brief} has a float in it, and NaN and -0.0 do not compare as keys must:"
            " use an int or a str"
        )
    encode, decode = _key_parts(schema, annotation)
    return KeyCodec(encode, _checked_decode(decode, schema.brief), schema, annotation)


def dynamic_key_codec() -> KeyCodec[Any]:
    """The codec for keys whose type is only known from the value: one tag byte, then the key.

    >>> codec = dynamic_key_codec()
    >>> codec.decode(codec.encode(("UA", None)))
    (('UA', None), 10)
    """
    decode = _checked_decode(_decode_dynamic, "dynamic")
    return KeyCodec(_encode_dynamic, decode, Schema("dynamic"), object)


def _mentions(schema: Schema, kind: str) -> bool:
    inner = [*schema.items, *(field.schema for field in schema.fields)]
    return schema.kind == kind or any(_mentions(item, kind) for item in inner)


# ------------------------------------------------------------------ values: plans

UNION_EXT = 1
"""MessagePack extension type of a union member that its bytes alone do not tell apart."""

_ENCODER = msgspec.msgpack.Encoder(uuid_format="canonical", decimal_format="string")
_NONE = type(None)
_Convert = Callable[[Any], Any]
_Parts = Callable[[Any], Iterable[tuple[str, "_Plan", Any]]]


def _no_parts(_value: Any) -> tuple[tuple[str, _Plan, Any], ...]:
    return ()


@dataclasses.dataclass(slots=True)
class _Plan:
    """How values of one type are checked, and turned into what msgspec can write.

    `wire` is the type that msgspec decodes. `to_wire` and `from_wire` are None where a value and
    its wire form are the same. `types` is set where a value's exact class alone decides.
    """

    schema: Schema
    wire: Any
    accepts: Callable[[Any], bool]
    immutable: bool
    types: frozenset[type] | None = None
    to_wire: _Convert | None = None
    from_wire: _Convert | None = None
    parts: _Parts = _no_parts


def _same(value: Any) -> Any:
    return value


def _accepts_types(types: frozenset[type]) -> Callable[[Any], bool]:
    if len(types) == 1:
        (only,) = types
        return lambda value: type(value) is only
    return lambda value: type(value) in types


def _by_type(schema: Schema, wire: Any, *types: type) -> _Plan:
    held = frozenset(types)
    return _Plan(schema, wire, _accepts_types(held), True, held)


def _accepts_datetime(value: Any) -> bool:
    if type(value) is not dt.datetime or value.utcoffset() is None:
        return False
    return 1 < value.year < 9999 or _MIN_MICROS <= _delta_to_micros(value - _EPOCH) <= _MAX_MICROS


_SCALAR_TYPES: dict[str, tuple[type, ...]] = {
    "null": (_NONE,),
    "bool": (bool,),
    "int": (int,),
    "float": (float, int),
    "str": (str,),
    "bytes": (bytes,),
    "date": (dt.date,),
    "timedelta": (dt.timedelta,),
    "decimal": (decimal.Decimal,),
    "uuid": (uuid.UUID,),
}
_AWARE = typing.Annotated[dt.datetime, msgspec.Meta(tz=True)]
_MAP_KEYS = frozenset([*_SCALAR_TYPES, "datetime", "enum"]) - {"null"}


def _accepts_parts(cls: type, parts: list[tuple[str, _Plan]]) -> Callable[[Any], bool]:
    """A check of a class and of parts of its instances, compiled as `dataclasses` does it.

    Args:
        cls: the exact class of a value.
        parts: how each part is reached from `value`, as source text, and its plan.
    """
    names: dict[str, Any] = {"cls": cls}
    terms = ["type(value) is cls"]
    if cls is tuple:
        terms.append(f"len(value) == {len(parts)}")
    for at, (part, plan) in enumerate(parts):
        if plan.types is None:
            names[f"check{at}"] = plan.accepts
            terms.append(f"check{at}({part})")
        elif len(plan.types) == 1:
            (names[f"type{at}"],) = plan.types
            terms.append(f"type({part}) is type{at}")
        else:
            names[f"types{at}"] = plan.types
            terms.append(f"type({part}) in types{at}")
    body = f"try:\n  return {' and '.join(terms)}\n except AttributeError:\n  return False"
    exec(f"def accepts(value):\n {body}", names)
    accepts: Callable[[Any], bool] = names["accepts"]
    return accepts


def _accepts_each(item: _Plan) -> Callable[[Iterable[Any]], bool]:
    """A check of any number of values that have one plan."""
    if item.types is not None:
        types = item.types
        return lambda values: types.issuperset(map(type, values))
    check = item.accepts
    return lambda values: all(map(check, values))


class _Planner:
    """Makes the plan of one annotation; remembers which structs it is inside of.

    Args:
        made: the wire structs made so far. They see each other by the names in `wires`, which is
            how a struct that contains itself is written down.
    """

    def __init__(self) -> None:
        self.open: dict[type, _Plan] = {}
        self.made: list[Any] = []
        self.wires: dict[str, type] = {}

    def whole(self, annotation: Any) -> _Plan:
        plan = self.plan(annotation)
        for struct_ in self.made:
            for name, wire in self.wires.items():
                setattr(struct_, name, wire)
        return plan

    def plan(self, annotation: Any) -> _Plan:
        annotation = unwrap(annotation)
        schema = schema_of(annotation)
        args = typing.get_args(annotation)
        match schema.kind:
            case "datetime":
                return _Plan(schema, _AWARE, _accepts_datetime, True)
            case kind if kind in _SCALAR_TYPES:
                return _by_type(schema, annotation, *_SCALAR_TYPES[kind])
            case "enum":
                return _by_type(schema, annotation, annotation)
            case "literal":
                return _plan_literal(schema, annotation)
            case "tuple":
                return _plan_tuple(schema, [self.plan(arg) for arg in args])
            case "list" | "variadic":
                return _plan_sequence(schema, self.plan(args[0]))
            case "set" | "frozenset":
                return _plan_set(schema, self.plan(args[0]))
            case "dict":
                return _plan_dict(schema, self.plan(args[0]), self.plan(args[1]))
            case "optional" | "union":
                return self.plan_union(schema, union_members(annotation) or ())
        return self.plan_struct(schema, annotation)

    def plan_union(self, schema: Schema, members: tuple[Any, ...]) -> _Plan:
        plans = [self.plan(member) for member in members if member is not _NONE]
        optional = schema.kind == "optional"
        if len(plans) == 1:
            inner = plans[0]
        else:
            inner = _plan_union(schema.items[0] if optional else schema, plans, self.hold)
        return _plan_optional(schema, inner) if optional else inner

    def hold(self, wire: Any) -> Any:
        """A struct that is written as the array [name, value], with values of the wire type."""
        held = msgspec.defstruct("Member", [("name", str), ("value", wire)], array_like=True)
        self.made.append(held)
        return held

    def plan_struct(self, schema: Schema, cls: type) -> _Plan:
        if (outer := self.open.get(cls)) is not None:
            return _plan_inside(schema, cls, outer)
        native = _is_native(cls, frozenset())
        name = f"wire_{len(self.made)}_{len(self.open)}"
        plan = _Plan(schema, cls if native else typing.ForwardRef(name), bool, False)
        if not native:
            plan.to_wire = plan.from_wire = _same
        self.open[cls] = plan
        specs = struct_fields(cls)
        fields = [self.plan(spec.annotation) for spec in specs]
        _check_struct(plan, cls, specs, fields)
        if not native:
            self.wires[name] = plan.wire = _wire_struct(cls, specs, fields)
            self.made.append(plan.wire)
            plan.to_wire = _struct_to_wire(cls, plan.wire, specs, fields)
            plan.from_wire = _struct_from_wire(cls, specs, fields)
        del self.open[cls]
        return plan


# ------------------------------------------------------------------ values: containers


def _plan_literal(schema: Schema, annotation: Any) -> _Plan:
    allowed = frozenset((type(value), value) for _, value in schema.values)
    types = frozenset(kind for kind, _ in allowed)

    def accepts(value: Any) -> bool:
        return type(value) in types and (type(value), value) in allowed

    if bool not in types:
        return _Plan(schema, annotation, accepts, True)

    def from_wire(value: Any) -> Any:
        if not accepts(value):
            raise ValueError(f"{value!r} is not one of {schema}")
        return value

    wire: Any = typing.Union[tuple(types)]  # noqa: UP007  built at run time
    return _Plan(schema, wire, accepts, True, None, _same, from_wire)


def _plan_tuple(schema: Schema, items: list[_Plan]) -> _Plan:
    size = len(items)
    plan = _Plan(
        schema,
        tuple[tuple(item.wire for item in items)],  # type: ignore[misc]
        _accepts_parts(tuple, [(f"value[{at}]", item) for at, item in enumerate(items)]),
        all(item.immutable for item in items),
    )
    if any(item.to_wire for item in items):
        to, back = ([_converter(item, name) for item in items] for name in ("to_wire", "from_wire"))
        plan.to_wire = lambda value: tuple([f(v) for f, v in zip(to, value, strict=True)])
        plan.from_wire = lambda wire: tuple([f(v) for f, v in zip(back, wire, strict=True)])

    def parts(value: Any) -> Iterator[tuple[str, _Plan, Any]]:
        if type(value) is tuple and len(value) == size:
            for at, (item, part) in enumerate(zip(items, value, strict=True)):
                yield f"[{at}]", item, part

    plan.parts = parts
    return plan


def _converter(plan: _Plan, name: str) -> _Convert:
    convert: _Convert | None = getattr(plan, name)
    return convert or _same


def _plan_sequence(schema: Schema, item: _Plan) -> _Plan:
    """A list, or a tuple of any length."""
    cls: Any = list if schema.kind == "list" else tuple
    each = _accepts_each(item)
    plan = _Plan(
        schema,
        list[item.wire] if cls is list else tuple[item.wire, ...],  # type: ignore[name-defined]
        lambda value: type(value) is cls and each(value),
        cls is tuple and item.immutable,
    )
    if item.to_wire and item.from_wire:
        to_wire, from_wire = item.to_wire, item.from_wire
        plan.to_wire = lambda value: [to_wire(part) for part in value]
        plan.from_wire = lambda wire: cls([from_wire(part) for part in wire])

    def parts(value: Any) -> Iterator[tuple[str, _Plan, Any]]:
        if type(value) is cls:
            for at, part in enumerate(value):
                yield f"[{at}]", item, part

    plan.parts = parts
    return plan


def _plan_set(schema: Schema, item: _Plan) -> _Plan:
    """A set or frozenset: an array sorted by encoded element, whatever the order of hashing."""
    cls: Any = set if schema.kind == "set" else frozenset
    each = _accepts_each(item)
    convert = _converter(item, "to_wire")
    restore = _converter(item, "from_wire")

    def to_wire(value: Any) -> list[msgspec.Raw]:
        encoded = sorted([_ENCODER.encode(convert(part)) for part in value])
        return [msgspec.Raw(part) for part in encoded]

    def parts(value: Any) -> Iterator[tuple[str, _Plan, Any]]:
        if type(value) is cls:
            for part in value:
                yield f"{{{part!r:.60}}}", item, part

    return _Plan(
        schema,
        list[item.wire],  # type: ignore[name-defined]
        lambda value: type(value) is cls and each(value),
        cls is frozenset and item.immutable,
        to_wire=to_wire,
        from_wire=lambda wire: cls([restore(part) for part in wire]),
        parts=parts,
    )


def _plan_dict(schema: Schema, key: _Plan, item: _Plan) -> _Plan:
    """A dict: a map, or an array of pairs where MessagePack readers may not know such keys."""
    each_key, each_item = _accepts_each(key), _accepts_each(item)
    plan = _Plan(
        schema,
        dict[key.wire, item.wire],  # type: ignore[name-defined]
        lambda value: type(value) is dict and each_key(value) and each_item(value.values()),
        False,
    )
    key_to, key_from = _converter(key, "to_wire"), _converter(key, "from_wire")
    to, back = _converter(item, "to_wire"), _converter(item, "from_wire")
    if schema.items[0].kind not in _MAP_KEYS:
        plan.wire = list[tuple[key.wire, item.wire]]  # type: ignore[name-defined]
        plan.to_wire = lambda value: [(key_to(k), to(v)) for k, v in value.items()]
        plan.from_wire = lambda wire: {key_from(k): back(v) for k, v in wire}
    elif item.to_wire:
        plan.to_wire = lambda value: {k: to(v) for k, v in value.items()}
        plan.from_wire = lambda wire: {k: back(v) for k, v in wire.items()}

    def parts(value: Any) -> Iterator[tuple[str, _Plan, Any]]:
        if type(value) is dict:
            for k, v in value.items():
                yield f".keys[{k!r:.60}]", key, k
                yield f"[{k!r:.60}]", item, v

    plan.parts = parts
    return plan


def _plan_optional(schema: Schema, inner: _Plan) -> _Plan:
    check, convert, restore = inner.accepts, inner.to_wire, inner.from_wire
    plan = _Plan(
        schema,
        typing.Optional[inner.wire],  # noqa: UP045  a forward reference has no `|`
        lambda value: value is None or check(value),
        inner.immutable,
    )
    if inner.types is not None:
        plan.types = inner.types | {_NONE}
        plan.accepts = _accepts_types(plan.types)
    if convert and restore:
        plan.to_wire = lambda value: None if value is None else convert(value)
        plan.from_wire = lambda wire: None if wire is None else restore(wire)
    plan.parts = lambda value: inner.parts(value)
    return plan


# ------------------------------------------------------------------ values: unions

_FAMILIES: dict[str, tuple[str, ...]] = {
    "bool": ("bool",),
    "int": ("int",),
    "float": ("float", "int"),
    **dict.fromkeys(("list", "tuple", "variadic", "set", "frozenset"), ("array",)),
    **dict.fromkeys(("struct", "ref", "dict"), ("map",)),
    **dict.fromkeys(
        ("str", "bytes", "date", "datetime", "timedelta", "decimal", "uuid"), ("text",)
    ),
}
_TYPE_FAMILIES: dict[type, str] = {
    bool: "bool",
    int: "int",
    float: "float",
    **dict.fromkeys((str, bytes, dt.date, dt.datetime, dt.timedelta), "text"),
    **dict.fromkeys((decimal.Decimal, uuid.UUID), "text"),
    **dict.fromkeys((list, tuple, set, frozenset), "array"),
}


def _families(schema: Schema) -> frozenset[str]:
    """The families of MessagePack values that a member of a union is written as."""
    if schema.kind in ("enum", "literal"):
        kinds = {type(value) for _, value in schema.values if value is not None}
        return frozenset(_TYPE_FAMILIES[kind] for kind in kinds)
    if schema.kind == "dict" and schema.items[0].kind not in _MAP_KEYS:
        return frozenset({"array"})
    return frozenset(_FAMILIES[schema.kind])


def _tagged_members(members: Iterable[Schema]) -> frozenset[str]:
    """The names of a union's members that need a tag: all but the first of each family."""
    taken: dict[str, str] = {}
    tagged = set()
    for member in members:
        numbers = ("int", "float") if member.kind in ("int", "float") else ()
        if any(
            taken.get(family, "float" if numbers else None) not in (*numbers, None)
            for family in _families(member)
        ):
            tagged.add(member.brief)
        else:
            for family in _families(member):
                taken.setdefault(family, member.kind)
    return frozenset(tagged)


def _plan_union(schema: Schema, plans: list[_Plan], hold: Callable[[Any], Any]) -> _Plan:
    tagged = _tagged_members(schema.items)
    plain = [plan for plan in plans if plan.schema.brief not in tagged]
    wires = [plan.wire for plan in plain] + ([msgspec.msgpack.Ext] if tagged else [])
    # A float member also holds an int: look at it after those that mean an int.
    ordered = sorted(plans, key=lambda plan: plan.schema.kind == "float")
    checks = [plan.accepts for plan in ordered]
    plan = _Plan(
        schema,
        typing.Union[tuple(wires)],  # noqa: UP007  built at run time
        lambda value: any(check(value) for check in checks),
        all(plan.immutable for plan in plans),
    )
    types = [member.types for member in plans]
    if all(types):
        plan.types = frozenset().union(*(held for held in types if held))
        plan.accepts = _accepts_types(plan.types)
    if tagged or any(member.to_wire for member in plans):
        plan.to_wire = _union_to_wire(schema, ordered, tagged)
        plan.from_wire = _union_from_wire(schema, plans, tagged, hold)
    return plan


def _union_to_wire(schema: Schema, ordered: list[_Plan], tagged: frozenset[str]) -> _Convert:
    def to_wire(value: Any) -> Any:
        for member in ordered:
            if member.accepts(value):
                wire = member.to_wire(value) if member.to_wire else value
                name = member.schema.brief
                if name not in tagged:
                    return wire
                return msgspec.msgpack.Ext(UNION_EXT, _ENCODER.encode((name, wire)))
        raise TypeError(f"{value!r:.100} is none of {schema.brief}")

    return to_wire


def _union_from_wire(
    schema: Schema, plans: list[_Plan], tagged: frozenset[str], hold: Callable[[Any], Any]
) -> _Convert:
    named = {plan.schema.brief: plan for plan in plans}
    held = {name: hold(named[name].wire) for name in tagged}
    decoders: dict[str, msgspec.msgpack.Decoder[Any]] = {}
    peek = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw])
    restores = {
        family: plan.from_wire
        for plan in plans
        if plan.from_wire and plan.schema.brief not in tagged
        for family in _families(plan.schema)
    }

    def from_wire(wire: Any) -> Any:
        if type(wire) is not msgspec.msgpack.Ext:
            restore = restores.get(_TYPE_FAMILIES.get(type(wire), "map"), _same)
            return restore(wire)
        name = _member_name(wire, peek)
        if name not in tagged:
            raise ValueError(f"{name!r} is not a tagged member of {schema.brief}")
        if name not in decoders:
            decoders[name] = msgspec.msgpack.Decoder(held[name])
        value = decoders[name].decode(wire.data).value
        restore = named[name].from_wire or _same
        return restore(value)

    return from_wire


def _member_name(wire: msgspec.msgpack.Ext, peek: msgspec.msgpack.Decoder[Any]) -> str:
    if wire.code != UNION_EXT:
        raise ValueError(f"MessagePack extension {wire.code} is not a member of a union")
    name: str = peek.decode(wire.data)[0]
    return name


# ------------------------------------------------------------------ values: structs


def _is_native(annotation: Any, inside: frozenset[Any]) -> bool:
    """Whether msgspec alone writes and reads the type as docs/format.md wants it."""
    annotation = unwrap(annotation)
    if (members := union_members(annotation)) is not None:
        some = [member for member in members if member is not _NONE]
        return not _tagged_members(schema_of(member) for member in some) and all(
            _is_native(member, inside) for member in some
        )
    schema = schema_of(annotation)
    args = [arg for arg in typing.get_args(annotation) if arg is not Ellipsis]
    match schema.kind:
        case "literal":
            return not any(type(value) is bool for _, value in schema.values)
        case "set" | "frozenset":
            return False
        case "dict" if schema.items[0].kind not in _MAP_KEYS:
            return False
        case "struct":
            return annotation in inside or (
                _is_plain(annotation)
                and all(
                    not _is_constrained(spec.annotation)
                    and _is_native(spec.annotation, inside | {annotation})
                    for spec in struct_fields(annotation)
                )
            )
    return all(_is_native(arg, inside) for arg in args) if schema.items else True


def _is_plain(cls: Any) -> bool:
    """Whether msgspec writes the class as a map of all its fields under their own names."""
    flavour = struct_flavour(cls)
    if flavour != "msgspec":
        return flavour in ("dataclass", "typeddict")
    config = cls.__struct_config__
    special = (config.array_like, config.omit_defaults, config.forbid_unknown_fields, config.tag)
    return not any(special) and cls.__struct_fields__ == cls.__struct_encode_fields__


def _is_constrained(annotation: Any) -> bool:
    """Whether msgspec would refuse values for more than their type (`msgspec.Meta`)."""
    if isinstance(annotation, typing.NewType):
        return _is_constrained(annotation.__supertype__)
    if hasattr(annotation, "__value__"):
        return _is_constrained(annotation.__value__)
    metadata = getattr(annotation, "__metadata__", ())
    return any(isinstance(note, msgspec.Meta) for note in metadata) or any(
        _is_constrained(arg) for arg in typing.get_args(annotation)
    )


def _is_frozen(cls: Any) -> bool:
    match struct_flavour(cls):
        case "namedtuple":
            return True
        case "msgspec":
            return bool(cls.__struct_config__.frozen)
        case "pydantic":
            return bool(cls.model_config.get("frozen")) and not cls.__private_attributes__
        case "dataclass":
            return bool(cls.__dataclass_params__.frozen)
    return False


def _plan_inside(schema: Schema, cls: type, outer: _Plan) -> _Plan:
    """A struct inside of itself: everything about it is looked up when it is used."""
    plan = _Plan(schema, outer.wire, lambda value: outer.accepts(value), _is_frozen(cls))
    plan.parts = lambda value: outer.parts(value)
    if outer.to_wire:
        plan.to_wire = lambda value: (outer.to_wire or _same)(value)
        plan.from_wire = lambda wire: (outer.from_wire or _same)(wire)
    return plan


def _check_struct(
    plan: _Plan, cls: type, specs: tuple[FieldSpec, ...], fields: list[_Plan]
) -> None:
    """Fill in `accepts`, `immutable` and `parts` of a struct's plan."""
    named = {spec.name: field for spec, field in zip(specs, fields, strict=True)}
    plan.immutable = _is_frozen(cls) and all(field.immutable for field in fields)
    if struct_flavour(cls) == "typeddict":
        required = frozenset(spec.name for spec in specs if spec.required)
        plan.accepts = _accepts_typeddict(named, required)
        plan.parts = lambda value: (
            [(f"[{name!r}]", named[name], item) for name, item in value.items() if name in named]
            if type(value) is dict
            else ()
        )
        return
    plan.accepts = _accepts_parts(cls, [(_attribute(name), field) for name, field in named.items()])
    plan.parts = lambda value: (
        [(f".{name}", field, getattr(value, name, None)) for name, field in named.items()]
        if type(value) is cls
        else ()
    )


def _attribute(name: str) -> str:
    plain = name.isidentifier() and not keyword.iskeyword(name)
    return f"value.{name}" if plain else f"getattr(value, {name!r})"


def _accepts_typeddict(named: dict[str, _Plan], required: frozenset[str]) -> Callable[[Any], bool]:
    checks = {name: field.accepts for name, field in named.items()}

    def accepts(value: Any) -> bool:
        return (
            type(value) is dict
            and required <= value.keys() <= checks.keys()
            and all(checks[name](item) for name, item in value.items())
        )

    return accepts


def _getter(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) == 1:
        get_one = operator.attrgetter(names[0])
        return lambda value: (get_one(value),)
    return operator.attrgetter(*names) if names else lambda value: ()


def _columns(specs: tuple[FieldSpec, ...]) -> list[int]:
    """The order of fields in a wire struct: those that a row must have come first."""
    return sorted(range(len(specs)), key=lambda at: not specs[at].required)


def _wire_struct(cls: type, specs: tuple[FieldSpec, ...], fields: list[_Plan]) -> type:
    """A msgspec Struct with the fields of `cls`, in the form in which they are written."""
    columns: list[tuple[str, Any] | tuple[str, Any, Any]] = [
        (f"f{at}", fields[at].wire)
        if specs[at].required
        else (f"f{at}", fields[at].wire, msgspec.UNSET)
        for at in _columns(specs)
    ]
    names = {f"f{at}": spec.name for at, spec in enumerate(specs)}
    return msgspec.defstruct(cls.__name__, columns, rename=names)


def _struct_to_wire(
    cls: type, wire: Any, specs: tuple[FieldSpec, ...], fields: list[_Plan]
) -> _Convert:
    order = _columns(specs)
    names = tuple(specs[at].name for at in order)
    converts = [fields[at].to_wire for at in order]
    get = _getter(names)
    if struct_flavour(cls) == "typeddict":
        get = lambda value: tuple([value.get(name, msgspec.UNSET) for name in names])  # noqa: E731
    if not any(converts):
        return lambda value: wire(*get(value))

    def to_wire(value: Any) -> Any:
        return wire(
            *[
                convert(part) if convert and part is not msgspec.UNSET else part
                for convert, part in zip(converts, get(value), strict=True)
            ]
        )

    return to_wire


def _struct_from_wire(cls: Any, specs: tuple[FieldSpec, ...], fields: list[_Plan]) -> _Convert:
    names = tuple(spec.name for spec in specs)
    get = _getter(tuple(f"f{at}" for at in range(len(specs))))
    restores = [field.from_wire for field in fields]
    build = _builder(cls)
    build_row: Callable[[Any], Any] = lambda row: build(dict(zip(names, row, strict=True)))  # noqa: E731
    if struct_flavour(cls) == "namedtuple":
        build_row = cls._make

    def from_wire(wire: Any) -> Any:
        return build(
            {
                name: restore(part) if restore else part
                for name, restore, part in zip(names, restores, get(wire), strict=True)
                if part is not msgspec.UNSET
            }
        )

    def from_plain_wire(wire: Any) -> Any:
        values = get(wire)
        return from_wire(wire) if msgspec.UNSET in values else build_row(values)

    return from_wire if any(restores) else from_plain_wire


def _builder(cls: Any) -> Callable[[dict[str, Any]], Any]:
    """Makes an instance from its fields; those that are missing take their defaults."""
    match struct_flavour(cls):
        case "typeddict":
            return lambda found: found
        case "pydantic":
            return _model_builder(cls)
        case "dataclass":
            return lambda found: _build_dataclass(cls, found)
    return lambda found: cls(**found)


def _model_builder(cls: Any) -> Callable[[dict[str, Any]], Any]:
    """As `model_construct` does it, without its search for aliases where no field is missing."""
    size = len(cls.model_fields)
    if cls.__pydantic_post_init__ is not None:
        return lambda found: cls.model_construct(**found)

    def build(found: dict[str, Any]) -> Any:
        if len(found) < size:
            return cls.model_construct(**found)
        made = cls.__new__(cls)
        _set(made, "__dict__", found)
        _set(made, "__pydantic_fields_set__", set(found))
        _set(made, "__pydantic_extra__", None)
        _set(made, "__pydantic_private__", None)
        return made

    return build


_set = object.__setattr__


def _build_dataclass(cls: Any, found: dict[str, Any]) -> Any:
    """As msgspec does it: `__init__` is not called, `__post_init__` is."""
    made = object.__new__(cls)
    for field in dataclasses.fields(cls):
        if field.name in found:
            value = found[field.name]
        elif field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        else:
            value = field.default
        object.__setattr__(made, field.name, value)
    if hasattr(made, "__post_init__"):
        made.__post_init__()
    return made


# ------------------------------------------------------------------ values: public


@dataclasses.dataclass(frozen=True, slots=True)
class ValueCodec(Generic[T]):
    """Values of one type as bytes. Each attribute is a plain callable, to be bound locally.

    Args:
        name: how the bytes are written: "msgpack" or "pickle".
        schema: the type as data.
        annotation: the type as declared.
        immutable: a decoded value may be handed out again and again.
        accepts: whether the declared type can hold a value.
        encode: the bytes of a value that was accepted; StateTypeError where they cannot be.
        decode: the value of bytes; CorruptCheckpointError where there is none.
        reason: why a value is not accepted, with the path into it.
    """

    name: str
    schema: Schema
    annotation: Any
    immutable: bool
    accepts: Callable[[Any], bool]
    encode: Callable[[T], bytes]
    decode: Callable[[bytes], T]
    reason: Callable[[Any], str]


def value_codec(annotation: Any) -> ValueCodec[Any]:
    """The MessagePack codec for values of a type.

    Raises:
        StateTypeError: a part of the type is not supported; the message says what to use.

    >>> codec = value_codec(list[float])
    >>> codec.accepts([1.5, "x"])
    False
    >>> codec.reason([1.5, "x"])
    "[1]: expected float, got str 'x'"
    >>> codec.decode(codec.encode([1.5]))
    [1.5]
    """
    schema = schema_of(annotation)
    plan = _Planner().whole(annotation)
    try:
        decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(plan.wire)
    except TypeError as error:
        raise StateTypeError(
            f"{schema.brief} cannot be stored ({error}): use a simpler type"
        ) from error
    return ValueCodec(
        "msgpack",
        schema,
        annotation,
        plan.immutable,
        plan.accepts,
        _value_encode(schema.brief, plan.to_wire),
        _value_decode(schema.brief, decoder.decode, plan.from_wire),
        lambda value: _reason(plan, value, "") or f"{value!r:.100} is accepted",
    )


_ENCODE_ERRORS = (OverflowError, ValueError, TypeError, AttributeError, RecursionError)


def _value_encode(name: str, to_wire: _Convert | None) -> Callable[[Any], bytes]:
    write = _ENCODER.encode

    def encode(value: Any) -> bytes:
        try:
            return write(value)
        except _ENCODE_ERRORS as error:
            raise _no_value(name, value, error) from error

    def encode_converted(value: Any) -> bytes:
        try:
            return write(to_wire(value))  # type: ignore[misc]
        except _ENCODE_ERRORS as error:
            raise _no_value(name, value, error) from error

    return encode if to_wire is None else encode_converted


def _no_value(name: str, value: object, error: Exception) -> StateTypeError:
    return StateTypeError(
        f"{value!r:.100} cannot be stored as {name} ({error}): ints must fit 64 bits,"
        " text must be valid UTF-8 and nesting must end"
    )


def _value_decode(
    name: str, read: Callable[[bytes], Any], from_wire: _Convert | None
) -> Callable[[bytes], Any]:
    def decode(data: bytes) -> Any:
        try:
            return read(data)
        except Exception as error:
            raise _corrupt_value(name, data, error) from error

    def decode_converted(data: bytes) -> Any:
        try:
            return from_wire(read(data))  # type: ignore[misc]
        except Exception as error:
            raise _corrupt_value(name, data, error) from error

    return decode if from_wire is None else decode_converted


def _corrupt_value(name: str, data: bytes, why: object) -> CorruptCheckpointError:
    return CorruptCheckpointError(
        f"{len(data)} bytes {bytes(data[:32]).hex()!r} do not hold a value of type {name} ({why}):"
        " check that the declared type can read what was stored, else restore an earlier epoch"
    )


def _reason(plan: _Plan, value: Any, path: str) -> str | None:
    if plan.accepts(value):
        return None
    for suffix, part, inner in plan.parts(value):
        if found := _reason(part, inner, path + suffix):
            return found
    problem = f"expected {plan.schema.brief}, got {type(value).__name__} {value!r:.100}"
    if type(value) is dt.datetime and _unoptional(plan.schema).kind == "datetime":
        problem = f"expected a datetime with a timezone within the years 1 to 9999, got {value!r}"
    elif _unoptional(plan.schema).name in _base_names(value):
        problem += ": it must be exactly that class, a subclass would lose fields"
    return f"{path}: {problem}" if path else problem


def _unoptional(schema: Schema) -> Schema:
    return schema.items[0] if schema.kind == "optional" else schema


def _base_names(value: object) -> list[str]:
    return [base.__name__ for base in type(value).__mro__[1:]]


class PickleCodec:
    """Marks a state whose values are pickled, because no other codec can hold them.

    Pickled rows run code when they are read. The program that declares the state reads them;
    readers that know only the checkpoint must be told to.

    >>> annotation = typing.Annotated[complex, PickleCodec()]
    >>> codec = PickleCodec().codec(complex)
    >>> codec.name, codec.decode(codec.encode(1j))
    ('pickle', 1j)
    """

    name = "pickle"

    def codec(self, annotation: Any) -> ValueCodec[Any]:
        """The codec that pickles values of a type; only a class is checked, and only its name.

        Args:
            annotation: any type. Where it is not a class, every value is accepted.
        """
        inner = unwrap(annotation)
        cls = typing.get_origin(inner) or inner
        held: type = cls if isinstance(cls, type) else object
        name = inner.__qualname__ if isinstance(inner, type) else str(inner)
        return ValueCodec(
            self.name,
            Schema("pickle", name=name),
            annotation,
            False,
            lambda value: isinstance(value, held),
            _value_encode_pickle,
            _value_decode(name, pickle.loads, None),
            lambda value: f"expected {name}, got {type(value).__name__} {value!r:.100}",
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PickleCodec)

    def __hash__(self) -> int:
        return hash(PickleCodec)

    def __repr__(self) -> str:
        return "PickleCodec()"


def _value_encode_pickle(value: Any) -> bytes:
    try:
        return bytes(cloudpickle.dumps(value, protocol=5))
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError) as error:
        raise StateTypeError(
            f"{value!r:.100} cannot be pickled ({error}): keep plain data in state"
        ) from error


# ------------------------------------------------------------------ reading without classes


def generic_decoder(
    schema: Schema | Json, codec_name: str = "msgpack", allow_pickle: bool = False
) -> Callable[[bytes], Json]:
    """A decoder of stored values that needs their schema and none of the user's classes.

    It returns what JSON can hold (and NaN): structs and dicts are dicts, sequences and sets are
    lists, a dict whose keys are not scalars is a list of pairs, dates are ISO text, bytes are hex,
    Decimal, UUID and timedelta are text, an enum is its member's name, a pickled value its repr.

    Args:
        schema: a schema or its JSON form.
        codec_name: the codec that wrote the values.
        allow_pickle: unpickle values, which can run any code.

    Raises:
        QueryError: the values are pickled and `allow_pickle` is False, or the codec is unknown.

    >>> read = generic_decoder(schema_of(dict[str, dt.date]).to_json())
    >>> read(value_codec(dict[str, dt.date]).encode({"new year": dt.date(2013, 1, 1)}))
    {'new year': '2013-01-01'}
    """
    schema = schema if isinstance(schema, Schema) else Schema.from_json(schema)
    if codec_name == PickleCodec.name:
        if not allow_pickle:
            raise QueryError(
                f"values of {schema.brief} are pickled, and reading them can run any code:"
                " pass allow_pickle=True if you trust whoever wrote the checkpoint"
            )
        return _value_decode(
            schema.brief,
            pickle.loads,
            repr,
        )
    if codec_name != "msgpack":
        raise QueryError(f"values were written by the codec {codec_name!r}: update statekit")
    read = msgspec.msgpack.Decoder().decode
    return _value_decode(schema.brief, read, lambda wire: _show(schema, wire, {}))


def _show(schema: Schema, wire: Any, outer: Mapping[str, Schema]) -> Json:
    """What a decoded MessagePack value of that schema looks like as JSON."""
    match schema.kind:
        case "ref":
            return _show(outer[schema.name], wire, outer)
        case "optional":
            return None if wire is None else _show(schema.items[0], wire, outer)
        case "list" | "set" | "frozenset" | "variadic":
            return [_show(schema.items[0], part, outer) for part in _expect(wire, list)]
        case "tuple":
            pairs = zip(schema.items, _expect(wire, list), strict=True)
            return [_show(item, part, outer) for item, part in pairs]
        case "dict":
            return _show_dict(schema, wire, outer)
        case "struct":
            inner = {**outer, schema.name: schema}
            found = _expect(wire, dict)
            return {
                field.name: _show(field.schema, found[field.name], inner)
                for field in schema.fields
                if field.name in found
            }
        case "union":
            return _show(*_show_member(schema, wire), outer)
        case "enum":
            return next((name for name, value in schema.values if value == wire), wire)
        case "float":
            return float(wire)
    return _show_scalar(schema.kind, wire)


def _show_scalar(kind: str, value: Any) -> Json:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, uuid.UUID | dt.timedelta):
        return str(value)
    if not isinstance(value, str | bool | int | float | None):
        raise ValueError(f"{value!r} is not a {kind}")
    return value


def _show_dict(schema: Schema, wire: Any, outer: Mapping[str, Schema]) -> Json:
    key, item = schema.items
    if key.kind not in _MAP_KEYS:
        return [[_show(key, k, outer), _show(item, v, outer)] for k, v in _expect(wire, list)]
    found = {_show(key, k, outer): _show(item, v, outer) for k, v in _expect(wire, dict).items()}
    return {k if isinstance(k, str) else json.dumps(k): v for k, v in found.items()}


def _show_member(schema: Schema, wire: Any) -> tuple[Schema, Any]:
    """The member of a union that a value belongs to, and the value without its tag."""
    if isinstance(wire, msgspec.msgpack.Ext):
        name, wire = msgspec.msgpack.decode(wire.data, type=tuple[str, Any])
        return next(item for item in schema.items if item.brief == name), wire
    tagged = _tagged_members(schema.items)
    family = _TYPE_FAMILIES.get(type(wire), "map")
    plain = [item for item in schema.items if item.brief not in tagged]
    exact = [item for item in plain if item.kind == type(wire).__name__]
    return (exact or [item for item in plain if family in _families(item)])[0], wire


def _expect(wire: Any, cls: type) -> Any:
    if not isinstance(wire, cls):
        raise ValueError(f"{wire!r:.60} is not a {cls.__name__}")
    return wire


def generic_key_decoder(schema: Schema | Json) -> Callable[..., tuple[Json, int]]:
    """A decoder of stored keys that needs none of the user's classes.

    Returns:
        `(data, offset=0)` to the key, in the form that `generic_decoder` gives values, and the
        offset behind it.

    >>> stored = key_codec(tuple[str, int]).encode(("UA", 1))
    >>> generic_key_decoder(schema_of(tuple[str, int]))(stored)
    (['UA', 1], 12)
    """
    schema = schema if isinstance(schema, Schema) else Schema.from_json(schema)
    decode = _checked_decode(_key_parts(schema, None)[1], schema.brief)

    def decode_json(data: bytes, offset: int = 0) -> tuple[Json, int]:
        value, end = decode(data, offset)
        return _key_to_json(schema, value), end

    return decode_json


def _key_to_json(schema: Schema, value: Any) -> Json:
    if value is None:
        return None
    match schema.kind:
        case "optional":
            return _key_to_json(schema.items[0], value)
        case "enum":
            return next(name for name, held in schema.values if held == value)
        case "struct":
            pairs = zip(schema.fields, value, strict=True)
            return {field.name: _key_to_json(field.schema, part) for field, part in pairs}
        case "tuple":
            pairs_ = zip(schema.items, value, strict=True)
            return [_key_to_json(item, part) for item, part in pairs_]
    if isinstance(value, tuple):
        item = schema.items[0] if schema.items else schema
        return [_key_to_json(item, part) for part in value]
    return _show_scalar(schema.kind, value)


def generic_key_encoder(schema: Schema | Json) -> Callable[[Json], bytes]:
    """An encoder of keys that were typed in or sent as JSON.

    Text is taken as it is for a str key, and parsed for every other: `5`, `true`, `2013-01-01`,
    `["UA", 1545]`, `null`. What is not text is taken as parsed JSON. Bytes are hex, an enum is a
    member's name or value, a NamedTuple an object or an array.

    Raises:
        StateTypeError: the text is not a key of that type.

    >>> encode = generic_key_encoder(schema_of(tuple[str, int]))
    >>> encode('["UA", 1545]') == key_codec(tuple[str, int]).encode(("UA", 1545))
    True
    """
    schema = schema if isinstance(schema, Schema) else Schema.from_json(schema)
    encode = _key_parts(schema, None)[0]

    def encode_json(text: Json) -> bytes:
        try:
            value = _key_from_json(schema, text)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise StateTypeError(
                f"{text!r} is not a key of type {schema.brief}: {error}"
            ) from error
        return encode(value)

    return encode_json


_KEY_PARSERS: dict[str, Callable[[str], Any]] = {
    "int": int,
    "float": float,
    "bytes": bytes.fromhex,
    "date": dt.date.fromisoformat,
    "datetime": dt.datetime.fromisoformat,
    "uuid": uuid.UUID,
}


def _key_from_json(schema: Schema, given: Json) -> Any:
    match schema.kind:
        case "optional":
            if given is None or given == "null":
                return None
            if isinstance(given, str) and given.startswith('"'):
                given = json.loads(given)
            return _key_from_json(schema.items[0], given)
        case "str":
            return given
        case "dynamic":
            return _dynamic_from_json(given)
        case "enum" | "literal":
            return _choice_from_json(schema, given)
        case "tuple" | "variadic" | "struct":
            return _tuple_from_json(schema, json.loads(given) if isinstance(given, str) else given)
        case kind if kind in _KEY_PARSERS and isinstance(given, str):
            return _KEY_PARSERS[kind](given)
        case "timedelta" if isinstance(given, str):
            return msgspec.json.decode(json.dumps(given), type=dt.timedelta)
        case "bool" if isinstance(given, str):
            return json.loads(given)
    return given


def _tuple_from_json(schema: Schema, given: Json) -> tuple[Any, ...]:
    if schema.kind == "variadic":
        return tuple(_key_from_json(schema.items[0], part) for part in given)
    items = schema.items or tuple(field.schema for field in schema.fields)
    if isinstance(given, dict):
        given = [given[field.name] for field in schema.fields]
    return tuple(_key_from_json(item, part) for item, part in zip(items, given, strict=True))


def _choice_from_json(schema: Schema, given: Json) -> Any:
    for name, value in schema.values:
        if given == name or (type(given) is type(value) and given == value) or given == str(value):
            return value
    raise ValueError(f"use one of {', '.join(name for name, _ in schema.values)}")


def _dynamic_from_json(given: Json) -> Any:
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError:
            return given
    return tuple(map(_dynamic_inner, given)) if isinstance(given, list) else given


def _dynamic_inner(given: Json) -> Any:
    return tuple(map(_dynamic_inner, given)) if isinstance(given, list) else given
