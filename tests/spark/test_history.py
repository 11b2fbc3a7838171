"""A history, then a stream, on Spark and in one process in turn."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import statekit as sk
from tests.support.history_job import HISTORY, append, check_once, history_job, write_history

pytestmark = pytest.mark.slow

ONCE = {"availableNow": True}


def on_spark(spark: SparkSession, home: Path, epoch_size: int) -> None:
    query = history_job(home).start(
        spark, trigger=ONCE, checkpoint=home / "checkpoint", parallelism=2, epoch_size=epoch_size
    )
    query.await_termination()


def test_a_history_and_the_stream_after_it_are_read_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_history(tmp_path)
    append(tmp_path, HISTORY, 5)
    on_spark(spark, tmp_path, 50)
    append(tmp_path, HISTORY + 5, 20)
    history_job(tmp_path).run(checkpoint=tmp_path / "checkpoint", epoch_size=10)
    append(tmp_path, HISTORY + 25, 15)
    on_spark(spark, tmp_path, 100)
    check_once(tmp_path, HISTORY + 40)


def test_a_job_continues_on_spark_from_a_bootstrap(spark: SparkSession, tmp_path: Path) -> None:
    write_history(tmp_path)
    append(tmp_path, HISTORY, 5)
    table = pa.table({"key": [0, 1], "value": [1000, 2000]})
    checkpoint = tmp_path / "checkpoint"
    history_job(tmp_path).bootstrap("counted.count", table, checkpoint=checkpoint)
    on_spark(spark, tmp_path, 50)
    rows = sk.read(checkpoint, "counted", "count").read_all().to_pylist()
    counts = {row["key"]: row["value"] for row in rows}
    records = [sum(number % 17 == key for number in range(HISTORY + 5)) for key in range(17)]
    assert counts == {key: n + {0: 1000, 1: 2000}.get(key, 0) for key, n in enumerate(records)}
