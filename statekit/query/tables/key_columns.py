"""Encoded keys as Arrow columns, all keys of a batch at a time.

The encoding is that of `codec/key_codec`, and docs/reference/format.md specifies it. Keys of
variable length and of unknown type are decoded one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import add
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statekit.checkpoint.job_file import OperatorRecord
from statekit.codec.key_codec import schema_key_codec
from statekit.codec.schema import Schema
from statekit.codec.vectorized import big_endian, ints_of_sortable, key_groups
from statekit.errors import CorruptCheckpointError
from statekit.keygroup import GROUP_BYTES
from statekit.query.encoded.binary_columns import big_endian_rows, fixed, joined_rows
from statekit.query.encoded.key_bytes import PACKED_KINDS, groups_of_columns, packed_keys
from statekit.query.tables.columns import DURATION, INT, TIMESTAMP, WIDE_INT, key_column
from statekit.query.tables.packed_bytes import Offsets, PackedBytes
from statekit.records.nested_types import tuple_names
from statekit.stored_types import key_schema
from statekit.timestamp import FIRST_DAY, LAST_DAY, MAX_MICROS, MIN_MICROS

_SIGN64 = np.uint64(1 << 63)

Decode = Callable[[PackedBytes, Offsets], tuple[pa.Array, Offsets]]
"""Returns the values that begin at the offsets, and the offsets after them. Raises ValueError or
IndexError.
"""


class KeyEncoder:
    """Encodes the keys of an operator from their columns.

    Parameters:
        operator: the operator.
    """

    def __init__(self, operator: OperatorRecord) -> None:
        fields = [Schema.from_json(field.type) for field in operator.key]
        self._columns = [key_column(field) for field in fields]
        self._is_packed = all(field.kind in PACKED_KINDS for field in fields)
        self._encode = schema_key_codec(key_schema(operator)).encode_all

    def encoded(self, arrays: Sequence[pa.Array]) -> list[bytes]:
        """Return the stored bytes of keys.

        Parameters:
            arrays: a column for each field of the key.
        """
        return self._encode(self._keys(arrays))

    def prefixes(self, arrays: Sequence[pa.Array], groups: int) -> pa.Array:
        """Return the start of the row keys of keys: key group and stored bytes.

        Parameters:
            arrays: a column for each field of the key.
            groups: the number of key groups.
        """
        if self._is_packed and (packed := packed_keys(arrays)) is not None:
            own = groups_of_columns(arrays, groups)
            return joined_rows([fixed(big_endian_rows(own)[:, -GROUP_BYTES:]), packed])
        keys = self._keys(arrays)
        encoded = self._encode(keys)  # first: its errors name the key
        prefixes = map(add, big_endian(key_groups(keys, groups), len(keys)), encoded)
        return pa.array(list(prefixes), pa.binary())

    def _keys(self, arrays: Sequence[pa.Array]) -> Sequence[Any]:
        parts = [column.values(array) for column, array in zip(self._columns, arrays, strict=True)]
        return parts[0] if len(parts) == 1 else list(zip(*parts, strict=True))


class KeyColumn(NamedTuple):
    """A column of keys.

    Parameters:
        type: of the column.
        decode: reads the keys.
        mark: as of a `Column`.
    """

    type: pa.DataType
    decode: Decode
    mark: str | None


def packed_key_column(schema: Schema, *, wide: bool = False) -> KeyColumn:
    """Return the column for encoded keys of a schema.

    Parameters:
        wide: give ints 20 digits.

    >>> from statekit.codec.key_codec import key_codec
    >>> packed = PackedBytes([key_codec(int).encode(5), key_codec(int).encode(-1)])
    >>> keys, ends = packed_key_column(Schema("int")).decode(packed, packed.starts)
    >>> keys.to_pylist(), ends.tolist()
    ([5, -1], [8, 16])
    """
    column = key_column(schema, wide=wide)
    decode = _decoder(schema, wide=wide) or _one_by_one(schema, column.array)
    return KeyColumn(column.type, decode, column.mark)


class PartsOfKey:
    """Reads the fields of an operator's keys: those of several parts, of one, or of unknown type.

    Parameters:
        fields: the schemas of the fields.
    """

    def __init__(self, fields: Sequence[Schema]) -> None:
        self._is_dynamic = len(fields) > 1 and fields[0].kind == "dynamic"
        self.columns = [packed_key_column(field) for field in fields]

    def decode(self, packed: PackedBytes, starts: Offsets) -> tuple[list[pa.Array], Offsets]:
        """Return the fields of the keys that begin at the offsets, and the offsets after the keys.

        Raises:
            CorruptCheckpointError: a key is not of its type.
        """
        try:
            arrays, ends = self._decode(packed, starts)
            return arrays, checked_ends(packed, ends)
        except (ValueError, IndexError, OverflowError, pa.ArrowException) as error:
            raise CorruptCheckpointError(f"a key is not of its type: {error}") from error

    def _decode(self, packed: PackedBytes, starts: Offsets) -> tuple[list[pa.Array], Offsets]:
        if self._is_dynamic:
            return self._dynamic(packed, starts)
        arrays = []
        for column in self.columns:
            array, starts = column.decode(packed, starts)
            arrays.append(array)
        return arrays, starts

    def _dynamic(self, packed: PackedBytes, starts: Offsets) -> tuple[list[pa.Array], Offsets]:
        """Return the fields of keys that are encoded as one tuple of unknown types."""
        schema = Schema("dynamic")
        keys, ends = _decoded(schema, packed, starts)
        size = len(self.columns)
        if any(type(key) is not tuple or len(key) != size for key in keys):
            raise ValueError(f"it has not {size} fields")
        array = key_column(schema).array
        return [array([key[number] for key in keys]) for number in range(size)], ends


def checked_ends(packed: PackedBytes, ends: Offsets) -> Offsets:
    """Check that each offset lies within its string, and return the offsets.

    Raises:
        ValueError: an offset does not.
    """
    if (ends > packed.ends).any():
        raise ValueError("it is cut off")
    return ends


# ----------------------------------------------------------------------------------- scalars


def _ints(packed: PackedBytes, starts: Offsets) -> tuple[pa.Array, Offsets]:
    return pa.array(ints_of_sortable(packed.numbers(starts, ">u8")), INT), starts + 8


def _durations(packed: PackedBytes, starts: Offsets) -> tuple[pa.Array, Offsets]:
    ints, ends = _ints(packed, starts)
    return ints.cast(DURATION), ends


def _wide_ints(packed: PackedBytes, starts: Offsets) -> tuple[pa.Array, Offsets]:
    ints, ends = _ints(packed, starts)
    return ints.cast(WIDE_INT), ends


def _instants(packed: PackedBytes, starts: Offsets) -> tuple[pa.Array, Offsets]:
    ints, ends = _ints(packed, starts)
    _check_between(ints, MIN_MICROS, MAX_MICROS)
    return ints.cast(TIMESTAMP), ends


def _days(packed: PackedBytes, starts: Offsets) -> tuple[pa.Array, Offsets]:
    flipped = packed.numbers(starts, ">u4").astype(np.uint32)
    days = pa.array((flipped ^ np.uint32(1 << 31)).view(np.int32))
    _check_between(days, FIRST_DAY, LAST_DAY)
    return days.cast(pa.date32()), starts + 4


def _check_between(numbers: pa.Array, least: int, most: int) -> None:
    found = pc.min_max(numbers).as_py()
    if len(numbers) and not least <= found["min"] <= found["max"] <= most:
        raise ValueError("a time is not within the years 1 to 9999")


def _bools(packed: PackedBytes, starts: Offsets) -> tuple[pa.Array, Offsets]:
    flags = packed.numbers(starts, "u1")
    if (flags > 1).any():
        raise ValueError(f"{flags.max()} is not a bool")
    return pa.array(flags == 1), starts + 1


def _floats(packed: PackedBytes, starts: Offsets) -> tuple[pa.Array, Offsets]:
    stored = packed.numbers(starts, ">u8").astype(np.uint64)
    bits = np.where(stored & _SIGN64, stored & ~_SIGN64, ~stored)
    floats = bits.view(np.float64)
    if np.isnan(floats).any() or ((floats == 0) & (bits != 0)).any():
        raise ValueError("NaN and -0.0 are not keys")
    return pa.array(floats), starts + 8


def _uuids(packed: PackedBytes, starts: Offsets) -> tuple[pa.Array, Offsets]:
    digits = packed.numbers(starts, "V16").tobytes().hex().encode()
    table = np.frombuffer(digits, np.uint8).reshape(-1, 32)
    texts = np.full((len(starts), 36), ord("-"), np.uint8)
    for dashes, (first, last) in enumerate(((0, 8), (8, 12), (12, 16), (16, 20), (20, 32))):
        texts[:, first + dashes : last + dashes] = table[:, first:last]
    fixed = pa.Array.from_buffers(pa.binary(36), len(starts), [None, pa.py_buffer(texts)])
    return fixed.cast(pa.binary()).cast(pa.string()), starts + 16


def _texts(type_: pa.DataType, kind: str) -> Decode:
    def decode(packed: PackedBytes, starts: Offsets) -> tuple[pa.Array, Offsets]:
        ends, escaped = packed.ends_of_text(starts)
        if escaped:
            texts, ends = _decoded(Schema(kind), packed, starts)
            return pa.array(texts, type_), ends
        return packed.slices(starts, ends).cast(type_), ends + 2

    return decode


_SCALARS: dict[str, Decode] = {
    "bool": _bools,
    "int": _ints,
    "timedelta": _durations,
    "datetime": _instants,
    "date": _days,
    "float": _floats,
    "uuid": _uuids,
    "str": _texts(pa.string(), "str"),
    "bytes": _texts(pa.binary(), "bytes"),
}


# -------------------------------------------------------------------------------- composites


def _decoder(schema: Schema, *, wide: bool) -> Decode | None:
    """Return the decoder of a schema; None if its keys are to be decoded one by one."""
    match schema.kind:
        case "int" if wide:
            return _wide_ints
        case "timedelta" if wide:
            return None
        case "optional":
            inner = _decoder(schema.items[0], wide=wide)
            return None if inner is None else _optional(inner)
        case "enum" | "literal":
            return _choice(schema, wide=wide)
        case "tuple" if schema.items:
            parts = [_decoder(item, wide=wide) for item in schema.items]
            return _record(tuple_names(len(parts)), parts)
        case "struct" if schema.fields:
            names = [field.name for field in schema.fields]
            return _record(names, [_decoder(f.schema, wide=wide) for f in schema.fields])
    return _SCALARS.get(schema.kind)


def _choice(schema: Schema, *, wide: bool) -> Decode | None:
    values = [value for _, value in schema.values]
    inner = _decoder(Schema(type(values[0]).__name__), wide=wide)
    if inner is None or len({type(value) for value in values}) > 1:
        return None

    def decode(packed: PackedBytes, starts: Offsets) -> tuple[pa.Array, Offsets]:
        array, ends = inner(packed, starts)
        if not pc.all(pc.is_in(array, pa.array(values).cast(array.type))).as_py() and len(array):
            raise ValueError(f"it is none of {schema.brief}")
        return array, ends

    return decode


def _optional(inner: Decode) -> Decode:
    def decode(packed: PackedBytes, starts: Offsets) -> tuple[pa.Array, Offsets]:
        present, ends = _bools(packed, starts)
        if present.true_count == len(present):
            return inner(packed, ends)
        some = np.flatnonzero(present.to_numpy(zero_copy_only=False))
        found, ends_of_some = inner(packed, ends[some])
        places = np.zeros(len(starts), np.int64)
        places[some] = np.arange(len(some))
        ends[some] = ends_of_some
        return found.take(pc.if_else(present, pa.array(places), None)), ends

    return decode


def _record(names: Sequence[str], parts: Sequence[Decode | None]) -> Decode | None:
    decoders = [part for part in parts if part is not None]
    if len(decoders) < len(parts):
        return None

    def decode(packed: PackedBytes, starts: Offsets) -> tuple[pa.Array, Offsets]:
        arrays = []
        for part in decoders:
            array, starts = part(packed, starts)
            arrays.append(array)
        return pa.StructArray.from_arrays(arrays, names=names), starts

    return decode


def _one_by_one(schema: Schema, array: Callable[[Sequence[Any]], pa.Array]) -> Decode:
    def decode(packed: PackedBytes, starts: Offsets) -> tuple[pa.Array, Offsets]:
        keys, ends = _decoded(schema, packed, starts)
        return array(keys), ends

    return decode


def _decoded(schema: Schema, packed: PackedBytes, starts: Offsets) -> tuple[list[Any], Offsets]:
    decode, data = schema_key_codec(schema).decode, packed.data
    found = [decode(data, start) for start in starts.tolist()]
    ends = np.fromiter((end for _, end in found), np.int64, len(found))
    return [key for key, _ in found], ends
