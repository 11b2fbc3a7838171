"""Sinks of files in a directory or an object store, with each epoch exactly once."""

from __future__ import annotations

import contextlib
import json
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import IO, Literal

import pyarrow as pa

from statekit.checkpoint.object_store import without_credentials
from statekit.checkpoint.store import Store, in_parallel
from statekit.checkpoint.store_url import place_elsewhere, same_place
from statekit.checkpoint.writable import check_writable
from statekit.clock import unique_id
from statekit.declared_call import declarable
from statekit.errors import RestoreError, StorageError
from statekit.records.json_rows import flat, json_documents
from statekit.sinks.protocol.parquet_writing import SPOOL_BYTES_MAX, write_parquet
from statekit.sinks.protocol.sink import (
    Attempt,
    EpochRanges,
    Outputs,
    Part,
    Receipt,
    SinkIdentity,
    TableSink,
)

_STAGED = "_statekit"
"""The folder of files that are not published yet. Readers of Parquet leave out such names."""

_OWNER = "_statekit-mirror.json"
"""The note of the mirror that writes to the directory: its checkpoint and its sink."""

_PUBLISHED = re.compile(r"epoch-(\d{20})-")


FileFormat = Literal["parquet", "json", "csv"]


@dataclass(frozen=True)
class Files(TableSink):
    """Files under `path`, with each epoch exactly once. See `parquet`.

    Parameters:
        path: a directory, or the URL of one.
        format: of the files.
    """

    path: str
    format: FileFormat = "parquet"

    @property
    def directory(self) -> str:
        return self.path.rstrip("/")

    @property
    def target(self) -> object:
        return same_place(self.path)

    @property
    def place(self) -> str:
        return f"{self.format}:{without_credentials(self.path)}"

    @property
    def is_table(self) -> bool:
        return self.format == "parquet"

    @cached_property
    def _store(self) -> Store:
        return Store(self.path, drafts=_STAGED)

    def __getstate__(self) -> dict[str, str]:
        # Each process opens the directory.
        return {"path": place_elsewhere(self.path), "format": self.format}

    def probe(self, declared: Outputs, limit_s: float) -> Iterator[str]:
        yield f"{self.path}: {check_writable(self.path, _STAGED, limit_s)}"

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
        with tempfile.SpooledTemporaryFile(max_size=SPOOL_BYTES_MAX) as file:
            _WRITERS[self.format](file, batches)
            self._store.put_file(staged, file)
        return {"staged": staged}

    def has_rows(self, outputs: Outputs) -> bool:
        return bool(self._readable())

    def last_epoch(self, outputs: Outputs) -> int | None:
        if self.last_writer(outputs) != (outputs.checkpoint, outputs.sink):
            return None
        return max(self._published().values(), default=None)

    def last_writer(self, outputs: Outputs) -> SinkIdentity | None:
        note = self._store.read_if_there(_OWNER)
        if note is not None:
            return SinkIdentity(*json.loads(note))
        return SinkIdentity("", "") if self._published() else None

    def is_dropped(self, outputs: Outputs) -> bool:
        return not self._store.exists(_OWNER)

    def claim(self, outputs: Outputs, last: int | None) -> None:
        own, writer = (outputs.checkpoint, outputs.sink), self.last_writer(outputs)
        if writer == own:
            return
        if writer is None and last is not None:
            raise StorageError(
                f"{self.path} was removed. Nothing of this epoch is written: start again, which "
                "writes all rows"
            )
        self._store.remove(self._readable())
        self._store.replace(_OWNER, json.dumps(own).encode())

    def publish(self, attempt: Attempt, receipts: Sequence[Receipt]) -> None:
        prefix = _prefix(attempt.epoch)
        if attempt.is_first:
            self._remove(((attempt.epoch, attempt.epoch),))
        suffix = _SUFFIXES[self.format]
        moves = [
            (str(receipt["staged"]), f"{prefix}{number:05d}.{suffix}")
            for number, receipt in enumerate(receipts)
        ]
        in_parallel(lambda move: self._store.move(*move), moves)
        if attempt.replaces_all:
            self._remove(((0, attempt.epoch - 1),))
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

    def _readable(self) -> list[str]:
        """Return the files of Parquet that readers of the directory read, of whichever writer."""
        names = self._store.names("")
        return [name for name in names if name.endswith(".parquet") and name[0] not in "._"]

    def _remove(self, epochs: EpochRanges) -> None:
        """Remove the published files of some epochs."""
        published = self._published().items()
        self._store.remove(path for path, epoch in published if _is_in(epochs, epoch))


@declarable("sinks.parquet")
def parquet(path: object) -> Files:
    """Return a sink that writes Parquet files, with each epoch exactly once, in any runtime.

    An epoch's files are staged, then moved to `epoch-<number>-<part>.parquet`. Files that an
    earlier attempt at the same epoch left are replaced. Files of epochs that were rolled back are
    removed before the next epoch is published. Readers that list the directory between two moves
    can see a part of an epoch. Each sink needs a directory of its own. If two runs write to one
    checkpoint, one of them is refused before it moves files, unless both start to move at the same
    moment.

    Parameters:
        path: a directory, or a URL such as `s3://bucket/turnarounds`, as for checkpoints.

    >>> parquet("/data/turnarounds")
    Files(path='/data/turnarounds', format='parquet')
    """
    return Files(str(path))


@declarable("sinks.json_lines")
def json_lines(path: object) -> Files:
    """Return a sink that writes files with a line of JSON per record, as `parquet` does.

    Values have the JSON form of answers and exports: a timedelta is `"PT2H"`, bytes are hex. The
    names of the files end with `.jsonl`.

    >>> json_lines("/data/turnarounds")
    Files(path='/data/turnarounds', format='json')
    """
    return Files(str(path), "json")


@declarable("sinks.csv")
def csv(path: object) -> Files:
    """Return a sink that writes files of CSV with a header each, as `parquet` does.

    Nested values are JSON, bytes are hex.

    >>> csv("/data/turnarounds")
    Files(path='/data/turnarounds', format='csv')
    """
    return Files(str(path), "csv")


def _prefix(epoch: int) -> str:
    return f"epoch-{epoch:020d}-"


def _is_in(ranges: EpochRanges, epoch: int) -> bool:
    return any(first <= epoch <= last for first, last in ranges)


def _write_json(file: IO[bytes], batches: Iterator[pa.RecordBatch]) -> None:
    for batch in batches:
        file.writelines(document + b"\n" for document in json_documents(batch))


def _write_csv(file: IO[bytes], batches: Iterator[pa.RecordBatch]) -> None:
    import pyarrow.csv as pa_csv

    with contextlib.ExitStack() as opened:
        writer: pa_csv.CSVWriter | None = None
        for batch in map(flat, batches):
            if writer is None:
                writer = opened.enter_context(pa_csv.CSVWriter(file, batch.schema))
            writer.write_batch(batch)


_WRITERS: dict[FileFormat, Callable[[IO[bytes], Iterator[pa.RecordBatch]], object]] = {
    "parquet": write_parquet,
    "json": _write_json,
    "csv": _write_csv,
}

_SUFFIXES: dict[FileFormat, str] = {"parquet": "parquet", "json": "jsonl", "csv": "csv"}
