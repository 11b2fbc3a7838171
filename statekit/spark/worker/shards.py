"""Shards in a Spark Python worker: Arrow batches in, Arrow batches and commit records out."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, compress, repeat
from typing import Any

import pyarrow as pa

from statekit.backend.rocksdb_options import RocksOptions
from statekit.checkpoint.manifest import IdleShards, ShardPlan, ShardPlans, ShardReport
from statekit.clock import cpu_us
from statekit.errors import StrayKeyError
from statekit.functions.failed_record import FailedRecord
from statekit.job.chaining import Chain
from statekit.job.plan import FAILED_RECORDS, RESERVED, Transform, applied
from statekit.recording.recorder import Recorder
from statekit.records.keyed_batch import KeyedBatch
from statekit.records.output_union import AnyOutput
from statekit.records.preaggregate import with_operator_name
from statekit.records.rebatch import rebatched
from statekit.records.union import Records
from statekit.runtime.shard import reporting, run_shard
from statekit.runtime.shard_input import KeyedBatchBuilder, ShardInput
from statekit.shown import shown
from statekit.spark.worker.commit_records import Reporter
from statekit.spark.worker.failure_texts import readable_errors
from statekit.spark.worker.pickling import Pickled, unpickled
from statekit.spark.worker.replayed_rows import ReplayedRows
from statekit.spark.worker.rows import (
    GROUP,
    INPUT,
    AnyProcess,
    Batches,
    StreamReader,
    UnionReader,
    batches_of_rows,
    in_order,
    shards_in_turn,
)
from statekit.spark.worker.worker_process import (
    acknowledge_at_once,
    collect_rarely,
    executor_id,
    executors_directory,
    opened_repository,
)
from statekit.watermark import is_late
from statekit.working_copy.base_options import BaseOptions
from statekit.working_copy.copies import DiskCopies

# Rows have at least one column: this one for operators that emit nothing.
_NOTHING = pa.field("__statekit_nothing", pa.bool_())

OUTPUTS = f"{RESERVED}_outputs"
"""The column of outputs, if failed records are consumed, too."""

ERRORS = f"{RESERVED}_errors"
"""The column of failed records."""

# Rows and bytes of a batch of outputs that goes to Spark.
_BATCH_ROWS = 10_000
_BATCH_BYTES = 1024 * 1024


def output_schema(output_type: AnyOutput | None) -> pa.Schema:
    """Return the schema of a step's outputs. All columns are nullable."""
    fields = [_NOTHING] if output_type is None else list(output_type.arrow_schema)
    return pa.schema([field.with_nullable(True) for field in fields])


def chain_column(number: int) -> str:
    """Return the name of the column with the outputs of a chain, for a pass with several chains."""
    return f"__statekit_branch_{number}"


def _chain_schema(chained: Chain) -> pa.Schema:
    """Return the schema of a chain: the columns of its outputs, or a struct column with these, and
    one with its failed records.
    """
    own = output_schema(chained.output_type)
    if not chained.emits_errors:
        return own
    parts = {OUTPUTS: own, ERRORS: output_schema(FAILED_RECORDS)}
    return pa.schema([pa.field(name, pa.struct(list(part))) for name, part in parts.items()])


def pass_schema(chains: Sequence[Chain]) -> pa.Schema:
    """Return the schema of a pass: the columns of its only chain, or one struct column per
    chain.
    """
    schemas = list(map(_chain_schema, chains))
    if len(schemas) == 1:
        return schemas[0]
    return pa.schema(
        [pa.field(chain_column(n), pa.struct(list(of))) for n, of in enumerate(schemas)]
    )


def _in_column(outputs: pa.RecordBatch, number: int, schema: pa.Schema) -> pa.RecordBatch:
    """Return outputs as structs in one of the columns of a schema."""
    own = pa.StructArray.from_arrays(outputs.columns, fields=list(schema.field(number).type))
    columns = [own if n == number else pa.nulls(len(own), of.type) for n, of in enumerate(schema)]
    return pa.record_batch(columns, schema=schema)


class _Idle:
    """The shards of a task that had nothing to do, by operator.

    Parameters:
        operators: the names of all operators of the task.
    """

    def __init__(self, operators: Iterable[str]) -> None:
        self._shards: dict[str, list[int]] = {operator: [] for operator in operators}
        self._cpu_us = Counter[str]()

    def add(self, shard: int) -> None:
        """Add a shard for all operators."""
        for shards in self._shards.values():
            shards.append(shard)

    def add_to(self, operator: str, shard: int, cpu_us: int) -> None:
        """Add a shard for one operator, with the CPU time that was spent to find nothing to do."""
        self._shards[operator].append(shard)
        self._cpu_us[operator] += cpu_us

    def reports(self) -> Iterator[IdleShards]:
        """Yield the reports of all operators with such shards."""
        for operator, shards in self._shards.items():
            if shards:
                yield IdleShards.of(operator, shards, self._cpu_us[operator])


@dataclass(frozen=True)
class ShardStep:
    """The function for the partitions of a pass's frame. Each partition contains some shards.

    Parameters:
        chains: the chains of the pass. Each gets all rows.
        plans: of all shards of each operator, by its name.
        restores: whether the job wrote the rows, as for `RecordType.reader`.
        url: of the checkpoint.
        directory: for working copies, on the worker's local disk; None for the executor's own.
        options: limits of RocksDB.
        bases: when base snapshots are taken.
        key_groups: the number of key groups.
        reporter: sends the reports of shards.
        reader: reads the rows of an operator with several streams; None for one.
        is_combined: whether the rows are those of the first operator's combiner, if it has one.
        started_us: when the run began, on a cluster.
        recorder: which records are kept, if any.
    """

    chains: tuple[Pickled[Chain], ...]
    plans: Mapping[str, ShardPlans]
    restores: bool
    url: str
    directory: str | None
    options: RocksOptions
    bases: BaseOptions
    key_groups: int
    reporter: Reporter
    reader: UnionReader | None = None
    is_combined: bool = False
    started_us: int | None = None
    recorder: Recorder | None = None

    @readable_errors
    def __call__(self, batches: Batches) -> Batches:
        acknowledge_at_once()
        collect_rarely()
        directory = self.directory or executors_directory()
        copies = DiskCopies(directory, self.options, self.bases, self.started_us)
        for plans in self.plans.values():
            copies.tidy(plans)
        due = frozenset().union(*(plans.due for plans in self.plans.values()))
        idle = _Idle(self.plans)
        for shard, rows in shards_in_turn(batches):
            first = next((batch for batch in rows if batch.num_rows), None)
            if first is None and shard not in due:
                idle.add(shard)
                continue
            given = rows if first is None else chain((first,), rows)
            yield from self._shard(shard, self._sorted(given), copies, directory, idle)
        for report in idle.reports():
            self.reporter.report(report)
        self.reporter.send()

    def _sorted(self, batches: Batches) -> Batches:
        first = unpickled(self.chains[0]).first
        by = first.declared.key if self.reader is None else (*first.declared.key, INPUT)
        return in_order(batches, by, first.name)

    def _shard(
        self, shard: int, rows: Batches, copies: DiskCopies, directory: str, idle: _Idle
    ) -> Batches:
        """Run a shard of every chain, one chain after the other."""
        chains = list(map(unpickled, self.chains))
        if len(chains) == 1:
            yield from self._chain(chains[0], shard, rows, copies, idle)
            return
        schema = pass_schema(chains)
        with ReplayedRows(rows, directory) as replayed:
            for number, chained in enumerate(chains):
                for outputs in self._chain(chained, shard, iter(replayed), copies, idle):
                    yield _in_column(outputs, number, schema)

    def _chain(
        self, chained: Chain, shard: int, batches: Batches, copies: DiskCopies, idle: _Idle
    ) -> Batches:
        repository = opened_repository(self.url)
        reports: list[ShardReport | None] = []
        running: list[Generator[list[Any], None, None]] = []
        spent_us = [0] * len(chained.operators)
        before: AnyProcess | None = None
        failed: list[FailedRecord] = []
        try:
            for operator, transforms in zip(chained.operators, chained.transforms, strict=True):
                process, plans = operator.declared, self.plans[operator.name]
                plan = plans[shard]
                # The first operator reads the rows of the shard, each further one the outputs of
                # the operator before it.
                if before is None:
                    given = self._input(process, transforms, plan, batches)
                else:
                    none: dict[Any, int] = {}
                    passed = zip(_stored(running[-1], before), repeat(none))
                    keyed = self._keyed(passed, before.name, transforms, process, plan)
                    given = ShardInput((), keyed)
                given.record(self.recorder, process, plan, len(plans))
                is_last = operator is chained.last
                collect = failed.append if is_last and chained.emits_errors else None
                run = run_shard(process, plan, given, repository, copies, collect)
                running.append(_timed(reporting(run, reports), spent_us, len(running)))
                before = process
            emitted = _transformed(running[-1], process, chained.after, plan.epoch)
            batches_out = _batches_out(chained, emitted, failed)
            # Large batches, as each that crosses over to Spark takes time of its own.
            for group in rebatched(batches_out, rows=_BATCH_ROWS, size=_BATCH_BYTES):
                yield from pa.Table.from_batches(group).combine_chunks().to_batches()
            # An operator has run while the next one took its outputs.
            costs_us = [own - fed for own, fed in zip(spent_us, [0, *spent_us], strict=False)]
            for operator, report, cpu_us in zip(chained.operators, reports, costs_us, strict=True):
                if report is None:
                    idle.add_to(operator.name, shard, cpu_us)
                else:
                    facts = {"executor": executor_id(), "cpu_us": cpu_us}
                    self.reporter.report(report.model_copy(update=facts))
        finally:
            for outputs in reversed(running):
                outputs.close()

    def _input(
        self, process: AnyProcess, transforms: Sequence[Transform], plan: ShardPlan, rows: Batches
    ) -> ShardInput:
        """Return the input of a shard of the first operator of a chain."""
        if self.reader is not None:
            return self.reader(process, rows, self.key_groups).shard_input()
        if transforms:
            records = transforms[0].function.record_type
            reader = StreamReader(records.members, restores=self.restores)
            read = _read_with_groups(records, reader, process, rows)
            return ShardInput((), self._keyed(read, transforms[-1].name, transforms, process, plan))
        if process.traits.combiner is not None and not self.is_combined:
            rows = _combined(process, rows, plan, self.restores)
        batches = batches_of_rows(process, rows, self.key_groups, restores=self.restores)
        return ShardInput((), batches)

    def _keyed(
        self,
        received: Iterable[tuple[list[Any], Mapping[Any, int]]],
        sender: str,
        transforms: Sequence[Transform],
        process: AnyProcess,
        plan: ShardPlan,
    ) -> Iterator[KeyedBatch]:
        """Yield records that functions of the same task emit, as keyed batches of an operator's
        shard.

        Parameters:
            received: records, before the transforms of the operator, list by list, with key groups
                of keys that need not be computed.
            sender: the name of the function that emits them.
            transforms: of the operator's records.
            process, plan: the process function, and the plan of its shard.

        Raises:
            StrayKeyError: a record belongs to another shard.
            ProcessError: a record does not fit the declared type.
        """
        builder = KeyedBatchBuilder(process, self.key_groups)
        for arrived, known in received:
            transformed = applied(transforms, arrived, plan.epoch)
            if not transformed:
                continue
            records = process.combined(transformed, plan)
            keys = builder.keys(records)
            groups = list(map(known.get, keys, repeat(-1))) if known else [-1]
            if -1 in groups:
                groups = list(_groups_in_shard(builder, keys, records, sender, plan))
            yield builder.taken(builder.batch(keys, groups, records))


def _batches_out(
    chained: Chain, emitted: Iterable[list[Any]], failed: list[FailedRecord]
) -> Batches:
    """Yield the outputs of a chain as columns, with its failed records if they are consumed.

    Parameters:
        failed: gets the failed records while outputs are taken.
    """
    output_type = chained.output_type
    schema = output_schema(output_type)
    if not chained.emits_errors:
        yield from (_output_batch(output_type, schema, some) for some in emitted)
        return
    with_errors = _chain_schema(chained)
    for some in emitted:
        yield _in_column(_output_batch(output_type, schema, some), 0, with_errors)
    if failed:
        batch = _output_batch(FAILED_RECORDS, output_schema(FAILED_RECORDS), failed)
        yield _in_column(batch, 1, with_errors)


def _stored(outputs: Iterable[list[Any]], process: AnyProcess) -> Iterator[list[Any]]:
    """Return the outputs of an operator in the stored form that the next function receives."""
    assert process.output_type is not None, "a function takes them"
    return map(process.output_type.stored, outputs)


def _transformed(
    emitted: Iterable[list[Any]], last: AnyProcess, transforms: Sequence[Transform], epoch: int
) -> Iterable[list[Any]]:
    """Return the outputs of the last operator of a chain, after the transforms that follow it."""
    if not transforms:
        return emitted
    outputs = (applied(transforms, some, epoch) for some in _stored(emitted, last))
    return filter(None, outputs)


def _timed(
    outputs: Generator[list[Any], None, None], spent_us: list[int], place: int
) -> Generator[list[Any], None, None]:
    """Yield outputs, and add the CPU time of computing them to `spent_us[place]`."""
    with contextlib.closing(outputs):
        while True:
            began_us = cpu_us()
            some = next(outputs, None)
            spent_us[place] += cpu_us() - began_us
            if some is None:
                return
            yield some


def _read_with_groups(
    records: Records, reader: StreamReader, process: AnyProcess, batches: Batches
) -> Iterator[tuple[list[Any], dict[Any, int]]]:
    """Yield the records of rows, with the key group of each key. Key groups were computed with the
    rows.

    There are no key groups if keys of these records could not be compared with those of the records
    that transforms make of them.

    Parameters:
        records: the type of the records.
        reader: of their rows.
        process: takes what transforms make of them.
    """
    key_of = records.getter(process.key)
    fields = [member.fields for member in (*records.members, *process.taken.members)]
    types = [None if of is None else [of[name] for name in process.key] for of in fields]
    are_of_one_type = types[0] is not None and all(of == types[0] for of in types)
    has_groups = are_of_one_type and not records.may_change_fields
    for batch in batches:
        read = reader.read(batch)
        groups = batch.column(GROUP).to_pylist() if has_groups else []
        yield read, dict(zip(map(key_of, read), groups, strict=False))


def _groups_in_shard(
    builder: KeyedBatchBuilder,
    keys: Sequence[Any],
    records: Sequence[Any],
    sender: str,
    plan: ShardPlan,
) -> Iterator[int]:
    """Yield the key group of each record.

    Parameters:
        sender: the name of the function that emits them.

    Raises:
        StrayKeyError: a record belongs to another shard.
    """
    start, end = plan.base.groups
    for key, group, size in builder.key_runs(keys, records):
        if not start <= group <= end:
            raise StrayKeyError(
                f"{sender} emits a record of key {shown(key)}, which does not belong to shard "
                f"{plan.shard} of {plan.operator}",
                plan.operator,
            )
        yield from repeat(group, size)


@dataclass(frozen=True)
class CombineStep:
    """Combines the records of a partition into one row per key, or per key and pane.

    Parameters:
        chained: the chain of the operator, which has a combiner and comes first.
        late_us: the watermark that makes a record late.
        restores: whether the job wrote the rows, as for `RecordType.reader`.
    """

    chained: Pickled[Chain]
    late_us: int
    restores: bool

    @readable_errors
    def __call__(self, batches: Batches) -> Batches:
        acknowledge_at_once()
        operator = unpickled(self.chained).first
        combiner = operator.declared.traits.combiner
        assert combiner is not None
        with with_operator_name(operator.name):
            of_rows = combiner.combined_batches(batches, self.late_us, restores=self.restores)
            for rows in of_rows:
                yield from rows.to_batches()


@dataclass(frozen=True)
class TransformStep:
    """Applies a chain of transforms to the rows of a stream.

    Parameters:
        transforms: if all of them keep records, rows keep their columns; else the last one does not
            keep its records.
        restores: whether the job wrote the rows, as for `RecordType.reader`.
        epoch: of the rows, for messages.
    """

    transforms: Pickled[tuple[Transform, ...]]
    restores: bool
    epoch: int

    @readable_errors
    def __call__(self, batches: Batches) -> Batches:
        acknowledge_at_once()
        transforms = unpickled(self.transforms)
        reader = StreamReader(transforms[0].function.record_type.members, restores=self.restores)
        if all(each.function.keeps_records for each in transforms):
            for batch in batches:
                yield self._kept(transforms, batch, reader.read(batch))
        else:
            for batch in batches:
                yield from self._emitted(transforms, reader.read(batch))

    def _emitted(self, transforms: Sequence[Transform], records: list[Any]) -> Batches:
        """Yield the outputs of the last transform."""
        *others, last = transforms
        records = applied(others, records, self.epoch)
        outputs = last.function.apply(records, last.name, self.epoch)
        output_type = last.function.output_type
        schema = output_schema(output_type)
        for start in range(0, len(outputs), _BATCH_ROWS):
            yield _output_batch(output_type, schema, outputs[start : start + _BATCH_ROWS])

    def _kept(
        self, transforms: Sequence[Transform], batch: pa.RecordBatch, records: list[Any]
    ) -> pa.RecordBatch:
        """Return the rows whose records pass all transforms."""
        for transform in transforms:
            is_last = transform is transforms[-1]
            kept = transform.function.kept(records, transform.name, self.epoch, own=is_last)
            batch = batch.filter(pa.array(kept, pa.bool_()))
            records = list(compress(records, kept))
        return batch


@dataclass(frozen=True)
class LateStep:
    """Keeps the rows of an operator's input whose records are late.

    Parameters:
        chained: the chain of the operator, which comes first.
        types: which of its record types the rows have.
        watermark_us: its watermark.
        restores: whether the job wrote the rows, as for `RecordType.reader`.
    """

    chained: Pickled[Chain]
    types: tuple[int, ...]
    watermark_us: int
    restores: bool

    @readable_errors
    def __call__(self, batches: Batches) -> Batches:
        acknowledge_at_once()
        declared = unpickled(self.chained).first.declared
        time_of = declared.time_of()
        members = [declared.record_type.members[number] for number in self.types]
        reader = StreamReader(members, restores=self.restores)
        for batch in batches:
            late = [is_late(time_of(record), self.watermark_us) for record in reader.read(batch)]
            yield batch.filter(pa.array(late, pa.bool_()))


def _combined(process: AnyProcess, batches: Batches, plan: ShardPlan, restores: bool) -> Batches:
    combiner = process.traits.combiner
    assert combiner is not None
    with with_operator_name(plan.operator):
        yield from combiner.combined_sorted(batches, process.late_us(plan), restores=restores)


def _output_batch(
    output_type: AnyOutput | None, schema: pa.Schema, outputs: list[Any]
) -> pa.RecordBatch:
    assert output_type is not None, "the task checks it"
    return pa.record_batch(output_type.to_batch(outputs).columns, schema=schema)
