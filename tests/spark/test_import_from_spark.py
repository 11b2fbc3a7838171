"""State of Spark's own `transformWithState` becomes a checkpoint, and the job goes on from there."""

from __future__ import annotations

import datetime as dt
import shutil
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from statekit.repository import Repository
from statekit.spark.starting import use_this_python
from statekit.spark.transform import Transformed, transform_with_state
from tests.spark.import_jobs import KEYS, OUTPUTS, PROVIDER, ROCKS, ROWS, Fades, Keeps
from tests.spark.spark_runs import ONCE, TIMEOUT_S, collector, state_of, stream_of, write_batch

START = dt.datetime(2021, 3, 28, 0, 59, tzinfo=dt.UTC)

Told = dict[int, list[Any]]
"""Outputs per micro-batch."""


@dataclass(frozen=True)
class Place:
    """Where a query of Spark's read and kept its state."""

    spark: SparkSession
    home: Path

    @property
    def input(self) -> Path:
        return self.home / "in"

    def feed(self, number: int, *rows: tuple[str | None, int | None, int, int]) -> None:
        """A file, which is a micro-batch: shop, item, number, and seconds behind the start."""
        names = [field.split()[0] for field in ROWS.split(", ")]
        values = [(shop, item, n, START + dt.timedelta(seconds=at)) for shop, item, n, at in rows]
        frame = self.spark.createDataFrame(values, ROWS).toArrow().select(names)
        write_batch(self.input, number, frame)

    def rows(self) -> DataFrame:
        return stream_of(self.spark, self.input, ROWS).withWatermark("at", "3 seconds")

    def run_spark(self, processor: StatefulProcessor, mode: str, checkpoint: Path) -> Told:
        """Spark's own query until it has read everything."""
        found, collect = collector()
        made = self.rows().groupBy(*KEYS).transformWithState(processor, OUTPUTS, "Append", mode)
        writer = made.writeStream.foreachBatch(collect).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(checkpoint)).start()
        assert query.awaitTermination(int(TIMEOUT_S))
        return by_batch(found)

    def stream(
        self, processor: StatefulProcessor | None = None, mode: str = "eventTime", **options: Any
    ) -> Transformed:
        given = {"time_mode": mode, "keys": KEYS, **options}
        return transform_with_state(
            self.rows(), processor=processor or Keeps(), output_schema=OUTPUTS, **given
        )

    def go_on(self, stream: Transformed, checkpoint: Path, **options: Any) -> Told:
        """A job of ours until it has read everything."""
        found, collect = collector()
        query = stream.sink(collect).start(
            self.spark,
            checkpoint=checkpoint,
            trigger=ONCE,
            working_directory=self.home / "working",
            **options,
        )
        assert query.await_termination(TIMEOUT_S)
        return by_batch(found)


def by_batch(found: list[tuple[int, Any]]) -> Told:
    told: Told = defaultdict(list)
    for batch, row in found:
        told[batch].append(tuple(row))
    return {batch: sorted(rows, key=repr) for batch, rows in told.items()}


@pytest.fixture(scope="module", autouse=True)
def states_in_rocksdb(spark: SparkSession) -> Iterator[None]:
    """Spark's `transformWithState` needs that, and what this interpreter has."""
    use_this_python(spark)
    before = spark.conf.get(PROVIDER)
    spark.conf.set(PROVIDER, ROCKS)
    yield
    spark.conf.set(PROVIDER, before)


@dataclass(frozen=True)
class Kept(Place):
    """A query with `Keeps` that was stopped, and what it put out when it went on."""

    told: Told

    @property
    def stopped(self) -> Path:
        return self.home / "stopped"

    @property
    def ended(self) -> Path:
        return self.home / "ended"


@pytest.fixture(scope="module")
def kept(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Kept:
    place = Place(spark, tmp_path_factory.mktemp("kept"))
    place.feed(0, ("a", 1, 1, 0), ("a", 1, 2, 1), ("b", 1, 3, 2), ("a", 2, 6, 0), ("ä", 9, 5, 3))
    place.feed(1, ("a", 1, 7, 8), ("b", 1, 4, 9), ("b", 2, 8, 10))
    place.feed(2, ("a", 1, 10, 14), ("c", 1, 11, 15), ("c", 1, 12, 11))
    place.run_spark(Keeps(), "eventTime", place.home / "ended")
    shutil.copytree(place.home / "ended", place.home / "stopped")
    place.feed(3, ("a", 1, 13, 16), ("b", 1, 14, 13), ("b", 1, 15, 4), ("d", 1, 16, 30))
    place.feed(4, ("a", 1, 17, 31), ("c", 1, 18, 40), ("ä", 9, 19, 33), ("a", 2, 20, 2))
    told = place.run_spark(Keeps(), "eventTime", place.home / "ended")
    return Kept(spark, place.home, told)


def of_data(told: Told, first: int) -> Told:
    """The micro-batches that read something."""
    return {batch: rows for batch, rows in told.items() if batch in (first, first + 1)}


def test_a_job_goes_on_from_sparks_state_as_spark_does(kept: Kept, tmp_path: Path) -> None:
    told = kept.go_on(kept.stream(), tmp_path / "c", from_spark=kept.stopped, parallelism=3)
    first = min(kept.told)
    assert of_data(told, first) == of_data(kept.told, first)
    assert Repository(tmp_path / "c").epochs()[0] == first - 1
