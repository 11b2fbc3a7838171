"""States filled from Parquet files, against Spark, which reads these files and writes them again.

Both use one core. The CPU is that of all processes, as that of Spark's JVM has to be in it. Memory
is that of a process that does nothing else: `python -m tests.bench.bootstrap SOURCE TARGET`.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import statekit as sk
from statekit.clock import stopwatch_s
from tests.bench.processes_cpu import Spent, largest_memory, spent_by
from tests.bench.report import Arm, Row

ROWS = int(os.environ.get("STATEKIT_BENCH_ROWS", "10_000_000"))
_PAIRS = 3
_RATE = 300_000
_SLOWEST = 3
_MEMORY = 600 << 20


class Order(NamedTuple):
    customer: int
    cents: int


class Total(NamedTuple):
    orders: int
    cents: int
    last: str


@sk.process(key="customer")
def spent(order: Order, total: sk.ValueState[Total]) -> None: ...


def _write(path: Path, rows: int) -> None:
    """Write totals of customers, in no order."""
    numbers = np.random.default_rng(7).permutation(rows)
    texts = pa.array([f"order-{number}" for number in range(100_000)])
    columns = {
        "customer": numbers,
        "orders": numbers % 100,
        "cents": numbers * 7,
        "last": texts.take(pa.array(numbers % 100_000)),
    }
    path.mkdir()
    pq.write_table(pa.table(columns), path / "totals.parquet", row_group_size=1_000_000)


def _fill(source: Path, target: Path) -> float:
    began_s = stopwatch_s()
    job = sk.Job("shop")
    job.source("orders", Order).process(spent)
    job.bootstrap("spent.total", source, checkpoint=target, parallelism=4)
    return stopwatch_s() - began_s


def _copy(spark: SparkSession, source: Path, target: Path) -> float:
    began_s = stopwatch_s()
    spark.read.parquet(str(source)).write.parquet(str(target))
    return stopwatch_s() - began_s


def _largest_memory(source: Path, target: Path) -> int:
    """Return the most bytes that a process has held which fills states and does nothing else."""
    words = [sys.executable, "-m", "tests.bench.bootstrap", str(source), str(target)]
    return int(subprocess.run(words, check=True, capture_output=True, text=True).stdout)


def bootstrapped() -> list[Row]:
    """CPU and time of a bootstrap, and of Spark for the same rows, in pairs."""
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    for name in ("spark.driver.bindAddress", "spark.driver.host"):
        builder = builder.config(name, "127.0.0.1")
    spark = builder.getOrCreate()
    pairs = list[dict[str, Spent]]()
    with tempfile.TemporaryDirectory(prefix="statekit-bench-") as directory:
        home = Path(directory)
        source = home / "totals"
        _write(source, ROWS)
        turns = {"statekit": partial(_fill, source), "Spark": partial(_copy, spark, source)}
        for number in range(_PAIRS + 1):
            order = list(turns)[:: 1 if number % 2 else -1]  # which one is first alternates
            target = home / f"{number}"
            target.mkdir()
            pairs.append({name: spent_by(partial(turns[name], target / name)) for name in order})
            shutil.rmtree(target)
        memory = _largest_memory(source, home / "alone")
    spark.stop()
    return [_row(pairs[1:], memory)]


def _row(pairs: Sequence[dict[str, Spent]], memory: int) -> Row:
    ours, theirs = ([pair[name] for pair in pairs] for name in ("statekit", "Spark"))
    arms = tuple(
        Arm(
            name,
            statistics.median(spent.cpu for spent in all_spent),
            "all of it",
            ROWS,
            memory=held,
            turns=tuple(spent.cpu for spent in all_spent),
        )
        for name, all_spent, held in (
            ("statekit", ours, memory),
            ("Spark, to Parquet", theirs, None),
        )
    )
    cpu, clock = (
        statistics.median(own[part] / other[part] for own, other in zip(ours, theirs, strict=True))
        for part in (1, 0)
    )
    return Row(
        f"bootstrap of {ROWS:,} rows",
        f"{ROWS / arms[0].seconds:,.0f} rows/s of one core, in {cpu:.1f} times the CPU of Spark "
        f"and {clock:.1f} times its time; at most {memory >> 20} MiB",
        f"≥ {_RATE:,} rows/s of one core, ≤ {_SLOWEST} times Spark, < {_MEMORY >> 20} MiB",
        arms,
    )


if __name__ == "__main__":
    _fill(Path(sys.argv[1]), Path(sys.argv[2]))
    print(largest_memory(), flush=True)
