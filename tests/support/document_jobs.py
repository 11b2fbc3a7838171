"""Random jobs of functions and classes that any process can import, for documents of jobs."""

from __future__ import annotations

import datetime as dt
import operator
import random
from collections.abc import Callable, Iterator
from typing import Annotated, Any, NamedTuple

import statekit as sk

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)


class Order(NamedTuple):
    customer: str
    number: int
    cents: int
    at: dt.datetime


class Customer(NamedTuple):
    id: str
    city: str | None
    seen: dt.datetime


class Bill(NamedTuple):
    customer: str
    euros: float


class Located(NamedTuple):
    number: int
    city: str | None


class Counted(NamedTuple):
    customer: str
    start: dt.datetime
    end: dt.datetime
    cents: int | None


@sk.process(key="customer")
def total(order: Order, sum: sk.ValueState[int]) -> Iterator[Order]:
    sum.update((sum.get() or 0) + order.cents)
    yield order._replace(cents=sum.get() or 0)


@sk.process(key="customer", event_time="at", lateness="1 hour")
def silent(
    order: Order, ctx: sk.Context, most: Annotated[sk.ReducingState[int], sk.Reduce(max)]
) -> Iterator[Order]:
    most.add(order.cents)
    ctx.timers.set(order.at + dt.timedelta(minutes=30))
    yield order


@silent.on_timer
def rang(
    timer: sk.Timer, most: Annotated[sk.ReducingState[int], sk.Reduce(max)]
) -> Iterator[Order]:
    yield Order("timer", 0, most.get() or 0, timer.at)


@sk.process(key="customer")
def moved(order: Order, cities: sk.BroadcastState[str, str]) -> Iterator[Order]:
    yield order


@moved.on_broadcast
def learn(customer: Customer, cities: sk.BroadcastState[str, str]) -> None:
    cities[customer.id] = customer.city or ""


def is_large(order: Order) -> bool:
    return order.cents > 300


def doubled(order: Order) -> Order:
    return order._replace(cents=2 * order.cents)


def twice(order: Order) -> Iterator[Order]:
    yield order
    yield order


def located(order: Order, customer: Customer | None) -> Located:
    return Located(order.number, None if customer is None else customer.city)


def newest(value: int | None, order: Order) -> int:
    return max(value or 0, order.cents)


async def asked(order: Order) -> Bill:
    return Bill(order.customer, order.cents / 100)


def cents_of(order: Order) -> int:
    return order.cents


SUMMED: sk.Aggregate[int, int, int] = sk.Aggregate(int, operator.add, abs, operator.add)

TIME: dict[str, Any] = {"event_time": "at", "lateness": "2 hours"}

WINDOWS: list[Callable[[], Any]] = [
    lambda: sk.tumbling("1 hour"),
    lambda: sk.tumbling("1 day", zone="Europe/Berlin"),
    lambda: sk.tumbling(dt.timedelta(hours=2), dt.timedelta(minutes=30)),
    lambda: sk.sliding("2 hours", every="1 hour"),
    lambda: sk.session(dt.timedelta(minutes=20), at_most="4 hours"),
]

OF_WINDOWS: list[Callable[[sk.Windowed[Order]], sk.Stream[Any]]] = [
    lambda windows: windows.count(),
    lambda windows: windows.sum("cents", into=Counted),
    lambda windows: windows.top(3, ("-cents", "number"), ties=True),
    lambda windows: windows.last("number"),
    lambda windows: windows.collect("cents", name="collected"),
    lambda windows: windows.aggregate(
        n=sk.Count(),
        mean=sk.Mean("cents"),
        best=sk.Top(2, by="-cents"),
        own=sk.OwnAggregate(SUMMED, accumulator=int, result=int, field="cents"),
    ),
]

KEPT: list[Callable[[sk.Stream[Order], sk.Stream[Customer]], sk.Stream[Order]]] = [
    lambda orders, _: orders.filter(is_large),
    lambda orders, _: orders.filter("cents > 100 AND customer <> 'ada'"),
    lambda orders, _: orders.filter(sk.col("cents") % 2 == 0, name="even"),
    lambda orders, _: orders.map(doubled),
    lambda orders, _: orders.flat_map(twice),
    lambda orders, _: orders.process(total),
    lambda orders, _: orders.process(silent, name="alarms"),
    lambda orders, customers: orders.process(moved, broadcast=customers),
    lambda orders, _: orders.distinct(("customer", "number")),
    lambda orders, _: orders.distinct("number", within=dt.timedelta(hours=1), **TIME),
    lambda orders, _: orders.last(on=["customer"], by="at", ttl=sk.TTL("30 days")),
    lambda orders, _: orders.first(on="customer", by="number"),
]
"""Operations whose results are orders."""

ENDS: list[Callable[[sk.Stream[Order], sk.Stream[Customer]], sk.Stream[Any]]] = [
    lambda orders, _: orders.select(Bill, euros=sk.col("cents") / 100),
    lambda orders, _: orders.select(Located, {"city": "customer"}),
    lambda orders, _: orders.count(on="customer", emit="always"),
    lambda orders, _: orders.top(2, by="-cents", on="customer"),
    lambda orders, _: orders.map_async(asked, concurrency=3, timeout=dt.timedelta(seconds=5)),
    lambda orders, _: orders.aggregate(
        key="customer", n=sk.Count(), most=sk.Max("cents"), last=sk.Last("number", by="at")
    ),
    lambda orders, customers: orders.lookup(customers, on=("customer", "id"), into=Located),
    lambda orders, customers: orders.join(
        customers,
        on=("customer", "id"),
        how="left",
        into=located,
        within=(dt.timedelta(hours=1), "2 hours"),
        event_time=("at", "seen"),
        lateness="2 hours",
    ),
    lambda orders, customers: orders.join(
        customers, on=("customer", "id"), how="semi", ttl=sk.TTL("1 day"), name="known"
    ),
]
"""Operations whose results are others."""


class DocumentJob:
    """A random job: its declaration and its inputs.

    Parameters:
        seed: of all choices.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.job = sk.Job(f"job{seed}", key_groups=self._random.choice([None, 16]))
        options: dict[str, Any] = self._random.choice([{}, {"idle_after": "5 minutes"}])
        orders = self.job.source("orders", Order, **options)
        customers = self.job.source("customers", Customer)
        for number, add in enumerate(self._random.sample(KEPT, self._random.randrange(4))):
            orders = add(orders, customers)
            if self._random.random() < 0.5:
                orders.sink(f"kept{number}")
        ends = self._random.sample(ENDS, self._random.randrange(4))
        for number, end in enumerate(ends):
            end(orders, customers).sink(f"end{number}")
        self._add_windows(orders)
        if self._random.random() < 0.5:
            self._add_store(orders, customers)
        if not self.job.plan.operators:
            orders.process(total)

    def _add_windows(self, orders: sk.Stream[Order]) -> None:
        for number in range(self._random.randrange(3)):
            window = self._random.choice(WINDOWS)()
            early: dict[str, Any] = self._random.choice([{}, {"early": "10 minutes"}])
            windows = orders.window(window, key="customer", **TIME, **early)
            try:
                results = self._random.choice(OF_WINDOWS)(windows)
            except sk.StateTypeError:
                continue  # such as an aggregate that sessions cannot merge, or a name that is taken
            results.sink(f"windows{number}")

    def _add_store(self, orders: sk.Stream[Order], customers: sk.Stream[Customer]) -> None:
        sort: dict[str, Any] = self._random.choice([{}, {"sort": int}])
        of_order: dict[str, Any] = {"key": "customer"} | ({"sort": "number"} if sort else {})
        store = self.job.add(sk.KVStore("kv", key=str, value=int, **sort))
        store.update(orders, newest, **of_order).sink("updates")
        store.put(orders, value=cents_of, **of_order, name="puts").sink("puts")
        if sort:
            store.scan(customers, key="id", limit=3, closed="both").sink("scans")
        else:
            store.get(customers, key="id").sink("gets")
        store.changes().sink("changes")

    def inputs(self) -> dict[str, list[Any]]:
        """Records of both inputs."""
        names = ["ada", "bob", "cleo"]

        def at() -> dt.datetime:
            return NOON + dt.timedelta(minutes=self._random.randrange(300))

        orders = [
            Order(self._random.choice(names), number, self._random.randrange(900), at())
            for number in range(40)
        ]
        cities = ["Rome", None, "Oslo"]
        customers = [
            Customer(self._random.choice(names), self._random.choice(cities), at())
            for _ in range(10)
        ]
        return {"orders": orders, "customers": customers}
