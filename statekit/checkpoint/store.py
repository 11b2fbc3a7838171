"""Files of a checkpoint: verified reads, and writes that create each file exactly once.

Invariants of this module:

- Data files have unique names and never change. Every read is verified against the size and
  checksum in the manifest. A mismatch is an error that names the file, never a wrong value.
- A file is created with all its content at once, or not at all if its name is taken. Only leases of
  readers are replaced, also with all their content at once.
- On a local disk, a file is synced before its name appears, and its directory before the call
  returns. So a reported commit survives a power loss. Files of a killed process under `tmp/` are
  garbage.
- A request that an object store does not answer is retried for a bounded time (`StoreOptions`). The
  first try may have succeeded. So if the name of a new file is taken, its content decides whether
  the file is the writer's own.
"""

from __future__ import annotations

import contextlib
import copy
import io
import os
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, Any, Self, TypeVar, cast

import xxhash

from statekit.backend.hard_link import linked
from statekit.checkpoint.object_store import (
    FileBytes,
    FilePage,
    LocalObjects,
    Objects,
    RemoteObjects,
    RequestError,
    Stored,
    StoreOptions,
)
from statekit.checkpoint.paths import TMP, is_state
from statekit.checkpoint.sealed_json import FileRef
from statekit.checkpoint.store_url import local_path, remote_url
from statekit.clock import sleep_s, stopwatch_s, unique_id
from statekit.errors import (
    CorruptCheckpointError,
    FencedError,
    RestoreError,
    StatekitError,
    StorageError,
)
from statekit.names import path_fault

S = TypeVar("S")
T = TypeVar("T")

TRANSFERS = 16
"""The number of parallel reads or writes of files. Stores have a high latency."""

# Files of an object store up to this size are verified in memory; larger ones
# go through a temporary file.
_SPOOL_BYTES_MAX = 32 * 1024 * 1024
_PIECE_BYTES = 8 * 1024 * 1024
"""Bytes per read request. After a torn response, only this piece is read again."""
_PIECES = 4
"""The number of parallel read requests per file."""
_CHUNK_BYTES = 1 << 20
"""Bytes per read of a local file."""
_PAUSE_SECONDS_MAX = 10.0
_REMOVED_AT_ONCE = 1000


class Store:
    """The files of one checkpoint.

    Parameters:
        url: a local path, `file://…`, or an object store URL such as `s3://bucket/prefix`.
        create: create the directory if it is a local path that does not exist.
        options: time limits for an object store; None reads them from the environment.
        drafts: the folder of files that are being written to a local directory.

    Attributes:
        url: the location of the checkpoint, which every process can open.
        root: the local directory; None for an object store.

    Raises:
        RestoreError: the local path does not exist and `create` is False.
        StateTypeError: the URL contains credentials, or statekit does not support the store.
        StorageError: the store cannot be reached or the directory cannot be created.
    """

    def __init__(
        self,
        url: str | Path,
        *,
        create: bool = True,
        options: StoreOptions | None = None,
        drafts: str = TMP,
    ) -> None:
        self._options = StoreOptions.of(os.environ) if options is None else options
        path = local_path(url)
        self.root = None if path is None else path.absolute()
        self.url = remote_url(str(url)) if self.root is None else self.root.as_uri()
        if path is not None and not create and not self._asked("open", "", path.is_dir):
            raise RestoreError(f"there is no checkpoint at {path}: check the path")
        opened: Callable[[], Objects] = partial(RemoteObjects, self.url, self._options)
        if self.root is not None:
            opened = partial(LocalObjects, self.root, creates=create, drafts=drafts)
        self._objects = self._asked("open", "", opened)

    @classmethod
    def in_memory(cls) -> Self:
        """Return a checkpoint in memory. It lives as long as this object."""
        return cls("memory://")

    @property
    def is_in_memory(self) -> bool:
        """Whether only this process can read it."""
        return self.url.startswith("memory:")

    @classmethod
    def of(cls, given: str | Path | Self) -> Self:
        """Open the checkpoint at a path or URL. An open checkpoint is returned unchanged."""
        return cls(given) if isinstance(given, str | Path) else given

    def through(
        self, wrapped: Callable[[Objects], Objects], options: StoreOptions | None = None
    ) -> Self:
        """Return the same checkpoint with its requests wrapped."""
        store = copy.copy(self)
        store._objects = wrapped(self._objects)
        store._options = self._options if options is None else options
        return store

    def at(self, path: str) -> str:
        """Return the location of a file for messages."""
        return f"{self.url}/{path}"

    def names(self, under: str) -> Iterator[str]:
        """Return the unsorted paths of the files in a folder of the checkpoint."""
        yield from self._asked("list", under, lambda: self._objects.names(under))

    def tree(self, under: str) -> Iterator[str]:
        """Return the unsorted paths of all files below a folder of the checkpoint."""
        return (file.path for file in self.listed(under))

    def listed(self, under: str) -> Iterator[Stored]:
        """Yield all files below a folder with sizes and times."""
        return self.listed_behind(under, None)

    def listed_behind(self, under: str, behind: str | None) -> Iterator[Stored]:
        """Yield the files below a folder whose paths sort after one; None for all files.

        Object stores with sorted listings are asked for these files only.
        """
        while True:
            page = self._page(under, behind)
            yield from page.files
            if (behind := page.behind) is None:
                return

    def _page(self, under: str, behind: str | None) -> FilePage:
        return self._asked("list", under, lambda: self._objects.page(under, behind))

    def stored(self, path: str) -> Stored | None:
        """Return the listing entry of a file; None if it does not exist."""
        try:
            return self._asked("read", path, lambda: self._objects.head(path))
        except FileNotFoundError:
            return None

    def exists(self, path: str) -> bool:
        """Return whether a file exists."""
        return self.stored(path) is not None

    def read_if_there(self, path: str) -> bytes | None:
        """Return the complete content of a file; None if it does not exist."""
        try:
            return self._asked("read", path, lambda: self._got(path)).data
        except FileNotFoundError:
            return None

    def piece(self, path: str, start: int, size: int) -> bytes:
        """Return bytes of a file.

        Raises:
            FileNotFoundError: there is no such file.
        """
        return self._asked("read", path, lambda: self._got(path, start, size)).data

    def _got(self, path: str, start: int = 0, size: int | None = None) -> FileBytes:
        """Return a complete piece of a file. A torn piece is an error, which causes another
        read.
        """
        piece = self._objects.get(path, start, size)
        end = piece.size if size is None else min(start + size, piece.size)
        if len(piece.data) != end - start:
            reason = f"{len(piece.data)} bytes came instead of {end - start}"
            raise RequestError(reason, may_pass=True)
        return piece

    def read(self, path: str) -> bytes:
        """Return the complete content of a file that contains its own checksum, or belongs to
        Spark.

        Raises:
            CorruptCheckpointError: it is missing.
        """
        data = self.read_if_there(path)
        if data is None:
            raise CorruptCheckpointError(
                f"{self.at(path)} is missing: restore it from a backup, or start from an intact "
                "epoch"
            )
        return data

    def create(self, path: str, data: bytes) -> None:
        """Create a file with its complete content, unless the name is taken.

        Raises:
            FencedError: the name is taken.
        """
        try:
            self._asked("write", path, lambda: self._created(path, data))
        except (FileExistsError, FileNotFoundError) as error:
            is_taken = isinstance(error, FileExistsError)
            what = "exists" if is_taken else "was removed as soon as it was there"
            raise FencedError(
                f"{self.at(path)} {what}: another run of this job is writing to this checkpoint. "
                "Stop one of them, then start the other again; nothing is lost"
            ) from None

    def _created(self, path: str, data: bytes) -> None:
        """Try once to create a file. An existing file with the same content counts as the result of
        an earlier try.

        Manifests, job files and savepoints contain their writer. All other created files have equal
        content whoever writes them.
        """
        try:
            self._objects.create(path, data)
        except FileExistsError:
            try:
                stored = self._got(path).data
            except FileNotFoundError:
                raise RequestError("it is being written by another", may_pass=True) from None
            if stored != data:
                raise

    def replace(self, path: str, data: bytes) -> None:
        """Write or replace a file with its complete content. Not for state."""
        assert not is_state(path), f"{path} is state"
        self._asked("write", path, lambda: self._objects.put(path, data))

    def put_file(self, path: str, file: IO[bytes], rows: int = 0) -> FileRef:
        """Store a file durably under a unique name.

        Parameters:
            path: below the checkpoint.
            file: the content, readable and seekable.
            rows: number of rows in it, for the reference.
        """

        if (fault := path_fault(path)) is not None:
            raise StorageError(
                f"a file cannot be stored at {self.at(path)!r:.300}: {fault}. Rename or remove the "
                "file that it is a copy of"
            )

        def put() -> None:
            file.seek(0)
            self._objects.put(path, file)

        file.seek(0)
        size, checksum = self._asked("read what is to be written to", path, lambda: _summed(file))
        self._asked("write", path, put)
        return FileRef(path=path, size=size, checksum=checksum, rows=rows)

    def move(self, path: str, target: str) -> None:
        """Give a file another name durably. A file of that name is replaced. Not for state.

        Raises:
            StorageError: there is no such file, or the store cannot be reached.
        """
        assert not any(map(is_state, (path, target))), f"{path} or {target} is state"

        def moved() -> None:
            try:
                self._objects.move(path, target)
            except FileNotFoundError:
                self._objects.head(target)  # an earlier try has moved it

        try:
            self._asked("move", path, moved)
        except FileNotFoundError:
            raise StorageError(
                f"cannot move {self.at(path)} to {target}: it was removed. Let only one job write "
                "to this directory, then start the job again; nothing committed is lost"
            ) from None

    def put_path(self, path: str, source: Path, *, going: Callable[[], None]) -> FileRef:
        """Store an immutable file of the local disk durably.

        If the checkpoint is on the same disk, the file gets a hard link and is not copied.

        Parameters:
            path: below the checkpoint, a unique name.
            source: the file.
            going: called at intervals; an exception that it raises ends the upload.
        """
        with self._asked("read", str(source), lambda: _Watched(source, going)) as watched:
            file, objects = cast("IO[bytes]", watched), self._objects
            if isinstance(objects, LocalObjects) and _same_disk(source, objects.root):
                size, checksum = self._asked("read", str(source), lambda: _summed(file))
                if self._asked("write", path, lambda: objects.link(source, path)):
                    return FileRef(path=path, size=size, checksum=checksum)
            return self.put_file(path, file)

    def fetch(self, ref: FileRef, target: Path) -> None:
        """Fetch a referenced file to the local disk, and verify every byte of it.

        The caller must not change it: it may be a hard link to the checkpoint's own file.

        Raises:
            CorruptCheckpointError: the file is missing or altered.
        """
        objects = self._objects
        if isinstance(objects, LocalObjects) and _same_disk(objects.root, target.parent):
            self.open_verified(ref).close()
            if self._kept(ref, lambda: linked(objects.root / ref.path, target)):
                return
        with self._kept(ref, lambda: target.open("wb")) as file, contextlib.ExitStack() as failing:
            failing.callback(target.unlink, missing_ok=True)
            self._copy(ref, file)
            self._kept(ref, lambda: _sync(file))
            failing.pop_all()

    def open_verified(self, ref: FileRef) -> IO[bytes]:
        """Return the content of a referenced file, after verifying every byte of it.

        Raises:
            CorruptCheckpointError: the file is missing or altered.
        """
        objects = self._objects
        with contextlib.ExitStack() as failing:
            file: IO[bytes]
            if isinstance(objects, LocalObjects):  # it can be read twice, because it never changes
                file = failing.enter_context(self._opened(objects, ref))
                self._check(ref, *self._read(ref, lambda: _summed(file)))
            else:
                file = failing.enter_context(
                    tempfile.SpooledTemporaryFile(max_size=_SPOOL_BYTES_MAX)
                )
                self._copy(ref, file)
            file.seek(0)
            failing.pop_all()  # now it is the caller's to close
        return file

    def _copy(self, ref: FileRef, target: IO[bytes]) -> None:
        """Copy a referenced file to a local one, and verify every byte of it."""
        digest, size = xxhash.xxh3_128(), 0
        for piece in self._streamed(ref):
            digest.update(piece)
            size += len(piece)
            self._kept(ref, partial(target.write, piece))
        self._check(ref, size, digest.hexdigest())

    def _opened(self, objects: LocalObjects, ref: FileRef) -> IO[bytes]:
        file = self._read(ref, lambda: objects.open(ref.path))
        if (size := os.fstat(file.fileno()).st_size) != ref.size:
            file.close()
            raise self._altered(ref, f"{size} bytes")
        return file

    def _streamed(self, ref: FileRef) -> Iterator[bytes | memoryview]:
        """Yield the content of a file in pieces. Each piece is valid until the next one is
        requested.
        """
        if not isinstance(self._objects, LocalObjects):
            yield from self._pieces(ref)
            return
        with self._opened(self._objects, ref) as file:
            # Allocating memory for each piece would take as long as copying it.
            buffer = memoryview(bytearray(_CHUNK_BYTES))
            while size := self._read(ref, lambda: cast("Any", file).readinto(buffer)):
                yield buffer[:size]

    def _pieces(self, ref: FileRef) -> Iterator[bytes]:
        """Yield the content of a file in pieces. Pieces of a large file are read in parallel.

        Raises:
            CorruptCheckpointError: a large file has another size than its reference.
        """

        def got(start: int, size: int | None = _PIECE_BYTES) -> FileBytes:
            return self._read(ref, lambda: self._got(ref.path, start, size))

        if ref.size <= _PIECE_BYTES:
            yield got(0, None).data
            return
        first = got(0)
        if first.size != ref.size:
            raise self._altered(ref, f"{first.size} bytes")
        yield first.data
        starts = iter(range(_PIECE_BYTES, ref.size, _PIECE_BYTES))
        with ThreadPoolExecutor(_PIECES) as threads:
            while some := list(islice(starts, _PIECES)):
                yield from (piece.data for piece in threads.map(got, some))

    def _read(self, ref: FileRef, ask: Callable[[], T]) -> T:
        try:
            return self._asked("read", ref.path, ask)
        except FileNotFoundError:
            raise CorruptCheckpointError(
                f"{self.at(ref.path)} is missing: restore it from a backup, or start from an "
                "epoch before the one that references it"
            ) from None

    def _kept(self, ref: FileRef, ask: Callable[[], T]) -> T:
        return self._asked("keep a copy of", ref.path, ask)

    def _check(self, ref: FileRef, size: int, checksum: str) -> None:
        """Compare the size and checksum of a file with its reference."""
        if (size, checksum) != (ref.size, ref.checksum):
            raise self._altered(ref, f"{size} bytes with checksum {checksum}")

    def _altered(self, ref: FileRef, difference: str) -> CorruptCheckpointError:
        return CorruptCheckpointError(
            f"{self.at(ref.path)} is truncated or altered: {difference}, the manifest says "
            f"{ref.size} and {ref.checksum}. Restore it from a backup, or start from an epoch "
            "before the one that references it"
        )

    def remove(self, paths: Iterable[str]) -> None:
        """Delete unreferenced files. Missing files are ignored.

        This never deletes state: no manifest, job file or data file. The deletes are durable when
        this returns.
        """
        names = list(paths)
        for path in names:
            assert not is_state(path), f"{path} is state"
        self.collect(names)
        folders = {path.rpartition("/")[0] for path in names}
        for folder in folders:
            self._asked("remove files of", folder, partial(self._objects.sync_folder, folder))

    def collect(self, paths: Iterable[str]) -> None:
        """Delete many unreferenced files, state included. Missing files are ignored.

        Only the garbage collector calls this, and a transform for files of its own. After a power
        loss a file may be back, and is garbage again.
        """
        waiting = iter(paths)
        while some := list(islice(waiting, _REMOVED_AT_ONCE)):
            self._asked("remove", some[0], partial(self._objects.delete, some))

    def discard(self, path: str) -> None:
        """Try to delete a file. If this fails, the file stays as garbage."""
        with contextlib.suppress(RequestError):
            self._objects.delete([path])

    def _asked(self, doing: str, path: str, ask: Callable[[], T]) -> T:
        """Return the response to a request. A request that may still succeed is retried.

        Raises:
            StorageError: there was no answer.
        """
        began, tries, pause = stopwatch_s(), 0, self._options.pause_seconds
        while True:
            tries += 1
            try:
                return ask()
            except RequestError as error:
                failed = error.with_traceback(None)  # no cycle with this frame
            except (FileNotFoundError, FileExistsError, StatekitError):
                raise
            except OSError as error:
                failed = RequestError(str(error).split("\n", 1)[0], may_pass=False)
            waited = stopwatch_s() - began
            if not failed.may_pass or waited + pause > self._options.retry_seconds:
                break
            sleep_s(pause * _jitter())
            pause = min(2 * pause, _PAUSE_SECONDS_MAX)
        again = f" ({tries} tries in {waited:.0f} s)" if tries > 1 else ""
        raise StorageError(
            f"cannot {doing} {self.at(path).rstrip('/')}: {failed.reason}{again}. Nothing "
            "committed is lost: check that the store is reachable, has space and may be written, "
            "then start again"
        )


def in_parallel(transfer: Callable[[S], T], files: Collection[S]) -> list[T]:
    """Run several file transfers at a time, and return their results."""
    if len(files) < 2:
        return [transfer(file) for file in files]
    with ThreadPoolExecutor(min(TRANSFERS, len(files))) as threads:
        return list(threads.map(transfer, files))


def _summed(file: IO[bytes]) -> tuple[int, str]:
    """Return the size and the checksum of the rest of a file."""
    digest, size = xxhash.xxh3_128(), 0
    while chunk := file.read(_CHUNK_BYTES):
        digest.update(chunk)
        size += len(chunk)
    return size, digest.hexdigest()


class _Watched(io.FileIO):
    """A file whose reading can be ended by another thread."""

    def __init__(self, path: Path, going: Callable[[], None]) -> None:
        super().__init__(path)
        self._going = going

    def read(self, size: int | None = -1, /) -> bytes:
        self._going()
        return super().read(-1 if size is None else size) or b""


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _same_disk(one: Path, other: Path) -> bool:
    """Return whether two paths are probably on one file system."""
    return one.stat().st_dev == other.stat().st_dev


def _jitter() -> float:
    """Return a random number from 0.5 to 1. It spreads the retries of requests that failed
    together.
    """
    return 0.5 + int(unique_id()[:8], 16) / 2**33
