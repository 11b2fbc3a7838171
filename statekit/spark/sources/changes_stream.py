"""Changes of a state as a stream: offsets are epochs.

Spark stores the offset of each micro-batch before it runs it, and commits the offset afterwards. So
a query that starts again reads the same epochs again, or the next ones. A reader's lease moves with
the commits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow

from statekit.checkpoint.manifest import EpochManifest
from statekit.clock import stopwatch_s
from statekit.errors import QueryError
from statekit.query.changes.state_changes import StateChanges
from statekit.query.rows.epochs import EpochReader, replaced
from statekit.spark.sources.changes_request import ChangesRequest, Start, planned, read_bundle
from statekit.spark.sources.frame import Frame
from statekit.spark.sources.stream_lease import StreamLease


@dataclass(frozen=True)
class Offset:
    """The progress of a query, as Spark stores it.

    Spark stores where a micro-batch ends, and asks for the begin of the first one again if it runs
    that one again. So each offset has the begin of the query too.

    Parameters:
        epoch: the last epoch that was read; None if nothing was read.
        writer: the run that committed the epoch: another one if a backup has replaced it. Without
            an epoch, of the epoch where the query began.
        begin: the epoch where the query began.
        snapshot: whether it began with all rows of the state after that epoch.
    """

    epoch: int | None
    writer: str
    begin: int
    snapshot: bool

    @property
    def start(self) -> Start:
        """The start of a micro-batch that begins at this offset."""
        if self.epoch is None:
            return Start(self.begin, self.snapshot)
        return Start(self.epoch, is_snapshot=False)


class ChangesStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads changes epoch by epoch. Exists in the process of the query, and as a copy in workers.

    The checkpoint and the lease are opened on first use, in the process of the query.

    Parameters:
        request: what to read.
        frame: the columns.
        offered: all columns that the state had when the query was loaded; None if the user chose
            columns.
    """

    def __init__(self, request: ChangesRequest, frame: Frame, offered: pa.Schema | None) -> None:
        self._request = request
        self._frame = frame
        self._offered = offered
        self._asked_s = 0.0
        self._target: int | None = None
        self._initial: Offset | None = None
        self._known_epoch: int | None = None
        """The last epoch, as of the last request to the store."""

    def __reduce__(self) -> tuple[Callable[..., ChangesStream], tuple[Any, ...]]:
        return type(self), (self._request, self._frame, self._offered)

    @cached_property
    def _changes(self) -> StateChanges:
        return self._request.changes()

    @property
    def _epochs(self) -> EpochReader:
        return self._changes.epochs

    @cached_property
    def _poll_s(self) -> float:
        return self._epochs.poll_s(None)

    @cached_property
    def _lease(self) -> StreamLease | None:
        name, repository = self._request.reader, self._epochs.repository
        return None if name is None else StreamLease(repository, name, self._request.lease_ttl)

    # ---------------------------------------------------------------------------------- offsets

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the offset of a new query: the same offset each time that Spark asks. A reader's
        lease keeps its epoch from now on.
        """
        if self._initial is None:
            start = self._initial_start()
            writer = self._epochs.manifest(start.epoch).writer
            self._initial = Offset(None, writer, start.epoch, start.is_snapshot)
        return asdict(self._initial)

    def _initial_start(self) -> Start:
        """Return the start of a new query.

        A query whose first micro-batch runs again begins where its lease is. Its epoch is kept, and
        the last one is another one by now.
        """
        lease = self._lease
        if lease is None:
            return self._start()
        held = None if isinstance(self._request.starting, int) else lease.held_epoch
        return lease.pin(self._start if held is None else lambda: Start(held, is_snapshot=True))

    def _start(self) -> Start:
        last = self._epochs.repository.latest_epoch()
        if last is None:
            self._epochs.repository.check_nothing_lost()
            last = self._request.ending
        return self._request.start(self._epochs, default="latest", last=last)

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        """Return the end of the next micro-batch; its start if there is nothing to read.

        Raises:
            QueryError: the next epoch was collected, or the checkpoint was replaced.
            FencedError: another query holds the lease of the reader.
        """
        offset = Offset(**start)
        begin = offset.start
        self._hold(begin)
        last, first = self._latest(), begin.first
        if self._target is not None:
            last = min(last, self._target)
        if isinstance(limit, ReadMaxFiles):
            last = min(last, first + limit.max_files - 1)
        if last < first and last >= begin.epoch:
            return start
        self._check_is_kept(offset)
        return asdict(replace(offset, epoch=last, writer=self._epochs.manifest(last).writer))

    def _check_is_kept(self, offset: Offset) -> None:
        """Check that a query can continue after an offset.

        Raises:
            QueryError: its epoch was collected, or the checkpoint was replaced.
        """
        manifest = self._epochs.manifest(offset.start.epoch)
        if manifest.writer != offset.writer:
            raise replaced(self._epochs.repository, manifest.epoch)

    def _latest(self) -> int:
        """Return the last epoch. Spark asks all the time, so the store is only asked at
        intervals.
        """
        now_s = stopwatch_s()
        if self._known_epoch is None or now_s - self._asked_s >= self._poll_s:
            self._known_epoch = self._epochs.repository.latest_epoch()
            self._asked_s = now_s
        # Epochs that no reader finds any more were there when the query was loaded.
        return -1 if self._known_epoch is None else self._known_epoch

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the limit of a micro-batch: an epoch counts as a file."""
        return ReadMaxFiles(self._request.epochs_per_trigger)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Return the last known epoch, for the progress of the query."""
        return None if self._known_epoch is None else {"epoch": self._known_epoch}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix the last epoch to read: the one that is the last now."""
        self._target = self._latest()

    def commit(self, end: dict[str, Any]) -> None:
        """Move the lease of the reader forward."""
        offset = Offset(**end)
        self._hold(offset.start)
        if self._lease is not None and offset.epoch is not None:
            self._lease.commit(offset.epoch)

    def _hold(self, start: Start) -> None:
        """Keep the epochs that are still to be read. A restarted query calls this first."""
        if self._lease is not None:
            self._lease.hold(start.epoch)

    def stop(self) -> None:
        """End the renewal of the lease. It stays valid, so that the query can start again."""
        lease: StreamLease | None = vars(self).get("_lease")  # without opening the checkpoint
        if lease is not None:
            lease.stop()

    # ---------------------------------------------------------------------------------- reading

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return partitions of one shard and up to a million mutations each."""
        offset, until = Offset(**start), Offset(**end)
        assert until.epoch is not None, "a micro-batch has epochs"
        if offset.epoch is None:
            begin = Start(until.begin, until.snapshot)
        else:
            begin = offset.start
            self._check_is_kept(offset)
        self._hold(begin)
        return planned(self._changes, begin, until.epoch, self._check_columns)

    def _check_columns(self, manifest: EpochManifest) -> None:
        """Check that the query has all columns of a newer epoch, if the user chose none.

        Raises:
            QueryError: the epoch has a column, or a type, that the query does not have.
        """
        offered = self._offered
        if offered is None or manifest.epoch <= self._request.ending:
            return
        for field in self._changes.table(manifest).schema:
            place = offered.get_field_index(field.name)
            if place < 0 or offered.field(place).type != field.type:
                raise QueryError(
                    f"epoch {manifest.epoch} has another type than the query was loaded with: "
                    f"column {field.name} of type {field.type} is new. No change was lost: load "
                    "the frame again, and start the query again from its Spark checkpoint"
                )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the changes of a partition. Runs in a worker."""
        return read_bundle(self._request, self._frame, partition.value)
