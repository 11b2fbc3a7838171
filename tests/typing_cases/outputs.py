"""Several typed outputs and stateless functions."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Annotated, NamedTuple, assert_type

import statekit as sk


class Order(NamedTuple):
    customer: str
    cents: Annotated[Decimal, sk.Decimals(12, 2)]


class Total(NamedTuple):
    customer: str


class Alert(NamedTuple):
    customer: str


@sk.process(key="customer")
def watch(order: Order, ctx: sk.Context) -> Iterator[Total | Alert]:
    assert_type(ctx.input, str)
    yield Total(order.customer)
    yield order  # error: Incompatible types in "yield"


@sk.process(key="customer")
def totals(total: Total) -> Iterator[str]:
    yield total.customer


@sk.process(key="customer")
def both(event: Total | Alert) -> Iterator[str]:
    yield event.customer


def large(order: Order) -> bool:
    return order.cents > 1


def as_total(order: Order) -> Total:
    return Total(order.customer)


def twice(order: Order) -> Iterator[Total | Alert]:
    yield Total(order.customer)
    yield Alert(order.customer)


job = sk.Job("shop")
orders = job.source("orders", Order, idle_after="5 minutes")
watched = orders.process(watch)
assert_type(watched.of(Total), sk.Stream[Total])
watched.of(Total).process(totals)
watched.of(Alert).process(totals)  # error: Argument 1 to "process"
watched.process(both)
watched.process(totals)  # error: Argument 1 to "process"
assert_type(orders.filter(large), sk.Stream[Order])
assert_type(orders.map(as_total), sk.Stream[Total])
orders.map(as_total).process(totals)
orders.map(as_total).process(watch)  # error: Argument 1 to "process"
watched.of(Total).map(as_total)  # error: Argument 1 to "map"
orders.flat_map(twice).process(both)
orders.flat_map(large)  # error: Argument 1 to "flat_map"
orders.map(lambda order: order.customer, into=str, name="names").sink("names")


@sk.process(key="customer")
def newest(order: Order, prices: sk.MapState[int, float]) -> Iterator[float]:
    found = prices.floor(3)
    assert_type(found, tuple[int, float] | None)
    for day, price in prices.scan(1, 5, reverse=True):
        yield price + day
    prices.floor("a")  # error: Argument 1 to "floor"
