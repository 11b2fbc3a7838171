"""Start a job on Spark: check everything before anything runs."""

from __future__ import annotations

import datetime as dt
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from statekit.backend.rocksdb_options import RocksOptions, check_options
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.retention import DEFAULT_RETENTION, Retention
from statekit.errors import (
    FencedError,
    ProcessError,
    StateTypeError,
)
from statekit.job.job import Job
from statekit.keygroup import DEFAULT_GROUPS
from statekit.maintenance.savepoint.restore import prepare_from_savepoint
from statekit.runtime.coordinator import Coordinator
from statekit.sinks import Callback, Sink
from statekit.spark.epoch import EpochRunner, runs_here
from statekit.spark.offsets import check_spark_reaches, check_sparks_part
from statekit.spark.plan import check_input
from statekit.spark.query import QUERIES, Query, Run
from statekit.spark.union_plan import FirstInput
from statekit.spark.worker import output_schema
from statekit.working_copy.base_options import BaseOptions
from statekit.working_copy.copies import default_working_directory


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
    first_inputs: Mapping[str, FirstInput] | None = None,
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
        heartbeat: make an epoch at least this often even if no more input comes, so that
            processing-time timers fire; a timedelta or a text such as "1 second".
        drain: let event time come to its end behind the last record, so that all event-time timers
            fire; no later run can then go on. None: for static frames. A stream can only drain with
            the trigger availableNow, and does not if it is stopped before its end.
        retention: which epochs of the checkpoint are kept; None for all of them.
        clock: the wall clock, in microseconds since 1970 UTC; None is the machine's.
        first_inputs: per operator, rows that it takes in the first epoch before all others: initial
            state of a processor written for Spark.

    Raises:
        StateTypeError: inputs or outputs are not the job's.
        ProcessError: a column is missing, or cannot be read as its field.
        RestoreError: the checkpoint cannot be continued.
        StatekitError: for other reasons not to start, each with its class.
    """
    check_classic(spark, inputs)
    check_options(rocksdb, keep_copies)
    sinks = {name: _sink(name, given) for name, given in (outputs or {}).items()}
    job.check_names(inputs, sinks)
    _check_frames(inputs)
    _check_outputs(job, sinks)
    for source in job.sources:
        check_input(inputs[source.name], source, job)
    streaming = {df.isStreaming for df in inputs.values()}
    if len(streaming) != 1:
        raise StateTypeError("inputs are either all streaming or all static: do not mix them")
    use_this_python(spark)
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
        parallelism = default_parallelism(spark, job, repository)
    coordinator = Coordinator.open(
        job,
        repository,
        parallelism=parallelism,
        allow_dropped_state=allow_dropped_state,
        from_epoch=from_epoch,
        retention=retention,
        clock=clock,
    )
    directory = directory_for_copies(spark, working_directory)
    runner = EpochRunner(
        coordinator,
        sinks,
        directory,
        rocksdb or RocksOptions(),
        bases or BaseOptions(),
        first_inputs or {},
        spark.sparkContext,
    )
    run = Run(Query(repository), coordinator, runner, keep_copies)
    if streaming == {False}:
        if heartbeat is not None:
            raise StateTypeError("heartbeat= is for streams that go on: these frames are static")
        run.bounded(inputs, drain=drain is not False)
        return run.query
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
    run.stream(inputs, query_name, given, heartbeat=heartbeat, drain=bool(drain))
    return run.query


def _sink(name: str, output: object) -> Sink:
    if isinstance(output, Sink):
        return output
    if callable(output):
        return Callback(output)
    raise StateTypeError(
        f"outputs[{name!r}] is {output!r}: give sinks.parquet(path), sinks.writer(format), or a "
        "function (df, epoch)"
    )


def check_classic(spark: object, inputs: Mapping[str, object]) -> None:
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
    directories = [sink.directory for sink in sinks.values() if sink.directory is not None]
    if len(set(directories)) != len(directories):
        raise StateTypeError(
            f"outputs= has two Parquet sinks in one directory ({sorted(directories)}): give each "
            "its own"
        )


def directory_for_copies(spark: SparkSession, given: str | Path | None) -> str | None:
    """Where working copies live; None leaves it to each executor."""
    if given is not None:
        return str(given)
    if runs_here(spark.sparkContext):
        return default_working_directory()
    return None


def _check_not_running(repository: Repository) -> None:
    """Of two streams on one checkpoint, Spark would stop the older without a word."""
    found = QUERIES.get(repository.url)
    if found is not None and found.is_active:
        raise FencedError(
            f"{repository.url} is being written by a query that this process runs: stop() it "
            "first, then start again; nothing is lost"
        )


def default_parallelism(spark: SparkSession, job: Job, repository: Repository) -> int | None:
    """What the checkpoint has, or a shard per core as far as key groups go."""
    if repository.latest_epoch() is not None:
        return None
    return min(spark.sparkContext.defaultParallelism, job.key_groups or DEFAULT_GROUPS)


def use_this_python(spark: SparkSession) -> None:
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
