"""Engines that are measured against each other do the same work."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.bench.time_on_spark import SparkSessions, StatekitSessions, session_moments
from tests.spark.spark_runs import parquet_rows

PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


@pytest.fixture
def as_measured(spark: SparkSession) -> Iterator[SparkSession]:
    """A session with the settings that transformWithState is measured with."""
    settings = {
        "spark.sql.streaming.stateStore.providerClass": PROVIDER,
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    }
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield spark
    for query in spark.streams.active:
        query.stop()
    for name in settings:
        spark.conf.unset(name)


def test_both_engines_end_the_same_sessions(as_measured: SparkSession, tmp_path: Path) -> None:
    homes = [tmp_path / "ours", tmp_path / "theirs"]
    made = (StatekitSessions, SparkSessions)
    engines = [
        engine(as_measured, home, writes="parquet")
        for engine, home in zip(made, homes, strict=True)
    ]
    for number in range(3):
        for engine in engines:
            engine.feed(session_moments(60, number, keys=40))
    ours, theirs = (
        sorted((row["key"], row["events"]) for row in parquet_rows(home / "out")) for home in homes
    )
    assert ours == theirs
    assert len(ours) > 10
