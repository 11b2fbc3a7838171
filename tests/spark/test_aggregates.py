"""Known aggregates on Spark: combined in each partition, and then the same as in one process."""

from __future__ import annotations

import datetime as dt
import decimal
from typing import Any, NamedTuple

import pytest

import statekit as sk
from tests.support.spark_runs import Runs, pieces
from tests.unit.job.test_built_in_aggregates import AGGREGATES, Order, Sale, sale

SCHEMA = (
    "shop string, number long, cents long, euros decimal(20, 4), weight double, name string, "
    "at timestamp, day date, took interval day to second"
)


def _sales() -> list[Sale]:
    hours = [dt.timedelta(hours=n) for n in range(40)]
    noon = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
    return [
        sale(
            (None, "a", "b", "c")[n % 4],
            n % 2,
            cents=n * n,
            euros=None if n % 5 == 0 else decimal.Decimal(n).scaleb(-2),
            weight=None if n % 3 == 0 else n / 2,
            name=None if n % 7 == 0 else f"name {n}",
            at=noon - hour,
            day=(noon - hour).date(),
            took=hour,
        )
        for n, hour in enumerate(hours)
    ]


def _job(*key: str) -> sk.Job:
    job = sk.Job("shop")
    source: Any = job.source("sales", Sale)
    source.aggregate(key=key, **AGGREGATES).sink("out")
    return job


def _by_key(results: list[Any]) -> list[tuple[Any, ...]]:
    rows = [tuple(map(_as_parquet_has_it, result)) for result in results]
    return sorted(rows, key=lambda row: (row[0] or "", row[1]))


def _as_parquet_has_it(value: Any) -> Any:
    """Spark writes intervals as their microseconds."""
    return value // dt.timedelta(microseconds=1) if isinstance(value, dt.timedelta) else value


def test_results_and_states_are_those_of_a_run_in_one_process(runs: Runs) -> None:
    given, sink = _sales(), sk.sinks.parquet(runs.home / "out")
    for piece in pieces(given, 20):
        frame = runs.spark.createDataFrame(list(map(tuple, piece)), SCHEMA).repartition(3)
        query = runs.start(_job("shop", "number"), {"sales": frame}, outputs={"out": sink})
        assert query.last_progress is not None
        assert query.last_progress.records_in == len(piece)
    expected = _job("shop", "number").run({"sales": given}, epoch_size=20).outputs["out"]
    found = [tuple(row.values()) for row in runs.parquet("out")]
    assert _by_key(found) == _by_key(expected)
    held = runs.state("aggregate_by_shop_number", "cents")
    last = {(result.shop, result.number): result.cents for result in expected}
    assert held == last


class Entry(NamedTuple):
    shop: str
    cents: int


@pytest.mark.parametrize("record", [Order, Entry])
def test_few_records_are_combined_as_many_are(runs: Runs, record: type[Any]) -> None:
    """Those of later epochs without a shuffle, and models by the keys that they give themselves."""
    job = sk.Job("shop")
    source: Any = job.source("orders", record)
    source.aggregate(key="shop", cents=sk.Sum("cents"), orders=sk.Count()).sink("out")
    for cents in (1, 10, 100):
        orders = [{"shop": shop, "cents": cents} for shop in ("Ada", "ada", "BOB", "Ada")]
        runs.feed("orders", orders)
    inputs = {"orders": runs.stream("orders", "shop string, cents bigint")}
    runs.finish(job, inputs, outputs={"out": sk.sinks.parquet(runs.home / "out")}, parallelism=3)
    found = runs.state("aggregate_by_shop", "cents")
    expected = {"ada": 333, "bob": 111}
    assert found == (expected if record is Order else {"Ada": 222, "ada": 111, "BOB": 111})
