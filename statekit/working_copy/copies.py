"""Working copies: the local copy of a shard, opened at a given attempt.

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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Protocol

from statekit.backend.interface import Backend, MemoryBackend
from statekit.backend.mutation import Batch
from statekit.backend.rocksdb_options import RocksOptions
from statekit.checkpoint.manifest import ShardPlan, ShardPlans, ShardState
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.restore_plan import apply_plan, last_file, missed_files, shard_restore_plan
from statekit.errors import StorageError
from statekit.working_copy.base_lifecycle import BaseLifecycle
from statekit.working_copy.base_options import BaseOptions
from statekit.working_copy.clipping import Database, opened
from statekit.working_copy.directory import DirectoryLease, Mark, distrust, read_mark
from statekit.working_copy.disk_space import CopySpace
from statekit.working_copy.restore import Assembly
from statekit.working_copy.uploaded_tables import forget_stored_below

_CopyName = tuple[str | int, ...]
"""The identity of a copy: checkpoint, operator, first and last key group, states."""


class Fetched(NamedTuple):
    """The amount of data that was read from the checkpoint to bring a copy to its base.

    Parameters:
        restored: bytes of the files that it was restored from.
        caught_up: bytes of the change files that it had missed.
    """

    restored: int = 0
    caught_up: int = 0


_NOTHING = Fetched()


class WorkingCopy(Protocol):
    """The rows of a shard during one epoch. Ends with `close_at` or `abandon`."""

    @property
    def backend(self) -> Backend:
        """The backend for reads. Writes use `write`."""

    @property
    def must_count_rows(self) -> bool:
        """True if all rows must be counted in this epoch."""

    @property
    def fetched(self) -> Fetched:
        """The amount of data that was read from the checkpoint to bring the copy to its base."""

    def write(self, batch: Batch) -> None:
        """Apply a batch. The copy is not trusted until `close_at`."""

    def newest_base(self) -> ShardState:
        """Return the shard before the epoch, on the newest base that is known on this host."""

    def take_base(self, shard: ShardState, local_states: Collection[str]) -> None:
        """Take a base snapshot if one is due. Correctness does not depend on it.

        Parameters:
            shard: the shard after the epoch.
            local_states: names of its operator state.
        """

    def close_at(self, shard: ShardState) -> None:
        """Close the copy, and mark it as the copy of the shard after the epoch."""

    def abandon(self) -> None:
        """Close the copy. After a write, it is no longer trusted."""


class WorkingCopies(Protocol):
    """The working copies of a process."""

    def obtain(self, plan: ShardPlan, states: Sequence[str], repository: Repository) -> WorkingCopy:
        """Return a copy of the plan's shard at its base, with these column families."""

    def tidy(self, plans: ShardPlans) -> None:
        """Free disk space before shards of an operator run."""

    def forget(self, checkpoint_id: str) -> None:
        """Remove the copies of a checkpoint that are not in use."""


def default_working_directory() -> str:
    """Return the default directory of working copies: `statekit-<uid>` below `TMPDIR`."""
    return os.path.join(tempfile.gettempdir(), f"statekit-{os.getuid()}")


@dataclass
class _MemoryCopy:
    backend: MemoryBackend
    owner: MemoryCopies
    name: _CopyName
    base: ShardState
    written: bool = False
    must_count_rows: bool = False
    fetched: Fetched = _NOTHING

    def write(self, batch: Batch) -> None:
        self.written = True
        self.backend.write(batch)

    def newest_base(self) -> ShardState:
        return self.base

    def take_base(self, shard: ShardState, local_states: Collection[str]) -> None:
        pass  # copies in memory take none

    def close_at(self, shard: ShardState) -> None:
        self.owner.kept[self.name] = (shard.attempt, self.backend)

    def abandon(self) -> None:
        if not self.written:
            self.close_at(self.base)


class MemoryCopies:
    """Working copies in memory, for tests and for small jobs in one process."""

    def __init__(self) -> None:
        self.kept: dict[_CopyName, tuple[str | None, MemoryBackend]] = {}

    def obtain(self, plan: ShardPlan, states: Sequence[str], repository: Repository) -> WorkingCopy:
        base = plan.base
        name: _CopyName = (plan.checkpoint_id, plan.operator, *base.groups, *states)
        attempt, backend = self.kept.pop(name, (None, None))
        if backend is None or attempt != base.attempt:
            backend = MemoryBackend(states)
            restore_plan = shard_restore_plan(repository, plan.operator, base, plan.base_epoch)
            apply_plan(repository, backend, restore_plan)
        return _MemoryCopy(backend, self, name, base)

    def tidy(self, plans: ShardPlans) -> None:
        owner = plans.common.checkpoint_id, plans.operator
        current = {base.groups for base in plans.bases}
        for name in [n for n in self.kept if n[:2] == owner and n[2:4] not in current]:
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
        started_us: when the run began, if its shards may move to other hosts.
    """

    def __init__(
        self,
        root: str | Path,
        options: RocksOptions | None = None,
        bases: BaseOptions | None = None,
        started_us: int | None = None,
    ) -> None:
        self.root = Path(root)
        self.options = options or RocksOptions()
        self._space = CopySpace(self.root, self.options)
        self.bases = bases or BaseOptions()
        self._started_us = started_us

    def obtain(self, plan: ShardPlan, states: Sequence[str], repository: Repository) -> WorkingCopy:
        first, last = plan.base.groups
        copies = self.root / plan.checkpoint_id / plan.operator
        lease = DirectoryLease.take(copies / f"{first}-{last}")
        self._space.note_origin(plan.checkpoint_id, repository.url)
        assembly = Assembly(lease.home, copies, plan, tuple(states), self.options, repository)
        bases = BaseLifecycle(lease.home, plan, repository, self.bases, self.options)
        copy = _DiskCopy(lease, assembly, bases, self._space)
        try:
            copy.open()
        except BaseException:
            copy.abandon()
            raise
        return copy

    def tidy(self, plans: ShardPlans) -> None:
        self._space.tidy_operator(plans, self._started_us)
        self._space.tidy()

    def forget(self, checkpoint_id: str) -> None:
        self._space.remove_all(checkpoint_id)


@dataclass
class _DiskCopy:
    _lease: DirectoryLease
    _assembly: Assembly
    _bases: BaseLifecycle
    _space: CopySpace
    _written: bool = False
    _backend: Database | None = None
    fetched: Fetched = _NOTHING

    @property
    def backend(self) -> Database:
        if self._backend is None:
            raise StorageError("this working copy is closed: obtain it again")
        return self._backend

    @property
    def must_count_rows(self) -> bool:
        return self._bases.must_count_rows

    def open(self) -> None:
        """Open the databases at the plan's attempt. Missed changes are applied, or everything is
        restored.
        """
        assembly = self._assembly
        plan, repository = assembly.plan, assembly.repository
        mark = read_mark(self._lease.home, assembly.states)
        if mark is not None and self._reopens(mark):
            if mark.attempt == plan.base.attempt:
                return
            missed = missed_files(repository, plan.operator, plan.base, plan.base_epoch, mark.last)
            if missed is not None:
                self._unmark()
                repository.replay(self.backend, missed, *plan.base.groups)
                self.fetched = Fetched(caught_up=sum(ref.size for ref in missed))
                return
        self._close()
        self._unmark()
        self._lease.set_aside()
        self._lease.wipe()
        try:
            self._restore()
        finally:
            self._lease.forget_aside()

    def _reopens(self, mark: Mark) -> bool:
        """Open the databases of a trusted copy. Return False if they are damaged or incomplete."""
        assembly = self._assembly
        try:
            self._backend = opened(
                self._lease.home, mark.fragments, assembly.states, assembly.options
            )
        except StorageError:
            return False
        self._bases = replace(self._bases, fragments=mark.fragments)
        return mark.sequences in ((), self._backend.sequences)

    def _restore(self) -> None:
        """Restore the databases. The tables of the previous databases may be used again."""
        if self._space.is_short:
            self._space.make_room()
        try:
            fragments, self._backend, size = self._assembly.made(from_copies=True)
        except StorageError:
            if not self._assembly.sources:
                raise
            self._lease.wipe()  # the files of the sources may be damaged
            fragments, self._backend, size = self._assembly.made(from_copies=False)
        self.fetched = Fetched(restored=size)
        self._bases = replace(self._bases, fragments=fragments)

    def write(self, batch: Batch) -> None:
        self._unmark()
        self.backend.write(batch)

    def newest_base(self) -> ShardState:
        if self._lease.is_private:
            return self._assembly.plan.base
        return self._bases.newest_base()

    def take_base(self, shard: ShardState, local_states: Collection[str]) -> None:
        if not self._lease.is_private:
            self._bases.take(shard, self.backend, local_states)

    def close_at(self, shard: ShardState) -> None:
        if self.backend.failed:
            # The user's function may have caught the error and gone on without the row.
            raise StorageError(
                f"the working copy at {self._lease.home} failed during this epoch: nothing of the "
                "epoch is committed; start the job again, which makes a new copy"
            )
        if self._written:
            self.backend.flush()
        sequences = self.backend.sequences
        self._close()
        if self._written and not (self._lease.is_private or self._bases.replaces_copy()):
            self._lease.set_mark(
                Mark(
                    attempt=shard.attempt,
                    last=last_file(shard),
                    fragments=self._bases.fragments,
                    sequences=sequences,
                    states=self._assembly.states,
                )
            )
        self._lease.release()

    def abandon(self) -> None:
        backend = self._backend
        try:
            # Whatever else fails here matters less than the reason for giving up.
            with contextlib.suppress(StorageError):
                self._close()
            with contextlib.suppress(StorageError):
                if backend is not None and backend.failed:
                    self._unmark()
                    if backend.damaged:
                        forget_stored_below(self._assembly.copies)
                        for source in self._assembly.sources:
                            distrust(source)
        finally:
            self._lease.release()

    def _close(self) -> None:
        backend, self._backend = self._backend, None
        if backend is not None:
            backend.close()

    def _unmark(self) -> None:
        if not self._written:
            self._written = True
            self._lease.clear_mark()
