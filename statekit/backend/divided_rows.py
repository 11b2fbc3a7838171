"""Divided rows: rows that arrive in any order, divided by their key groups on the local disk.

Rows are gathered in memory up to a number of bytes. They are then sorted and appended to a
temporary file, in pieces for each range of key groups and each state, by a thread, while the next
ones are gathered. Reading a range reads its pieces. So any number of rows is divided with the
memory for two parts of them, and each row is written once.

Rows of a range are in no order, or sorted by their row keys if that is asked for. Sorted pieces are
merged in columns: of each piece a few rows are in memory, and of those all up to the smallest of
their last row keys are sorted together. Rows with the same row key are in the order in which they
were added.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statekit.backend.scratch import scratch_directory, written_there

_GATHERED_BYTES = 32 << 20
_PIECE_ROWS = 65_536
_SORTED_PIECE_ROWS = 4096
_ROWS = pa.schema(
    [pa.field("key", pa.binary(), nullable=False), pa.field("value", pa.binary(), nullable=False)]
)


class DividedRows:
    """Rows of ranges of key groups.

    Parameters:
        states: the names of all states that rows may be of.
        ends: the last key group of each range, in order.
        is_sorted: whether rows are read in the order of their row keys.

    Attributes:
        size_bytes: of the keys and values of all rows.

    >>> rows = DividedRows(["sum"], [0, 1], is_sorted=True)
    >>> columns = pa.record_batch({"key": [b"\\0\\1c", b"\\0\\1b"], "value": [b"2", b"1"]})
    >>> rows.add("sum", *(column.cast(pa.binary()) for column in columns.columns))
    >>> [batch["value"].to_pylist() for batch in rows.of("sum", 1)]
    [[b'1', b'2']]
    >>> rows.close()
    """

    def __init__(self, states: Sequence[str], ends: Sequence[int], *, is_sorted: bool = False):
        self._is_sorted = is_sorted
        self._ends = np.array(ends, np.int64)
        self._states = tuple(states)
        self._gathered = self._none_gathered()
        self._gathered_bytes = 0
        self._pieces: dict[str, list[list[_Piece]]] = {
            state: [[] for _ in ends] for state in states
        }
        self._in_memory: dict[str, list[pa.RecordBatch]] = {}
        self._written = 0
        self._writer: pa.ipc.RecordBatchFileWriter | None = None
        self._reader: pa.ipc.RecordBatchFileReader | None = None
        self._closing = contextlib.ExitStack()
        self._path = Path()
        self._thread: ThreadPoolExecutor | None = None
        self._writes: Future[None] | None = None
        self.size_bytes = 0

    def _none_gathered(self) -> dict[str, list[pa.RecordBatch]]:
        return {state: [] for state in self._states}

    def close(self) -> None:
        """Remove the file."""
        if self._thread is not None:
            self._thread.shutdown()
        self._closing.close()

    def add(self, state: str, row_keys: pa.Array, rows: pa.Array) -> None:
        """Add rows of a state.

        Raises:
            StorageError: the local disk is full or failed.
        """
        batch = pa.record_batch([row_keys, rows], schema=_ROWS)
        self._gathered[state].append(batch)
        size = batch.nbytes
        self._gathered_bytes += size
        self.size_bytes += size
        if self._gathered_bytes >= _GATHERED_BYTES:
            self._begin_write()

    def of(self, state: str, range_: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a state in a range, as columns `key` and `value`. No rows may be added
        afterwards.

        Parameters:
            range_: its number.

        Raises:
            StorageError: the local disk is full or failed.
        """
        self._finish()
        if self._reader is None:
            part = self._in_memory[state][range_]
            for start in range(0, part.num_rows, _PIECE_ROWS):
                yield part[start : start + _PIECE_ROWS]
            return
        pieces = self._pieces[state][range_]
        yield from (
            _merged(self._reader, pieces) if self._is_sorted else _joined(self._reader, pieces)
        )

    def _finish(self) -> None:
        """Write the gathered rows, if there is a file, and open it."""
        if self._reader is not None or self._in_memory:
            return
        if self._thread is None:
            self._in_memory = {state: self._divided(of) for state, of in self._gathered.items()}
            self._gathered = self._none_gathered()
            return
        self._begin_write()
        self._end_write()
        assert self._writer is not None, "rows were written"
        with written_there():
            self._writer.close()
            # Not mapped: the pages that were read would count as memory of this process.
            file = self._closing.enter_context(pa.OSFile(str(self._path)))
            self._reader = pa.ipc.open_file(file)

    def _divided(self, gathered: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """Return gathered rows of a state, for each range."""
        rows = pa.concat_batches(gathered) if gathered else pa.RecordBatch.from_pylist([], _ROWS)
        groups = groups_of_keys(rows.column("key"))
        if self._is_sorted:
            order = pc.array_sort_indices(rows.column("key")).to_numpy()
        else:
            order = np.argsort(groups, kind="stable")
        ordered = rows.take(pa.array(order))
        bounds = [0, *np.searchsorted(groups[order], self._ends, "right").tolist()]
        return [ordered[start:end] for start, end in pairwise(bounds)]

    def _begin_write(self) -> None:
        """Have the thread append the gathered rows to the file, after those before."""
        self._end_write()
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "statekit rows")
        gathered, self._gathered = self._gathered, self._none_gathered()
        self._gathered_bytes = 0
        self._writes = self._thread.submit(self._write, gathered)

    def _end_write(self) -> None:
        """Wait until all that was begun is in the file.

        Raises:
            StorageError: the local disk is full or failed.
        """
        writes, self._writes = self._writes, None
        if writes is not None:
            writes.result()

    def _write(self, gathered: Mapping[str, Sequence[pa.RecordBatch]]) -> None:
        """Append gathered rows to the file."""
        for state, batches in gathered.items():
            for range_, part in enumerate(self._divided(batches) if batches else ()):
                if part.num_rows:
                    self._pieces[state][range_].append(self._append(part))

    def _append(self, part: pa.RecordBatch) -> _Piece:
        size = _SORTED_PIECE_ROWS if self._is_sorted else part.num_rows
        starts = range(0, part.num_rows, size)
        with written_there():
            if self._writer is None:
                directory = self._closing.enter_context(scratch_directory("rewrite"))
                self._path = directory / "rows.arrow"
                self._writer = pa.ipc.new_file(str(self._path), _ROWS)
                self._closing.callback(self._writer.close)
            for start in starts:
                self._writer.write_batch(part[start : start + size])
        first, self._written = self._written, self._written + len(starts)
        return _Piece(first, self._written)


class _Piece(NamedTuple):
    """Rows that were written together.

    Parameters:
        first: the number of its first record batch in the file.
        end: the number after that of the last one.
    """

    first: int
    end: int


def groups_of_keys(row_keys: pa.Array) -> npt.NDArray[np.uint16]:
    """Return the key group of each row key: its first two bytes.

    >>> groups_of_keys(pa.array([bytes([1, 2, 9]), bytes([0, 7])], pa.binary())).tolist()
    [258, 7]
    """
    first = pc.binary_slice(row_keys, 0, 2).cast(pa.binary(2))
    packed: npt.NDArray[np.uint16] = np.frombuffer(first.buffers()[1], ">u2")[: len(first)]
    return packed.astype(np.uint16)


def _joined(
    reader: pa.ipc.RecordBatchFileReader, pieces: Sequence[_Piece]
) -> Iterator[pa.RecordBatch]:
    """Yield pieces of the file, with small ones joined."""
    joined: list[pa.RecordBatch] = []
    count = 0
    for piece in pieces:
        with written_there():
            joined += [reader.get_batch(number) for number in range(*piece)]
        count += joined[-1].num_rows
        if count >= _PIECE_ROWS:
            yield pa.concat_batches(joined)
            joined, count = [], 0
    if joined:
        yield pa.concat_batches(joined)


def _merged(
    reader: pa.ipc.RecordBatchFileReader, pieces: Sequence[_Piece]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of sorted pieces in the order of their row keys, and of the pieces."""
    runs = [_Run(reader, piece) for piece in pieces]
    while runs := [run for run in runs if not run.is_empty]:
        # Rows of this row key and of later ones may follow in the file.
        bound = min((run.last for run in runs if run.has_more), default=None)
        batch = pa.concat_batches([run.taken(bound) for run in runs])
        if batch.num_rows:
            yield batch.take(pc.array_sort_indices(batch.column("key")))
        elif bound is not None:
            for run in runs:
                yield from run.of(bound)


class _Run:
    """The rows of a sorted piece that are not merged yet.

    Parameters:
        reader: the file.
        piece: the piece.
    """

    def __init__(self, reader: pa.ipc.RecordBatchFileReader, piece: _Piece) -> None:
        self._reader, self._end = reader, piece.end
        self._next = piece.first
        self._rows: pa.RecordBatch
        self._read()

    @property
    def is_empty(self) -> bool:
        """True if all rows are merged."""
        return not self._rows.num_rows

    @property
    def has_more(self) -> bool:
        """True if there are rows that are not in memory."""
        return self._next < self._end

    @property
    def last(self) -> bytes:
        """The last row key in memory."""
        last: bytes = self._rows.column("key")[-1].as_py()
        return last

    def taken(self, bound: bytes | None) -> pa.RecordBatch:
        """Return the rows in memory before a row key, and remove them.

        Parameters:
            bound: the row key; None for all rows.
        """
        count = self._rows.num_rows
        return self._cut(count if bound is None else bisect_left(_Keys(self._rows), bound))

    def of(self, row_key: bytes) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a row key, which is the first one, and remove them. There may be more
        than fit in memory.
        """
        while count := bisect_right(_Keys(self._rows), row_key):
            yield self._cut(count)

    def _cut(self, count: int) -> pa.RecordBatch:
        rows, self._rows = self._rows[:count], self._rows[count:]
        if not self._rows.num_rows and self.has_more:
            self._read()
        return rows

    def _read(self) -> None:
        with written_there():
            self._rows = self._reader.get_batch(self._next)
        self._next += 1


class _Keys(Sequence[bytes]):
    """The row keys of rows, for a binary search."""

    def __init__(self, rows: pa.RecordBatch) -> None:
        self._keys = rows.column("key")

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, at: Any) -> Any:
        return self._keys[at].as_py()
