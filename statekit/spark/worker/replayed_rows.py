"""Replayed rows: the rows of a shard, which several operators read in turn."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from typing import IO

import pyarrow as pa

from statekit.closing import Closing

_IN_MEMORY_BYTES = 64 * 1024 * 1024


class ReplayedRows(Closing):
    """Batches that can be read several times. Use it in a with block.

    What does not fit into memory is kept in a file without a name, which ends with the process.

    Parameters:
        batches: with the same columns. They are taken while they are read for the first time.
        directory: for the file, on the local disk.
        in_memory_bytes: how much stays in memory.
    """

    def __init__(
        self,
        batches: Iterator[pa.RecordBatch],
        directory: str,
        in_memory_bytes: int = _IN_MEMORY_BYTES,
    ) -> None:
        self._new = batches
        self._directory = directory
        self._left = in_memory_bytes
        self._held: list[pa.RecordBatch] = []
        self._file: IO[bytes] | None = None
        self._writer: pa.RecordBatchStreamWriter | None = None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield all batches from the first on. Read them to the end before they are read again."""
        yield from self._held
        if self._file is not None:
            yield from self._filed()
        for batch in self._new:
            self._keep(batch)
            yield batch

    def _keep(self, batch: pa.RecordBatch) -> None:
        self._left -= batch.nbytes
        if self._left >= 0:
            self._held.append(batch)
            return
        if self._writer is None:
            os.makedirs(self._directory, exist_ok=True)
            self._file = tempfile.TemporaryFile(dir=self._directory)  # noqa: SIM115  see close()
            self._writer = pa.ipc.new_stream(self._file, batch.schema)
        self._writer.write_batch(batch)

    def _filed(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches of the spill file. Called after the file is complete."""
        assert self._file is not None
        assert self._writer is not None
        self._writer.close()
        self._file.seek(0)
        with pa.ipc.open_stream(self._file) as reader:
            yield from reader

    def close(self) -> None:
        """Release memory and disk."""
        self._held = []
        if self._file is not None:
            self._file.close()
