"""The hot loop: what one core makes of a shard's records, beside a plain dict in the same loop.

Each workload runs as in `shard_alone`, so with RocksDB, a durable change file and the commit. Its
floor takes the same Arrow batches and gives the same columns, and keeps state in a dict of Python
objects that is gone with the process. Both take turns; what counts is CPU time.
"""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from statekit.functions.process import Process
from statekit.runtime.rare_collection import RARE_COLLECTION
from statekit.working_copy.uploader import uploader
from tests.bench.report import NOT_DURABLE, Arm, Row, statekit
from tests.bench.shard_alone import Shard
from tests.bench.workload import (
    INSTANT,
    Entry,
    Event,
    Flight,
    append_value,
    entries,
    events,
    flights,
    last_flight,
    map_entry,
    running_count,
    sorted_batches,
)

EVENTS = 100_000
WARM, ROUNDS = 3, 9

Rows = Iterator[tuple[Any, ...]]


@dataclass(frozen=True)
class Workload:
    """A process function, and the same logic over a dict.

    Parameters:
        title: what it does.
        declared, record: the process function and what it takes.
        events: of a batch, by a seed.
        floor: from the columns of a batch to rows of outputs, with the dict that is its state.
        outputs: the types of the columns of these.
        wanted: events per second.
    """

    title: str
    declared: Process[Any, Any, Any]
    record: Any
    events: Callable[[int], pa.Table]
    floor: Callable[[list[list[Any]], dict[Any, Any]], Rows]
    outputs: tuple[pa.DataType, ...]
    wanted: str

    def measured(self) -> tuple[float, float]:
        """Events per second of CPU time: ours, and those of the floor."""
        held: dict[Any, Any] = {}
        spent: list[tuple[float, float]] = []
        with tempfile.TemporaryDirectory() as home:
            shard = Shard(self.declared, self.record, Path(home))
            for seed in range(WARM + ROUNDS):
                batches = sorted_batches(self.events(seed))
                ours, _, _ = shard.epoch(batches)
                uploader().drain()  # a base in the making would count for the next epoch
                gc.collect()
                spent.append((ours, self._floor_epoch(batches, held)))
        ours, floor = (statistics.median(part) for part in zip(*spent[WARM:], strict=True))
        return EVENTS / ours, EVENTS / floor

    def _floor_epoch(self, batches: list[pa.RecordBatch], held: dict[Any, Any]) -> float:
        began = time.process_time()
        for batch in batches:
            rows = list(self.floor([column.to_pylist() for column in batch.columns[1:]], held))
            for column, of in zip(zip(*rows, strict=True), self.outputs, strict=False):
                pa.array(column, of)
        return time.process_time() - began


def _count_in_dict(columns: list[list[Any]], held: dict[int, tuple[int, int]]) -> Rows:
    keys, values, _ = columns
    for key, value in zip(keys, values, strict=True):
        count, total = held.get(key, (0, 0))
        count, total = count + 1, total + value
        held[key] = count, total
        yield key, count, total


def _last_in_dict(columns: list[list[Any]], held: dict[int, tuple[Any, ...]]) -> Rows:
    for row in zip(*columns, strict=True):
        key, _, origin, destination, departed, arrived, miles, delay = row
        found = held.get(key)
        flown, late = (found[0], found[1]) if found else (0, 0.0)
        held[key] = state = (flown + miles, late + delay, destination, arrived)
        yield key, origin, destination, departed, state[0]


def _entry_in_dict(columns: list[list[Any]], held: dict[tuple[int, int], int]) -> Rows:
    for key, entry, value in zip(*columns, strict=True):
        total = held.get((key, entry), 0) + value
        held[key, entry] = total
        yield key, entry, total


def _append_in_dict(columns: list[list[Any]], held: dict[int, list[int]]) -> Rows:
    keys, values, _ = columns
    for key, value in zip(keys, values, strict=True):
        held.setdefault(key, []).append(value)
    return iter(())


_WHOLE = pa.int64()

WORKLOADS = (
    Workload(
        "running count",
        running_count,
        Event,
        lambda seed: events(EVENTS, seed),
        _count_in_dict,
        (_WHOLE, _WHOLE, _WHOLE),
        "350,000",
    ),
    Workload(
        "64-byte record of 8 fields",
        last_flight,
        Flight,
        lambda seed: flights(EVENTS, seed),
        _last_in_dict,
        (_WHOLE, pa.string(), pa.string(), INSTANT, _WHOLE),
        "200,000",
    ),
    Workload(
        "map entry",
        map_entry,
        Entry,
        lambda seed: entries(EVENTS, seed),
        _entry_in_dict,
        (_WHOLE, _WHOLE, _WHOLE),
        "250,000",
    ),
    Workload(
        "list append",
        append_value,
        Event,
        lambda seed: events(EVENTS, seed),
        _append_in_dict,
        (),
        "300,000",
    ),
)


def _drop_in() -> Workload:
    """The running count of a stateful processor of Spark's."""
    # Not where only state is measured: it needs Spark's classes.
    from pyspark.sql import types as sql

    from statekit.spark.tws.grouping_key import GroupingKey
    from statekit.spark.tws.process import ProcessorCalls, process_calling
    from tests.bench.spark_processor import HELD, CountProcessor

    rows = sql.StructType().add("key", "long").add("value", "long").add("ts", "long")
    outputs = sql.StructType([sql.StructField("key", sql.LongType()), *HELD])
    key = GroupingKey(rows, ["key"])
    declared = process_calling(ProcessorCalls(CountProcessor(), outputs, "none", key))
    return replace(
        WORKLOADS[0],
        title="running count of a StatefulProcessor",
        declared=declared,
        record=declared.record_type,
        wanted="",
    )


def rates() -> list[Row]:
    """Events per second and core of each workload."""
    gc.set_threshold(*RARE_COLLECTION)  # as in a worker
    rows = []
    for workload in (*WORKLOADS, _drop_in()):
        ours, floor = workload.measured()
        arms = (statekit(EVENTS / ours, EVENTS), Arm("a dict", EVENTS / floor, NOT_DURABLE, EVENTS))
        told = f"{ours:,.0f} events/s per core, {ours / floor:.2f} of the floor's {floor:,.0f}"
        title = f"task alone, {workload.title}: against a dict in the same loop"
        note = "The dict writes nothing and is gone with the process."
        rows.append(Row(title, told, workload.wanted, arms, note=note))
    return rows
