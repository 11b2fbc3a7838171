"""Packed bytes: byte strings in one buffer. One NumPy call reads the same part of all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Offsets = npt.NDArray[np.int64]
"""An offset in the buffer for each string."""

_PADDING = bytes(16)
"""Zeros after the last string: it may be read beyond its end, before the end is checked."""


class PackedBytes:
    """Byte strings in one buffer, one after the other.

    Attributes:
        data: the bytes of all strings, and some zeros.
        starts, ends: the offsets of each string.

    >>> packed = PackedBytes([b"ab", b"c"])
    >>> packed.slices(packed.starts, packed.ends).to_pylist()
    [b'ab', b'c']
    """

    def __init__(self, strings: Sequence[bytes]) -> None:
        self.data = b"".join([*strings, _PADDING])
        self._bytes = np.frombuffer(self.data, np.uint8)
        sizes = np.fromiter(map(len, strings), np.int64, len(strings))
        self.ends: Offsets = np.cumsum(sizes)
        self.starts: Offsets = self.ends - sizes

    def numbers(self, at: Offsets, kind: str) -> npt.NDArray[Any]:
        """Return the number, or the bytes of a fixed size, at each offset.

        Parameters:
            kind: a NumPy type, such as ">u8".

        Raises:
            IndexError: an offset is outside of the buffer.
        """
        size = np.dtype(kind).itemsize
        # A view with a number at every byte: numpy then fetches the wanted ones in one call.
        view = np.ndarray((len(self.data) - size + 1,), kind, self.data, strides=(1,))
        return view[at]

    def slices(self, starts: Offsets, ends: Offsets) -> pa.Array:
        """Return the bytes between offsets as an Arrow array."""
        sizes = np.maximum(ends - starts, 0)
        bounds = np.zeros(len(sizes) + 1, np.int64)
        np.cumsum(sizes, out=bounds[1:])
        places = np.repeat(starts - bounds[:-1], sizes) + np.arange(bounds[-1])
        buffers = [None, pa.py_buffer(bounds.astype(np.int32)), pa.py_buffer(self._bytes[places])]
        return pa.Array.from_buffers(pa.binary(), len(sizes), buffers)

    def ends_of_text(self, starts: Offsets) -> tuple[Offsets, bool]:
        """Return the end of each text that begins at an offset, before its two zeros.

        Also return whether any text contains a zero, which is escaped.

        Raises:
            ValueError: a text does not end within its string.
            IndexError: an offset is outside of the buffer.
        """
        ends = self._zero_pairs[np.searchsorted(self._zero_pairs, starts)]
        if (ends >= self.ends[np.searchsorted(self.ends, starts, "right")]).any():
            raise ValueError("it is cut off")
        first_zeros = self._zeros[np.searchsorted(self._zeros, starts)]
        return ends, bool((first_zeros < ends).any())

    @cached_property
    def _zeros(self) -> Offsets:
        return np.flatnonzero(self._bytes == 0)

    @cached_property
    def _zero_pairs(self) -> Offsets:
        zeros = self._zeros
        pairs: Offsets = zeros[:-1][np.diff(zeros) == 1]
        return pairs


class RowBatch(NamedTuple):
    """Rows of one state, in the order of their keys.

    Parameters:
        keys: row keys; of operator state the part after the prefix of the shard.
        rows: as stored.
        shards: of operator state, the shard of each row; None for keyed state.
    """

    keys: list[bytes]
    rows: list[bytes]
    shards: list[int] | None = None

    def divided(self, count: int) -> tuple[RowBatch, RowBatch]:
        """Return the first `count` rows, and the other rows.

        >>> RowBatch([b"a", b"b"], [b"1", b"2"]).divided(1)[1]
        RowBatch(keys=[b'b'], rows=[b'2'], shards=None)
        """
        keys, rows, shards = self
        first = RowBatch(keys[:count], rows[:count], shards and shards[:count])
        return first, RowBatch(keys[count:], rows[count:], shards and shards[count:])

    def extend(self, batch: RowBatch) -> None:
        """Add the rows of another batch of the same state."""
        self.keys.extend(batch.keys)
        self.rows.extend(batch.rows)
        if self.shards is not None:
            self.shards.extend(batch.shards or ())

    @property
    def size(self) -> int:
        """Size of the row keys and rows, in bytes."""
        return sum(map(len, self.keys)) + sum(map(len, self.rows))

    def where(self, keep: npt.NDArray[np.bool_]) -> RowBatch:
        """Return the rows for which `keep` is True.

        >>> RowBatch([b"a", b"b"], [b"1", b"2"]).where(np.array([False, True])).keys
        [b'b']
        """
        places = np.flatnonzero(keep).tolist()
        return RowBatch(
            [self.keys[place] for place in places],
            [self.rows[place] for place in places],
            None if self.shards is None else [self.shards[place] for place in places],
        )


class RowColumns(NamedTuple):
    """Rows of one keyed state as Arrow columns.

    Parameters:
        keys: row keys, binary without nulls.
        rows: as stored, binary without nulls.

    >>> RowColumns.of([b"a", b"b"], [b"1", b"2"]).where(np.array([False, True])).keys.to_pylist()
    [b'b']
    """

    keys: pa.Array
    rows: pa.Array

    @classmethod
    def of(cls, keys: Sequence[bytes], rows: Sequence[bytes]) -> RowColumns:
        """Return rows of lists as columns."""
        return cls(pa.array(keys, pa.binary()), pa.array(rows, pa.binary()))

    def where(self, keep: npt.NDArray[np.bool_]) -> RowColumns:
        """Return the rows for which `keep` is True."""
        mask = pa.array(keep)
        return RowColumns(self.keys.filter(mask), self.rows.filter(mask))

    def divided(self, count: int) -> tuple[RowColumns, RowColumns]:
        """Return the first `count` rows, and the other rows."""
        first = RowColumns(self.keys[:count], self.rows[:count])
        return first, RowColumns(self.keys[count:], self.rows[count:])

    @classmethod
    def joined(cls, parts: Sequence[RowColumns]) -> RowColumns:
        """Return the rows of several columns, one after the other."""
        if len(parts) == 1:
            return parts[0]
        keys, rows = zip(*parts, strict=True) if parts else ((), ())
        nothing = pa.array([], pa.binary())
        return cls(pa.concat_arrays([nothing, *keys]), pa.concat_arrays([nothing, *rows]))


_STEP_ROWS = 256


def row_batches(
    rows: Iterator[tuple[bytes, bytes]], *, rows_max: int = 65_536, bytes_max: int = 16 << 20
) -> Iterator[RowBatch]:
    """Yield rows in batches of bounded size.

    Parameters:
        rows: row keys and rows.
        rows_max: the number of rows of a batch.
        bytes_max: a batch ends at this number of bytes, or a few hundred rows later.

    >>> [batch.keys for batch in row_batches(iter([(b"a", b"1"), (b"b", b"2")]), rows_max=1)]
    [[b'a'], [b'b']]
    """
    keys, values, size, step = list[bytes](), list[bytes](), 0, 1
    while piece := list(islice(rows, min(step, rows_max - len(keys)))):
        new_rows = [row for _, row in piece]
        keys += [key for key, _ in piece]
        values += new_rows
        size_of_piece = sum(map(len, new_rows))
        size += size_of_piece
        step = min(2 * step, _STEP_ROWS) if size_of_piece < bytes_max // 16 else 1
        if len(keys) >= rows_max or size >= bytes_max:
            yield RowBatch(keys, values)
            keys, values, size = [], [], 0
    if keys:
        yield RowBatch(keys, values)
