"""State changes: the changes of a state in several epochs, as rows for the feed and as columns.

The changes are planned as pieces: those of one shard in one epoch, or, if two states have to be
compared, those of a range of key groups. Pieces are planned in one process and read in others:
they are small, and picklable.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from statekit.backend.mutation import in_batches
from statekit.backend.rocksdb import RocksBackend
from statekit.backend.scratch import scratch_directory
from statekit.checkpoint.epoch_id import EpochId
from statekit.checkpoint.manifest import EpochManifest
from statekit.checkpoint.references import follows_by_files, own_files
from statekit.checkpoint.repository import Repository, group_bounds
from statekit.checkpoint.restore_plan import local_rows
from statekit.checkpoint.retention import still_kept
from statekit.checkpoint.sealed_json import FileRef
from statekit.errors import CorruptCheckpointError, QueryError
from statekit.functions.process import Process
from statekit.keygroup import GROUP_BYTES, MAX_GROUPS
from statekit.query.changes.change import Change, Kind, change_of_row, unequal_rows
from statekit.query.changes.change_table import ChangeFacts, ChangeTable, Form
from statekit.query.changes.net_changes import NetChanges, joined
from statekit.query.rows.epochs import EpochReader, have_other_shards, next_manifest
from statekit.query.rows.state_rows import Row, StateRows, expiry_time_us
from statekit.query.tables.packed_bytes import RowBatch, row_batches
from statekit.query.tables.row_parts import Family
from statekit.query.tables.table import TooWide
from statekit.watermark import BEGINNING
from statekit.working_copy.unpacked_shard import ShardRows

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
    def epoch(self) -> int:
        """The number of the epoch."""
        return self.facts.epoch

    @property
    def mutations(self) -> int:
        """Number of mutations to read from change files."""
        return sum(ref.rows for ref in self.files)


class StoredChanges(NamedTuple):
    """Some changes of a piece, as they are stored.

    Parameters:
        rows: row keys, of operator state the part after the prefix of the shard, and rows; None
            for deleted ones.
        cleared: the first row keys of keys that were cleared before; None for all rows of a state.
        shard: of operator state, its shard.
    """

    rows: Iterable[tuple[bytes, bytes | None]]
    cleared: Iterable[bytes] | None = ()
    shard: int | None = None


class StateChanges:
    """The changes of one state, as in the change feed.

    Parameters:
        checkpoint: a directory, an object store URL or an open repository.
        operator, state: their names.
        function: the process function, for typed rows; None for plain data.
        wanted: lower-case names of columns; None for all.
        wide_ints: give ints the type decimal(20, 0).
        allow_pickle: unpickle values.
        form: of the table of changes.

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
        form: Form = "changes",
    ) -> None:
        self.epochs = EpochReader(checkpoint)
        self._repository = self.epochs.repository
        self._operator, self._state, self._function = operator, state, function
        self._wanted = wanted
        self._wide, self._allow_pickle, self._form = wide_ints, allow_pickle, form
        # By the checksum of the job file.
        self._tables: dict[str, ChangeTable] = {}
        self._rows_by_file: dict[str, StateRows] = {}
        self._planned: dict[EpochId, EpochManifest] = {}
        """The manifests of the last compared epoch, and of the one before."""

    def table(self, changed: EpochManifest | ShardChanges) -> ChangeTable:
        """Return the table of changes in an epoch, or of a piece of them.

        Raises:
            QueryError: there is no such operator or state; or its values are pickled.
        """
        types = changed.job_file.checksum
        if types not in self._tables:
            self._tables[types] = ChangeTable(
                Family(self.rows(changed).operator, self._state),
                wanted=self._wanted,
                wide=self._wide,
                allow_pickle=self._allow_pickle,
                form=self._form,
            )
        return self._tables[types]

    def rows(self, changed: EpochManifest | ShardChanges) -> StateRows:
        """Return the decoder of the state's rows in an epoch, or in a piece of its changes.

        Raises:
            QueryError: there is no such operator or state; or its values are pickled.
            StateSchemaError: the function declares a type that would misread stored rows.
        """
        types = changed.job_file.checksum
        if types not in self._rows_by_file:
            job = self.epochs.job_file(changed)
            self._rows_by_file[types] = StateRows(
                job, self._operator, self._state, self._function, allow_pickle=self._allow_pickle
            )
        return self._rows_by_file[types]

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
        if manifest is None or self._operator not in manifest.operators:
            return False
        record = self.epochs.job_file(manifest).operator(self._operator)
        return record is not None and any(own.name == self._state for own in record.states)

    def kind(self, before: EpochManifest | None, after: EpochManifest) -> Kind:
        """Return the origin of the changes of the state in an epoch.

        Parameters:
            before: the manifest of the epoch before; None for a consumer that starts with an empty
                table.
            after: the manifest of the epoch.
        """
        if before is None or not self.has_state(before):
            return "snapshot"
        is_same = self.rows(before).state == self.rows(after).state
        return "changes" if is_same and follows_by_files(before, after) else "difference"

    def _pieces(self, before: EpochManifest | None, after: EpochManifest) -> Iterator[ShardChanges]:
        """Yield the pieces of one epoch; its parameters are those of `kind`."""
        kind, rows = self.kind(before, after), self.rows(after)
        own = after.operators[self._operator]
        piece = ShardChanges(self._facts(after, kind), after.job_file)
        before = before if self.has_state(before) else None
        is_moved = before is not None and have_other_shards(before, after, self._operator)
        if kind == "changes" and not (rows.is_local and is_moved):
            numbers = {shard.first_group: number for number, shard in enumerate(own.shards)}
            for shard, refs in own_files(self._repository, before, after, self._operator):
                if files := tuple(ref for ref in refs if rows.is_local or not ref.local):
                    yield replace(piece, shard=numbers[shard.first_group], files=files)
            return
        self._planned = {own.id: own for own in (before, after) if own is not None}
        piece = replace(piece, epoch_id=after.id)
        if rows.is_local:
            yield piece
            return
        of_before = None if before is None else before.id
        for groups_before, groups in _compared_groups(before, after, self._operator):
            yield replace(piece, before=of_before, groups_before=groups_before, groups=groups)

    def _facts(self, after: EpochManifest, kind: Kind) -> ChangeFacts:
        watermark_us = after.operators[self._operator].watermark_us
        watermark = None if watermark_us == BEGINNING else watermark_us
        return ChangeFacts(after.epoch, after.cause, kind, watermark, after.processing_time_us)

    # ---------------------------------------------------------------------------------- reading

    def batches(self, piece: ShardChanges) -> Iterator[pa.RecordBatch]:
        """Yield the changes of a piece, "clear" before the rows of its key.

        Raises:
            QueryError: the epoch was collected meanwhile; or an int needs `wide_ints`.
            CorruptCheckpointError: a file is missing or altered.
        """
        with self._located(piece.epoch):
            yield from _columns(piece.facts, self.table(piece), self._stored(piece))

    def batches_of(
        self, after: EpochManifest, kind: Kind, changes: Iterable[StoredChanges]
    ) -> Iterator[pa.RecordBatch]:
        """Yield changes of an epoch that were found elsewhere, such as resolved ones.

        Raises:
            QueryError, CorruptCheckpointError: as for `batches`.
        """
        with self._located(after.epoch):
            yield from _columns(self._facts(after, kind), self.table(after), changes)

    def changes(self, before: EpochManifest | None, after: EpochManifest) -> Iterator[Change]:
        """Yield the changes of an epoch, "clear" before the rows of its key.

        Parameters:
            before, after: as for `kind`.

        Raises:
            QueryError, CorruptCheckpointError: as for `batches`.
        """
        with still_kept(self._repository, after.epoch, QueryError):
            rows = self.rows(after)
            for piece in self._pieces(before, after):
                for stored in self._stored(piece):
                    if stored.cleared is None:
                        yield Change("clear", None)
                    for start in stored.cleared or ():
                        key = stored.shard if rows.is_local else rows.keys.split(start)[0]
                        yield Change("clear", key)
                    for row_key, row in stored.rows:
                        yield change_of_row(rows, row_key, row, stored.shard)

    def _stored(self, piece: ShardChanges) -> Iterator[StoredChanges]:
        rows = self.rows(piece)
        if piece.files:
            shard, cut = (piece.shard, GROUP_BYTES) if rows.is_local else (None, 0)
            with NetChanges(self._repository, piece.files, self._state) as net:
                cleared = (start[cut:] for start, _ in net.cleared)
                yield StoredChanges(((key[cut:], row) for key, row in net.rows), cleared, shard)
        elif piece.groups is None:
            yield StoredChanges((), cleared=None)
            stored = local_rows(self._repository, rows.operator, self._manifest(piece.epoch_id))
            for number, own in enumerate(stored[self._state]):
                yield StoredChanges(own, shard=number)
        else:
            yield StoredChanges(self._compared(piece, piece.groups, rows))

    def _compared(
        self, piece: ShardChanges, groups: Groups, rows: StateRows
    ) -> Iterator[tuple[bytes, bytes | None]]:
        """Yield the row keys of rows that differ from the epoch before, and the new rows; None for
        deleted ones.
        """
        after = self._manifest(piece.epoch_id)
        rows_before: StateRows | None = None
        old: Iterator[Row] = iter(())
        with ExitStack() as closing:
            if piece.before is not None and piece.groups_before is not None:
                closing.enter_context(still_kept(self._repository, piece.before.epoch, QueryError))
                before = self._manifest(piece.before)
                rows_before = self.rows(before)
                old = self._unpacked(before, piece.groups_before, closing)
                if before.key_groups != after.key_groups:
                    old = regrouped(old, rows, closing)
            now_us = expiry_time_us(after, self._operator, rows.state)
            new = rows.unexpired(self._unpacked(after, groups, closing), now_us)
            for row_key, _, row in unequal_rows(joined(old, new), rows_before, rows):
                yield row_key, row

    def _unpacked(
        self, manifest: EpochManifest, groups: Groups, closing: ExitStack
    ) -> Iterator[Row]:
        shards = ShardRows(self._repository, self._operator, manifest)
        backend = closing.enter_context(shards.opened_groups(groups, [self._state]))
        return backend.scan(self._state, *group_bounds(*groups))

    def _manifest(self, epoch_id: EpochId | None) -> EpochManifest:
        assert epoch_id is not None, "the rows are not in files of the epoch"
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


def _compared_groups(
    before: EpochManifest | None, after: EpochManifest, operator: str
) -> list[tuple[Groups | None, Groups]]:
    """Return the key groups of both states that are compared with each other."""
    own = [shard.groups for shard in after.operators[operator].shards]
    if before is None:
        return [(None, groups) for groups in own]
    if before.key_groups == after.key_groups:
        return [(groups, groups) for groups in own]
    return [((0, before.key_groups - 1), (0, after.key_groups - 1))]


def regrouped(stored: Iterator[Row], rows: StateRows, closing: ExitStack) -> Iterator[Row]:
    """Sort rows of another number of key groups by the row keys that they have in `rows`.

    Parameters:
        closing: removes the sorted rows.
    """
    name, place = rows.state.name, closing.enter_context(scratch_directory("feed"))
    backend = RocksBackend(place, [name])
    closing.callback(backend.close)
    for batch in in_batches((name, rows.keys.regrouped(key), row) for key, row in stored):
        backend.write(batch)
    return backend.scan(name, *group_bounds(0, MAX_GROUPS - 1))


def _columns(
    facts: ChangeFacts, table: ChangeTable, changes: Iterable[StoredChanges]
) -> Iterator[pa.RecordBatch]:
    """Yield changes as columns, "clear" before the rows of its key."""
    for stored in changes:
        if stored.cleared is None:
            yield table.clear_all(facts)
        else:
            for batch in row_batches((start, b"") for start in stored.cleared):
                yield table.batch(facts, "clear", _in_shard(batch, stored.shard))
        yield from _changed(facts, table, stored.rows, stored.shard)


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
