"""Operators without a key on Spark: combined in each partition, and merged in one shard."""

from __future__ import annotations

import datetime as dt
from typing import Any, NamedTuple

import pytest

import statekit as sk
from tests.support.instants import at
from tests.support.spark_runs import Runs

pytestmark = pytest.mark.slow


class Bid(NamedTuple):
    bidder: int
    at: dt.datetime
    price: int


BIDS = [Bid(n % 7, at(n % 90), n * 37 % 101) for n in range(400)]


def _job() -> sk.Job:
    job = sk.Job("bids")
    bids: Any = job.source("bids", Bid)
    bids.aggregate(key=(), bids=sk.Count(), most=sk.Max("price")).sink("jvm")
    bids.top(3, by=("-price", "at")).sink("python")
    bids.count(emit="always", name="each").sink("each")
    windows = bids.window(sk.tumbling("10 s"), key=(), event_time="at", lateness="2 minutes")
    windows.top(1, by="-price", ties=True, name="windows").sink("windows")
    return job


def test_results_are_those_of_a_run_in_one_process(runs: Runs) -> None:
    names = [sink.name for sink in _job().plan.sinks]
    sinks = {name: sk.sinks.parquet(runs.home / name) for name in names}
    schema = "bidder bigint, at timestamp, price bigint"
    for start in (0, 200):
        rows: Any = BIDS[start : start + 200]
        frame = runs.spark.createDataFrame(rows, schema).coalesce(1).repartition(3)
        runs.start(
            _job(), {"bids": frame}, outputs=sinks, parallelism=2 + start // 200, drain=start > 0
        )
    expected = _job().run({"bids": BIDS}, epoch_size=200, drain=True)
    for name in names:
        found = sorted(repr(_plain(list(row.values()))) for row in runs.parquet(name))
        assert found == sorted(repr(_plain(list(row))) for row in expected.outputs[name]), name
        assert found, name


def _plain(value: Any) -> Any:
    if isinstance(value, dt.datetime):
        return value.astimezone(dt.UTC).isoformat()
    if isinstance(value, dict):
        return _plain(list(value.values()))
    return list(map(_plain, value)) if isinstance(value, list | tuple) else value
