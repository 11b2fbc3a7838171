"""Run a job in this process over iterables, without Spark."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Literal

from statekit.backend.rocksdb_options import check_options
from statekit.checkpoint.manifest import ShardReport
from statekit.checkpoint.repository import Repository
from statekit.errors import RestoreError, StateTypeError
from statekit.functions.process import Process
from statekit.job.job import Job
from statekit.job.options import RunOptions
from statekit.job.plan import Operator
from statekit.job.progress import OutputCallback, Run
from statekit.job.record_streams import RecordStreams, SourceForm
from statekit.keygroup import group_range, pack_group, shard_of_group
from statekit.maintenance.savepoint.restore import prepare_from_savepoint
from statekit.records.keyed_batch import KeyedBatch
from statekit.runtime.coordinator import Coordinator
from statekit.runtime.key_iteration import not_a_key
from statekit.runtime.shard import reporting, run_shard
from statekit.runtime.shard_input import KeyedBatchBuilder, ShardInput
from statekit.watermark import is_late
from statekit.working_copy.copies import DiskCopies, MemoryCopies, WorkingCopies
from statekit.working_copy.uploader import uploader


class LocalRunner:
    """Runs epochs of a job in this process.

    Parameters:
        job: the job to run.
        repository: its checkpoint.
        copies: working copies of the shards.
        options: of the run.
    """

    def __init__(
        self,
        job: Job,
        repository: Repository,
        copies: WorkingCopies,
        options: RunOptions | None = None,
    ) -> None:
        self.job = job
        self.copies = copies
        self._sources = {source.name: SourceForm(source.record_type) for source in job.sources}
        self.coordinator = Coordinator.open(job, repository, options)

    def epoch(
        self,
        inputs: Mapping[str, Iterable[Any]],
        *,
        outputs: Mapping[str, OutputCallback] | None = None,
        offsets: dict[str, int] | None = None,
        **instants: Any,
    ) -> dict[str, list[Any]]:
        """Run one epoch over the records of each source, and commit it.

        Returns the records of each sink. Callbacks in `outputs` are called before the commit.

        Parameters:
            offsets: records consumed per input, committed with the state.
            instants: the clocks, as for `Coordinator.begin`.
        """
        self.coordinator.begin(**instants)
        streams = RecordStreams(self.job)
        for source in self.job.sources:
            form = self._sources[source.name]
            streams.put(source.name, form.taken(inputs.get(source.name, ())), form)
        reports: list[ShardReport] = []
        for operator in self.job.operators:
            outputs_of, reports_of = self._operator(operator, streams)
            streams.put(operator.name, outputs_of, operator.declared.output_type)
            if self.job.wants_late(operator):
                streams.put_late(operator, self._is_late(operator))
            reports += reports_of
        epoch = self.coordinator.epoch
        self.coordinator.check_owner()
        emitted = {sink.name: streams.for_sink(sink.stream) for sink in self.job.sinks}
        for name, callback in (outputs or {}).items():
            callback(emitted[name], epoch)
        self.coordinator.commit(reports, offsets=offsets)
        return emitted

    def _is_late(self, operator: Operator) -> Callable[[Any], bool]:
        watermark = self.coordinator.watermarks_us[operator.name]
        time_of = operator.declared.time_of()
        return lambda record: is_late(time_of(record), watermark)

    def _operator(
        self, operator: Operator, streams: RecordStreams
    ) -> tuple[list[Any], list[ShardReport]]:
        coordinator = self.coordinator
        declared, output_type = operator.declared, operator.declared.output_type
        plans = coordinator.plans(operator.name)
        given = map(streams.for_operator, operator.inputs)
        incoming = [declared.combined(records, plans[0]) for records in given]
        routed = _routed(operator, incoming, coordinator.parallelism, coordinator.key_groups)
        outputs: list[Any] = []
        reports: list[ShardReport] = []
        self.copies.tidy(plans)
        for plan, batch in zip(plans, routed, strict=True):
            broadcast = enumerate(map(streams.for_operator, operator.broadcasts), len(incoming))
            not_empty = [(number, records) for number, records in broadcast if records]
            shard_input = ShardInput(not_empty, [] if batch is None else [batch])
            running = run_shard(declared, plan, shard_input, coordinator.repository, self.copies)
            with contextlib.closing(reporting(running, reports)) as emitted_lists:
                for emitted in emitted_lists:
                    assert output_type is not None, "the task checks it"
                    outputs += output_type.stored(emitted)
        return outputs, reports


def _routed(
    operator: Operator, incoming: Sequence[Sequence[Any]], shards: int, groups: int
) -> list[KeyedBatch | None]:
    """Return the records of each shard, sorted by row prefix and arrival; None for no records.

    Without a key they are distributed round robin, each with the first key group of its shard.

    Parameters:
        incoming: the records of each input.
    """
    process = operator.declared
    builder = KeyedBatchBuilder(process, groups, operator.name)
    records = [record for of_input in incoming for record in of_input]
    inputs = [number for number, of_input in enumerate(incoming) for _ in of_input]
    keys = builder.keys(records)
    if process.key:
        record_groups = list(map(builder.key_group, keys, records))
    else:
        firsts = [group_range(shard, shards, groups)[0] for shard in range(shards)]
        record_groups = list(islice(cycle(firsts), len(records)))
    prefixes = []
    for key, group, record in zip(keys, record_groups, records, strict=True):
        try:
            prefixes.append(pack_group(group) + process.key_codec.encode(key))
        except StateTypeError as error:
            raise not_a_key(operator.name, process.key, key, record, error) from error
    batch = builder.batch(keys, record_groups, records, inputs if len(incoming) > 1 else ())
    batch = batch._replace(tokens=prefixes)  # keys 1 and True are equal
    places: list[list[int]] = [[] for _ in range(shards)]
    for place in sorted(range(len(records)), key=prefixes.__getitem__):
        places[shard_of_group(record_groups[place], shards, groups)].append(place)
    return [_selected(process, batch, shard) if shard else None for shard in places]


def _selected(process: Process[Any, Any, Any], batch: KeyedBatch, places: list[int]) -> KeyedBatch:
    """Return some records of a batch, as columns if the process takes these."""
    columns = (tuple(map(column.__getitem__, places)) if column else () for column in batch)
    selected = KeyedBatch(*columns)
    if process.traits.takes_columns:
        selected = selected._replace(records=tuple(zip(*selected.records, strict=True)))
    return selected


def run(
    job: Job,
    inputs: Mapping[str, Iterable[Any]],
    outputs: Mapping[str, OutputCallback],
    checkpoint: str | Path | Repository | None,
    options: RunOptions,
    epoch_size: int,
    backend: Literal["memory", "rocksdb"] | WorkingCopies,
    *,
    drain: bool,
) -> Run:
    """Run a job in this process until its inputs end. See `Job.run`."""
    if isinstance(backend, str) and backend not in ("memory", "rocksdb"):
        raise StateTypeError(f'backend={backend!r}: use "memory" or "rocksdb"')
    check_options(options.rocksdb, options.keep_copies)
    for name, records in inputs.items():
        if not isinstance(records, Iterable):
            raise StateTypeError(f"inputs[{name!r}] is {records!r}: give an iterable of records")
    job.check_names(inputs, {sink.name for sink in job.sinks} | set(outputs))
    repository = Repository.in_memory() if checkpoint is None else Repository.of(checkpoint)
    prepare_from_savepoint(job, repository, options)
    with contextlib.ExitStack() as closing:
        if backend == "memory":
            backend = MemoryCopies()
        elif backend == "rocksdb":
            working_directory = options.working_directory
            if working_directory is None:
                scratch = tempfile.TemporaryDirectory(prefix="statekit-")
                working_directory = closing.enter_context(scratch)
                closing.callback(uploader().give_up, working_directory)
            backend = DiskCopies(working_directory, options.rocksdb, options.bases)
        runner = LocalRunner(job, repository, backend, options)
        coordinator = runner.coordinator
        closing.callback(coordinator.close)
        if outputs and checkpoint is not None:
            coordinator.notes_beginnings = True  # until the commit, they may be published
        done = Run({sink.name: [] for sink in job.sinks if sink.name not in outputs})
        while coordinator.was_draining and not coordinator.is_drained:
            done.take(runner.epoch({}, outputs=outputs, what="drain"))
        for records, offsets in _epochs(inputs, coordinator, epoch_size):
            done.take(runner.epoch(records, outputs=outputs, offsets=offsets))
        while drain and coordinator.last is not None and not coordinator.is_drained:
            done.take(runner.epoch({}, outputs=outputs, what="drain"))
        if not coordinator.keeps_copies(options.keep_copies):
            backend.forget(coordinator.job_file.id)
    done.last_epoch = None if coordinator.last is None else coordinator.last.epoch
    return done


def _epochs(
    inputs: Mapping[str, Iterable[Any]], coordinator: Coordinator, size: int
) -> Iterator[tuple[dict[str, list[Any]], dict[str, int]]]:
    """Yield the input of one epoch at a time, with the position in each input after it.

    Raises:
        RestoreError: an input has fewer records than the state contains.
    """
    if size < 1:
        raise StateTypeError(f"epoch_size={size}: give at least 1 record")
    offsets = dict.fromkeys(inputs, 0)
    offsets.update(coordinator.last.offsets if coordinator.last is not None else {})
    waiting = {name: _behind(name, records, offsets[name]) for name, records in inputs.items()}
    while True:
        pieces = {name: list(islice(records, size)) for name, records in waiting.items()}
        if not any(pieces.values()):
            return
        offsets = {**offsets, **{name: offsets[name] + len(p) for name, p in pieces.items()}}
        yield pieces, offsets


def _behind(name: str, records: Iterable[Any], count: int) -> Iterator[Any]:
    """Skip the records of an input that are in the state already."""
    remaining = iter(records)
    skipped = sum(1 for _ in islice(remaining, count))
    if skipped < count:
        raise RestoreError(
            f"input {name!r} has {skipped} records, and {count} of it are in the state: pass the "
            "same records again, from the first one on, followed by new ones"
        )
    return remaining
