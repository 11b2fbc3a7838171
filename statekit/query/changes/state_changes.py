"""State changes: the changes of a state in several epochs, as rows for the feed and as columns."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from statekit.checkpoint.epoch_id import EpochId
from statekit.checkpoint.manifest import EpochManifest
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.retention import still_kept
from statekit.checkpoint.sealed_json import FileRef
from statekit.errors import CorruptCheckpointError, QueryError
from statekit.functions.process import Process
from statekit.query.changes.change import Change, ChangeSource, Kind, change_of_row
from statekit.query.changes.change_sources import (
    Comparison,
    ShardChanges,
    StoredChanges,
    all_of_shards,
    changes_of_files,
    kind_of_changes,
    pieces_of_epoch,
)
from statekit.query.changes.change_table import ChangeFacts, ChangeTable
from statekit.query.rows.epochs import EpochReader, next_manifest
from statekit.query.rows.state_rows import StateRows
from statekit.query.tables.packed_bytes import RowBatch, row_batches
from statekit.query.tables.row_parts import Family
from statekit.query.tables.table import TooWide


class StateChanges:
    """The changes of one state, as in the change feed.

    Parameters:
        checkpoint: a directory, an object store URL or an open repository.
        operator, state: their names.
        function: the process function, for typed rows; None for plain data.
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
        function: Process[Any, Any, Any] | None = None,
        *,
        wanted: Collection[str] | None = None,
        wide_ints: bool = False,
        allow_pickle: bool = False,
    ) -> None:
        self.epochs = EpochReader(checkpoint)
        self._repository = self.epochs.repository
        self._operator, self._state, self._function = operator, state, function
        self._wanted = wanted
        self._wide, self._allow_pickle = wide_ints, allow_pickle
        # By the checksum of the job file.
        self._tables: dict[str, ChangeTable] = {}
        self._rows_by_file: dict[str, StateRows] = {}
        self._planned: dict[EpochId, EpochManifest] = {}
        """The manifests of the last epoch that was planned, and of the one before."""

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
                job, self._operator, self._state, self._function, allow_pickle=self._allow_pickle
            )
        return self._rows_by_file[job_file.checksum]

    def rows(self, manifest: EpochManifest) -> StateRows:
        """Return the decoder of the state's rows in an epoch.

        Raises:
            QueryError: there is no such operator or state; or its values are pickled.
            StateSchemaError: the function declares a type that would misread stored rows.
        """
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
        for after in epochs:
            if self.has_state(before) or self.has_state(after):
                with still_kept(self._repository, after.epoch, QueryError):
                    yield from self._pieces(before, after)
            before = after

    def has_state(self, manifest: EpochManifest | None) -> bool:
        """Return whether an epoch has the state: before the first one, it has no changes."""
        return manifest is not None and self.epochs.has_state(manifest, self._operator, self._state)

    def _kind(self, before: EpochManifest | None, after: EpochManifest) -> Kind:
        rows_before = None if before is None else self.rows(before)
        return kind_of_changes(before, rows_before, after, self.rows(after))

    def _pieces(self, before: EpochManifest | None, after: EpochManifest) -> Iterator[ShardChanges]:
        before = before if self.has_state(before) else None
        self._planned = {own.id: own for own in (before, after) if own is not None}
        kind, rows = self._kind(before, after), self.rows(after)
        return pieces_of_epoch(self._repository, kind, before, after, rows)

    def source(self, before: EpochManifest | None, after: EpochManifest) -> ChangeSource:
        """Return the changes of an epoch as rows.

        Parameters:
            before, after: as for `pieces`.
        """
        before = before if self.has_state(before) else None

        def changes() -> Iterator[Change]:
            with still_kept(self._repository, after.epoch, QueryError):
                for piece in self._pieces(before, after):
                    yield from self._changes(piece)

        return ChangeSource(self._kind(before, after), after, changes)

    # ---------------------------------------------------------------------------------- reading

    def batches(self, piece: ShardChanges) -> Iterator[pa.RecordBatch]:
        """Yield the changes of a piece, "clear" before the rows of its key.

        Raises:
            QueryError: the epoch was collected meanwhile; or an int needs `wide_ints`.
            CorruptCheckpointError: a file is missing or altered.
        """
        with self._located(piece.facts.epoch):
            table = self._table(piece.job_file, piece.facts.epoch)
            for stored in self._stored(piece):
                if stored.cleared is None:
                    yield table.clear_all(piece.facts)
                else:
                    for batch in row_batches((start, b"") for start in stored.cleared):
                        yield table.batch(piece.facts, "clear", _in_shard(batch, stored.shard))
                yield from _changed(piece.facts, table, stored.rows, stored.shard)

    def _changes(self, piece: ShardChanges) -> Iterator[Change]:
        """Yield the changes of a piece, "clear" before the rows of its key."""
        rows = self._rows(piece.job_file, piece.facts.epoch)
        for stored in self._stored(piece):
            if stored.cleared is None:
                yield Change("clear", None)
            for start in stored.cleared or ():
                yield Change("clear", stored.shard if rows.is_local else rows.keys.split(start)[0])
            for row_key, row in stored.rows:
                yield change_of_row(rows, row_key, row, stored.shard)

    def _stored(self, piece: ShardChanges) -> Iterator[StoredChanges]:
        rows = self._rows(piece.job_file, piece.facts.epoch)
        if piece.files:
            return changes_of_files(self._repository, piece, rows)
        after = self._manifest(piece.epoch_id)
        assert after is not None, "its rows are not in files of the epoch"
        if piece.groups is None:
            return all_of_shards(self._repository, after, rows)
        before = self._manifest(piece.before)
        rows_before = None if before is None else self.rows(before)
        compared = Comparison(self._repository, after, rows, before, rows_before)
        return iter([StoredChanges(compared.changed_rows(piece.groups_before, piece.groups))])

    def _manifest(self, epoch_id: EpochId | None) -> EpochManifest | None:
        if epoch_id is None:
            return None
        return self._planned.get(epoch_id) or self.epochs.manifest(epoch_id)

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
    rows: Iterable[tuple[bytes, bytes | None]],
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
