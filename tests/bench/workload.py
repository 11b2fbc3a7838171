"""The workloads that all engines run: a running count and sum, and one map entry per event."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import pyarrow as pa

import statekit as sk
from statekit.keygroup import key_group

KEYS = 100_000


class Event(msgspec.Struct):
    key: int
    value: int


class Count(NamedTuple):
    key: int
    events: int
    total: int


@sk.process(key="key")
def running_count(event: Event, held: sk.ValueState[tuple[int, int]]) -> Iterator[Count]:
    count, total = held.get() or (0, 0)
    count, total = count + 1, total + event.value
    held.update((count, total))
    yield Count(event.key, count, total)


class Entry(msgspec.Struct):
    key: int
    entry: int
    value: int


@sk.process(key="key")
def map_entry(event: Entry, held: sk.MapState[int, int]) -> Iterator[Count]:
    total = held.get(event.entry, 0) + event.value
    held[event.entry] = total
    yield Count(event.key, event.entry, total)


def events(count: int, seed: int, keys: int = KEYS) -> pa.Table:
    """Events with keys drawn uniformly."""
    draw = random.Random(seed)
    return pa.table(
        {
            "key": pa.array([draw.randrange(keys) for _ in range(count)], pa.int64()),
            "value": pa.array([draw.randrange(1000) for _ in range(count)], pa.int64()),
            "ts": pa.array(range(count), pa.int64()),
        }
    )


def as_sorted(columns: dict[str, list[int]]) -> list[pa.RecordBatch]:
    """Columns as a shard gets them from Spark: key group first, sorted by group and key."""
    groups = [key_group(key) for key in columns["key"]]
    order = sorted(range(len(groups)), key=lambda row: (groups[row], columns["key"][row]))
    table = pa.table(
        {
            "group": pa.array([groups[row] for row in order], pa.int32()),
            **{
                name: pa.array([values[row] for row in order], pa.int64())
                for name, values in columns.items()
            },
        }
    )
    return list(table.to_batches(max_chunksize=10_000))
