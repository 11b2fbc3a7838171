"""Nexmark on Spark: jobs of several operators and inputs come to what plain SQL says."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

import statekit as sk
from tests.bench.nexmark.events import Events
from tests.bench.nexmark.on_spark import NexmarkEngine
from tests.bench.nexmark.queries import QUERIES
from tests.bench.nexmark.sql import answers
from tests.spark.spark_runs import Runs, write_batch

COUNT = 2_000


def _in_utc(value: Any) -> Any:
    return value.astimezone(dt.UTC) if isinstance(value, dt.datetime) else value


@pytest.mark.parametrize("number", [7, 4])
def test_a_query_on_spark_comes_to_what_sql_says(runs: Runs, number: int) -> None:
    query, made = QUERIES[number], Events(3, rate=100, group=97)
    for batch in range(2):
        write_batch(runs.home / "events", batch, made.table(batch * COUNT // 2, COUNT // 2))
    reader = runs.spark.readStream.schema(NexmarkEngine.schema).option("maxFilesPerTrigger", 1)
    events = reader.parquet(str(runs.home / "events"))
    inputs = {name: front.of_frame(events) for name, front in query.fronts.items()}
    sink = {"out": sk.sinks.parquet(runs.home / "out")}
    runs.finish(query.job(), inputs, outputs=sink, parallelism=3, drain=True)
    found = [tuple(map(_in_utc, row.values())) for row in runs.parquet("out")]
    if query.updates:
        found = list({row[0]: row for row in found}.values())
    expected = sorted(answers(number, made.tables(0, COUNT)))
    assert sorted(found) == [pytest.approx(row) if number == 4 else row for row in expected]
    assert len(expected) >= 2
