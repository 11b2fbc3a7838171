"""Several typed outputs and stateless functions on Spark: the results of one process."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pydantic
import pytest
from pyspark.sql import DataFrame, Row

import statekit as sk
from statekit.job.chaining import chains
from tests.support.effort import SOAK
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
    at: dt.datetime


class Alert(pydantic.BaseModel):
    customer: str
    at: dt.datetime
    reasons: list[str]


@sk.process(key="customer")
def watch(order: Order, total: sk.ValueState[int]) -> Iterator[Total | Alert]:
    total.update((total.get() or 0) + order.cents)
    yield Total(order.customer, total.get() or 0, order.at)
    if order.cents > 1000:
        reasons = [f"{order.cents} cents", "more than 1000"]
        yield Alert(customer=order.customer, at=order.at, reasons=reasons)


@sk.process(key="customer", event_time="at", lateness="10 minutes")
def kinds(
    event: Total | Alert, ctx: sk.Context, seen: sk.ValueState[int]
) -> Iterator[tuple[str, str, str, int]]:
    seen.update((seen.get() or 0) + 1)
    yield event.customer, type(event).__name__, ctx.input, seen.get() or 0


@sk.process(key="customer")
def alerts_of(alert: Alert, count: sk.ValueState[int]) -> Iterator[Total]:
    count.update((count.get() or 0) + 1)
    yield Total(alert.customer, (count.get() or 0) * len(alert.reasons), alert.at)


@sk.process(key="customer")
def sums_of_keys(orders: Iterator[Order], total: sk.ValueState[int]) -> Iterator[tuple[str, int]]:
    for order in orders:
        total.update((total.get() or 0) + order.cents)
        yield order.customer, total.get() or 0


def large(order: Order) -> bool:
    return order.cents >= 100


def halves(order: Order) -> Iterator[Order]:
    yield order._replace(cents=order.cents // 2)
    yield order._replace(cents=order.cents - order.cents // 2)


def turned(order: Order) -> Order:
    return order._replace(customer=order.customer[::-1])


def tripled(order: Order) -> Order:
    return order._replace(cents=3 * order.cents)


def label(total: Total) -> Order:
    return Order(f"{total.customer}!", total.cents, total.at)


def in_one_chain() -> sk.Job:
    job = sk.Job("shop")
    orders = job.source("orders", Order).filter(large).flat_map(halves).map(tripled)
    orders.process(watch).of(Alert).process(alerts_of).map(label).sink("out")
    return job


def with_many_readers() -> sk.Job:
    job = sk.Job("shop")
    orders = job.source("orders", Order).filter(large)
    watched = orders.process(watch)
    watched.sink("all")
    watched.of(Total).sink("totals")
    watched.of(Alert).sink("alerts")
    kept = watched.process(kinds)
    kept.sink("kinds")
    kept.late.sink("late")
    kept.late.of(Alert).sink("late-alerts")
    orders.map(tripled).sink("tripled")
    return job


def with_other_keys() -> sk.Job:
    job = sk.Job("shop")
    orders = job.source("orders", Order).map(turned)
    orders.process(watch).of(Total).sink("out")
    return job


def with_unions() -> sk.Job:
    job = sk.Job("shop")
    orders = job.source("orders", Order)
    watched = orders.process(watch)
    again = orders.filter(large).map(tripled).process(watch, name="again")
    watched.union(again.of(Alert)).process(kinds).sink("kinds")
    return job


def with_functions_that_a_whole_key_prevents() -> sk.Job:
    job = sk.Job("shop")
    watched = job.source("orders", Order).process(watch)
    orders = watched.of(Total).map(label).filter(large)
    orders.process(sums_of_keys).sink("out")
    return job


def orders(batch: int) -> list[Order]:
    return [
        Order(
            f"c{number % 7}x",
            (number * 37) % 2000,
            NOON + dt.timedelta(minutes=(number * 13) % 50 - 30 * batch),
        )
        for number in range(120)
    ]


def plain(value: Any) -> Any:
    """A value without its class: rows of Spark and records of Python alike."""
    if isinstance(value, Row):
        return tuple(plain(part) for part in value if part is not None)
    if isinstance(value, pydantic.BaseModel):
        return tuple(map(plain, dict(value).values()))
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    if isinstance(value, dt.datetime):
        return value.astimezone(dt.UTC) if value.tzinfo else value.replace(tzinfo=dt.UTC)
    return value


def in_process(job: sk.Job) -> dict[str, list[Any]]:
    done = job.run({"orders": [*orders(0), *orders(1)]}, epoch_size=120, drain=False)
    return {sink.name: sorted(map(repr, map(plain, done[sink.name]))) for sink in job.plan.sinks}


@pytest.mark.parametrize(
    "made",
    [
        in_one_chain,
        with_unions,
        *([with_many_readers, with_other_keys, with_functions_that_a_whole_key_prevents] * SOAK),
    ],
    ids=lambda f: f.__name__,
)
def test_outputs_of_every_type_are_those_of_one_process(
    runs: Runs, made: Callable[[], sk.Job]
) -> None:
    rows: dict[str, list[Any]] = defaultdict(list)

    def collect(name: str) -> Callable[[DataFrame, int], None]:
        def sink(df: DataFrame, epoch: int) -> None:
            del rows[name][sizes.get((name, epoch), len(rows[name])) :]
            sizes[name, epoch] = len(rows[name])
            found = df.collect()
            is_typed = [field.name for field in df.schema if field.name in ("Total", "Alert")]
            rows[name] += [
                next(part for part in row if part is not None) if is_typed else row for row in found
            ]

        return sink

    sizes: dict[tuple[str, int], int] = {}
    job = made()
    for batch in (0, 1):
        runs.feed("orders", [order._asdict() for order in orders(batch)])
    outputs = {sink.name: collect(sink.name) for sink in job.plan.sinks}
    stream = runs.stream("orders", SCHEMA)
    runs.finish(job, {"orders": stream}, outputs=outputs, parallelism=3, drain=False)
    found = {sink.name: sorted(map(repr, map(plain, rows[sink.name]))) for sink in job.plan.sinks}
    assert found == in_process(made())


def test_functions_run_in_the_tasks_of_operators_where_their_key_is_kept() -> None:
    (chain,) = chains(in_one_chain().plan)
    assert [operator.name for operator in chain.operators] == ["watch", "alerts_of"]
    inside = [[each.name for each in transforms] for transforms in chain.transforms]
    assert inside == [["large", "halves", "tripled"], ["watch.Alert"]]
    assert [each.name for each in chain.after] == ["label"]
    (apart,) = chains(with_other_keys().plan, strayed={"watch"})
    assert apart.transforms == ((),)


def test_no_function_runs_in_the_tasks_of_two_operators() -> None:
    before, behind = chains(with_functions_that_a_whole_key_prevents().plan)
    assert [each.name for each in before.after] == ["watch.Total", "label", "large"]
    assert behind.transforms == ((),)
    assert behind.streams == (before.output,) == ("large",)


def test_a_function_that_fails_on_spark_names_its_stream_and_the_record(runs: Runs) -> None:
    def inverse(order: Order) -> Order:
        return order._replace(cents=1 // order.cents)

    job = sk.Job("shop")
    job.source("orders", Order).map(inverse).process(watch).of(Total).sink("out")
    runs.feed("orders", [Order("ada", 0, NOON)._asdict()])
    inputs = {"orders": runs.stream("orders", SCHEMA)}
    with pytest.raises(
        sk.ProcessError, match=r"map 'inverse' failed in epoch 0 with ZeroDivisionError.*ada"
    ):
        runs.finish(job, inputs, outputs={"out": lambda df, epoch: df.collect()}, parallelism=2)
    assert runs.epochs() == []


def test_each_type_goes_to_a_parquet_sink_with_its_own_columns(runs: Runs) -> None:
    job = sk.Job("shop")
    watched = job.source("orders", Order).process(watch)
    watched.of(Total).sink("totals")
    watched.of(Alert).sink("alerts")
    runs.feed("orders", [order._asdict() for order in orders(0)])
    outputs = {name: sk.sinks.parquet(runs.home / name) for name in ("totals", "alerts")}
    stream = runs.stream("orders", SCHEMA)
    runs.finish(job, {"orders": stream}, outputs=outputs, parallelism=2)
    alerts = [order for order in orders(0) if order.cents > 1000]
    assert len(runs.parquet("totals")) == 120
    assert sorted(row["customer"] for row in runs.parquet("alerts")) == sorted(
        order.customer for order in alerts
    )
    assert set(runs.parquet("alerts")[0]) == {"customer", "at", "reasons"}
