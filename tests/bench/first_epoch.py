"""The first epoch of a new process against a later one, beside Spark's own stateful query:
`python -m tests.bench.first_epoch statekit|spark DIRECTORY` is one process.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import statekit as sk
from statekit.clock import stopwatch_s
from tests.bench.report import SPARK_DURABLE, STATEKIT_DURABLE, Arm, Row

RECORDS, KEYS, BATCHES, ROUNDS = 20_000, 5_000, 6, 5
_ONCE = {"availableNow": True}
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class Event(NamedTuple):
    key: int
    value: int


@sk.process(key="key")
def count(event: Event, total: sk.ValueState[int]) -> Iterator[Event]:
    total.update((total.get() or 0) + event.value)
    yield Event(event.key, total.get() or 0)


def _statekit(spark: SparkSession, events: DataFrame, home: Path) -> list[float]:
    job = sk.Job("count")
    job.source("events", Event).process(count).sink("totals")
    query = job.start(
        spark,
        {"events": events},
        outputs={"totals": sk.sinks.writer("noop")},
        checkpoint=home / "checkpoint",
        working_directory=home / "working",
        parallelism=2,
        trigger=_ONCE,
        drain=False,
    )
    query.await_termination()
    return [progress.seconds for progress in query.progress]


def _spark(spark: SparkSession, events: DataFrame, home: Path) -> list[float]:
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", _ROCKSDB)
    totals = events.groupBy("key").agg(F.sum("value"))
    writer = totals.writeStream.outputMode("update").format("noop").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(home / "checkpoint")).start()
    query.awaitTermination()
    return [each["durationMs"]["triggerExecution"] / 1e3 for each in query.recentProgress][:BATCHES]


def _main(system: str, home: Path) -> None:
    """Run a stream, and print the seconds of each batch, and those until the first one ended."""
    values = list(range(RECORDS))
    table = pa.table({"key": [value % KEYS for value in values], "value": values})
    (home / "events").mkdir()
    for number in range(BATCHES):
        pq.write_table(table, home / "events" / f"{number}.parquet")
    builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", "2")
    for name in ("spark.driver.bindAddress", "spark.driver.host"):
        builder = builder.config(name, "127.0.0.1")
    spark = builder.config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    stream = spark.readStream.schema("key long, value long").option("maxFilesPerTrigger", 1)
    events = stream.parquet(str(home / "events"))
    began_s = stopwatch_s()
    seconds = (_statekit if system == "statekit" else _spark)(spark, events, home)
    until_first_s = stopwatch_s() - began_s - sum(seconds[1:])
    print(json.dumps({"seconds": seconds, "until_first": until_first_s}), flush=True)
    spark.stop()


def _measured(system: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as home:
        words = (sys.executable, "-m", "tests.bench.first_epoch", system, home)
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
        done = subprocess.run(
            words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True, env=environment
        )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def first_epochs() -> list[Row]:
    """How much longer the first epoch takes than a later one."""
    arms, said = [], []
    for system, durable in (("statekit", STATEKIT_DURABLE), ("Spark SQL", SPARK_DURABLE)):
        runs = [_measured(system) for _ in range(ROUNDS)]
        firsts = [run["seconds"][0] for run in runs]
        warm = statistics.median(run["seconds"][-1] for run in runs)
        until = statistics.median(run["until_first"] for run in runs)
        first = statistics.median(firsts)
        arms.append(Arm(system, first, durable, RECORDS, turns=tuple(firsts)))
        said.append(
            f"{system}: {first:.2f} s, {first - warm:.2f} s more than a warm one; {until:.2f} s "
            "after the start"
        )
    return [
        Row(
            f"first epoch of a new process, {RECORDS:,} events, running totals",
            "; ".join(said),
            "3 s more than a warm one",
            tuple(arms),
            note="The JVM compiles and loads classes in both; Spark SQL starts no Python worker.",
        )
    ]


BENCHMARKS = {"first-epoch": first_epochs}


if __name__ == "__main__":
    _main(sys.argv[1], Path(sys.argv[2]))
