"""Files of a checkpoint in a store: read, verified, created once.

What lives here: files on a local disk, in memory or in an object store; this is the only importer
of obstore. What does not: what the files are (`repository`).

Invariants kept here:

- Data files have unique names and are never changed. What is read is verified against the size and
  checksum in the manifest; a mismatch is an error that names the file, never a wrong value.
- A file is created with all its content at once, or not at all if its name is taken.
- On a local disk, a file is synced before its name appears, and its directory before the call
  returns, so that what was reported committed survives a power loss. What a killed process leaves
  under `tmp/` is garbage.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Self, cast
from urllib.parse import unquote, urlparse

import obstore
import xxhash
from obstore import exceptions as store_errors
from obstore.store import LocalStore, MemoryStore, ObjectStore, from_url

from statekit.clock import unique_id
from statekit.errors import CorruptCheckpointError, FencedError, RestoreError, StorageError
from statekit.sealed import FileRef

__all__ = ["Store"]

_STATE = ("epochs/", "data/", "job")
# Files of an object store up to this size are held in memory while they are verified; larger ones
# go through a temporary file.
_SPOOL_BYTES_MAX = 32 * 1024 * 1024


class Store:
    """The files of one checkpoint.

    Parameters:
        url: a local path, `file://…`, or an object store URL such as `s3://bucket/prefix`.
        create: make the directory if it is a local path that does not exist.

    Raises:
        RestoreError: the local path does not exist and `create` is False.
        StorageError: the store cannot be reached or the directory not be made.
    """

    def __init__(self, url: str | Path, *, create: bool = True) -> None:
        path = _local_path(url)
        if path is not None:
            if not create and not path.is_dir():
                raise RestoreError(f"there is no checkpoint at {path}: check the path")
            self._open_local(path)
        else:
            self._url = str(url).rstrip("/")
            self._root: Path | None = None
            with _storage_errors("open", self._url):
                self._store: ObjectStore = from_url(self._url)

    def _open_local(self, path: Path) -> None:
        self._root = path.absolute()
        self._url = self._root.as_uri()
        with _storage_errors("open", self._url):
            self._root.mkdir(parents=True, exist_ok=True)
            self._store = LocalStore(self._root)

    @classmethod
    def in_memory(cls) -> Self:
        """A checkpoint that lives as long as this object."""
        made = cls.__new__(cls)
        made._url = "memory://"
        made._root = None
        made._store = MemoryStore()
        return made

    @property
    def url(self) -> str:
        """Where the checkpoint is, in a form that any process can open."""
        return self._url

    @property
    def root(self) -> Path | None:
        """The local directory, or None for an object store."""
        return self._root

    def at(self, path: str) -> str:
        """How a file of the checkpoint is called in messages."""
        return f"{self._url}/{path}"

    def names(self, under: str) -> Iterator[str]:
        """Paths of the files in a folder of the checkpoint, in no order."""
        with _storage_errors("list", self.at(under)):
            listed = obstore.list_with_delimiter(self._store, prefix=under or None)
            for entry in listed["objects"]:
                yield entry["path"]

    def tree(self, under: str) -> Iterator[str]:
        """Paths of all files below a folder of the checkpoint, in no order."""
        with _storage_errors("list", self.at(under)):
            for chunk in obstore.list(self._store, prefix=under or None):
                for entry in chunk:
                    yield entry["path"]

    def exists(self, path: str) -> bool:
        """Whether there is such a file."""
        try:
            with _storage_errors("read", self.at(path)):
                obstore.head(self._store, path)
        except FileNotFoundError:
            return False
        return True

    def read_if_there(self, path: str) -> bytes | None:
        """The whole content of a file; None if there is no such file."""
        try:
            with _storage_errors("read", self.at(path)):
                return bytes(obstore.get(self._store, path).bytes())
        except FileNotFoundError:
            return None

    def read(self, path: str) -> bytes:
        """The whole content of a file that seals itself, or is not ours.

        Raises:
            CorruptCheckpointError: it is missing.
        """
        found = self.read_if_there(path)
        if found is None:
            raise CorruptCheckpointError(
                f"{self.at(path)} is missing: restore it from a backup, or start from an epoch "
                "that is whole"
            )
        return found

    def create(self, path: str, data: bytes) -> None:
        """Create a file with all its content at once, unless the name is taken.

        Raises:
            FencedError: it is.
        """
        try:
            with _storage_errors("write", self.at(path)):
                if self._root is None:
                    obstore.put(self._store, path, data, mode="create")
                else:
                    draft = f"tmp/{unique_id()}"
                    obstore.put(self._store, draft, data)
                    self._sync(draft)
                    try:
                        obstore.rename(self._store, draft, path, overwrite=False)
                    except store_errors.AlreadyExistsError:
                        obstore.delete(self._store, draft)
                        raise
                    self._sync(path)
        except store_errors.AlreadyExistsError as error:
            if self._root is None and self.read(path) == data:
                return  # written by an earlier try of ours, whose answer the network lost
            raise FencedError(
                f"{self.at(path)} exists: another run of this job is writing to this checkpoint. "
                "Stop one of them, then start the other again; nothing is lost"
            ) from error

    def put_file(self, path: str, file: IO[bytes], rows: int = 0) -> FileRef:
        """Store a file under a name that nothing else has, durably.

        Parameters:
            path: below the checkpoint.
            file: the content, readable and seekable.
            rows: in it, for the reference.
        """
        digest, size = xxhash.xxh3_128(), 0
        with _storage_errors("write", self.at(path)):
            file.seek(0)
            while chunk := file.read(1 << 20):
                digest.update(chunk)
                size += len(chunk)
            file.seek(0)
            obstore.put(self._store, path, file)
            self._sync(path)
        checksum = digest.hexdigest()
        return FileRef(path=path, size=size, checksum=checksum, rows=rows)

    def open_verified(self, ref: FileRef) -> IO[bytes]:
        """The content of a file that a manifest names, after checking every byte of it.

        Raises:
            CorruptCheckpointError: the file is missing, or not what the manifest says.
        """
        where = self.at(ref.path)
        with contextlib.ExitStack() as closing, _storage_errors("read", where):
            try:
                file = closing.enter_context(self._opened(ref.path))
            except FileNotFoundError:
                raise CorruptCheckpointError(
                    f"{where} is missing: restore it from a backup, or start from an epoch before "
                    "the one that names it"
                ) from None
            _verify(file, ref, where)
            file.seek(0)
            closing.pop_all()  # now it is the caller's to close
        return file

    def _opened(self, path: str) -> IO[bytes]:
        """A data file to read from its start, twice: it never changes."""
        if self._root is not None:
            return open(self._root / path, "rb")
        with contextlib.ExitStack() as closing:
            made = closing.enter_context(tempfile.SpooledTemporaryFile(max_size=_SPOOL_BYTES_MAX))
            spool = cast("IO[bytes]", made)
            for chunk in obstore.get(self._store, path).stream():
                spool.write(chunk)
            spool.seek(0)
            closing.pop_all()
        return spool

    def remove(self, paths: Iterable[str]) -> None:
        """Delete files that nothing names, one after the other. They may be gone already.

        What is state is never deleted by name: no manifest, job file or data file. What is gone
        when this returns stays gone.
        """
        folders = set()
        for path in paths:
            assert not path.startswith(_STATE), f"{path} is state"
            with contextlib.suppress(FileNotFoundError), _storage_errors("remove", self.at(path)):
                obstore.delete(self._store, path)
                folders.add(path.rpartition("/")[0])
        for folder in folders:
            with _storage_errors("remove files of", self.at(folder)):
                self._sync(folder)

    def discard(self, path: str) -> None:
        """Delete a file if that can be done: it may stay as garbage."""
        with contextlib.suppress(OSError, store_errors.BaseError):
            obstore.delete(self._store, path)

    def _sync(self, path: str) -> None:
        """Local disks only: make a file, and the directories above it, survive power loss."""
        if self._root is None:
            return
        place = self._root / path
        for target in (place, *place.parents):
            descriptor = os.open(target, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            if target == self._root:
                return


def _verify(file: IO[bytes], ref: FileRef, where: str) -> None:
    """Hold the content of a file against what a manifest says of it."""
    digest, size = xxhash.xxh3_128(), 0
    while chunk := file.read(1 << 20):
        digest.update(chunk)
        size += len(chunk)
    if (size, digest.hexdigest()) != (ref.size, ref.checksum):
        raise CorruptCheckpointError(
            f"{where} is truncated or altered: {size} bytes with checksum "
            f"{digest.hexdigest()}, the manifest says {ref.size} and {ref.checksum}. Restore "
            "it from a backup, or start from an epoch before the one that names it"
        )


def _local_path(url: str | Path) -> Path | None:
    if isinstance(url, Path):
        return url
    parsed = urlparse(url)
    if parsed.scheme == "file":
        return Path(unquote(parsed.path))
    return None if "://" in url else Path(url)


class _storage_errors:  # noqa: N801 - reads as a statement
    """Turns errors of the store into `StorageError`; a missing or existing file passes through."""

    def __init__(self, doing: str, where: str) -> None:
        self._doing = doing
        self._where = where

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        passing = (FileNotFoundError, StorageError, store_errors.AlreadyExistsError)
        if isinstance(error, OSError | store_errors.BaseError) and not isinstance(error, passing):
            reason = str(error).split("\n", 1)[0]
            raise StorageError(
                f"cannot {self._doing} {self._where}: {reason}. Nothing committed is lost: check "
                "that the store is reachable, has space and may be written, then start again"
            ) from error
