"""A shard's working copy: a backend that is known to stand at a given attempt.

What lives here: obtaining a copy, rebuilding it from the checkpoint when it cannot be trusted, and
marking it as trustworthy again. What does not: what is done with it in between (`shard`).

A copy is never the truth, only a cache of what manifests name. The write-ahead log is off, and
column families are flushed one by one, so a process that is killed may leave rows of an epoch
beside others that never made it. Therefore a copy on disk is trusted only if it was closed cleanly:

    <root>/<checkpoint id>/<operator>/<first>-<last>/
        lock    held (flock) by the process that uses the copy
        clean   names the attempt the copy stands at; removed, durably, before the first write,
                written again, durably, after the database was flushed and closed
        db/     the database
        private.<unique>/   the same again, for an attempt that found the lock held
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from statekit.backend import Backend, MemoryBackend
from statekit.clock import unique_id
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
        home = self.root / plan.checkpoint_id / plan.operator / f"{first}-{last}"
        copy = _DiskCopy(_Lease.take(home), tuple(states), self.options)
        try:
            copy.stand_at(plan, repository)
        except BaseException:
            copy.drop()
            raise
        return copy


class _DiskCopy:
    def __init__(self, lease: _Lease, states: tuple[str, ...], options: RocksOptions) -> None:
        self._lease = lease
        self._states = states
        self._options = options
        self._written = False
        self._backend: RocksBackend | None = None

    @property
    def backend(self) -> RocksBackend:
        if self._backend is None:
            raise StorageError("this working copy is closed: obtain it again")
        return self._backend

    def stand_at(self, plan: ShardPlan, repository: Repository) -> None:
        """Open the database, catching up or starting over as its mark requires."""
        base = plan.base
        known, held = self._lease.mark(self._states)
        usable = known and self._reopens()
        if usable and held == base.attempt:
            return
        after = held if usable else None
        refs, found = repository.changes(plan.operator, *base.groups, plan.base_epoch, after=after)
        if not found:
            self._close()
            self._lease.wipe()
            self._open(create=True)
        self._unmark()
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
            self._lease.set_mark(attempt, self._states)
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

    def _reopens(self) -> bool:
        """Open a database that is trusted; False if it turns out to be damaged or incomplete."""
        try:
            self._open(create=False)
        except StorageError:
            return False
        return True

    def _open(self, *, create: bool) -> None:
        path = self._lease.home / "db"
        self._backend = RocksBackend(path, self._states, self._options, create=create)

    def _close(self) -> None:
        backend, self._backend = self._backend, None
        if backend is not None:
            backend.close()

    def _unmark(self) -> None:
        if not self._written:
            self._written = True
            self._lease.clear_mark()


class _Lease:
    """Exclusive use of a copy's directory while this object holds it."""

    def __init__(self, home: Path, lock: int, *, private: bool) -> None:
        self.home = home
        self._lock: int | None = lock
        self._private = private

    @classmethod
    def take(cls, home: Path) -> _Lease:
        """Take the shard's directory; if another attempt still runs there, a private one in it."""
        lock = cls._locked(home)
        if lock is not None:
            cls._remove_abandoned(home)
            return cls(home, lock, private=False)
        alone = home / f"private.{unique_id()}"
        lock = cls._locked(alone)
        assert lock is not None, "nobody else knows a unique name"
        return cls(alone, lock, private=True)

    @classmethod
    def _remove_abandoned(cls, home: Path) -> None:
        """Remove private directories whose owner was killed: nobody holds their lock."""
        for alone in home.glob("private.*"):
            lock = cls._locked(alone)
            if lock is not None:
                cls(alone, lock, private=True).release()

    @staticmethod
    def _locked(home: Path) -> int | None:
        try:
            home.mkdir(parents=True, exist_ok=True)
            lock = os.open(home / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise _unusable(home, error) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return None
        return lock

    def mark(self, states: Sequence[str]) -> tuple[bool, str | None]:
        """Whether the copy may be trusted, and the attempt it stands at."""
        try:
            found = json.loads((self.home / "clean").read_text())
            trusted = found["states"] == list(states) and (self.home / "db").is_dir()
            return trusted, found["attempt"]
        except (OSError, ValueError, KeyError, TypeError):
            return False, None  # no mark, or not one of ours: start over

    def clear_mark(self) -> None:
        try:
            (self.home / "clean").unlink(missing_ok=True)
            _sync(self.home)
        except OSError as error:
            raise _unusable(self.home, error) from error

    def set_mark(self, attempt: str | None, states: Sequence[str]) -> None:
        draft = self.home / "clean.draft"
        try:
            draft.write_text(json.dumps({"attempt": attempt, "states": list(states)}))
            _sync(draft)
            draft.rename(self.home / "clean")
            _sync(self.home)
        except OSError as error:
            raise _unusable(self.home, error) from error

    def wipe(self) -> None:
        try:
            self.clear_mark()
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(self.home / "db")
        except OSError as error:
            raise _unusable(self.home, error) from error

    def release(self) -> None:
        if self._lock is None:
            return
        if self._private:
            shutil.rmtree(self.home, ignore_errors=True)
        lock, self._lock = self._lock, None
        fcntl.flock(lock, fcntl.LOCK_UN)  # a process forked meanwhile has the descriptor too
        os.close(lock)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unusable(home: Path, error: OSError) -> StorageError:
    return StorageError(
        f"cannot use the working copy at {home}: {error}. Nothing committed is lost: give the job "
        "a local directory that may be written and has space, then start it again"
    )
