"""State changes: the changes of a state in several epochs, in pieces to read in parallel.

The changes are those of the change feed. A piece has the changes of one shard in one epoch, or, if
two states have to be compared, those of a range of key groups. Pieces are planned in one process
and read in others: they are small, and picklable.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from statekit.checkpoint.epoch_id import EpochId
from statekit.checkpoint.manifest import EpochManifest
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.restore_plan import local_rows
from statekit.checkpoint.retention import still_kept
from statekit.checkpoint.sealed_json import FileRef
from statekit.errors import CorruptCheckpointError, QueryError
from statekit.keygroup import GROUP_BYTES
from statekit.query.change_sources import Comparison, FileChanges, change_source, have_other_shards
from statekit.query.change_table import ChangeFacts, ChangeTable
from statekit.query.epochs import EpochReader, next_manifest
from statekit.query.net_changes import NetChanges
from statekit.query.packed_bytes import RowBatch, row_batches
from statekit.query.row_parts import Family
from statekit.query.state_rows import StateRows
from statekit.query.table import TooWide

Groups = tuple[int, int]


@dataclass(frozen=True)
class ShardChanges:
    """A part of the changes of a state in one epoch.

    Parameters:
        facts: the facts that its changes share.
        job_file: the job file in force.
        shard: the number of the shard that changed.
        files: its change files, in order; empty if there are none to read.
        epoch_id: the identity of the epoch, for rows that are not in files of its own.
        before: the identity of the epoch that is compared with this one; None for all rows.
        groups_before: the key groups of the epoch before that are compared.
        groups: the key groups that are compared, or read; None to read files, or all operator
            state.
    """

    facts: ChangeFacts
    job_file: FileRef
    shard: int = 0
    files: tuple[FileRef, ...] = ()
    epoch_id: EpochId | None = None
    before: EpochId | None = None
    groups_before: Groups | None = None
    groups: Groups | None = None

    @property
    def mutations(self) -> int:
        """Number of mutations to read from change files."""
        return sum(ref.rows for ref in self.files)


class StateChanges:
    """The changes of one state, as in the change feed.

    Parameters:
        checkpoint: a directory, an object store URL or an open repository.
        operator, state: their names.
        wanted: lower-case names of columns; None for all.
        wide_ints: give ints the type decimal(20, 0).
        allow_pickle: unpickle values.

    Raises:
        RestoreError: the checkpoint is a savepoint, or a local path that does not exist.
    """

    def __init__(
        self,
        checkpoint: str | Path | Repository,
        operator: str,
        state: str,
        *,
        wanted: Collection[str] | None = None,
        wide_ints: bool = False,
        allow_pickle: bool = False,
    ) -> None:
        self.epochs = EpochReader(checkpoint)
        self._repository = self.epochs.repository
        self._operator, self._state = operator, state
        self._wanted = wanted
        self._wide, self._allow_pickle = wide_ints, allow_pickle
        # By the checksum of the job file.
        self._tables: dict[str, ChangeTable] = {}
        self._rows_by_file: dict[str, StateRows] = {}

    def table(self, manifest: EpochManifest) -> ChangeTable:
        """Return the table of changes in an epoch.

        Raises:
            QueryError: there is no such operator or state; or its values are pickled.
        """
        return self._table(manifest.job_file, manifest.epoch)

    def _table(self, job_file: FileRef, epoch: int) -> ChangeTable:
        if job_file.checksum not in self._tables:
            rows = self._rows(job_file, epoch)
            self._tables[job_file.checksum] = ChangeTable(
                Family(rows.operator, self._state),
                wanted=self._wanted,
                wide=self._wide,
                allow_pickle=self._allow_pickle,
            )
        return self._tables[job_file.checksum]

    def _rows(self, job_file: FileRef, epoch: int) -> StateRows:
        if job_file.checksum not in self._rows_by_file:
            job = self.epochs.job_file_at(job_file, epoch)
            self._rows_by_file[job_file.checksum] = StateRows(
                job, self._operator, self._state, allow_pickle=self._allow_pickle
            )
        return self._rows_by_file[job_file.checksum]

    def _rows_of(self, manifest: EpochManifest) -> StateRows:
        return self._rows(manifest.job_file, manifest.epoch)

    # --------------------------------------------------------------------------------- planning

    def manifests(self, before: EpochManifest | None, last: int) -> Iterator[EpochManifest]:
        """Yield the manifests of the epochs after `before`, up to `last`.

        Parameters:
            before: the manifest of that epoch; None for the first kept epoch and those after it.
            last: the last epoch.

        Raises:
            QueryError: an epoch was collected, or the checkpoint was replaced.
        """
        while before is None or before.epoch < last:
            before = next_manifest(self._repository, before)
            if before is None:
                return
            yield before

    def pieces(
        self, before: EpochManifest | None, epochs: Iterable[EpochManifest]
    ) -> Iterator[ShardChanges]:
        """Yield the pieces of the changes in the epochs.

        Parameters:
            before: the manifest of the epoch before the first; None to begin with all rows.
            epochs: the manifests of the epochs, in order.

        Raises:
            QueryError: an epoch was collected, or has no such operator or state.
        """
        before = before if before is None or self._has_state(before) else None
        for after in epochs:
            if before is None and not self._has_state(after):
                continue  # before the first epoch with the state, it has no changes
            with still_kept(self._repository, after.epoch, QueryError):
                yield from self._pieces_of(
                    change_source(self._repository, before, after, self._rows_of)
                )
            before = after

    def _has_state(self, manifest: EpochManifest) -> bool:
        return self.epochs.has_state(manifest, self._operator, self._state)

    def _pieces_of(self, source: FileChanges | Comparison) -> Iterator[ShardChanges]:
        after, operator = source.after, self._operator
        watermark_us = after.operators[operator].watermark_us
        facts = ChangeFacts(
            after.epoch, after.cause, source.kind, watermark_us, after.processing_time_us
        )
        job_file = after.job_file
        if isinstance(source, Comparison):
            epoch_id, before = after.id, None if source.before is None else source.before.id
            if source.rows.is_local:
                yield ShardChanges(facts, job_file, epoch_id=epoch_id)
                return
            for groups_before, groups in source.pieces():
                yield ShardChanges(
                    facts,
                    job_file,
                    epoch_id=epoch_id,
                    before=before,
                    groups_before=groups_before,
                    groups=groups,
                )
        elif source.rows.is_local and have_other_shards(source.before, after, operator):
            yield ShardChanges(facts, job_file, epoch_id=after.id)
        else:
            shards = after.operators[operator].shards
            numbers = {shard.first_group: number for number, shard in enumerate(shards)}
            for shard, refs in source.files_of_shards():
                yield ShardChanges(facts, job_file, numbers[shard.first_group], tuple(refs))

    # ---------------------------------------------------------------------------------- reading

    def batches(self, piece: ShardChanges) -> Iterator[pa.RecordBatch]:
        """Yield the changes of a piece, "clear" before the rows of its key.

        Raises:
            QueryError: the epoch was collected meanwhile; or an int needs `wide_ints`.
            CorruptCheckpointError: a file is missing or altered.
        """
        with self._located(piece.facts.epoch):
            table = self._table(piece.job_file, piece.facts.epoch)
            if piece.files:
                yield from self._from_files(piece, table)
            elif piece.groups is None:
                yield from self._of_all_shards(piece, table)
            else:
                rows = self._compared(piece, piece.groups)
                yield from _changed(piece.facts, table, rows, None)

    def _from_files(self, piece: ShardChanges, table: ChangeTable) -> Iterator[pa.RecordBatch]:
        is_local = self._rows(piece.job_file, piece.facts.epoch).is_local
        shard, cut = (piece.shard, GROUP_BYTES) if is_local else (None, 0)
        with NetChanges(self._repository, piece.files, self._state) as net:
            starts = ((start[cut:], b"") for start, _ in net.cleared)
            for batch in row_batches(starts):
                yield table.batch(piece.facts, "clear", _in_shard(batch, shard))
            rows = ((key[cut:], row) for key, row in net.rows)
            yield from _changed(piece.facts, table, rows, shard)

    def _of_all_shards(self, piece: ShardChanges, table: ChangeTable) -> Iterator[pa.RecordBatch]:
        """Yield a clear and all rows of operator state."""
        yield table.clear_all(piece.facts)
        manifest = self._manifest_of(piece)
        operator = self._rows_of(manifest).operator
        of_shards = local_rows(self._repository, operator, manifest)[self._state]
        for number, rows in enumerate(of_shards):
            yield from _changed(piece.facts, table, iter(rows), number)

    def _compared(
        self, piece: ShardChanges, groups: Groups
    ) -> Iterator[tuple[bytes, bytes | None]]:
        after = self._manifest_of(piece)
        rows, repository = self._rows_of(after), self._repository
        if piece.before is None:
            yield from Comparison("snapshot", repository, after, rows).changed_rows(None, groups)
            return
        before = self.epochs.manifest(piece.before)
        rows_before = self._rows_of(before)
        source = Comparison("difference", repository, after, rows, before, rows_before)
        with still_kept(repository, piece.before.epoch, QueryError):
            yield from source.changed_rows(piece.groups_before, groups)

    def _manifest_of(self, piece: ShardChanges) -> EpochManifest:
        assert piece.epoch_id is not None, "its rows are not in files of the epoch"
        return self.epochs.manifest(piece.epoch_id)

    @contextmanager
    def _located(self, epoch: int) -> Iterator[None]:
        """Add the names of the state and the epoch to errors."""
        place = f"{self._operator}.{self._state} in epoch {epoch}"
        try:
            with still_kept(self._repository, epoch, QueryError):
                yield
        except CorruptCheckpointError as error:
            raise CorruptCheckpointError(f"{place} of {self._repository.url}: {error}") from error
        except TooWide as error:
            raise QueryError(
                f"{place} has an int of 2^63 or more, for which int64 is too small: read it with "
                "wide ints, which makes all of its ints decimal(20, 0)"
            ) from error


def _in_shard(batch: RowBatch, shard: int | None) -> RowBatch:
    """Return rows of operator state with their shard; other rows unchanged."""
    return batch if shard is None else batch._replace(shards=[shard] * len(batch.keys))


def _changed(
    facts: ChangeFacts,
    table: ChangeTable,
    rows: Iterator[tuple[bytes, bytes | None]] | Iterator[tuple[bytes, bytes]],
    shard: int | None,
) -> Iterator[pa.RecordBatch]:
    """Yield upserts and deletes.

    Parameters:
        rows: row keys, and rows; None for deleted ones.
        shard: of operator state, its shard.
    """
    tagged = ((key, b"" if row is None else _PRESENT + row) for key, row in rows)
    for batch in row_batches(tagged):
        pairs = list(zip(batch.keys, batch.rows, strict=True))
        upserts = RowBatch([key for key, row in pairs if row], [row[1:] for _, row in pairs if row])
        deletes = [key for key, row in pairs if not row]
        if upserts.keys:
            yield table.batch(facts, "upsert", _in_shard(upserts, shard))
        if deletes:
            gone = RowBatch(deletes, [b""] * len(deletes))
            yield table.batch(facts, "delete", _in_shard(gone, shard))


_PRESENT = b"\x01"
