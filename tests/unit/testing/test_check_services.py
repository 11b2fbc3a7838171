"""Checks of jobs that call services: right jobs pass, results that depend on chance are found."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

import pytest

import statekit as sk
from statekit.testing import check

pytestmark = pytest.mark.slow


class Order(NamedTuple):
    customer: str
    number: int


class Score(NamedTuple):
    customer: str
    risk: int


async def scored(order: Order) -> Score:
    await asyncio.sleep(order.number % 5)
    return Score(order.customer, order.number)


async def often_refused(order: Order) -> Score:
    if order.number % 3 == 0:
        await asyncio.Event().wait()
    return Score(order.customer, order.number)


async def of_batches(orders: list[Order]) -> list[Score]:
    return [Score(order.customer, len(orders)) for order in orders]


@sk.process(key="customer")
def before(score: Score, last: sk.ValueState[int]) -> list[int]:
    found = last.get() or 0
    last.update(score.risk)
    return [found]


def _job(fn: Any, **options: Any) -> sk.Job:
    job = sk.Job("shop")
    scores = (
        job.source("orders", Order)
        .map_async(fn, concurrency=3, timeout="10 seconds", **options)
        .sink("scores")
    )
    scores.process(before).sink("before")
    return job


def test_calls_with_pauses_pass_in_no_time() -> None:
    check(_job(scored), depth="quick")


def test_calls_that_never_end_are_failed_records() -> None:
    check(_job(often_refused, on_error="drop"), depth="quick")


@sk.process(key="customer", concurrency=3)
async def summed(order: Order, total: sk.ValueState[int]) -> list[int]:
    before = total.get() or 0
    await asyncio.sleep(order.number % 5)
    total.update(before + order.number)
    return [total.get() or 0]


def test_an_async_function_with_state_passes() -> None:
    job = sk.Job("shop")
    job.source("orders", Order).process(summed).sink("sums")
    report = check(job)
    assert "plain Python" in str(report)


KNOWN: dict[str, int] = {}


@sk.process(key="customer", concurrency=3)
async def remembered(order: Order, total: sk.ValueState[int]) -> list[int]:
    KNOWN[order.customer] = KNOWN.get(order.customer, 0) + order.number
    await asyncio.sleep(0)
    total.update(KNOWN[order.customer])
    return [total.get() or 0]


def test_an_async_function_with_memory_of_its_own_is_found() -> None:
    job = sk.Job("shop")
    job.source("orders", Order).process(remembered).sink("sums")
    with pytest.raises(AssertionError, match="does not hold"):
        check(job)


def test_a_reader_that_depends_on_the_order_of_answers_is_found() -> None:
    with pytest.raises(AssertionError, match="'epochs' does not hold"):
        check(_job(scored, ordered=False))


def test_results_that_depend_on_the_size_of_a_batch_are_found() -> None:
    with pytest.raises(AssertionError, match="'epochs' does not hold"):
        check(_job(of_batches, batch=4))
