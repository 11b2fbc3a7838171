"""Disk space: the limit of a server's copies and of its files for requests.

At the limit, or if a disk itself has no space left, the server keeps answering from its present
copies. Until there is space, replicas stay at their epochs, and no files are written for requests.
The server reports this in /readyz, in metrics and in the log.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from statekit.clock import stopwatch_s
from statekit.errors import StorageError
from statekit.query.replica.replica_directory import (
    REPLICA_PREFIX,
    locked,
    mark_temporary,
    remove_unused,
    temporary_directory,
)
from statekit.server.answers.problems import Problem

_MEASURED_EVERY_S = 1.0

_FREE_MIN, _FREE_PART = 64 * 2**20, 100
"""A disk with less free space is full: this number of bytes, or one part in so many of a small
disk.
"""


class Disk:
    """The directories of a server.

    Its own directory is below `TMPDIR`, and is removed at the end. If the server is killed, the
    next server removes this directory and the temporary copies of its jobs.

    Parameters:
        limit_bytes: limit of the size of all directories; None for no limit.

    Attributes:
        directory: for the files of requests.

    Raises:
        StorageError: the directory cannot be created.
    """

    def __init__(self, limit_bytes: int | None = None) -> None:
        self.limit_bytes = limit_bytes
        self.directory = temporary_directory("statekit-server-")
        with contextlib.suppress(OSError):  # the directory was created there, so it can be read
            remove_unused(REPLICA_PREFIX)
        self._lock = locked(self.directory)
        mark_temporary(self.directory)
        self._directories = [self.directory]
        self._measuring = threading.Lock()
        self._measured: tuple[int, Path | None] = 0, None
        self._measured_s = -_MEASURED_EVERY_S

    def add(self, directory: Path) -> None:
        """Add a directory to the measured ones."""
        self._directories.append(directory)
        self._measured_s = -_MEASURED_EVERY_S

    def below(self, name: str) -> Path:
        """Create a directory for the files of requests, and return it."""
        directory = self.directory / name
        directory.mkdir()
        return directory

    def measured(self) -> tuple[int, Path | None]:
        """Return the size of all files in bytes, and a directory on a disk without space left; None
        if all disks have space. Both were measured at most a second ago.
        """
        with self._measuring:
            if stopwatch_s() - self._measured_s >= _MEASURED_EVERY_S:
                full = next(filter(_has_no_space, self._directories), None)
                self._measured = bytes_below(self._directories), full
                self._measured_s = stopwatch_s()
            return self._measured

    @property
    def is_full(self) -> bool:
        """True if the directories exceed the limit, or a disk has no space left."""
        used, full = self.measured()
        return full is not None or (self.limit_bytes is not None and used > self.limit_bytes)

    def check(self) -> None:
        """Check that copies may grow.

        Raises:
            StorageError: the directories take too much already, or a disk has no space left.
        """
        if (place := self.measured()[1]) is not None:
            raise StorageError(
                f"the disk of {place} has no space left for the copies of the server: copies stay "
                "at their epochs, and can be read. Make space"
            )
        if self.is_full:
            raise StorageError(
                f"the server may take {self.limit_bytes:,} bytes of disk for its copies and files "
                "(--disk), and takes more: copies stay at their epochs, and can be read. Start it "
                "with more, or serve fewer jobs or epochs"
            )

    def check_request(self) -> None:
        """Check that a file may be written for a request.

        Raises:
            Problem: the directories take too much already, or a disk has no space left.
        """
        if self.is_full:
            raise Problem(
                503,
                "disk_full",
                "the server has no disk space for this request: read keys, or try again later",
                {"Retry-After": "60"},
            )

    def close(self) -> None:
        """Remove the server's own directory."""
        shutil.rmtree(self.directory, ignore_errors=True)
        self._lock.release()


def bytes_below(directories: Iterable[Path]) -> int:
    """Return the size of all files below directories, in bytes. Hard links count once."""
    return sum(dict(_sizes(directories)).values())


def _has_no_space(directory: Path) -> bool:
    try:
        disk = shutil.disk_usage(directory)
    except OSError:  # another check reports the error
        return False
    return disk.free < min(_FREE_MIN, disk.total // _FREE_PART)


def _sizes(directories: Iterable[Path]) -> Iterator[tuple[tuple[int, int], int]]:
    for directory in directories:
        for place, _, names in os.walk(directory):
            for name in names:
                with contextlib.suppress(OSError):  # removed since it was listed
                    stat = os.lstat(os.path.join(place, name))
                    yield (stat.st_dev, stat.st_ino), stat.st_size
