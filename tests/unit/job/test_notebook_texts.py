"""What a notebook shows of a job, a stream and a run: one line each."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import pytest

import statekit as sk


class Order(NamedTuple):
    customer: str
    cents: int
    at: dt.datetime


class Payment(NamedTuple):
    customer: str
    cents: int


@dataclass
class Account:
    balance_by_currency: dict[str, list[tuple[int, str]]]
    payments_by_currency: dict[str, list[tuple[int, str]]]
    remarks: dict[str, tuple[int, str] | None]


@sk.process(key="customer")
def total(order: Order, account: sk.ValueState[Account]) -> Iterator[tuple[str, int]]:
    yield order.customer, order.cents


@sk.process(key="customer")
def watch(order: Order, seen: sk.ValueState[Literal["a\nb", "c"]]) -> None: ...


@pytest.fixture
def job() -> sk.Job:
    return sk.Job("shop")


def test_a_job_names_its_sources_and_operators(job: sk.Job) -> None:
    assert repr(job) == "<Job 'shop': sources none; operators none>"
    orders = job.source("orders", Order)
    job.source("payments", Payment)
    orders.process(total)
    orders.process(watch, name="watcher")
    assert repr(job) == "<Job 'shop': sources orders, payments; operators total, watcher>"


def test_a_stream_names_the_type_of_its_records(job: sk.Job) -> None:
    orders, payments = job.source("orders", Order), job.source("payments", Payment)
    assert repr(orders) == "<Stream 'orders' of Order>"
    assert repr(orders.union(payments)) == "<Stream 'orders | payments' of Order | Payment>"
    assert repr(orders.process(total)) == "<Stream 'total' of tuple[str, int]>"
    assert repr(orders.process(watch)) == "<Stream 'watch' of no records>"
    assert repr(job.source("either", Order, Payment)) == "<Stream 'either' of Order | Payment>"
    plain = job.source("others", Order).union(job.source("more", Order))
    assert repr(plain) == "<Stream 'others | more' of Order>"


def test_windows_name_their_stream_and_key(job: sk.Job) -> None:
    windows = job.source("orders", Order).window(
        sk.tumbling("1 hour"), key="customer", event_time="at"
    )
    assert repr(windows) == "<Windowed 'orders': tumbling 1:00:00 by customer>"


def test_a_run_counts_its_outputs_and_does_not_show_them(job: sk.Job) -> None:
    job.source("orders", Order).process(total).sink("totals")
    assert repr(job.run({"orders": []})) == "<Run: 0 epochs, last epoch none, 0 records for totals>"
    now = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    run = job.run({"orders": [Order("ada", number, now) for number in range(3)]}, epoch_size=2)
    assert repr(run) == "<Run: 2 epochs, last epoch 1, 3 records for totals>"


def test_a_line_of_the_tree_has_a_complete_type(job: sk.Job) -> None:
    orders = job.source("orders", Order)
    orders.process(total)
    orders.process(watch)
    lines = str(job).splitlines()
    assert all(re.match(r"[│ ]*[├└]── (source|operator|state) ", line) for line in lines[1:])
    (account,) = (line for line in lines if "state account" in line)
    assert account.endswith("remarks: dict[str, tuple[int, str] | None]}]")
    (seen,) = (line for line in lines if "state seen" in line)
    assert seen.count("[") == seen.count("]")
