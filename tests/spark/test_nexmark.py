"""Nexmark on Spark: jobs of several operators and inputs come to what plain SQL says."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

import statekit as sk
from tests.bench.nexmark.events import Events
from tests.bench.nexmark.on_spark import STREAMING_SQL, NexmarkEngine, name_views
from tests.bench.nexmark.queries import QUERIES
from tests.bench.nexmark.sql import answers
from tests.support.spark_runs import Runs, write_batch

pytestmark = pytest.mark.soak

COUNT = 2_000
MADE = Events(3, rate=100, group=97)


def _in_utc(value: Any) -> Any:
    """Of a Parquet file, with a zone, or of Spark's rows, without one in that of this machine."""
    return value.astimezone(dt.UTC) if isinstance(value, dt.datetime) else value


@pytest.mark.parametrize("number", [7, 4])
def test_a_query_on_spark_has_the_result_of_sql(runs: Runs, number: int) -> None:
    query = QUERIES[number]
    for batch in range(2):
        write_batch(runs.home / "events", batch, MADE.table(batch * COUNT // 2, COUNT // 2))
    reader = runs.spark.readStream.schema(NexmarkEngine.schema).option("maxFilesPerTrigger", 1)
    events = reader.parquet(str(runs.home / "events"))
    inputs = {name: front.of_frame(events) for name, front in query.fronts.items()}
    sink = {"out": sk.sinks.parquet(runs.home / "out")}
    runs.finish(query.job(), inputs, outputs=sink, parallelism=3, drain=True)
    found = [tuple(map(_in_utc, row.values())) for row in runs.parquet("out")]
    if query.updates:
        found = list({row[0]: row for row in found}.values())
    expected = sorted(answers(number, MADE.tables(0, COUNT)))
    assert sorted(found) == [pytest.approx(row) if number == 4 else row for row in expected]
    assert len(expected) >= 2


def test_the_streaming_sql_that_is_measured_against_asks_the_same(runs: Runs) -> None:
    """Over a table, where watermarks change nothing, it comes to all results at once."""
    write_batch(runs.home / "events", 0, MADE.table(0, COUNT))
    name_views(runs.spark, runs.spark.read.parquet(str(runs.home / "events")))
    for number, (_, text) in STREAMING_SQL.items():
        found = [tuple(map(_in_utc, row)) for row in runs.spark.sql(text).collect()]
        assert sorted(found) == sorted(answers(number, MADE.tables(0, COUNT))), number
