"""Bad records on Spark: failed records have frames of their own, and are those of one process."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from pyspark.sql import DataFrame

import statekit as sk
from statekit.checkpoint.repository import Repository
from tests.support.spark_runs import Runs

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
SCHEMA = "customer string, cents long, at timestamp"


class Order(NamedTuple):
    customer: str
    cents: int
    at: dt.datetime


class Total(NamedTuple):
    customer: str
    cents: int


class Alert(NamedTuple):
    customer: str


@sk.process(key="customer", event_time="at", on_error="collect")
def totals(
    order: Order, ctx: sk.Context, total: sk.ValueState[int], seen: sk.ListState[int]
) -> Iterator[Total | Alert]:
    total.update((total.get() or 0) + order.cents)
    seen.append(order.cents)
    ctx.timers.set(order.at)
    yield Total(order.customer, total.get() or 0)
    if order.cents % 10 == 7:
        raise ValueError(f"{order.cents} cents")


@totals.on_timer
def due(timer: sk.Timer, ctx: sk.Context, total: sk.ValueState[int]) -> Iterator[Total | Alert]:
    yield Alert(str(ctx.key))
    total.update(0)
    if timer.at.minute % 10 == 3:
        raise KeyError(timer.at.minute)


@sk.process(key="customer", on_error="drop")
def spent(order: Order, total: sk.ValueState[int]) -> Iterator[str]:
    total.update((total.get() or 0) + order.cents)
    if order.cents % 10 == 6:
        raise ValueError
    yield f"{order.customer} {total.get()}"


@sk.process(key="error")
def counted(failed: sk.FailedRecord, seen: sk.ValueState[int]) -> Iterator[str]:
    seen.update((seen.get() or 0) + 1)
    yield f"{failed.error} {seen.get()}"


@sk.process(key="customer", on_error="collect", max_errors=2)
def limited(order: Order, total: sk.ValueState[int]) -> Iterator[str]:
    if order.cents < 0:
        raise ValueError(f"{order.cents} cents")
    yield order.customer


def shop() -> sk.Job:
    """Two operators that share rows; one emits several types, and its errors are processed."""
    job = sk.Job("shop")
    orders = job.source("orders", Order)
    outputs = orders.process(totals)
    outputs.of(Total).sink("totals")
    outputs.of(Alert).sink("alerts")
    outputs.errors.sink("errors")
    outputs.errors.process(counted).sink("counted")
    orders.process(spent).sink("spent")
    return job


def orders(batch: int) -> list[Order]:
    begin = NOON + batch * dt.timedelta(hours=1)
    return [
        Order(f"c{number % 7}", (number * 37) % 200, begin + dt.timedelta(minutes=number))
        for number in range(60)
    ]


def test_failed_records_of_a_stream_are_those_of_one_process(runs: Runs) -> None:
    for batch in (0, 1):
        runs.feed("orders", [order._asdict() for order in orders(batch)])
    job = shop()
    rows: dict[str, list[tuple[Any, ...]]] = {}

    def collected(name: str) -> Any:
        found = rows.setdefault(name, [])
        return lambda df, epoch: found.extend(tuple(row) for row in df.collect())

    outputs = {sink.name: collected(sink.name) for sink in job.plan.sinks}
    stream = runs.stream("orders", SCHEMA)
    query = runs.finish(job, {"orders": stream}, outputs=outputs, parallelism=3, drain=True)
    done = shop().run({"orders": [*orders(0), *orders(1)]}, epoch_size=60, drain=True)
    for name in rows:
        expected = [each if isinstance(each, tuple) else (each,) for each in done[name]]
        assert sorted(map(repr, rows[name])) == sorted(repr(tuple(each)) for each in expected)
    assert {failed[6] for failed in rows["errors"]} >= {"37 cents", "13"}
    last = Repository(runs.checkpoint).manifest(runs.epochs()[-1])
    failed = {name: of.failed_so_far for name, of in last.operators.items()}
    assert failed["totals"] == len(rows["errors"])
    assert failed["spent"] > 0
    assert sum(progress.failed for progress in query.progress) == sum(failed.values())


def test_more_errors_than_allowed_end_the_job_before_a_sink_writes(runs: Runs) -> None:
    job = sk.Job("shop")
    job.source("orders", Order).process(limited).sink("out")
    spark, bad = runs.spark, [Order(f"c{n}", -n, NOON) for n in range(4)]
    frame = spark.createDataFrame([order._asdict() for order in bad], SCHEMA)
    written: list[int] = []

    def sink(df: DataFrame, epoch: int) -> None:
        written.append(df.count())

    targets: list[Any] = [sink, sk.sinks.parquet(runs.home / "out")]
    for target in targets:
        with pytest.raises(sk.ProcessError, match=r"failed for 3 records so far.*max_errors=2"):
            runs.finish(job, {"orders": frame}, outputs={"out": target}, parallelism=4)
    assert written == []
    assert not list((runs.home / "out").rglob("*.parquet"))
    assert runs.epochs() == []
