"""A job running on Spark: started, watched, stopped.

What lives here: `start`, the `Query` it returns, and the driver's callback for each micro-batch.
What does not: what happens within an epoch (`epoch`).
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import weakref
from collections import deque
from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from statekit.clock import stopwatch_s
from statekit.coordinator import Coordinator
from statekit.errors import (
    FencedError,
    ProcessError,
    RestoreError,
    StatekitError,
    StateTypeError,
    StorageError,
    error_class,
)
from statekit.job import Job
from statekit.keygroup import DEFAULT_GROUPS
from statekit.manifest import EpochManifest
from statekit.repository import Repository
from statekit.rocks import RocksOptions
from statekit.running import Progress
from statekit.sinks import Parquet, Sink
from statekit.spark.epoch import EpochRunner
from statekit.spark.frames import check_input, quoted
from statekit.spark.worker import output_schema
from statekit.spark.writing import as_sink

__all__ = ["Query", "start"]

SOURCE = "__statekit_source"
_KEPT_PROGRESS = 100
_STATEKIT_ERROR = re.compile(r"statekit\.errors\.(\w+): (.*?)(?=\n\s*at |\n\nDriver|\Z)", re.DOTALL)

# What Spark finds out before we do, in its own part of the checkpoint or in a sink.
_SPARKS_WORDS: dict[str, type[StatekitError]] = {
    "CONCURRENT_STREAM_LOG_UPDATE": FencedError,
    "No space left on device": StorageError,
    "Disk quota exceeded": StorageError,
    "Read-only file system": StorageError,
    "Permission denied": StorageError,
}
_WAY_OUT: dict[type[StatekitError], str] = {
    FencedError: "Another run of this job is writing to this checkpoint: stop one of them, then "
    "start the other again; nothing is lost",
    StorageError: "Nothing committed is lost: check that the store has space and may be written, "
    "then start again",
}

_running: weakref.WeakValueDictionary[str, Query] = weakref.WeakValueDictionary()
"""Streams of this process, by checkpoint."""


class Query:
    """A running job.

    Attributes:
        query: Spark's `StreamingQuery`; None for a bounded run, which has ended when `start`
            returns.
        progress: what the last epochs did, oldest first.
    """

    def __init__(self) -> None:
        self.query: StreamingQuery | None = None
        self.progress: deque[Progress] = deque(maxlen=_KEPT_PROGRESS)
        self._failure: BaseException | None = None

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
        return self.query is not None and self.query.isActive

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
        if ended and self.query.exception() is not None:
            raise self._cause(self.query.exception())
        return ended

    def stop(self) -> None:
        """Stop after the running micro-batch was abandoned; what is committed stays."""
        if self.query is not None:
            self.query.stop()

    def _cause(self, error: BaseException | None) -> BaseException:
        failure = self._failure
        if failure is not None:
            return translated(failure)
        assert error is not None
        return translated(error)


def translated(error: BaseException) -> BaseException:
    """An error of a worker as the class it had there; any other error as it is."""
    if isinstance(error, StatekitError):
        return error
    text = str(error)
    found = _STATEKIT_ERROR.findall(text)
    if found:
        name, message = found[-1]
        made = (error_class(name) or StatekitError)(message.strip())
    elif isinstance(error, PySparkException | Py4JJavaError):
        kind = next((kind for sign, kind in _SPARKS_WORDS.items() if sign in text), None)
        if kind is None:
            return error
        made = kind(f"{text.splitlines()[0]}. {_WAY_OUT[kind]}")
    else:
        return error
    made.__cause__ = error
    return made


def start(
    job: Job,
    spark: SparkSession,
    inputs: Mapping[str, DataFrame],
    outputs: Mapping[str, object] | None = None,
    *,
    checkpoint: str | Path,
    parallelism: int | None = None,
    trigger: Mapping[str, Any] | str | None = None,
    query_name: str | None = None,
    allow_dropped_state: bool = False,
    working_directory: str | Path | None = None,
    rocksdb: RocksOptions | None = None,
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
        parallelism: shards per operator; None takes what the checkpoint has, or the number of
            cores Spark runs with. It may differ at every start.
        trigger: as for `DataStreamWriter.trigger`, such as `{"availableNow": True}`; a text is a
            processing time.
        query_name: of the streaming query.
        allow_dropped_state: go on although the code no longer declares a stored state.
        working_directory: for working copies, on each worker's local disk.
        rocksdb: what RocksDB may spend in each worker.

    Raises:
        StateTypeError: inputs or outputs are not the job's.
        ProcessError: a column is missing, or cannot be read as its field.
        RestoreError: the checkpoint cannot be continued.
        StatekitError: for other reasons not to start, each with its class.
    """
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
    if parallelism is None:
        parallelism = _default_parallelism(spark, job, repository)
    coordinator = Coordinator(
        job, repository, parallelism=parallelism, allow_dropped_state=allow_dropped_state
    )
    directory = str(working_directory or default_working_directory())
    runner = EpochRunner(coordinator, sinks, directory, rocksdb or RocksOptions())
    started = _Started(Query(), coordinator, runner)
    if streaming == {False}:
        started.bounded(inputs)
    else:
        _check_sparks_part(coordinator)
        started.stream(inputs, query_name, trigger)
    return started.query


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
    paths = [sink.path.rstrip("/") for sink in sinks.values() if isinstance(sink, Parquet)]
    if len(set(paths)) != len(paths):
        raise StateTypeError(
            f"outputs= has two Parquet sinks in one directory ({sorted(paths)}): give each its own"
        )


def default_working_directory() -> str:
    """Where working copies live if nobody says otherwise: the machine's temporary directory."""
    return os.path.join(tempfile.gettempdir(), f"statekit-{os.getuid()}")


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

    def __init__(self, query: Query, coordinator: Coordinator, runner: EpochRunner) -> None:
        self.query = query
        self._coordinator = coordinator
        self._runner = runner

    def bounded(self, inputs: Mapping[str, DataFrame]) -> None:
        try:
            self._epoch(inputs, None)
        except (PySparkException, Py4JJavaError) as error:
            raise translated(error) from error

    def stream(
        self,
        inputs: Mapping[str, DataFrame],
        name: str | None,
        trigger: Mapping[str, Any] | str | None,
    ) -> None:
        writer = _merged(inputs).writeStream.foreachBatch(self._on_batch)
        writer = writer.option("checkpointLocation", _sparks_part(self._coordinator.repository))
        if name is not None:
            writer = writer.queryName(name)
        if trigger is not None:
            given = {"processingTime": trigger} if isinstance(trigger, str) else dict(trigger)
            writer = writer.trigger(**given)
        try:
            self.query.query = writer.start()
        except (PySparkException, Py4JJavaError) as error:
            raise translated(error) from error
        _running[self._coordinator.repository.url] = self.query

    def _on_batch(self, df: DataFrame, batch: int) -> None:
        try:
            last = self._coordinator.last
            done = -1 if last is None or last.batch is None else last.batch
            if batch <= done:
                return  # committed before a crash, and Spark had not taken note yet
            if batch != done + 1:
                self._coordinator.check_owner()
                raise RestoreError(
                    f"Spark is at micro-batch {batch}, the state at {done}: Spark's part of "
                    f"{self._coordinator.repository.url} is ahead. Restore both parts from the "
                    "same backup, or start with a new checkpoint"
                )
            self._epoch(_split(df, self._coordinator.job), batch)
        except BaseException as error:
            self.query._failure = error
            raise

    def _epoch(self, inputs: Mapping[str, DataFrame], batch: int | None) -> None:
        begun = stopwatch_s()
        self._runner.run(inputs, batch=batch)
        manifest = self._coordinator.last
        assert manifest is not None
        seconds = stopwatch_s() - begun
        self.query.progress.append(_progress(manifest, self._coordinator.job, batch, seconds))


def _progress(manifest: EpochManifest, job: Job, batch: int | None, seconds: float) -> Progress:
    first = {operator.name for operator in job.operators if job.is_source(operator.input)}
    rows: dict[str, int] = {}
    sizes: dict[str, int] = {}
    changed = 0
    for name, operator in manifest.operators.items():
        for shard in operator.shards:
            changed += sum(file.size for file in shard.files)
            for state, count in shard.rows.items():
                rows[f"{name}.{state}"] = rows.get(f"{name}.{state}", 0) + count
            for state, count in shard.bytes.items():
                sizes[f"{name}.{state}"] = sizes.get(f"{name}.{state}", 0) + count
    return Progress(
        epoch=manifest.epoch,
        batch=batch,
        records_in=sum(op.records_in for n, op in manifest.operators.items() if n in first),
        records_out=sum(op.records_out for op in manifest.operators.values()),
        seconds=seconds,
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


# --------------------------------------------------------------------- Spark's part of a checkpoint


def _sparks_part(repository: Repository) -> str:
    """Where Spark keeps its offsets, in the words of Hadoop's file systems."""
    if repository.root is not None:
        return f"file:{repository.root}/spark"  # Hadoop does not decode %20 and the like
    url = repository.url
    return f"{'s3a' + url[2:] if url.startswith('s3://') else url}/spark"


def _check_sparks_part(coordinator: Coordinator) -> None:
    """Hold Spark's offsets against the state before anything is read again or left out.

    Spark notes the offsets of a batch before it runs and its end afterwards. So it may be one
    batch ahead of the state (killed before the manifest), or know one end less (killed after it).
    """
    repository, last = coordinator.repository, coordinator.last
    offsets = max(_numbers(repository, "spark/offsets"), default=-1)
    commits = max(_numbers(repository, "spark/commits"), default=-1)
    done = -1 if last is None or last.batch is None else last.batch
    where = f"{repository.url}/spark"
    way_out = "restore both parts from the same backup, or start with a new checkpoint"
    if done >= 0 and offsets < 0:
        raise RestoreError(
            f"{where} is missing or empty, but the state holds micro-batches up to {done}. Going "
            f"on would read the input from its start and count it twice: {way_out}"
        )
    if offsets < done:
        raise RestoreError(
            f"{where} knows micro-batches up to {offsets}, the state holds {done}. Going on would "
            f"count input twice: {way_out}"
        )
    if offsets > done + 1 or commits > done:
        raise RestoreError(
            f"{where} has gone on to micro-batch {max(offsets, commits)}, the state holds {done}. "
            f"Going on would leave input out: {way_out}"
        )


def _numbers(repository: Repository, folder: str) -> list[int]:
    names = (path.rsplit("/", 1)[-1] for path in repository.names(folder))
    return [int(name) for name in names if name.isdigit()]
