"""Change sources: the files or states from which the changes of a state in an epoch are read.

The changes are planned as pieces: those of one shard in one epoch, or, if two states have to be
compared, those of a range of key groups. Pieces are planned in one process and read in others:
they are small, and picklable.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from statekit.backend.mutation import in_batches
from statekit.backend.rocksdb import RocksBackend
from statekit.backend.scratch import scratch_directory
from statekit.checkpoint.epoch_id import EpochId
from statekit.checkpoint.manifest import EpochManifest
from statekit.checkpoint.own_files import follows_by_files, own_files
from statekit.checkpoint.repository import Repository, group_bounds
from statekit.checkpoint.restore_plan import local_rows
from statekit.checkpoint.retention import still_kept
from statekit.checkpoint.sealed_json import FileRef
from statekit.errors import QueryError
from statekit.keygroup import GROUP_BYTES, MAX_GROUPS
from statekit.query.changes.change import Kind
from statekit.query.changes.change_table import ChangeFacts
from statekit.query.changes.net_changes import NetChanges, joined
from statekit.query.rows.epochs import have_other_shards
from statekit.query.rows.state_rows import Row, StateRows, expiry_time_us
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


# ------------------------------------------------------------------------------------ planning


def kind_of_changes(
    before: EpochManifest | None,
    rows_before: StateRows | None,
    after: EpochManifest,
    rows: StateRows,
) -> Kind:
    """Return the origin of the changes of a state from one epoch to the next.

    Parameters:
        before: the manifest of the epoch before; None if it does not have the state, and for a
            consumer that starts with an empty table.
        rows_before, rows: the decoders of the state's rows in both epochs.
    """
    if before is None or rows_before is None:
        return "snapshot"
    is_same = rows_before.state == rows.state
    return "changes" if is_same and follows_by_files(before, after) else "difference"


def pieces_of_epoch(
    repository: Repository,
    kind: Kind,
    before: EpochManifest | None,
    after: EpochManifest,
    rows: StateRows,
) -> Iterator[ShardChanges]:
    """Yield the pieces of the changes of a state in an epoch.

    Parameters:
        kind, before, after, rows: as for `kind_of_changes`.
    """
    operator = rows.operator.name
    own = after.operators[operator]
    facts = ChangeFacts(after.epoch, after.cause, kind, own.watermark_us, after.processing_time_us)
    piece = ShardChanges(facts, after.job_file)
    compared = replace(piece, epoch_id=after.id, before=None if before is None else before.id)
    if kind != "changes" or before is None:
        if rows.is_local:
            yield replace(compared, before=None)
            return
        for groups_before, groups in _compared_groups(before, after, operator):
            yield replace(compared, groups_before=groups_before, groups=groups)
    elif rows.is_local and have_other_shards(before, after, operator):
        yield replace(compared, before=None)
    else:
        numbers = {shard.first_group: number for number, shard in enumerate(own.shards)}
        for shard, refs in own_files(repository, before, after, operator):
            if files := tuple(ref for ref in refs if rows.is_local or not ref.local):
                yield replace(piece, shard=numbers[shard.first_group], files=files)


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


# ------------------------------------------------------------------------------------- reading


def changes_of_files(
    repository: Repository, piece: ShardChanges, rows: StateRows
) -> Iterator[StoredChanges]:
    """Yield the changes of a piece from its files."""
    shard, cut = (piece.shard, GROUP_BYTES) if rows.is_local else (None, 0)
    with NetChanges(repository, piece.files, rows.state.name) as net:
        cleared = (start[cut:] for start, _ in net.cleared)
        yield StoredChanges(((key[cut:], row) for key, row in net.rows), cleared, shard)


def all_of_shards(
    repository: Repository, after: EpochManifest, rows: StateRows
) -> Iterator[StoredChanges]:
    """Yield a clear and all rows of operator state, for an epoch whose shards have changed."""
    yield StoredChanges((), cleared=None)
    of_shards = local_rows(repository, rows.operator, after)[rows.state.name]
    for number, own in enumerate(of_shards):
        yield StoredChanges(own, shard=number)


@dataclass(frozen=True)
class Comparison:
    """Comparison of a state with the one before, or all rows if there is none before."""

    repository: Repository
    after: EpochManifest
    rows: StateRows
    before: EpochManifest | None
    rows_before: StateRows | None

    def changed_rows(
        self, groups_before: Groups | None, groups: Groups
    ) -> Iterator[tuple[bytes, bytes | None]]:
        """Yield the row keys of rows that differ, and the new rows; None for deleted ones.

        Parameters:
            groups_before, groups: of a piece.
        """
        with contextlib.ExitStack() as closing:
            before: Iterator[Row] = iter(())
            if groups_before is not None:
                assert self.before is not None
                closing.enter_context(still_kept(self.repository, self.before.epoch, QueryError))
                before = self._unpacked(self.before, groups_before, closing)
                if self.before.key_groups != self.after.key_groups:
                    before = regrouped(before, self.rows, closing)
            now_us = expiry_time_us(self.after, self.rows.operator.name, self.rows.state)
            after = self._unpacked(self.after, groups, closing)
            for row_key, old, new in joined(before, self.rows.unexpired(after, now_us)):
                if new is None or old is None or not self._is_same(old, new):
                    yield row_key, new

    def _is_same(self, old: bytes, new: bytes) -> bool:
        return self.rows_before is not None and is_same_row(self.rows_before, old, self.rows, new)

    def _unpacked(
        self, manifest: EpochManifest, groups: Groups, closing: contextlib.ExitStack
    ) -> Iterator[Row]:
        name = self.rows.state.name
        shards = ShardRows(self.repository, self.rows.operator.name, manifest)
        backend = closing.enter_context(shards.opened_groups(groups, [name]))
        return backend.scan(name, *group_bounds(*groups))


def is_same_row(rows_before: StateRows, old: bytes, rows: StateRows, new: bytes) -> bool:
    """Return whether a row has the same value and deadline as before. Its type may have changed."""
    if rows_before.state == rows.state:
        return old == new
    return (rows_before.value(old), rows_before.deadline_us(old)) == (
        rows.value(new),
        rows.deadline_us(new),
    )


def regrouped(
    stored: Iterator[Row], rows: StateRows, closing: contextlib.ExitStack
) -> Iterator[Row]:
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
