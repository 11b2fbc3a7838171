"""The directory of a working copy: its lock, and its attempt.

<root>/<checkpoint id>/<operator>/<first>-<last>/
    lock    held (flock) by the process that uses the copy; shared by those that link its files
    clean   the mark: the attempt of the copy, and its fragments if it has several
    db/     the database, or one below it per fragment
    pieces/ pieces that a copy is being assembled from
    before/ the old databases of a copy that is being restored
    snapshots/          base snapshots that are being uploaded (`base_lifecycle`)
    private.<unique>/   the same again, for an attempt that found the lock held
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from pydantic import ValidationError

from statekit.checkpoint.object_store import sync_path
from statekit.checkpoint.sealed_json import Record
from statekit.clock import unique_id
from statekit.keygroup import MAX_GROUPS
from statekit.working_copy.lock import DirectoryLock, usable

PARTS = ("clean", "clean.draft", "db", "pieces", "before", "snapshots")
"""The parts of a copy's directory other than the lock and private directories. The mark is removed
first.
"""

_PRIVATE_NAME = re.compile(r"private\.[0-9a-f]{32}")

Ranges = tuple[tuple[int, int], ...]
"""First and last key group of each fragment, in order."""

WHOLE: Ranges = ((0, MAX_GROUPS),)
"""The fragments of an ordinary copy, which has a single database."""


class Mark(Record):
    """The contents of a copy that was closed cleanly.

    Parameters:
        attempt: the attempt that the copy is at.
        last: the path of the last applied change file; None if it is not known.
        fragments: its databases.
        sequences: RocksDB's sequence number of each; empty if not recorded. A database from an
            older backup has a smaller one.
        states: its column families.
    """

    attempt: str | None
    last: str | None
    fragments: Ranges = WHOLE
    sequences: tuple[int, ...] = ()
    states: tuple[str, ...]


def database_paths(home: Path, fragments: Ranges) -> list[Path]:
    """Return the directories of the databases of a copy."""
    if len(fragments) == 1:
        return [home / "db"]
    return [home / "db" / f"{first}-{last}" for first, last in fragments]


def read_mark(home: Path, states: Sequence[str]) -> Mark | None:
    """Return the mark of a copy with these states; None if the copy is not trusted."""
    if (mark := stored_mark(home)) is None:
        return None
    is_known = mark.states == tuple(states) and len(mark.sequences) in (0, len(mark.fragments))
    is_there = all(path.is_dir() for path in database_paths(home, mark.fragments))
    return mark if is_known and is_there else None


def stored_mark(home: Path) -> Mark | None:
    """Return the mark of a copy; None without one, or with that of another version."""
    try:
        return Mark.model_validate_json((home / "clean").read_bytes())
    except (OSError, ValidationError):
        return None


class DirectoryLease(DirectoryLock):
    """Exclusive access to the directory of a copy."""

    @classmethod
    def take(cls, home: Path) -> Self:
        """Lock the directory of a shard. If another attempt holds the lock, create a private
        directory in it.

        Raises:
            StorageError: the directory cannot be created or locked.
        """
        lease = super().take(home)
        if lease is not None:
            lease.touch()
            remove_abandoned(home)
        # Another process may consider a new private directory abandoned, and remove it.
        while lease is None:
            lease = super().take(home / f"private.{unique_id()}")
        return lease

    @property
    def is_private(self) -> bool:
        """True if the directory belongs to this attempt alone."""
        return _PRIVATE_NAME.fullmatch(self.home.name) is not None

    def clear_mark(self) -> None:
        _remove_mark(self.home)

    def set_mark(self, mark: Mark) -> None:
        draft = self.home / "clean.draft"
        with usable(self.home):
            draft.write_text(mark.model_dump_json(exclude_defaults=True))
            sync_path(draft)
            draft.rename(self.home / "clean")
            sync_path(self.home)

    def set_aside(self) -> None:
        """Rename the databases, so that `wipe` does not delete them."""
        with usable(self.home):
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(self.home / "before")
            with contextlib.suppress(FileNotFoundError):
                (self.home / "db").rename(self.home / "before")

    def forget_aside(self) -> None:
        """Remove the renamed databases. If this fails, the next restore removes them."""
        shutil.rmtree(self.home / "before", ignore_errors=True)

    def wipe(self) -> None:
        with usable(self.home):
            self.clear_mark()
            for name in ("db", "pieces"):
                with contextlib.suppress(FileNotFoundError):
                    shutil.rmtree(self.home / name)

    def release(self) -> None:
        """Release the lock, and remove a private directory. A second call does nothing."""
        if self.is_private and self.is_held:
            shutil.rmtree(self.home, ignore_errors=True)
        super().release()


def distrust(home: Path) -> None:
    """Remove the mark of a copy with damaged files, if the copy is marked and not in use."""
    lock = DirectoryLock.take(home) if os.path.isdir(home) else None
    if lock is not None:
        try:
            _remove_mark(home)
        finally:
            lock.release()


def _remove_mark(home: Path) -> None:
    with usable(home):
        (home / "clean").unlink(missing_ok=True)
        sync_path(home)


def private_homes(home: Path) -> list[Path]:
    """Return the private directories in a copy's directory."""
    names = glob.glob("private.*", root_dir=home)
    return [home / name for name in names if _PRIVATE_NAME.fullmatch(name)]


def remove_abandoned(home: Path) -> int:
    """Remove private directories of killed processes, and return their number."""
    removed = 0
    for private in private_homes(home):
        with DirectoryLease.held(private) as lease:  # its release removes the directory
            pass
        removed += lease is not None and not private.exists()
    return removed
