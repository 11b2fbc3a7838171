"""Constructs that name fields of records, each as a job of one operator."""

from __future__ import annotations

import datetime as dt
import operator
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import statekit as sk
from statekit.checkpoint.repository import Repository
from statekit.errors import StateSchemaError
from statekit.job.plan import Input
from statekit.records.union import records_of
from statekit.runtime.local import LocalRunner
from statekit.working_copy.copies import MemoryCopies

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)


class Order(NamedTuple):
    buyer: str
    seller: str
    cents: int
    tips: int
    at: dt.datetime
    seen: dt.datetime


class Sold(NamedTuple):
    """An order whose fields have other names."""

    customer: str
    seller: str
    amount: int
    tips: int
    time: dt.datetime
    seen: dt.datetime


class Refund(NamedTuple):
    buyer: str
    seller: str
    at: dt.datetime
    seen: dt.datetime


class Fields(NamedTuple):
    """The fields that a construct names, of which class, and which of them were renamed."""

    key: tuple[str, ...] = ("buyer", "seller")
    at: str = "at"
    of: str = "cents"
    cls: Any = Order
    renamed: dict[str, str] = {}  # noqa: RUF012 - nobody changes it


Orders = sk.Stream[Order]
Construct = Callable[[Orders, Fields], sk.Stream[Any]]

ORDERS = [
    Order("ann", "bob", 100, 5, NOON, NOON),
    Order("bob", "ann", 7, 70, NOON, NOON + dt.timedelta(hours=1)),
]


def one_by_one(orders: Orders, named: Fields) -> sk.Stream[Any]:
    record = named.cls

    @sk.process(key=named.key, event_time=named.at, renamed=named.renamed)
    def spent(order: record, total: sk.ValueState[int]) -> Iterator[int]:  # type: ignore[valid-type]
        total.update((total.get() or 0) + order[2])  # type: ignore[index]
        yield total.get() or 0

    return orders.process(spent, name="op")


def all_of_a_key(orders: Orders, named: Fields) -> sk.Stream[Any]:
    records = Iterator[named.cls]  # type: ignore[name-defined]

    @sk.process(key=named.key, event_time=named.at, renamed=named.renamed)
    def spent(orders: records, total: sk.ValueState[int]) -> Iterator[int]:
        total.update((total.get() or 0) + sum(order[2] for order in orders))
        yield total.get() or 0

    return orders.process(spent, name="op")


def in_order_of_time(orders: Orders, named: Fields) -> sk.Stream[Any]:
    record = named.cls

    @sk.process(key=named.key, event_time=named.at, ordered=True, renamed=named.renamed)
    def passed(order: record) -> Iterator[str]:  # type: ignore[valid-type]
        yield repr([*order])

    return orders.process(passed, name="op")


def of_two_types(orders: Orders, named: Fields) -> sk.Stream[Any]:
    @sk.process(key=named.key, event_time=named.at, renamed=named.renamed)
    def seen(event: Order | Refund, number: sk.ValueState[int]) -> Iterator[int]:
        number.update((number.get() or 0) + 1)
        yield number.get() or 0

    orders.plan.sources.append(Input("refunds", records_of(Refund, where="refunds")))
    refunds: sk.Stream[Refund] = sk.Stream(orders.plan, "refunds")
    return orders.union(refunds).process(seen, name="op")


def with_timers(orders: Orders, named: Fields) -> sk.Stream[Any]:
    record = named.cls

    @sk.process(key=named.key, event_time=named.at, renamed=named.renamed)
    def waits(order: record, ctx: sk.Context) -> Iterator[int]:  # type: ignore[valid-type]
        ctx.timers.set(ctx.event_time + dt.timedelta(hours=9))
        yield 1

    @waits.on_timer
    def due(timer: sk.Timer, ctx: sk.Context) -> Iterator[int]:
        yield 2

    return orders.process(waits, name="op")


def windowed(make: Callable[[Any, str], sk.Stream[Any]], **options: Any) -> Construct:
    def construct(orders: Orders, named: Fields) -> sk.Stream[Any]:
        kind = options.get("kind", sk.tumbling("1 hour"))
        others = {name: value for name, value in options.items() if name != "kind"}
        others |= {"key": named.key, "event_time": named.at, "renamed": named.renamed}
        windows = orders.window(kind, **others)
        return make(windows, named.of)

    return construct


def added(of: Callable[[str], Any]) -> Construct:
    def construct(orders: Orders, named: Fields) -> sk.Stream[Any]:
        return orders.aggregate(key=named.key, name="op", renamed=named.renamed, found=of(named.of))

    return construct


OWN: Any = sk.Aggregate(int, lambda held, more: held + more, lambda held: held, operator.add)

FUNCTIONS: dict[str, Construct] = {
    "one by one": one_by_one,
    "all of a key": all_of_a_key,
    "in order of time": in_order_of_time,
    "of two types": of_two_types,
    "with timers": with_timers,
    "count": windowed(lambda of, _: of.count(name="op")),
}
OF_A_FIELD: dict[str, Construct] = {
    "sum": windowed(lambda of, field: of.sum(field, name="op")),
    "min of sessions": windowed(lambda of, f: of.min(f, name="op"), kind=sk.session("1 hour")),
    "max, ordered": windowed(lambda of, field: of.max(field, name="op"), ordered=True),
    "mean, on change": windowed(lambda of, field: of.mean(field, name="op"), emit="change"),
    "top": windowed(lambda of, field: of.top(2, f"-{field}", name="op")),
    "last": windowed(lambda of, field: of.last(field, name="op")),
    "last by": windowed(lambda of, field: of.last(by=field, name="op")),
    "collect": windowed(lambda of, field: of.collect(field, name="op")),
    "own aggregate": windowed(
        lambda of, f: of.aggregate(
            op=sk.OwnAggregate(OWN, accumulator=int, result=int, field=f), name="op"
        )
    ),
}
OF_A_KEY: dict[str, Construct] = {
    "Count": added(lambda field: sk.Count(field)),
    "Sum": added(sk.Sum),
    "Min": added(sk.Min),
    "Max": added(sk.Max),
    "Mean": added(sk.Mean),
    "Top": added(lambda field: sk.Top(2, by=field)),
    "Last": added(lambda field: sk.Last(field, by="at")),
    "Last by": added(lambda field: sk.Last("tips", by=field)),
    "Collect": added(sk.Collect),
}
CONSTRUCTS = FUNCTIONS | OF_A_FIELD | OF_A_KEY


def job_of(construct: Construct, named: Fields) -> sk.Job:
    job = sk.Job("shop")
    construct(job.source("orders", named.cls), named).sink("out")
    return job


def begun(job: sk.Job, repository: Repository) -> Repository:
    """A checkpoint with an epoch of the job."""
    LocalRunner(job.plan, repository, MemoryCopies()).epoch({"orders": ORDERS})
    return repository


def refusal(job: sk.Job, repository: Repository) -> str:
    """Why a job does not start on a checkpoint; "" if it does."""
    try:
        LocalRunner(job.plan, repository, MemoryCopies())
    except StateSchemaError as error:
        return str(error)
    return ""
