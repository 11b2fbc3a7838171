"""Changes of a state as a stream: offsets are epochs.

Spark stores the offset of each micro-batch before it runs it, and commits the offset afterwards. So
a query that starts again reads the same epochs again, or the next ones. A reader's lease moves with
the commits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow

from statekit.clock import stopwatch_s
from statekit.query.rows.epochs import EpochReader, replaced
from statekit.spark.sources.changes_request import (
    ChangesRequest,
    ColumnCheck,
    Start,
    planned,
    read_bundle,
)
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
        self._driver: _Driver | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes for a worker, without the open checkpoint and the lease."""
        return {**self.__dict__, "_driver": None}

    @property
    def _own(self) -> _Driver:
        """The checkpoint and the lease of this process, opened on first use."""
        if self._driver is None:
            self._driver = _Driver(self._request)
        return self._driver

    # ---------------------------------------------------------------------------------- offsets

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the offset of a new query. A reader's lease keeps its epoch from now on."""
        return asdict(self._own.initial_offset())

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        """Return the end of the next micro-batch; its start if there is nothing to read."""
        epochs = limit.max_files if isinstance(limit, ReadMaxFiles) else None
        return asdict(self._own.next_offset(Offset(**start), epochs))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the limit of a micro-batch: an epoch counts as a file."""
        return ReadMaxFiles(self._request.epochs_per_trigger)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Return the last known epoch, for the progress of the query."""
        latest = self._own.known_epoch
        return None if latest is None else {"epoch": latest}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix the last epoch to read: the one that is the last now."""
        self._own.end_at_latest()

    def commit(self, end: dict[str, Any]) -> None:
        """Move the lease of the reader forward."""
        self._own.commit(Offset(**end))

    def stop(self) -> None:
        """End the renewal of the lease. It stays valid, so that the query can start again."""
        if self._driver is not None:
            self._driver.stop()

    # ---------------------------------------------------------------------------------- reading

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return partitions of one shard and up to a million mutations each."""
        return self._own.partitions(Offset(**start), Offset(**end), self._offered)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the changes of a partition. Runs in a worker."""
        return read_bundle(self._request, self._frame, partition.value)


class _Driver:
    """The open checkpoint and the lease of a query, in the process of the query.

    Parameters:
        request: what to read.
    """

    def __init__(self, request: ChangesRequest) -> None:
        self._request = request
        self._changes = request.changes()
        self._epochs: EpochReader = self._changes.epochs
        self._lease = None
        if request.reader is not None:
            self._lease = StreamLease(self._epochs.repository, request.reader, request.lease_ttl)
        self._poll_s = self._epochs.poll_s(None)
        self._asked_s = 0.0
        self._target: int | None = None
        self._initial: Offset | None = None
        self.known_epoch: int | None = None
        """The last epoch, as of the last request to the store."""

    def initial_offset(self) -> Offset:
        """Return the offset of a new query: the same offset each time that Spark asks."""
        if self._initial is None:
            start = self._initial_start()
            writer = self._epochs.manifest(start.epoch).writer
            self._initial = Offset(None, writer, start.epoch, start.is_snapshot)
        return self._initial

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

    def next_offset(self, start: Offset, epochs_max: int | None) -> Offset:
        """Return the offset of the last epoch to read.

        Parameters:
            start: where to begin.
            epochs_max: the number of epochs to read; None for all.

        Raises:
            QueryError: the next epoch was collected, or the checkpoint was replaced.
            FencedError: another query holds the lease of the reader.
        """
        self._hold(start.start)
        last, first = self._latest(), start.start.first
        if self._target is not None:
            last = min(last, self._target)
        if epochs_max is not None:
            last = min(last, first + epochs_max - 1)
        if last < first and last >= start.start.epoch:
            return start
        self._check_is_kept(start)
        return replace(start, epoch=last, writer=self._epochs.manifest(last).writer)

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
        if self.known_epoch is None or now_s - self._asked_s >= self._poll_s:
            self.known_epoch = self._epochs.repository.latest_epoch()
            self._asked_s = now_s
        # Epochs that no reader finds any more were there when the query was loaded.
        return -1 if self.known_epoch is None else self.known_epoch

    def end_at_latest(self) -> None:
        """Fix the last epoch to read: the one that is the last now."""
        self._target = self._latest()

    def partitions(
        self, start: Offset, end: Offset, offered: pa.Schema | None
    ) -> list[InputPartition]:
        """Return the tasks of a micro-batch.

        Parameters:
            offered: the columns that newer epochs may have; None for any.
        """
        assert end.epoch is not None, "a micro-batch has epochs"
        if start.epoch is None:
            begin = Start(end.begin, end.snapshot)
        else:
            begin = start.start
            self._check_is_kept(start)
        self._hold(begin)
        if offered is None:
            return planned(self._changes, begin, end.epoch)
        check = ColumnCheck(self._changes, self._request.ending, offered)
        return planned(self._changes, begin, end.epoch, check)

    def commit(self, end: Offset) -> None:
        """Move the lease forward to an epoch."""
        self._hold(end.start)
        if self._lease is not None and end.epoch is not None:
            self._lease.commit(end.epoch)

    def _hold(self, start: Start) -> None:
        """Keep the epochs that are still to be read. A restarted query calls this first."""
        if self._lease is not None:
            self._lease.hold(start.epoch)

    def stop(self) -> None:
        """End the renewal of the lease."""
        if self._lease is not None:
            self._lease.stop()
