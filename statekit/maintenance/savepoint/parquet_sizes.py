"""The unpacked size of Parquet pages, computed before they are read.

A small Parquet file, like a small Arrow file (`arrow_sizes`), can request all memory. The sizes in
a file's footer do not prevent that, because no reader checks them. Each page has a header with its
compressed and unpacked size, and Arrow unpacks exactly that much.

Source: https://github.com/apache/parquet-format, `PageHeader` in parquet.thrift, and the compact
protocol of Thrift.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, NamedTuple

import pyarrow.parquet as pq

UNPACKED_BYTES_MAX = (2 << 30) + (64 << 20)
"""The largest unpacked row group: one row of 2 GiB, with other rows."""

_BATCH_ROWS_MAX = 65_536
_HEADER_BYTES_MAX = 1 << 20
_DICTIONARY_PAGE = 2

_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = 1, 2, 3, 7, 8, 9, 10, 11, 12
_VARINTS = (4, 5, 6)


def batch_rows(file: IO[bytes], metadata: pq.FileMetaData) -> int:
    """Return the number of rows of a file that may be read at a time.

    A value of a dictionary is repeated for each row that has it, so the largest dictionary decides.

    Parameters:
        file: readable and seekable.
        metadata: its footer.

    Raises:
        ValueError: a row group exceeds `UNPACKED_BYTES_MAX`, or a page has no header.
    """
    largest = 1
    for group in range(metadata.num_row_groups):
        columns = [metadata.row_group(group).column(at) for at in range(metadata.num_columns)]
        unpacked = 0
        for page in (page for column in columns for page in _pages(file, column)):
            unpacked += page.unpacked
            if page.kind == _DICTIONARY_PAGE:
                largest = max(largest, page.unpacked)
        if unpacked > UNPACKED_BYTES_MAX:
            raise ValueError(
                f"a row group takes {unpacked:,} bytes unpacked, more than {UNPACKED_BYTES_MAX:,}"
            )
    return max(1, min(_BATCH_ROWS_MAX, UNPACKED_BYTES_MAX // largest))


class _Page(NamedTuple):
    kind: int
    unpacked: int
    packed: int


def _pages(file: IO[bytes], column: pq.ColumnChunkMetaData) -> Iterator[_Page]:
    first = column.data_page_offset
    if column.has_dictionary_page:
        first = min(first, column.dictionary_page_offset)
    at, end = first, first + column.total_compressed_size
    while at < end:
        if at < 0:
            raise ValueError(f"a column of it begins at {at}")
        file.seek(at)
        reader = _Compact(file.read(_HEADER_BYTES_MAX))
        numbers = reader.struct()
        page = _Page(*(numbers.get(field, -1) for field in (1, 2, 3)))
        if min(page) < 0:
            raise ValueError(f"the page at {at} has no size")
        yield page
        at += reader.at + page.packed


class _Compact:
    """Reads values in Thrift's compact protocol. From structs it reads the leading numbers."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def struct(self, depth: int = 0) -> dict[int, int]:
        """Return the numbers in a struct by their field ids, and skip all other fields."""
        numbers: dict[int, int] = {}
        field = 0
        while head := self._byte():
            field = field + (head >> 4) if head >> 4 else self._signed()
            kind = head & 0x0F
            if kind in _VARINTS:
                numbers[field] = self._signed()
            elif kind not in (_TRUE, _FALSE):
                self._skip(kind, depth + 1)
        return numbers

    def _skip(self, kind: int, depth: int) -> None:
        if depth > 16:
            raise ValueError("a header is nested too deep")
        if kind in _VARINTS:
            self._varint()
        elif kind in (_TRUE, _FALSE, _BYTE):
            self.at += 1
        elif kind == _DOUBLE:
            self.at += 8
        elif kind == _BINARY:
            size = self._varint()  # which moves `at`, too
            self.at += size
        elif kind == _STRUCT:
            self.struct(depth)
        elif kind in (_LIST, _SET):
            head = self._byte()
            self._skip_all([head & 0x0F], head >> 4 if head >> 4 < 15 else self._varint(), depth)
        elif kind == _MAP:
            size = self._varint()
            head = self._byte() if size else 0
            self._skip_all([head >> 4, head & 0x0F], size, depth)
        else:
            raise ValueError(f"a header has a value of kind {kind}")

    def _skip_all(self, kinds: list[int], size: int, depth: int) -> None:
        for _ in range(size):
            if self.at > len(self._data):
                raise ValueError("a header is cut short")
            for kind in kinds:
                self._skip(kind, depth + 1)

    def _byte(self) -> int:
        if self.at >= len(self._data):
            raise ValueError("a header is cut short")
        self.at += 1
        return self._data[self.at - 1]

    def _varint(self) -> int:
        result = shift = 0
        while True:
            byte = self._byte()
            result |= (byte & 0x7F) << shift
            if byte < 0x80:
                return result
            shift += 7
            if shift > 63:
                raise ValueError("a header has a number of more than 64 bits")

    def _signed(self) -> int:
        number = self._varint()
        return (number >> 1) ^ -(number & 1)
