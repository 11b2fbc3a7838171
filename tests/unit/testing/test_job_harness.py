"""A harness of a whole job: its epochs, sinks, states and late records are those of a run."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple, cast

import pytest

import statekit as sk
from statekit.testing import JobHarness
from tests.support.instants import at


class Order(NamedTuple):
    customer: str
    at: dt.datetime
    cents: int


class Payment(NamedTuple):
    customer: str
    cents: int


class Balance(NamedTuple):
    customer: str
    owed: int


@sk.process(key="customer")
def settle(paid: Order | Payment, owed: sk.ValueState[int]) -> Iterator[Balance]:
    sign = 1 if isinstance(paid, Order) else -1
    owed.update((owed.get() or 0) + sign * paid.cents)
    yield Balance(paid.customer, owed.get() or 0)


COUNTED = sk.Redistribute(
    split=lambda total, shards: [total] + [0] * (shards - 1), merge=lambda counts: sum(counts)
)


@sk.process(key="customer")
def most(
    balance: Balance, seen: sk.ValueState[int], ever: Annotated[sk.OperatorState[int], COUNTED]
) -> Iterator[Balance]:
    ever.update((ever.get() or 0) + 1)
    if balance.owed > (seen.get() or 0):
        seen.update(balance.owed)
        yield balance


def shop() -> sk.Job:
    job = sk.Job("shop")
    orders, payments = job.source("orders", Order), job.source("payments", Payment)
    orders.union(payments).process(settle).process(most).sink("records")
    hours = orders.window(
        sk.tumbling("1 hour"), key="customer", event_time="at", lateness="10 minutes"
    ).sum("cents", name="hourly")
    hours.sink("hours")
    hours.late.sink("late")
    return job


ORDERS = [Order("ada", at(0), 5), Order("bob", at(60), 7), Order("ada", at(9_000), 2)]


@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
@pytest.mark.parametrize("parallelism", [1, 3])
def test_an_epoch_runs_all_operators(backend: Any, parallelism: int) -> None:
    harness = JobHarness(shop(), parallelism, backend)
    assert (harness.parallelism, harness.epoch) == (parallelism, None)
    found = harness.send(orders=ORDERS, payments=[Payment("bob", 3)])
    assert sorted(found["records"]) == [("ada", 5), ("ada", 7), ("bob", 7)]
    fired = harness.send(payments=[Payment("ada", 7)])
    assert fired == {"records": [], "hours": harness.outputs["hours"], "late": []}
    assert sorted(map(tuple, harness.outputs["hours"])) == [
        ("ada", at(0), at(3600), 5),
        ("bob", at(0), at(3600), 7),
    ]
    assert harness.state("settle", "owed", "ada") == 0
    assert harness.state("most", "seen", "bob") == 7
    assert sum(filter(None, harness.operator_state("most", "ever"))) == 5
    assert harness.epoch == 1


def test_late_records_come_to_their_sink() -> None:
    harness = JobHarness(shop())
    harness.send(orders=ORDERS)
    late = Order("eve", at(1), 1)
    assert harness.send(orders=[late])["late"] == [late]


def test_draining_fires_all_windows() -> None:
    harness = JobHarness(shop(), 2)
    assert harness.drain() == {"records": [], "hours": [], "late": []}
    harness.send(orders=ORDERS)
    found = harness.drain()["hours"]
    assert sorted(map(tuple, found))[-1] == ("bob", at(0), at(3600), 7)
    assert len(harness.outputs["hours"]) == 3


def test_a_watermark_and_a_clock_are_advanced() -> None:
    harness = JobHarness(shop())
    harness.send(orders=ORDERS[:1])
    assert harness.advance_watermark(at(3_599.999999))["hours"] == [("ada", at(0), at(3600), 5)]
    with pytest.raises(sk.StateTypeError, match="not later"):
        harness.advance_watermark(at(10))
    assert harness.advance_processing_time(at(5))["hours"] == []
    with pytest.raises(sk.StateTypeError, match="not later"):
        harness.advance_processing_time(at(5))


def test_a_crash_and_another_parallelism_change_nothing(tmp_path: Path) -> None:
    plain, moved = JobHarness(shop()), JobHarness(shop(), 2)
    for number, order in enumerate(ORDERS * 3):
        plain.send(orders=[order])
        moved.send(orders=[order])
        moved.crash()
        moved.rescale(1 + number % 4)
    moved.checkpoint(tmp_path / "checkpoint")
    restored = JobHarness.restore(shop(), tmp_path / "checkpoint", parallelism=5)
    assert restored.parallelism == 5
    for harness in (plain, restored):
        harness.send(payments=[Payment("ada", 1)])
    assert restored.state("settle", "owed", "ada") == plain.state("settle", "owed", "ada") == 20
    for name in ("records", "hours", "late"):
        assert sorted(map(repr, moved.outputs[name])) == sorted(map(repr, plain.outputs[name]))


def test_an_error_restores_the_epoch_before() -> None:
    harness = JobHarness(shop())
    harness.send(orders=ORDERS[:1])
    with pytest.raises(sk.ProcessError):
        harness.send(orders=[("not", "an", "order", "at", "all")])
    assert harness.state("settle", "owed", "ada") == 5
    assert harness.send(payments=[Payment("ada", 5)])["records"] == []
    assert harness.state("settle", "owed", "ada") == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda harness: harness.send(order=[]), "no source 'order': it has orders, payments"),
        (lambda harness: harness.state("settled", "owed", "a"), "no operator 'settled': it has"),
        (lambda harness: harness.state("settle", "owing", "a"), "settle has no state 'owing'"),
        (lambda harness: harness.timers("nobody", "a"), "no operator 'nobody'"),
        (lambda _: JobHarness(cast("Any", settle)), "drives a Job, not"),
        (lambda _: JobHarness(shop(), backend=cast("Any", "disk")), 'use "memory" or "rocksdb"'),
    ],
)
def test_what_is_not_there_is_named(call: Any, message: str) -> None:
    with pytest.raises(sk.StatekitError, match=message):
        call(JobHarness(shop()))


def test_without_event_time_there_is_no_watermark() -> None:
    job = sk.Job("plain")
    job.source("balances", Balance).process(most).sink("records")
    with pytest.raises(sk.StateTypeError, match="no operator of job 'plain' that reads a source"):
        JobHarness(job).advance_watermark(at(1))
