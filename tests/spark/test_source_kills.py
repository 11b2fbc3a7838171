"""Streams of changes that are killed at any point write each change once."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import statekit as sk
from statekit.checkpoint.leases.lease_files import lease_of
from statekit.checkpoint.repository import Repository
from statekit.spark import register
from statekit.testing import Harness
from tests.support.change_rows import in_order, row_of, rows_of_feed
from tests.support.changes_driver import follow
from tests.support.counting_job import entries, tally
from tests.support.effort import SOAK
from tests.support.spark_drivers import KillableProcess
from tests.support.timeouts import PATIENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("class_archive")]

QUERIES = 4 if SOAK else 1
"""Queries of one driver, which one kill ends at different points."""

KILLS = 5 if SOAK else 1
EPOCH_S = 0.2
"""Queries read a few epochs in a micro-batch, which takes about as long as several of these."""


class Followed:
    """A job whose changes a query follows.

    Attributes:
        home: the directory of checkpoint, output and Spark's part.
    """

    def __init__(self, home: Path) -> None:
        home.mkdir()
        self.home = home
        self.checkpoint = home / "c"
        self._harness = Harness(tally, checkpoint=self.checkpoint, parallelism=2)
        self._epochs = 0
        self.run(2)

    def run(self, epochs: int) -> None:
        """Commit some epochs, and change the parallelism now and then."""
        for _ in range(epochs):
            self._epochs += 1
            if self._epochs % 7 == 0:
                self._harness.rescale(1 + self._epochs % 3)
            self._harness.send(*entries(self._epochs, 10))

    def check(self, spark: SparkSession) -> None:
        """Compare the written changes with the feed, and the state that they lead to."""
        written = spark.read.parquet(str(self.home / "out")).collect()
        rows = in_order(row_of(["key"], row.asDict()) for row in written)
        first = min(row["epoch"] for row in rows)
        assert {row["kind"] for row in rows if row["epoch"] == first} == {"snapshot"}
        own = [time_left_out(row) for row in rows if row["epoch"] > first]
        feed = rows_of_feed(self.checkpoint, "tally", "parity", after=first)
        assert own == [time_left_out(row) for row in feed], "each change once"
        table = sk.read(self.checkpoint, "tally", "parity").read_all().to_pylist()
        stored = {(row["key"], row["map_key"]): row["value"] for row in table}
        assert applied(rows) == stored


def time_left_out(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "processing_time"}


def applied(rows: list[dict[str, Any]]) -> dict[tuple[str, str], int]:
    """The table that the changes lead to: within an epoch, "clear" comes first."""
    table: dict[tuple[str, str], int] = {}
    for row in sorted(rows, key=lambda row: (row["epoch"], row["op"] != "clear")):
        if row["op"] == "clear":
            table = {place: value for place, value in table.items() if place[0] != row["key"]}
        elif row["op"] == "delete":
            table.pop((row["key"], row["place"]), None)
        else:
            table[row["key"], row["place"]] = row["value"]
    return table


def test_changes_are_written_once_by_queries_that_are_killed_at_random_points(
    spark: SparkSession, tmp_path: Path
) -> None:
    followed = [Followed(tmp_path / f"query-{number}") for number in range(QUERIES)]
    homes = [one.home for one in followed]
    for seed in range(KILLS):
        chosen = random.Random(seed)
        with KillableProcess("changes_driver.py", *homes, log=tmp_path / "log") as driver:
            driver.wait_for("ready")
            end = time.monotonic() + chosen.uniform(0.0, 4.0)
            while time.monotonic() < end:
                chosen.choice(followed).run(1)
                time.sleep(EPOCH_S)
            driver.kill()
            assert driver.wait() == -signal.SIGKILL, driver.log()
        for one in followed:
            one.run(chosen.randint(0, 3))
    register(spark)
    for one in followed:
        query = follow(spark, one.home, availableNow=True)
        assert query.awaitTermination(int(PATIENCE_S))
        one.check(spark)
        lease = lease_of(Repository(one.checkpoint), "mirror")
        assert lease is not None, "the last run took it over from the killed one"
