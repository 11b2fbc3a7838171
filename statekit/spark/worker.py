"""One shard inside a Spark Python worker: Arrow batches in, Arrow batches and a commit record out.

What lives here: what `mapInArrow` calls, for a shard and for the records that are late. What does
not: anything that decides; a worker runs the shard its partition stands for and reports.

The output has the columns of the operator's output type, and one more, the commit record. It is
null in rows that carry outputs; the last row of each shard carries nothing but the record.
"""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any

import pyarrow as pa

from statekit.errors import IncompleteEpochError, ProcessError
from statekit.keygroup import key_group
from statekit.manifest import ShardPlan, ShardReport
from statekit.outputs import OutputType
from statekit.process import Process
from statekit.repository import Repository
from statekit.rocks import RocksOptions
from statekit.shard import RARE_COLLECTION, run_shard
from statekit.spark.shipping import Shipment, unpack
from statekit.task import Chunk
from statekit.watermark import is_late
from statekit.working_copy import DiskCopies

__all__ = ["COMMIT", "FIRST_MARK", "LateStep", "ShardStep", "output_schema"]

COMMIT = "__statekit_commit"
"""The column of the commit record."""

FIRST_MARK = -1
"""What shard 0 is sent in the place of a key group, before all records; shard 1 is sent -2, …"""


def output_schema(output_type: OutputType | None) -> pa.Schema:
    """Columns of a step: the outputs', all nullable, and the commit record."""
    fields = [] if output_type is None else list(output_type.arrow_schema)
    return pa.schema([*(field.with_nullable(True) for field in fields), (COMMIT, pa.string())])


@dataclass(frozen=True)
class ShardStep:
    """What runs in each partition of an operator's frame.

    Parameters:
        shipment: the process function.
        plans: one per shard.
        url: of the checkpoint.
        directory: for working copies, on the worker's local disk.
        options: what RocksDB may spend.
        key_groups: how many there are.
    """

    shipment: Shipment
    plans: tuple[ShardPlan, ...]
    url: str
    directory: str
    options: RocksOptions
    key_groups: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        _acknowledge_at_once()
        first = next(batches, None)
        if first is None:
            return  # no shard: each is sent its mark
        gc.set_threshold(*RARE_COLLECTION)  # for good: this process runs shards
        plan = self.plans[_marked(first)]
        batches = chain([first.slice(1)], batches)
        declared = unpack(self.shipment)
        schema = output_schema(declared.output_type)
        copies = DiskCopies(self.directory, self.options)
        running = run_shard(
            declared, plan, self._chunks(declared, batches), _repository(self.url), copies
        )
        try:
            while True:
                yield _output_batch(declared, schema, next(running))
        except StopIteration as stop:
            yield _commit_batch(schema, stop.value)
        finally:
            running.close()

    def _chunks(
        self, declared: Process[Any, Any, Any], batches: Iterator[pa.RecordBatch]
    ) -> Iterator[Chunk]:
        """Typed records of each batch, from between the key group and the arrival."""
        record_type = declared.record_type
        reader = None
        for batch in batches:
            if batch.num_rows == 0:
                continue
            batch = batch.remove_column(batch.num_columns - 1)
            if reader is None:
                reader = record_type.reader(batch.schema, first_column=1)
            records, groups = reader.read(batch), batch.column(0).to_pylist()
            keys = _keys(declared, batch, records)
            times = _times(declared, batch, records)
            if record_type.may_change_fields:
                _check_keys(declared, keys, groups, records, self.key_groups)
            yield Chunk(keys, groups, keys, records, times)


@dataclass(frozen=True)
class LateStep:
    """Leaves those rows of an operator's input whose records are late.

    Parameters:
        shipment: the process function.
        watermark_us: its watermark.
    """

    shipment: Shipment
    watermark_us: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        _acknowledge_at_once()
        declared = unpack(self.shipment)
        time_of = declared.time_of()
        for batch in batches:
            records = declared.record_type.reader(batch.schema).read(batch)
            late = [is_late(time_of(record), self.watermark_us) for record in records]
            yield batch.filter(pa.array(late, pa.bool_()))


def _acknowledge_at_once() -> None:
    """Keep Nagle's algorithm and delayed acknowledgements from waiting for each other.

    Spark sends a worker its task in several small writes over TCP. The second one waits until the
    first is acknowledged, which Linux puts off for 40 ms: most of the time that a small epoch
    spends in a worker.
    """
    at_once = getattr(socket, "TCP_QUICKACK", None)
    for name in os.listdir("/dev/fd"):
        descriptor = int(name)
        with contextlib.suppress(OSError):  # the listing's own descriptor is closed again
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                continue
            connection = socket.socket(fileno=descriptor)
            try:
                if _is_from_here(connection):
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    if at_once is not None:
                        connection.setsockopt(socket.IPPROTO_TCP, at_once, 1)
            finally:
                connection.detach()  # it stays Spark's


def _is_from_here(connection: socket.socket) -> bool:
    """Whether it connects two processes of this host, as Spark and its worker are."""
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    return connection.getpeername()[0] in ("127.0.0.1", "::1")


def _marked(first: pa.RecordBatch) -> int:
    """The shard whose records start with this batch."""
    mark: int = first.column(0)[0].as_py()
    if mark > FIRST_MARK:
        raise IncompleteEpochError(
            "a shard's records do not start with its mark: Spark split or reordered a partition; "
            "nothing of this epoch is committed"
        )
    return FIRST_MARK - mark


@cache
def _repository(url: str) -> Repository:
    return Repository(url)


def _keys(declared: Process[Any, Any, Any], batch: pa.RecordBatch, records: list[Any]) -> list[Any]:
    """The keys of a batch: from the column where that is the same and faster."""
    first = batch.column(declared.key[0])
    plain = len(declared.key) == 1 and not pa.types.is_temporal(first.type)
    if plain and not declared.record_type.may_change_fields:
        return list(first.to_pylist())
    return list(map(declared.key_of(), records))


def _times(
    declared: Process[Any, Any, Any], batch: pa.RecordBatch, records: list[Any]
) -> Sequence[int]:
    """The event times of a batch, in microseconds: from the column where that is the same."""
    if declared.event_time is None:
        return ()
    column = batch.column(declared.event_time)
    plain = pa.types.is_timestamp(column.type) and column.type.tz and column.type.unit == "us"
    if not plain or column.null_count or declared.record_type.may_change_fields:
        return list(map(declared.time_of(), records))
    return list(column.cast(pa.int64()).to_pylist())


def _check_keys(
    declared: Process[Any, Any, Any],
    keys: list[Any],
    groups: list[int],
    records: list[Any],
    key_groups: int,
) -> None:
    """Make sure that records went to the shard of the key they have now.

    The JVM chose it by the columns; a validator or `__post_init__` may have changed the field.
    """
    last: Any = _check_keys  # equals no key
    for key, group, record in zip(keys, groups, records, strict=True):
        if key != last:
            last = key
            if key_group(key, key_groups) != group:
                fields = ", ".join(declared.key)
                raise ProcessError(
                    f"operator {declared.name!r}: {declared.record_type.name} changes its key "
                    f"({fields}) to {key!r} while {record!r} is made, after the records were "
                    "routed by the columns: change the column in the DataFrame instead"
                )


def _output_batch(
    declared: Process[Any, Any, Any], schema: pa.Schema, outputs: list[Any]
) -> pa.RecordBatch:
    if declared.output_type is None:
        raise ProcessError(
            f"operator {declared.name!r} yielded {outputs[0]!r} and is declared to return None: "
            "declare Iterator[T]"
        )
    columns = declared.output_type.to_batch(outputs).columns
    commit = pa.nulls(len(outputs), pa.string())
    return pa.record_batch([*columns, commit], schema=schema)


def _commit_batch(schema: pa.Schema, report: ShardReport) -> pa.RecordBatch:
    columns = [pa.nulls(1, field.type) for field in schema][:-1]
    return pa.record_batch([*columns, pa.array([report.model_dump_json()])], schema=schema)
