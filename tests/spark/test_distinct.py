"""Distinct records on Spark: duplicates are removed before the shuffle, and none is lost."""

from __future__ import annotations

import datetime as dt
import random
from typing import Any, NamedTuple

import pytest

import statekit as sk
from tests.support.instants import at
from tests.support.spark_runs import Runs

pytestmark = pytest.mark.slow


class Click(NamedTuple):
    user: int
    at: dt.datetime
    number: int


_CHOICE = random.Random(5)
CLICKS = [
    Click(_CHOICE.randrange(40), at(_CHOICE.randrange(300)), number) for number in range(2_000)
]


def _job() -> sk.Job:
    job = sk.Job("clicks")
    clicks = job.source("clicks", Click)
    clicks.distinct("user").sink("once")
    within = {"within": "20 s", "event_time": "at", "lateness": "10 minutes"}
    clicks.distinct("user", name="often", **within).sink("often")  # type: ignore[arg-type]
    return job


def test_records_are_those_of_a_run_in_one_process(runs: Runs) -> None:
    sinks = {name: sk.sinks.parquet(runs.home / name) for name in ("once", "often")}
    for start in range(0, len(CLICKS), 1_000):
        # In one order: a frame of one partition is read from its first row on.
        rows: Any = CLICKS[start : start + 1_000]
        frame = runs.spark.createDataFrame(
            rows, "user bigint, at timestamp, number bigint"
        ).coalesce(1)
        runs.start(_job(), {"clicks": frame}, outputs=sinks, parallelism=3, drain=False)
    expected = _job().run({"clicks": CLICKS}, epoch_size=1_000, drain=False)
    for name in sinks:
        numbers = sorted(row["number"] for row in runs.parquet(name))
        assert numbers == sorted(click.number for click in expected.outputs[name]), name
        assert len(numbers) >= 40
