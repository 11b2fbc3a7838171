"""The files that a source reads: those of a directory, of a pattern, or a single one."""

from __future__ import annotations

import contextlib
import fnmatch
import io
import os
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import IO, Any, NamedTuple, Self

from statekit.checkpoint.object_store import Stored
from statekit.checkpoint.store import Store
from statekit.checkpoint.store_url import local_path, remote_url
from statekit.errors import ConnectorError, StatekitError, StateTypeError
from statekit.shown import shown_text

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_WILD = re.compile(r"[*?\[]")
_WILDCARDS = re.compile(r"(\*|\?|\[!?\]?[^]]*\])")
_PIECE_BYTES = 4 << 20
"""Bytes per request to an object store."""

_UNFINISHED = (".tmp", ".temp", ".part", ".partial", ".inprogress", "._COPYING_", "~")
"""The ends of names of files that are being written."""


class SourceFile(NamedTuple):
    """A file as a listing shows it.

    Parameters:
        path: below the directory of the source.
        size: in bytes.
        modified: when it was written, in microseconds since 1970.
        inode: what identifies a local file that may get another name; 0 if that is not asked for.
    """

    path: str
    size: int
    modified: int
    inode: int = 0

    @classmethod
    def of(cls, stored: Stored) -> Self:
        """Return the file of a listing."""
        return cls(stored.path, stored.size, (stored.modified - _EPOCH) // _MICROSECOND)


class FileTree:
    """The files of a location.

    Files and folders whose names begin with `_` or `.`, and files that are being written by their
    names, are left out.

    Parameters:
        location: a local path or a URL: of a directory, of one file, or with the wildcards `*`,
            `?`, `[…]` and `**` (any folders).
        may_be_absent: whether a local path without a file is that of a file which will appear.

    Raises:
        StateTypeError: it is a URL with credentials, or of an unknown store.
    """

    def __init__(self, location: str, *, may_be_absent: bool = False) -> None:
        self.location, self._may_be_absent = location, may_be_absent
        local = local_path(location)
        if local is None:
            remote_url(location)
        self._local = None if local is None else local.absolute()

    @cached_property
    def _place(self) -> tuple[str, str, bool]:
        """The directory, the pattern of paths below it, and whether this is the name of a file."""
        whole = self.location.rstrip("/") if self._local is None else str(self._local)
        if self._local is not None and self._local.is_dir():
            return whole, "", False
        folder, _, name = whole.rpartition("/")
        if self._local is not None and self._local.exists():
            return folder or "/", name, True
        if (wild := _WILD.search(whole)) is not None:
            folder = whole[: wild.start()].rpartition("/")[0]
            return folder or "/", whole[len(folder) + 1 :], False
        if self._local is not None:
            if self._may_be_absent and self._local.parent.is_dir():
                return folder or "/", name, True
            raise ConnectorError(
                f"{self.location}: there is no such file or directory. Nothing was read: "
                "check the path, or make the directory before the job starts"
            )
        _, _, place = whole.partition("://")
        if "/" in place and Store(folder).stored(name) is not None:
            return folder, name, True
        return whole, "", False

    @cached_property
    def _store(self) -> Store:
        return Store(self._place[0], create=False)

    @property
    def is_one_file(self) -> bool:
        """Whether the location is that of a file."""
        with self.failures():
            return self._place[2]

    @property
    def is_local(self) -> bool:
        """Whether the files are on a local disk."""
        return self._local is not None

    def listed(self, after: str = "") -> list[SourceFile]:
        """Return the files, sorted by their paths.

        Parameters:
            after: a path. An object store only lists the paths after it.
        """
        with self.failures():
            _, pattern, is_one = self._place
            if is_one:
                file = self.stat(pattern)
                return [] if file is None else [file]
            matches = _matcher(pattern)
            behind = None if self.is_local else after or None
            found = (
                file
                for file in self._store.listed_behind("", behind)
                if matches(file.path) and not _is_left_out(file.path)
            )
            return sorted(map(SourceFile.of, found))

    def stat(self, path: str) -> SourceFile | None:
        """Return a file as it is now; None if it is gone."""
        with self.failures():
            if not self.is_local:
                stored = self._store.stored(path)
                return None if stored is None else SourceFile.of(stored)
            try:
                status = os.stat(os.path.join(self._place[0], path))
            except (FileNotFoundError, NotADirectoryError):
                return None
            modified = datetime.fromtimestamp(status.st_mtime, UTC)
            return SourceFile.of(Stored(path, status.st_size, modified))

    def inode(self, path: str) -> int:
        """Return what identifies a local file, whatever its name is; 0 if it is gone."""
        with self.failures():
            try:
                return os.stat(os.path.join(self._place[0], path)).st_ino
            except (FileNotFoundError, NotADirectoryError):
                return 0

    def renamed(self, inode: int, path: str) -> SourceFile | None:
        """Return the file with this identity in the folder of a local file; None if it is gone."""
        folder = os.path.dirname(path)
        with self.failures(), os.scandir(os.path.join(self._place[0], folder)) as entries:
            name = next((entry.name for entry in entries if entry.inode() == inode), None)
        return None if name is None else self.stat(os.path.join(folder, name))

    def rotated(self, name: str, after: SourceFile) -> list[SourceFile]:
        """Return the files that a local file was renamed to, from the oldest to the newest.

        Parameters:
            name: of the file. The names of the others begin with it.
            after: one of them. Only those that were written later are returned.
        """
        found = []
        with self.failures(), os.scandir(self._place[0]) as entries:
            names = [e.name for e in entries if e.name.startswith(name) and e.name != name]
        for other in names:
            file, inode = self.stat(other), self.inode(other)
            if file is not None and inode != after.inode and file.modified >= after.modified:
                found.append(file._replace(inode=inode))
        return sorted(found, key=lambda file: (file.modified, file.path))

    def open(self, file: SourceFile) -> IO[bytes]:
        """Open a file for reading at any position.

        Raises:
            ConnectorError: it is gone.
        """
        with self.failures():
            if not self.is_local:
                remote: Any = io.BufferedReader(_RemoteFile(self._store, file), _PIECE_BYTES)
                return remote  # type: ignore[no-any-return]
            try:
                opened = Path(self._place[0], file.path).open("rb")  # noqa: SIM115 - the caller's
            except FileNotFoundError:
                if not file.inode:
                    raise self.gone(file) from None
            else:
                if file.inode in (0, os.fstat(opened.fileno()).st_ino):
                    return opened
                opened.close()
        renamed = self.renamed(file.inode, file.path)  # meanwhile
        if renamed is None:
            raise self.gone(file)
        return self.open(renamed._replace(inode=file.inode))

    def at(self, file: SourceFile) -> str:
        """Return the location of a file for messages."""
        return f"{self._place[0].rstrip('/')}/{file.path}"

    def gone(self, file: SourceFile) -> ConnectorError:
        """Return the error for a file that was removed before it was read."""
        return ConnectorError(
            f"{self.at(file)} was removed before it was read to its end. "
            "Nothing of this epoch is committed: put the file back, then start the job again"
        )

    @contextlib.contextmanager
    def failures(self) -> Iterator[None]:
        """Convert errors of the disk and the store to ConnectorError."""
        try:
            yield
        except (ConnectorError, StateTypeError):
            raise
        except (StatekitError, OSError) as error:
            raise ConnectorError(
                f"{self.location}: {shown_text(error)}. Nothing of this epoch is "
                "committed: correct it, then start the job again"
            ) from error


class _RemoteFile(io.RawIOBase):
    """A file in an object store, read in pieces."""

    def __init__(self, store: Store, file: SourceFile) -> None:
        super().__init__()
        self._store, self._file, self._at = store, file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._file.size}[whence]
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: bytearray | memoryview, /) -> int:  # type: ignore[override]
        size = min(len(buffer), self._file.size - self._at)
        if size <= 0:
            return 0
        data = self._store.piece(self._file.path, self._at, size)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def _is_left_out(path: str) -> bool:
    names = path.split("/")
    return any(name.startswith(("_", ".")) for name in names) or path.endswith(_UNFINISHED)


def _matcher(pattern: str) -> Callable[[str], object]:
    """Return a function that says whether a path matches a pattern; an empty one matches all.

    >>> matches = _matcher("**/day=*/[a-m]?.jsonl")
    >>> bool(matches("day=1/b0.jsonl")), bool(matches("x/y/day=1/b0.jsonl"))
    (True, True)
    >>> matches("day=1/z0.jsonl"), matches("day=1/b/.jsonl")
    (None, None)
    """
    if not pattern:
        return lambda path: True
    parts = []
    for part in pattern.split("/"):
        if part == "**":
            parts.append("(?:[^/]+/)*")
        else:
            parts.append("".join(map(_regex_of, _WILDCARDS.split(part))) + "/")
    return re.compile("".join(parts).removesuffix("/")).fullmatch


def _regex_of(token: str) -> str:
    """Return the regular expression of a wildcard or a text in the name of a file or folder."""
    match token[:1]:
        case "*":
            return "[^/]*"
        case "?":
            return "[^/]"
        case "[" if len(token) > 2:
            return "(?!/)" + fnmatch.translate(token)[len("(?s:") : -len(r")\Z")]
    return re.escape(token)
