"""A Spark driver on a cluster: streams `HOME/events`, prints where the shards of each epoch ran.

    python placement_driver.py HOME MASTER EXECUTORS SHARDS LAST [WORKING_DIRECTORY]

It begins once the cluster has so many executors, and stops after the last epoch.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import SparkSession

import statekit as sk
import statekit.spark
from tests.support.spark_runs import SHORT_LIVED, stream_of


class Hit(NamedTuple):
    page: int
    number: int


@sk.process(key="page")
def hits(hit: Hit, count: sk.ValueState[int], last: sk.MapState[int, int]) -> None:
    count.update((count.get() or 0) + 1)
    last[hit.number % 3] = hit.number


def session(master: str) -> SparkSession:
    builder = SparkSession.builder.master(master).config("spark.driver.host", "127.0.0.1")
    options = {
        "spark.executor.memory": "512m",
        "spark.executorEnv.PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        "spark.executor.extraJavaOptions": " ".join(SHORT_LIVED),
        "spark.pyspark.python": sys.executable,
        "spark.ui.enabled": "false",
    }
    for name, value in options.items():
        builder = builder.config(name, value)
    spark = statekit.spark.session(builder)
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def main(
    home: Path, master: str, executors: int, shards: int, last: int, working: str | None = None
) -> None:
    spark = session(master)
    java: Any = spark.sparkContext._jsc
    while java.sc().getExecutorIds().size() < executors:
        time.sleep(0.1)
    job = sk.Job("site")
    job.source("events", Hit).process(hits)
    query = job.start(
        spark,
        inputs={"events": stream_of(spark, home / "events", "page long, number long")},
        checkpoint=home / "checkpoint",
        parallelism=shards,
        trigger={"processingTime": "50 milliseconds"},
        working_directory=working,
    )
    shown = -1
    while shown < last:
        assert not query.await_termination(timeout_s=0.1)
        for progress in [each for each in list(query.progress) if each.epoch > shown]:
            shown = progress.epoch
            facts = dataclasses.asdict(progress)
            names = ("epoch", "executors", "moved_shards", "restored_bytes", "caught_up_bytes")
            line = {name: facts[name] for name in (*names, "changed_bytes", "seconds")}
            print(json.dumps(line), flush=True)
    query.stop()
    spark.stop()


def _numbers(words: list[str]) -> tuple[int, int, int]:
    executors, shards, last = map(int, words)
    return executors, shards, last


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], *_numbers(sys.argv[3:6]), *sys.argv[6:])
