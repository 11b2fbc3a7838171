"""A process that joins one record with many of its key, and tells the peak of its memory.

Run it twice with one directory: the first time loads the right rows, the second one joins.
"""

from __future__ import annotations

import datetime as dt
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import statekit as sk

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
LIMITS = sk.RocksOptions(block_cache_bytes=8 << 20, write_memory_bytes=16 << 20)


class Left(NamedTuple):
    key: int
    number: int
    at: dt.datetime


class Right(NamedTuple):
    key: int
    number: int
    at: dt.datetime


class Pair(NamedTuple):
    left: int
    right: int


def rights(count: int) -> Iterator[Right]:
    for number in range(count):
        yield Right(1, number, START + dt.timedelta(milliseconds=number))


def main(home: str, count: int) -> None:
    job = sk.Job("one-large-key")
    left, right = job.source("left", Left), job.source("right", Right)
    numbers = {"left": "left.number", "right": "right.number"}
    pairs = left.join(
        right,
        on="key",
        within="1 hour",
        event_time="at",
        lateness="1 hour",
        into=Pair,
        fields=numbers,
    )
    pairs.sink("pairs", sk.sinks.parquet(f"{home}/pairs"))
    joins = sys.argv[3] == "join"
    lefts = [Left(1, 1, START + dt.timedelta(minutes=10))] if joins else []
    job.run(
        {"left": lefts, "right": rights(count)},
        checkpoint=f"{home}/checkpoint",
        epoch_size=20_000,
        drain=False,
        backend="rocksdb",
        rocksdb=LIMITS,
    )
    # Unlike the peak of `getrusage`, this is not that of the process before `exec`.
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert peak is not None
    print(int(peak[1]) // 1024)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
