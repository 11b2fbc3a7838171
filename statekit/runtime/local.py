"""Local runs: run a job in this process over iterables, without Spark.

Each consumer of a stream gets records of its own.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import InitVar, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from statekit.backend.rocksdb_options import check_options
from statekit.calls.event_loops import ThreadLoop, with_event_loop
from statekit.checkpoint.manifest import EpochOffsets, IdleShards, InputOffset, Report, ShardReport
from statekit.checkpoint.repository import Repository
from statekit.clock import stopwatch_s
from statekit.errors import StateTypeError
from statekit.functions.failed_record import FailedRecord
from statekit.job.mirror_options import mirrors_of
from statekit.job.options import Pace, RunOptions
from statekit.job.plan import FAILED_RECORDS, Input, Operator, Plan, applied
from statekit.job.progress import OutputCallback, Run
from statekit.job.restarts import restarted
from statekit.maintenance.savepoint.restore import prepare_from_savepoint
from statekit.metrics.option import open_endpoint
from statekit.mirrors.beside_job import MirrorsBesideJob
from statekit.runtime.coordinator import Coordinator
from statekit.runtime.epoch_loop import EpochLoop
from statekit.runtime.epoch_progress import epoch_progress
from statekit.runtime.guarded_calls import Collect
from statekit.runtime.inputs import (
    BadRecords,
    IterableInput,
    RunInputs,
    SourceInput,
    input_failures,
    local_input,
    ranges,
)
from statekit.runtime.progress_line import ProgressLine
from statekit.runtime.quick_turns import quick_turns
from statekit.runtime.rare_collection import rare_collection_within_epochs
from statekit.runtime.routing import Routing
from statekit.runtime.shard import reporting, run_shard
from statekit.runtime.shard_input import ShardInput
from statekit.runtime.sink_epochs import SinkEpochs, check_directories, output_batches
from statekit.runtime.stop_signals import stopped_by_signals
from statekit.runtime.stream_forms import RecordForm, SourceForm, columns_of
from statekit.shown import shown
from statekit.sinks.protocol.frame_sinks import FrameSink, guarantees_of
from statekit.sinks.protocol.sink import (
    Attempt,
    Earlier,
    Part,
    Receipt,
    Sink,
    sink_failures,
    staged_part,
)
from statekit.sources.decoding.condition_first import ConditionFirst
from statekit.sources.decoding.decoder import BadRecord, ColumnDecoder, Decoder
from statekit.sources.source import Source
from statekit.watermark import is_late
from statekit.working_copy.copies import DiskCopies, MemoryCopies, WorkingCopies
from statekit.working_copy.uploader import uploader


class RecordStreams:
    """The records of all streams in one epoch.

    Parameters:
        plan: which operators and sinks consume which stream.
        epoch: for messages.
    """

    def __init__(self, plan: Plan, epoch: int) -> None:
        self._plan, self._epoch = plan, epoch
        self._parts: dict[str, list[tuple[list[Any], RecordForm]]] = {}
        self._columns: dict[str, list[pa.RecordBatch]] = {}

    def put(self, stream: str, records: list[Any], form: RecordForm | None) -> None:
        """Add the stored records of a source or operator.

        Parameters:
            form: of the records; None for an operator that emits nothing.
        """
        self._parts[stream] = [] if form is None else [(records, form)]

    def put_columns(self, stream: str, batches: list[pa.RecordBatch]) -> None:
        """Add the records of a stream that nothing reads but what takes columns: sinks, or an
        operator that combines them.
        """
        self._columns[stream] = batches

    def put_late(self, operator: Operator, is_late: Callable[[Any], bool]) -> None:
        """Add the late records of an operator's inputs."""
        parts = []
        for stream in operator.inputs:
            for records, form in self._parts_of(stream):
                late = [record for record in records if is_late(record)]
                parts.append((form.copies(late), form))
        self._parts[operator.late] = parts

    def batches(self, stream: str) -> Iterator[pa.RecordBatch]:
        """Yield the records of a stream as columns.

        Raises:
            StateTypeError: they have no schema.
        """
        if stream in self._columns:
            yield from self._columns[stream]
            return
        for records, form in self._parts_of(stream):
            output_type = form.output_type if isinstance(form, SourceForm) else form
            yield from output_batches(output_type, records)

    def is_empty(self, stream: str) -> bool:
        """Return whether a stream has no records."""
        return not any(records for records, _ in self._parts_of(stream))

    def given(self, stream: str) -> list[Any] | pa.Table:
        """Return the records of a stream for an operator, which combines those that are a table."""
        if columns := self._columns.get(stream):
            return pa.Table.from_batches(columns)
        return [] if stream in self._columns else self.of(stream)

    def of(self, stream: str) -> list[Any]:
        """Return the records of a stream for one consumer: an operator, a shard of a broadcast, or
        a sink.
        """
        return [record for own, _ in self._own(stream) for record in own]

    def _own(self, stream: str) -> list[tuple[list[Any], RecordForm]]:
        """Return the records of a stream for one consumer. If there are other consumers, return
        copies.
        """
        parts = self._parts_of(stream)
        if not self._is_shared(stream):
            return parts
        return [(form.copies(records), form) for records, form in parts]

    def _parts_of(self, stream: str) -> list[tuple[list[Any], RecordForm]]:
        """Return the records of a stream. A transform runs when its outputs are first read."""
        if stream not in self._parts and (transform := self._plan.transform(stream)) is not None:
            function, given = transform.function, self._own(transform.input)
            if function.keeps_records:
                kept = [(applied([transform], own, self._epoch), form) for own, form in given]
                self._parts[stream] = kept
            else:
                records = [record for own, _ in given for record in own]
                outputs = applied([transform], records, self._epoch)
                self._parts[stream] = [(outputs, function.output_type)]
        return self._parts[stream]

    def _is_shared(self, stream: str) -> bool:
        uses = len(self._plan.sinks_of(stream)) + len(self._plan.transforms_of(stream))
        for operator in self._plan.operators:
            if stream in operator.broadcasts:
                return True  # to any number of shards
            uses += operator.inputs.count(stream)
            if stream in operator.inputs and self._plan.wants_late(operator):
                uses += 1
        return uses > 1


@dataclass(eq=False, repr=False)
class LocalRunner:
    """Runs epochs of a job in this process.

    Parameters:
        job: the job to run.
        repository: its checkpoint.
        copies: working copies of the shards.
        options: of the run.

    Attributes:
        epoch_seconds: from the start of the last epoch to its commit.
    """

    job: Plan
    repository: InitVar[Repository]
    copies: WorkingCopies
    options: RunOptions = field(default_factory=RunOptions)
    epoch_seconds: float = 0.0

    def __post_init__(self, repository: Repository) -> None:
        self._sources = {of.name: SourceForm(of.record_type) for of in self.job.sources}
        self.coordinator = Coordinator.open(self.job, repository, self.options)
        self._sink_epochs = SinkEpochs(self.coordinator)
        self._routings: dict[str, Routing] = {}

    def begin_sinks(self, outputs: Mapping[str, OutputCallback | Sink]) -> None:
        """Have sinks check their targets, before the first epoch."""
        for name, target in outputs.items():
            if isinstance(target, Sink):
                self._sink_epochs.begin(name, target)

    def epoch(
        self,
        inputs: Mapping[str, Iterable[Any]],
        *,
        outputs: Mapping[str, OutputCallback | Sink] | None = None,
        offsets: EpochOffsets | None = None,
        decoded: Mapping[str, list[Any]] | None = None,
        columns: Mapping[str, list[pa.RecordBatch]] | None = None,
        dropped: Mapping[str, int] | None = None,
        bad_records: dict[str, int] | None = None,
        **instants: Any,
    ) -> dict[str, list[Any]]:
        """Run one epoch over the records of each source, and commit it.

        Sinks are written before the commit. Returns the records of each stream with a sink, except
        those that went to a `Sink` as columns.

        Parameters:
            outputs: a sink or a callback per name.
            offsets: where the epoch ends in each input, committed with the state.
            decoded: records of inputs that were made for this epoch, so that nobody else has them.
            columns: records of inputs that only an operator reads that combines them.
            dropped: how many records of inputs a condition has dropped before.
            bad_records: as for `Coordinator.commit`.
            instants: the clocks, as for `Coordinator.begin`.
        """
        begun_s = stopwatch_s()
        self.coordinator.begin(offsets=offsets, **instants)
        streams = RecordStreams(self.job, self.coordinator.epoch)
        read = Counter(dropped or {})
        for source in self.job.sources:
            form = self._sources[source.name]
            if columns is not None and source.name in columns:
                batches = columns[source.name]
                streams.put_columns(source.name, batches)
                read[source.name] += sum(batch.num_rows for batch in batches)
                continue
            if decoded is not None and source.name in decoded:
                records = decoded[source.name]
            else:
                records = form.taken(inputs.get(source.name, ()))
            streams.put(source.name, records, form)
            read[source.name] += len(records)
        reports: list[Report] = []
        for operator in self.job.operators:
            failed: list[FailedRecord] = []
            collect = failed.append if self.job.wants_errors(operator) else None
            as_columns = self._leads_to_columns(operator.name, outputs or {})
            outputs_of, reports_of = self._operator(operator, streams, collect, as_columns)
            if as_columns:
                streams.put_columns(operator.name, outputs_of)
            else:
                streams.put(operator.name, outputs_of, operator.declared.output_type)
            streams.put(operator.errors, failed, FAILED_RECORDS)
            if self.job.wants_late(operator):
                streams.put_late(operator, self._is_late(operator))
            reports += reports_of
        self.coordinator.check_owner()
        self.coordinator.check_failed(reports)
        emitted = self._write(streams, outputs or {})
        manifest = self.coordinator.commit(
            reports, offsets=offsets, read=read, bad_records=bad_records
        )
        self.epoch_seconds = stopwatch_s() - begun_s
        self.coordinator.metrics.committed(manifest, self.epoch_seconds)
        return emitted

    def _write(
        self, streams: RecordStreams, outputs: Mapping[str, OutputCallback | Sink]
    ) -> dict[str, list[Any]]:
        """Write the outputs of an epoch, after all of them were made. Return those that did not go
        to a `Sink`.
        """
        columns = {name: target for name, target in outputs.items() if isinstance(target, Sink)}
        stream_of = {sink.name: sink.stream for sink in self.job.sinks}
        emitted = {
            name: streams.of(stream) for name, stream in stream_of.items() if name not in columns
        }
        batches = {name: list(streams.batches(stream_of[name])) for name in columns}
        for name, target in outputs.items():
            if isinstance(target, Sink):
                stage = partial(_staged, target, batches[name])
                self._sink_epochs.write(name, target, stage)
            else:
                with sink_failures(f"sink {name!r}", self.coordinator.epoch):
                    target(emitted[name], self.coordinator.epoch)
        return emitted

    def _is_late(self, operator: Operator) -> Callable[[Any], bool]:
        declared, time_of = operator.declared, operator.declared.time_of()
        watermark = declared.late_us(self.coordinator.plans(operator.name).common)
        return lambda record: is_late(time_of(record), watermark)

    def _leads_to_columns(self, stream: str, outputs: Mapping[str, OutputCallback | Sink]) -> bool:
        """Return whether nothing reads a stream of an operator but what takes columns, for which
        records need not be brought into their stored form: sinks, or an operator that combines it.
        """
        if self.job.is_only_combined(stream) and _has_schema(self.job.operator(stream)):
            return True
        sinks = self.job.sinks_of(stream)
        are_all = 0 < len(sinks) == self.job.reads_of(stream)
        return are_all and all(isinstance(outputs.get(sink.name), Sink) for sink in sinks)

    def _routing(self, operator: Operator) -> Routing:
        if operator.name not in self._routings:
            self._routings[operator.name] = Routing(operator, self.coordinator.key_groups)
        return self._routings[operator.name]

    def _operator(
        self, operator: Operator, streams: RecordStreams, collect: Collect | None, as_columns: bool
    ) -> tuple[list[Any], list[Report]]:
        """Run the shards of an operator. Return its outputs, as batches or as stored records, and
        the reports of the shards.
        """
        coordinator = self.coordinator
        declared, output_type = operator.declared, operator.declared.output_type
        plans = coordinator.plans(operator.name)
        incoming = [
            declared.combined(
                streams.given(stream), plans.common, restores=not self.job.has_given_rows(stream)
            )
            for stream in operator.inputs
        ]
        routed = self._routing(operator).routed(incoming, coordinator.parallelism)
        outputs: list[Any] = []
        reports: list[ShardReport | None] = []
        self.copies.tidy(plans)
        is_broadcast = not all(map(streams.is_empty, operator.broadcasts))
        active = set(range(len(plans))) if is_broadcast else routed.keys() | plans.due
        for shard in sorted(active):
            broadcast = enumerate(map(streams.of, operator.broadcasts), len(incoming))
            not_empty = [(number, records) for number, records in broadcast if records]
            batches = [routed[shard]] if shard in routed else []
            plan, shard_input = plans[shard], ShardInput(not_empty, batches)
            shard_input.record(coordinator.recorder, declared, plan, len(plans))
            repository = coordinator.repository
            running = run_shard(declared, plan, shard_input, repository, self.copies, collect)
            with contextlib.closing(reporting(running, reports)) as emitted_lists:
                for emitted in emitted_lists:
                    assert output_type is not None, "the task checks it"
                    if as_columns:
                        outputs += output_batches(output_type, emitted)
                    else:
                        outputs += output_type.stored(emitted)
        idle = IdleShards.of(operator.name, (n for n in range(len(plans)) if n not in active))
        return outputs, [*filter(None, reports), idle]


def _has_schema(operator: Operator) -> bool:
    """Return whether the outputs of an operator have columns."""
    output_type = operator.declared.output_type
    try:
        return output_type is not None and output_type.arrow_schema is not None
    except StateTypeError:
        return False


def _staged(sink: Sink, batches: Iterable[pa.RecordBatch], attempt: Attempt) -> list[Receipt]:
    """Write the outputs of an epoch in this process, as one part."""
    earlier: Earlier = "epoch" if attempt.is_first else "none"
    part = Part(attempt.outputs, attempt.epoch, attempt.writer, 0, earlier)
    receipt = staged_part(sink, part, iter(batches))
    return [] if receipt is None else [receipt]


def run(
    job: Plan,
    inputs: Mapping[str, Iterable[Any] | Source],
    outputs: Mapping[str, OutputCallback | Sink],
    checkpoint: str | Path | Repository | None,
    options: RunOptions,
    pace: Pace,
    backend: Literal["memory", "rocksdb"] | WorkingCopies,
) -> Run:
    """Run a job in this process until its inputs end, or until it is stopped. See `Job.run`."""
    collected = {sink.name: list[Any]() for sink in job.sinks}
    done = Run(collected, sinks=tuple(job.sinks))

    def attempt(again: RunOptions) -> Run:
        return _attempt(job, inputs, outputs, checkpoint, again, pace, backend, done)

    if options.restart is None:
        return attempt(options)
    if checkpoint is None:
        raise StateTypeError("restart= continues from a checkpoint: pass checkpoint=, too")
    _check_are_read_again(inputs)
    with stopped_by_signals(pace.stop) if pace.follow else contextlib.nullcontext():
        return restarted(attempt, options, pace.stop, done)


def _attempt(
    job: Plan,
    inputs: Mapping[str, Iterable[Any] | Source],
    outputs: Mapping[str, OutputCallback | Sink],
    checkpoint: str | Path | Repository | None,
    options: RunOptions,
    pace: Pace,
    backend: Literal["memory", "rocksdb"] | WorkingCopies,
    done: Run,
) -> Run:
    """Run a job until its inputs end, it is stopped, or it fails.

    Parameters:
        done: the result so far, to which its epochs are added.
    """
    if isinstance(backend, str) and backend not in ("memory", "rocksdb"):
        raise StateTypeError(f'backend={shown(backend)}: use "memory" or "rocksdb"')
    check_options(options.rocksdb, options.keep_copies)
    origins = job.origins(inputs)
    job.check_names(origins, {sink.name for sink in job.sinks} | set(outputs))
    read = RunInputs(local_input(name, origin) for name, origin in origins.items())
    outputs = _checked_outputs(job, outputs)
    mirrored = mirrors_of(job, options.mirror)
    if pace.follow:
        _check_follows(job, read, outputs)
    with contextlib.ExitStack() as closing:
        endpoint = open_endpoint(options.metrics)
        if endpoint is not None:
            closing.callback(endpoint.close)
        repository = Repository.in_memory() if checkpoint is None else Repository.of(checkpoint)
        prepare_from_savepoint(job, repository, options)
        copies = _opened_copies(backend, options, closing)
        runner = LocalRunner(job, repository, copies, options)
        coordinator = runner.coordinator
        closing.enter_context(coordinator)
        closing.enter_context(with_event_loop(ThreadLoop()))
        for target in outputs.values():
            if isinstance(target, Sink):
                closing.callback(target.close)
        coordinator.guarantees = guarantees_of(outputs)
        runner.begin_sinks(outputs)
        mirrors = closing.enter_context(MirrorsBesideJob(mirrored, repository))
        coordinator.metrics.mirrors = mirrors.facts
        if endpoint is not None:
            endpoint.serve(job.name, coordinator.metrics)
        if outputs and checkpoint is not None:
            coordinator.notes_beginnings = True  # until the commit, they may be published
        for name in outputs:
            done.outputs.pop(name, None)
        closing.callback(read.close)
        read.open(coordinator.last, coordinator.epoch, reads_here=True)
        reader = LocalReader(job, read, runner, outputs, done)
        if pace.follow:
            coordinator.write_notes_beside()
            closing.enter_context(stopped_by_signals(pace.stop))
            closing.enter_context(quick_turns())
            if options.on_epoch is None and sys.stderr.isatty():
                reader.on_epoch = line = ProgressLine(read.lag_limits())
                closing.callback(line.close)
        with rare_collection_within_epochs():
            EpochLoop(coordinator, read, reader.run_epoch, pace).run()
        if not coordinator.keeps_copies(options.keep_copies):
            copies.forget(coordinator.job_file.id)
    done.mirrors = mirrors.progress
    done.last_epoch = None if coordinator.last is None else coordinator.last.epoch
    return done


@dataclass(eq=False, repr=False)
class LocalReader:
    """Reads the inputs of epochs in this process, and runs the epochs.

    Parameters:
        job: the job.
        inputs: of the run.
        runner: of the epochs.
        outputs: a target per sink.
        done: the result of the run so far.
    """

    job: Plan
    inputs: RunInputs
    runner: LocalRunner
    outputs: Mapping[str, OutputCallback | Sink]
    done: Run

    def __post_init__(self) -> None:
        self.on_epoch = self.runner.options.on_epoch
        self._bad = BadRecords(self.job, self.runner.coordinator.last)
        self._decoders = {
            source.name: self._decoder(source, found.source)
            for source in self.job.sources
            if isinstance(found := self.inputs.inputs.get(source.name), SourceInput)
        }

    def _decoder(self, declared: Input, source: Source) -> Decoder:
        """Return the decoder of a source. If all that reads it is a condition, rows are dropped
        before records are made of them.
        """
        decode = source.decoder(declared.record_type, declared.name)
        condition = self.job.condition_of(declared.name)
        if condition is None or not isinstance(decode, ColumnDecoder):
            return decode
        return ConditionFirst(decode, condition)

    def run_epoch(self, what: str, ends: EpochOffsets | None) -> None:
        """Run an epoch up to these offsets."""
        given: dict[str, list[Any]] = {}
        decoded: dict[str, list[Any]] = {}
        columns: dict[str, list[pa.RecordBatch]] = {}
        dropped = Counter[str]()
        for name, end in (ends or {}).items():
            found, start = self.inputs.inputs[name], self.inputs.offsets[name]
            with input_failures(name, self.runner.coordinator.epoch):
                if isinstance(found, SourceInput):
                    self._read(found, start, end, decoded, columns, dropped)
                elif isinstance(found, IterableInput):
                    given[name] = found.read(start, end)
        offsets = None if ends is None else self.inputs.committed(ends)
        emitted = self.runner.epoch(
            given,
            outputs=self.outputs,
            offsets=offsets,
            decoded=decoded,
            columns=columns,
            dropped=dropped,
            bad_records=self._bad.so_far,
            what=what,
        )
        for name, collected in self.done.outputs.items():
            collected += emitted[name]
        self.done.epochs += 1
        manifest = self.runner.coordinator.last
        assert manifest is not None, "the epoch is committed"
        self.done.last_epoch = manifest.epoch
        if self.on_epoch is not None:
            seconds = self.runner.epoch_seconds
            self.on_epoch(epoch_progress(self.runner.coordinator, manifest, seconds))

    def _read(
        self,
        found: SourceInput,
        start: InputOffset,
        end: InputOffset,
        into: dict[str, list[Any]],
        columns: dict[str, list[pa.RecordBatch]],
        dropped: Counter[str],
    ) -> None:
        """Read a source, and add its records and bad records by the names of their inputs.

        Parameters:
            columns: gets the records, if an operator combines them and they certainly fit.
            dropped: counts the records that a condition dropped.
        """
        name, decode = found.name, self._decoders[found.name]
        read: Iterator[tuple[str, pa.RecordBatch]] = (
            (partition, batch)
            for partition, first, last in ranges(start, end)
            for batch in found.source.read(partition, first, last)
            if batch.num_rows
        )
        if isinstance(decode, ColumnDecoder) and self.job.is_only_combined(name):
            read, kept = itertools.tee(read)
            batches = [batch for _, batch in kept]
            if batches and decode.certainly_fit(batches):
                columns[name] = batches
                return
        records: list[Any] = []
        bad: list[BadRecord] = []
        for partition, batch in read:
            decoded = decode(partition, batch)
            self._bad.check(name, decoded, self.runner.coordinator.epoch)
            records += decoded.records
            bad += decoded.bad
            dropped[name] += decoded.dropped
        into[name] = records
        if (errors := self.job.errors_of(name)) is not None:
            into[errors] = bad


def _check_are_read_again(inputs: Mapping[str, Iterable[Any] | Source]) -> None:
    """Check that inputs can be read again, by a run that is restarted.

    Raises:
        StateTypeError: one is an iterator, which gives each record once.
    """
    for name, given in inputs.items():
        if not isinstance(given, Source) and iter(given) is given:
            raise StateTypeError(
                f"restart= reads inputs again, and that of source {name!r} is an iterator, which "
                "gives each record once: give a list, or a source"
            )


def _check_follows(
    job: Plan, inputs: RunInputs, outputs: Mapping[str, OutputCallback | Sink]
) -> None:
    """Check that a run that continues has a stream to read, and nothing that grows without end.

    Raises:
        StateTypeError: it has not.
    """
    if not inputs.has_streams:
        raise StateTypeError(
            f"follow=True, and no input of job {job.name!r} is a stream: give one a source such as "
            "sources.json_lines(directory)"
        )
    if missing := [sink.name for sink in job.sinks if sink.name not in outputs]:
        raise StateTypeError(
            f"follow=True, and sink {missing[0]!r} has no target, so that its records would be "
            "kept in memory without end: give it one in outputs= or in the job"
        )


def _checked_outputs(job: Plan, outputs: Mapping[str, object]) -> dict[str, OutputCallback | Sink]:
    """Return the target of each sink that has one: of the run, or of the job.

    Raises:
        StateTypeError: a target is none, or its sink's records have no columns.
    """
    checked: dict[str, OutputCallback | Sink] = {}
    stream_of = {sink.name: sink.stream for sink in job.sinks}
    for name, target in job.targets(outputs).items():
        where = f"the target of sink {name!r}"
        if isinstance(target, FrameSink):
            raise StateTypeError(
                f"{where} is {shown(target)}, which writes frames of Spark: in this process give "
                "a sink such as sinks.parquet(path), or a function (records, epoch)"
            )
        if not isinstance(target, Sink) and not callable(target):
            raise StateTypeError(
                f"{where} is {shown(target)}: give a sink such as sinks.parquet(path), or a "
                "function (records, epoch)"
            )
        if isinstance(target, Sink):
            _ = columns_of(job, stream_of[name]).arrow_schema
        checked[name] = target
    check_directories(checked.values())
    return checked


def _opened_copies(
    backend: Literal["memory", "rocksdb"] | WorkingCopies,
    options: RunOptions,
    closing: contextlib.ExitStack,
) -> WorkingCopies:
    """Return the working copies of a run. `closing` removes their temporary directory."""
    if backend == "memory":
        return MemoryCopies()
    if backend != "rocksdb":
        return backend
    working_directory = options.working_directory
    if working_directory is None:
        scratch = tempfile.TemporaryDirectory(prefix="statekit-")
        working_directory = closing.enter_context(scratch)
        closing.callback(uploader().give_up, f"{working_directory}{os.sep}")
    return DiskCopies(working_directory, options.rocksdb, options.bases)
