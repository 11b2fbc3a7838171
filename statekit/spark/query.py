"""A job running on Spark: started, watched, stopped.

What lives here: `start`, the `Query` it returns, and the driver's callback for each micro-batch.
What does not: what happens within an epoch (`epoch`).
"""

from __future__ import annotations

import datetime as dt
import os
import re
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial, reduce
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from statekit.base_options import BaseOptions
from statekit.clock import stopwatch_s
from statekit.coordinator import Coordinator
from statekit.errors import (
    FencedError,
    ProcessError,
    RestoreError,
    StateTypeError,
)
from statekit.job import Job
from statekit.keygroup import DEFAULT_GROUPS
from statekit.manifest import EpochManifest
from statekit.repository import Repository
from statekit.retention import DEFAULT_RETENTION, Retention
from statekit.rocks_options import RocksOptions, check_options
from statekit.running import Progress
from statekit.savepoint import savepoint_folder, write_savepoint
from statekit.savepoint_restore import prepare_from_savepoint
from statekit.sinks import Parquet, Sink
from statekit.spark.epoch import EpochRunner
from statekit.spark.failures import translated
from statekit.spark.frames import check_input, quoted
from statekit.spark.idle import IdleEpochs
from statekit.spark.offsets import check_spark_reaches, check_sparks_part, sparks_part
from statekit.spark.worker import output_schema
from statekit.spark.writing import as_sink
from statekit.timestamp import duration_to_micros, instant
from statekit.working_copy import default_working_directory

__all__ = ["Query", "start"]

SOURCE = "__statekit_source"
_KEPT_PROGRESS = 100
_LOCAL_MASTER = re.compile(r"local(\[|$)")  # and not local-cluster[…], which has executors
_running: weakref.WeakValueDictionary[str, Query] = weakref.WeakValueDictionary()
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

    def _watch(self, *, beat: Callable[[], float] | None, drain: Callable[[], None] | None) -> None:
        """Make epochs without input beside the stream."""
        assert self.query is not None
        self._idle = IdleEpochs(self.query, beat=beat, drain=drain, failed=self._fail)
        self._idle.start()

    def _take_note(self, error: BaseException) -> None:
        """Keep the first error: those after it come of ending the query."""
        if self._failure is None:
            self._failure = error

    def _fail(self, error: BaseException) -> None:
        self._take_note(error)
        if self.query is not None:
            self.query.stop()

    def _cause(self, error: BaseException | None) -> BaseException:
        failure = self._failure
        if failure is not None:
            return translated(failure)
        assert error is not None
        return translated(error)


def start(
    job: Job,
    spark: SparkSession,
    inputs: Mapping[str, DataFrame],
    outputs: Mapping[str, object] | None = None,
    *,
    checkpoint: str | Path,
    from_savepoint: str | Path | None = None,
    parallelism: int | None = None,
    trigger: Mapping[str, Any] | str | None = None,
    query_name: str | None = None,
    allow_dropped_state: bool = False,
    from_epoch: int | None = None,
    working_directory: str | Path | None = None,
    rocksdb: RocksOptions | None = None,
    keep_copies: bool | None = None,
    bases: BaseOptions | None = None,
    heartbeat: dt.timedelta | str | None = None,
    drain: bool | None = None,
    retention: Retention | None = DEFAULT_RETENTION,
    clock: Callable[[], int] | None = None,
) -> Query:
    """Run a job on Spark.

    Streaming frames give one epoch per micro-batch. Static frames are one bounded epoch over all of
    their rows, which has been committed when this returns: starting again over the same frames adds
    them once more.

    Parameters:
        spark: the session.
        inputs: a frame per source of the job.
        outputs: a sink per sink of the job: `sinks.parquet(path)`, `sinks.writer(format)`, or a
            function `(df, epoch)`.
        checkpoint: a directory or object store URL; Spark's own part goes to `spark/` in it.
        from_savepoint: the directory or URL of a savepoint that a new checkpoint starts from, and
            Spark behind what was read until then. One that was made of it goes on from where it is.
        parallelism: shards per operator; None takes what the checkpoint or the savepoint has, or
            the number of cores Spark runs with. It may differ at every start.
        trigger: as for `DataStreamWriter.trigger`, such as `{"availableNow": True}`; a text is a
            processing time.
        query_name: of the streaming query.
        allow_dropped_state: go on although the code no longer declares a stored state, or has no
            callback for timers that may be set.
        from_epoch: roll the checkpoint back to this epoch, with Spark's part, then go on from
            there. Parquet sinks take back the outputs of later epochs; other sinks cannot. A start
            that asks for it again is refused once epochs have followed.
        working_directory: for working copies, on each worker's local disk. None: the machine's
            temporary directory if Spark runs in this process alone; on a cluster, each executor's
            own, which Spark removes with the application.
        rocksdb: what each worker may spend of memory, and working copies of its disk.
        bases: when base snapshots are taken, which keep restores short.
        keep_copies: whether working copies on the driver's host stay when a bounded run or a drain
            ends, so that the next start need not make them anew. None: unless event time came to
            its end, as no run goes on from there. Those of a stream that is stopped always stay.
        heartbeat: make an epoch at least this often even if no input comes, so that
            processing-time timers fire; a timedelta or a text such as "1 second".
        drain: let event time come to its end behind the last record, so that all event-time timers
            fire; no later run can then go on. None: for static frames. A stream can only drain with
            the trigger availableNow, and does not if it is stopped before its end.
        retention: which epochs of the checkpoint are kept; None for all of them.
        clock: the wall clock, in microseconds since 1970 UTC; None is the machine's.

    Raises:
        StateTypeError: inputs or outputs are not the job's.
        ProcessError: a column is missing, or cannot be read as its field.
        RestoreError: the checkpoint cannot be continued.
        StatekitError: for other reasons not to start, each with its class.
    """
    _check_classic(spark, inputs)
    check_options(rocksdb, keep_copies)
    sinks = {name: as_sink(name, given) for name, given in (outputs or {}).items()}
    job.check_names(inputs, sinks)
    _check_frames(inputs)
    _check_outputs(job, sinks)
    for source in job.sources:
        check_input(inputs[source.name], source, job)
    streaming = {df.isStreaming for df in inputs.values()}
    if len(streaming) != 1:
        raise StateTypeError("inputs are either all streaming or all static: do not mix them")
    _use_this_python(spark)
    repository = Repository(checkpoint)
    _check_not_running(repository)
    if streaming == {True}:
        check_spark_reaches(spark, repository)
    if from_savepoint is not None:
        prepare_from_savepoint(
            from_savepoint,
            job,
            repository,
            parallelism=parallelism,
            allow_dropped_state=allow_dropped_state,
            from_epoch=from_epoch,
        )
    if parallelism is None:
        parallelism = _default_parallelism(spark, job, repository)
    coordinator = Coordinator(
        job,
        repository,
        parallelism=parallelism,
        allow_dropped_state=allow_dropped_state,
        from_epoch=from_epoch,
        retention=retention,
        clock=clock,
    )
    directory = _directory_for_copies(spark, working_directory)
    runner = EpochRunner(
        coordinator, sinks, directory, rocksdb or RocksOptions(), bases or BaseOptions()
    )
    started = _Started(Query(repository), coordinator, runner, keep_copies)
    if streaming == {False}:
        if heartbeat is not None:
            raise StateTypeError("heartbeat= is for streams that go on: these frames are static")
        started.bounded(inputs, drain=drain is not False)
        return started.query
    given = {"processingTime": trigger} if isinstance(trigger, str) else dict(trigger or {})
    ends = bool(given.get("availableNow") or given.get("once"))
    if drain and not given.get("availableNow"):
        raise StateTypeError(
            "drain=True is for streams that end with their input: use "
            'trigger={"availableNow": True}'
        )
    if heartbeat is not None and ends:
        raise StateTypeError("heartbeat= is for streams that go on: this trigger lets it end")
    check_sparks_part(coordinator)
    started.stream(inputs, query_name, given, heartbeat=heartbeat, drain=bool(drain))
    return started.query


def _check_classic(spark: object, inputs: Mapping[str, object]) -> None:
    """Refuse what is of Spark Connect: its driver, which the callbacks need, is elsewhere."""
    frames = {f"inputs[{name!r}]": df for name, df in inputs.items()}
    for name, given in {"spark": spark, **frames}.items():
        if any(cls.__module__.startswith("pyspark.sql.connect") for cls in type(given).__mro__):
            raise StateTypeError(
                f"{name} is a {type(given).__name__} of Spark Connect, and statekit needs a "
                "classic session, whose driver is this process: make one with "
                'SparkSession.builder.master("local[*]").getOrCreate(), or with the master of your '
                "cluster, and without remote() and SPARK_REMOTE; or let spark-submit run the job"
            )


def _check_frames(inputs: Mapping[str, object]) -> None:
    for name, df in inputs.items():
        if not isinstance(df, DataFrame):
            raise StateTypeError(
                f"inputs[{name!r}] is {type(df).__name__}: give a DataFrame of a classic Spark "
                "session, or use job.run for Python iterables"
            )
        twice = sorted({column for column in df.columns if df.columns.count(column) > 1})
        if twice:
            raise ProcessError(f"inputs[{name!r}] has columns of the same name: rename {twice}")


def _check_outputs(job: Job, sinks: Mapping[str, Sink]) -> None:
    """Find out now what the first epoch would: outputs without a schema, shared directories."""
    for operator in job.operators:
        output_schema(operator.declared.output_type)
        if len(operator.declared.record_type.members) > 1 and job.wants_late(operator):
            raise StateTypeError(
                f"the late records of {operator.name!r} are {operator.declared.record_type.name}, "
                "and the rows of a frame are of one type: on Spark, leave them where they are "
                "counted, or give each type an operator with event time of its own"
            )
    paths = [sink.path.rstrip("/") for sink in sinks.values() if isinstance(sink, Parquet)]
    if len(set(paths)) != len(paths):
        raise StateTypeError(
            f"outputs= has two Parquet sinks in one directory ({sorted(paths)}): give each its own"
        )


def _directory_for_copies(spark: SparkSession, given: str | Path | None) -> str | None:
    """Where working copies live; None leaves it to each executor."""
    if given is not None:
        return str(given)
    if _LOCAL_MASTER.match(str(spark.sparkContext.master)):
        return default_working_directory()
    return None


def _check_not_running(repository: Repository) -> None:
    """Of two streams on one checkpoint, Spark would stop the older without a word."""
    running = _running.get(repository.url)
    if running is not None and running.is_active:
        raise FencedError(
            f"{repository.url} is being written by a query that this process runs: stop() it "
            "first, then start again; nothing is lost"
        )


def _default_parallelism(spark: SparkSession, job: Job, repository: Repository) -> int | None:
    """What the checkpoint has, or a shard per core as far as key groups go."""
    if repository.latest_epoch() is not None:
        return None
    return min(spark.sparkContext.defaultParallelism, job.key_groups or DEFAULT_GROUPS)


class _Started:
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
        if drain or every_s is not None:
            self._coordinator.notes_beginnings = True
        writer = _merged(inputs).writeStream.foreachBatch(self._on_batch)
        writer = writer.option("checkpointLocation", sparks_part(self._coordinator.repository))
        if name is not None:
            writer = writer.queryName(name)
        if trigger:
            writer = writer.trigger(**trigger)
        try:
            self.query.query = writer.start()
        except (PySparkException, Py4JJavaError) as error:
            raise translated(error) from error
        if drain or every_s is not None:
            beat = None if every_s is None else partial(self._beat, every_s)
            self.query._watch(beat=beat, drain=self._end if drain else None)
        self.query._close = partial(self._coordinator.close, at_once=True)
        _running[self._coordinator.repository.url] = self.query

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
        self._epoch(_split(df, coordinator.job), f"batch {batch}", batch)

    def _beat(self, every_s: float) -> float:
        """Make an epoch if the last one was long ago; how many seconds there are to the next."""
        with self._turn:
            rested = stopwatch_s() - self._last_s
            if rested < every_s:
                return every_s - rested
            if self._may_beat():
                self._epoch(self._nothing, "idle")
            return every_s

    def _may_beat(self) -> bool:
        """Whether the next epoch is free: a micro-batch that was begun has a right to it."""
        query, begun = self.query, self._coordinator.begun
        if query.query is None or query._is_stopped or query._failure is not None:
            return False
        return query.query.isActive and (begun is None or begun.what == "idle")

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


def _use_this_python(spark: SparkSession) -> None:
    """Spark starts `python3` from PATH in its workers; take this interpreter where that is local.

    What the user configured stays. `spark.pyspark.python` is read by spark-submit only; here it is
    made to mean what it says in a session built by a script, too.
    """
    if os.environ.get("PYSPARK_PYTHON"):
        return
    context = spark.sparkContext
    configured = context.getConf().get("spark.pyspark.python")
    if configured or str(context.master).startswith("local"):
        context.pythonExec = configured or sys.executable


def _merged(inputs: Mapping[str, DataFrame]) -> DataFrame:
    """All inputs as one frame, because a streaming query has one; alone, as it is."""
    frames = list(inputs.items())
    if len(frames) == 1:
        return frames[0][1]
    tagged = [
        df.select(
            F.lit(name).alias(SOURCE),
            F.struct(*(F.col(quoted(column)) for column in df.columns)).alias(name),
        )
        for name, df in frames
    ]
    return reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), tagged)


def _split(df: DataFrame, job: Job) -> dict[str, DataFrame]:
    """The inverse of `_merged`, for one micro-batch."""
    if len(job.sources) == 1:
        return {job.sources[0].name: df}
    return {
        source.name: df.where(F.col(SOURCE) == source.name).select(f"`{source.name}`.*")
        for source in job.sources
    }
