"""States filled from Parquet files, against Spark, which reads these files and writes them again.

Both use one core. What is compared is the CPU of all processes: that of Spark's JVM has to be in
it, and waiting for a disk does not.
"""

from __future__ import annotations

import statistics
import tempfile
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import statekit as sk
from statekit.clock import stopwatch_s
from tests.bench.processes_cpu import spent_by
from tests.bench.report import Arm, Row

ROWS = 10_000_000
_RUNS = 3
_RATE = 300_000
_SLOWEST = 3


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
    columns = {
        "customer": numbers,
        "orders": numbers % 100,
        "cents": numbers * 7,
        "last": pa.array([f"order-{number % 100_000}" for number in numbers.tolist()]),
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


def bootstrapped(rows: int = ROWS) -> list[Row]:
    """CPU of a bootstrap, and of Spark for the same rows, in turns."""
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    for name in ("spark.driver.bindAddress", "spark.driver.host"):
        builder = builder.config(name, "127.0.0.1")
    spark = builder.getOrCreate()
    turns = []
    with tempfile.TemporaryDirectory(prefix="statekit-bench-") as directory:
        home = Path(directory)
        source = home / "totals"
        _write(source, rows)
        for number in range(_RUNS + 1):
            own = spent_by(partial(_fill, source, home / f"own-{number}")).cpu
            others = spent_by(partial(_copy, spark, source, home / f"spark-{number}")).cpu
            turns.append((own, others))
    spark.stop()
    ours, theirs = zip(*turns[1:], strict=True)
    arms = (
        Arm("statekit", statistics.median(ours), "all of it", rows, turns=ours),
        Arm("Spark, to Parquet", statistics.median(theirs), "all of it", rows, turns=theirs),
    )
    rate = rows / arms[0].seconds
    return [
        Row(
            f"bootstrap of {rows:,} rows",
            f"{rate:,.0f} rows/s of one core, in {arms[0].seconds / arms[1].seconds:.1f} times the "
            "CPU of Spark",
            f"≥ {_RATE:,} rows/s of one core, ≤ {_SLOWEST} times Spark",
            arms,
        )
    ]
