"""The start of a job on Spark. Everything is checked before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Unpack

from pyspark.sql import DataFrame, SparkSession

from statekit.backend.rocksdb_options import check_options
from statekit.checkpoint.repository import Repository
from statekit.errors import FencedError, ProcessError, StateTypeError
from statekit.job.mirror_options import mirrors_of
from statekit.job.options import StartArguments, StartOptions
from statekit.job.plan import Plan
from statekit.keygroup import DEFAULT_GROUPS
from statekit.maintenance.savepoint.restore import prepare_from_savepoint
from statekit.metrics.option import open_endpoint
from statekit.mirrors.beside_job import MirrorsBesideJob
from statekit.runtime.coordinator import Coordinator
from statekit.runtime.sink_epochs import check_directories
from statekit.shown import shown
from statekit.sinks.protocol.frame_sinks import Callback, FrameSink, Target, guarantees_of
from statekit.sinks.protocol.sink import Sink
from statekit.sources.source import Source
from statekit.sources.spark import SparkSource
from statekit.spark.epoch import EpochRunner
from statekit.spark.frames.plan import FirstInput, check_input
from statekit.spark.offsets import check_spark_reaches, check_sparks_part
from statekit.spark.opened_sources import with_frames
from statekit.spark.query import RUNNING, Query
from statekit.spark.restarting_query import RestartingQuery
from statekit.spark.session import cores_of, is_remote, use_this_python, warm_workers
from statekit.spark.source_query import FrameInput, SourceQuery, own_session
from statekit.spark.worker.pickling import check_sendable
from statekit.spark.worker.shards import output_schema


def start(
    job: Plan,
    spark: SparkSession,
    inputs: Mapping[str, DataFrame],
    outputs: Mapping[str, object] | None = None,
    *,
    checkpoint: str | Path,
    **options: Unpack[StartArguments],
) -> Query:
    """Run a job on Spark, with the options of `Job.start`."""
    given = StartOptions.of_call(start, options)
    return start_once(job, spark, inputs, outputs, checkpoint, given)


def start_query(
    job: Plan,
    spark: SparkSession,
    inputs: Mapping[str, DataFrame],
    outputs: Mapping[str, object] | None,
    checkpoint: str | Path,
    options: StartOptions,
) -> Query | RestartingQuery:
    """Run a job on Spark, and start it again after failures if `options.restart` says so."""
    if options.restart is None:
        return start_once(job, spark, inputs, outputs, checkpoint, options)
    return RestartingQuery(
        lambda given: start_once(job, spark, inputs, outputs, checkpoint, given), options
    )


def start_once(
    job: Plan,
    spark: SparkSession,
    inputs: Mapping[str, DataFrame],
    outputs: Mapping[str, object] | None,
    checkpoint: str | Path,
    options: StartOptions,
    first_inputs: Mapping[str, FirstInput] | None = None,
) -> Query:
    """Check everything, then run a job on Spark.

    Parameters:
        first_inputs: per operator, rows that it processes in the first epoch before all others:
            initial state of a processor written for Spark.
    """
    given = job.origins(inputs)
    if is_remote(spark):
        _check_remote(given)
    else:
        check_classic(spark, given)
    check_options(options.rocksdb, options.keep_copies)
    sinks = {name: _target(name, output) for name, output in job.targets(outputs or {}).items()}
    job.check_names(given, sinks)
    origins = with_frames(job, spark, given)
    sources = {name: of for name, of in origins.items() if isinstance(of, Source)}
    frames: dict[str, DataFrame] = _checked_frames(origins, sources)
    _check_outputs(job, sinks)
    mirrored = mirrors_of(job, options.mirror)
    for source in job.sources:
        if source.name in frames:
            check_input(frames[source.name], source, job)
    is_streaming = _is_streaming(frames, sources)
    _check_end(options, is_streaming=is_streaming, reads_sources=bool(sources))
    if options.restart is not None and not is_streaming and not sources:
        raise StateTypeError(
            "restart= continues where a stream or a source was read, and static frames alone are "
            "read from the start again: leave out restart=, or give sources such as "
            "sources.parquet(path)"
        )
    check_sendable(job)
    if not is_remote(spark):
        use_this_python(spark)
        warm_workers(spark)
    with ExitStack() as opened:
        endpoint = open_endpoint(options.metrics)
        if endpoint is not None:
            opened.callback(endpoint.close)
        repository = Repository(checkpoint)
        is_of_spark = is_streaming and not sources
        coordinator = _opened(job, spark, repository, options, is_streaming=is_of_spark)
        if endpoint is not None:
            endpoint.serve(job.name, coordinator.metrics)
        runner = EpochRunner(coordinator, sinks, options, first_inputs or {}, spark)
        opened.callback(runner.close_sinks)
        coordinator.guarantees = guarantees_of(sinks)
        runner.begin_sinks()
        mirrors = opened.enter_context(MirrorsBesideJob(mirrored, repository))
        coordinator.metrics.mirrors = mirrors.facts
        query: Query
        if sources:
            query = reading = SourceQuery(coordinator, runner, options, endpoint, mirrors)
            reading.start_loop(spark if frames else own_session(spark), sources, frames)
            opened.pop_all()  # the query closes all of it when the loop ends
            return query
        _check_read_by_spark(coordinator, frames)
        if is_streaming:
            check_sparks_part(coordinator)
        query = Query(coordinator, runner, options, endpoint, mirrors)
        query.spark_sources = {
            name: of for name, of in given.items() if isinstance(of, SparkSource)
        }
        if is_streaming:
            streams = {name: df for name, df in frames.items() if df.isStreaming}
            static = {name: df for name, df in frames.items() if not df.isStreaming}
            query.start_stream(streams, static)
            opened.pop_all()  # the query closes all of it when the stream ends
        else:
            query.run_bounded(frames)
    return query


def _is_streaming(frames: Mapping[str, DataFrame], sources: Mapping[str, Source]) -> bool:
    """Return whether an input has records that are not there yet.

    Raises:
        StateTypeError: it is a streaming frame, and another input is a source.
    """
    kinds = {df.isStreaming for df in frames.values()}
    if sources and True in kinds:
        streaming = next(name for name, df in frames.items() if df.isStreaming)
        raise StateTypeError(
            f"input {streaming!r} is a streaming frame, and {min(sources)!r} reads a source of "
            "statekit: Spark decides how far it reads the first, and statekit the second. Let both "
            "be sources of statekit, or both be frames or sources.spark(…)"
        )
    return True in kinds or not all(source.is_bounded for source in sources.values())


def _check_read_by_spark(coordinator: Coordinator, frames: Mapping[str, DataFrame]) -> None:
    """Check that no input with a frame was read from a source before, which it would repeat.

    Raises:
        RestoreError: one was.
    """
    offsets = {} if coordinator.last is None else coordinator.last.offsets
    for name in frames:
        FrameInput(name).start(offsets.get(name))


def _opened(
    job: Plan,
    spark: SparkSession,
    repository: Repository,
    options: StartOptions,
    *,
    is_streaming: bool,
) -> Coordinator:
    """Return the coordinator of a checkpoint. The checkpoint is first imported from a savepoint if
    the options say so.
    """
    _check_not_running(repository)
    if is_streaming:
        check_spark_reaches(spark, repository)
    prepare_from_savepoint(job, repository, options)
    if options.parallelism is None:
        options = replace(options, parallelism=default_parallelism(spark, job, repository))
    return Coordinator.open(job, repository, options)


def _check_end(options: StartOptions, *, is_streaming: bool, reads_sources: bool) -> None:
    """Check the options that depend on the inputs and their end."""
    if options.epoch_size is not None and not reads_sources:
        raise StateTypeError(
            "epoch_size= is for sources: options of Spark limit the micro-batches of frames, such "
            "as maxFilesPerTrigger"
        )
    unknown = options.spark_trigger.keys() - {"processingTime", "availableNow", "once"}
    if reads_sources and unknown:
        raise StateTypeError(
            f"trigger={shown(options.trigger)}: sources are read epoch by epoch, and have no "
            f"trigger {shown(min(unknown))}: give {{'processingTime': '1 second'}} or "
            "{'availableNow': True}"
        )
    if options.heartbeat is not None and not is_streaming:
        raise StateTypeError("heartbeat= needs a stream that continues: these frames are static")
    if options.drain and is_streaming and not options.spark_trigger.get("availableNow"):
        raise StateTypeError(
            "drain=True is for streams that end with their input: use "
            'trigger={"availableNow": True}'
        )
    if options.heartbeat is not None and options.ends_with_input:
        raise StateTypeError("heartbeat= needs a stream that continues: this trigger lets it end")


def _target(name: str, output: object) -> Target:
    if isinstance(output, Sink | FrameSink):
        return output
    if callable(output):
        return Callback(output)
    raise StateTypeError(
        f"outputs[{name!r}] is {shown(output)}: give sinks.parquet(path), sinks.writer(format), "
        "or a "
        "function (df, epoch)"
    )


def _check_remote(inputs: Mapping[str, object]) -> None:
    """Refuse streams that Spark reads, for a session of Spark Connect: their function would run on
    the server, where neither the job nor its checkpoint is open.
    """
    for name, of in inputs.items():
        if (isinstance(of, SparkSource) and of.streaming) or _is_streaming_frame(of):
            raise StateTypeError(
                f"input {name!r} is a stream that Spark reads, and the session is of Spark "
                "Connect, which runs the function of a stream on the server. Nothing was started: "
                "let "
                "statekit read the input, with a source such as sources.parquet(path) or "
                "sources.kafka(topic, servers); or use a classic session, as with "
                'SparkSession.builder.master("…").getOrCreate() or spark-submit'
            )


def _is_streaming_frame(given: object) -> bool:
    return isinstance(given, DataFrame) and given.isStreaming


def check_classic(spark: object, inputs: Mapping[str, object]) -> None:
    """Refuse frames of Spark Connect, for calls that need the driver of Spark in this process."""
    frames = {f"inputs[{name!r}]": df for name, df in inputs.items()}
    for name, given in {"spark": spark, **frames}.items():
        if is_remote(given):
            raise StateTypeError(
                f"{name} is a {type(given).__name__} of Spark Connect, and this call needs a "
                "classic session, whose driver is this process: make one with "
                'SparkSession.builder.master("local[*]").getOrCreate(), or with the master of your '
                "cluster, and without remote() and SPARK_REMOTE; or let spark-submit run the job"
            )


def _checked_frames(
    origins: Mapping[str, object], sources: Mapping[str, Source]
) -> dict[str, DataFrame]:
    """Return the inputs that are frames."""
    frames = {}
    for name, df in origins.items():
        if name in sources:
            continue
        if not isinstance(df, DataFrame):
            raise StateTypeError(
                f"inputs[{name!r}] is {type(df).__name__}: give a DataFrame or a source, or use "
                "job.run for Python iterables"
            )
        twice = sorted({column for column in df.columns if df.columns.count(column) > 1})
        if twice:
            raise ProcessError(f"input {name!r} has columns of the same name: rename {twice}")
        frames[name] = df
    return frames


def _check_outputs(job: Plan, sinks: Mapping[str, Target]) -> None:
    """Check the outputs before the first epoch: missing schemas, shared directories."""
    for operator in job.operators:
        output_schema(operator.declared.output_type)
    for transform in job.transforms:
        if not transform.function.keeps_records:
            output_schema(transform.function.output_type)
    check_directories(sinks.values())


def _check_not_running(repository: Repository) -> None:
    """Refuse a second stream on a checkpoint. Spark would stop the first one without an error."""
    running = RUNNING.get(repository.url)
    if running is not None and running.is_active:
        raise FencedError(
            f"{repository.url} is being written by a query that this process runs: stop() it "
            "first, then start again; nothing is lost"
        )


def default_parallelism(spark: SparkSession, job: Plan, repository: Repository) -> int | None:
    """Return the parallelism of a new checkpoint: the number of cores, at most the number of key
    groups. None for a checkpoint with epochs, which has a parallelism already.
    """
    if repository.latest_epoch() is not None:
        return None
    return min(cores_of(spark), job.key_groups or DEFAULT_GROUPS)
