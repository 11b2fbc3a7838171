"""Sinks of files in a directory or an object store, with each epoch exactly once."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import IO, TYPE_CHECKING

from statekit.checkpoint.store import Store, in_parallel
from statekit.clock import unique_id
from statekit.errors import RestoreError
from statekit.records.rebatch import rebatched
from statekit.sinks.sink import Attempt, EpochRanges, Part, Receipt, Sink

if TYPE_CHECKING:
    import pyarrow as pa

_STAGED = "_statekit"
"""The folder of files that are not published yet. Readers of Parquet leave out such names."""

_PUBLISHED = re.compile(r"epoch-(\d{20})-")

_GROUP_ROWS = 1 << 20
_GROUP_BYTES = 64 << 20
"""The size of a row group of Parquet in memory: large enough to compress well."""

_SPOOL_BYTES_MAX = 32 << 20
"""Files up to this size are kept in memory until they are stored."""


@dataclass(frozen=True)
class Parquet(Sink):
    """Parquet files under `path`, with each epoch exactly once. See `parquet`."""

    path: str

    @property
    def directory(self) -> str:
        return self.path.rstrip("/")

    @cached_property
    def _store(self) -> Store:
        return Store(self.path, drafts=_STAGED)

    def __getstate__(self) -> dict[str, str]:
        return {"path": self.path}  # each process opens the directory itself

    def open(self, attempt: Attempt) -> None:
        if not attempt.is_first:
            return
        self._check_no_later_epoch(attempt.epoch)
        # Staged files of this very epoch may belong to another run that is about to be fenced.
        of_epoch = f"{_STAGED}/{_prefix(attempt.epoch)}"
        staged = self._store.names(_STAGED)
        self._store.remove(path for path in staged if not path.startswith(of_epoch))

    def write(self, part: Part, batches: Iterator[pa.RecordBatch]) -> Receipt:
        # A task that runs twice at a time has two files.
        staged = f"{_STAGED}/{_prefix(part.epoch)}{part.writer}-{part.number}-{unique_id()}"
        with tempfile.SpooledTemporaryFile(max_size=_SPOOL_BYTES_MAX) as file:
            _write_parquet(file, batches)
            self._store.put_file(staged, file)
        return {"staged": staged}

    def publish(self, attempt: Attempt, receipts: Sequence[Receipt]) -> None:
        prefix = _prefix(attempt.epoch)
        if attempt.is_first:
            self._remove(((attempt.epoch, attempt.epoch),))
        moves = [
            (str(receipt["staged"]), f"{prefix}{number:05d}.parquet")
            for number, receipt in enumerate(receipts)
        ]
        in_parallel(lambda move: self._store.move(*move), moves)
        # Of tasks that ran twice: later files may come from one that still runs.
        earlier, own = f"{_STAGED}/epoch-", f"{_STAGED}/{prefix}{attempt.writer}-"
        self._store.remove(
            path
            for path in self._store.names(_STAGED)
            if path.startswith(own) or earlier < path < f"{_STAGED}/{prefix}"
        )

    def abandon(self, epochs: EpochRanges) -> None:
        self._remove(epochs)

    def _check_no_later_epoch(self, epoch: int) -> None:
        """Check that the directory contains no output of another checkpoint."""
        latest = max(self._published().values(), default=0)
        if latest > epoch:
            raise RestoreError(
                f"{self.path} contains files of epoch {latest}, which is later than epoch {epoch} "
                "of this checkpoint: it was written by a job with another checkpoint. Choose an "
                "empty directory, or empty this one"
            )

    def _published(self) -> dict[str, int]:
        """Return the published files with their epochs."""
        matches = map(_PUBLISHED.match, self._store.names(""))
        return {match.string: int(match[1]) for match in matches if match is not None}

    def _remove(self, epochs: EpochRanges) -> None:
        """Remove the published files of some epochs."""
        published = self._published().items()
        self._store.remove(path for path, epoch in published if _is_in(epochs, epoch))


def parquet(path: object) -> Parquet:
    """Return a sink that writes Parquet files, with each epoch exactly once, in any runtime.

    An epoch's files are staged, then moved to `epoch-<number>-<part>.parquet`. Files that an
    earlier attempt at the same epoch left are replaced. Files of epochs that were rolled back are
    removed before the next epoch is written. Readers that list the directory between two moves can
    see a part of an epoch. Each sink needs a directory of its own. If two runs write to one
    checkpoint, one of them is refused before it moves files, unless both start to move at the same
    moment.

    Parameters:
        path: a directory, or a URL such as `s3://bucket/turnarounds`, as for checkpoints.

    >>> parquet("/data/turnarounds")
    Parquet(path='/data/turnarounds')
    """
    return Parquet(str(path))


def _prefix(epoch: int) -> str:
    return f"epoch-{epoch:020d}-"


def _is_in(ranges: EpochRanges, epoch: int) -> bool:
    return any(first <= epoch <= last for first, last in ranges)


def _write_parquet(file: IO[bytes], batches: Iterator[pa.RecordBatch]) -> None:
    """Write batches to a file, in row groups that compress well.

    Imported here: a job without such a sink need not load it.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    writer: pq.ParquetWriter | None = None
    try:
        for some in rebatched(batches, rows=_GROUP_ROWS, size=_GROUP_BYTES):
            table = pa.Table.from_batches(some)
            if writer is None:
                writer = pq.ParquetWriter(file, table.schema)
            writer.write_table(table, row_group_size=_GROUP_ROWS)
    finally:
        if writer is not None:
            writer.close()
