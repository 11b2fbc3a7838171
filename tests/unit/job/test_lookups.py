"""Lookups: each record with the row of a table that another stream keeps."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import statekit as sk
from statekit.testing import JobHarness, check

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)


class Order(NamedTuple):
    customer: int | None
    number: int
    at: dt.datetime


class Customer(NamedTuple):
    id: int | None
    city: str | None
    since: dt.datetime
    gone: bool


class Located(NamedTuple):
    number: int
    city: str | None


def at(minutes: float) -> dt.datetime:
    return NOON + dt.timedelta(minutes=minutes)


def order(customer: int | None, number: int, minutes: float = 0) -> Order:
    return Order(customer, number, at(minutes))


def customer(
    id: int | None, city: str | None, minutes: float = 0, *, gone: bool = False
) -> Customer:
    return Customer(id, city, at(minutes), gone)


def looked_up(**options: Any) -> sk.Job:
    """A job that looks up the customers of orders."""
    job = sk.Job("shop")
    orders, customers = job.source("orders", Order), job.source("customers", Customer)
    chosen: Any = {"on": ("customer", "id"), "name": "j", "into": Located, **options}
    if chosen.get("as_of"):
        chosen["event_time"] = ("at", "since")
    orders.lookup(customers, **chosen).sink("out")
    return job


# ------------------------------------------------------------------------------------- by arrival


def test_a_record_sees_the_last_row_that_arrived_and_rows_of_its_epoch_come_first() -> None:
    harness = JobHarness(looked_up())
    first = harness.send(orders=[order(1, 1), order(2, 2)], customers=[customer(1, "Rome")])
    second = harness.send(orders=[order(1, 3)])
    third = harness.send(customers=[customer(1, "Oslo"), customer(1, "Bonn")], orders=[order(1, 4)])
    assert sorted(first["out"]) == [(1, "Rome"), (2, None)]
    assert (second["out"], third["out"]) == ([(3, "Rome")], [(4, "Bonn")])
    assert harness.state("j", "table", 1).city == "Bonn"


@pytest.mark.parametrize(
    ("how", "expected"), [("left", [1, 2, 3]), ("inner", [1]), ("semi", [1]), ("anti", [2, 3])]
)
def test_how_says_which_records_are_emitted_and_none_is_in_no_table(
    how: str, expected: list[int]
) -> None:
    alone: dict[str, Any] = {"into": None} if how in ("semi", "anti") else {}
    harness = JobHarness(looked_up(how=how, **alone))
    orders = [order(1, 1), order(2, 2), order(None, 3)]
    found = harness.send(orders=orders, customers=[customer(1, "Rome"), customer(None, "Nowhere")])
    assert sorted(each.number for each in found["out"]) == expected


@pytest.mark.parametrize(
    ("field", "deleting"), [("gone", customer(1, "Rome", gone=True)), ("city", customer(1, None))]
)
def test_a_flag_or_none_deletes_the_row_of_a_key(field: str, deleting: Customer) -> None:
    harness = JobHarness(looked_up(deletes=field))
    harness.send(customers=[customer(1, "Rome")])
    assert harness.send(customers=[deleting], orders=[order(1, 1)])["out"] == [(1, None)]
    assert harness.state("j", "table", 1) is None
    again = harness.send(customers=[customer(1, "Oslo")], orders=[order(1, 2)])
    assert again["out"] == [(2, "Oslo")]


# ---------------------------------------------------------------------------------- by event time


def test_as_of_shows_the_row_at_the_records_time_whatever_arrives_first() -> None:
    harness = JobHarness(looked_up(as_of=True, lateness="1 hour"))
    harness.send(orders=[order(1, 1, 5), order(1, 2, 15), order(1, 3, 10)])
    harness.send(customers=[customer(1, "Oslo", 10), customer(1, "Rome", 0)])
    assert sorted(harness.drain()["out"]) == [(1, "Rome"), (2, "Oslo"), (3, "Oslo")]


def test_as_of_waits_until_no_earlier_row_can_arrive() -> None:
    harness = JobHarness(looked_up(as_of=True))
    first = harness.send(orders=[order(1, 1, 10)], customers=[customer(1, "Rome", 0)])
    assert first["out"] == []
    assert harness.advance_watermark(at(10))["out"] == [(1, "Rome")]
    assert harness.state("j", "waiting", 1) == {}


def test_of_two_rows_of_one_time_the_last_one_counts_and_a_deleted_one_is_none() -> None:
    harness = JobHarness(looked_up(as_of=True, deletes="gone"))
    rows = [
        customer(1, "Rome"),
        customer(1, "Oslo"),
        customer(2, "Bonn"),
        customer(2, "", gone=True),
    ]
    harness.send(orders=[order(1, 1), order(2, 2)], customers=rows)
    assert sorted(harness.drain()["out"]) == [(1, "Oslo"), (2, None)]


def test_versions_that_no_record_can_need_are_removed() -> None:
    harness = JobHarness(looked_up(as_of=True, deletes="gone"))
    for minute in range(0, 60, 2):
        harness.send(
            customers=[
                customer(1, f"city {minute}", minute),
                customer(2, "Rome", minute, gone=minute > 30),
            ],
            orders=[order(3, minute, minute)],
        )
    harness.advance_watermark(at(120))
    assert [row.city for row in harness.state("j", "versions", 1).values()] == ["city 58"]
    assert harness.state("j", "versions", 2) == {}
    assert harness.timers("j", 1) == harness.timers("j", 2) == harness.timers("j", 3) == []


# ------------------------------------------------------------------------------------------ random


def _expected(orders: list[Order], customers: list[Customer], how: str) -> Counter[Any]:
    """The results of plain Python over the whole input, by event time."""
    found: Counter[Any] = Counter()
    for each in orders:
        rows = [row for row in customers if row.id == each.customer and row.since <= each.at]
        last = max(enumerate(rows), key=lambda n: (n[1].since, n[0]), default=(0, None))[1]
        row = None if each.customer is None or last is None or last.gone else last
        if row is not None or how == "left":
            found[each.number, None if row is None else row.city] += 1
    return found


@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
def test_random_lookups_have_the_results_of_plain_python(backend: Any, tmp_path: Path) -> None:
    for seed in range(15 if backend == "memory" else 3):
        chosen = random.Random(seed)
        keys = [*range(chosen.choice([1, 10])), None]
        orders = [order(chosen.choice(keys), n, chosen.randrange(30)) for n in range(60)]
        customers = [
            customer(chosen.choice(keys), f"{n}", chosen.randrange(30), gone=chosen.random() < 0.3)
            for n in range(chosen.choice([0, 60]))
        ]
        how = chosen.choice(["left", "inner"])
        job = looked_up(as_of=True, lateness="1 hour", deletes="gone", how=how)
        harness, found = JobHarness(job, chosen.choice([1, 3]), backend=backend), []
        for epoch in range(3):
            part = slice(20 * epoch, 20 * (epoch + 1))
            found += harness.send(orders=orders[part], customers=customers[part])["out"]
            if chosen.random() < 0.3:
                harness.checkpoint(tmp_path / f"{backend}-{seed}-{epoch}")
                path = tmp_path / f"{backend}-{seed}-{epoch}"
                harness = JobHarness.restore(job, path, chosen.choice([1, 2, 5]), backend)
        found += harness.drain()["out"]
        assert Counter(map(tuple, found)) == _expected(orders, customers, how), seed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"how": "full"}, "how='full': use one of inner, left, semi, anti"),
        ({"lateness": "1 hour"}, "event_time= and lateness= are for as_of=True"),
        ({"deletes": "since"}, "give a field that is a bool, or that may be None"),
        ({"deletes": "nope"}, "'nope' is not a field of Customer"),
        ({"within": "1 hour"}, "lookup.. has no option within"),
    ],
)
def test_a_wrong_option_is_refused_when_it_is_declared(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(sk.StateTypeError, match=message):
        looked_up(**options)


@pytest.mark.slow
@pytest.mark.parametrize("as_of", [False, True])
def test_check_proves_a_job_with_a_lookup(as_of: bool) -> None:
    check(looked_up(as_of=as_of, deletes="gone"), examples=20)
