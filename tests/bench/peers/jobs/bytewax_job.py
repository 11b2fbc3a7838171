"""Bytewax: `stateful_map` in one worker, with its recovery store.

Arguments: the events, `count` or `entries`, a scratch directory, and the seconds between snapshots.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import bytewax.operators as op
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.outputs import DynamicSink, StatelessSinkPartition

from tests.bench.peers.jobs.bytewax_recovery import run_with_recovery
from tests.bench.peers.jobs.handshake import columns, done

AT_ONCE = 1000


class Reading(StatefulSourcePartition):
    def __init__(self, items: list[Any], resumed: int | None) -> None:
        self._items = items
        self._next = resumed or 0

    def next_batch(self) -> list[Any]:
        if self._next >= len(self._items):
            raise StopIteration
        batch = self._items[self._next : self._next + AT_ONCE]
        self._next += len(batch)
        return batch

    def snapshot(self) -> int:
        return self._next


class Items(FixedPartitionedSource):
    def __init__(self, items: list[Any]) -> None:
        self._items = items

    def list_parts(self) -> list[str]:
        return ["all"]

    def build_part(self, step_id: str, for_part: str, resume_state: int | None) -> Reading:
        return Reading(self._items, resume_state)


class Adding(StatelessSinkPartition):
    def __init__(self, sums: list[int]) -> None:
        self._sums = sums

    def write_batch(self, items: list[Any]) -> None:
        self._sums[0] += sum(total for _, (_, total) in items)


class Sums(DynamicSink):
    def __init__(self) -> None:
        self.sums = [0]

    def build(self, step_id: str, worker_index: int, worker_count: int) -> Adding:
        return Adding(self.sums)


def count(held: Any, value: int) -> tuple[Any, Any]:
    number, total = held or (0, 0)
    held = (number + 1, total + value)
    return held, held


def set_entry(held: Any, change: tuple[int, int]) -> tuple[Any, Any]:
    held = {} if held is None else held
    entry, value = change
    held[entry] = total = held.get(entry, 0) + value
    return held, (entry, total)


def main(events: Path, workload: str, home: Path, every_s: str) -> None:
    if workload == "entries":
        keys, entries, values = columns(events, "key", "entry", "value")
        items: list[Any] = list(zip(map(str, keys), zip(entries, values, strict=True), strict=True))
    else:
        keys, values = columns(events, "key", "value")
        items = list(zip(map(str, keys), values, strict=True))
    sums = Sums()
    flow = Dataflow("bench")
    stream = op.input("events", flow, Items(items))
    stream = op.stateful_map("state", stream, set_entry if workload == "entries" else count)
    op.output("sums", stream, sums)
    written = run_with_recovery(flow, home, every_s)
    done(check=sums.sums[0], of="events", written=written)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), sys.argv[4])
