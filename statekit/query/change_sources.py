"""Change sources: the files or states from which the changes of a state in an epoch are read."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from statekit.backend.mutation import in_batches
from statekit.backend.rocksdb import RocksBackend
from statekit.backend.scratch import scratch_directory
from statekit.checkpoint.manifest import EpochManifest, ShardState
from statekit.checkpoint.own_files import follows_by_files, own_files
from statekit.checkpoint.repository import Repository, group_bounds
from statekit.checkpoint.restore_plan import local_rows
from statekit.checkpoint.retention import still_kept
from statekit.checkpoint.sealed_json import FileRef
from statekit.errors import QueryError
from statekit.keygroup import GROUP_BYTES, MAX_GROUPS, group_of_row, pack_group
from statekit.query.change import Change, Kind
from statekit.query.net_changes import NetChanges, joined
from statekit.query.state_rows import Row, StateRows, expiry_time_us
from statekit.timestamp import instant
from statekit.working_copy.unpacked_shard import ShardRows


@dataclass(frozen=True)
class ChangeSource:
    """Source of the changes of a state in an epoch.

    Parameters:
        kind: origin of the changes.
        repository: the checkpoint.
        after: the manifest of the epoch.
        rows: the decoder of its rows.
    """

    kind: Kind
    repository: Repository
    after: EpochManifest
    rows: StateRows

    def changes(self) -> Iterator[Change]:
        """Yield the net changes."""
        with still_kept(self.repository, self.after.epoch, QueryError):
            yield from self._changes()

    def _changes(self) -> Iterator[Change]:
        raise NotImplementedError

    @property
    def _shards(self) -> Sequence[ShardState]:
        return self.after.operators[self.rows.operator.name].shards

    def _numbers(self) -> dict[int, int]:
        """Return the number of each shard by its first key group: the prefix of operator state."""
        return {shard.first_group: number for number, shard in enumerate(self._shards)}

    def _all_of_shards(self) -> Iterator[Change]:
        """Yield a clear and all rows of operator state, for an epoch whose shards have changed."""
        name = self.rows.state.name
        yield Change("clear", None)
        rows_of = local_rows(self.repository, self.rows.operator, self.after)[name]
        for number, own in enumerate(rows_of):
            prefix = pack_group(self._shards[number].first_group)
            for subkey, row in own:
                yield self._upsert(prefix + subkey, row, number)

    def _upsert(
        self, row_key: bytes, row: bytes, shard: int | None = None, before: Any = None
    ) -> Change:
        rows = self.rows
        key, end = (shard, GROUP_BYTES) if rows.is_local else rows.keys.split(row_key)
        deadline = rows.deadline_us(row)
        expires = None if deadline is None else instant(deadline)
        place, value = rows.place(row_key, end), rows.value(row)
        return Change("upsert", key, place, value, expires, before)

    def _delete(self, row_key: bytes, shard: int | None = None, before: Any = None) -> Change:
        rows = self.rows
        key, end = (shard, GROUP_BYTES) if rows.is_local else rows.keys.split(row_key)
        return Change("delete", key, rows.place(row_key, end), before=before)


@dataclass(frozen=True)
class FileChanges(ChangeSource):
    """Changes from the change files of the epoch."""

    before: EpochManifest

    def _changes(self) -> Iterator[Change]:
        rows, operator = self.rows, self.rows.operator.name
        if rows.is_local and have_other_shards(self.before, self.after, operator):
            yield from self._all_of_shards()
            return
        for _, refs in self.files_of_shards():
            yield from self._of_shard(refs)

    def files_of_shards(self) -> Iterator[tuple[ShardState, Sequence[FileRef]]]:
        """Yield the shards that changed, with the change files of each in reading order."""
        operator = self.rows.operator.name
        for shard, refs in own_files(self.repository, self.before, self.after, operator):
            if own := [ref for ref in refs if self.rows.is_local or not ref.local]:
                yield shard, own

    def _of_shard(self, refs: Sequence[FileRef]) -> Iterator[Change]:
        rows, numbers = self.rows, self._numbers()
        with NetChanges(self.repository, refs, rows.state.name) as net:
            for start, _ in net.cleared:
                if not rows.is_local:
                    yield Change("clear", rows.keys.split(start)[0])
                elif (number := numbers.get(group_of_row(start))) is not None:
                    yield Change("clear", number)
            for row_key, row in net.rows:
                shard = numbers.get(group_of_row(row_key)) if rows.is_local else None
                if row is None:
                    yield self._delete(row_key, shard)
                else:
                    yield self._upsert(row_key, row, shard)


@dataclass(frozen=True)
class Comparison(ChangeSource):
    """Changes between two states, or all rows if there is no state before."""

    before: EpochManifest | None = None
    rows_before: StateRows | None = None

    def _changes(self) -> Iterator[Change]:
        if self.rows.is_local:
            yield from self._all_of_shards()
            return
        for groups_before, groups in self.pieces():
            for row_key, row in self.changed_rows(groups_before, groups):
                yield self._delete(row_key) if row is None else self._upsert(row_key, row)

    def changed_rows(
        self, groups_before: tuple[int, int] | None, groups: tuple[int, int]
    ) -> Iterator[tuple[bytes, bytes | None]]:
        """Yield the row keys of rows that differ, and the new rows; None for deleted ones.

        Parameters:
            groups_before, groups: one of the `pieces`.
        """
        with contextlib.ExitStack() as closing:
            before: Iterator[Row] = iter(())
            if groups_before is not None:
                assert self.before is not None
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
        self, manifest: EpochManifest, groups: tuple[int, int], closing: contextlib.ExitStack
    ) -> Iterator[Row]:
        name = self.rows.state.name
        shards = ShardRows(self.repository, self.rows.operator.name, manifest)
        backend = closing.enter_context(shards.opened_groups(groups, [name]))
        return backend.scan(name, *group_bounds(*groups))

    def pieces(self) -> list[tuple[tuple[int, int] | None, tuple[int, int]]]:
        """Return the key groups of both states that are compared with each other."""
        before, after = self.before, self.after
        own = [shard.groups for shard in self._shards]
        if before is None:
            return [(None, groups) for groups in own]
        if before.key_groups == after.key_groups:
            return [(groups, groups) for groups in own]
        return [((0, before.key_groups - 1), (0, after.key_groups - 1))]


def change_source(
    repository: Repository,
    before: EpochManifest | None,
    after: EpochManifest,
    rows_of: Callable[[EpochManifest], StateRows],
) -> FileChanges | Comparison:
    """Return the source of the changes of a state from one epoch to the next.

    Parameters:
        repository: the checkpoint.
        before: the manifest of the epoch before; None if it does not have the state, and for a
            consumer that starts with an empty table.
        after: the manifest of the epoch.
        rows_of: returns the decoder of the state's rows in an epoch.
    """
    rows = rows_of(after)
    if before is None:
        return Comparison("snapshot", repository, after, rows)
    rows_before = rows_of(before)
    if rows_before.state == rows.state and follows_by_files(before, after):
        return FileChanges("changes", repository, after, rows, before)
    return Comparison("difference", repository, after, rows, before, rows_before)


def have_other_shards(before: EpochManifest, after: EpochManifest, operator: str) -> bool:
    """Return whether the shards of an operator differ between an epoch and the one before."""
    of_before, of_after = (
        [shard.groups for shard in manifest.operators[operator].shards]
        for manifest in (before, after)
    )
    return of_before != of_after


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
