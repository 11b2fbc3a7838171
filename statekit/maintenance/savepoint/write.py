"""Write a savepoint: the whole state after one epoch, as Parquet.

`savepoint.json` is the commit, a create-if-absent like that of an epoch. Files of a killed attempt
are in folders of their own that no `savepoint.json` references, and are removed by the next attempt
with that name. A running attempt with the same name then fails, because the name is taken.
"""

from __future__ import annotations

import contextlib
import io
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, cast

import pyarrow as pa
import pyarrow.parquet as pq

from statekit.checkpoint.job_file import WAITING, JobFile, OperatorRecord
from statekit.checkpoint.manifest import EpochManifest, OperatorEpoch
from statekit.checkpoint.paths import SAVEPOINT, SAVEPOINTS
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.retention import held
from statekit.checkpoint.rollback import check_batch
from statekit.checkpoint.sealed_json import FileRef
from statekit.checkpoint.spark_log import files_at
from statekit.clock import now_us, unique_id
from statekit.errors import FencedError, QueryError, RestoreError, StorageError
from statekit.keygroup import GROUP_BYTES
from statekit.maintenance.rewrite import Progress, RowChecksum, RowCount, rows_to_read
from statekit.maintenance.savepoint.format import (
    POSITION,
    SavedRow,
    SavepointFile,
    SavepointOperator,
    StateContents,
    key_of_shard,
    saved_rows,
    savepoint_table,
    shard_of_key,
)
from statekit.names import path_fault
from statekit.query.rows.reader import CheckpointReader
from statekit.query.tables.packed_bytes import RowBatch
from statekit.query.tables.stored_batches import keyed_batches, local_batches
from statekit.query.tables.table import TooWide
from statekit.timestamp import TIME_BYTES

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")

# A row group is at most so large, and so is a file, before compression.
_GROUP_ROWS_MAX = 65_536
_GROUP_BYTES_MAX = 16 * 1024 * 1024
_PART_BYTES_MAX = 256 * 1024 * 1024
_SPOOL_BYTES_MAX = 32 * 1024 * 1024


def check_savepoint_name(name: str) -> str:
    """Check and return the name of a savepoint.

    Raises:
        RestoreError: it is not valid.
    """
    fault: str | None = "use letters, digits and any of _ . -, and no dot in front"
    if _NAME.fullmatch(name):
        fault = path_fault(name)
    if fault is not None:
        raise RestoreError(f"{name[:200]!r} cannot be the name of a savepoint: {fault}")
    return name


def savepoint_folder(name: str) -> str:
    """Return the folder of a savepoint within its checkpoint.

    >>> savepoint_folder("before-upgrade")
    'savepoints/before-upgrade'
    """
    return f"{SAVEPOINTS}/{check_savepoint_name(name)}"


def write_savepoint(
    repository: Repository,
    name: str,
    *,
    epoch: int | None = None,
    progress: Progress = lambda done, total: None,
) -> SavepointFile:
    """Write the state after an epoch to `savepoints/<name>/` of the checkpoint.

    A job may run meanwhile, and nothing blocks. The local disk needs the space of one unpacked
    shard, and of a file per state, for any size of the state.

    Parameters:
        name: unique in the checkpoint.
        epoch: None for the last one.
        progress: called with the number of written rows.

    Raises:
        RestoreError: the name is taken or not valid, there is no such epoch or it was collected, or
            Spark no longer has the input until then: it has deleted its log, or the epoch was
            rolled back.
        CorruptCheckpointError: a file of the checkpoint is missing or altered.
    """
    folder = savepoint_folder(name)
    reader = _reader(repository, epoch)
    job, manifest = reader.job, reader.manifest
    before = list(repository.tree(folder))
    if f"{folder}/{SAVEPOINT}" in before:
        raise _name_is_taken(repository, folder)
    attempt = _Attempt(repository, folder, unique_id())
    count = RowCount(rows_to_read(job, manifest), progress)
    try:
        with held(repository, manifest.epoch):
            savepoint_file = attempt.write(name, job, manifest, count)
    except FencedError:
        attempt.withdraw()
        raise _name_is_taken(repository, folder) from None
    repository.remove(path for path in before if not attempt.owns(path))
    return savepoint_file


def _reader(repository: Repository, epoch: int | None) -> CheckpointReader:
    try:
        reader = CheckpointReader(repository, epoch=epoch)
    except QueryError as error:
        raise RestoreError(str(error)) from error
    if reader.manifest.epoch != reader.epochs[-1]:
        check_batch(repository, repository.manifest(reader.epochs[-1]), reader.manifest)
    return reader


def _name_is_taken(repository: Repository, folder: str) -> RestoreError:
    return RestoreError(
        f"{repository.url}/{folder} is a savepoint already, and savepoints are never overwritten: "
        "choose another name, or delete that directory first"
    )


@dataclass(frozen=True)
class _Attempt:
    """An attempt to write a savepoint. No other attempt writes to its folders."""

    repository: Repository
    folder: str
    id: str

    def owns(self, path: str) -> bool:
        folders = f"{self.folder}/state.{self.id}/", f"{self.folder}/spark.{self.id}/"
        return path.startswith(folders)

    def withdraw(self) -> None:
        """Remove all files of the attempt."""
        written = self.repository.tree(self.folder)
        self.repository.remove([path for path in written if self.owns(path)])

    def write(
        self, name: str, job: JobFile, manifest: EpochManifest, count: RowCount
    ) -> SavepointFile:
        """Write all files, with `savepoint.json` as the last one.

        Raises:
            FencedError: the name has been taken meanwhile.
        """
        # First, because Spark deletes its old logs.
        spark = tuple(self._spark(manifest))
        operators = {
            operator.name: self._operator(operator, manifest, count) for operator in job.operators
        }
        savepoint_file = SavepointFile(
            id=self.id,
            name=name,
            taken_at_us=now_us(),
            job=job.model_copy(update={"dropped": {}}),  # dropped states have no rows here
            parallelism=manifest.parallelism,
            operators=operators,
            spark=spark,
            **manifest.model_dump(include=POSITION),
        )
        self.repository.create(f"{self.folder}/{SAVEPOINT}", savepoint_file.to_bytes())
        count.end()
        return savepoint_file

    def _spark(self, manifest: EpochManifest) -> Iterator[FileRef]:
        """Yield the files that Spark needs to continue after the last micro-batch in the state."""
        if manifest.batch is None:
            return
        read, names = self.repository.read_spark, self.repository.spark_files()
        for path, content in files_at(names, read, manifest.batch, history=1).items():
            data = read(path) if content is None else content
            yield self.put(f"spark.{self.id}/{path}", io.BytesIO(data))

    def _operator(
        self, operator: OperatorRecord, manifest: EpochManifest, count: RowCount
    ) -> SavepointOperator:
        local = [state.name for state in operator.states if state.is_local]
        keyed, repository = operator.holds_by_key, self.repository
        with contextlib.ExitStack() as closing:
            tables = {
                family: closing.enter_context(_TableWriter(self, operator, family))
                for family in (*keyed, *local)
            }
            for family, batch in keyed_batches(repository, operator, manifest, keyed):
                tables[family].add(batch)
                count.add(len(batch.keys))
            for family, batch in local_batches(repository, operator, manifest):
                tables[family].add(batch)
            states = {family: table.finish() for family, table in tables.items()}
        epoch = manifest.operators.get(operator.name, OperatorEpoch(shards=()))
        progress = set(SavepointOperator.model_fields) - {"states"}
        return SavepointOperator(states=states, **epoch.model_dump(include=progress))

    def put(self, path: str, file: IO[bytes], rows: int = 0) -> FileRef:
        """Store a file. Return its reference, with the path below the savepoint."""
        ref = self.repository.put_file(f"{self.folder}/{path}", file, rows)
        return ref.model_copy(update={"path": path})

    def open_part(self, ref: FileRef) -> IO[bytes]:
        """Return the verified content of a table's file."""
        path = f"{self.folder}/{ref.path}"
        return self.repository.open_verified(ref.model_copy(update={"path": path}))


class _TableWriter:
    """Writes the rows of one table: row groups and files of bounded size. A context manager."""

    def __init__(self, attempt: _Attempt, operator: OperatorRecord, family: str) -> None:
        self._attempt = attempt
        self._operator, self._family = operator, family
        self._table = savepoint_table(operator, family)
        self._contents = RowChecksum()
        self._rows = self._table.no_rows()
        self._row_bytes = 0
        self._closing = contextlib.ExitStack()
        self._part: tuple[IO[bytes], pq.ParquetWriter] | None = None
        self._part_rows = self._part_bytes = self._number = 0
        self._refs: list[FileRef] = []

    def __enter__(self) -> _TableWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def add(self, batch: RowBatch) -> None:
        """Add rows. All rows of a key are added in one call, in order."""
        if batch.shards is None:
            keys = [key[GROUP_BYTES:] for key in batch.keys]
        else:
            pairs = zip(batch.shards, batch.keys, strict=True)
            keys = [key_of_shard(shard) + key for shard, key in pairs]
        self._contents.add_all(keys, batch.rows)
        self._append(batch)

    def finish(self) -> StateContents:
        """Write the remaining rows. A table without rows has one file, which contains the
        columns.
        """
        while self._rows.keys:
            self._write_group()
        if self._part is not None or not self._refs:
            self._end_part()
        return StateContents(
            rows=self._contents.rows, checksum=self._contents.checksum, files=tuple(self._refs)
        )

    def _append(self, batch: RowBatch) -> None:
        self._rows.extend(batch)
        self._row_bytes += batch.size
        while len(self._rows.keys) >= _GROUP_ROWS_MAX or self._row_bytes >= _GROUP_BYTES_MAX:
            self._write_group()

    def _write_group(self) -> None:
        """Write the first rows, up to the size limit of a row group."""
        group, rest = self._rows.divided(_GROUP_ROWS_MAX)
        try:
            columns = self._table.batch(group)
        except TooWide:
            self._widen()
            columns = self._table.batch(group)
        with _local_errors():
            self._writer().write_batch(columns)
        self._part_rows += len(group.keys)
        self._part_bytes += group.size
        self._rows, self._row_bytes = rest, rest.size
        if self._part_bytes >= _PART_BYTES_MAX:
            self._end_part()

    def _writer(self) -> pq.ParquetWriter:
        if self._part is None:
            spool = tempfile.SpooledTemporaryFile(  # noqa: SIM115 - closed with the rest
                max_size=_SPOOL_BYTES_MAX
            )
            file = cast("IO[bytes]", spool)
            self._closing.callback(_drop, file)
            writer = pq.ParquetWriter(file, self._table.schema, compression="zstd")
            self._closing.callback(_drop, writer)
            self._part = file, writer
        return self._part[1]

    def _end_part(self) -> None:
        with _local_errors():
            self._writer().close()
        assert self._part is not None, "there is one, or it was made"
        folder = f"state.{self._attempt.id}/{self._operator.name}/{self._family}"
        path = f"{folder}/part-{self._number:05d}.parquet"
        self._refs.append(self._attempt.put(path, self._part[0], self._part_rows))
        self._closing.close()
        self._part, self._part_rows, self._part_bytes = None, 0, 0
        self._number += 1

    def _widen(self) -> None:
        """Rewrite everything so far with wider ints, because all files of a table must have the
        same columns.
        """
        waiting = self._rows
        if self._part is not None:
            self._end_part()
        narrow, self._refs = self._refs, []
        self._table = savepoint_table(self._operator, self._family, wide=True)
        self._rows, self._row_bytes = self._table.no_rows(), 0
        for ref in narrow:
            with self._attempt.open_part(ref) as file:
                for row in saved_rows(file, ref.path):
                    self._append(self._read_back(row))
        while self._rows.keys:
            self._write_group()
        self._attempt.repository.remove(f"{self._attempt.folder}/{ref.path}" for ref in narrow)
        self._rows, self._row_bytes = waiting, waiting.size

    def _read_back(self, saved: SavedRow) -> RowBatch:
        """Return a saved row as it was added, except for its key group."""
        if self._table.family.is_local:
            return RowBatch([saved.subkey], [saved.row], [shard_of_key(saved.key)])
        cut = TIME_BYTES if self._family == WAITING else 0
        row_key = bytes(GROUP_BYTES) + saved.subkey[:cut] + saved.key + saved.subkey[cut:]
        return RowBatch([row_key], [saved.row])


def _drop(file: IO[bytes] | pq.ParquetWriter) -> None:
    """Close a temporary file or its writer, ignoring errors. On a full disk neither can write its
    buffer.
    """
    with contextlib.suppress(OSError, ValueError, pa.ArrowException):
        file.close()


@contextlib.contextmanager
def _local_errors() -> Iterator[None]:
    """Convert errors of the local disk, where files are assembled, to `StorageError`."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"cannot write a file of a savepoint to {tempfile.gettempdir()}: {error}. Make space "
            "there or set TMPDIR, then write the savepoint again"
        ) from error
