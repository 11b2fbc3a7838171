"""The demo's Spark drivers: separate processes, so that they can be killed."""

from __future__ import annotations

import json
import logging
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import statekit as sk
from statekit.demo.check import airports, compare_with_file
from statekit.demo.flights import build_job

SCHEMA = "tailnum string, origin string, dest string, departed timestamp, arr_delay double"
SINKS = ("turnarounds", "late", "airports", "grounded", "hours")

# A JVM that lives for seconds ends before its second compiler and parallel collector pay off.
_SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def demo_session() -> SparkSession:
    """Return local Spark on two cores, quiet, in this process."""
    logging.getLogger("py4j").setLevel(logging.ERROR)
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("statekit demo")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", _SHORT_LIVED)
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    return spark


def stream(home: Path, parallelism: int, epochs: int | None) -> None:
    """Start Spark, then wait for a line of standard input, and stream the input from the checkpoint
    on. Stop after `epochs`, or check the job's output at the end and print its results.
    """
    spark = demo_session()
    if not sys.stdin.readline():
        return  # the demo has ended
    _run(spark, home, parallelism, epochs, {"availableNow": True}, maxFilesPerTrigger=1)
    if epochs is None:
        _print_json(ends=True)
        comparisons = compare_with_file(spark, home / "flights.csv", home)
        _print_json(airports=airports(spark, home), comparisons=comparisons)


def stream_until_ended(home: Path, parallelism: int) -> None:
    """Stream files as they appear, until the process is ended."""
    _run(demo_session(), home, parallelism, None, {"processingTime": "1 second"})


def _run(
    spark: SparkSession,
    home: Path,
    parallelism: int,
    epochs: int | None,
    trigger: dict[str, Any],
    **options: Any,
) -> None:
    """Run the job over the files of the input, and print its epochs."""
    flights = spark.readStream.schema(SCHEMA).options(**options)
    query = build_job().start(
        spark,
        inputs={"flights": flights.parquet(str(home / "input"))},
        outputs={name: sk.sinks.parquet(home / name) for name in SINKS},
        checkpoint=home / "checkpoint",
        parallelism=parallelism,
        trigger=trigger,
        drain="availableNow" in trigger,
        working_directory=home / "working",
    )
    shown, is_running = -1, True
    first = None
    while is_running:
        is_running = not query.await_termination(timeout_s=0.1)
        for progress in [each for each in list(query.progress) if each.epoch > shown]:
            shown = progress.epoch
            first = shown if first is None else first
            _print_json(
                epoch=shown,
                shards=parallelism,
                records=progress.records_in,
                seconds=progress.seconds,
                rate=progress.events_per_second,
                rows=sum(progress.state_rows.values()),
                watermark=_watermark(progress.watermarks["turnaround"]),
            )
        if epochs is not None and first is not None and shown - first + 1 >= epochs:
            query.stop()
            return


def _watermark(at: datetime) -> str:
    if at.year == 1:
        return "none yet"
    return f"{at:%b %d %H:%M}" if at.year == 2013 else "at its end"


def _print_json(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def drive() -> None:
    """Run a driver of the demo: `stream HOME SHARDS [EPOCHS]`, or `play HOME SHARDS`."""
    command, home, *arguments = sys.argv[1:]
    if command == "play":
        stream_until_ended(Path(home), int(arguments[0]))
    else:
        parallelism, *epochs = map(int, arguments)
        stream(Path(home), parallelism, epochs[0] if epochs else None)


if __name__ == "__main__":
    drive()
