"""The checkpoint: job files, manifests, change files, and the commit.

A commit is one create-if-absent of one manifest. If the name is taken, the writer is fenced.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import IO, Self, TypeVar

import pyarrow as pa

from statekit.backend.change_file import Changes, read_changes, read_columns
from statekit.backend.interface import Backend
from statekit.backend.mutation import Batch
from statekit.checkpoint import paths
from statekit.checkpoint.job_file import JobFile
from statekit.checkpoint.manifest import EpochManifest, EpochNote
from statekit.checkpoint.manifest_pages import ManifestPages, Paged, listed_pages, page_files
from statekit.checkpoint.object_store import Stored
from statekit.checkpoint.sealed_json import FORMAT, FileRef, Sealed, checksum_of
from statekit.checkpoint.store import Store
from statekit.clock import unique_id
from statekit.errors import CorruptCheckpointError, FencedError, RestoreError
from statekit.keygroup import pack_group

S = TypeVar("S", bound=Sealed)

LocalRows = list[tuple[bytes, bytes]]
"""The operator state of one shard: pairs of row key (after the shard's prefix) and row."""


@dataclass(frozen=True)
class EpochFiles:
    """The files in `epochs/`, by the number of the epoch.

    Attributes:
        committed: manifests.
        firsts: marks that older epochs were collected.
        swept: marks that orphans were searched.
        closed: notes that a collector is about to collect older epochs. Path and number of each.
    """

    committed: Mapping[int, Stored]
    firsts: Mapping[int, Stored]
    swept: Mapping[int, Stored]
    closed: Mapping[str, int]

    @classmethod
    def among(cls, files: Iterable[Stored]) -> Self:
        """Parse the files of a listing."""
        found: dict[str, dict[int, Stored]] = {"json": {}, "first": {}, "swept": {}}
        closed: dict[str, int] = {}
        for file in files:
            if (match := paths.EPOCH_NAME.fullmatch(file.path)) is not None:
                found[match[2]][int(match[1])] = file
            elif (match := paths.CLOSED_NAME.fullmatch(file.path)) is not None:
                closed[file.path] = int(match[1])
        return cls(found["json"], found["first"], found["swept"], closed)

    @property
    def first(self) -> int:
        """The first kept epoch."""
        return max(self.firsts, default=0)

    @property
    def kept(self) -> list[int]:
        """The numbers of the kept epochs, in order."""
        first = self.first
        return sorted(number for number in self.committed if number >= first)


class Repository(Store):
    """The files of a checkpoint, by their role.

    Parameters:
        url: a local path, `file://…`, or an object store URL such as `s3://bucket/prefix`.
        create: create the directory if it is a local path that does not exist.

    Raises:
        RestoreError: the local path does not exist and `create` is False.
        StorageError: the store cannot be reached or the directory cannot be created.

    >>> repository = Repository.in_memory()
    >>> repository.latest_epoch() is None
    True
    """

    @cached_property
    def _pages(self) -> ManifestPages:
        return ManifestPages()

    @property
    def is_savepoint(self) -> bool:
        """True for a savepoint, False for a checkpoint."""
        return paths.SAVEPOINT in self.names("")

    def check_checkpoint(self) -> None:
        """Check that a path without epochs is not a savepoint, and no unfinished transform.

        Raises:
            RestoreError: it is one of them.
        """
        if self.is_savepoint:
            raise RestoreError(
                f"{self.url} is a savepoint, and not a checkpoint: nothing ever changes it. Pass a "
                "checkpoint; to continue from the savepoint, start the job with a new checkpoint "
                "and from_savepoint="
            )
        if self.exists(paths.TRANSFORM):
            raise RestoreError(
                f"{self.url} is the target of a `statekit transform` that is not complete: run the "
                "command again, or delete this directory"
            )

    def check_nothing_lost(self) -> None:
        """Check that a path without epochs has never had any.

        A job that began its first epoch has left files too, but no mark.

        Raises:
            RestoreError: it is a savepoint.
            CorruptCheckpointError: epochs were committed, and all are missing.
        """
        self.check_checkpoint()
        if self.latest_epoch() is not None or self.exists(paths.note_path(0)):
            return  # committed just now, or the first one is being made
        stored = self.newest_job_file()
        if stored is None or stored[0].is_made_of_another or next(self.tree("data"), None) is None:
            return  # nothing, or what making it of something else has left
        if self.latest_epoch() is None:
            raise CorruptCheckpointError(
                f"{self.at('epochs')} has no epoch, and {self.at('data')} has files of epochs: "
                "epochs were deleted, or not copied. Restore the checkpoint from a backup; if it "
                "is of a job that was ended before its first epoch was committed, start the job"
            )

    # ------------------------------------------------------------------------------- job files

    def job_file(self, path: str) -> JobFile:
        """Return a job description.

        Raises:
            CorruptCheckpointError: it is missing, truncated or altered.
            RestoreError: it was written by a newer version.
        """
        return JobFile.from_bytes(self.read(path), self.at(path))

    def newest_job_file(self) -> tuple[JobFile, FileRef] | None:
        """Return the newest job description; None if there is none. Raises the errors of
        `job_file`.
        """
        path = max(self.job_paths(), key=paths.job_number, default=None)
        if path is None:
            return None
        data = self.read(path)
        return JobFile.from_bytes(data, self.at(path)), _reference(path, data)

    def job_paths(self) -> list[str]:
        """Return the paths of all job descriptions, including unreferenced ones."""
        return sorted(name for name in self.names("") if paths.JOB_NAME.fullmatch(name) is not None)

    def create_job_file(self, job: JobFile, number: int) -> FileRef:
        """Write the job description with this number, if it does not exist.

        Raises:
            FencedError: another writer was faster.
        """
        path, data = paths.job_path(number), job.to_bytes()
        self.create(path, data)
        return _reference(path, data)

    def ensure_job_file(self, job: JobFile) -> tuple[JobFile, FileRef]:
        """Return the stored job description equal to `job`: the newest one, or a new file.

        It is in force once a manifest references it. The newest one may be of a start that never
        committed.

        Raises:
            FencedError: another writer wrote one meanwhile.
        """
        job, newest = job.model_copy(update={"format": FORMAT}), self.newest_job_file()
        if newest is not None and newest[0] == job:
            return newest
        number = 1 if newest is None else paths.job_number(newest[1].path) + 1
        return job, self.create_job_file(job, number)

    # ------------------------------------------------------------------------------- manifests

    def epochs(self) -> list[int]:
        """Return the numbers of all kept epochs, in order."""
        return self.epoch_files().kept

    def first_kept(self) -> int:
        """Return the first kept epoch. Earlier manifests may still exist."""
        names = map(paths.EPOCH_NAME.fullmatch, self.names(paths.EPOCHS))
        return max((int(name[1]) for name in names if name and name[2] == "first"), default=0)

    def epoch_files(self) -> EpochFiles:
        """Return the manifests, marks and notes of all epochs."""
        return EpochFiles.among(self.listed(paths.EPOCHS))

    def latest_epoch(self) -> int | None:
        """Return the number of the last committed epoch; None if nothing was committed.

        Raises:
            CorruptCheckpointError: epochs were collected, and no kept epoch exists.
        """
        latest = self._last_listed()
        if latest is None and (first := self.first_kept()):
            raise CorruptCheckpointError(
                f"{self.at('epochs')} has a mark that epochs before {first} were collected, and no "
                "later epoch: they were deleted, or this is a copy that took longer than the job "
                "keeps epochs. Restore the checkpoint from a backup, or copy it again"
            )
        return latest

    def _last_listed(self) -> int | None:
        """Return the last epoch with a manifest.

        If the store sorts its lists, this takes a few requests for any number of epochs: it asks
        for the manifests after a number, which grows or shrinks with the results.
        """
        if not self._objects.keeps_order:
            return max(self.epochs(), default=None)
        last, are_more = self._last_behind(None)
        step, grows = 1, True
        while are_more:
            listed, are_still_more = self._last_behind((last or 0) + step)
            if listed is None and step == 0:
                return max(self.epochs(), default=None)  # what lies there are no epochs
            if listed is None:
                grows = False
            else:
                last, are_more = listed, are_still_more
            step = step * 8 if grows else step // 2
        return last

    def _last_behind(self, epoch: int | None) -> tuple[int | None, bool]:
        """Return the last epoch on the page after an epoch, and whether another page follows."""
        page = self._page(paths.EPOCHS, None if epoch is None else paths.epoch_path(epoch))
        return max(EpochFiles.among(page.files).committed, default=None), page.behind is not None

    def is_committed(self, epoch: int) -> bool:
        """Return whether the manifest of the epoch exists. False for a collected epoch."""
        return self.exists(paths.epoch_path(epoch))

    def manifest(self, epoch: int, *, gaps: bool = False) -> EpochManifest:
        """Return the manifest of a committed epoch.

        Parameters:
            gaps: leave out the files of shards whose page is missing, for a collected epoch.

        Raises:
            CorruptCheckpointError: it or one of its pages is missing, truncated or altered.
        """
        path = paths.epoch_path(epoch)
        manifest, paged = self._pages.parsed(self, path, self.read(path), gaps=gaps)
        self._pages.remember(epoch, paged)
        if manifest.epoch != epoch:
            raise CorruptCheckpointError(
                f"{self.at(path)} is the manifest of epoch {manifest.epoch}: restore the files of "
                "this directory from a backup"
            )
        return manifest

    def pages(self, epoch: int) -> list[FileRef]:
        """Return the pages that the manifest of a committed epoch references.

        Raises:
            CorruptCheckpointError: it is missing, truncated or altered.
        """
        paged = self._pages.recent(epoch)
        if paged is not None:
            return list(page_files(paged))
        path = paths.epoch_path(epoch)
        return list(listed_pages(self.read(path), self.at(path)))

    def read_note(self, epoch: int) -> EpochNote | None:
        """Return the note of an epoch that began; None if there is none.

        Raises:
            CorruptCheckpointError: the note is truncated or altered.
        """
        path = paths.note_path(epoch)
        data = self.read_if_there(path)
        return None if data is None else EpochNote.from_bytes(data, self.at(path))

    def write_note(self, note: EpochNote) -> None:
        """Write the note that an epoch begins.

        Raises:
            FencedError: another run has begun it.
        """
        self.create(paths.note_path(note.epoch), note.to_bytes())

    def remove_note(self, epoch: int) -> None:
        """Remove the note of a committed epoch, which will not run again."""
        self.discard(paths.note_path(epoch))

    def commit(self, manifest: EpochManifest) -> None:
        """Commit an epoch with all files that it references, by one create-if-absent request.

        Raises:
            FencedError: another writer has committed the epoch, which may have been collected
                since.
            CorruptCheckpointError: it needs pages, and the epoch that it follows cannot be read.
        """
        stored, paged = self._pages.stored(self, manifest, self._paged_before(manifest))
        self.create(paths.epoch_path(manifest.epoch), stored.to_bytes())
        self._pages.remember(manifest.epoch, paged, is_own=True)
        # Its number was free, but so it would be if others had got so far that it was collected.
        # Then the mark exists, which was written first, and no process reads the new epoch.
        if self._is_followed(manifest.epoch) and manifest.epoch < self.first_kept():
            raise self.overtaken(manifest.epoch)

    def _paged_before(self, manifest: EpochManifest) -> Paged:
        """Return the stored form of the shards of the epoch that a new one follows."""
        previous = manifest.previous
        if previous is None or self._pages.has_room(manifest):
            return {}
        if self._pages.recent(previous) is None:
            self.manifest(previous)
        return self._pages.recent(previous) or {}

    def _is_followed(self, epoch: int) -> bool:
        """Return whether later epochs exist, with a single request; True if the request would list
        everything.
        """
        return not self._objects.keeps_order or bool(
            self._page(paths.EPOCHS, paths.epoch_path(epoch)).files
        )

    def overtaken(self, epoch: int) -> FencedError:
        """Return the error that other writers have committed an epoch, which was collected
        since.
        """
        return FencedError(
            f"epoch {epoch} of {self.url} was committed by another run, and collected since: stop "
            "one of them, then start the other again; nothing is lost"
        )

    # ------------------------------------------------------------------------------ data files

    def sealed(self, kind: type[S], ref: FileRef) -> S:
        """Return the content of a referenced JSON file, such as a base or a history.

        Raises:
            CorruptCheckpointError: the file is missing or altered.
        """
        with self.open_verified(ref) as file:
            return kind.from_bytes(file.read(), self.at(ref.path))

    def put_changes(
        self, operator: str, file: IO[bytes], rows: int, *, local: bool = False
    ) -> FileRef:
        """Store a change file durably under a unique name.

        Parameters:
            operator: its operator.
            file: the content, readable and seekable.
            rows: mutations in it, for the reference.
            local: whether they are of operator state.
        """
        path = paths.data_path(operator, paths.CHANGES)
        return self.put_file(path, file, rows).model_copy(update={"local": local})

    def store_changes(
        self,
        operator: str,
        families: Iterable[str],
        batches: Iterable[Batch | pa.RecordBatch],
        *,
        local: bool,
    ) -> FileRef | None:
        """Store batches as one change file. Return None if there are no mutations.

        Parameters:
            operator: its operator.
            families: all families that the batches may have mutations of.
            batches: also as columns of a change file.
            local: whether it contains operator state.
        """
        changes = Changes(tuple(families))
        try:
            for batch in batches:
                changes.append(batch)
            finished = changes.finish()
            return None if finished is None else self.put_changes(operator, *finished, local=local)
        finally:
            changes.drop()

    def replay(self, backend: Backend, refs: Iterable[FileRef], first: int, last: int) -> None:
        """Apply change files to a backend, limited to rows of the key groups `first..last`.

        Mutations of states that the backend was not opened with are skipped: these states were
        dropped.
        """
        states = frozenset(backend.states)
        start, end = group_bounds(first, last)
        for ref in refs:
            for batch in self.batches(ref):
                backend.write(batch.within(start, end, states))

    def batches(self, ref: FileRef) -> Iterator[Batch]:
        """Yield the mutations of a change file, batch by batch.

        Raises:
            CorruptCheckpointError: the file is missing, or not what the manifest says.
        """
        with self.open_verified(ref) as file:
            yield from read_changes(file, self.at(ref.path))

    def columns(self, ref: FileRef) -> Iterator[pa.RecordBatch]:
        """Yield the columns of a change file, batch by batch.

        Raises:
            CorruptCheckpointError: the file is missing, or not what the manifest says.
        """
        with self.open_verified(ref) as file:
            yield from read_columns(file, self.at(ref.path))

    # ------------------------------------------------------------------------------ Spark's part

    def spark_batches(self, log: str) -> list[int]:
        """Return the micro-batches in one of Spark's logs, `offsets` or `commits`, in order."""
        names = (path.rsplit("/", 1)[-1] for path in self.names(f"{paths.SPARK}/{log}"))
        return sorted(int(name) for name in names if name.isascii() and name.isdigit())

    def spark_files(self) -> list[str]:
        """Return the sorted paths of all files of Spark's part, relative to it."""
        return sorted(path.removeprefix(f"{paths.SPARK}/") for path in self.tree(paths.SPARK))

    def read_spark(self, path: str) -> bytes:
        """Return the content of a file of Spark's part, by its path below it."""
        return self.read(f"{paths.SPARK}/{path}")

    # -------------------------------------------------------------------------- time and copying

    def store_time(self) -> dt.datetime:
        """Return the time of the store's clock, taken from a file that is written for this purpose.

        Raises:
            CorruptCheckpointError: another process deletes the file.
        """
        path = f"{paths.TMP}/{unique_id()}"
        self.create(path, b"")
        marker = self.stored(path)
        self.discard(path)
        if marker is None:
            raise CorruptCheckpointError(
                f"{self.at(path)} is gone as soon as it was written: something else deletes files "
                "of this checkpoint. Stop that, then try again"
            )
        return marker.modified

    def copy_to(self, target: Repository) -> None:
        """Copy the files to an empty checkpoint, manifests last. Leases of readers,
        positions of mirrors and failures are not copied.
        """
        folders = (
            *(paths.TMP, paths.SPARK, paths.SAVEPOINTS),
            *(paths.READERS, paths.MIRRORS, paths.RECORDED, paths.FAILURES),
        )
        wanted = [path for path in self.tree("") if path.split("/", 1)[0] not in folders]
        for path in sorted(wanted, key=lambda path: path.startswith(f"{paths.EPOCHS}/")):
            target.create(path, self.read(path))


def group_bounds(first: int, last: int) -> tuple[bytes, bytes]:
    """Return the row keys of the key groups `first..last`: the first key, and the end (excluded).

    >>> group_bounds(0, 127)
    (b'\\x00\\x00', b'\\x00\\x80')
    """
    return pack_group(first), pack_group(last + 1)


def _reference(path: str, data: bytes) -> FileRef:
    return FileRef(path=path, size=len(data), checksum=checksum_of(data))
