"""Binary columns: byte strings of many rows in one Arrow array, made and hashed by NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

Matrix = npt.NDArray[np.uint8]
"""A row of bytes for each string."""

Sizes = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]

_BINARY = pa.binary()
_SIGN = np.int64(-(1 << 63))
_WORD_BYTES = 8
_HASHED_BYTES_MAX = 1024
"""Longer strings are hashed one by one: NumPy takes a step for each word of the longest one."""
_SEEDS = np.uint64(0x9E3779B185EBCA87), np.uint64(0xD6E8FEB86659FD93)
_PRIME = np.uint64(0xC2B2AE3D27D4EB4F)
_HALF = np.uint64(32)


def fixed(matrix: Matrix) -> pa.Array:
    """Return the rows of a matrix as strings of the same size.

    >>> fixed(np.array([[1, 2], [3, 4]], np.uint8)).to_pylist()
    [b'\\x01\\x02', b'\\x03\\x04']
    """
    count, width = matrix.shape
    bounds = np.arange(0, (count + 1) * width, width) if width else np.zeros(count + 1, np.int64)
    return _array(bounds, np.ascontiguousarray(matrix))


def row_ends(matrix: Matrix, sizes: Sizes) -> pa.Array:
    """Return the last bytes of each row of a matrix.

    Parameters:
        sizes: how many bytes of each row.

    >>> row_ends(np.array([[1, 2], [3, 4]], np.uint8), np.array([1, 2])).to_pylist()
    [b'\\x02', b'\\x03\\x04']
    """
    count, width = matrix.shape
    bounds = np.zeros(count + 1, np.int64)
    np.cumsum(sizes, out=bounds[1:])
    return _array(bounds, matrix[np.arange(width) >= (width - sizes)[:, None]])


def _array(bounds: Sizes, data: Matrix) -> pa.Array:
    buffers = [None, pa.py_buffer(bounds.astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(_BINARY, len(bounds) - 1, buffers)


def big_endian_rows(numbers: npt.NDArray[np.int64]) -> Matrix:
    """Return the eight bytes of each number, the most significant one first."""
    return numbers.astype(">i8").view(np.uint8).reshape(-1, 8)


def sortable_bytes(numbers: npt.NDArray[np.int64]) -> Matrix:
    """Return the eight bytes of each number, which sort in the order of the numbers."""
    return big_endian_rows(numbers ^ _SIGN)


def joined_rows(parts: Sequence[pa.Array | bytes]) -> pa.Array:
    """Return the strings of several columns, joined row by row.

    Parameters:
        parts: columns, and bytes that are the same in each row.

    Raises:
        ArrowException: they are longer than 2 GB together.

    >>> joined_rows([pa.array([b"a", b"b"]), b"-"]).to_pylist()
    [b'a-', b'b-']
    """
    if len(parts) == 1 and not isinstance(parts[0], bytes):
        return parts[0]
    given = [pa.scalar(part, _BINARY) if isinstance(part, bytes) else part for part in parts]
    between = pa.scalar(b"", _BINARY)
    return pc.binary_join_element_wise(*given, between)


class Strings(NamedTuple):
    """The buffers of a binary or text column.

    Parameters:
        starts: the offset of each string, and the end of the last one.
        data: the bytes.
    """

    starts: npt.NDArray[np.int32]
    data: npt.NDArray[np.uint8]

    @classmethod
    def of(cls, column: pa.Array) -> Strings:
        """Return the buffers of a column, which has no nulls."""
        _, offsets, data = column.buffers()
        if not len(column):
            return cls(np.zeros(1, np.int32), np.empty(0, np.uint8))
        starts = np.frombuffer(offsets, np.int32, len(column) + 1, 4 * column.offset)
        content = np.frombuffer(b"" if data is None else data, np.uint8)
        return cls(starts, content)

    @property
    def sizes(self) -> Sizes:
        """The size of each string in bytes."""
        return np.diff(self.starts).astype(np.int64)

    @property
    def own_data(self) -> npt.NDArray[np.uint8]:
        """The bytes of these strings alone."""
        return self.data[self.starts[0] : self.starts[-1]]


def hashes(column: pa.Array, *, skip: int = 0, second: bool = False) -> Hashes:
    """Return a hash of 64 bits of each string. It is not stored anywhere.

    Parameters:
        column: binary, without nulls.
        skip: leave out so many bytes at the start of each string.
        second: return another hash.

    >>> column, longer = pa.array([b"key"]), pa.array([b"--key"])
    >>> hashes(column).tolist() == hashes(longer, skip=2).tolist()
    True
    """
    strings = Strings.of(column)
    own = np.concatenate((strings.own_data, np.zeros(_WORD_BYTES, np.uint8)))
    starts = strings.starts[:-1].astype(np.int64) - int(strings.starts[0]) + skip
    sizes = np.maximum(strings.sizes - skip, 0)
    seed = _SEEDS[second]
    found = (sizes.astype(np.uint64) + seed) * _PRIME
    # A word at every byte of the data: NumPy then fetches one of each string in one call.
    words = np.ndarray((len(own) - _WORD_BYTES + 1,), "<u8", own, strides=(1,))
    short = np.where(sizes > _HASHED_BYTES_MAX, 0, sizes)
    for place in range(0, int(short.max(initial=0)), _WORD_BYTES):
        left = short - place
        if (left > 0).all():
            found = _mixed(found, _cut(words[starts + place], left), seed)
        else:
            at = np.flatnonzero(left > 0)
            found[at] = _mixed(found[at], _cut(words[starts[at] + place], left[at]), seed)
    for long in np.flatnonzero(sizes > _HASHED_BYTES_MAX).tolist():
        data = own[starts[long] : starts[long] + sizes[long]].tobytes()
        found[long] = xxhash.xxh3_64_intdigest(data, int(seed))
    return found


def _cut(words: Hashes, left: Sizes) -> Hashes:
    """Return words without the bytes behind the end of their strings."""
    if left.min(initial=_WORD_BYTES) >= _WORD_BYTES:
        return words.astype(np.uint64)
    unused = np.maximum(_WORD_BYTES - left, 0).astype(np.uint64) * np.uint64(8)
    cut: Hashes = (words.astype(np.uint64) << unused) >> unused
    return cut


def _mixed(found: Hashes, words: Hashes, seed: np.uint64) -> Hashes:
    """Return hashes that include one more word of each string."""
    found = (found ^ words) * seed
    return (found ^ (found >> _HALF)) * _PRIME
