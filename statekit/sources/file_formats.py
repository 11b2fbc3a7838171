"""Formats of files that sources read: each as batches of rows, with the position after each row.

A position is a number of bytes in a file of lines, after decompression, and a number of rows in
Parquet and Arrow files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from statekit.sources.decoding.csv_decoding import HEADER

Format = Literal["json", "csv", "parquet", "arrow"]

_CHUNK_BYTES = 1 << 20
_CODECS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
"""Compressions by the first bytes of a file."""

_SUFFIXES = {".gz": "gzip", ".gzip": "gzip", ".zst": "zstd", ".zstd": "zstd"}
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_ROWS = 1 << 14
"""Rows of a batch of Parquet."""


class UnreadableFile(ValueError):  # noqa: N818 - becomes a ConnectorError
    """A file is no file of its format, or is truncated."""


class Rows(NamedTuple):
    """Rows of a file.

    Parameters:
        batch: the rows.
        ends: the position after each of them.
    """

    batch: pa.RecordBatch
    ends: Any

    def first(self, count: int) -> Rows:
        """Return the first rows."""
        return Rows(self.batch.slice(0, count), self.ends[:count])

    def after(self, count: int) -> Rows:
        """Return the others."""
        return Rows(self.batch.slice(count), self.ends[count:])

    def until(self, end: int) -> Rows:
        """Return the rows before a position."""
        return self.first(int(np.searchsorted(self.ends, end, side="right")))


Read = Callable[[IO[bytes], str, int, bool], Iterator[Rows]]
"""A function from an open file, its name, a position, and whether a last line without an end is
left out, to the rows after the position.
"""


def decompressed(file: IO[bytes], name: str) -> IO[bytes]:
    """Return the content of a file, decompressed if its first bytes, or its name, say so."""
    first = file.read(4)
    file.seek(0)
    codec = next((of for magic, of in _CODECS.items() if first.startswith(magic)), None)
    by_name = next((of for suffix, of in _SUFFIXES.items() if name.endswith(suffix)), None)
    if codec is None and by_name is not None:
        raise UnreadableFile(f"it is empty or truncated: its name says {by_name}, its bytes do not")
    if codec is None:
        return file
    stream: Any = pa.CompressedInputStream(file, codec)
    return stream  # type: ignore[no-any-return]


def _positioned(file: IO[bytes], name: str, at: int) -> IO[bytes]:
    """Return the decompressed content of a file from a position on."""
    stream = decompressed(file, name)
    if stream is file:
        file.seek(at)
        return file
    while at > 0:
        skipped = len(stream.read(min(at, _CHUNK_BYTES)))
        if not skipped:
            raise UnreadableFile(f"it ends {at:,} bytes before what was read of it")
        at -= skipped
    return stream


# ------------------------------------------------------------------ lines


def read_json(file: IO[bytes], name: str, at: int, only_complete: bool) -> Iterator[Rows]:
    r"""Yield the lines of a file.

    >>> import io
    >>> read = read_json(io.BytesIO(b'{"a":1}\n\n{"a":2}'), "a.jsonl", 0, False)
    >>> [(rows.batch.column("value").to_pylist(), rows.ends.tolist()) for rows in read]
    [([b'{"a":1}\n'], [8]), ([b'{"a":2}'], [16])]
    """
    for lines in _lines(_positioned(file, name, at), at, only_complete, quotes=False):
        yield lines.rows(None)


def read_csv(file: IO[bytes], name: str, at: int, only_complete: bool) -> Iterator[Rows]:
    """Yield the rows of a file with a header. Lines inside of quotes are parts of a row."""
    stream, header = _positioned(file, name, 0), b""
    if at and stream is file:
        first = next(_lines(stream, 0, only_complete, quotes=True), None)
        header = b"" if first is None else first.first_line
        stream.seek(at)
        for lines in _lines(stream, at, only_complete, quotes=True):
            yield lines.rows(header)
        return
    for lines in _lines(stream, 0, only_complete, quotes=True):
        own = lines
        if not header:
            header, own = lines.first_line, lines.after_first()
        rows = own.rows(header)
        if at:
            rows = rows.after(int(np.searchsorted(rows.ends, at, side="right")))
        if rows.batch.num_rows:
            yield rows


@dataclass(frozen=True)
class _Lines:
    """Lines of a file.

    Parameters:
        data: their bytes.
        bounds: the places between them in `data`: the start of the first, and the end of each.
        at: the position of `data`.
    """

    data: bytes
    bounds: Any
    at: int

    @property
    def first_line(self) -> bytes:
        return self.data[self.bounds[0] : self.bounds[1]]

    def after_first(self) -> _Lines:
        return _Lines(self.data, self.bounds[1:], self.at)

    def rows(self, header: bytes | None) -> Rows:
        """Return the lines that are not blank as a batch with the column `value`."""
        bounds = self.bounds.astype(np.int32)
        count = len(bounds) - 1
        buffers = [None, pa.py_buffer(bounds), pa.py_buffer(self.data)]
        value = pa.Array.from_buffers(pa.binary(), count, buffers)
        starts, ends = self.bounds[:-1] + self.at, self.bounds[1:] + self.at
        batch = pa.record_batch([value, pa.array(starts)], names=["value", "__offset_byte"])
        if header is not None:
            batch = batch.replace_schema_metadata({HEADER: header})
        if count and int(np.diff(bounds).min()) <= 2:
            kept = np.array([bool(line.strip()) for line in value.to_pylist()])
            batch, ends = batch.filter(pa.array(kept)), ends[kept]
        return Rows(batch, ends)


def _lines(stream: IO[bytes], at: int, only_complete: bool, *, quotes: bool) -> Iterator[_Lines]:
    """Yield the lines of a stream in parts.

    Parameters:
        at: the position of the stream.
        only_complete: leave out a last line without an end.
        quotes: whether an end of line inside of `"` is a part of the line.
    """
    rest, size = b"", _CHUNK_BYTES
    while chunk := stream.read(size):
        data = rest + chunk
        if at == 0 and len(data) < len(_BYTE_ORDER_MARK):
            rest = data
            continue
        bounds = _line_ends(data, quotes)
        if not len(bounds):
            rest, size = data, 2 * size  # a long line is not copied once for each chunk
            continue
        yield _Lines(data, np.concatenate(([_start(data, at)], bounds)), at)
        rest, size = data[bounds[-1] :], _CHUNK_BYTES
        at += int(bounds[-1])
    if rest and not only_complete:
        start = _start(rest, at)
        if start < len(rest):
            yield _Lines(rest, np.array([start, len(rest)]), at)


def _start(data: bytes, at: int) -> int:
    return len(_BYTE_ORDER_MARK) if at == 0 and data.startswith(_BYTE_ORDER_MARK) else 0


def _line_ends(data: bytes, quotes: bool) -> Any:
    """Return the places after the ends of lines."""
    array = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(array == ord("\n"))
    if quotes and b'"' in data:
        is_inside = np.cumsum(array == ord('"'))[ends] & 1
        ends = ends[is_inside == 0]
    return ends + 1


# ------------------------------------------------------------------ columns


def read_parquet(file: IO[bytes], name: str, at: int, only_complete: bool) -> Iterator[Rows]:
    """Yield the rows of a Parquet file. Row groups before the position are not read."""
    import pyarrow.parquet as pq  # a tenth of a second for those who read no such files

    reader = pq.ParquetFile(file)
    first = 0
    for group in range(reader.num_row_groups):
        count = reader.metadata.row_group(group).num_rows
        if first + count > at:
            batches = reader.iter_batches(batch_size=_ROWS, row_groups=[group])
            yield from _numbered(batches, first, at)
        first += count


def read_arrow(file: IO[bytes], name: str, at: int, only_complete: bool) -> Iterator[Rows]:
    """Yield the rows of an Arrow file, or of a stream of Arrow."""
    import pyarrow.ipc as ipc

    is_file = file.read(6) == b"ARROW1"
    file.seek(0)
    if is_file:
        reader = ipc.open_file(file)
        batches = (reader.get_batch(number) for number in range(reader.num_record_batches))
        yield from _numbered(batches, 0, at)
    else:
        yield from _numbered(iter(ipc.open_stream(file)), 0, at)


def _numbered(batches: Iterator[pa.RecordBatch], first: int, at: int) -> Iterator[Rows]:
    """Yield the rows of batches after a position.

    Parameters:
        first: the position of the first batch.
    """
    for batch in batches:
        numbers = np.arange(first, first + batch.num_rows)
        rows = Rows(batch.append_column("__offset_row", pa.array(numbers)), numbers + 1)
        first += batch.num_rows
        if first > at:
            yield rows.after(max(0, at - (first - batch.num_rows)))


READERS: dict[Format, Read] = {
    "json": read_json,
    "csv": read_csv,
    "parquet": read_parquet,
    "arrow": read_arrow,
}


def of_file(batch: pa.RecordBatch, path: str) -> pa.RecordBatch:
    """Return a batch with the column that says which file it is from."""
    numbers = pa.array(np.zeros(batch.num_rows, np.int32))
    return batch.append_column("__offset_file", pa.DictionaryArray.from_arrays(numbers, [path]))
