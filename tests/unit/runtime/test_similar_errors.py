"""Errors of users that look like others: of classes of statekit, with a broken `__class__`, of
buffered records or of a clock.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import pytest

import statekit as sk


class Order(NamedTuple):
    customer: str
    cents: int
    at: dt.datetime = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


class OwnError(sk.StatekitError):
    """Of a user."""


class _WithoutClassError(Exception):
    """Does not say of which class it is."""

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        raise RuntimeError("no class")


ERRORS: list[Callable[[], Exception]] = [
    lambda: sk.StateTypeError("mine"),
    lambda: OwnError("mine"),
    _WithoutClassError,
]

Orders = sk.Stream["Order"]

places: dict[str, Callable[..., sk.Stream[Any]]] = {}


def place(make: Callable[..., Any]) -> Callable[..., Any]:
    places[make.__name__] = make
    return make


@place
def function(orders: Orders, error: Callable[[], Exception]) -> Any:
    @sk.process(key="customer")
    def fails(order: Order) -> Iterator[int]:
        yield order.cents
        raise error()

    return orders.process(fails)


@place
def timer(orders: Orders, error: Callable[[], Exception]) -> Any:
    @sk.process(key="customer", event_time="at")
    def waits(order: Order, ctx: sk.Context) -> Iterator[int]:
        ctx.timers.set(order.at)
        yield 1

    @waits.on_timer
    def fails(timer: sk.Timer) -> Iterator[int]:
        yield 1
        raise error()

    return orders.process(waits)


@place
def reducer(orders: Orders, error: Callable[[], Exception]) -> Any:
    def fails(a: int, b: int) -> int:
        raise error()

    @sk.process(key="customer")
    def reduced(
        order: Order, total: Annotated[sk.ReducingState[int], sk.Reduce(fails)]
    ) -> Iterator[int]:
        total.add(order.cents)
        yield total.get() or 0

    return orders.process(reduced)


@place
def stateless(orders: Orders, error: Callable[[], Exception]) -> Any:
    def fails(order: Order) -> Order:
        raise error()

    @sk.process(key="customer")
    def counted(order: Order) -> Iterator[int]:
        yield order.cents

    return orders.map(fails).process(counted)


@pytest.mark.parametrize("error", ERRORS, ids=["of statekit", "derived", "without class"])
@pytest.mark.parametrize("place", places)
def test_an_error_of_the_user_names_the_place_and_is_the_cause(
    place: str, error: Callable[[], Exception], tmp_path: Path
) -> None:
    job = sk.Job("shop")
    places[place](job.source("orders", Order), error).sink("out")
    records = [Order("ann", 1), Order("ann", 2)]
    with pytest.raises(sk.ProcessError, match="in epoch") as failed:
        job.run({"orders": records}, checkpoint=tmp_path / "c")
    assert type(failed.value.__cause__) is type(error())
    assert "epoch" in str(failed.value)
    if place != "stateless":
        assert "at key 'ann'" in str(failed.value)


def test_an_error_that_statekit_raises_in_a_function_is_raised_as_it_is(tmp_path: Path) -> None:
    @sk.process(key="customer")
    def stored(order: Order, total: sk.ValueState[int]) -> Iterator[int]:
        total.update("one")  # type: ignore[arg-type]
        yield 1

    job = sk.Job("shop")
    job.source("orders", Order).process(stored).sink("out")
    with pytest.raises(sk.StateTypeError, match="state 'total' of operator 'stored' at key 'ann'"):
        job.run({"orders": [Order("ann", 1)]}, checkpoint=tmp_path / "c")


def in_order(orders: Orders) -> sk.Stream[Any]:
    @sk.process(key="customer", event_time="at", ordered=True)
    def cents_in_order(order: Order) -> Iterator[int]:
        yield order.cents

    return orders.process(cents_in_order)


def in_windows(orders: Orders) -> sk.Stream[Any]:
    windows = orders.window(sk.tumbling("1 h"), key="customer", event_time="at", ordered=True)
    return windows.collect()


@pytest.mark.parametrize("made", [in_order, in_windows])
@pytest.mark.parametrize("cents", [1.5, "text", None])
def test_a_record_that_could_not_be_read_back_is_not_buffered(
    cents: Any, made: Callable[[Orders], sk.Stream[Any]], tmp_path: Path
) -> None:
    job = sk.Job("shop")
    made(job.source("orders", Order)).sink("out")
    with pytest.raises(sk.ProcessError, match=r"of epoch 0 cannot be buffered .* expected int"):
        job.run({"orders": [Order("ann", cents)]}, checkpoint=tmp_path / "c")
    run = job.run({"orders": [Order("ann", 7)]}, checkpoint=tmp_path / "c")
    assert len(run["out"]) == 1


def failing_clock() -> int:
    raise ValueError("no time")


@pytest.mark.parametrize(
    ("clock", "error", "message"),
    [
        (lambda: "now", sk.StateTypeError, "clock= gave 'now', of type str: return the micros"),
        (lambda: 1.5, sk.StateTypeError, "of type float"),
        (lambda: np.int64(5), sk.StateTypeError, r"of type numpy.int64: call \.item\(\)"),
        (lambda: 2**70, sk.StateTypeError, "to the year 9999"),
        (failing_clock, sk.ProcessError, "clock= failed with ValueError: no time"),
    ],
)
def test_a_clock_that_gives_no_time_is_an_error_and_nothing_is_committed(
    clock: Any, error: type[Exception], message: str, tmp_path: Path
) -> None:
    @sk.process(key="customer")
    def counted(order: Order, count: sk.ValueState[int]) -> Iterator[int]:
        count.update((count.get() or 0) + 1)
        yield count.get() or 0

    job = sk.Job("shop")
    job.source("orders", Order).process(counted).sink("out")
    with pytest.raises(error, match=message):
        job.run({"orders": [Order("ann", 1)]}, checkpoint=tmp_path / "c", clock=clock)
    run = job.run({"orders": [Order("ann", 1)]}, checkpoint=tmp_path / "c", clock=lambda: 0)
    assert run["out"] == [1]
