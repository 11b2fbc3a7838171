"""Key encoding: bytes that sort in the order of keys.

The bytes are specified in docs/reference/format.md; every example there is executed.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import struct
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from statekit.codec.annotations import SCALARS, struct_flavour
from statekit.codec.kept_fields import only_fields, why_beside
from statekit.codec.key_example import tuple_advice
from statekit.codec.schema import Schema, schema_of
from statekit.codec.value_check import NESTING_MAX
from statekit.codec.vectorized import sortable_ints
from statekit.errors import CorruptCheckpointError, StateTypeError
from statekit.foreign import foreign_hint
from statekit.shown import shown, shown_text, type_name
from statekit.timestamp import datetime_to_micros, micros_to_datetime, timedelta_to_micros

T = TypeVar("T")

KeyEncode = Callable[[Any], bytes]
KeyDecode = Callable[[bytes, int], tuple[Any, int]]

# ------------------------------------------------------------------ scalars

_EPOCH_DAY = dt.date(1970, 1, 1).toordinal()
_SIGN64 = 1 << 63
_SIGN32 = 1 << 31
_pack_u64 = struct.Struct(">Q").pack
_unpack_u64 = struct.Struct(">Q").unpack_from
_pack_u32 = struct.Struct(">I").pack
_unpack_u32 = struct.Struct(">I").unpack_from
_pack_f64 = struct.Struct(">d").pack
_unpack_f64 = struct.Struct(">d").unpack
_MASK64 = (1 << 64) - 1
_END = b"\0\0"
"""The end of a text, or of bytes."""


def _no_key(expected: str, value: object, hint: str = "") -> StateTypeError:
    return StateTypeError(
        f"a key of type {expected} cannot be {shown(value, 100)} ({type_name(value)})"
        + (foreign_hint(value) or f": {hint or f'use a value of type {expected}'}")
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
        raise _no_key("str", value, "it has lone surrogates, which UTF-8 cannot encode") from None
    return data + _END


def _decode_str(data: bytes, offset: int) -> tuple[str, int]:
    end = data.index(b"\0\0", offset)
    raw = data[offset:end]
    if 0 in raw:
        raw, _ = _decode_bytes(data, offset)
    return raw.decode(), end + 2


def _encode_bytes(value: Any) -> bytes:
    if type(value) is not bytes:
        raise _no_key("bytes", value)
    return value.replace(b"\0", b"\0\x01") + _END


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
        return _pack_u64(timedelta_to_micros(value) + _SIGN64)
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

# ------------------------------------------------------------------ several keys in one call


def _encode_ints(values: Sequence[Any]) -> list[bytes] | None:
    """Return the bytes of many ints, ten times as fast as one by one; None if one is no valid
    key.
    """
    if set(map(type, values)) != {int}:
        return None
    try:
        return sortable_ints(values)
    except OverflowError:
        return None


def _encode_strs(values: Sequence[Any]) -> list[bytes] | None:
    """Return the bytes of many strings without zeros; None if there is any other value."""
    if set(map(type, values)) != {str} or "\0" in "".join(values):
        return None
    try:
        return [value.encode() + b"\0\0" for value in values]
    except UnicodeEncodeError:
        return None


_ENCODE_SEVERAL: dict[str, Callable[[Sequence[Any]], list[bytes] | None]] = {
    "int": _encode_ints,
    "str": _encode_strs,
}


def _encoded_at_once(schema: Schema, keys: Sequence[Any]) -> list[bytes] | None:
    """Return the bytes of many keys; None if their type, or one of them, has to be encoded one by
    one.
    """
    if schema.kind != "tuple":
        encode_several = _ENCODE_SEVERAL.get(schema.kind)
        return None if encode_several is None else encode_several(keys)
    if not keys or set(map(type, keys)) != {tuple} or set(map(len, keys)) != {len(schema.items)}:
        return None
    columns = zip(schema.items, zip(*keys, strict=True), strict=True)
    parts = [_encoded_at_once(item, column) for item, column in columns]
    if not parts or None in parts:
        return None
    return list(map(b"".join, zip(*parts, strict=True)))


# ------------------------------------------------------------------ composites


def _optional_key(encode: KeyEncode, decode: KeyDecode) -> tuple[KeyEncode, KeyDecode]:
    def encode_optional(value: Any) -> bytes:
        return b"\0" if value is None else b"\x01" + encode(value)

    def decode_optional(data: bytes, offset: int) -> tuple[Any, int]:
        present, offset = _decode_bool(data, offset)
        return decode(data, offset) if present else (None, offset)

    return encode_optional, decode_optional


def _tuple_key(
    parts: list[tuple[KeyEncode, KeyDecode]], cls: Any, schema: Schema
) -> tuple[KeyEncode, KeyDecode]:
    name = schema.brief
    encoders = [encode for encode, _ in parts]
    decoders = [decode for _, decode in parts]
    size = len(parts)
    make: Callable[[list[Any]], Any] = tuple if cls is tuple else partial(tuple.__new__, cls)
    is_kept = (only_fields(cls) if struct_flavour(cls) == "namedtuple" else None) or _always

    def encode_tuple(value: Any) -> bytes:
        if type(value) is not cls or len(value) != size:
            raise _no_key(name, value, tuple_advice(schema))
        if not is_kept(value):
            raise _no_key(name, value, why_beside(cls, value))
        return b"".join([encode(item) for encode, item in zip(encoders, value, strict=True)])

    def encode_pair(value: Any) -> bytes:
        if type(value) is not cls or len(value) != 2:
            raise _no_key(name, value, tuple_advice(schema))
        return encoders[0](value[0]) + encoders[1](value[1])

    def decode_tuple(data: bytes, offset: int) -> tuple[Any, int]:
        items = []
        for decode in decoders:
            item, offset = decode(data, offset)
            items.append(item)
        return make(items), offset

    is_pair = size == 2 and is_kept is _always
    return (encode_pair if is_pair else encode_tuple), decode_tuple


def _always(_value: Any) -> bool:
    return True


def _variadic_key(
    encode: KeyEncode, decode: KeyDecode, schema: Schema
) -> tuple[KeyEncode, KeyDecode]:
    def encode_variadic(value: Any) -> bytes:
        if type(value) is not tuple:
            raise _no_key(schema.brief, value, tuple_advice(schema))
        return b"".join([b"\x01" + encode(item) for item in value]) + b"\0"

    def decode_variadic(data: bytes, offset: int) -> tuple[Any, int]:
        items = []
        more, offset = _decode_bool(data, offset)
        while more:
            item, offset = decode(data, offset)
            items.append(item)
            more, offset = _decode_bool(data, offset)
        return tuple(items), offset

    return encode_variadic, decode_variadic


def _choice_key(schema: Schema) -> tuple[KeyEncode, KeyDecode]:
    """Return encoder and decoder of an enum or a literal. All of its values must have one type."""
    kinds = {type(value) for _, value in schema.values}
    if len(kinds) != 1 or kinds == {type(None)}:
        raise StateTypeError(
            f"{schema} cannot be a key: its values must all be str, all int or all bool"
        )
    encode, decode = _KEY_SCALARS[next(iter(kinds)).__name__]
    cls = schema.annotation if schema.kind == "enum" else None
    members_by_value = {value: cls(value) if cls else value for _, value in schema.values}
    encoded = {(type(member), member): encode(value) for value, member in members_by_value.items()}

    def encode_choice(value: Any) -> bytes:
        try:
            return encoded[type(value), value]
        except (KeyError, TypeError):
            raise _no_key(str(schema), value) from None

    def decode_choice(data: bytes, offset: int) -> tuple[Any, int]:
        value, offset = decode(data, offset)
        return members_by_value[value], offset

    return encode_choice, decode_choice


def _key_parts(schema: Schema) -> tuple[KeyEncode, KeyDecode]:
    match schema.kind:
        case kind if kind in _KEY_SCALARS:
            return _KEY_SCALARS[kind]
        case "optional":
            return _optional_key(*_key_parts(schema.items[0]))
        case "tuple":
            return _tuple_key(list(map(_key_parts, schema.items)), tuple, schema)
        case "variadic":
            return _variadic_key(*_key_parts(schema.items[0]), schema)
        case "struct" if schema.flavour == "namedtuple":
            parts = [_key_parts(field.schema) for field in schema.fields]
            return _tuple_key(parts, schema.annotation or tuple, schema)
        case "enum" | "literal":
            return _choice_key(schema)
        case "dynamic":
            return _encode_dynamic, _decode_dynamic
    raise StateTypeError(
        f"{schema.brief} cannot be a key: use bool, int, str, bytes, date, datetime, timedelta,"
        " UUID, Enum, Literal, a NamedTuple or a tuple of those, each optionally None"
    )


# ------------------------------------------------------------------ keys of unknown type

_DYNAMIC_KINDS = ("null", "bool", "int", "str", "bytes", "date", "datetime")
_DYNAMIC_PARTS = [(_encode_null, _decode_null), *(_KEY_SCALARS[k] for k in _DYNAMIC_KINDS[1:])]
_DYNAMIC_ENCODERS: dict[type, tuple[bytes, KeyEncode]] = {
    cls: (bytes([tag]), _DYNAMIC_PARTS[tag][0])
    for tag, cls in enumerate(map(SCALARS.__getitem__, _DYNAMIC_KINDS))
}
_DYNAMIC_TUPLE = len(_DYNAMIC_KINDS)


def _encode_dynamic(value: Any, level: int = 0) -> bytes:
    if type(value) is tuple:
        if level > NESTING_MAX:
            raise StateTypeError(
                f"a tuple that is nested more than {NESTING_MAX} levels deep cannot be a key: "
                "use a flat one"
            )
        inner = b"".join([b"\x01" + _encode_dynamic(item, level + 1) for item in value])
        return bytes([_DYNAMIC_TUPLE]) + inner + b"\0"
    try:
        tag, encode = _DYNAMIC_ENCODERS[type(value)]
    except KeyError:
        raise StateTypeError(
            f"{shown(value, 100)} ({type_name(value)}) cannot be a key"
            + (
                foreign_hint(value)
                or ": use None, bool, int, str, bytes, date, datetime or a tuple of those"
            )
        ) from None
    return tag + encode(value)


def _decode_dynamic(data: bytes, offset: int) -> tuple[Any, int]:
    tag = data[offset]
    if tag == _DYNAMIC_TUPLE:
        return _DYNAMIC_ITEMS(data, offset + 1)
    if tag > _DYNAMIC_TUPLE:
        raise ValueError(f"{tag} is not the tag of a key")
    return _DYNAMIC_PARTS[tag][1](data, offset + 1)


_DYNAMIC_ITEMS = _variadic_key(_encode_dynamic, _decode_dynamic, Schema("dynamic"))[1]

# ------------------------------------------------------------------ codecs


def _checked_decode(decode: KeyDecode, name: str) -> Callable[..., tuple[Any, int]]:
    def decode_key(data: bytes, offset: int = 0) -> tuple[Any, int]:
        try:
            value, end = decode(data, offset)
            if end > len(data):
                raise ValueError("it is cut off")
        except _KEY_ERRORS as error:
            raise CorruptCheckpointError(
                f"{data.hex()!r:.100} is not a key of type {name} ({shown_text(error)}): check "
                "that the type "
                "of the key was not changed, else restore an earlier epoch"
            ) from error
        return value, end

    return decode_key


_KEY_ERRORS = (ValueError, IndexError, KeyError, OverflowError, struct.error, RecursionError)


@dataclasses.dataclass(frozen=True, slots=True)
class KeyCodec(Generic[T]):
    """Keys of one type, encoded as bytes that sort in the order of keys.

    No encoded key is a prefix of another of the same type, so encodings can be concatenated.

    Parameters:
        encode: the bytes of a key; StateTypeError where the type cannot hold it.
        decode: `(data, offset=0)` to the key and the offset after it; CorruptCheckpointError.
        schema: the type as data.
    """

    encode: Callable[[T], bytes]
    decode: Callable[..., tuple[T, int]]
    schema: Schema

    def encode_all(self, keys: Sequence[T]) -> list[bytes]:
        """Return the bytes of several keys. Raises StateTypeError if the type cannot hold one of
        them.
        """
        encoded = _encoded_at_once(self.schema, keys)
        return list(map(self.encode, keys)) if encoded is None else encoded

    def encode_prefix(self, prefix: Any) -> bytes:
        """Return the bytes with which the bytes of all keys with a prefix begin.

        Parameters:
            prefix: the beginning of a text or of bytes, or a tuple of the first parts of a tuple.

        Raises:
            StateTypeError: keys of the type have no such prefix.

        >>> key_codec(str).encode_prefix("UA"), key_codec(tuple[str, int]).encode_prefix(("UA",))
        (b'UA', b'UA\\x00\\x00')
        """
        return _encode_prefix(self.schema, prefix)


def _encode_prefix(schema: Schema, prefix: Any) -> bytes:
    is_tuple = isinstance(prefix, tuple)
    match schema.kind:
        case "str" | "bytes":
            return _KEY_SCALARS[schema.kind][0](prefix)[: -len(_END)]
        case "optional" if prefix is not None:
            return b"\x01" + _encode_prefix(schema.items[0], prefix)
        case "tuple" if is_tuple and len(prefix) <= len(schema.items):
            return _encode_parts(schema.items, prefix)
        case "struct" if is_tuple and len(prefix) <= len(schema.fields):
            return _encode_parts([field.schema for field in schema.fields], prefix)
        case "variadic" if is_tuple:
            encode, _ = _key_parts(schema.items[0])
            return b"".join([b"\x01" + encode(item) for item in prefix])
        case "dynamic" if is_tuple:
            parts = [b"\x01" + _encode_dynamic(item, 1) for item in prefix]
            return bytes([_DYNAMIC_TUPLE]) + b"".join(parts)
        case "dynamic" if type(prefix) in (str, bytes):
            return _encode_dynamic(prefix)[: -len(_END)]
    raise StateTypeError(
        f"keys of type {schema.brief} have no prefix {shown(prefix, 100)}: give the beginning of a "
        "text or of bytes, or a tuple with the first parts of a tuple"
    )


def _encode_parts(schemas: Sequence[Schema], parts: Sequence[Any]) -> bytes:
    encoders = [_key_parts(schema)[0] for schema in schemas]
    return b"".join([encode(part) for encode, part in zip(encoders, parts, strict=False)])


def key_codec(annotation: Any) -> KeyCodec[Any]:
    """Return the codec for keys of a type.

    Parameters:
        annotation: bool, int, float, str, bytes, date, datetime, timedelta, UUID, Enum, Literal, a
            tuple or NamedTuple of those, each optionally None.

    Raises:
        StateTypeError: keys cannot be of that type.

    >>> codec = key_codec(tuple[str, int])
    >>> codec.encode(("UA", 1545)).hex()
    '554100008000000000000609'
    >>> codec.decode(codec.encode(("UA", 1545)))
    (('UA', 1545), 12)
    """
    return _codec(schema_of(annotation))


def schema_key_codec(schema: Schema) -> KeyCodec[Any]:
    """Return the codec for keys with a known schema but without their class.

    The bytes are those of `key_codec`. An enum is its member's value, a NamedTuple a tuple.

    >>> schema_key_codec(schema_of(tuple[str, int])).encode(("UA", 1545)).hex()
    '554100008000000000000609'
    """
    return _codec(Schema.from_json(schema.to_json()))


def _codec(schema: Schema) -> KeyCodec[Any]:
    encode, decode = _key_parts(schema)
    return KeyCodec(encode, _checked_decode(decode, schema.brief), schema)


def dynamic_key_codec() -> KeyCodec[Any]:
    """Return the codec for keys of unknown type. A tag byte contains the type of each key.

    >>> codec = dynamic_key_codec()
    >>> codec.decode(codec.encode(("UA", None)))
    (('UA', None), 10)
    """
    return _codec(Schema("dynamic"))
