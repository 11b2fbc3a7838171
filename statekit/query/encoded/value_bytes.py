"""Columns as MessagePack: the bytes that `ENCODER` writes for each value, without the values.

Only kinds of the same bytes as `ENCODER` are here, and columns without nulls. `ENCODER` itself
encodes the other kinds, value by value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from statekit.codec.value_plan import ENCODER
from statekit.query.encoded.binary_columns import (
    Matrix,
    Sizes,
    Strings,
    big_endian_rows,
    fixed,
    joined_rows,
    row_ends,
)

# The formats of MessagePack by the bytes that an int takes after its tag.
_INT_SIZES = np.array([0, 1, 2, 4, 8])
_UNSIGNED_MAX = np.array([0x7F, 0xFF, 0xFFFF, 0xFFFF_FFFF])
_UNSIGNED_TAG, _SIGNED_TAG = 0xCB, 0xCF
"""One less than the tags of the smallest ints that have one."""
_NEGATIVE_MIN = np.array([32, 0x80, 0x8000, 0x8000_0000])


def packed_ints(column: pa.Array) -> pa.Array:
    """Return 64-bit ints as MessagePack.

    >>> packed_ints(pa.array([1, -1, 300])).to_pylist()
    [b'\\x01', b'\\xff', b'\\xcd\\x01,']
    """
    numbers = column.to_numpy()
    is_negative = numbers < 0
    format_ = np.searchsorted(_UNSIGNED_MAX, numbers)
    if is_negative.any():
        # -(n + 1) does not overflow for the least int.
        negative = np.searchsorted(_NEGATIVE_MIN - 1, -(numbers + 1))
        format_ = np.where(is_negative, negative, format_)
    tags = np.where(is_negative, _SIGNED_TAG, _UNSIGNED_TAG) + format_
    return _tagged(big_endian_rows(numbers), tags, _INT_SIZES[format_])


def _tagged(rows: Matrix, tags: Sizes, sizes: Sizes) -> pa.Array:
    """Return a tag and the last bytes of each row; of size 0 the last byte without a tag."""
    count, width = rows.shape
    matrix = np.empty((count, width + 1), np.uint8)
    matrix[:, 1:] = rows
    tagged = np.flatnonzero(sizes)
    matrix[tagged, width - sizes[tagged]] = tags[tagged]
    return row_ends(matrix, sizes + 1)


def packed_floats(column: pa.Array) -> pa.Array:
    """Return floats as MessagePack."""
    matrix = np.empty((len(column), 9), np.uint8)
    matrix[:, 0] = 0xCB
    matrix[:, 1:] = column.to_numpy().astype(">f8").view(np.uint8).reshape(-1, 8)
    return fixed(matrix)


def packed_bools(column: pa.Array) -> pa.Array:
    """Return bools as MessagePack."""
    flags = column.to_numpy(zero_copy_only=False)
    return fixed(np.where(flags, 0xC3, 0xC2).astype(np.uint8).reshape(-1, 1))


def packed_texts(column: pa.Array) -> pa.Array:
    """Return texts as MessagePack.

    >>> packed_texts(pa.array(["a", "b" * 40])).to_pylist()[0]
    b'\\xa1a'
    """
    sizes = Strings.of(column).sizes
    format_ = np.searchsorted(np.array([31, 0xFF, 0xFFFF]), sizes)
    rows = big_endian_rows(sizes)
    rows[:, -1] |= np.where(format_ == 0, 0xA0, 0).astype(np.uint8)
    return joined_rows(
        [_tagged(rows, 0xD8 + format_, _INT_SIZES[format_]), column.cast(pa.binary())]
    )


def packed_bytes(column: pa.Array) -> pa.Array:
    """Return byte strings as MessagePack."""
    sizes = Strings.of(column).sizes
    format_ = np.searchsorted(np.array([0xFF, 0xFFFF]), sizes)
    head = _tagged(big_endian_rows(sizes), 0xC4 + format_, _INT_SIZES[format_ + 1])
    return joined_rows([head, column])


_PACKED: Mapping[pa.DataType, Callable[[pa.Array], pa.Array]] = {
    pa.int64(): packed_ints,
    pa.float64(): packed_floats,
    pa.bool_(): packed_bools,
    pa.string(): packed_texts,
    pa.binary(): packed_bytes,
}

Values = Callable[[pa.Array], Sequence[Any]]
"""Returns the values of a column, for `ENCODER`."""


def packed_values(column: pa.Array, values: Values) -> pa.Array:
    """Return the values of a column without nulls as MessagePack.

    Parameters:
        values: reads columns of other types.
    """
    packed = _PACKED.get(column.type)
    if packed is None:
        return pa.array(list(map(ENCODER.encode, values(column))), pa.binary())
    return packed(column)


def packed_structs(columns: Mapping[str, tuple[pa.Array, Values]]) -> pa.Array:
    """Return structs as MessagePack: maps of the names of fields to their values.

    Parameters:
        columns: of each field, without nulls.
    """
    parts: list[pa.Array | bytes] = []
    # A map begins with its size: the encoding of a map of as many names, without the names.
    names = b"".join([ENCODER.encode(name) + ENCODER.encode(None) for name in columns])
    head = ENCODER.encode(dict.fromkeys(columns))[: -len(names)]
    for name, (column, values) in columns.items():
        parts += [head + ENCODER.encode(name), packed_values(column, values)]
        head = b""
    return joined_rows(parts)
