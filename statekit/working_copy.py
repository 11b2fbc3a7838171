"""A shard's working copy: a backend that is known to stand at a given attempt.

What lives here: obtaining a copy, rebuilding it when it cannot be trusted, and marking it as
trustworthy again. What does not: the lock and the mark themselves (`copy_home`), making a copy out
of those of other shards (`assembly`), and what is done with it in between (`shard`).

A copy is never the truth, only a cache of what manifests name. The write-ahead log is off, and
column families are flushed one by one, so a process that is killed may leave rows of an epoch
beside others that never made it. Therefore a copy on disk is trusted only if it was closed cleanly:
its mark is removed, durably, before the first write, and written again, durably, after the database
was flushed and closed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from statekit.assembly import Assembly, Database, opened
from statekit.backend import Backend, MemoryBackend
from statekit.copy_home import WHOLE, Lease, Mark, Ranges
from statekit.errors import StorageError
from statekit.manifest import ShardPlan
from statekit.mutation import Batch
from statekit.repository import Repository
from statekit.rocks import RocksBackend, RocksOptions

__all__ = ["DiskCopies", "MemoryCopies", "WorkingCopies", "WorkingCopy"]


_CopyName = tuple[str | int, ...]
"""Checkpoint, operator, first and last key group, states."""


class WorkingCopy(Protocol):
    """A shard's rows for the length of one epoch."""

    @property
    def backend(self) -> Backend:
        """Reads; and writes only through `write`."""

    def write(self, batch: Batch) -> None:
        """Apply a batch. From now on the copy is not trusted until `keep`."""

    def keep(self, attempt: str | None) -> None:
        """Close; the copy now stands at `attempt`."""

    def drop(self) -> None:
        """Close; if anything was written, the copy is not trusted again."""


class WorkingCopies(Protocol):
    """Where a process keeps its working copies."""

    def obtain(self, plan: ShardPlan, states: Sequence[str], repository: Repository) -> WorkingCopy:
        """A copy of the plan's shard that stands at its base, with these column families."""


@dataclass
class _MemoryCopy:
    backend: MemoryBackend
    owner: MemoryCopies
    name: _CopyName
    base: str | None
    written: bool = False

    def write(self, batch: Batch) -> None:
        self.written = True
        self.backend.write(batch)

    def keep(self, attempt: str | None) -> None:
        self.owner.kept[self.name] = (attempt, self.backend)

    def drop(self) -> None:
        if not self.written:
            self.owner.kept[self.name] = (self.base, self.backend)


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
            refs, _ = repository.changes(plan.operator, *base.groups, plan.base_epoch)
            repository.replay(backend, refs, *base.groups)
        return _MemoryCopy(backend, self, name, base.attempt)


class DiskCopies:
    """Working copies in RocksDB under a local directory.

    Parameters:
        root: made if absent; safe to delete whenever no job runs.
        options: what RocksDB may spend.
    """

    def __init__(self, root: str | Path, options: RocksOptions | None = None) -> None:
        self.root = Path(root)
        self.options = options or RocksOptions()

    def obtain(self, plan: ShardPlan, states: Sequence[str], repository: Repository) -> WorkingCopy:
        first, last = plan.base.groups
        copies = self.root / plan.checkpoint_id / plan.operator
        lease = Lease.take(copies / f"{first}-{last}")
        copy = _DiskCopy(lease, copies, tuple(states), self.options)
        try:
            copy.stand_at(plan, repository)
        except BaseException:
            copy.drop()
            raise
        return copy


class _DiskCopy:
    def __init__(
        self, lease: Lease, copies: Path, states: tuple[str, ...], options: RocksOptions
    ) -> None:
        self._lease = lease
        self._copies = copies
        self._states = states
        self._options = options
        self._written = False
        self._backend: Database | None = None
        self._fragments: Ranges = WHOLE

    @property
    def backend(self) -> Database:
        if self._backend is None:
            raise StorageError("this working copy is closed: obtain it again")
        return self._backend

    def stand_at(self, plan: ShardPlan, repository: Repository) -> None:
        """Open the database, catching up or starting over as its mark requires."""
        base, mark = plan.base, self._lease.mark(self._states)
        if mark is not None and self._reopens(mark):
            if mark.attempt == base.attempt:
                return
            refs, found = repository.changes(
                plan.operator, *base.groups, plan.base_epoch, after=mark.attempt
            )
            # To share files is cheaper than to apply what a copy of long ago has missed.
            if found and not (refs and self._assembly(plan, repository).costs_nothing):
                self._unmark()
                repository.replay(self.backend, refs, *base.groups)
                return
        self._close()
        self._unmark()
        self._lease.wipe()
        if base.slices and (made := self._assembly(plan, repository).made()) is not None:
            self._fragments, self._backend = made
            return
        refs, _ = repository.changes(plan.operator, *base.groups, plan.base_epoch)
        path = self._lease.home / "db"
        self._fragments, self._backend = WHOLE, RocksBackend(path, self._states, self._options)
        repository.replay(self.backend, refs, *base.groups)

    def write(self, batch: Batch) -> None:
        self._unmark()
        self.backend.write(batch)

    def keep(self, attempt: str | None) -> None:
        if self.backend.failed:
            # The user's function may have caught the error and gone on without the row.
            raise StorageError(
                f"the working copy at {self._lease.home} failed during this epoch: nothing of the "
                "epoch is committed; start the job again, which makes a new copy"
            )
        if self._written:
            self.backend.flush()
        self._close()
        if self._written:
            self._lease.set_mark(Mark(attempt, self._fragments), self._states)
        self._lease.release()

    def drop(self) -> None:
        try:
            # Whatever else fails here matters less than the reason for giving up.
            with contextlib.suppress(StorageError):
                if self._backend is not None and self._backend.failed:
                    self._unmark()
                self._close()
        finally:
            self._lease.release()

    def _reopens(self, mark: Mark) -> bool:
        """Open a database that is trusted; False if it turns out to be damaged or incomplete."""
        try:
            self._backend = opened(self._lease.home, mark.fragments, self._states, self._options)
        except StorageError:
            return False
        self._fragments = mark.fragments
        return True

    def _assembly(self, plan: ShardPlan, repository: Repository) -> Assembly:
        """How to begin with copies of the shards that this one was cut out of."""
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
