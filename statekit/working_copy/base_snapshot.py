"""The upload of a base snapshot: RocksDB's own files, from the local disk to the checkpoint.

    <copy's home>/snapshots/<unique>/
        lock            held (flock) by the process that uploads it
        staged.json     its description; written last, so the directory is complete if it exists
        local.changes.arrow   the state of the shard
        <number>/       a database: its tables are hard links, shared with the working copy
            stored.json     which of them are in the checkpoint: the progress of the upload
        finished.json   the base in the checkpoint

None of these files is part of a checkpoint. If a process dies, another one can resume from its
directory. If that is lost too, the change files are still in the checkpoint.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from threading import Lock, Thread
from typing import TypeVar

from pydantic import ValidationError

from statekit.backend.hard_link import linked
from statekit.backend.rocksdb import RocksBackend
from statekit.backend.rocksdb_options import RocksOptions
from statekit.checkpoint.paths import BASE, CHANGES, data_path
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.sealed_json import Count, FileRef, Record
from statekit.checkpoint.shard_contents import BaseDatabase, BaseSnapshot
from statekit.checkpoint.store import TRANSFERS
from statekit.working_copy.lock import DirectoryLock
from statekit.working_copy.uploaded_tables import note_stored, read_stored, stored_below, tables_in
from statekit.working_copy.uploader import Going

_T = TypeVar("_T")
_R = TypeVar("_R", bound=Record)


class Staged(Record):
    """The description of a staged snapshot.

    Parameters:
        operator, shard, attempt, epoch, states, follows: as in the `BaseSnapshot` that it becomes.
        databases: first and last key group of each.
        local_rows: mutations in the file with the state of the shard; 0 for no file.
        relies_on: the path of the base whose upload includes some of the tables.
        relied: their paths in the checkpoint.
        merged: whether to merge the databases before the upload.
        is_cut: whether the databases were cut out of those of other shards, and may have rows of
            other key groups.
        begun_us: when it was taken, by the wall clock.
    """

    operator: str
    shard: tuple[Count, Count]
    attempt: str
    epoch: Count
    states: tuple[str, ...]
    follows: str
    databases: tuple[tuple[Count, Count], ...]
    local_rows: Count = 0
    relies_on: str | None = None
    relied: tuple[str, ...] = ()
    merged: bool = False
    is_cut: bool = False
    begun_us: int


class Finished(Record):
    """An uploaded base that no manifest references yet.

    Parameters:
        staged: its description.
        base: its file.
        uploaded: bytes that were uploaded.
    """

    staged: Staged
    base: FileRef
    uploaded: Count


@dataclass(frozen=True)
class StagedSnapshot:
    """The directory of a staged snapshot.

    Parameters:
        place: its path.
    """

    place: Path

    def database(self, number: int) -> Path:
        return self.place / str(number)

    def databases(self, staged: Staged) -> list[Path]:
        """Return the paths of the databases."""
        return [self.database(number) for number in range(len(staged.databases))]

    @property
    def local_changes(self) -> Path:
        """The change file with the operator state of the shard."""
        return self.place / "local.changes.arrow"

    def write(self, name: str, note: Record) -> None:
        """Write a note atomically."""
        draft = self.place / f"{name}.draft"
        draft.write_text(note.model_dump_json())
        draft.rename(self.place / name)

    def _read(self, name: str, kind: type[_R]) -> _R | None:
        """Return a note; None if it is missing or truncated."""
        try:
            return kind.model_validate_json((self.place / name).read_bytes())
        except (OSError, ValidationError):
            return None

    def remove(self) -> None:
        """Remove the directory, unless another process uses it."""
        with DirectoryLock.held(self.place) as lock:
            if lock is not None:
                shutil.rmtree(self.place, ignore_errors=True)

    def seal(self, staged: Staged) -> None:
        """Write the description. It marks the directory as complete."""
        self.write("staged.json", staged)

    @property
    def staged(self) -> Staged | None:
        """The description; None if the directory is incomplete."""
        return self._read("staged.json", Staged)

    @property
    def finished(self) -> Finished | None:
        """The uploaded base; None until the upload has finished."""
        return self._read("finished.json", Finished)

    def upload(
        self, repository: Repository, options: RocksOptions, going: Going
    ) -> Finished | None:
        """Upload the snapshot, or resume its upload. Return None if another process uploads it.

        Parameters:
            options: for merging.
            going: called at intervals; an exception that it raises ends the upload.

        Raises:
            StorageError: the store or the local disk failed. The files uploaded so far are kept.
        """
        with DirectoryLock.held(self.place) as lock:
            if lock is None:
                return None
            staged, finished = self.staged, self.finished
            if staged is None or finished is not None:
                return finished
            if staged.merged:
                staged = self._merge(staged, options, going)
            upload = _Upload(repository, staged, going)
            databases = tuple(
                BaseDatabase(first_group=first, last_group=last, files=upload.database(path))
                for (first, last), path in zip(
                    staged.databases, self.databases(staged), strict=True
                )
            )
            local = upload.local_changes(self.local_changes) if staged.local_rows else None
            base = upload.base(databases, local)
            finished = Finished(staged=staged, base=base, uploaded=upload.bytes)
            self.write("finished.json", finished)
            return finished

    def _merge(self, staged: Staged, options: RocksOptions, going: Going) -> Staged:
        """Compact each database to one version per row, and record that this is done."""
        for path in self.databases(staged):
            going()
            backend = RocksBackend(path, staged.states, options, create=False)
            with contextlib.closing(backend):
                backend.compact()
        staged = staged.model_copy(update={"merged": False})
        self.seal(staged)
        return staged


class _Upload:
    """One run of an upload."""

    def __init__(self, repository: Repository, staged: Staged, going: Going) -> None:
        self._repository = repository
        self._staged = staged
        self._going = going
        self._noting = Lock()
        self.bytes = 0
        """Bytes that were added to the checkpoint, in this run and in earlier ones."""

    def database(self, directory: Path) -> dict[str, FileRef]:
        """Store all files of a database that are not stored yet, and return all of them."""
        staged = self._staged
        stored = read_stored(directory, staged.relies_on)
        missing = sorted(tables_in(directory).keys() - stored.keys())

        def store(name: str) -> None:
            ref = self._put(directory / name, "sst")
            with self._noting:
                stored[name] = ref
                note_stored(directory, staged.relies_on, stored)

        _several(store, missing)
        relied = frozenset(staged.relied)
        added = [ref for ref in stored.values() if ref.path not in relied]
        head = (directory / "CURRENT").read_text().strip()
        rest = {name: self._put(directory / name, "rocksdb") for name in ("CURRENT", head)}
        self.bytes += sum(ref.size for ref in (*added, *rest.values()))
        return dict(sorted((stored | rest).items()))

    def local_changes(self, file: Path) -> FileRef:
        """Return the stored file with the operator state of the shard."""
        ref = self._put(file, CHANGES)
        self.bytes += ref.size
        return ref.model_copy(update={"rows": self._staged.local_rows, "local": True})

    def base(self, databases: tuple[BaseDatabase, ...], local: FileRef | None) -> FileRef:
        """Return the file of the base, which references all others."""
        fields = ("operator", "shard", "attempt", "epoch", "states", "follows")
        described = {name: getattr(self._staged, name) for name in fields}
        base = BaseSnapshot(databases=databases, local=local, **described)
        ref = self._repository.put_file(self._path(BASE), BytesIO(base.to_bytes()))
        self.bytes += ref.size
        return ref

    def _put(self, file: Path, kind: str) -> FileRef:
        return self._repository.put_path(self._path(kind), file, going=self._going)

    def _path(self, kind: str) -> str:
        return data_path(self._staged.operator, kind)


# ------------------------------------------------------------------------------------- fetching


@dataclass(frozen=True)
class WantedDatabase:
    """A database of a base to fetch.

    Parameters:
        database: its description in the base.
        named: the path of the base's file.
        place: the directory to create.
    """

    database: BaseDatabase
    named: str
    place: Path


def fetch_databases(
    repository: Repository, databases: Sequence[WantedDatabase], beside: Path | None
) -> None:
    """Fetch databases of bases to the local disk, several files at a time.

    A table that a database on this host already has, by the same path in the checkpoint, is linked.

    Parameters:
        databases: the databases, and where to put them.
        beside: a directory with other databases of this host, whose tables may be shared.

    Raises:
        CorruptCheckpointError: a file is missing or altered.
        OSError, StorageError: the store or the local disk failed.
    """
    here = {} if beside is None else stored_below(beside)
    for wanted in databases:
        wanted.place.mkdir(parents=True)

    def have(file: tuple[Path, FileRef]) -> None:
        target, ref = file
        with contextlib.suppress(FileNotFoundError):  # merged into others meanwhile
            if ref.path in here and linked(here[ref.path], target):
                return
        repository.fetch(ref, target)

    files = (
        (wanted.place / name, ref)
        for wanted in databases
        for name, ref in wanted.database.files.items()
    )
    _several(have, files)
    for wanted in databases:
        named = wanted.database.files.items()
        tables = {name: ref for name, ref in named if name.endswith(".sst")}
        note_stored(wanted.place, wanted.named, tables)


def _several(work: Callable[[_T], None], items: Iterable[_T]) -> None:
    """Call a function for each item, several calls at a time. After a failure, no more calls start.

    Unlike the threads of an executor, these threads do not keep a process from ending.
    """
    waiting, failures, next_one = iter(items), list[BaseException](), Lock()

    def run() -> None:
        while not failures:
            try:
                with next_one:
                    item = next(waiting)
            except StopIteration:
                return
            try:
                work(item)
            except BaseException as error:  # noqa: BLE001 - raised below, in the thread that waits
                failures.append(error)

    threads = [Thread(target=run, daemon=True) for _ in range(TRANSFERS - 1)]
    for thread in threads:
        thread.start()
    run()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
