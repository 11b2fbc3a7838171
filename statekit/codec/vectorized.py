"""Vectorized encoding: columns of bytes from many numbers at once."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Sequence
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from statekit.keygroup import SEED, key_group

_SIGN = np.uint64(1 << 63)

_PRIMES = [
    np.uint64(prime)
    for prime in (
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    )
]


def big_endian(values: Iterable[int], count: int) -> list[bytes]:
    """Return 16-bit numbers as two big-endian bytes each.

    >>> big_endian([1, 258], 2)
    [b'\\x00\\x01', b'\\x01\\x02']
    """
    packed: list[bytes] = np.fromiter(values, ">u2", count).view("V2").tolist()
    return packed


def sortable_ints(values: Collection[int]) -> list[bytes]:
    """Return 64-bit ints as eight bytes each, which sort in the order of the ints.

    Raises:
        OverflowError: one has more bits.

    >>> [packed.hex() for packed in sortable_ints([-1, 1])]
    ['7fffffffffffffff', '8000000000000001']
    """
    return sortable_columns(np.fromiter(values, np.int64, len(values)))


def sortable_columns(*columns: npt.NDArray[np.int64]) -> list[bytes]:
    """Return the ints of each row of some columns, eight bytes for each, as `sortable_ints`.

    >>> [packed.hex() for packed in sortable_columns(np.array([-1]), np.array([1]))]
    ['7fffffffffffffff8000000000000001']
    """
    flipped = np.column_stack(columns).view(np.uint64) ^ _SIGN
    packed: list[bytes] = flipped.astype(">u8").view(f"V{8 * len(columns)}").ravel().tolist()
    return packed


def ints_of_sortable(numbers: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return the ints that are stored as unsigned numbers, the inverse of `sortable_ints`.

    >>> ints_of_sortable(np.frombuffer(b"".join(sortable_ints([-1, 1])), ">u8")).tolist()
    [-1, 1]
    """
    return (numbers.astype(np.uint64) ^ _SIGN).view(np.int64)


def numbered(start: bytes, first: int, count: int) -> list[bytes]:
    """Return list positions: a 6-byte epoch, then consecutive 6-byte numbers starting with `first`.

    >>> [packed.hex() for packed in numbered(b"prefix", 255, 2)]
    ['7072656669780000000000ff', '707265666978000000000100']
    """
    numbers = np.arange(first, first + count, dtype=np.int64).astype(">i8")
    rows = np.empty((count, 12), np.uint8)
    rows[:, 4:] = numbers.view(np.uint8).reshape(count, 8)
    rows[:, :6] = np.frombuffer(start, np.uint8)  # overwrites the two zero bytes
    packed: list[bytes] = rows.view("V12").reshape(count).tolist()
    return packed


def key_groups(keys: Sequence[Any], groups: int) -> list[int]:
    """Return the key groups of many keys. Keys that are ints, texts, or tuples of ints, take
    columns.

    Parameters:
        groups: how many key groups there are.

    Raises:
        StateTypeError: one of them cannot be a key.
        OverflowError: an int does not fit 64 bits.

    >>> key_groups([7, 8], 128) == [key_group(7), key_group(8)]
    True
    >>> key_groups(["ada", ""], 128) == [key_group("ada"), key_group("")]
    True
    """
    is_tuple = bool(keys) and set(map(type, keys)) == {tuple} and len(set(map(len, keys))) == 1
    columns: list[Sequence[Any]] = list(zip(*keys, strict=True)) if is_tuple else [keys]
    if columns and all(set(map(type, column)) == {int} for column in columns):
        return key_groups_of_ints(columns, groups)
    if set(map(type, keys)) == {str}:
        with contextlib.suppress(UnicodeEncodeError):  # the loop below says which
            return _key_groups_of_texts(keys, groups)
    return list(map(key_group, keys, repeat(groups)))


def _key_groups_of_texts(keys: Sequence[str], groups: int) -> list[int]:
    hashes = map(xxhash.xxh64_intdigest, map(str.encode, keys), repeat(SEED))
    return _groups_of_hashes(np.fromiter(hashes, np.uint64, len(keys)), groups)


def _groups_of_hashes(hashes: npt.NDArray[np.uint64], groups: int) -> list[int]:
    found: list[int] = (hashes.view(np.int64) % groups).tolist()
    return found


def key_groups_of_ints(columns: Sequence[Sequence[int]], groups: int) -> list[int]:
    """Return the key groups of keys that are ints.

    A hash is XXH64 of eight bytes, with the hash of the field before as its seed
    (https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md).

    Parameters:
        columns: the ints of each field of the keys, in parallel.
        groups: how many key groups there are.

    Raises:
        OverflowError: an int does not fit 64 bits.

    >>> key_groups_of_ints([[7, 8], [-1, 0]], 128) == [key_group((7, -1)), key_group((8, 0))]
    True
    """
    hashed: npt.NDArray[np.uint64] | None = None
    for column in columns:
        hashed = hashes_of_ints(np.fromiter(column, np.int64, len(column)), hashed)
    assert hashed is not None, "a key has a field"
    return _groups_of_hashes(hashed, groups)


def hashes_of_ints(
    column: npt.NDArray[np.int64], seeds: npt.NDArray[np.uint64] | None = None
) -> npt.NDArray[np.uint64]:
    """Return the hashes of ints.

    Parameters:
        column: the ints.
        seeds: the hashes of the fields before; None for the first field.
    """
    one, two, three, four, five = _PRIMES
    hashed: Any = np.full(len(column), SEED, np.uint64) if seeds is None else seeds
    mixed = _rotated(column.view(np.uint64) * two, 31) * one
    hashed = _rotated((hashed + five + np.uint64(8)) ^ mixed, 27) * one + four
    hashed = (hashed ^ (hashed >> np.uint64(33))) * two
    hashed = (hashed ^ (hashed >> np.uint64(29))) * three
    found: npt.NDArray[np.uint64] = hashed ^ (hashed >> np.uint64(32))
    return found


def _rotated(values: npt.NDArray[np.uint64], bits: int) -> npt.NDArray[np.uint64]:
    """Return 64-bit numbers rotated to the left."""
    return (values << np.uint64(bits)) | (values >> np.uint64(64 - bits))
