"""Open the working copy of a shard at a given attempt.

A copy is only a cache of what manifests reference. The write-ahead log is off, and column families
are flushed one by one, so a killed process may leave rows of an uncommitted epoch in some of them.
Therefore a copy is trusted only if it was closed cleanly: its mark is removed durably before the
first write, and written again durably after the database was flushed and closed.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from statekit.backend.interface import Backend, MemoryBackend
from statekit.backend.mutation import Batch
from statekit.backend.rocksdb_options import RocksOptions
from statekit.checkpoint.manifest import ShardPlan, ShardState
from statekit.checkpoint.replay import replay
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.restore_plan import last_file, missed_files, shard_restore_plan
from statekit.errors import StorageError
from statekit.working_copy.base_lifecycle import BaseKeeping, Copy
from statekit.working_copy.base_options import BaseOptions
from statekit.working_copy.base_snapshot import noted
from statekit.working_copy.clipping import Database, opened
from statekit.working_copy.directory import WHOLE, Lease, Mark, Ranges, database_paths, distrust
from statekit.working_copy.disk_space import CopySpace
from statekit.working_copy.from_local_copies import Assembly
from statekit.working_copy.uploaded_tables import forget_stored

_CopyName = tuple[str | int, ...]
"""Checkpoint, operator, first and last key group, states."""


class WorkingCopy(Protocol):
    """The rows of a shard during one epoch."""

    @property
    def backend(self) -> Backend:
        """For reads. Writes go through `write`."""

    @property
    def is_to_be_counted(self) -> bool:
        """Whether this epoch must count all rows."""

    def write(self, batch: Batch) -> None:
        """Apply a batch. The copy is not trusted again until `keep`."""

    def newest_base(self) -> ShardState:
        """Return the shard before the epoch, on the newest base that is known on this host."""

    def keep(self, shard: ShardState, local_states: Collection[str] = ()) -> None:
        """Close the copy and mark it as a copy of the shard after the epoch.

        Parameters:
            local_states: names of the states that belong to the shard, for a base that may be
                taken.
        """

    def drop(self) -> None:
        """Close the copy. If anything was written, it is not trusted again."""


class WorkingCopies(Protocol):
    """Where a process keeps its working copies."""

    def obtain(self, plan: ShardPlan, states: Sequence[str], repository: Repository) -> WorkingCopy:
        """Return a copy of the plan's shard that stands at its base, with these column families."""

    def tidy(self, plans: Sequence[ShardPlan]) -> None:
        """Make room before shards of an operator run.

        Parameters:
            plans: of all its shards.
        """

    def forget(self, checkpoint_id: str) -> None:
        """Remove the copies of a checkpoint that nobody uses."""


def default_working_directory() -> str:
    """Return the default directory of working copies: `statekit-<uid>` in the temporary
    directory.
    """
    return os.path.join(tempfile.gettempdir(), f"statekit-{os.getuid()}")


@dataclass
class _MemoryCopy:
    backend: MemoryBackend
    owner: MemoryCopies
    name: _CopyName
    base: ShardState
    written: bool = False
    is_to_be_counted: bool = False

    def write(self, batch: Batch) -> None:
        self.written = True
        self.backend.write(batch)

    def newest_base(self) -> ShardState:
        return self.base

    def keep(self, shard: ShardState, local_states: Collection[str] = ()) -> None:
        self.owner.kept[self.name] = (shard.attempt, self.backend)

    def drop(self) -> None:
        if not self.written:
            self.owner.kept[self.name] = (self.base.attempt, self.backend)


class MemoryCopies:
    """Working copies in memory: for tests and for small jobs in one process."""

    def __init__(self) -> None:
        self.kept: dict[_CopyName, tuple[str | None, MemoryBackend]] = {}

    def obtain(self, plan: ShardPlan, states: Sequence[str], repository: Repository) -> WorkingCopy:
        base = plan.base
        name: _CopyName = (plan.checkpoint_id, plan.operator, *base.groups, *states)
        attempt, backend = self.kept.pop(name, (None, None))
        if backend is None or attempt != base.attempt:
            backend = MemoryBackend(states)
            found = shard_restore_plan(repository, plan.operator, base, plan.base_epoch)
            replay(repository, backend, found)
        return _MemoryCopy(backend, self, name, base)

    def tidy(self, plans: Sequence[ShardPlan]) -> None:
        if plans:
            current = {(p.checkpoint_id, p.operator, *p.base.groups) for p in plans}
            owner = plans[0].checkpoint_id, plans[0].operator
            for name in [n for n in self.kept if n[:2] == owner and n[:4] not in current]:
                del self.kept[name]

    def forget(self, checkpoint_id: str) -> None:
        for name in [name for name in self.kept if name[0] == checkpoint_id]:
            del self.kept[name]


class DiskCopies:
    """Working copies in RocksDB under a local directory.

    Parameters:
        root: created if absent; safe to delete whenever no job runs.
        options: limits of RocksDB.
        bases: when base snapshots are taken.
    """

    def __init__(
        self,
        root: str | Path,
        options: RocksOptions | None = None,
        bases: BaseOptions | None = None,
    ) -> None:
        self.root = Path(root)
        self.options = options or RocksOptions()
        self._space = CopySpace(self.root, self.options)
        self.bases = bases or BaseOptions()

    def obtain(self, plan: ShardPlan, states: Sequence[str], repository: Repository) -> WorkingCopy:
        first, last = plan.base.groups
        copies = self.root / plan.checkpoint_id / plan.operator
        lease = Lease.take(copies / f"{first}-{last}")
        self._space.note_origin(plan.checkpoint_id, repository.url)
        keeping = BaseKeeping(lease.home, plan, repository, self.bases, self.options)
        copy = _DiskCopy(lease, copies, tuple(states), self.options, self._space, keeping)
        try:
            copy.stand_at(plan, repository)
        except BaseException:
            copy.drop()
            raise
        return copy

    def tidy(self, plans: Sequence[ShardPlan]) -> None:
        for plan in plans[:1]:
            used = partial(_used_groups, plans)
            self._space.tidy_operator(plan.checkpoint_id, plan.operator, used)
        self._space.tidy()

    def forget(self, checkpoint_id: str) -> None:
        self._space.remove_all(checkpoint_id)


def _used_groups(plans: Sequence[ShardPlan]) -> set[tuple[int, int]]:
    """Return the key groups of the planned shards, and of the shards that they are assembled
    from.
    """
    sources = {piece.shard for plan in plans for piece in plan.base.slices}
    return sources | {plan.base.groups for plan in plans}


class _DiskCopy:
    def __init__(
        self,
        lease: Lease,
        copies: Path,
        states: tuple[str, ...],
        options: RocksOptions,
        space: CopySpace,
        keeping: BaseKeeping,
    ) -> None:
        self._lease = lease
        self._copies = copies
        self._states = states
        self._options = options
        self._space = space
        self._keeping = keeping
        self._written = False
        self._backend: Database | None = None
        self._fragments: Ranges = WHOLE
        self._sources: list[Path] = []
        """Copies of other shards that share files with this one, which was just made of them."""

    @property
    def backend(self) -> Database:
        if self._backend is None:
            raise StorageError("this working copy is closed: obtain it again")
        return self._backend

    def stand_at(self, plan: ShardPlan, repository: Repository) -> None:
        """Open the database at the plan's attempt: as it is, after missing changes, or restored."""
        base, mark = plan.base, self._lease.mark(self._states)
        if mark is not None and self._reopens(mark):
            if mark.attempt == base.attempt:
                return
            missed = missed_files(repository, plan.operator, base, plan.base_epoch, mark.last)
            # To share files is cheaper than to apply what a copy of long ago has missed.
            if missed is not None and not (
                missed and self._assembly(plan, repository).costs_nothing
            ):
                self._unmark()
                repository.replay(self.backend, missed, *base.groups)
                return
        self._close()
        self._unmark()
        self._lease.set_aside()
        self._lease.wipe()
        try:
            self._start_over(plan, repository)
        finally:
            self._lease.forget_aside()

    def _start_over(self, plan: ShardPlan, repository: Repository) -> None:
        """Restore the databases. Tables of the previous ones may be used again."""
        if self._space.is_short:
            self._space.make_room()
        assembly = self._assembly(plan, repository)
        try:
            made = assembly.made(from_copies=True)
            self._sources = assembly.sources
        except StorageError:
            if not assembly.sources:
                raise
            self._lease.wipe()  # it may be the files of the others: the checkpoint has all rows
            made = assembly.made(from_copies=False)
        self._fragments, self._backend = made

    def newest_base(self) -> ShardState:
        if self._lease.is_private:
            return self._keeping.plan.base
        return self._keeping.newest_base(self._paths)

    @property
    def is_to_be_counted(self) -> bool:
        return self._keeping.needs_counts

    @property
    def _paths(self) -> list[Path]:
        return database_paths(self._lease.home, self._fragments)

    def write(self, batch: Batch) -> None:
        self._unmark()
        self.backend.write(batch)

    def keep(self, shard: ShardState, local_states: Collection[str] = ()) -> None:
        if self.backend.failed:
            # The user's function may have caught the error and gone on without the row.
            raise StorageError(
                f"the working copy at {self._lease.home} failed during this epoch: nothing of the "
                "epoch is committed; start the job again, which makes a new copy"
            )
        sequences: tuple[int, ...] = ()
        if self._written:
            self.backend.flush()
        if shard.attempt != self._keeping.plan.base.attempt and not self._lease.is_private:
            copy = Copy(self.backend, self._fragments, self._paths)
            self._keeping.take(shard, copy, local_states)
        if self._written:
            sequences = self.backend.sequences
        self._close()
        if self._written and (self._lease.is_private or not self._keeping.is_outgrown(self._paths)):
            mark = Mark(shard.attempt, last_file(shard), self._fragments, sequences)
            self._lease.set_mark(mark, self._states)
        self._lease.release()

    def drop(self) -> None:
        backend = self._backend
        try:
            # Whatever else fails here matters less than the reason for giving up.
            with contextlib.suppress(StorageError):
                self._close()
            with contextlib.suppress(StorageError):
                if backend is not None and backend.failed:
                    self._unmark()
                    if backend.damaged:
                        forget_stored(noted(self._copies))
                        for source in self._sources:
                            distrust(source)
        finally:
            self._lease.release()

    def _reopens(self, mark: Mark) -> bool:
        """Open a trusted database. Return False if it is damaged or incomplete."""
        try:
            self._backend = opened(self._lease.home, mark.fragments, self._states, self._options)
        except StorageError:
            return False
        self._fragments = mark.fragments
        return mark.sequences in ((), self._backend.sequences)

    def _assembly(self, plan: ShardPlan, repository: Repository) -> Assembly:
        """Return the assembly from copies of the shards that this one was cut out of."""
        home, copies = self._lease.home, self._copies
        return Assembly(home, copies, plan, self._states, self._options, repository)

    def _close(self) -> None:
        backend, self._backend = self._backend, None
        if backend is not None:
            backend.close()

    def _unmark(self) -> None:
        if not self._written:
            self._written = True
            self._lease.clear_mark()
