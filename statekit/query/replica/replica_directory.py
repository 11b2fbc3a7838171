"""Replica directory: one that the user gives, or a temporary one.

A temporary directory has the file `temporary`. It is removed when its replica is closed or is
collected as garbage, or when the process ends. If the process is killed, its lock is free, and the
next replica on the host that needs a temporary directory removes it.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from statekit.checkpoint.repository import Repository
from statekit.errors import QueryError, StorageError
from statekit.working_copy.lock import DirectoryLock

REPLICA_PREFIX = "statekit-replica-"
"""Prefix of the names of temporary directories of replicas."""

_MARK = "temporary"

# The thread of a replica may be applying an epoch when the process ends.
_LAST_WAIT_S = 1.0


def replica_directory(directory: str | Path | None, repository: Repository) -> Path:
    """Return the directory of a replica; a new one below `TMPDIR` if none is given.

    Raises:
        QueryError: it is a part of the checkpoint.
        StorageError: no directory can be created below `TMPDIR`.
    """
    if directory is None:
        return temporary_directory(REPLICA_PREFIX)
    root, place = repository.root, Path(directory)
    with contextlib.suppress(OSError, ValueError):  # such a directory cannot be locked either
        if root is not None and place.resolve().is_relative_to(Path(root).resolve()):
            raise QueryError(
                f"directory={str(directory)!r} is in the checkpoint {repository.url}: nothing was "
                "written. Give the replica a directory of its own"
            )
    return place


def locked(directory: Path) -> DirectoryLock:
    """Create the directory of a replica if it is absent, and lock it.

    Raises:
        QueryError: another replica uses it.
        StorageError: it cannot be created or locked.
    """
    try:
        lock = DirectoryLock.take(directory)
    except (StorageError, ValueError) as error:
        raise StorageError(
            f"cannot use the directory {directory} for a replica: {error.__cause__ or error}. The "
            "checkpoint is not affected: give a local directory that may be written, has space and "
            "can be locked (directory=)"
        ) from error
    if lock is None:
        raise QueryError(
            f"{directory} is used by another replica: give each replica a directory of its own"
        )
    return lock


def temporary_directory(prefix: str) -> Path:
    """Create a directory below `TMPDIR`, and remove those of killed processes. The caller locks the
    new directory, and then marks it.

    Parameters:
        prefix: of its name.

    Raises:
        StorageError: it cannot be created.
    """
    try:
        remove_unused(prefix)
        return Path(tempfile.mkdtemp(prefix=prefix))
    except OSError as error:
        raise StorageError(
            f"cannot create a temporary directory: {error}. Make space, set TMPDIR, or give a "
            "directory (directory=, --directory)"
        ) from error


def remove_unused(prefix: str) -> None:
    """Remove the temporary directories of killed processes below `TMPDIR`.

    Parameters:
        prefix: of their names.

    Raises:
        OSError: `TMPDIR` cannot be read.
    """
    for mark in Path(tempfile.gettempdir()).glob(f"{prefix}*/{_MARK}"):
        with DirectoryLock.held(mark.parent) as lock:
            if lock is not None:
                shutil.rmtree(mark.parent, ignore_errors=True)


@contextlib.contextmanager
def removed_on_failure(directory: Path | None) -> Iterator[None]:
    """Remove a temporary directory that is not marked yet, if an error is raised.

    Parameters:
        directory: the temporary directory; None if the user has given one.
    """
    try:
        yield
    except BaseException:
        if directory is not None:
            shutil.rmtree(directory, ignore_errors=True)
            with contextlib.suppress(OSError):  # needs no descriptor: none may be left
                directory.rmdir()
        raise


def mark_temporary(directory: Path) -> None:
    """Mark a locked directory as a temporary one."""
    with contextlib.suppress(OSError):  # without the mark, it stays after a kill
        (directory / _MARK).touch()


def end(
    ends: threading.Event, thread: threading.Thread | None, lock: DirectoryLock, directory: Path
) -> None:
    """End a replica that was not closed, and remove its temporary directory.

    Parameters:
        ends: the event that ends the thread.
        lock: of the directory. A forked process does not hold it, and removes nothing.
    """
    if lock.is_held:
        ends.set()
        if thread is not None:
            thread.join(_LAST_WAIT_S)
        shutil.rmtree(directory, ignore_errors=True)
        lock.release()
