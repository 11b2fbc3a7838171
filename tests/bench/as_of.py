"""Point-in-time reads: values of a store with a history for a table of keys and times.

`python -m tests.bench.as_of DIRECTORY QUESTIONS` is one process, which prints its CPU seconds and
its largest memory.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

import statekit as sk
from tests.bench.processes_cpu import largest_memory
from tests.bench.report import Arm, Row

ROWS = int(os.environ.get("STATEKIT_BENCH_ROWS", "1_000_000"))
QUESTIONS = 100_000, 1_000
_VERSIONS = 8
_KEYS = ROWS // (_VERSIONS + 2)
"""A key has one row of its value, one of its time, and one of each replaced value."""

_RUNS = 3
_HOUR_US = 3_600_000_000
_TIME = pa.timestamp("us", "UTC")
_START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
_NOW = _START + dt.timedelta(hours=_VERSIONS + 2)
_START_US = int(_START.timestamp()) * 1_000_000


class Price(NamedTuple):
    cents: int
    currency: str


class Put(NamedTuple):
    item: int
    price: Price
    at: dt.datetime


def _job() -> sk.Job:
    job = sk.Job("shop")
    store = job.add(sk.KVStore("prices", key=int, value=Price, event_time="at", history="7 days"))
    store.put(job.source("puts", Put), key="item", value="price")
    return job


def _instants(hours: np.ndarray) -> pa.Array:
    return pa.array(_START_US + hours * _HOUR_US).cast(_TIME)


def _fill(home: Path) -> None:
    """Write a checkpoint in which each key has a value that was replaced once an hour."""
    keys = np.arange(_KEYS)
    rows = np.repeat(keys, _VERSIONS)
    hours = np.tile(np.arange(_VERSIONS), _KEYS)
    cents = pa.array(rows + hours)
    currency = pa.array(["EUR"] * len(rows))
    since = _instants(hours)
    price = pa.StructArray.from_arrays([cents, currency], ["cents", "currency"])
    replaced = _instants(hours + 1)
    former = {"key": rows, "map_key": replaced, "since": since, "written": replaced}
    tables = {
        "value": {"cents": keys, "currency": pa.array(["EUR"] * _KEYS)},
        "since": {"value": _instants(np.full(_KEYS, _VERSIONS))},
    }
    given = {name: pa.table({"key": keys, **columns}) for name, columns in tables.items()}
    given["former"] = pa.table({**former, "value": price})
    named = {f"prices.{name}": table for name, table in given.items()}
    _job().bootstrap(named, checkpoint=home, parallelism=4, watermark=_NOW)


def _asked(questions: int) -> pa.Table:
    chosen = np.random.default_rng(7)
    minutes = chosen.integers(0, 60 * (_VERSIONS + 1), questions)
    times = pa.array(_START_US + minutes * 60_000_000).cast(_TIME)
    return pa.table({"key": chosen.integers(0, _KEYS, questions), "at": times})


def _main(home: Path, questions: int) -> None:
    """Read once, and print what that took."""
    asked = _asked(questions)
    before = largest_memory()
    began = time.process_time()
    table = sk.read(home, "prices", "value", as_of=asked).read_all()
    cpu = time.process_time() - began
    peak = largest_memory()
    assert set(table["status"].to_pylist()) == {"found"}
    print(json.dumps([cpu, peak, peak - before]), flush=True)


def _measured(home: Path, questions: int) -> tuple[float, int, int]:
    words = [sys.executable, "-m", "tests.bench.as_of", str(home), str(questions)]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    cpu, peak, added = json.loads(done.stdout)
    return cpu, peak, added


def point_in_time() -> list[Row]:
    """CPU seconds and memory of a read, in a process of its own."""
    found = []
    with tempfile.TemporaryDirectory(prefix="statekit-bench-") as directory:
        home = Path(directory) / "prices"
        _fill(home)
        for questions in QUESTIONS:
            cpus, peaks, added = zip(
                *(_measured(home, questions) for _ in range(_RUNS)), strict=True
            )
            cpu = statistics.median(cpus)
            arm = Arm("statekit.read(as_of=)", cpu, "all of it", questions, memory=max(peaks))
            result = (
                f"{cpu:.2f} s of CPU, {ROWS / cpu:,.0f} rows of state per CPU second; at most "
                f"{max(peaks) >> 20} MiB, of which {max(added) >> 20} MiB by the read"
            )
            measured = f"values at {questions:,} keys and times, of {ROWS:,} rows"
            found.append(Row(measured, result, "", (arm,)))
    return found


if __name__ == "__main__":
    _main(Path(sys.argv[1]), int(sys.argv[2]))
