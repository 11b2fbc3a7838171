"""The checkpoint store: what is durable, and the one call that commits.

What lives here: reading, verifying and writing the files of a checkpoint on a local disk, in
memory or in an object store; this is the only importer of obstore. What does not: what the files
mean to a job (`coordinator`) and the working copies made from them (`working_copy`).

Invariants kept here:

- Data files have unique names and are never changed. What is read is verified against the size and
  checksum in the manifest; a mismatch is an error that names the file, never a wrong value.
- A commit is one create-if-absent of one manifest. If the name is taken, the writer is fenced.
- On a local disk, a file is synced before its name appears, and its directory before the call
  returns, so that what was reported committed survives a power loss. What a killed process leaves
  under `tmp/` is garbage.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast
from urllib.parse import unquote, urlparse

import obstore
import xxhash
from obstore import exceptions as store_errors
from obstore.store import LocalStore, MemoryStore, ObjectStore, from_url

from statekit.backend import Backend
from statekit.clock import unique_id
from statekit.errors import CorruptCheckpointError, FencedError, RestoreError, StorageError
from statekit.keygroup import pack_group
from statekit.manifest import (
    EpochInstant,
    EpochManifest,
    FileRef,
    JobFile,
    epoch_path,
    instant_path,
)
from statekit.mutation import read_changes

__all__ = ["Repository", "group_bounds"]

JOB_PATH = "job.json"
_EPOCH_NAME = re.compile(r"epochs/(\d{20})\.json")
_JOB_NAME = re.compile(r"job(?:-(\d+))?\.json")

# Files up to this size are held in memory while they are verified; larger ones go through a
# temporary file.
_SPOOL_BYTES_MAX = 32 * 1024 * 1024


class Repository:
    """One checkpoint.

    Parameters:
        url: a local path, `file://…`, or an object store URL such as `s3://bucket/prefix`.
        create: make the directory if it is a local path that does not exist.

    Raises:
        RestoreError: the local path does not exist and `create` is False.
        StorageError: the store cannot be reached or the directory not be made.

    >>> repository = Repository.in_memory()
    >>> repository.latest_epoch() is None
    True
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
    def in_memory(cls) -> Repository:
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

    # ------------------------------------------------------------------------------- job files

    def job_file(self, path: str | None = None) -> tuple[JobFile, FileRef] | None:
        """The job description in force: the newest, or the one at `path`; None if there is none.

        Raises:
            CorruptCheckpointError: it is truncated or altered.
            RestoreError: it was written by a newer version.
        """
        if path is None:
            numbers = [
                int(match[1] or 1)
                for name in self.names("")
                if (match := _JOB_NAME.fullmatch(name)) is not None
            ]
            if not numbers:
                return None
            path = job_path(max(numbers))
        data = self._read_bytes(path)
        return JobFile.from_bytes(data, self._at(path)), _reference(path, data)

    def create_job_file(self, job: JobFile, number: int) -> FileRef:
        """Write the `number`th job description if there is none yet.

        Raises:
            FencedError: another writer was faster.
        """
        path, data = job_path(number), job.to_bytes()
        self._create(path, data)
        return _reference(path, data)

    # ------------------------------------------------------------------------------- manifests

    def epochs(self) -> list[int]:
        """The numbers of all committed epochs, in order."""
        matches = (_EPOCH_NAME.fullmatch(name) for name in self.names("epochs"))
        return sorted(int(match[1]) for match in matches if match is not None)

    def latest_epoch(self) -> int | None:
        """The number of the last committed epoch; None if nothing was committed."""
        return max(self.epochs(), default=None)

    def is_committed(self, epoch: int) -> bool:
        """Whether the epoch's manifest exists."""
        try:
            with _storage_errors("read", self._at(epoch_path(epoch))):
                obstore.head(self._store, epoch_path(epoch))
        except FileNotFoundError:
            return False
        return True

    def manifest(self, epoch: int) -> EpochManifest:
        """The manifest of a committed epoch.

        Raises:
            CorruptCheckpointError: it is missing, truncated or altered.
        """
        path = epoch_path(epoch)
        manifest = EpochManifest.from_bytes(self._read_bytes(path), self._at(path))
        if manifest.epoch != epoch:
            raise CorruptCheckpointError(
                f"{self._at(path)} is the manifest of epoch {manifest.epoch}: restore the files of "
                "this directory from a backup"
            )
        return manifest

    def begun(self, epoch: int) -> EpochInstant | None:
        """What an attempt at an epoch noted when it began; None if there was none.

        Raises:
            CorruptCheckpointError: the note is truncated or altered.
        """
        path = instant_path(epoch)
        try:
            with _storage_errors("read", self._at(path)):
                data = bytes(obstore.get(self._store, path).bytes())
        except FileNotFoundError:
            return None
        return EpochInstant.from_bytes(data, self._at(path))

    def begin(self, begun: EpochInstant) -> None:
        """Note that an epoch begins.

        Raises:
            FencedError: another run has begun it.
        """
        self._create(instant_path(begun.epoch), begun.to_bytes())

    def forget_instant(self, epoch: int) -> None:
        """Remove what `begin` left: the epoch is committed and will not run again."""
        # If it cannot be removed, it stays as garbage: the epoch is committed all the same.
        with contextlib.suppress(OSError, store_errors.BaseError):
            obstore.delete(self._store, instant_path(epoch))

    def commit(self, manifest: EpochManifest) -> None:
        """Make an epoch exist, with everything it names, by one create-if-absent.

        Raises:
            FencedError: the epoch exists already: another writer committed it.
        """
        self._create(epoch_path(manifest.epoch), manifest.to_bytes())

    # ------------------------------------------------------------------------------ data files

    def put_changes(self, operator: str, file: IO[bytes], rows: int) -> FileRef:
        """Store a change file under a unique name, durably.

        Parameters:
            operator: whose changes they are.
            file: the content, readable and seekable.
            rows: mutations in it, for the reference.
        """
        digest, size = xxhash.xxh3_128(), 0
        path = f"data/{operator}/{unique_id()}.changes.arrow"
        with _storage_errors("write", self._at(path)):
            file.seek(0)
            while chunk := file.read(1 << 20):
                digest.update(chunk)
                size += len(chunk)
            file.seek(0)
            obstore.put(self._store, path, file)
            self._sync(path)
        return FileRef(path=path, size=size, checksum=digest.hexdigest(), rows=rows)

    def open_verified(self, ref: FileRef) -> IO[bytes]:
        """The content of a file that a manifest names, after checking every byte of it.

        Raises:
            CorruptCheckpointError: the file is missing, or not what the manifest says.
        """
        with contextlib.ExitStack() as closing:
            made = closing.enter_context(tempfile.SpooledTemporaryFile(max_size=_SPOOL_BYTES_MAX))
            spool = cast("IO[bytes]", made)
            self._read_verified(ref, spool)
            spool.seek(0)
            closing.pop_all()  # now it is the caller's to close
        return spool

    def _read_verified(self, ref: FileRef, into: IO[bytes]) -> None:
        digest, size = xxhash.xxh3_128(), 0
        where = self._at(ref.path)
        try:
            with _storage_errors("read", where):
                for chunk in obstore.get(self._store, ref.path).stream():
                    digest.update(chunk)
                    into.write(chunk)
                    size += len(chunk)
        except FileNotFoundError:
            raise CorruptCheckpointError(
                f"{where} is missing: restore it from a backup, or start from an epoch before the "
                "one that names it"
            ) from None
        if (size, digest.hexdigest()) != (ref.size, ref.checksum):
            raise CorruptCheckpointError(
                f"{where} is truncated or altered: {size} bytes with checksum "
                f"{digest.hexdigest()}, the manifest says {ref.size} and {ref.checksum}. Restore "
                "it from a backup, or start from an epoch before the one that names it"
            )

    # --------------------------------------------------------------------------------- history

    def changes(
        self, operator: str, first: int, last: int, epoch: int | None, *, after: str | None = None
    ) -> tuple[list[FileRef], bool]:
        """The change files that lead to where these key groups stand after an epoch, oldest first.

        Parameters:
            after: an attempt that the caller already holds; files up to it are left out.

        Returns:
            The files, and whether `after` was found. If not, the list starts from nothing.
        """
        found: list[FileRef] = []
        while epoch is not None:
            manifest = self.manifest(epoch)
            shards = list(manifest.shards_over(operator, first, last))
            if after is not None and [(s.groups, s.attempt) for s in shards] == [
                ((first, last), after)
            ]:
                return found[::-1], True
            changed_here = [s for s in shards if s.changed == epoch]
            for shard in reversed(changed_here):
                found.extend(reversed(shard.files))
            older = [s.changed for s in shards if s.changed is not None and s.changed < epoch]
            epoch = manifest.previous if changed_here else max(older, default=None)
        return found[::-1], False

    def replay(self, backend: Backend, refs: list[FileRef], first: int, last: int) -> None:
        """Apply change files to a backend, keeping only rows of the key groups `first..last`.

        States that the backend was not opened with are states that were given up: left out.
        """
        states = frozenset(backend.states)
        start, end = group_bounds(first, last)
        for ref in refs:
            with self.open_verified(ref) as file:
                for batch in read_changes(file, self._at(ref.path)):
                    backend.write(batch.within(start, end, states))

    # ---------------------------------------------------------------------------------- copying

    def copy_to(self, target: Repository) -> None:
        """Copy every file to an empty checkpoint, manifests last."""
        with _storage_errors("list", self._url):
            listed = obstore.list(self._store)
            paths = [entry["path"] for chunk in listed for entry in chunk]
        wanted = [path for path in paths if not path.startswith(("tmp/", "spark/"))]
        for path in sorted(wanted, key=lambda path: path.startswith("epochs/")):
            target._create(path, self._read_bytes(path))

    # -------------------------------------------------------------------------------- plumbing

    def names(self, under: str) -> Iterator[str]:
        """Paths of the files in a folder of the checkpoint, in no order."""
        with _storage_errors("list", self._at(under)):
            listed = obstore.list_with_delimiter(self._store, prefix=under or None)
            for entry in listed["objects"]:
                yield entry["path"]

    def _at(self, path: str) -> str:
        return f"{self._url}/{path}"

    def _read_bytes(self, path: str) -> bytes:
        try:
            with _storage_errors("read", self._at(path)):
                return bytes(obstore.get(self._store, path).bytes())
        except FileNotFoundError:
            raise CorruptCheckpointError(
                f"{self._at(path)} is missing: restore it from a backup, or start from an epoch "
                "that is whole"
            ) from None

    def _create(self, path: str, data: bytes) -> None:
        """Create a file with all its content at once, unless the name is taken."""
        try:
            with _storage_errors("write", self._at(path)):
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
            if self._root is None and self._read_bytes(path) == data:
                return  # written by an earlier try of ours, whose answer the network lost
            raise FencedError(
                f"{self._at(path)} exists: another run of this job is writing to this checkpoint. "
                "Stop one of them, then start the other again; nothing is lost"
            ) from error

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


def job_path(number: int) -> str:
    """`job.json` for the first job description, `job-2.json` for the second, …"""
    return JOB_PATH if number == 1 else f"job-{number}.json"


def job_number(path: str) -> int:
    """The inverse of `job_path`."""
    match = _JOB_NAME.fullmatch(path)
    return int(match[1] or 1) if match else 1


def group_bounds(first: int, last: int) -> tuple[bytes, bytes]:
    """The row keys of the key groups `first..last`: from the first key to behind the last.

    >>> group_bounds(0, 127)
    (b'\\x00\\x00', b'\\x00\\x80')
    """
    return pack_group(first), pack_group(last + 1)


def _reference(path: str, data: bytes) -> FileRef:
    return FileRef(path=path, size=len(data), checksum=xxhash.xxh3_128_hexdigest(data))


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
