"""`Query`: a job on Spark and the epochs that it runs.

There is one epoch per micro-batch, and there are epochs without input between and after them.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.listener import QueryProgressEvent
from pyspark.sql.streaming.query import StreamingQuery

from statekit.checkpoint.manifest import EpochOffsets
from statekit.clock import stopwatch_s
from statekit.errors import RestoreError
from statekit.job.notebook import progress_html
from statekit.job.options import StartOptions, heartbeat_s
from statekit.job.progress import MirrorProgress, Progress
from statekit.maintenance.savepoint.write import savepoint_folder, write_savepoint
from statekit.mirrors.beside_job import MirrorsBesideJob
from statekit.runtime.coordinator import Coordinator
from statekit.runtime.epoch_progress import epoch_progress
from statekit.runtime.idle_epochs import IdleEpochs
from statekit.sources.spark import SparkSource
from statekit.spark.epoch import EpochRunner
from statekit.spark.failures import translated
from statekit.spark.frames.shared_reads import merged, split
from statekit.spark.offsets import sparks_part
from statekit.spark.opened_sources import reading_error

if TYPE_CHECKING:
    from statekit.metrics.endpoint import Endpoint


class _Interrupted(Exception):  # noqa: N818 - Spark catches it
    """Ends the micro-batch of a query that is stopped.

    Spark looks for this text, by an expression that overflows its stack in a long one: the errors
    of the jobs that it cancels have the stack of the JVM.
    """

    def __init__(self) -> None:
        super().__init__(
            "py4j.protocol.Py4JJavaError: An error occurred while calling a job of a stopped query"
            ": java.lang.InterruptedException"
        )


_MOST_PROGRESS = 100
_CHECK_WATERMARK_S = 0.5
_LONGEST_WAIT_S = 0.5
_CHECK_SESSION_S = 1
RUNNING: weakref.WeakValueDictionary[str, Query] = weakref.WeakValueDictionary()
"""Queries of running streams in this process, by checkpoint URL."""
_BY_RUN: weakref.WeakValueDictionary[str, Query] = weakref.WeakValueDictionary()
"""The same queries by the run id of Spark's query."""


class Query:
    """The handle of a running job: the epochs from its start to its end. Created by `Job.start`.

    Attributes:
        query: Spark's `StreamingQuery`; None for a bounded run, which has ended.
        progress: metrics of the last epochs, oldest first.
        spark_sources: the sources of the job that Spark reads, by input.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        runner: EpochRunner,
        options: StartOptions,
        endpoint: Endpoint | None,
        mirrors: MirrorsBesideJob,
    ) -> None:
        self.query: StreamingQuery | None = None
        self.progress: deque[Progress] = deque(maxlen=_MOST_PROGRESS)
        self.spark_sources: Mapping[str, SparkSource] = {}
        self._coordinator = coordinator
        self._runner = runner
        self._options = options
        self._endpoint = endpoint  # closed when the job ends, as the mirrors are
        self._mirrors = mirrors
        self._stream: StreamingQuery | None = None
        self._idle: threading.Thread | None = None
        self._first_error: BaseException | None = None
        self._stopped = threading.Event()
        self._without_input = IdleEpochs(coordinator, self._epoch_without_input, self._stopped)
        # Micro-batches run in Spark's thread, heartbeats in one of ours: one epoch at a time.
        self._lock = threading.RLock()
        self._closing = threading.Lock()  # the end is noticed by several threads
        self._no_input: Mapping[str, DataFrame] = {}
        self._static: Mapping[str, DataFrame] = {}  # inputs that were read, without rows
        self._last_epoch_s = stopwatch_s()

    def __repr__(self) -> str:
        epoch = "no epoch yet" if self.epoch is None else f"last epoch {self.epoch}"
        return f"<Query of job {self._coordinator.job.name!r}: {self._state}, {epoch}>"

    def _repr_html_(self) -> str:
        """Return the last epochs for a notebook."""
        return progress_html(repr(self)[1:-1], list(self.progress))

    @property
    def last_progress(self) -> Progress | None:
        """Metrics of the last epoch; None before the first."""
        return self.progress[-1] if self.progress else None

    @property
    def epoch(self) -> int | None:
        """The number of the last epoch that this run committed."""
        return self.progress[-1].epoch if self.progress else None

    @property
    def mirrors(self) -> Sequence[MirrorProgress]:
        """How far each mirror beside the job is."""
        return self._mirrors.progress

    @property
    def is_active(self) -> bool:
        """True if more epochs may follow."""
        is_idle_active = self._idle is not None and self._idle.is_alive()
        return is_idle_active or (self._stream is not None and self._stream.isActive)

    @property
    def _state(self) -> str:
        """The current activity, in a word or two for users."""
        try:
            if self.is_active:
                return "running"
            has_error = self._stream is not None and self._stream.exception() is not None
        except (Py4JError, OSError):
            return "without a Spark session"
        return "failed" if has_error or self._first_error is not None else "ended"

    @property
    def metrics_address(self) -> str | None:
        """The URL that Prometheus reads; None without `metrics=`, and after the job has ended."""
        endpoint = self._endpoint
        return None if endpoint is None or endpoint.is_closed else endpoint.url

    def await_termination(self, timeout_s: float | None = None) -> bool:
        """Wait until the job ends, for at most `timeout_s` whole seconds. Return whether it has
        ended.

        Raises:
            StatekitError: the job failed; the class says how. Errors of a user's sink are raised
                unchanged.
        """
        if self._stream is None:
            return True
        # Spark counts whole seconds and refuses 0.
        timeout = None if timeout_s is None else max(1, round(timeout_s))
        try:
            has_ended = self._stream.awaitTermination(timeout) is not False
        except PySparkException as error:
            self._close()
            failed = self._failure() or self._outside_of_epochs(error)
            raise failed from failed.__cause__
        if has_ended and self._idle is not None:
            self._idle.join(timeout_s)
            has_ended = not self._idle.is_alive()
        if has_ended:
            self._close()
        if has_ended and (cause := self._failure()) is not None:
            raise cause
        if has_ended and (ended_with := self._stream.exception()) is not None:
            raise self._outside_of_epochs(ended_with)
        return has_ended

    def stop(self) -> None:
        """Stop the job. The running micro-batch is abandoned; committed epochs are kept."""
        self._stopped.set()  # so that this does not count as the end of the input
        if self._stream is None:
            return  # a bounded run has ended
        self._stream.stop()
        if self._idle is not None and self._idle is not threading.current_thread():
            self._idle.join()  # the current epoch is completed
        self._coordinator.close(at_once=True)
        self._close()

    def savepoint(self, name: str) -> str:
        """Write all state after the last committed epoch to `savepoints/<name>/` of the checkpoint.

        The stream continues meanwhile. The driver does the work, one shard after the other. Returns
        the URL of the savepoint, for `from_savepoint=`.

        Raises:
            RestoreError: the name is taken or not valid, or no epoch is committed yet.
            CorruptCheckpointError: a file of the checkpoint is missing or altered.
            StorageError: the store or the local disk failed; there is no savepoint.
        """
        repository = self._coordinator.repository
        write_savepoint(repository, name)
        return f"{repository.url}/{savepoint_folder(name)}"

    # ----------------------------------------------------------------------------- the epochs

    def run_bounded(self, inputs: Mapping[str, DataFrame]) -> None:
        """Run one epoch over static frames, and then drain unless the options say otherwise."""
        self._no_input = {name: df.limit(0) for name, df in inputs.items()}
        # Spark has no log of a bounded run: this note says that outputs may have been published.
        self._coordinator.notes_beginnings = True
        try:
            with self._coordinator:
                if self._coordinator.was_draining:
                    self._without_input.drain()
                self._epoch(inputs, "records")
                if self._options.drain is not False:
                    self._without_input.drain()
                self._runner.remove_copies(self._options.keep_copies)
        except (PySparkException, Py4JJavaError) as error:
            raise translated(error) from error

    def start_stream(
        self, inputs: Mapping[str, DataFrame], static: Mapping[str, DataFrame]
    ) -> None:
        """Start Spark's query over streaming frames, after static ones were read in an epoch.

        Parameters:
            inputs: the streaming frames.
            static: the other ones.
        """
        options = self._options
        beat_s = heartbeat_s(options.heartbeat)
        self._no_input = {
            name: df.sparkSession.createDataFrame([], df.schema)
            for name, df in {**inputs, **static}.items()
        }
        self._static = {name: self._no_input[name] for name in static}
        if static:
            self._read_static(static)
        settles = any(op.declared.traits.settles for op in self._coordinator.job.operators)
        has_idle_epochs = bool(options.drain) or settles or beat_s is not None
        if has_idle_epochs:
            self._coordinator.notes_beginnings = True
        writer = merged(inputs).writeStream.foreachBatch(self._on_batch)
        writer = writer.option("checkpointLocation", sparks_part(self._coordinator.repository))
        if options.query_name is not None:
            writer = writer.queryName(options.query_name)
        if options.spark_trigger:
            writer = writer.trigger(**options.spark_trigger)
        try:
            self.query = self._stream = writer.start()
        except (PySparkException, Py4JJavaError) as error:
            raise translated(error) from error
        _BY_RUN[str(self._stream.runId)] = self
        if has_idle_epochs:
            self._start_idle_epochs(self._stream, beat_s, settles=settles)
        RUNNING[self._coordinator.repository.url] = self
        if self._endpoint is not None or self._runner.closes_sinks or self.mirrors:
            end = partial(self._close_at_end, self._stream)
            threading.Thread(target=end, name="statekit end", daemon=True).start()

    def _read_static(self, static: Mapping[str, DataFrame]) -> None:
        """Run an epoch over static frames that no epoch has read: before all streams.

        An epoch that was begun is completed first. It is this one, unless a static input is new.
        """
        coordinator = self._coordinator
        coordinator.notes_beginnings = True
        offsets = {} if coordinator.last is None else coordinator.last.offsets
        if offsets.keys() >= static.keys():
            return
        if coordinator.note is not None and coordinator.note.what != "records":
            raise RestoreError(
                f"epoch {coordinator.epoch} of {coordinator.repository.url} was begun without "
                f"the static inputs {sorted(static.keys() - offsets.keys())}: start once without "
                "them, so that the epoch is completed, then with them"
            )
        unread = {name: df for name, df in static.items() if name not in offsets}
        ends = {**offsets, **dict.fromkeys(unread, 1)}
        try:
            self._epoch({**self._no_input, **unread}, "records", offsets=ends)
        except (PySparkException, Py4JJavaError) as error:
            raise translated(error) from error

    def _close_at_end(self, stream: StreamingQuery) -> None:
        """Close the endpoint and the sinks when the job ends or fails.

        A stream without new input does not notice that its session was stopped.
        """
        with contextlib.suppress(PySparkException, Py4JError, OSError):
            has_ended = False
            while not (has_ended or self._runner.is_stopped):
                has_ended = stream.awaitTermination(_CHECK_SESSION_S) is not False
            if has_ended and self._idle is not None:
                self._idle.join()
        self._close()

    def _close(self) -> None:
        """End the mirrors after a last step, stop serving metrics, and close the sinks."""
        with self._closing:
            self._mirrors.close()
            if self._endpoint is not None:
                self._endpoint.close()
            self._runner.close_sinks()

    def _start_idle_epochs(
        self, stream: StreamingQuery, beat_s: float | None, *, settles: bool
    ) -> None:
        """Start the thread for epochs without input, during the stream and after it."""
        ends = self._options.ends_with_input
        end = (
            self._drain_at_end
            if self._options.drain
            else self._settle
            if settles and ends
            else None
        )
        beat = None
        if beat_s is not None:
            beat = partial(self._beat, beat_s, self._is_free)
        elif settles and not ends:
            beat = partial(self._beat, _CHECK_WATERMARK_S, self._needs_final_epochs)
        run = partial(self._run_idle, beat, end)
        self._idle = threading.Thread(target=run, name="statekit idle epochs", daemon=True)
        if settles:
            self.query = WholeQuery(stream, self._idle, self)
        self._idle.start()

    def _run_idle(self, beat: Callable[[], float] | None, end: Callable[[], None] | None) -> None:
        """Run epochs without input beside the stream.

        Parameters:
            beat: runs an epoch if one is due, and returns the seconds until the next one; None
                without heartbeats.
            end: runs the last epochs, when the stream has read all of its input; None for none.
        """
        stream = self._stream
        assert stream is not None, "it was started"
        try:
            while beat is not None and not self._stopped.is_set() and stream.isActive:
                self._stopped.wait(min(beat(), _LONGEST_WAIT_S))
            if end is not None and self._has_read_all_input(stream):
                end()
        except BaseException as error:  # noqa: BLE001 - raised to whoever waits for the stream
            self._fail(error)

    def _has_read_all_input(self, stream: StreamingQuery) -> bool:
        """Return whether a stream with the trigger availableNow has ended by itself.

        Anyone can stop it, through `spark.streams` or with the session, and Spark has no public way
        to distinguish that. But it ends by itself only after it found no further micro-batch.
        """
        try:
            stream.awaitTermination()
        except PySparkException:
            return False  # raised in `awaitTermination` of the query
        failed = self._stopped.is_set() or stream.exception() is not None
        execution: Any = stream._jsq
        return not failed and bool(execution.streamingQuery().noNewData())

    def _failure(self) -> BaseException | None:
        """Return the first error of an epoch. Later errors are consequences of ending the query."""
        return None if self._first_error is None else translated(self._first_error)

    def _outside_of_epochs(self, error: Exception) -> BaseException:
        """Return the error for one of Spark's query that no epoch has raised."""
        typed = translated(error)
        if typed is error and self.spark_sources:
            return reading_error(self.spark_sources, error)
        return typed

    def _noted(self, error: BaseException) -> None:
        """Keep the first error, here and in the checkpoint, unless the job is being stopped."""
        if self._first_error is None:
            self._first_error = error
            if not self._stopped.is_set():
                self._coordinator.note_failure(translated(error))

    def _fail(self, error: BaseException) -> None:
        self._noted(error)
        if self._stream is not None:
            self._stream.stop()

    def _on_batch(self, df: DataFrame, batch: int) -> None:
        with self._lock:
            try:
                self._batch_epoch(df, batch)
            except BaseException as error:
                self._noted(error)  # before a heartbeat gets the lock
                if self._stopped.is_set():
                    raise _Interrupted from None
                raise

    def _batch_epoch(self, df: DataFrame, batch: int) -> None:
        last = self._coordinator.last
        committed = -1 if last is None or last.batch is None else last.batch
        if batch <= committed:
            return  # committed before a crash, and Spark had not logged the end yet
        if batch != committed + 1:
            self._coordinator.check_owner()
            raise RestoreError(
                f"Spark is at micro-batch {batch}, the state at {committed}: Spark's part of "
                f"{self._coordinator.repository.url} is ahead. Restore both parts from the same "
                "backup, or start with a new checkpoint"
            )
        self._without_input.finish()
        inputs = split(df, self._coordinator.job, self._static)
        self._epoch(inputs, f"batch {batch}", batch)

    def _beat(self, interval_s: float, may_run: Callable[[], bool]) -> float:
        """Run an epoch if the last one was at least `interval_s` ago.

        Returns:
            Seconds until the next one is due.
        """
        with self._lock:
            elapsed_s = stopwatch_s() - self._last_epoch_s
            if elapsed_s < interval_s:
                return interval_s - elapsed_s
            if may_run():
                self._epoch_without_input("idle")
            return interval_s

    def _is_free(self) -> bool:
        """Return whether the next epoch may be one without input.

        A micro-batch that was begun keeps its epoch. The first epoch needs records: nothing is due
        before them, and they get the initial state.
        """
        note = self._coordinator.note
        if self._coordinator.last is None and note is None:
            return False
        if self._stream is None or self._stopped.is_set() or self._first_error is not None:
            return False
        return self._stream.isActive and (note is None or note.what == "idle")

    def _needs_final_epochs(self) -> bool:
        """Return whether the watermark would advance while Spark has no more records."""
        waits = self._stream is not None and not self._stream.status["isDataAvailable"]
        return self._is_free() and waits and self._coordinator.would_advance

    def _settle(self) -> None:
        """Run all due epochs without input, after all input was read."""
        with self._lock:
            self._without_input.settle()

    def _drain_at_end(self) -> None:
        self._without_input.drain()
        self._runner.remove_copies(self._options.keep_copies)

    def _epoch_without_input(self, what: str) -> None:
        self._epoch(self._no_input, what)

    def _epoch(
        self,
        inputs: Mapping[str, DataFrame],
        what: str,
        batch: int | None = None,
        **read: Unpack[EpochRead],
    ) -> None:
        with self._lock:
            begun_s = stopwatch_s()
            self._runner.run(inputs, what=what, batch=batch, **read)
            manifest = self._coordinator.last
            assert manifest is not None
            self._last_epoch_s = stopwatch_s()
            seconds = self._last_epoch_s - begun_s
            self._coordinator.metrics.committed(manifest, seconds)
            progress = epoch_progress(self._coordinator, manifest, seconds, batch)
            self.progress.append(progress)
            if self._options.on_epoch is not None:
                self._options.on_epoch(progress)


class EpochRead(TypedDict, total=False):
    """The reads of sources in an epoch, as for `EpochRunner.run`."""

    offsets: EpochOffsets | None
    counted: Callable[[], tuple[dict[str, int], dict[str, int]]]


class WholeQuery(StreamingQuery):
    """A query of Spark, including the epochs without rows that follow its last batch.

    Spark runs such batches within the query, so waiting for the query includes them.

    Parameters:
        query: Spark's own.
        idle: the thread that runs the epochs.
        all_epochs: the query with all epochs.
    """

    def __init__(self, query: StreamingQuery, idle: threading.Thread, all_epochs: Query) -> None:
        super().__init__(query._jsq)
        self._idle = idle
        self._all_epochs = all_epochs

    @property
    def isActive(self) -> bool:
        return super().isActive or self._idle.is_alive()

    def awaitTermination(self, timeout: int | None = None) -> bool | None:
        ended = super().awaitTermination(timeout)
        if ended is not False:
            self._idle.join(timeout)
        if self._idle.is_alive():
            return False
        if ended is not False and (error := self._all_epochs._failure()) is not None:
            raise error
        return ended

    def processAllAvailable(self) -> None:
        super().processAllAvailable()
        self._all_epochs._settle()


def progress_of(event: QueryProgressEvent) -> Progress | None:
    """Return the metrics of an epoch, given the event of a Spark listener.

    The event of a micro-batch follows its commit, so the values are exact. Epochs without input
    have no event; `Query.progress` has them, and counters of later epochs include them.

    Parameters:
        event: the argument of `StreamingQueryListener.onQueryProgress`, in the process of the
            driver.

    Returns:
        None for a query that is not of statekit, for a micro-batch that an earlier run committed,
        and for one that is older than the last 100 epochs.

    Example:
        >>> from pyspark.sql.streaming import StreamingQueryListener
        >>> class Report(StreamingQueryListener):
        ...     def onQueryStarted(self, event): ...
        ...     def onQueryIdle(self, event): ...
        ...     def onQueryTerminated(self, event): ...
        ...     def onQueryProgress(self, event):
        ...         progress = progress_of(event)
        ...         if progress is not None:
        ...             print(progress.metrics["statekit_epoch"], event.progress.durationMs)
    """
    query = _BY_RUN.get(str(event.progress.runId))
    progress = () if query is None else tuple(query.progress)
    batch = event.progress.batchId
    return next((epoch for epoch in reversed(progress) if epoch.batch == batch), None)
