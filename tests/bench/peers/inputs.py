"""The events that all systems are given, as each of them takes them at least cost.

What lives here: columns of integers as they are in memory, the same as CSV in one file and in
several, and what a right result adds up to. What does not: how events are drawn (`workload`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.csv as pc

from tests.bench.workload import entries, events, zipf_events

__all__ = ["UNIFORM", "WORKLOADS", "Input", "Workload"]

_ROWS_PER_FILE = 50_000


class Workload(NamedTuple):
    """What all do with the events.

    Parameters:
        title: in words.
        columns: of its events; state is kept for all but the last, which is added up.
        drawn: events, by how many and a seed.
    """

    title: str
    columns: tuple[str, ...]
    drawn: Callable[[int, int], pa.Table]


UNIFORM = Workload("running count, 100,000 keys", ("key", "value"), events)

WORKLOADS = {
    "count": UNIFORM,
    "zipf": UNIFORM._replace(title="running count, 100,000 keys by Zipf's law", drawn=zipf_events),
    "entries": Workload("map entry, 1,000 maps of 100", ("key", "entry", "value"), entries),
}


@dataclass(frozen=True)
class Input:
    """The events of a workload in a directory.

    Parameters:
        home: the directory, with a file of 64-bit integers for each column, `events.csv` without a
            head, and the directory `csv` of files that have one.
    """

    home: Path
    workload: Workload
    count: int

    def write(self) -> Input:
        (self.home / "csv").mkdir(parents=True)
        for name, column in zip(self.workload.columns, self._columns, strict=True):
            (self.home / f"{name}.i64").write_bytes(column.buffers()[1].to_pybytes())
        table = pa.table(self._columns, names=list(self.workload.columns))
        no_head = pc.WriteOptions(include_header=False)
        pc.write_csv(table, self.home / "events.csv", no_head)
        for start in range(0, self.count, _ROWS_PER_FILE):
            part = self.home / "csv" / f"{start:09d}.csv"
            pc.write_csv(table.slice(start, _ROWS_PER_FILE), part)
        return self

    @cached_property
    def _columns(self) -> list[pa.Array]:
        drawn = self.workload.drawn(self.count, 7)
        return [pa.array(drawn.column(name).to_pylist()) for name in self.workload.columns]

    @cached_property
    def checks(self) -> dict[str, int]:
        """What the emitted sums add up to: of all events, and of the last of each key."""
        *keys, values = (column.to_pylist() for column in self._columns)
        sums: dict[tuple[int, ...], int] = defaultdict(int)
        of_all = 0
        for *key, value in zip(*keys, values, strict=True):
            sums[tuple(key)] += value
            of_all += sums[tuple(key)]
        return {"events": of_all, "keys": sum(sums.values())}
