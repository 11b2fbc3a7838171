"""Run one epoch of a job on Spark.

The order of effects is: change files (in the workers), sinks, manifest. There are two ways to run
the operators between a job's inputs and its sinks:

- If all operators lead to one sink that reads its frame once, and each stream has one consumer,
  they run in a single action, the sink's own.
- Otherwise (several sinks, or a function of the user that may read the frame any number of times)
  the frames are persisted, and computed completely by an action of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import InitVar, dataclass, replace
from functools import cache, cached_property, partial, reduce
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from statekit.backend.rocksdb_options import RocksOptions
from statekit.checkpoint.manifest import EpochOffsets, Report, ShardPlans
from statekit.clock import now_us
from statekit.errors import IncompleteEpochError, StrayKeyError, UnsortedError
from statekit.job.chaining import Chain, Pass, passes, passes_before
from statekit.job.options import StartOptions
from statekit.job.plan import Operator, Plan
from statekit.runtime.coordinator import Coordinator
from statekit.runtime.sink_epochs import SinkEpochs
from statekit.sinks.protocol.frame_sinks import FrameSink, Target
from statekit.sinks.protocol.sink import Attempt, Receipt, Sink
from statekit.spark.concurrent_actions import Action, compute, run_all
from statekit.spark.failures import is_of_spark, of_ended_worker, translated
from statekit.spark.frames.columns import quoted
from statekit.spark.frames.combined_frames import Combines
from statekit.spark.frames.epoch_streams import EpochStreams, Transforms
from statekit.spark.frames.key_columns import PassOptions
from statekit.spark.frames.narrow_rows import are_narrow, set_no_byte_limit
from statekit.spark.frames.placement import Placement
from statekit.spark.frames.plan import (
    FirstInput,
    OperatorFrames,
    Route,
    Slot,
    UnionFrames,
    late_records,
    outputs_and_errors,
    outputs_of_chain,
    reader_of,
    slots_of,
)
from statekit.spark.frames.shared_reads import (
    MergedInputs,
    StreamColumns,
    shared_rows,
    with_one_read,
)
from statekit.spark.session import context_of, cores_of, runs_here, warn_of_settings
from statekit.spark.worker.commit_records import Reports
from statekit.spark.worker.pickling import Pickled, PickledBases, pickled, pickled_chain
from statekit.spark.worker.rows import UnionReader
from statekit.spark.worker.shards import ShardStep
from statekit.spark.worker.staging import RECEIPTS, StageStep, receipts_of
from statekit.working_copy.base_options import BaseOptions
from statekit.working_copy.copies import DiskCopies, default_working_directory

# A task of Spark takes tens of milliseconds of a core, a shard without records less than one. With
# more tasks than cores, all cores are busy to the end although shards differ. This is faster if the
# epoch before had so many records for each core. A single task needs no shuffle, which takes longer
# than a second core saves with few records.
TASKS_PER_CORE = 3
_MANY_RECORDS = 20_000
_FEW_RECORDS = 10_000
# Spark combines so many records faster than Python does. Of fewer, planning takes longer.
_COMBINED_IN_JVM = 200_000


@dataclass(eq=False, repr=False)
class EpochRunner:
    """Runs epochs of a job over frames.

    Parameters:
        coordinator: of the checkpoint.
        outputs: a sink per name.
        options: of the start.
        first_inputs: per operator, rows that it processes in the first epoch before all others.
        spark: the session. With Spark Connect no driver of Spark is in this process: executors are
            not known, and reports of tasks arrive through the checkpoint.
    """

    _coordinator: Coordinator
    _outputs: Mapping[str, Target]
    options: InitVar[StartOptions]
    _first_inputs: Mapping[str, FirstInput]
    _spark: SparkSession

    def __post_init__(self, options: StartOptions) -> None:
        job, outputs = self._coordinator.job, self._outputs
        self._context = context_of(self._spark)
        self._directory = directory_for_copies(self._context, options.working_directory)
        self._rocksdb = options.rocksdb or RocksOptions()
        self._bases = options.bases or BaseOptions()
        self._sent: dict[Chain, Pickled[Chain]] = {}
        self._pickled_bases: dict[str, PickledBases] = {}
        self._transforms = Transforms(job)
        self._frames: dict[tuple[Pass, Combines], OperatorFrames | UnionFrames] = {}
        self._strayed: set[str] = set()
        self._unsorted: set[str] = set()
        self._plans_again = all(map(_reads_once, outputs.values()))
        # Users' functions may give wide rows of their own to workers.
        self._is_narrow = self._plans_again and not self._first_inputs and are_narrow(job)
        self._passes = self._new_passes()
        self._inputs: Mapping[str, DataFrame] = {}
        self._is_small: Callable[[], bool] = lambda: False
        self._sink_epochs = SinkEpochs(self._coordinator, is_of_spark)
        self._pickled_sinks: dict[str, Pickled[Sink]] = {}
        self._sinks = [sink for sink in outputs.values() if isinstance(sink, Sink)]
        self._closing = ExitStack()
        for sink in self._sinks:
            self._closing.callback(sink.close)
        self._reports: Reports = self.new_reports(Report)
        self._reporter = self._reports.begin()
        self._single_read = _is_single_read(job, outputs)
        self._placement: Placement | None = None
        self._started_us = None if runs_here(self._context) else now_us()
        if self._context is not None and not runs_here(self._context):
            warn_of_settings(self._context)
            self._placement = Placement(
                self._context,
                self._coordinator.parallelism,
                self._directory,
                self._coordinator.job_file.id,
            )
        self._can_try = not any(
            isinstance(sink, FrameSink) and sink.may_duplicate for sink in outputs.values()
        )

    def run(
        self,
        inputs: Mapping[str, DataFrame],
        *,
        what: str,
        batch: int | None = None,
        offsets: EpochOffsets | None = None,
        counted: Callable[[], tuple[dict[str, int], dict[str, int]]] | None = None,
    ) -> None:
        """Compute, write and commit one epoch.

        Parameters:
            what: the kind of epoch, as for `Coordinator.begin`.
            batch: Spark's number of the micro-batch, if it is one.
            offsets: where it ends in each source, if it reads sources.
            counted: returns the numbers of records and of bad records so far, by source, after the
                inputs were read.
        """
        self._inputs = inputs
        read = [frame for frame, _ in _frames_of(inputs)]
        self._is_small = cache(lambda: batch is not None and _is_small(read))
        if batch is not None and self._plans_again:
            # Have Spark plan micro-batches before they run, as for its own stateful queries: to
            # plan again after each shuffle takes some 40 ms. The session is the stream's own.
            # Users' functions keep adaptive planning: they may join the frames.
            read[0].sparkSession.conf.set("spark.sql.adaptive.enabled", "false")
            self._plans_again = False
        if self._is_narrow and (batch is not None or offsets is not None):
            if self._context is not None:
                set_no_byte_limit(read[0].sparkSession)  # the stream's own, or that of the sources
            self._is_narrow = False
        while True:
            self._coordinator.begin(what=what, offsets=offsets)
            self._reporter = self._reports.begin()
            try:
                reports = self._at_once(inputs) if self._single_read else self._persisted(inputs)
            except (PySparkException, Py4JJavaError, IncompleteEpochError) as error:
                if self._adapts_to(translated(error)):
                    continue
                if (ended := of_ended_worker(error, self._coordinator)) is not None:
                    raise ended from error
                raise
            else:
                break
        if self._placement is not None:
            reports = self._placement.noted(reports)
        records, bad_records = (None, None) if counted is None else counted()
        self._coordinator.commit(
            reports, batch=batch, offsets=offsets, read=records, bad_records=bad_records
        )

    def _adapts_to(self, error: BaseException) -> bool:
        """Drop the assumption that made an epoch fail. Return whether the epoch can run again.

        Operators with different keys run without a chain. Rows that are out of order, and too many
        for their worker to sort, are sorted by Spark.
        """
        self._sink_epochs.run_again()
        if isinstance(error, StrayKeyError):
            self._strayed.add(error.operator)
            self._passes = self._new_passes()
            return True
        if isinstance(error, UnsortedError) and self._by_number(error.operator):
            self._unsorted.add(error.operator)
            self._frames.clear()
            return True
        return False

    def new_reports(self, report: Any) -> Reports[Any]:
        """Return a receiver of reports from tasks, which is closed with the sinks.

        Parameters:
            report: the type of the reports.
        """
        through = self._context or self._coordinator.repository
        reports: Reports[Any] = Reports(through, report)
        self._closing.callback(reports.close)
        return reports

    @property
    def is_stopped(self) -> bool:
        """True if Spark's context, which is in this process, was stopped."""
        if self._context is None:
            return False
        java_context = self._context._jsc
        return java_context is None or bool(java_context.sc().isStopped())

    def begin_sinks(self) -> None:
        """Have sinks check their targets, before the first epoch."""
        for name, sink in self._outputs.items():
            if isinstance(sink, Sink):
                self._sink_epochs.begin(name, sink)

    @property
    def closes_sinks(self) -> bool:
        """True if a sink has something to close."""
        return any(type(sink).close is not Sink.close for sink in self._sinks)

    def close_sinks(self) -> None:
        """Close the sinks, at the end of the run. Later calls do nothing."""
        self._closing.close()

    def remove_copies(self, keep: bool | None) -> None:
        """Remove working copies on this host that no later run can use.

        Parameters:
            keep: whether to keep them; None keeps them if the checkpoint can continue.
        """
        if self._directory is not None and not self._coordinator.keeps_copies(keep):
            copies = DiskCopies(self._directory, self._rocksdb)
            copies.forget(self._coordinator.job_file.id)

    def _new_passes(self) -> list[Pass]:
        return passes(self._coordinator.job, self._strayed, self._first_inputs)

    def _frame(self, each: Pass, streams: EpochStreams) -> DataFrame:
        operator, route = each.first, self._route(each)
        first = self._first_inputs.get(operator.name) if self._coordinator.last is None else None
        if first is not None:
            dfs = [first.frame, streams[each.streams[0]]]
            (record_type,) = operator.declared.record_type.members
            slots = [Slot(0, first.records), Slot(1, record_type)]
            initial = UnionFrames(dfs, slots, 2, self._frame_options(each))
            return initial.frame(dfs, self._step(each, first.reader), route)
        job, combines = self._coordinator.job, self._combines(operator, route.tasks)
        is_of_rows = len(each.chains) > 1 or each.chains[0].transforms[0]
        reader = None if is_of_rows else reader_of(operator, job)
        frames = self._frames.get((each, combines))
        if frames is None:
            options, dfs = self._frame_options(each), [streams[name] for name in each.streams]
            if reader is not None:
                frames = UnionFrames(dfs, slots_of(operator, job), len(operator.inputs), options)
            else:
                # Whatever reads a stream takes records of its type.
                (record_type,) = each.chains[0].shuffled.members
                frames = OperatorFrames(dfs[0], options, record_type, combines=combines)
            self._frames[each, combines] = frames
        step = self._step(each, reader, is_combined=combines is not None)
        if isinstance(frames, UnionFrames) and frames.selects:
            rows = self._shared_rows(operator, frames, streams)
            return frames.frame_of_rows(rows, step, route)
        return frames.frame([streams[name] for name in each.streams], step, route)

    def _frame_options(self, each: Pass) -> PassOptions:
        coordinator, by_number = self._coordinator, self._by_number(each.first.name)
        return PassOptions(each, coordinator.parallelism, coordinator.key_groups, by_number)

    def _step(
        self, each: Pass, reader: UnionReader | None, *, is_combined: bool = False
    ) -> ShardStep:
        coordinator = self._coordinator
        return ShardStep(
            chains=tuple(map(self._pickled, each.chains)),
            plans={operator.name: self._plans(operator.name) for operator in each.operators},
            restores=not any(map(coordinator.job.has_given_rows, each.streams)),
            url=coordinator.repository.url,
            directory=self._directory,
            options=self._rocksdb,
            bases=self._bases,
            key_groups=coordinator.key_groups,
            reporter=self._reporter,
            reader=reader,
            is_combined=is_combined,
            started_us=self._started_us,
            recorder=coordinator.recorder,
        )

    def _pickled(self, chained: Chain) -> Pickled[Chain]:
        if chained not in self._sent:
            self._sent[chained] = pickled_chain(chained)
        return self._sent[chained]

    def _plans(self, operator: str) -> ShardPlans:
        """Return the plans of an operator's shards, in the form for a task."""
        plans = self._coordinator.plans(operator)
        bases = PickledBases(plans.bases, self._pickled_bases.get(operator))
        self._pickled_bases[operator] = bases
        return replace(plans, bases=bases)

    def _by_number(self, operator: str) -> bool:
        """Return whether Spark sorts the rows of an operator by a single number."""
        return self._can_try and operator not in self._unsorted

    def _shared_rows(
        self, operator: Operator, frames: UnionFrames, streams: EpochStreams
    ) -> list[DataFrame]:
        """Return the rows of an operator. Each frame is read once for all streams that select
        columns of it.
        """
        job, inputs = self._coordinator.job, self._inputs
        of_streams = zip(operator.streams, frames.selected, strict=True)
        selected = [StreamColumns.of(job, stream, columns) for stream, columns in of_streams]
        rows: list[DataFrame] = []
        if isinstance(inputs, MergedInputs):
            of_sources = [stream for stream in selected if stream.base in inputs.of_whole]
            selected = [stream for stream in selected if stream not in of_sources]
            if of_sources:
                rows.append(shared_rows(inputs.whole, of_sources, is_merged=True))
        for together in with_one_read(selected):
            rows.append(shared_rows(streams[together[0].base], together, is_merged=False))
        return rows

    def _route(self, each: Pass) -> Route:
        if self._placement is None:
            return Route(self._tasks(each.first))
        wanted = self._cores * TASKS_PER_CORE
        wanted = min(self._coordinator.parallelism, wanted)
        session = next(iter(self._inputs.values())).sparkSession
        tasks = self._placement.tasks(each.first.name, wanted)
        return Route(tasks, self._placement.frame(session, each, self._coordinator.last))

    def _tasks(self, operator: Operator) -> int | None:
        """Return the number of tasks for the shards of an operator; None for one task without a
        shuffle.
        """
        cores = self._cores
        count = self._records_before(operator)
        if count is None or count >= cores * _MANY_RECORDS:
            return min(self._coordinator.parallelism, cores * TASKS_PER_CORE)
        if count < _FEW_RECORDS and self._is_small():
            return None
        return min(self._coordinator.parallelism, cores)

    @property
    def _cores(self) -> int:
        """The present number of cores: executors come and go."""
        if self._context is None:
            return self._remote_cores
        return self._context.defaultParallelism

    @cached_property
    def _remote_cores(self) -> int:
        return cores_of(self._spark)

    def _records_before(self, operator: Operator) -> int | None:
        """Return the number of records of an operator in the last epoch; None if the operator is
        new.
        """
        last = self._coordinator.last
        before = None if last is None else last.operators.get(operator.name)
        return None if before is None else sum(before.records_by_input.values())

    def _combines(self, operator: Operator, tasks: int | None) -> Combines:
        """Return the place where records are combined before the shuffle; None if shards combine
        them.

        Without a shuffle this is slower, except if the key of a record is known only after the
        record was created.
        """
        combiner = operator.declared.traits.combiner
        if combiner is None or not combiner.reduces:
            return None
        if tasks is None and not combiner.makes_records():
            return None
        if self._context is None:
            return "python"  # what Spark has combined is in a plan of its driver
        count = self._records_before(operator)
        return "jvm" if count is None or count >= _COMBINED_IN_JVM else "python"

    def _write(self, df: DataFrame, name: str) -> None:
        self._coordinator.check_owner()
        sink = self._outputs[name]
        if isinstance(sink, Sink):
            self._sink_epochs.write(name, sink, partial(self._staged, df, name, sink))
            return
        with self._sink_epochs.attempt(name) as attempt:
            sink.write(df, attempt)

    def _staged(self, df: DataFrame, name: str, sink: Sink, attempt: Attempt) -> list[Receipt]:
        """Write the parts of a frame to a sink in the workers."""
        if name not in self._pickled_sinks:
            self._pickled_sinks[name] = pickled(sink, f"sink {name!r}")
        sent = self._pickled_sinks[name]
        is_only = attempt.is_first and sink.wants_one_part(attempt)
        step = StageStep(sent, attempt.outputs, attempt.epoch, attempt.writer, is_only)
        if is_only:
            df = df.repartition(1)
        rows = df.mapInArrow(step, RECEIPTS).collect()
        self._coordinator.check_failed(self._reports.of(self._reporter))
        return receipts_of((row.part, row.receipt) for row in rows)

    def _late(self, chained: Chain, streams: EpochStreams) -> DataFrame:
        """Return the late records of all inputs of the first operator of a chain, with the columns
        of its record types.
        """
        operator, job = chained.first, self._coordinator.job
        watermark_us = operator.declared.late_us(self._coordinator.plans(operator.name).common)
        late = []
        for name in operator.inputs:
            records = job.record_of(name)
            assert records is not None, "streams without records feed nothing"
            late.append(
                late_records(
                    streams[name],
                    records,
                    operator,
                    self._pickled(chained),
                    watermark_us,
                    restores=not job.has_given_rows(name),
                )
            )
        everything = reduce(partial(DataFrame.unionByName, allowMissingColumns=True), late)
        members = operator.declared.record_type.members
        if len(members) == 1:
            return everything
        return everything.select(*(quoted(member.name) for member in members))

    def _at_once(self, inputs: Mapping[str, DataFrame]) -> list[Report]:
        """Compute all passes in the action of the only sink."""
        (sink,) = self._coordinator.job.sinks
        with EpochStreams(
            inputs, self._transforms, self._coordinator.epoch, persists=False
        ) as streams:
            for each in self._passes:
                (chain,) = each.chains  # they would read a stream twice
                streams[chain.output] = self._frame(each, streams)
            self._write(streams[sink.stream], sink.name)
        reports = self._reports.of(self._reporter)
        if not reports:
            raise IncompleteEpochError(
                f"sink {sink.name!r} never read the output of operator {sink.stream!r}: nothing of "
                "this epoch is committed. A writer must write every epoch: use "
                'mode="append" or "overwrite"'
            )
        return reports

    def _persisted(self, inputs: Mapping[str, DataFrame]) -> list[Report]:
        """Compute each pass in its own action, then write the sinks.

        Passes that do not need each other run beside each other, and so do sinks.
        """
        job = self._coordinator.job
        with EpochStreams(
            inputs, self._transforms, self._coordinator.epoch, persists=True
        ) as streams:
            for frame in self._shared_inputs(inputs):
                streams.persist(frame)
            run_all(list(self._actions(streams)))
            self._coordinator.check_failed(self._reports.of(self._reporter))
            beside: list[Action] = []
            alone: list[Action] = []
            for sink in job.sinks:
                write = Action(sink.name, partial(self._write, streams[sink.stream], sink.name))
                target = self._outputs[sink.name]
                is_alone = isinstance(target, FrameSink) and not target.is_concurrent
                (alone if is_alone else beside).append(write)
            if beside:
                run_all(beside)
            for write in alone:
                write.run()
            # After the sinks: a persisted frame is computed again if an executor is lost meanwhile.
            return self._reports.of(self._reporter)

    def _shared_inputs(self, inputs: Mapping[str, DataFrame]) -> Iterator[DataFrame]:
        """Yield the frames of inputs that several actions read."""
        job = self._coordinator.job
        reads = [each.streams for each in self._passes]
        reads += [each.inputs for each in job.operators if job.wants_late(each)]
        reads += [(sink.stream,) for sink in job.sinks]
        origins = [{job.origin_of(stream) for stream in streams} for streams in reads]
        for frame, names in _frames_of(inputs):
            if sum(not names.isdisjoint(read) for read in origins) > 1:
                yield frame

    def _actions(self, streams: EpochStreams) -> Iterator[Action]:
        """Yield the action of each pass, and add the outputs of the pass to the streams of the
        epoch.
        """
        job = self._coordinator.job
        for each in self._passes:
            frame = self._frame(each, streams)
            if any(chain.emits_errors or job.reads_of(chain.output) for chain in each.chains):
                frame = streams.persist(frame)
            for number, chained in enumerate(each.chains):
                if job.wants_late(chained.first):
                    streams[chained.first.late] = self._late(chained, streams)
                own = frame if len(each.chains) == 1 else outputs_of_chain(number, frame)
                if chained.emits_errors:
                    own, streams[chained.last.errors] = outputs_and_errors(own)
                streams[chained.output] = own
            after = frozenset(passes_before(job, each, self._passes))
            yield Action(each, partial(compute, frame), after)


def _frames_of(inputs: Mapping[str, DataFrame]) -> list[tuple[DataFrame, set[str]]]:
    """Return the frames to read, each with its input names. Merged inputs share one frame."""
    if isinstance(inputs, MergedInputs):
        others = [(frame, {name}) for name, frame in inputs.others.items()]
        return [(inputs.whole, {*inputs.of_whole}), *others]
    return [(frame, {name}) for name, frame in inputs.items()]


def directory_for_copies(context: SparkContext | None, given: str | Path | None) -> str | None:
    """Return the directory of working copies; None if each executor uses its default."""
    if given is not None:
        return str(given)
    return default_working_directory() if runs_here(context) else None


def _is_small(frames: Sequence[DataFrame]) -> bool:
    """Return whether one task may process a micro-batch.

    Not on a cluster, where the shards would follow that task from host to host. Not with more
    partitions than cores, because the input may have grown.
    """
    context = frames[0].sparkSession.sparkContext
    pieces = sum(df.rdd.getNumPartitions() for df in frames) if runs_here(context) else 0
    return 0 < pieces <= context.defaultParallelism


def _reads_once(target: Target) -> bool:
    """Return whether a sink computes its frame exactly once and completely."""
    return isinstance(target, Sink) or target.reads_once


def _is_single_read(job: Plan, outputs: Mapping[str, Target]) -> bool:
    """Return whether every stream is read once, and the only sink reads its stream once.

    Not if a sink would have written outputs before the failed records of all shards are counted.
    """
    if len(job.sinks) != 1 or not _reads_once(outputs[job.sinks[0].name]):
        return False
    may_end = any(each.declared.errors.max_errors is not None for each in job.operators)
    if may_end and not isinstance(outputs[job.sinks[0].name], Sink):
        return False
    streams = [source.name for source in job.sources] + [op.name for op in job.operators]
    streams += [transform.name for transform in job.transforms]
    read = [stream for operator in job.operators for stream in operator.streams]
    read += [transform.input for transform in job.transforms]
    return sorted([*read, job.sinks[0].stream]) == sorted(streams)
