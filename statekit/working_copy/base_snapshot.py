"""Write a base snapshot: RocksDB's own files, from the local disk to the checkpoint.

    <copy's home>/snapshots/<unique>/
        lock            held (flock) by whoever uploads it
        staged.json     what it is of; written last, so the directory is whole if it is there
        local.changes.arrow   what is in there of state of the shard
        <number>/       a database: its tables are hard links, shared with the working copy
            stored.json     which of them are in the checkpoint: how far the upload has come
        finished.json   the base, as the checkpoint has it

Nothing here is part of a checkpoint. A process that dies leaves a directory that another one can go
on with; if that is lost too, the change files are still there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import islice
from pathlib import Path
from threading import Lock, Thread
from typing import TypeVar

from statekit.backend.hard_link import linked
from statekit.backend.rocksdb import RocksBackend
from statekit.backend.rocksdb_options import RocksOptions
from statekit.checkpoint.paths import BASE, CHANGES, data_path
from statekit.checkpoint.repository import TRANSFERS, Repository
from statekit.checkpoint.sealed_json import Count, FileRef, Record
from statekit.checkpoint.shard_contents import BaseDatabase, BaseSnapshot
from statekit.working_copy.staging import Going, StagedWork
from statekit.working_copy.uploaded_tables import (
    note_stored,
    read_stored,
    stored_elsewhere,
    tables_in,
)

_T = TypeVar("_T")

LOCAL_CHANGES = "local.changes.arrow"


class Staged(Record):
    """What a snapshot is of.

    Parameters:
        operator, shard, attempt, epoch, states, follows: as in the `BaseSnapshot` to be.
        databases: first and last key group of each.
        local_rows: mutations in the file of what is there of state of the shard; 0 for no file.
        relies_on: the path of the base that has some of the tables already.
        relied: paths of these tables in the checkpoint.
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
    """A base that is in the checkpoint, and that nothing names yet.

    Parameters:
        staged: what it is of.
        base: its file.
        uploaded: bytes that it took.
    """

    staged: Staged
    base: FileRef
    uploaded: Count


class StagedSnapshot(StagedWork):
    """The directory of a snapshot."""

    def database(self, number: int) -> Path:
        return self.place / str(number)

    @property
    def local_changes(self) -> Path:
        return self.place / LOCAL_CHANGES

    def seal(self, staged: Staged) -> None:
        """Say that everything is here."""
        self.write("staged.json", staged)

    @property
    def staged(self) -> Staged | None:
        """What it is of; None if it is not whole."""
        return self.read("staged.json", Staged)

    @property
    def finished(self) -> Finished | None:
        """What became of it; None while it is not uploaded."""
        return self.read("finished.json", Finished)

    def upload(
        self, repository: Repository, options: RocksOptions, going: Going
    ) -> Finished | None:
        """Bring it to the checkpoint, going on from where anybody was; None if somebody else does.

        Parameters:
            options: for merging.
            going: called now and then; what it raises ends the upload.

        Raises:
            StorageError: the store or the local disk failed. What was uploaded so far counts.
        """
        with self.locked() as mine:
            if not mine:
                return None
            staged, finished = self.staged, self.finished
            if staged is None or finished is not None:
                return finished
            if staged.merged:
                staged = self._merge(staged, options, going)
            upload = _Upload(repository, staged, going)
            databases = tuple(
                BaseDatabase(
                    first_group=first, last_group=last, files=upload.database(self.database(number))
                )
                for number, (first, last) in enumerate(staged.databases)
            )
            local = upload.local_changes(self.local_changes) if staged.local_rows else None
            finished = Finished(
                staged=staged, base=upload.base(databases, local), uploaded=upload.bytes
            )
            self.write("finished.json", finished)
            return finished

    def _merge(self, staged: Staged, options: RocksOptions, going: Going) -> Staged:
        """Leave each row once in each database, and say that this is done."""
        for number in range(len(staged.databases)):
            going()
            path = self.database(number)
            with contextlib.closing(
                RocksBackend(path, staged.states, options, create=False)
            ) as backend:
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
        """What it added to the checkpoint, in this run and in those before it."""

    def database(self, directory: Path) -> dict[str, FileRef]:
        """All files of a database, those that are not stored yet after storing them."""
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
        """Return the file of what is there of state of the shard."""
        ref = self._put(file, CHANGES)
        self.bytes += ref.size
        return ref.model_copy(update={"rows": self._staged.local_rows, "local": True})

    def base(self, databases: tuple[BaseDatabase, ...], local: FileRef | None) -> FileRef:
        """Return the file that names all others."""
        staged = self._staged
        made = BaseSnapshot(
            operator=staged.operator,
            shard=staged.shard,
            attempt=staged.attempt,
            epoch=staged.epoch,
            states=staged.states,
            databases=databases,
            local=local,
            follows=staged.follows,
        )
        path = self._path(BASE)
        ref = self._repository.put_file(path, BytesIO(made.to_bytes()))
        self.bytes += ref.size
        return ref

    def _put(self, file: Path, kind: str) -> FileRef:
        return self._repository.put_path(self._path(kind), file, going=self._going)

    def _path(self, kind: str) -> str:
        return data_path(self._staged.operator, kind)


# ------------------------------------------------------------------------------------- fetching


@dataclass(frozen=True)
class Wanted:
    """A database of a base, and where it is to be.

    Parameters:
        database: what the base says of it.
        named: the path of the base's file.
        place: its directory, which is made.
    """

    database: BaseDatabase
    named: str
    place: Path


def fetch_databases(
    repository: Repository, databases: Sequence[Wanted], held: Sequence[Path]
) -> None:
    """Have databases of bases on the local disk, several files of all of them at a time.

    A table that a database of this machine has already, known by the same name in the checkpoint,
    is shared with it.

    Parameters:
        held: directories of databases to look in first.

    Raises:
        CorruptCheckpointError: a file is missing or altered.
        OSError, StorageError: the store or the local disk failed.
    """
    here = stored_elsewhere(held)
    for wanted in databases:
        wanted.place.mkdir(parents=True)

    def have(file: tuple[Path, FileRef]) -> None:
        target, ref = file
        known = here.get(ref.path)
        if known is None or not _shared(known, target):
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
    """Do the same with each item, several at a time; after a failure no more are begun.

    These threads do not keep a process from ending, as those of an executor would.
    """
    waiting, failures, next_one = iter(items), list[BaseException](), Lock()

    def run() -> None:
        while not failures:
            with next_one:
                found = list(islice(waiting, 1))
            if not found:
                return
            try:
                work(found[0])
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


def _shared(known: Path, target: Path) -> bool:
    try:
        return linked(known, target)
    except FileNotFoundError:
        return False  # merged into others meanwhile


def noted(home: Path) -> list[Path]:
    """Directories of databases below a place that say what of them is in the checkpoint."""
    return [note.parent for note in home.rglob("stored.json")]
