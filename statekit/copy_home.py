"""The directory of a working copy: who may use it, and what it says it holds.

What lives here: the lock and the mark. What does not: the databases (`rocks`), and how they come to
hold what the mark says (`working_copy`, `assembly`).

    <root>/<checkpoint id>/<operator>/<first>-<last>/
        lock    held (flock) by the process that uses the copy; shared by those that link its files
        clean   names the attempt the copy stands at, and its fragments if it has several
        db/     the database, or one below it per fragment
        pieces/ what a copy is being put together from
        private.<unique>/   the same again, for an attempt that found the lock held
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from statekit.clock import unique_id
from statekit.errors import StorageError
from statekit.keygroup import MAX_GROUPS

__all__ = ["WHOLE", "Lease", "Mark", "Ranges", "database_paths", "read_mark", "reading"]

Ranges = tuple[tuple[int, int], ...]
"""First and last key group of each fragment, in order."""

WHOLE: Ranges = ((0, MAX_GROUPS),)
"""What is said of an ordinary copy, which is one database."""


@dataclass(frozen=True)
class Mark:
    """What a copy that was closed cleanly holds.

    Parameters:
        attempt: where it stands.
        fragments: its databases.
    """

    attempt: str | None
    fragments: Ranges


def database_paths(home: Path, fragments: Ranges) -> list[Path]:
    """Where the databases of a copy are."""
    if len(fragments) == 1:
        return [home / "db"]
    return [home / "db" / f"{first}-{last}" for first, last in fragments]


@contextlib.contextmanager
def reading(home: Path, states: Sequence[str]) -> Iterator[Mark | None]:
    """The mark of a copy that nobody uses meanwhile; None if it cannot be had or trusted."""
    try:
        lock = os.open(home / "lock", os.O_RDONLY)
    except OSError:
        yield None  # there is no such copy on this machine
        return
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
            return
        yield read_mark(home, states)
        fcntl.flock(lock, fcntl.LOCK_UN)
    finally:
        os.close(lock)


def read_mark(home: Path, states: Sequence[str]) -> Mark | None:
    """What a copy with these states says it holds; None if it is not to be trusted."""
    try:
        found = json.loads((home / "clean").read_text())
        told = found.get("fragments", WHOLE)
        fragments = tuple((int(first), int(last)) for first, last in told)
        there = all(path.is_dir() for path in database_paths(home, fragments))
        trusted = there and found["states"] == list(states)
        return Mark(found["attempt"], fragments) if trusted else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # no mark, or not one of ours: start over


class Lease:
    """Exclusive use of a copy's directory while this object holds it."""

    def __init__(self, home: Path, lock: int, *, private: bool) -> None:
        self.home = home
        self._lock: int | None = lock
        self._private = private

    @classmethod
    def take(cls, home: Path) -> Lease:
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

    def mark(self, states: Sequence[str]) -> Mark | None:
        """What the copy holds; None if it is not to be trusted."""
        return read_mark(self.home, states)

    def clear_mark(self) -> None:
        try:
            (self.home / "clean").unlink(missing_ok=True)
            _sync(self.home)
        except OSError as error:
            raise _unusable(self.home, error) from error

    def set_mark(self, mark: Mark, states: Sequence[str]) -> None:
        draft = self.home / "clean.draft"
        said: dict[str, object] = {"attempt": mark.attempt, "states": list(states)}
        if len(mark.fragments) > 1:
            said["fragments"] = mark.fragments
        try:
            draft.write_text(json.dumps(said))
            _sync(draft)
            draft.rename(self.home / "clean")
            _sync(self.home)
        except OSError as error:
            raise _unusable(self.home, error) from error

    def wipe(self) -> None:
        try:
            self.clear_mark()
            for name in ("db", "pieces"):
                with contextlib.suppress(FileNotFoundError):
                    shutil.rmtree(self.home / name)
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
