"""`Query`: a job that runs on Spark."""

from __future__ import annotations

import datetime as dt
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from statekit.checkpoint.manifest import EpochManifest
from statekit.checkpoint.repository import Repository
from statekit.clock import stopwatch_s
from statekit.errors import (
    RestoreError,
    StateTypeError,
)
from statekit.job.job import Job
from statekit.job.progress import Progress
from statekit.maintenance.savepoint.write import savepoint_folder, write_savepoint
from statekit.runtime.coordinator import Coordinator
from statekit.spark.epoch import EpochRunner
from statekit.spark.failures import translated
from statekit.spark.idle import IdleEpochs
from statekit.spark.merged_inputs import merged, split
from statekit.spark.offsets import sparks_part
from statekit.spark.query_facade import WholeQuery
from statekit.timestamp import duration_to_micros, instant

_KEPT_PROGRESS = 100
_SETTLED_S = 0.5
QUERIES: weakref.WeakValueDictionary[str, Query] = weakref.WeakValueDictionary()
"""Streams of this process, by checkpoint."""


class Query:
    """A running job.

    Attributes:
        query: Spark's `StreamingQuery`; None for a bounded run, which has ended when `start`
            returns.
        progress: what the last epochs did, oldest first.
    """

    def __init__(self, repository: Repository) -> None:
        self.query: StreamingQuery | None = None
        self._stream: StreamingQuery | None = None
        self.progress: deque[Progress] = deque(maxlen=_KEPT_PROGRESS)
        self._failure: BaseException | None = None
        self._idle: IdleEpochs | None = None
        self._is_stopped = False
        self._repository = repository
        self._close: Callable[[], None] = lambda: None

    @property
    def last_progress(self) -> Progress | None:
        """What the last epoch did; None before the first."""
        return self.progress[-1] if self.progress else None

    @property
    def epoch(self) -> int | None:
        """The number of the last epoch that this run committed."""
        return self.progress[-1].epoch if self.progress else None

    @property
    def is_active(self) -> bool:
        """Whether there may be more epochs."""
        if self.query is None:
            return False
        return self.query.isActive or (self._idle is not None and self._idle.is_alive())

    def await_termination(self, timeout_s: float | None = None) -> bool:
        """Wait until the job ends, for at most `timeout_s` whole seconds; whether it did.

        Raises:
            StatekitError: the job failed; the class says how. Errors of a user's sink come as they
                were raised.
        """
        if self.query is None:
            return True
        try:
            if timeout_s is None:
                self.query.awaitTermination()
                ended = True
            else:
                # Spark counts whole seconds and refuses 0.
                ended = bool(self.query.awaitTermination(max(1, round(timeout_s))))
        except PySparkException as error:
            raise self._cause(error) from error
        if ended and self._idle is not None:
            self._idle.join(timeout_s)
            ended = not self._idle.is_alive()
        if ended and (self._failure is not None or self.query.exception() is not None):
            raise self._cause(self.query.exception())
        return ended

    def stop(self) -> None:
        """Stop after the running micro-batch was abandoned; what is committed stays."""
        self._is_stopped = True  # so that nobody takes this for the end of the input
        if self.query is not None:
            self.query.stop()
        if self._idle is not None:
            self._idle.stop()
        self._close()

    def savepoint(self, name: str) -> str:
        """Write all state after the last committed epoch to `savepoints/<name>/` of the checkpoint.

        The stream goes on meanwhile. The driver does the work, one shard after the other. Returns
        the URL of the savepoint, for `from_savepoint=`.

        Raises:
            RestoreError: the name is taken or cannot be, or nothing is committed yet.
            CorruptCheckpointError: a file of the checkpoint is missing or altered.
            StorageError: the store or the local disk failed; there is no savepoint.
        """
        write_savepoint(self._repository, name)
        return f"{self._repository.url}/{savepoint_folder(name)}"

    def _watch(
        self,
        *,
        beat: Callable[[], float] | None,
        end: Callable[[], None] | None,
        settle: Callable[[], None] | None,
    ) -> None:
        """Make epochs without input beside the stream, and behind it.

        Parameters:
            settle: makes those that belong to the stream; None if there are none.
        """
        assert self._stream is not None
        self._idle = IdleEpochs(self._stream, beat=beat, end=end, failed=self._fail)
        if settle is not None:
            self.query = WholeQuery(self._stream, self._idle, settle, self._why_failed)
        self._idle.start()

    def _take_note(self, error: BaseException) -> None:
        """Keep the first error: those after it come of ending the query."""
        if self._failure is None:
            self._failure = error

    def _fail(self, error: BaseException) -> None:
        self._take_note(error)
        if self.query is not None:
            self.query.stop()

    def _why_failed(self) -> BaseException | None:
        return None if self._failure is None else self._cause(None)

    def _cause(self, error: BaseException | None) -> BaseException:
        failure = self._failure
        if failure is not None:
            return translated(failure)
        assert error is not None
        return translated(error)


class Run:
    """A job between its start and its end: the driver's callback and what it needs."""

    def __init__(
        self,
        query: Query,
        coordinator: Coordinator,
        runner: EpochRunner,
        keep_copies: bool | None,
    ) -> None:
        self.query = query
        self._keep_copies = keep_copies
        self._coordinator = coordinator
        self._runner = runner
        # Micro-batches come in Spark's thread, heartbeats in one of ours: one epoch at a time.
        self._turn = threading.RLock()
        self._nothing: Mapping[str, DataFrame] = {}
        self._last_s = stopwatch_s()

    def bounded(self, inputs: Mapping[str, DataFrame], *, drain: bool) -> None:
        self._nothing = {name: df.limit(0) for name, df in inputs.items()}
        # Spark keeps no note of a bounded run: ours tells that outputs may have been published.
        self._coordinator.notes_beginnings = True
        try:
            if self._coordinator.was_draining:
                self._drain()
            self._epoch(inputs, "records")
            if drain:
                self._drain()
            self._runner.let_copies_go(self._keep_copies)
        except (PySparkException, Py4JJavaError) as error:
            raise translated(error) from error
        finally:
            self._coordinator.close()

    def _drain(self) -> None:
        """Let event time come to its end: an epoch per operator of the longest chain."""
        self._finish_idle()
        while not (self._coordinator.is_drained or self.query._is_stopped):
            self._epoch(self._nothing, "drain")

    def _end(self) -> None:
        """What follows when a stream that is to be drained has read all of its input."""
        self._drain()
        self._runner.let_copies_go(self._keep_copies)

    def stream(
        self,
        inputs: Mapping[str, DataFrame],
        name: str | None,
        trigger: Mapping[str, Any],
        *,
        heartbeat: dt.timedelta | str | None,
        drain: bool,
    ) -> None:
        every_s = None
        if heartbeat is not None:
            every_s = duration_to_micros(heartbeat, "heartbeat") / 1_000_000
            if not every_s:
                raise StateTypeError(f"heartbeat={heartbeat!r}: give more than nothing")
        self._nothing = {
            name: df.sparkSession.createDataFrame([], df.schema) for name, df in inputs.items()
        }
        settles = any(op.declared.settles for op in self._coordinator.job.operators)
        if drain or settles or every_s is not None:
            self._coordinator.notes_beginnings = True
        writer = merged(inputs).writeStream.foreachBatch(self._on_batch)
        writer = writer.option("checkpointLocation", sparks_part(self._coordinator.repository))
        if name is not None:
            writer = writer.queryName(name)
        if trigger:
            writer = writer.trigger(**trigger)
        try:
            self.query.query = self.query._stream = writer.start()
        except (PySparkException, Py4JJavaError) as error:
            raise translated(error) from error
        if drain or settles or every_s is not None:
            ends = bool(trigger.get("availableNow") or trigger.get("once"))
            end = self._end if drain else self._settle if settles and ends else None
            beat = None if every_s is None else partial(self._beat, every_s, self._may_beat)
            if beat is None and settles and not ends:
                beat = partial(self._beat, _SETTLED_S, self._may_settle)
            self.query._watch(beat=beat, end=end, settle=self._settle if settles else None)
        self.query._close = partial(self._coordinator.close, at_once=True)
        QUERIES[self._coordinator.repository.url] = self.query

    def _on_batch(self, df: DataFrame, batch: int) -> None:
        with self._turn:
            try:
                self._batch_in_turn(df, batch)
            except BaseException as error:
                self.query._take_note(error)  # before heartbeats have their turn
                raise

    def _batch_in_turn(self, df: DataFrame, batch: int) -> None:
        coordinator = self._coordinator
        last = coordinator.last
        done = -1 if last is None or last.batch is None else last.batch
        if batch <= done:
            return  # committed before a crash, and Spark had not taken note yet
        if batch != done + 1:
            coordinator.check_owner()
            raise RestoreError(
                f"Spark is at micro-batch {batch}, the state at {done}: Spark's part of "
                f"{coordinator.repository.url} is ahead. Restore both parts from the same backup, "
                "or start with a new checkpoint"
            )
        self._finish_idle()
        self._epoch(split(df, coordinator.job), f"batch {batch}", batch)

    def _beat(self, every_s: float, may: Callable[[], bool]) -> float:
        """Make an epoch if the last one was long ago; how many seconds there are to the next.

        Parameters:
            may: whether there may be one.
        """
        with self._turn:
            rested = stopwatch_s() - self._last_s
            if rested < every_s:
                return every_s - rested
            if may():
                self._epoch(self._nothing, "idle")
            return every_s

    def _may_beat(self) -> bool:
        """Whether the next epoch is free: a micro-batch that was begun has a right to it.

        The first epoch waits for records: nothing is due before, and initial state is theirs.
        """
        query, begun = self.query, self._coordinator.begun
        if self._coordinator.last is None and begun is None:
            return False
        if query._stream is None or query._is_stopped or query._failure is not None:
            return False
        return query._stream.isActive and (begun is None or begun.what == "idle")

    def _may_settle(self) -> bool:
        """Whether event time has moved on, and Spark has no more records."""
        query = self.query._stream
        waits = query is not None and not query.status["isDataAvailable"]
        return self._may_beat() and waits and self._coordinator.would_advance

    def _settle(self) -> None:
        """What follows when a stream has read all there was: what is due by now."""
        with self._turn:
            self._finish_idle()
            while self._coordinator.would_advance and not self.query._is_stopped:
                self._epoch(self._nothing, "idle")

    def _finish_idle(self) -> None:
        """Finish an idle epoch that was begun before a crash as what it was begun."""
        begun = self._coordinator.begun
        if begun is not None and begun.what == "idle":
            self._epoch(self._nothing, "idle")

    def _epoch(self, inputs: Mapping[str, DataFrame], what: str, batch: int | None = None) -> None:
        with self._turn:
            begun = stopwatch_s()
            self._runner.run(inputs, what=what, batch=batch)
            manifest = self._coordinator.last
            assert manifest is not None
            self._last_s = stopwatch_s()
            seconds = self._last_s - begun
            self.query.progress.append(_progress(manifest, self._coordinator.job, batch, seconds))


def _progress(manifest: EpochManifest, job: Job, batch: int | None, seconds: float) -> Progress:
    # An operator sees all that its source has, and so does another one of the same source.
    read: dict[str, int] = {}
    for operator in manifest.operators.values():
        read |= operator.records_by_input
    rows: dict[str, int] = {}
    sizes: dict[str, int] = {}
    changed = 0
    for name, operator in manifest.operators.items():
        changed += operator.bytes_written
        rows |= {f"{name}.{state}": count for state, count in operator.rows.items()}
        sizes |= {f"{name}.{state}": count for state, count in operator.bytes.items()}
    return Progress(
        epoch=manifest.epoch,
        batch=batch,
        records_in=sum(count for stream, count in read.items() if job.is_source(stream)),
        records_out=sum(op.records_out for op in manifest.operators.values()),
        seconds=seconds,
        processing_time=instant(manifest.processing_time_us),
        late=sum(op.late for op in manifest.operators.values()),
        watermarks={
            name: instant(operator.watermark_us)
            for name, operator in manifest.operators.items()
            if operator.watermark_us is not None
        },
        state_rows=rows,
        state_bytes=sizes,
        changed_bytes=changed,
    )
