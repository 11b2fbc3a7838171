"""Engines that are measured against each other do the same work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.bench.on_spark import Engine, StatekitTotals
from tests.bench.pandas_on_spark import GroupedPandasCount, PandasCount
from tests.bench.states_on_spark import (
    SparkEntries,
    SparkJoin,
    SparkTotals,
    SparkWindows,
    StatekitEntries,
    StatekitJoin,
    StatekitWindows,
)
from tests.bench.time_on_spark import SparkSessions, StatekitSessions, session_moments
from tests.bench.workload import entries, events, moments, orders_and_offers
from tests.support.spark_runs import parquet_rows

pytestmark = pytest.mark.soak

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


def put_out(
    spark: SparkSession, home: Path, engines: Sequence[type[Engine]], tables: Iterable[pa.Table]
) -> list[list[tuple[Any, ...]]]:
    """What each engine writes, sorted; each is fed all tables in turn."""
    homes = [home / made.__name__ for made in engines]
    running = [made(spark, own, "parquet") for made, own in zip(engines, homes, strict=True)]
    for table in tables:
        for engine in running:
            engine.feed(table)
    return [sorted(tuple(row.values()) for row in parquet_rows(own / "out")) for own in homes]


def test_both_engines_end_the_same_sessions(as_measured: SparkSession, tmp_path: Path) -> None:
    tables = (session_moments(60, number, keys=40) for number in range(3))
    ours, theirs = put_out(as_measured, tmp_path, (StatekitSessions, SparkSessions), tables)
    assert ours == theirs
    assert len(ours) > 10


class WrittenTotals(SparkTotals):
    """In update mode, which files have no part in, batch by batch."""

    def started(self, out: DataFrame, mode: str = "append") -> StreamingQuery:
        def write(df: DataFrame, _: int) -> None:
            df.write.mode("append").parquet(str(self.home / "out"))

        writer = out.writeStream.outputMode(mode).foreachBatch(write)
        return writer.option("checkpointLocation", str(self.home / "checkpoint")).start()


@pytest.mark.parametrize(
    ("engines", "drawn"),
    [
        ((StatekitEntries, SparkEntries), entries),
        ((StatekitTotals, WrittenTotals), partial(events, keys=20)),
        ((StatekitWindows, SparkWindows), partial(moments, keys=20)),
        ((StatekitJoin, SparkJoin), orders_and_offers),
        ((PandasCount, GroupedPandasCount), partial(events, keys=10)),
    ],
    ids=["entries", "totals", "windows", "join", "pandas"],
)
def test_engines_emit_the_same(
    engines: tuple[type[Engine], type[Engine]],
    drawn: Callable[[int, int], pa.Table],
    as_measured: SparkSession,
    tmp_path: Path,
) -> None:
    ours, theirs = put_out(as_measured, tmp_path, engines, (drawn(40, 0), drawn(40, 1)))
    assert ours == theirs
    assert len(ours) > 10
