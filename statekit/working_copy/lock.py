"""Locks: exclusive access to a directory.

The lock is `flock` on a file in the directory. The operating system frees it when its process ends,
and two threads of a process exclude each other as two processes do. The holder may remove the
directory together with the lock's file. So after getting the lock, a process checks that the file
still has its name. Otherwise the directory is gone, and the process creates it again.

Platforms without `flock` are refused here, since `import statekit` imports this module.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from statekit.errors import StorageError

if sys.platform not in ("linux", "darwin"):
    raise ImportError(
        f"statekit runs on Linux and macOS, and this is {sys.platform}: on Windows, install it in "
        "WSL 2"
    )

import fcntl

# Other processes lock a directory briefly, to check whether it is in use or to link its files.
_TRIES = 20
_BETWEEN_TRIES_S = 0.005

_held: weakref.WeakSet[DirectoryLock] = weakref.WeakSet()


class DirectoryLock:
    """A lock that is held. See `take`."""

    def __init__(self, home: Path, descriptor: int) -> None:
        self.home = home
        self._descriptor: int | None = descriptor
        _held.add(self)

    @classmethod
    def take(cls, home: Path) -> Self | None:
        """Lock a directory, and create it if necessary. Return None if it is in use.

        Raises:
            StorageError: the directory cannot be created or locked.
        """
        removed: OSError | None = None
        is_held = False
        for attempt in range(_TRIES):
            if attempt:
                time.sleep(_BETWEEN_TRIES_S)
            try:
                home.mkdir(parents=True, exist_ok=True)
                lock = cls._locked(home, os.O_RDWR | os.O_CREAT, fcntl.LOCK_EX)
            except (FileNotFoundError, FileExistsError) as error:
                removed = error  # while it was being made
                continue
            except OSError as error:
                raise unusable(home, error) from error
            if lock is not None:
                return lock
            is_held = True
        if removed is not None and not is_held:
            raise unusable(home, removed) from removed
        return None

    @classmethod
    @contextlib.contextmanager
    def held(cls, home: Path, *, shared: bool = False) -> Iterator[Self | None]:
        """Lock a directory in the context, unless it is in use, missing, or owned by another user.
        Yield None then.

        Parameters:
            shared: whether other processes may hold a shared lock, too. The directory does not
                change meanwhile.
        """
        flags, kind = os.O_RDWR | os.O_CREAT, fcntl.LOCK_EX
        if shared:
            flags, kind = os.O_RDONLY, fcntl.LOCK_SH
        try:
            lock = cls._locked(home, flags, kind)
        except OSError:
            lock = None
        try:
            yield lock
        finally:
            if lock is not None:
                lock.release()

    @classmethod
    def _locked(cls, home: Path, flags: int, kind: int) -> Self | None:
        """Try once to lock the directory. Return None if another process holds the lock, or the
        directory is missing.
        """
        path = home / "lock"
        descriptor = os.open(path, flags, 0o644)
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            if not _is_at(path, descriptor):
                raise BlockingIOError
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        return cls(home, descriptor)

    @property
    def is_held(self) -> bool:
        """True if this process holds the lock. False in a forked process."""
        return self._descriptor is not None

    def touch(self) -> None:
        """Record that the directory was used now. The least recently used directory is removed
        first.

        Raises:
            StorageError: the disk failed.
        """
        assert self._descriptor is not None, "the lock is held"
        with usable(self.home):
            os.utime(self._descriptor)

    def release(self) -> None:
        """Release the lock. A second call does nothing."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            # Not by closing alone: a process that is being forked has the descriptor, too.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    return os.path.samestat(there, os.fstat(descriptor))


def _forget_all() -> None:
    """Close the locks in a forked process without unlocking them.

    The locks belong to the parent process, and must not outlive it.
    """
    for lock in list(_held):
        descriptor, lock._descriptor = lock._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


os.register_at_fork(after_in_child=_forget_all)


@contextlib.contextmanager
def usable(home: Path) -> Iterator[None]:
    """Raise `unusable` if the operating system reports an error."""
    try:
        yield
    except OSError as error:
        raise unusable(home, error) from error


def unusable(home: Path, error: OSError) -> StorageError:
    """Return the error for a directory that cannot be used for a working copy."""
    return StorageError(
        f"cannot use the working copy at {home}: {error}. Nothing committed is lost: give the job "
        "a local directory that may be written, has space and can be locked (working_directory=), "
        "then start it again"
    )
