"""Run shards in a Spark Python worker: Arrow batches in, Arrow batches and commit records out."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import stat
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import pyarrow as pa

from statekit.backend.rocksdb_options import RocksOptions
from statekit.checkpoint.manifest import ShardPlan, ShardReport
from statekit.checkpoint.repository import Repository
from statekit.errors import StrayKeyError
from statekit.records.keyed_batch import KeyedBatch
from statekit.records.output_type import OutputType
from statekit.records.preaggregate import Combiner, with_operator_name
from statekit.records.rebatch import rebatched
from statekit.runtime.shard import RARE_COLLECTION, reporting, run_shard
from statekit.runtime.shard_input import KeyedBatchBuilder, ShardInput
from statekit.spark.commit_records import Reporter
from statekit.spark.pickling import PickledFunction, PickledPlans, unpickled
from statekit.spark.worker_rows import (
    INPUT,
    AnyProcess,
    Batches,
    UnionReader,
    batches_of_rows,
    in_order,
    shards_in_turn,
)
from statekit.watermark import is_late
from statekit.working_copy.base_options import BaseOptions
from statekit.working_copy.copies import DiskCopies

# Rows have at least one column: this one for operators that emit nothing.
_NOTHING = pa.field("__statekit_nothing", pa.bool_())

# Rows and bytes of a batch of outputs that goes to Spark.
_BATCH_ROWS = 10_000
_BATCH_BYTES = 1024 * 1024


def output_schema(output_type: OutputType | None) -> pa.Schema:
    """Return the columns of a step: those of the outputs, all nullable."""
    fields = [_NOTHING] if output_type is None else list(output_type.arrow_schema)
    return pa.schema([field.with_nullable(True) for field in fields])


@dataclass(frozen=True)
class Stage:
    """An operator in a chain.

    Parameters:
        function: the process function.
        plans: of all shards.
    """

    function: PickledFunction
    plans: PickledPlans


@dataclass(frozen=True)
class ShardStep:
    """The function for each partition of a chain's frame, which has some of its shards.

    Parameters:
        stages: the operators, each fed by the one before.
        url: of the checkpoint.
        directory: for working copies, on the worker's local disk; None for the executor's own.
        options: limits of RocksDB.
        bases: when base snapshots are taken.
        key_groups: the number of key groups.
        reporter: sends the reports of shards.
        reader: reads the rows of an operator with several streams; None for one.
        is_combined: whether the rows are those of the first operator's combiner, if it has one.
    """

    stages: tuple[Stage, ...]
    url: str
    directory: str | None
    options: RocksOptions
    bases: BaseOptions
    key_groups: int
    reporter: Reporter
    reader: UnionReader | None = None
    is_combined: bool = False

    def __call__(self, batches: Batches) -> Batches:
        _acknowledge_at_once()
        _collect_rarely()
        directory = self.directory or _executors_directory()
        copies = DiskCopies(directory, self.options, self.bases)
        for stage in self.stages:
            copies.tidy(stage.plans)
        schema = output_schema(unpickled(self.stages[-1].function).output_type)
        for shard, rows in shards_in_turn(batches):
            yield from self._shard(shard, rows, copies, schema)

    def _shard(
        self, shard: int, batches: Batches, copies: DiskCopies, schema: pa.Schema
    ) -> Batches:
        repository = _repository(self.url)
        processes = [unpickled(stage.function) for stage in self.stages]
        reports: list[ShardReport] = []
        running: list[Generator[list[Any], None, None]] = []
        try:
            for place, process in enumerate(processes):
                plan = self.stages[place].plans[shard]
                if place == 0:
                    shard_input = self._input(process, plan, batches)
                else:
                    passed = self._passed(running[-1], processes[place - 1], process, plan)
                    shard_input = ShardInput((), passed)
                run = run_shard(process, plan, shard_input, repository, copies)
                running.append(reporting(run, reports))
            batches_out = (_output_batch(processes[-1], schema, some) for some in running[-1])
            # Large batches, as each that crosses over to Spark takes time of its own.
            for group in rebatched(batches_out, rows=_BATCH_ROWS, size=_BATCH_BYTES):
                yield from pa.Table.from_batches(group).combine_chunks().to_batches()
            for report in reports:
                self.reporter.report(report)
        finally:
            for outputs in reversed(running):
                outputs.close()

    def _input(self, declared: AnyProcess, plan: ShardPlan, batches: Batches) -> ShardInput:
        """Return the records of a shard of the first operator."""
        if self.reader is not None:
            batches = in_order(batches, (*declared.key, INPUT), plan.operator)
            return self.reader(declared, batches, self.key_groups).shard_input()
        batches = in_order(batches, declared.key, plan.operator)
        if declared.traits.combiner is not None and not self.is_combined:
            batches = _combined(declared.traits.combiner, batches, plan, declared.late_us(plan))
        return ShardInput((), batches_of_rows(declared, batches, self.key_groups))

    def _passed(
        self, emitted: Iterable[list[Any]], before: AnyProcess, process: AnyProcess, plan: ShardPlan
    ) -> Iterator[KeyedBatch]:
        """Yield outputs of a shard as records of the next operator's shard.

        Parameters:
            emitted: the outputs, list by list.
            before: the process function that emits them.
            process, plan: the next process function, and the plan of its shard.

        Raises:
            StrayKeyError: a record belongs to another shard.
            ProcessError: an output does not fit the declared type.
        """
        builder, (start, end) = KeyedBatchBuilder(process, self.key_groups), plan.base.groups
        for outputs in emitted:
            if before.output_type is not None:  # otherwise no operator reads them
                outputs = before.output_type.received(before.output_type.stored(outputs))
            records = process.combined(outputs, plan)
            keys = builder.keys(records)
            groups: list[int] = []
            for key, group, size in builder.key_runs(keys, records):
                if not start <= group <= end:
                    raise StrayKeyError(
                        f"{before.name} emits a record of key {key!r}, which does not belong to "
                        f"shard {plan.shard} of {plan.operator}",
                        plan.operator,
                    )
                groups += [group] * size
            yield builder.batch(keys, groups, records)


@dataclass(frozen=True)
class CombineStep:
    """Combines the records of a partition: a row for each key, or each key and pane.

    Parameters:
        function: the process function, which has a combiner.
        operator: its name in the job.
        late_us: the watermark that makes a record late.
    """

    function: PickledFunction
    operator: str
    late_us: int

    def __call__(self, batches: Batches) -> Batches:
        _acknowledge_at_once()
        combiner = unpickled(self.function).traits.combiner
        assert combiner is not None
        with with_operator_name(self.operator):
            for rows in combiner.combined_batches(batches, self.late_us):
                yield from rows.to_batches()


@dataclass(frozen=True)
class LateStep:
    """Filters the rows of an operator's input whose records are late.

    Parameters:
        function: the process function.
        watermark_us: its watermark.
    """

    function: PickledFunction
    watermark_us: int

    def __call__(self, batches: Batches) -> Batches:
        _acknowledge_at_once()
        declared = unpickled(self.function)
        time_of = declared.time_of()
        for batch in batches:
            (record_type,) = declared.record_type.members
            records = record_type.reader(batch.schema).read(batch)
            late = [is_late(time_of(record), self.watermark_us) for record in records]
            yield batch.filter(pa.array(late, pa.bool_()))


def _combined(combiner: Combiner, batches: Batches, plan: ShardPlan, late_us: int) -> Batches:
    """Yield the combined rows of the batches of a shard."""
    with with_operator_name(plan.operator):
        yield from combiner.combined_sorted(batches, late_us)


@cache
def _collect_rarely() -> None:
    """Search for cyclic garbage rarely, until this process ends.

    After each task Spark runs a full collection. Objects from before the first shard, most of them
    modules, are excluded from now on.
    """
    gc.set_threshold(*RARE_COLLECTION)
    gc.freeze()


def _acknowledge_at_once() -> None:
    """Disable delayed acknowledgements, which wait for Nagle's algorithm and it for them.

    Spark sends a task to a worker in several small writes over TCP. The second one waits until the
    first is acknowledged, which Linux delays by 40 ms: most of the time of a small epoch in a
    worker.
    """
    at_once = getattr(socket, "TCP_QUICKACK", None)
    for name in os.listdir("/dev/fd"):
        descriptor = int(name)
        with contextlib.suppress(OSError):  # the listing's own descriptor is closed again
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                continue
            with socket.socket(fileno=os.dup(descriptor)) as connection:
                if _is_from_here(connection):
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    if at_once is not None:
                        connection.setsockopt(socket.IPPROTO_TCP, at_once, 1)


def _is_from_here(connection: socket.socket) -> bool:
    """Return whether a connection is between two processes of this host, as Spark and its worker
    are.
    """
    is_internet = connection.family in (socket.AF_INET, socket.AF_INET6)
    return is_internet and connection.getpeername()[0] in ("127.0.0.1", "::1")


def _executors_directory() -> str:
    """Return a directory for working copies that Spark removes with the executor.

    Spark passes its Python workers the directories of blocks. A directory next to the first of them
    is on a suitable disk, and exists no longer than the application.
    """
    blocks = os.environ["SPARK_LOCAL_DIRS"].split(",")[0]
    return os.path.join(os.path.dirname(blocks), "statekit")


@cache
def _repository(url: str) -> Repository:
    return Repository(url)


def _output_batch(declared: AnyProcess, schema: pa.Schema, outputs: list[Any]) -> pa.RecordBatch:
    assert declared.output_type is not None, "the task checks it"
    return pa.record_batch(declared.output_type.to_batch(outputs).columns, schema=schema)
