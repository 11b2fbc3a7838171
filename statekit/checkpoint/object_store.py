"""Requests to the storage of a checkpoint, which is a local directory or an object store.

Anyone may have created a checkpoint on a local disk. A symbolic link in it could lead to any file
of the reader, and a job or the garbage collection could write or delete there. A device or a pipe
could be read without end. So no link is followed out of the directory, and only regular files are
read. The path of the directory itself may contain links.

A request succeeds or fails. It is not retried here, except for the parts of a large upload and the
pages of a list. Of an obstore error, only the first line is kept, without the query of a URL and
without credentials from the environment.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import shutil
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, Protocol, Self
from urllib.parse import urlparse

import obstore
from obstore import exceptions as store_errors
from obstore.store import MemoryStore, ObjectStore, from_url

from statekit.backend.hard_link import linked
from statekit.checkpoint.paths import TMP
from statekit.clock import unique_id
from statekit.errors import CorruptCheckpointError, StateTypeError
from statekit.printable import printable
from statekit.secret_options import is_secret

if TYPE_CHECKING:
    from obstore import ObjectMeta


@dataclass(frozen=True)
class StoreOptions:
    """Time limits for an object store. Local disks and memory are not retried.

    Each option can be set in the environment of the driver and of the workers, with its name in
    capitals after `STATEKIT_STORE_`, such as `STATEKIT_STORE_RETRY_SECONDS`.

    Parameters:
        retry_seconds: total time for retries of a failed request.
        timeout_seconds: time limit of one request, which transfers up to 8 MiB.
        connect_seconds: time limit for connecting.
        pause_seconds: pause before the first retry; it doubles up to 10 seconds.

    >>> StoreOptions.of({"STATEKIT_STORE_RETRY_SECONDS": "600"}).retry_seconds
    600.0
    """

    retry_seconds: float = 180.0
    timeout_seconds: float = 30.0
    connect_seconds: float = 5.0
    pause_seconds: float = 0.1

    @classmethod
    def of(cls, environment: Any) -> Self:
        """Return the options in an environment, with defaults for missing ones.

        Raises:
            StateTypeError: one of them is not a number of seconds.
        """
        given = {}
        for field in fields(cls):
            name = f"STATEKIT_STORE_{field.name.upper()}"
            if name in environment:
                given[field.name] = _seconds(name, environment[name])
        return cls(**given)


def _seconds(name: str, text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 <= (seconds := float(text)) < 1e9:
            return seconds
    raise StateTypeError(f"{name}={text!r} in the environment: give a number of seconds, like 30")


class RequestError(Exception):
    """A request failed.

    Attributes:
        reason: one line, without credentials.
        may_pass: whether the same request may succeed later.
    """

    def __init__(self, reason: str, *, may_pass: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.may_pass = may_pass


class FileBytes(NamedTuple):
    """Bytes of a file, and the size of the complete file as the store reports it."""

    data: bytes
    size: int


class Stored(NamedTuple):
    """A file in a listing of the store.

    Attributes:
        path: below the checkpoint.
        size: in bytes.
        modified: when it was stored, by the store's clock. For a multipart upload to an object
            store: when the upload began.
    """

    path: str
    size: int
    modified: datetime


class FilePage(NamedTuple):
    """Files, and the path after which there may be more; None on the last page."""

    files: list[Stored]
    behind: str | None


class Objects(Protocol):
    """Files by their path below a checkpoint.

    All calls raise `RequestError` if they fail. What a failed call was to do may have been done.
    """

    keeps_order: bool
    """True if a listing is sorted and can start after any path, at a cost proportional to its
    length.
    """

    def get(self, path: str, start: int = 0, size: int | None = None) -> FileBytes:
        """Return up to `size` bytes of a file from `start` on; None for all bytes.

        Raises:
            FileNotFoundError: there is no such file.
        """

    def head(self, path: str) -> Stored:
        """Return the metadata of a file.

        Raises:
            FileNotFoundError: there is no such file.
        """

    def put(self, path: str, data: bytes | IO[bytes]) -> None:
        """Write or replace a file. Readers see either the old or the new content."""

    def create(self, path: str, data: bytes) -> None:
        """Create a file atomically, if it does not exist.

        Raises:
            FileExistsError: the name is taken; nothing was changed.
            FileNotFoundError: another process has deleted the file at once.
        """

    def page(self, under: str, behind: str | None = None) -> FilePage:
        """Return the files below a folder with their full paths: all files, or the first ones after
        a path.
        """

    def names(self, under: str) -> list[str]:
        """Return the files directly in a folder, with their full paths."""

    def delete(self, paths: Sequence[str]) -> None:
        """Delete files. Missing files are ignored."""

    def move(self, path: str, target: str) -> None:
        """Give a file another name. A file of that name is replaced.

        Raises:
            FileNotFoundError: there is no such file.
        """

    def sync_folder(self, folder: str) -> None:
        """Make deletes in a folder durable."""


WHOLE_BYTES_MAX = 1 << 30
"""The maximum size of a file that is read in one piece: manifests and similar files, and files of
Spark's part.
"""


def check_whole(path: str, size: int) -> None:
    """Check that a file is small enough to be read in one piece.

    Raises:
        CorruptCheckpointError: it is too large.
    """
    if size > WHOLE_BYTES_MAX:
        raise CorruptCheckpointError(
            f"{path} has {size:,} bytes, and no such file has more than {WHOLE_BYTES_MAX:,}: "
            "restore it from a backup"
        )


class RemoteObjects:
    """Files in an object store, or in memory.

    Parameters:
        url: of the store; `memory://` for memory.
    """

    def __init__(self, url: str, options: StoreOptions) -> None:
        self.keeps_order = _lists_in_order(url)
        with _failures(lasting=True):
            self._once = self._many = _opened(url, options, retries=0)
            self._is_memory = isinstance(self._once, MemoryStore)
            if not self._is_memory:
                self._many = _opened(url, options, retries=10)

    def get(self, path: str, start: int = 0, size: int | None = None) -> FileBytes:
        with _failures():
            if size is None:
                got = obstore.get(self._once, path)
                check_whole(path, got.meta["size"])
            else:
                got = obstore.get(self._once, path, options={"range": (start, start + size)})
            return FileBytes(bytes(got.bytes()), got.meta["size"])

    def head(self, path: str) -> Stored:
        with _failures():
            return _stored(obstore.head(self._once, path))

    def put(self, path: str, data: bytes | IO[bytes]) -> None:
        store = self._many if _length(data) > _PART_BYTES else self._once
        with _failures(needs_no_file=True):
            obstore.put(store, path, data, chunk_size=_PART_BYTES)

    def create(self, path: str, data: bytes) -> None:
        # One request, so that the caller knows which try was not answered.
        with _failures(needs_no_file=True):
            obstore.put(self._once, path, data, mode="create", use_multipart=False)

    def page(self, under: str, behind: str | None = None) -> FilePage:
        with _failures(needs_no_file=True):
            store = self._once if self.keeps_order else self._many
            listed = obstore.list(store, under or None, offset=behind, chunk_size=_PAGE)
            if not self.keeps_order:
                return FilePage([_stored(entry) for chunk in listed for entry in chunk], None)
            files = [_stored(entry) for entry in next(iter(listed), [])]
            return FilePage(files, files[-1].path if len(files) >= _PAGE else None)

    def names(self, under: str) -> list[str]:
        with _failures(needs_no_file=True):
            listed = obstore.list_with_delimiter(self._once, prefix=under or None)
            return [entry["path"] for entry in listed["objects"]]

    def delete(self, paths: Sequence[str]) -> None:
        with _failures():
            if len(paths) > 1 and not self._is_memory:
                obstore.delete(self._once, list(paths))
                return
            for path in paths:
                with contextlib.suppress(FileNotFoundError):
                    obstore.delete(self._once, path)

    def move(self, path: str, target: str) -> None:
        with _failures():
            obstore.rename(self._once, path, target)

    def sync_folder(self, folder: str) -> None:
        """Do nothing. An object store is durable once it has responded."""


class LocalObjects:
    """Files below a directory of a local disk, each synced before its name appears.

    Parameters:
        root: the directory, which is created if it is missing.
        creates: whether a write creates it again if it is missing then. Readers do not: it may be
            away for a moment, and has to fit in its place again.
        drafts: the folder of files that are being written.
    """

    keeps_order = False

    def __init__(self, root: Path, *, creates: bool = True, drafts: str = TMP) -> None:
        self.root, self._creates, self._drafts = root, creates, drafts
        with _failures(lasting=True, needs_no_file=True):
            self._check_root()

    def get(self, path: str, start: int = 0, size: int | None = None) -> FileBytes:
        with _failures(lasting=True), _no_folder(), _open_regular(self.root, path) as file:
            length = os.fstat(file.fileno()).st_size
            if size is None:
                check_whole(path, length)
            file.seek(start)
            return FileBytes(file.read(length if size is None else size), length)

    def open(self, path: str) -> IO[bytes]:
        """Open a file for reading.

        Raises:
            FileNotFoundError: there is no such file.
        """
        with _failures(lasting=True):
            return _open_regular(self.root, path)

    def head(self, path: str) -> Stored:
        with _failures(lasting=True), _no_folder():
            return _on_disk(path, _regular_file(self.root, path))

    def put(self, path: str, data: bytes | IO[bytes]) -> None:
        with _failures(lasting=True, needs_no_file=True):
            self._write(path, data, replaces=True)

    def create(self, path: str, data: bytes) -> None:
        with _failures(lasting=True, needs_no_file=True):
            is_there = self._write(path, data, replaces=False)
        if not is_there:
            raise FileNotFoundError

    def link(self, source: Path, path: str) -> bool:
        """Store an immutable file as a hard link. Return False if this is not possible."""
        with _failures(lasting=True, needs_no_file=True):
            self._check_root()
            target = inside(self.root, path)
            target.parent.mkdir(parents=True, exist_ok=True)
            if not linked(source, target):
                return False
            self._sync(path)
            return True

    def _check_root(self) -> None:
        if self._creates:
            self.root.mkdir(parents=True, exist_ok=True)
        elif not self.root.is_dir():
            raise FileNotFoundError(f"{self.root} is not there at the moment")

    def _write(self, path: str, data: bytes | IO[bytes], *, replaces: bool) -> bool:
        """Store a file durably. If the directory is renamed meanwhile, the file is stored below the
        new name, and nothing is created below the old one.

        Parameters:
            replaces: whether it may replace a file.

        Returns:
            False if another process has deleted the file at once.

        Raises:
            AlreadyExistsError: there is such a file.
        """
        self._check_root()
        inside(self.root, path)
        folder, _, name = path.rpartition("/")
        draft = unique_id()
        with contextlib.ExitStack() as opened:
            home = os.open(self.root, _FOLDER)
            opened.callback(os.close, home)
            target = opened.enter_context(_opened_folder(folder, home))
            with contextlib.suppress(FileExistsError):
                os.mkdir(self._drafts, dir_fd=home)
            drafts = os.open(self._drafts, _FOLDER | _NO_LINK, dir_fd=home)
            opened.callback(os.close, drafts)
            try:
                with open(os.open(draft, _NEW_FILE, 0o666, dir_fd=drafts), "wb") as file:
                    shutil.copyfileobj(io.BytesIO(data) if isinstance(data, bytes) else data, file)
                    file.flush()
                    os.fsync(file.fileno())
                if replaces:
                    os.rename(draft, name, src_dir_fd=drafts, dst_dir_fd=target)
                else:
                    os.link(draft, name, src_dir_fd=drafts, dst_dir_fd=target)
            except FileExistsError as error:
                raise store_errors.AlreadyExistsError(str(error)) from error
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(draft, dir_fd=drafts)
            os.fsync(target)
            return os.access(name, os.F_OK, dir_fd=target)

    def page(self, under: str, behind: str | None = None) -> FilePage:
        with _failures(lasting=True):
            found = self._listed(under)
            return FilePage([file for file in found if behind is None or file.path > behind], None)

    def _listed(self, under: str) -> Iterator[Stored]:
        """Yield all files below a folder, without those behind links to other folders."""
        for path, entry in self._entries(under):
            if entry.is_dir(follow_symlinks=False):
                yield from self._listed(path)
            elif entry.is_file():
                with contextlib.suppress(FileNotFoundError):  # it was removed meanwhile
                    yield _on_disk(path, entry.stat())

    def _entries(self, under: str) -> list[tuple[str, os.DirEntry[str]]]:
        """Return the entries of a folder with their paths. Names that no store accepts are left
        out: statekit wrote no such file.
        """
        try:
            with os.scandir(self.root / under) as entries:
                named = [entry for entry in entries if entry.name.isprintable()]
        except (FileNotFoundError, NotADirectoryError):
            return []
        return [(f"{under}/{entry.name}".removeprefix("/"), entry) for entry in named]

    def names(self, under: str) -> list[str]:
        with _failures(lasting=True):
            return [path for path, entry in self._entries(under) if entry.is_file()]

    def delete(self, paths: Sequence[str]) -> None:
        with _failures(lasting=True):
            for path in paths:
                inside(self.root, path).unlink(missing_ok=True)

    def move(self, path: str, target: str) -> None:
        with _failures(lasting=True):
            new = inside(self.root, target)
            new.parent.mkdir(parents=True, exist_ok=True)
            os.replace(inside(self.root, path), new)
            self._sync(target)

    def sync_folder(self, folder: str) -> None:
        with _failures(lasting=True), contextlib.suppress(FileNotFoundError):
            self._sync(folder)

    def _sync(self, path: str) -> None:
        """Make a file and the directories above it durable."""
        place = self.root / path
        for target in (place, *place.parents):
            sync_path(target)
            if target == self.root:
                return


def _on_disk(path: str, status: os.stat_result) -> Stored:
    return Stored(path, status.st_size, datetime.fromtimestamp(status.st_mtime, UTC))


_DURABLE: set[tuple[int, int, int]] = set()
"""Folders whose entries this process has made durable: device, folder above, and folder."""


def _identity(part: str, opened: int) -> tuple[int, int, int]:
    above, found = os.fstat(opened), os.stat(part, dir_fd=opened, follow_symlinks=False)
    return found.st_dev, above.st_ino, found.st_ino


@contextlib.contextmanager
def _opened_folder(folder: str, home: int) -> Iterator[int]:
    """Open a folder below an open directory. Missing folders are created, and all are durable.

    This process syncs the entry of a folder once, whoever has created it. A folder that is created
    again has another identity.
    """
    opened = os.dup(home)
    try:
        for part in folder.split("/") if folder else ():
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, dir_fd=opened)
                _DURABLE.discard(_identity(part, opened))  # the number of a removed one
            entry = _identity(part, opened)
            if entry not in _DURABLE:
                os.fsync(opened)
                _DURABLE.add(entry)
            inner = os.open(part, _FOLDER | _NO_LINK, dir_fd=opened)
            os.close(opened)
            opened = inner
        yield opened
    finally:
        os.close(opened)


def inside(root: Path, path: str) -> Path:
    """Return the path of a file below a directory.

    Parameters:
        root: the directory.
        path: below it; the file may be missing.

    Raises:
        CorruptCheckpointError: a symbolic link leads out of the directory.
    """
    place = root / path
    if not _has_link(root, path):
        return place
    folder, home = os.path.realpath(place.parent), os.path.realpath(root)
    if folder != home and not folder.startswith(home.rstrip(os.sep) + os.sep):
        raise CorruptCheckpointError(
            f"{place} lies in {folder}, outside of {home}: a symbolic link leads there. Nothing "
            "was read or written. If the link is yours, mount the directory in its place"
        )
    return place


def _has_link(root: Path, path: str) -> bool:
    """Return whether a folder between a directory and a file below it may be a symbolic link."""
    folder = str(root)
    for part in path.split("/")[:-1]:
        folder = f"{folder}/{part}"
        if part == ".." or os.path.islink(folder):
            return True
    return False


def _regular_file(root: Path, path: str) -> os.stat_result:
    """Return the status of a regular file below a directory, without opening it.

    Raises:
        FileNotFoundError, IsADirectoryError: there is no such file.
        CorruptCheckpointError: it is a symbolic link, a device or a pipe, or a link leads out of
            the directory.
    """
    place = inside(root, path)
    status = place.lstat()
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(place))
    if not stat.S_ISREG(status.st_mode):
        what = "a symbolic link" if stat.S_ISLNK(status.st_mode) else "a device, a pipe or a socket"
        raise CorruptCheckpointError(
            f"{place} is {what}, and a checkpoint has regular files only: restore it from a backup"
        )
    return status


def _open_regular(root: Path, path: str) -> IO[bytes]:
    """Open a file below a directory for reading.

    Raises:
        OSError, CorruptCheckpointError: as for `_regular_file`, or it cannot be opened.
    """
    _regular_file(root, path)
    return open(os.open(root / path, os.O_RDONLY | os.O_CLOEXEC | _NO_LINK), "rb")


def sync_path(path: Path) -> None:
    """Make a local file, or the entries of a local directory, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _no_folder() -> Iterator[None]:
    """Report a directory as a missing file, like stores without directories."""
    try:
        yield
    except IsADirectoryError:
        raise FileNotFoundError from None


_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC

_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC

_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)

_PAGE = 1000
"""The number of files in one response to a list request. A smaller response is the last one."""

_PART_BYTES = 5 * 1024 * 1024
"""Bytes of a file per upload request. A smaller file is uploaded in one request."""

_IN_ORDER = ("s3", "s3a", "gs", "memory")
_EXPRESS = "--x-s3"
"""The suffix of bucket names whose lists are not sorted."""


def _length(data: bytes | IO[bytes]) -> int:
    """Return the length of data. A file is left at its start."""
    if isinstance(data, bytes):
        return len(data)
    length = data.seek(0, os.SEEK_END)
    data.seek(0)
    return length


def _stored(entry: ObjectMeta) -> Stored:
    return Stored(entry["path"], entry["size"], entry["last_modified"])


def _lists_in_order(url: str) -> bool:
    parsed = urlparse(url)
    return parsed.scheme in _IN_ORDER and not (parsed.hostname or "").endswith(_EXPRESS)


def _opened(url: str, options: StoreOptions, *, retries: int) -> ObjectStore:
    """Return a client with the credentials and settings of the environment."""
    seconds = {"timeout": options.timeout_seconds, "connect_timeout": options.connect_seconds}
    given: Any = {name: timedelta(seconds=most) for name, most in seconds.items()}
    if os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("true", "1", "yes"):
        given["allow_http"] = True
    return from_url(
        url,
        client_options=given,
        retry_config={
            "max_retries": retries,
            "retry_timeout": timedelta(seconds=options.retry_seconds),
            "backoff": {"init_backoff": timedelta(seconds=options.pause_seconds)},
        },
    )


# ------------------------------------------------------------------------------------- failures

_HOPELESS = (
    store_errors.InvalidPathError,
    store_errors.NotSupportedError,
    store_errors.PermissionDeniedError,
    store_errors.UnauthenticatedError,
    store_errors.UnknownConfigurationKeyError,
)
_REFUSED = re.compile(r"status code: (4\d\d|3\d\d|501)")
_NO_REQUEST = "builder error"
"""The error for a URL to which no request is possible."""
_NOT_NOW = ("408", "409", "423", "425", "429")
_NO_BUCKET = re.compile(r"(bucket|container) does not exist|NoSuchBucket|ContainerNotFound", re.I)
_ADDRESS_QUERY = re.compile(r"(://\S*?)\?\S*")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_USER_INFO = re.compile(r"://[^/\s@]*@")
_SECRET_LENGTH_MIN = 6


@contextlib.contextmanager
def _failures(*, lasting: bool = False, needs_no_file: bool = False) -> Iterator[None]:
    """Convert errors of obstore and the disk to `RequestError`.

    A missing file and a name that is taken are results.

    Parameters:
        lasting: errors are not retried: the disk is full or not writable, or the URL is wrong.
        needs_no_file: a missing file is an error too: the bucket is missing, or a part of an
            upload.
    """
    # Each answer is raised where it is made: a frame that had it in a variable would be in a cycle
    # with its traceback, and with it all that the epoch has in memory.
    try:
        yield
    except (FileNotFoundError, store_errors.NotFoundError) as error:
        if not needs_no_file:
            raise FileNotFoundError from None
        raise RequestError(_first_line(error), may_pass=not _NO_BUCKET.search(str(error))) from None
    except store_errors.AlreadyExistsError:
        raise FileExistsError from None
    except (store_errors.BaseError, OSError, ValueError) as error:
        raise RequestError(_first_line(error), may_pass=not lasting and _may_pass(error)) from None


def _may_pass(error: Exception) -> bool:
    if isinstance(error, _HOPELESS) or _NO_REQUEST in str(error):
        return False
    status = _REFUSED.search(str(error))
    return status is None or status[1] in _NOT_NOW


def _first_line(error: Exception) -> str:
    """Return the first line of an error without possible credentials, and with escaped control
    characters, because it may contain the name of a foreign file.
    """
    line = str(error).split("\n", 1)[0].split(": <", 1)[0]
    if (code := _CODE.search(str(error))) is not None:
        line += f" ({code[1]})"
    if _NO_REQUEST in line:
        line += " (of a http:// endpoint, it helps to set AWS_ALLOW_HTTP=true)"
    return without_credentials(line)


def without_credentials(line: str) -> str:
    """Return a line of an error without the user and the query of a URL, and without values of
    the environment that are credentials. Control characters are escaped.

    >>> without_credentials("cannot GET https://ada:pw@host/data?sig=5 (403)")
    'cannot GET https://…@host/data?… (403)'
    """
    line = _USER_INFO.sub("://…@", _ADDRESS_QUERY.sub(r"\1?…", line))
    for name, value in os.environ.items():
        if is_secret(name) and len(value) >= _SECRET_LENGTH_MIN:
            line = line.replace(value, "…")
    return printable(line)
