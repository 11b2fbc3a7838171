"""Vectorized encoding: columns of bytes from many numbers at once."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np


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
    signed = np.fromiter(values, np.int64, len(values))
    flipped = signed.view(np.uint64) ^ np.uint64(1 << 63)
    packed: list[bytes] = flipped.astype(">u8").view("V8").tolist()
    return packed


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
