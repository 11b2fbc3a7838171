"""A job with several inputs and a broadcast one, which notices records that are lost or reordered.

It is as `Harness(bill)` makes it, but for the names of its sources, so that a harness can open its
checkpoints and look at every shard.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import statekit as sk

SCHEMAS = {
    "orders": "account bigint, number bigint",
    "payments": "account bigint, cents bigint, note string",
    "rates": "currency string, dollars bigint",
}


class Order(NamedTuple):
    account: int
    number: int


class Payment(NamedTuple):
    account: int
    cents: int
    note: str | None = None


class Rate(NamedTuple):
    currency: str
    dollars: int


class Bill(NamedTuple):
    """What an account has seen so far, and what its shard was told."""

    account: int
    seen: str
    rates: str


@sk.process(key="account")
def bill(
    event: Order | Payment, seen: sk.ListState[str], rates: sk.BroadcastState[str, list[int]]
) -> Iterator[Bill]:
    value = event.number if isinstance(event, Order) else event.cents
    seen.append(f"{type(event).__name__[0]}{value}")
    told = " ".join(f"{currency}{sum(dollars)}" for currency, dollars in rates.items())
    yield Bill(event.account, " ".join(seen), told)


@bill.on_broadcast
def new_rate(rate: Rate, rates: sk.BroadcastState[str, list[int]]) -> None:
    """The last three of a currency: another order would be seen."""
    rates[rate.currency] = [*rates.get(rate.currency, []), rate.dollars][-3:]


def billing_job() -> sk.Job:
    job = sk.Job("bill")
    orders, payments = job.source("orders", Order), job.source("payments", Payment)
    rates = job.source("rates", Rate)
    orders.union(payments).process(bill, broadcast=rates).sink("bills")
    return job


def given(seed: int, size: int) -> dict[str, list[Any]]:
    """So many records of each source."""
    chosen = random.Random(seed)
    return {
        "orders": [Order(chosen.randrange(-4, 4), number) for number in range(size)],
        "payments": [Payment(chosen.randrange(-4, 4), number, "é") for number in range(size)],
        "rates": [Rate(chosen.choice(("EUR", "CHF")), number) for number in range(size)],
    }


def by_account(rows: Iterable[Any]) -> dict[int, list[Any]]:
    """Outputs per account, in order: between accounts there is no order."""
    found: dict[int, list[Any]] = defaultdict(list)
    for row in rows:
        made = Bill(**row) if isinstance(row, dict) else Bill(*row)
        found[made.account].append(made)
    return dict(found)
