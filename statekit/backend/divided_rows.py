"""Divided rows: rows that arrive in any order, divided by their key groups on the local disk.

Rows are gathered in memory up to a number of bytes. They are then sorted by key group and appended
to a temporary file, in one piece for each range of key groups. Reading a range reads its pieces. So
any number of rows is divided with the memory for one part of them, and each row is written once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statekit.backend.change_file import CHANGES_SCHEMA, mutation_columns
from statekit.backend.mutation import Batch
from statekit.backend.scratch import scratch_directory
from statekit.errors import StorageError

_GATHERED_BYTES = 64 << 20
_PIECE_ROWS = 65_536


class _Piece(NamedTuple):
    """Rows of one range in the file.

    Parameters:
        number: of the record batch.
        rows: how many there are.
    """

    number: int
    rows: int


class DividedRows:
    """Rows of ranges of key groups.

    Parameters:
        states: the names of all states that rows may be of.
        ends: the last key group of each range, in order.
    """

    def __init__(self, states: Sequence[str], ends: Sequence[int]) -> None:
        self._codes = {name: code for code, name in enumerate(states)}
        self._names = pa.array(list(states), pa.string())
        self._ends = np.array(ends, np.int64)
        self._gathered: list[pa.RecordBatch] = []
        self._gathered_bytes = 0
        self._pieces: list[list[_Piece]] = [[] for _ in ends]
        self._written = 0
        self._writer: pa.ipc.RecordBatchFileWriter | None = None
        self._closing = contextlib.ExitStack()
        self._path = Path()
        self.size_bytes = 0
        """Bytes of the keys and values of all rows."""

    def close(self) -> None:
        """Remove the file."""
        self._closing.close()

    def add(self, batch: Batch) -> None:
        """Add the rows of a batch.

        Raises:
            StorageError: the local disk is full or failed.
        """
        self._gathered.append(mutation_columns(batch, self._codes, self._names))
        self._gathered_bytes += batch.size_bytes
        self.size_bytes += batch.size_bytes
        if self._gathered_bytes >= _GATHERED_BYTES:
            self._write()

    def ranges(self) -> Iterator[Iterator[pa.RecordBatch]]:
        """Yield the rows of each range, in order, as columns of a change file. No rows may be added
        afterwards.

        Raises:
            StorageError: the local disk is full or failed.
        """
        if self._writer is None:  # all rows are in memory
            parts = self._divided()
            yield from (iter([part] if part.num_rows else []) for part in parts)
            return
        self._write()
        with _on_disk():
            self._writer.close()
            file = self._closing.enter_context(pa.memory_map(str(self._path)))
            reader = pa.ipc.open_file(file)
        for pieces in self._pieces:
            yield _joined(reader, pieces)

    def _divided(self) -> list[pa.RecordBatch]:
        """Return the gathered rows of each range, sorted by key group."""
        if not self._gathered:
            return [pa.RecordBatch.from_pylist([], CHANGES_SCHEMA) for _ in self._ends]
        rows = pa.concat_batches(self._gathered)
        self._gathered, self._gathered_bytes = [], 0
        groups = groups_of_keys(rows.column("key"))
        order = np.argsort(groups, kind="stable")
        ordered = rows.take(pa.array(order))
        bounds = [0, *np.searchsorted(groups[order], self._ends, "right").tolist()]
        return [ordered[start:end] for start, end in pairwise(bounds)]

    def _write(self) -> None:
        """Append the gathered rows to the file."""
        parts = self._divided()
        with _on_disk():
            if self._writer is None:
                directory = self._closing.enter_context(scratch_directory("rewrite"))
                self._path = directory / "rows.arrow"
                self._writer = pa.ipc.new_file(str(self._path), CHANGES_SCHEMA)
                self._closing.callback(self._writer.close)
            for pieces, part in zip(self._pieces, parts, strict=True):
                if part.num_rows:
                    self._writer.write_batch(part)
                    pieces.append(_Piece(self._written, part.num_rows))
                    self._written += 1


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
        with _on_disk():
            joined.append(reader.get_batch(piece.number))
        count += piece.rows
        if count >= _PIECE_ROWS:
            yield pa.concat_batches(joined)
            joined, count = [], 0
    if joined:
        yield pa.concat_batches(joined)


@contextlib.contextmanager
def _on_disk() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"cannot write rows to a temporary file: {error}. Nothing committed is lost: make "
            "space there or set TMPDIR, then start again"
        ) from error
