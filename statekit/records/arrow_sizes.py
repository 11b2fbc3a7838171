"""The unpacked size of the batches of an Arrow file, computed before they are read.

A compressed buffer states its unpacked size, and Arrow allocates that much before it unpacks.
Zeros compress to a ten-thousandth, so a small file can ask for more memory than there is. Arrow has
no limit to set, so the sizes are checked before Arrow reads the file.

Source: https://arrow.apache.org/docs/format/Columnar.html and the flatbuffers File.fbs and
Message.fbs beside it. A table of a flatbuffer begins with the offset of its vtable, which has the
offset of each field, 0 for one that is absent.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import IO, Any

import pyarrow as pa

UNPACKED_BYTES_MAX = (2 << 30) + (64 << 20)
"""The largest batch. Offsets of 32 bits allow 2 GiB of values; keys need some more space."""

_MAGIC = b"ARROW1"
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3


def check_unpacked(file: IO[bytes] | pa.NativeFile) -> None:
    """Check the unpacked size of each batch of an Arrow file. The file is left at its start.

    Parameters:
        file: readable and seekable.

    Raises:
        ValueError: a batch takes more than `UNPACKED_BYTES_MAX`, or it is not an Arrow file.
    """
    try:
        for offset, size in _blocks(file):
            unpacked = sum(_unpacked_sizes(file, offset, size))
            if unpacked > UNPACKED_BYTES_MAX:
                raise ValueError(
                    f"a batch takes {unpacked:,} bytes unpacked, more than {UNPACKED_BYTES_MAX:,}"
                )
    except (struct.error, IndexError) as error:
        raise ValueError(f"its metadata cannot be read: {error}") from None
    file.seek(0)


class _Table:
    """A table of a flatbuffer. Fields are read by number."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at
        self._vtable = at - _number(data, "<i", at)

    def _field(self, number: int) -> int | None:
        """Return the offset of a field; None if it is absent."""
        place = 4 + 2 * number
        if place >= _number(self._data, "<H", self._vtable):
            return None
        offset = _number(self._data, "<H", self._vtable + place)
        return self._at + offset if offset else None

    def number(self, field: int, form: str) -> int:
        place = self._field(field)
        return 0 if place is None else _number(self._data, form, place)

    def table(self, field: int) -> _Table | None:
        place = self._field(field)
        return None if place is None else _Table(self._data, self._target(place))

    def structs(self, field: int, form: str) -> Iterator[tuple[Any, ...]]:
        """Yield the elements of a vector of structs."""
        place = self._field(field)
        if place is None:
            return
        start = self._target(place)
        for number in range(_number(self._data, "<I", start)):
            yield struct.unpack_from(form, self._data, start + 4 + number * struct.calcsize(form))

    def _target(self, place: int) -> int:
        return place + _number(self._data, "<I", place)


def _number(data: bytes, form: str, at: int) -> int:
    if at < 0:
        raise IndexError(f"an offset points to {at}")
    number: int = struct.unpack_from(form, data, at)[0]
    return number


def _root(data: bytes) -> _Table:
    return _Table(data, _number(data, "<I", 0))


def _blocks(file: IO[bytes] | pa.NativeFile) -> Iterator[tuple[int, int]]:
    """Return offset and length of the metadata of each dictionary and batch."""
    end = file.seek(0, os.SEEK_END)
    tail = 4 + len(_MAGIC)
    size, magic = struct.unpack(f"<i{len(_MAGIC)}s", _read(file, end - tail, tail))
    if magic != _MAGIC or not 0 < size <= end - tail:
        raise ValueError("it does not end as an Arrow file does")
    footer = _root(_read(file, end - tail - size, size))
    for field in (2, 3):  # dictionaries, batches
        for offset, length, _body in footer.structs(field, "<qi4xq"):
            if not 0 <= offset <= offset + length <= end:
                raise ValueError(f"a block of it begins at {offset}")
            yield offset, length


def _unpacked_sizes(file: IO[bytes] | pa.NativeFile, offset: int, size: int) -> Iterator[int]:
    """Yield the unpacked size of each buffer of a message."""
    metadata = _read(file, offset, size)
    is_marked = metadata[:4] == b"\xff\xff\xff\xff"  # files of old versions lack the mark
    message = _root(metadata[8 if is_marked else 4 :])
    kind, batch = message.number(1, "<B"), message.table(2)
    if kind == _DICTIONARY_BATCH and batch is not None:
        batch = batch.table(1)
    if kind not in (_DICTIONARY_BATCH, _RECORD_BATCH) or batch is None:
        raise ValueError(f"a message of it is of kind {kind}")
    is_compressed = batch.table(3) is not None
    for start, length in batch.structs(2, "<qq"):
        yield length
        if is_compressed and length >= 8:
            yield max(0, _number(_read(file, offset + size + start, 8), "<q", 0))


def _read(file: IO[bytes] | pa.NativeFile, at: int, size: int) -> bytes:
    if at < 0 or size < 0:
        raise IndexError(f"an offset points to {at}")
    file.seek(at)
    return bytes(file.read(size))
