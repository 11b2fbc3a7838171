"""`check` compares histories in process with the same on Spark, if it is asked to."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession

import statekit as sk
from statekit.testing import check


class Order(NamedTuple):
    customer: str
    at: dt.datetime
    cents: int
    note: str | None


IN_TIME: dict[str, Any] = {"key": "customer", "event_time": "at", "lateness": "1 minute"}


@sk.process(**IN_TIME)
def spent(
    order: Order, ctx: sk.Context, total: sk.ValueState[int], notes: sk.ListState[str | None]
) -> Iterator[Order]:
    total.update((total.get() or 0) + order.cents)
    notes.append(order.note)
    ctx.timers.replace(order.at + dt.timedelta(minutes=5))
    yield order._replace(cents=total.get() or 0)


@spent.on_timer
def closed(
    timer: sk.Timer, ctx: sk.Context[str], notes: sk.ListState[str | None]
) -> Iterator[Order]:
    yield Order(ctx.key, timer.at, len(notes), None)


def shop() -> sk.Job:
    job = sk.Job("shop")
    orders = job.source("orders", Order)
    spent_orders = orders.process(spent)
    spent_orders.sink("spent")
    spent_orders.late.sink("late")
    orders.filter(lambda order: order.cents > 0, name="paid").sink("paid")
    orders.window(sk.tumbling("1 minute"), **IN_TIME).sum("cents", name="sums").sink("sums")
    return job


def test_what_is_the_same_on_spark_passes(spark: SparkSession) -> None:
    check(shop(), holds=["spark"], depth="quick")


@sk.process(key="customer")
def told(order: Order) -> Iterator[str]:
    yield "in process" if TaskContext.get() is None else "on Spark"


@sk.process(key="customer")
def held(order: Order, where: sk.ValueState[str]) -> None:
    where.update("in process" if TaskContext.get() is None else "on Spark")


@pytest.mark.parametrize(
    ("process", "message"),
    [(told, "sink 'outputs': only in process"), (held, "state 'where' of held at the key")],
    ids=["outputs", "states"],
)
def test_what_differs_on_spark_is_found(spark: SparkSession, process: Any, message: str) -> None:
    with pytest.raises(AssertionError, match="'spark' does not hold") as caught:
        check(process, holds=["spark"])
    assert message in str(caught.value)


def test_records_without_a_schema_are_refused(spark: SparkSession) -> None:
    @sk.process(key="customer")
    def of_dicts(order: dict[str, Any]) -> Iterator[int]:
        yield 1

    with pytest.raises(sk.StateTypeError, match="only sources of one type with fields"):
        check(of_dicts, events=[{"customer": "ada"}], holds=["spark"])
