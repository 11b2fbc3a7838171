"""Disk space of working copies: its limits, and the choice of copies to remove.

    <root>/tidied               the time of this file is that of the last check
    <root>/removed.<unique>     databases that are being deleted
    <root>/<checkpoint id>/origin   the URL of the checkpoint
    <root>/<checkpoint id>/<operator>/tidied    the time of the last check for unused copies
    <root>/<checkpoint id>/<operator>/<first>-<last>/   a copy, see `directory`

A copy is removed in this order: lock it, rename its database in one step, delete the lock's file,
release the lock, and only then delete the files. So another process finds the copy complete or not
at all.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from statekit.backend.rocksdb_options import RocksOptions
from statekit.checkpoint.manifest import ShardPlans
from statekit.clock import now_us, unique_id
from statekit.working_copy.directory import PARTS, private_homes, remove_abandoned, stored_mark
from statekit.working_copy.lock import DirectoryLock, usable
from statekit.working_copy.uploader import uploader

_HOME_NAME = re.compile(r"(\d+)-(\d+)")
_ID = r"[0-9a-f]{32}"
_CHECKPOINT_NAME = re.compile(_ID)
_LEAVING_NAME = re.compile(rf"removed\.{_ID}")

# The processes of a host check for copies to remove at most this often, all together.
_BETWEEN_LOOKS_US = 60 * 1_000_000

# Copies that were used more recently stay, so that a disk that is short of space for
# another reason does not make running jobs restore their copies again and again.
_IDLE_US = 10 * 60 * 1_000_000

# A shard that has changed elsewhere may come back, such as after an executor was slow. Its copy
# then only applies the changes that it has missed.
_LEFT_US = 10 * 60 * 1_000_000

_LOOK = os.R_OK | os.X_OK

_FileId = tuple[int, int]


@dataclass(frozen=True)
class FoundCopy:
    """A working copy found on disk.

    Parameters:
        home: its directory.
        checkpoint_id, operator, groups: the shard that it belongs to.
        files: size by identity, as copies may share files.
        last_used_us: by the clock of the file system.
    """

    home: Path
    checkpoint_id: str
    operator: str
    groups: tuple[int, int]
    files: dict[_FileId, int]
    last_used_us: int

    @property
    def bytes(self) -> int:
        """Bytes of all files, including files that are shared with other copies."""
        return sum(self.files.values())

    @property
    def is_in_use(self) -> bool:
        """True if a process uses the copy or one of its private copies."""
        return any(_is_held(home) for home in (self.home, *private_homes(self.home)))


class CopySpace:
    """The disk space below a working directory.

    Parameters:
        root: the working directory.
        options: the disk limits.
    """

    def __init__(self, root: str | Path, options: RocksOptions | None = None) -> None:
        self.root = Path(root)
        self._options = options or RocksOptions()

    # ----------------------------------------------------------------------------------- finding

    @property
    def is_ours(self) -> bool:
        """True if the directory is empty, or contains files that statekit created.

        Raises:
            OSError: it cannot be read.
        """
        names = os.listdir(self.root)
        return (
            not names
            or "tidied" in names
            or any(map(_LEAVING_NAME.fullmatch, names))
            or any(map(self.origin, filter(_CHECKPOINT_NAME.fullmatch, names)))
            or any(os.path.isfile(home / "lock") for home in self._homes("*"))
        )

    def unreadable(self) -> list[Path]:
        """Return the unreadable directories that may contain copies."""
        names = filter(_CHECKPOINT_NAME.fullmatch, glob.iglob("*", root_dir=self.root))
        checkpoints = [self.root / name for name in names]
        operators = [path / name for path in checkpoints for name in glob.iglob("*", root_dir=path)]
        places = (*checkpoints, *operators, *self._homes("*"))
        return [path for path in places if os.path.isdir(path) and not os.access(path, _LOOK)]

    def copies(self) -> list[FoundCopy]:
        """Return all copies, the least recently used first."""
        copies = [copy for home in self._homes("*") if (copy := _found(home)) is not None]
        return sorted(copies, key=lambda copy: copy.last_used_us)

    def origin(self, checkpoint_id: str) -> str | None:
        """Return the URL of the checkpoint of these copies; None if it was not recorded."""
        try:
            return (self.root / checkpoint_id / "origin").read_text()
        except (OSError, ValueError):
            return None

    def note_origin(self, checkpoint_id: str, url: str) -> None:
        """Record the URL of a checkpoint, for the command `statekit copies`."""
        path = self.root / checkpoint_id / "origin"
        with contextlib.suppress(OSError):
            if not path.exists():
                path.write_text(url)

    def _homes(self, checkpoint_id: str, operator: str = "*") -> Iterator[Path]:
        # Unlike that of `Path`, this one ignores files that are removed meanwhile.
        for name in glob.iglob(f"{checkpoint_id}/{operator}/*", root_dir=self.root):
            parts = name.split("/")
            if _CHECKPOINT_NAME.fullmatch(parts[0]) and _HOME_NAME.fullmatch(parts[2]):
                yield self.root / name

    # ---------------------------------------------------------------------------------- removing

    def tidy(self) -> None:
        """Remove copies above the disk limit, at most once a minute per host.

        A check calls `stat` for each file.

        Raises:
            StorageError: the directory cannot be used.
        """
        if _is_time(self.root):
            self.remove_leftovers()
            self.make_room()

    def tidy_operator(self, plans: ShardPlans, started_us: int | None = None) -> None:
        """Remove copies of shards that the job no longer uses, or that ran on other hosts for a
        while. Runs at most once a minute.

        Parameters:
            plans: of all its shards.
            started_us: when the run began: until a while after that, all shards may come back. None
                if no shard can leave.

        Raises:
            StorageError: the directory cannot be used.
        """
        checkpoint_id, operator = plans.common.checkpoint_id, plans.operator
        copies = self.root / checkpoint_id / operator
        if not os.path.isdir(copies) or not _is_time(copies):
            return
        sources = {piece.shard for base in plans.bases for piece in base.slices}
        attempts = {base.groups: base.attempt for base in plans.bases}
        left_since = now_us() - _LEFT_US
        may_leave = started_us is not None and started_us < left_since
        for home in self._homes(checkpoint_id, operator):
            groups = _groups(home)
            if groups in attempts:
                is_used = not (may_leave and _has_left(home, attempts[groups], left_since))
            else:
                is_used = groups in sources
            if not is_used:
                self.remove(home)

    def make_room(self) -> None:
        """Remove unused copies until the others are within the limits.

        If the disk is short of space, only copies are removed that were not used for a while.
        """
        limit = self._options.disk_limit_bytes
        if limit is None and not self.is_short:
            return
        copies = self.copies()
        shared = Counter(file for copy in copies for file in copy.files)
        sizes = {file: size for copy in copies for file, size in copy.files.items()}
        total = sum(sizes.values())
        idle_since = now_us() - _IDLE_US
        for copy in copies:
            is_over = limit is not None and total > limit
            if not is_over and (copy.last_used_us > idle_since or not self.is_short):
                return
            if self.remove(copy.home):
                shared.subtract(copy.files.keys())
                total -= sum(size for file, size in copy.files.items() if not shared[file])

    def remove(self, home: Path) -> bool:
        """Remove a copy unless it is in use. Return whether it was removed.

        Uploads of its base snapshots by this process end first. A copy whose base another process
        uploads is in use.
        """
        leaving: list[Path] = []
        try:
            with DirectoryLock.held(home) as lock:
                if lock is None or not _uploads_ended(home):
                    return False
                for part in PARTS:
                    if (home / part).is_dir():
                        leaving.append(self.root / f"removed.{unique_id()}")
                        (home / part).rename(leaving[-1])
                    else:
                        (home / part).unlink(missing_ok=True)
                (home / "lock").unlink()
        except OSError:
            return False  # its mark was removed first, so the rest is not trusted
        finally:
            for directory in leaving:
                shutil.rmtree(directory, ignore_errors=True)
        remove_abandoned(home)
        self._remove_empty(home)
        return True

    def remove_all(self, checkpoint_id: str = "*") -> int:
        """Remove all unused copies of a checkpoint, and return their number."""
        return sum(self.remove(home) for home in list(self._homes(checkpoint_id)))

    def remove_leftovers(self) -> int:
        """Remove private copies and partly deleted databases of killed processes.

        Returns:
            Their number.
        """
        removed = 0
        for name in filter(_LEAVING_NAME.fullmatch, glob.glob("removed.*", root_dir=self.root)):
            shutil.rmtree(self.root / name, ignore_errors=True)
            removed += not (self.root / name).exists()
        return removed + sum(map(remove_abandoned, self._homes("*")))

    def _remove_empty(self, home: Path) -> None:
        """Remove the directory of a copy and its parents, as far as they are empty."""
        with contextlib.suppress(OSError):
            home.rmdir()
            for above, note in ((home.parent, "tidied"), (home.parent.parent, "origin")):
                if [path.name for path in above.iterdir()] == [note]:
                    (above / note).unlink(missing_ok=True)
                above.rmdir()

    @property
    def is_short(self) -> bool:
        """True if the free disk space is below the reserve."""
        try:
            free = shutil.disk_usage(self.root).free
        except OSError:
            return False  # there is no such directory, and so no copy to remove
        return free < self._options.disk_reserve_bytes


def _uploads_ended(home: Path) -> bool:
    """End the uploads of a copy in this process. Return whether no other process uploads any."""
    is_ended = uploader().give_up(f"{home}{os.sep}")
    for place in (home / "snapshots").glob("*"):
        with DirectoryLock.held(place) as lock:
            is_ended = is_ended and (lock is not None or not place.exists())
    return is_ended


def _is_time(directory: Path) -> bool:
    """Return whether the last check of a directory was long ago. If so, record a new check."""
    note = directory / "tidied"
    # `mkdir` reports a directory that was there, and is not there when it looks again.
    with usable(directory), contextlib.suppress(FileNotFoundError, FileExistsError):
        directory.mkdir(parents=True, exist_ok=True)
        # The clock may have been set back.
        if note.exists() and abs(now_us() - note.stat().st_mtime_ns // 1000) < _BETWEEN_LOOKS_US:
            return False
        note.touch()
        return True
    return False  # another process has just removed it with all its contents


def _has_left(home: Path, attempt: str | None, since_us: int) -> bool:
    """Return whether a copy was unused since a time while its shard changed on another host.

    Parameters:
        attempt: the attempt that the shard is at.
    """
    try:
        used_us = (home / "lock").stat().st_mtime_ns // 1000
    except OSError:
        return False  # it has just been removed
    mark = stored_mark(home)
    return used_us < since_us and mark is not None and mark.attempt not in (None, attempt)


def _groups(home: Path) -> tuple[int, int]:
    first, _, last = home.name.partition("-")
    return int(first), int(last)


def _found(home: Path) -> FoundCopy | None:
    """Return the copy in a directory; None if it is removed meanwhile."""
    try:
        used = (home / "lock").stat().st_mtime_ns // 1000
    except OSError:
        return None
    files = dict(_files(home))
    operator = home.parent
    return FoundCopy(home, operator.parent.name, operator.name, _groups(home), files, used)


def _files(home: Path) -> Iterable[tuple[_FileId, int]]:
    for place, _, names in os.walk(home):
        for name in names:
            with contextlib.suppress(OSError):  # removed since it was listed
                stat = os.lstat(os.path.join(place, name))
                yield (stat.st_dev, stat.st_ino), stat.st_size


def _is_held(home: Path) -> bool:
    with DirectoryLock.held(home, shared=True) as lock:
        return lock is None and os.path.exists(home / "lock")
