"""How `operators` was made: `python -m tests.stored.recipe_operators DIRECTORY`.

A job of what statekit declares states for: windows, aggregates, joins, lookups, what is ranked or
seen once, and key-value stores. Their states have layouts of statekit's own.
"""

from __future__ import annotations

import datetime as dt
import sys
from pathlib import Path
from typing import Any, NamedTuple

import statekit as sk
from statekit.checkpoint.repository import Repository
from statekit.maintenance.savepoint.write import write_savepoint

__all__ = ["READ", "WHOLE", "build_job", "given", "make", "run"]

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
MINUTE = dt.timedelta(minutes=1)

READ = 30
"""How many orders the stored checkpoint has taken."""

WHOLE = 48
"""How many there are."""


class Order(NamedTuple):
    id: int
    customer: str
    cents: int
    at: dt.datetime


class Payment(NamedTuple):
    order: int
    method: str
    paid: dt.datetime


class Customer(NamedTuple):
    id: str
    city: str | None
    since: dt.datetime


class Located(NamedTuple):
    id: int
    city: str | None
    gone: bool


def build_job() -> sk.Job:
    job = sk.Job("shop", key_groups=16)
    orders = job.source("orders", Order)
    payments = job.source("payments", Payment)
    customers = job.source("customers", Customer)
    _aggregate(orders)
    _join(orders, payments, customers)
    _keep(job, orders, customers)
    return job


def _aggregate(orders: sk.Stream[Order]) -> None:
    """Add windows, aggregates, and what is ranked or seen once."""
    timed: dict[str, Any] = {"key": "customer", "event_time": "at", "lateness": "10 minutes"}
    aggregates: dict[str, Any] = {
        "orders": sk.Count(),
        "cents": sk.Sum("cents"),
        "best": sk.Top(2, by="-cents"),
    }
    hourly = orders.window(sk.tumbling("1 hour"), **timed)
    hourly.aggregate(name="hourly", **aggregates).sink("hourly")
    sliding = orders.window(sk.sliding("2 hours", every="30 minutes"), **timed)
    sliding.aggregate(name="sliding", **aggregates).sink("sliding")
    visits = orders.window(sk.session("20 minutes"), **timed)
    visits.aggregate(name="visits", **aggregates).sink("visits")
    orders.aggregate(key="customer", name="totals", **aggregates).sink("totals")
    orders.distinct("cents", name="amounts").sink("amounts")
    orders.first(by="at", on="customer", name="earliest").sink("earliest")
    orders.last(by="at", on="customer", name="latest").sink("latest")
    orders.top(3, by="-cents", on="customer", name="largest").sink("largest")


def _join(
    orders: sk.Stream[Order], payments: sk.Stream[Payment], customers: sk.Stream[Customer]
) -> None:
    """Add joins of all kinds, and lookups."""
    on, times = ("id", "order"), ("at", "paid")
    orders.join(
        payments,
        on=on,
        how="full",
        within=("5 minutes", "1 hour"),
        event_time=times,
        lateness="10 minutes",
        name="within",
    ).sink("within")
    daily = sk.tumbling("3 hours")
    orders.join(
        payments, on=on, how="left", window=daily, event_time=times, name="per_window"
    ).sink("per_window")
    orders.join(payments, on=on, name="endless").sink("endless")
    orders.join(
        customers,
        on=("customer", "id"),
        how="left",
        emit="changes",
        key=("id", "id"),
        deletes=(None, "city"),
        fields={"id": "left.id", "gone": "change.deleted"},
        into=Located,
        name="of_tables",
    ).sink("of_tables")
    of_customer: dict[str, Any] = {
        "on": ("customer", "id"),
        "deletes": "city",
        "fields": {"id": "left.id"},
    }
    orders.lookup(customers, name="now", **of_customer).sink("now")
    orders.lookup(
        customers, as_of=True, event_time=("at", "since"), name="then", **of_customer
    ).sink("then")


def _keep(job: sk.Job, orders: sk.Stream[Order], customers: sk.Stream[Customer]) -> None:
    """Add key-value stores: plain, sorted, and with history."""
    counts = job.add(sk.KVStore("counts", key=str, value=int))
    counts.increment(orders, key="customer", by="cents").sink("counted")
    counts.changes().sink("changes")
    by_time = job.add(sk.KVStore("by_time", key=str, sort=dt.datetime, value=int))
    by_time.put(orders, key="customer", sort="at", value="cents")
    by_time.scan(customers, key="id", end="since", reverse=True, limit=3).sink("before")
    timed: dict[str, Any] = {"event_time": "at", "lateness": "10 minutes"}
    history = job.add(sk.KVStore("history", key=str, value=int, history="5 hours", **timed))
    history.put(orders, key="customer", value="cents")
    history.get(orders, key="customer", as_of="at", name="paid_before").sink("paid_before")


def given(orders: int) -> dict[str, list[Any]]:
    """Return the first orders, with what arrives beside them."""
    records = [
        Order(number, _customer(number), 100 * (number * 7 % 40) + 5, NOON + number * 7 * MINUTE)
        for number in range(orders)
    ]
    return {
        "orders": records,
        "payments": [
            Payment(order.id, "card" if order.id % 2 else "cash", order.at + 3 * MINUTE)
            for order in records
            if order.id % 4
        ],
        "customers": [
            Customer(_customer(number), f"city {number}" if number % 6 else None, order.at)
            for number, order in enumerate(records[::2])
        ],
    }


def _customer(number: int) -> str:
    """Return who has an order. Some come after the stored checkpoint."""
    return f"c{number % (5 if number < READ + 4 else 7)}"


def run(directory: Path, orders: int, **options: Any) -> dict[str, list[Any]]:
    """Run the job over the first orders, from the last epoch of the checkpoint on, and return its
    outputs.
    """
    fixed: dict[str, Any] = {"epoch_size": 10, "drain": False, "clock": lambda: 86_400_000_000}
    return build_job().run(given(orders), checkpoint=directory, **(fixed | options)).outputs


def make(directory: Path) -> None:
    """Write the checkpoint, and the savepoint `s` of its last epoch."""
    run(directory, READ, parallelism=2)
    write_savepoint(Repository(directory), "s")


if __name__ == "__main__":
    make(Path(sys.argv[1]))
