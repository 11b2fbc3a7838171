"""The checkpoint: job files, manifests, change files and their history; the call that commits.

What lives here: which files a checkpoint has, and what follows from them. What does not: how a
file is kept (`store`), what the files mean to a job (`coordinator`) and the working copies made
from them (`working_copy`).

A commit is one create-if-absent of one manifest. If the name is taken, the writer is fenced.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import IO

import xxhash

from statekit.backend import Backend, MemoryBackend, prefix_end
from statekit.clock import unique_id
from statekit.errors import CorruptCheckpointError, RestoreError
from statekit.job_file import JobFile, OperatorRecord
from statekit.keygroup import pack_group
from statekit.manifest import EpochInstant, EpochManifest, ShardState, epoch_path, instant_path
from statekit.mutation import Batch, read_changes
from statekit.sealed import FORMAT, FileRef
from statekit.store import Store

__all__ = ["SAVEPOINT", "SPARK", "TRANSFERS", "LocalRows", "Repository", "group_bounds"]

LocalRows = list[tuple[bytes, bytes]]
"""An operator state in one shard: what follows the shard's prefix in the row key, and the row."""

SPARK = "spark"
"""The folder of Spark's own checkpoint."""


TRANSFERS = 16
"""How many files are read or written at a time: a store answers late, but to many at once."""

SAVEPOINT = "savepoint.json"
"""What makes a directory a savepoint."""

JOB_PATH = "job.json"
_EPOCH_NAME = re.compile(r"epochs/(\d{20})\.json")
_JOB_NAME = re.compile(r"job(?:-(\d+))?\.json")


class Repository(Store):
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

    @property
    def is_savepoint(self) -> bool:
        """Whether this is a savepoint, and not a checkpoint."""
        return SAVEPOINT in self.names("")

    def check_checkpoint(self) -> None:
        """Make sure, where no epoch was found, that this is a checkpoint that may have some.

        Raises:
            RestoreError: it is a savepoint.
        """
        if self.is_savepoint:
            raise RestoreError(
                f"{self.url} is a savepoint, and not a checkpoint: nothing ever changes it. Pass a "
                "checkpoint; to go on from the savepoint, start the job with a new checkpoint and "
                "from_savepoint="
            )

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
        data = self.read(path)
        return JobFile.from_bytes(data, self.at(path)), _reference(path, data)

    def create_job_file(self, job: JobFile, number: int) -> FileRef:
        """Write the `number`th job description if there is none yet.

        Raises:
            FencedError: another writer was faster.
        """
        path, data = job_path(number), job.to_bytes()
        self.create(path, data)
        return _reference(path, data)

    def settle_job_file(self, job: JobFile) -> tuple[JobFile, FileRef]:
        """The job description in the store: the newest if it is the same, else a new one.

        It is in force once a manifest names it. The newest may be of a start that never committed.

        Raises:
            FencedError: another writer wrote one meanwhile.
        """
        job, newest = job.model_copy(update={"format": FORMAT}), self.job_file()
        if newest is not None and newest[0] == job:
            return newest
        number = 1 if newest is None else job_number(newest[1].path) + 1
        return job, self.create_job_file(job, number)

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
        return self.exists(epoch_path(epoch))

    def manifest(self, epoch: int) -> EpochManifest:
        """The manifest of a committed epoch.

        Raises:
            CorruptCheckpointError: it is missing, truncated or altered.
        """
        path = epoch_path(epoch)
        manifest = EpochManifest.from_bytes(self.read(path), self.at(path))
        if manifest.epoch != epoch:
            raise CorruptCheckpointError(
                f"{self.at(path)} is the manifest of epoch {manifest.epoch}: restore the files of "
                "this directory from a backup"
            )
        return manifest

    def begun(self, epoch: int) -> EpochInstant | None:
        """What an attempt at an epoch noted when it began; None if there was none.

        Raises:
            CorruptCheckpointError: the note is truncated or altered.
        """
        path = instant_path(epoch)
        data = self.read_if_there(path)
        return None if data is None else EpochInstant.from_bytes(data, self.at(path))

    def begin(self, begun: EpochInstant) -> None:
        """Note that an epoch begins.

        Raises:
            FencedError: another run has begun it.
        """
        self.create(instant_path(begun.epoch), begun.to_bytes())

    def forget_instant(self, epoch: int) -> None:
        """Remove what `begin` left: the epoch is committed and will not run again."""
        self.discard(instant_path(epoch))

    def commit(self, manifest: EpochManifest) -> None:
        """Make an epoch exist, with everything it names, by one create-if-absent.

        Raises:
            FencedError: the epoch exists already: another writer committed it.
        """
        self.create(epoch_path(manifest.epoch), manifest.to_bytes())

    # ------------------------------------------------------------------------------ data files

    def put_changes(
        self, operator: str, file: IO[bytes], rows: int, *, local: bool = False
    ) -> FileRef:
        """Store a change file under a unique name, durably.

        Parameters:
            operator: whose changes they are.
            file: the content, readable and seekable.
            rows: mutations in it, for the reference.
            local: whether they are of state of the shard.
        """
        path = f"data/{operator}/{unique_id()}.changes.arrow"
        return self.put_file(path, file, rows).model_copy(update={"local": local})

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
        begun = epoch
        while epoch is not None:
            manifest = self.manifest(epoch)
            shards = list(manifest.shards_over(operator, first, last))
            if epoch == begun:
                found += [ref for shard in shards for ref in reversed(shard.redistributed)]
            if after is not None and [(s.groups, s.attempt) for s in shards] == [
                ((first, last), after)
            ]:
                return found[::-1], True
            refs, epoch = _changed_in(manifest, shards)
            found += refs
        return found[::-1], False

    def histories(self, operator: str, epoch: int) -> dict[tuple[int, int], list[FileRef]]:
        """The same for all shards of an operator as they are after an epoch, by key groups.

        Each manifest is read once, however many shards there are.
        """
        standing = self.manifest(epoch).operators.get(operator)
        found: dict[tuple[int, int], list[FileRef]] = {}
        waiting: dict[int, list[tuple[int, int]]] = {}
        if standing is not None:
            waiting[epoch] = [shard.groups for shard in standing.shards]
            found = {shard.groups: list(shard.redistributed[::-1]) for shard in standing.shards}
        while waiting:
            manifest = self.manifest(max(waiting))
            for groups in waiting.pop(manifest.epoch):
                shards = list(manifest.shards_over(operator, *groups))
                refs, before = _changed_in(manifest, shards)
                found[groups] += refs
                if before is not None:
                    waiting.setdefault(before, []).append(groups)
        return {groups: refs[::-1] for groups, refs in found.items()}

    def replay(self, backend: Backend, refs: list[FileRef], first: int, last: int) -> None:
        """Apply change files to a backend, keeping only rows of the key groups `first..last`.

        States that the backend was not opened with are states that were given up: left out.
        """
        states = frozenset(backend.states)
        start, end = group_bounds(first, last)
        for ref in refs:
            for batch in self.batches(ref):
                backend.write(batch.within(start, end, states))

    def batches(self, ref: FileRef) -> Iterator[Batch]:
        """The mutations of a change file, batch by batch.

        Raises:
            CorruptCheckpointError: the file is missing, or not what the manifest says.
        """
        with self.open_verified(ref) as file:
            yield from read_changes(file, self.at(ref.path))

    def local_rows(
        self, operator: OperatorRecord, manifest: EpochManifest
    ) -> dict[str, list[LocalRows]]:
        """What each operator state holds after an epoch, for each shard in order.

        Only change files of such state are read, those of several shards at a time.
        """
        names = [state.name for state in operator.states if state.is_local]
        histories = self.histories(operator.name, manifest.epoch) if names else {}

        def replayed(history: tuple[tuple[int, int], list[FileRef]]) -> list[LocalRows]:
            (first, last), refs = history
            backend, prefix = MemoryBackend(names), pack_group(first)
            self.replay(backend, [ref for ref in refs if ref.local], first, last)
            scans = (backend.scan(name, prefix, prefix_end(prefix)) for name in names)
            return [[(key[len(prefix) :], row) for key, row in rows] for rows in scans]

        with ThreadPoolExecutor(TRANSFERS) as threads:
            shards = list(threads.map(replayed, histories.items()))
        return {name: [held[place] for held in shards] for place, name in enumerate(names)}

    # ------------------------------------------------------------------------------ Spark's part

    def spark_batches(self, log: str) -> list[int]:
        """The micro-batches that one of Spark's logs knows, `offsets` or `commits`, in order."""
        names = (path.rsplit("/", 1)[-1] for path in self.names(f"{SPARK}/{log}"))
        return sorted(int(name) for name in names if name.isdigit())

    # ---------------------------------------------------------------------------------- copying

    def copy_to(self, target: Repository) -> None:
        """Copy every file to an empty checkpoint, manifests last."""
        paths = list(self.tree(""))
        left_out = ("tmp/", f"{SPARK}/", "savepoints/")
        wanted = [path for path in paths if not path.startswith(left_out)]
        for path in sorted(wanted, key=lambda path: path.startswith("epochs/")):
            target.create(path, self.read(path))


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


def _changed_in(
    manifest: EpochManifest, shards: list[ShardState]
) -> tuple[list[FileRef], int | None]:
    """What an epoch changed in some shards, the last first, and the epoch to go on from."""
    changed = [shard for shard in shards if shard.changed == manifest.epoch]
    refs = [ref for shard in reversed(changed) for ref in reversed(shard.files)]
    if manifest.whole:
        return refs, None
    older = [s.changed for s in shards if s.changed is not None and s.changed < manifest.epoch]
    return refs, manifest.previous if changed else max(older, default=None)


def _reference(path: str, data: bytes) -> FileRef:
    return FileRef(path=path, size=len(data), checksum=xxhash.xxh3_128_hexdigest(data))
