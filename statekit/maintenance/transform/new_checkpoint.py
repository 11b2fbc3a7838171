"""The new checkpoint of a transform: begun by a mark, committed by one manifest.

The order of effects is: mark, change files, Spark's part, job file, manifest. The mark is
`transform.json`. Until the manifest exists, no job starts on the checkpoint and nothing reads it;
the transform may be run again, and adds its files beside those of a killed attempt. The manifest is
committed after `statekit verify` has found no fault with it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar

from statekit.checkpoint import paths
from statekit.checkpoint.job_file import JobFile, OperatorRecord
from statekit.checkpoint.manifest import EpochManifest, OperatorEpoch, ShardState
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.sealed_json import Count, Sealed
from statekit.checkpoint.spark_log import files_at
from statekit.checkpoint.store_url import local_path
from statekit.errors import CorruptCheckpointError, FencedError, RestoreError
from statekit.job.plan import Operator
from statekit.maintenance.first_epoch import commit_first
from statekit.maintenance.savepoint.format import POSITION
from statekit.maintenance.transform.staged_objects import StagedObjects
from statekit.maintenance.verify.findings import Verification
from statekit.maintenance.verify.verify import verify
from statekit.names import StoredText
from statekit.query.rows.reader import CheckpointReader
from statekit.watermark import BEGINNING, END

Shards = tuple[ShardState, ...]

_DRAFT = re.compile(f"{paths.TMP}/[0-9a-f]{{32}}")
"""A draft, such as that of the mark of an attempt that was killed."""


class TransformMark(Sealed):
    """`transform.json`: the checkpoint is the target of an unfinished transform.

    Parameters:
        source: the URL of the old checkpoint.
        epoch: the epoch of the old checkpoint.
    """

    title: ClassVar[str] = "the mark of a transform"

    source: StoredText
    epoch: Count


class NewCheckpoint:
    """The checkpoint that a transform writes.

    Parameters:
        url: a directory, or the URL of an object store.
        source: the old checkpoint.

    Attributes:
        repository: it, with the manifest as soon as `stage` was called.

    Raises:
        RestoreError: there are files of something else, or a checkpoint, or one of both checkpoints
            is inside of the other.
    """

    def __init__(self, url: str, source: CheckpointReader) -> None:
        _check_beside(url, source.repository)
        self._source = source
        self._store = Repository(url)
        self._mark = TransformMark(source=source.repository.url, epoch=source.manifest.epoch)
        self.completed = self._begin()
        """The manifest of an attempt that was killed after its commit; None without one."""
        self._may_be_committed = False
        self._objects: StagedObjects | None = None
        self.repository = self._store.through(self._staged)

    def _staged(self, objects: object) -> StagedObjects:
        self._objects = StagedObjects(objects)  # type: ignore[arg-type]
        return self._objects

    def _begin(self) -> EpochManifest | None:
        """Write the mark, or find that of an attempt that was killed."""
        store, url = self._store, self._store.url
        data = store.read_if_there(paths.TRANSFORM)
        latest = store.latest_epoch()
        if data is None:
            files = (path for path in store.tree("") if not _DRAFT.fullmatch(path))
            if latest is not None or next(files, None) is not None:
                what = f"epochs up to {latest}" if latest is not None else "files"
                raise RestoreError(
                    f"{url} has {what}: a transform writes a new checkpoint. Nothing was written. "
                    "Pass a directory that does not exist"
                )
            store.create(paths.TRANSFORM, self._mark.to_bytes())
            return None
        mark = TransformMark.from_bytes(data, store.at(paths.TRANSFORM))
        if mark != self._mark:
            raise RestoreError(
                f"{url} is the target of an unfinished transform of epoch {mark.epoch} of "
                f"{mark.source}, and this is epoch {self._mark.epoch} of {self._mark.source}: "
                "delete that directory, or pass another one"
            )
        return None if latest is None else store.manifest(latest)

    def commit(
        self,
        job: JobFile,
        shards: Mapping[str, Shards],
        operators: Sequence[Operator],
        sources: Mapping[str, str | None],
        progress: Callable[[int], None],
    ) -> tuple[EpochManifest, Verification]:
        """Verify the complete checkpoint, and commit it.

        Parameters:
            job: the job file.
            shards: of each operator.
            operators: as the new job declares them.
            sources: the new name of each source of the old job that is another; None for a source
                that is not read any more.
            progress: called with the number of verified bytes.

        Raises:
            CorruptCheckpointError: a fault was found. Nothing is committed.
            FencedError: another attempt has committed its own.
        """
        staged, source = self.repository, self._source.manifest
        job = job.model_copy(update={"savepoint": None, "imported": None})
        position = source.model_dump(include=POSITION)
        for name in ("offsets", "bad_records"):
            position[name] = dict(_renamed(position[name], sources))
        carried = _Progress(self._source, sources)
        manifest = commit_first(
            staged,
            job,
            cause="transform",
            parallelism=len(next(iter(shards.values()))),
            operators={of.name: carried.epoch_of(of, shards[of.name]) for of in operators},
            spark=self._spark_files(),
            **position,
        )
        # The rows were read back already, and compared with those that were written.
        verification = verify(staged, rows=False, progress=progress)
        if verification.is_damaged or verification.unread:
            raise CorruptCheckpointError(
                f"the new checkpoint was verified before its commit, and has faults: "
                f"{verification.findings[0].what}. Nothing is committed, and the old checkpoint is "
                "unchanged: check the disks and the memory of this machine, then try again"
            )
        self._publish()
        return manifest, verification

    def _spark_files(self) -> Iterator[tuple[str, bytes]]:
        old, batch = self._source.repository, self._source.manifest.batch
        if batch is None:
            return
        files = files_at(old.spark_files(), old.read_spark, batch, history=1)
        for path, content in files.items():
            yield path, old.read_spark(path) if content is None else content

    def _publish(self) -> None:
        """Commit the staged manifest. Then remove the mark, and the files of killed attempts."""
        objects, store = self._objects, self._store
        assert objects is not None, "the repository has it"
        # Before the commit: a job may write files of its own after it.
        lost = [path for path in store.tree(paths.DATA) if path not in objects.written]
        ((path, data),) = objects.staged.items()
        self._may_be_committed = True
        try:
            store.create(path, data)
        except FencedError as error:
            self._may_be_committed = False
            raise FencedError(
                f"another transform has committed {store.url} meanwhile: nothing of this one is in "
                "it. Run one at a time"
            ) from error
        store.collect(lost)
        self.clean_up()

    def clean_up(self) -> None:
        """Remove the mark of a complete checkpoint."""
        self._store.remove([paths.TRANSFORM])

    def withdraw(self) -> None:
        """Remove the rows of an attempt that failed.

        The mark stays, and so does the job file, which another attempt may have found.
        """
        objects = self._objects
        if objects is not None and not self._may_be_committed:
            self._store.collect(path for path in objects.written if path.startswith(paths.DATA))


def _check_beside(url: str, old: Repository) -> None:
    """Check that neither checkpoint is inside of the other: garbage collection of the outer one
    deletes the inner one.

    Raises:
        RestoreError: one is.
    """
    given, old_url = local_path(url), old.url
    if given is not None and old.root is not None:
        url, old_url = given.resolve().as_uri(), old.root.resolve().as_uri()
    new, source = f"{url.rstrip('/')}/", f"{old_url.rstrip('/')}/"
    if new != source and (new.startswith(source) or source.startswith(new)):
        raise RestoreError(
            f"the new checkpoint {url} and the old one {old_url} are one inside of the other: "
            "`statekit gc` on the outer one would delete the inner one. Nothing was written. Pass "
            "a directory beside the old checkpoint"
        )


def _renamed(
    offsets: Mapping[str, object], sources: Mapping[str, str | None]
) -> Iterator[tuple[str, object]]:
    for name, offset in offsets.items():
        new = sources.get(name, name)
        if new is not None:
            yield new, offset


class _Progress:
    """The progress of the old operators in event time, for the new ones.

    An operator that keeps its name keeps its progress. Another one has that of the old operators
    which read the same streams.
    """

    def __init__(self, source: CheckpointReader, sources: Mapping[str, str | None]) -> None:
        self._operators = source.manifest.operators
        self._records = {record.name: record for record in source.job.operators}
        self._sources = sources

    def epoch_of(self, operator: Operator, shards: Shards) -> OperatorEpoch:
        """Return the entry of a new operator in the first manifest."""
        same = self._operators.get(operator.name)
        largest = self._largest()
        by_input = {name: largest[name] for name in operator.inputs if name in largest}
        epoch = OperatorEpoch(
            shards=shards,
            largest_by_input=by_input,
            largest_event_us=max(by_input.values(), default=None),
        )
        if same is not None:
            names = ("watermark_us", "late_so_far", "failed_so_far", "active_us")
            return epoch.model_copy(update={name: getattr(same, name) for name in names})
        if operator.declared.event_time is None:
            return epoch
        return epoch.model_copy(update={"watermark_us": self._watermark(operator)})

    def _largest(self) -> dict[str, int]:
        """Return the largest event time of each stream, by its new name."""
        found: dict[str, int] = {}
        for epoch in self._operators.values():
            for name, new in self._new_names(epoch.largest_by_input):
                at = epoch.largest_by_input[name]
                found[new] = max(at, found.get(new, at))
        return found

    def _new_names(self, names: Sequence[str] | Mapping[str, object]) -> Iterator[tuple[str, str]]:
        for name in names:
            new = self._sources.get(name, name)
            if new is not None:
                yield name, new

    def _watermark(self, operator: Operator) -> int | None:
        """Return the watermark of a new operator: the smallest one of the old operators that read
        one of its streams, with its own lateness; None if there is none.
        """
        reached = [
            epoch.watermark_us
            if epoch.watermark_us in (BEGINNING, END)
            else max(BEGINNING, epoch.watermark_us + record.lateness_us - lateness)
            for record, epoch, lateness in self._readers(operator)
            if epoch.watermark_us is not None
        ]
        return min(reached, default=None)

    def _readers(self, operator: Operator) -> Iterator[tuple[OperatorRecord, OperatorEpoch, int]]:
        for name, record in self._records.items():
            read = {new for _, new in self._new_names(record.inputs)}
            if name in self._operators and not read.isdisjoint(operator.inputs):
                yield record, self._operators[name], operator.declared.lateness_us
