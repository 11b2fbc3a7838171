"""Scratch directories: temporary directories for rows that are unpacked on the local disk for
reading.

The process that uses a directory holds a lock on a file in it, which the operating system frees
when the process ends. A process that creates its first one removes those of killed processes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from statekit.errors import StorageError

_PREFIX = "statekit-"
_LOCK = "in-use"
_ROWS = "rows"


@contextlib.contextmanager
def scratch_directory(purpose: str, below: Path | None = None) -> Iterator[Path]:
    """Create a directory, and remove it at the end.

    Parameters:
        purpose: a word in its name.
        below: where it is created; None for `TMPDIR`.

    Raises:
        StorageError: it cannot be created or written to.
    """
    try:
        _remove_abandoned(Path(tempfile.gettempdir() if below is None else below).absolute())
        with (
            tempfile.TemporaryDirectory(
                prefix=f"{_PREFIX}{purpose}-", dir=below, ignore_cleanup_errors=True
            ) as home,
            _in_use(Path(home)),
        ):
            place = Path(home) / _ROWS
            place.mkdir()
            yield place
    except OSError as error:
        where = below or tempfile.tempdir or "any temporary directory"
        raise StorageError(
            f"cannot unpack rows in {where}: {error}. Nothing committed is lost: make space there "
            "or set TMPDIR, then start again"
        ) from error


@contextlib.contextmanager
def written_there() -> Iterator[None]:
    """Convert the errors of reads and writes in a scratch directory.

    Raises:
        StorageError: the local disk is full or failed.
    """
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"cannot write rows to a temporary file: {error}. Nothing committed is lost: make "
            "space there or set TMPDIR, then start again"
        ) from error


@contextlib.contextmanager
def _in_use(home: Path) -> Iterator[None]:
    """Lock a new directory. The lock has its name only when it is held: a directory without one is
    not removed.
    """
    drafted = home / f"{_LOCK}.new"
    with open(drafted, "xb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        drafted.rename(home / _LOCK)
        yield


@cache
def _remove_abandoned(below: Path) -> None:
    """Remove the directories of processes that have ended. It is done once per process, since the
    parent may have many entries.
    """
    with contextlib.suppress(OSError), os.scandir(below) as entries:
        for entry in entries:
            if entry.name.startswith(_PREFIX):
                with contextlib.suppress(OSError):  # it is that of another user, or gone
                    _remove_if_abandoned(Path(entry.path))


def _remove_if_abandoned(home: Path) -> None:
    if home.lstat().st_uid != os.getuid():
        return
    descriptor = os.open(home / _LOCK, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(home, ignore_errors=True)
    finally:
        os.close(descriptor)
