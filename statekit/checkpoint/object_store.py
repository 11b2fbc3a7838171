"""Requests to the storage of a checkpoint: a local directory or an object store.

A request answers or fails, and is never tried again here, but for those of what takes many: the
parts of a large upload, and the pages of a list that cannot be begun in the middle. Of what obstore
says of a failure, only the first line goes on, and without what follows the `?` of an address or
was a credential in the environment: it may be signed.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, Protocol, Self, cast
from urllib.parse import urlparse

import obstore
from obstore import exceptions as store_errors
from obstore.store import LocalStore, MemoryStore, ObjectStore, from_url

from statekit.backend.hard_link import linked
from statekit.checkpoint.regular_files import inside, open_regular, regular_file
from statekit.clock import unique_id
from statekit.errors import CorruptCheckpointError, StateTypeError

if TYPE_CHECKING:
    from obstore import ObjectMeta


@dataclass(frozen=True)
class StoreOptions:
    """How long an object store may take. A local disk and memory are asked once.

    Each can be set in the environment of the driver and of the workers, as the name in capitals
    behind `STATEKIT_STORE_`, such as `STATEKIT_STORE_RETRY_SECONDS`.

    Parameters:
        retry_seconds: for how long a request that failed is made again, in all.
        timeout_seconds: how long one request may take, with up to 8 MiB that go with it.
        connect_seconds: how long connecting may take.
        pause_seconds: between the first and the second try; it doubles up to 10 seconds.

    >>> StoreOptions.of({"STATEKIT_STORE_RETRY_SECONDS": "600"}).retry_seconds
    600.0
    """

    retry_seconds: float = 180.0
    timeout_seconds: float = 30.0
    connect_seconds: float = 5.0
    pause_seconds: float = 0.1

    @classmethod
    def of(cls, environment: Any) -> Self:
        """What an environment says, and defaults for the rest.

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
    """Bytes of a file, and the size that the store says the whole file has."""

    data: bytes
    size: int


class Stored(NamedTuple):
    """A file as a store lists it.

    Attributes:
        path: below the checkpoint.
        size: in bytes.
        modified: when it was stored, by the store's own clock. Of a file that an object store was
            given in parts: when the first of them was announced.
    """

    path: str
    size: int
    modified: datetime


class Page(NamedTuple):
    """Files, and the path behind which there may be more; None if there are none."""

    files: list[Stored]
    behind: str | None


class Objects(Protocol):
    """Files by their path below a checkpoint.

    All calls raise `RequestError` if they fail. What a failed call was to do may have been done.
    """

    keeps_order: bool
    """Whether files are listed in order, and from anywhere, at the cost of what is listed."""

    def get(self, path: str, start: int = 0, size: int | None = None) -> FileBytes:
        """Up to `size` bytes of a file from `start` on; None is all of them.

        Raises:
            FileNotFoundError: there is no such file.
        """

    def head(self, path: str) -> Stored:
        """What is told of a file without its content.

        Raises:
            FileNotFoundError: there is no such file.
        """

    def put(self, path: str, data: bytes | IO[bytes]) -> None:
        """Write a file; one that is there is replaced."""

    def create(self, path: str, data: bytes) -> None:
        """Write a file with all its content at once.

        Raises:
            FileExistsError: the name is taken; nothing was changed.
            FileNotFoundError: another has removed it as soon as it was there.
        """

    def page(self, under: str, behind: str | None = None) -> Page:
        """Files below a folder, with their whole paths: all, or the first behind a path."""

    def names(self, under: str) -> list[str]:
        """Return the files right in a folder, with their whole paths."""

    def delete(self, paths: Sequence[str]) -> None:
        """Delete files. They may be gone already."""

    def settle(self, folder: str) -> None:
        """Make what was deleted in a folder stay so after a power loss."""


WHOLE_BYTES_MAX = 1 << 30
"""The largest file that is read at once: manifests and the like, and files of Spark's part."""


def check_whole(path: str, size: int) -> None:
    """Make sure that a file may be read at once.

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
        url: of the store; None is memory.
    """

    def __init__(self, url: str | None, options: StoreOptions) -> None:
        self._is_memory = url is None
        self.keeps_order = url is None or _lists_in_order(url)
        if url is None:
            self._once = self._many = cast("ObjectStore", MemoryStore())
            return
        with _failures(lasting=True):
            self._once = _opened(url, options, retries=0)
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
        with _failures(), _nothing_there_is_a_failure():
            obstore.put(store, path, data, chunk_size=_PART_BYTES)

    def create(self, path: str, data: bytes) -> None:
        # One request, so that whoever asks knows which try was not answered.
        with _failures(), _nothing_there_is_a_failure():
            obstore.put(self._once, path, data, mode="create", use_multipart=False)

    def page(self, under: str, behind: str | None = None) -> Page:
        with _failures(), _nothing_there_is_a_failure():
            store = self._once if self.keeps_order else self._many
            listed = obstore.list(store, under or None, offset=behind, chunk_size=_PAGE)
            if not self.keeps_order:
                return Page([_stored(entry) for chunk in listed for entry in chunk], None)
            files = [_stored(entry) for entry in next(iter(listed), [])]
            return Page(files, files[-1].path if len(files) >= _PAGE else None)

    def names(self, under: str) -> list[str]:
        with _failures(), _nothing_there_is_a_failure():
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

    def settle(self, folder: str) -> None:
        """Return an object store keeps what it has answered."""


class LocalObjects:
    """Files below a directory of a local disk, each synced before its name appears."""

    keeps_order = False

    def __init__(self, root: Path) -> None:
        self.root = root
        with _failures(lasting=True):
            root.mkdir(parents=True, exist_ok=True)
            self._store = LocalStore(root)

    def get(self, path: str, start: int = 0, size: int | None = None) -> FileBytes:
        with _failures(lasting=True), _no_folder(), open_regular(self.root, path) as file:
            length = os.fstat(file.fileno()).st_size
            if size is None:
                check_whole(path, length)
            file.seek(start)
            return FileBytes(file.read(length if size is None else size), length)

    def open(self, path: str) -> IO[bytes]:
        """Return a file to be read piece by piece.

        Raises:
            FileNotFoundError: there is no such file.
        """
        with _failures(lasting=True):
            return open_regular(self.root, path)

    def head(self, path: str) -> Stored:
        with _failures(lasting=True), _no_folder():
            found = regular_file(self.root, path)
            modified = datetime.fromtimestamp(found.st_mtime, UTC)
            return Stored(path, found.st_size, modified)

    def put(self, path: str, data: bytes | IO[bytes]) -> None:
        with _failures(lasting=True):
            inside(self.root, path)
            obstore.put(self._store, path, data)
            self._sync(path)

    def link(self, source: Path, path: str) -> bool:
        """Store a file that nobody changes by one more name; False if that is not possible."""
        with _failures(lasting=True), _nothing_there_is_a_failure():
            target = inside(self.root, path)
            target.parent.mkdir(parents=True, exist_ok=True)
            if not linked(source, target):
                return False
            self._sync(path)
            return True

    def create(self, path: str, data: bytes) -> None:
        with _failures(lasting=True):
            draft = f"tmp/{unique_id()}"
            for name in (draft, path):
                inside(self.root, name)
            with _nothing_there_is_a_failure():
                obstore.put(self._store, draft, data)
                self._sync(draft)
                try:
                    obstore.rename(self._store, draft, path, overwrite=False)
                except store_errors.AlreadyExistsError:
                    obstore.delete(self._store, draft)
                    raise
            self._sync(path)

    def page(self, under: str, behind: str | None = None) -> Page:
        with _failures(lasting=True):
            listed = obstore.list(self._store, prefix=under or None, offset=behind)
            return Page([_stored(entry) for chunk in listed for entry in chunk], None)

    def names(self, under: str) -> list[str]:
        with _failures(lasting=True):
            listed = obstore.list_with_delimiter(self._store, prefix=under or None)
            return [entry["path"] for entry in listed["objects"]]

    def delete(self, paths: Sequence[str]) -> None:
        with _failures(lasting=True):
            for path in paths:
                inside(self.root, path)
                with contextlib.suppress(FileNotFoundError):
                    obstore.delete(self._store, path)

    def settle(self, folder: str) -> None:
        with _failures(lasting=True), contextlib.suppress(FileNotFoundError):
            self._sync(folder)

    def _sync(self, path: str) -> None:
        """Make a file, and the directories above it, survive power loss."""
        place = self.root / path
        for target in (place, *place.parents):
            descriptor = os.open(target, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            if target == self.root:
                return


@contextlib.contextmanager
def _no_folder() -> Iterator[None]:
    """A directory is no file: stores that have none would say that there is no such file."""
    try:
        yield
    except IsADirectoryError:
        raise FileNotFoundError from None


_PAGE = 1000
"""How many files a store lists in one answer; a chunk that has fewer is the last."""

_PART_BYTES = 5 * 1024 * 1024
"""How much of a file goes up with one request. A smaller one goes up as a whole."""

_IN_ORDER = ("s3", "s3a", "gs")
_EXPRESS = "--x-s3"
"""How the names of buckets end that list in no order."""


def _length(data: bytes | IO[bytes]) -> int:
    """Return how long it is; a file is left at its beginning."""
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
    """Return a client with the credentials and the settings of the environment."""
    seconds = {
        "timeout": options.timeout_seconds,
        "connect_timeout": options.connect_seconds,
    }
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
"""What is said where no request could be made of an address, whatever the store does."""
_NOT_NOW = ("408", "409", "423", "425", "429")
_NO_BUCKET = re.compile(r"(bucket|container) does not exist|NoSuchBucket|ContainerNotFound", re.I)
_ADDRESS_QUERY = re.compile(r"(://\S*?)\?\S*")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_USER_INFO = re.compile(r"://[^/\s@]*@")
_SECRET_NAME = re.compile(r"KEY|SECRET|TOKEN|PASSWORD|SAS|CREDENTIAL")
_SECRET_LENGTH_MIN = 6


@contextlib.contextmanager
def _failures(*, lasting: bool = False) -> Iterator[None]:
    """Turn what obstore and the disk raise into `RequestError`, and forget what raised it.

    A file that is missing, and a name that is taken, are answers. What is lasting is not asked
    again: a disk is full or may not be written, an address is wrong.
    """
    try:
        yield
        return
    except (FileNotFoundError, store_errors.NotFoundError):
        answer: Exception = FileNotFoundError()
    except store_errors.AlreadyExistsError:
        answer = FileExistsError()
    except (store_errors.BaseError, OSError, ValueError) as error:
        answer = RequestError(_told(error), may_pass=not lasting and _may_pass(error))
    raise answer from None


@contextlib.contextmanager
def _nothing_there_is_a_failure() -> Iterator[None]:
    """What is written or listed need not be there: the bucket is missing, or part of an upload."""
    try:
        yield
        return
    except (FileNotFoundError, store_errors.NotFoundError) as error:
        failed = RequestError(_told(error), may_pass=not _NO_BUCKET.search(str(error)))
    raise failed from None


def _may_pass(error: Exception) -> bool:
    if isinstance(error, _HOPELESS) or _NO_REQUEST in str(error):
        return False
    status = _REFUSED.search(str(error))
    return status is None or status[1] in _NOT_NOW


def _told(error: Exception) -> str:
    """What an error says in its first line, without what may be a credential."""
    line = str(error).split("\n", 1)[0].split(": <", 1)[0]
    if (code := _CODE.search(str(error))) is not None:
        line += f" ({code[1]})"
    if _NO_REQUEST in line:
        line += " (of a http:// endpoint, it helps to set AWS_ALLOW_HTTP=true)"
    line = _USER_INFO.sub("://…@", _ADDRESS_QUERY.sub(r"\1?…", line))
    for name, value in os.environ.items():
        if _SECRET_NAME.search(name) and len(value) >= _SECRET_LENGTH_MIN:
            line = line.replace(value, "…")
    return line
