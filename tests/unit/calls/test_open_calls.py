"""Open calls: bounded in number and memory, in order, cancelled when nobody wants their results."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statekit.calls.event_loops import ThreadLoop, VirtualTimeLoop, with_event_loop
from statekit.calls.open_calls import OpenCalls


class Counted:
    """A service that counts its open calls, and answers after the time that is asked for."""

    def __init__(self) -> None:
        self.open = self.most_open = self.cancelled = 0

    async def __call__(self, seconds: float) -> float:
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.open -= 1
        if seconds < 0:
            raise ZeroDivisionError
        return seconds


@pytest.fixture(autouse=True)
def virtual_time() -> Iterator[None]:
    with with_event_loop(VirtualTimeLoop()):
        yield


TIMES = st.lists(st.integers(0, 50).map(float), max_size=60)


@given(TIMES, st.integers(1, 9))
def test_results_are_in_the_order_of_the_inputs(times: list[float], concurrency: int) -> None:
    called = Counted()
    with with_event_loop(VirtualTimeLoop()):
        calls = OpenCalls(called, concurrency=concurrency, ordered=True)
        assert list(calls.results(times)) == times
    assert called.most_open == min(concurrency, len(times))


@given(TIMES, st.integers(1, 9))
def test_unordered_results_are_complete(times: list[float], concurrency: int) -> None:
    called = Counted()
    with with_event_loop(VirtualTimeLoop()):
        calls = OpenCalls(called, concurrency=concurrency, ordered=False)
        assert sorted(calls.results(times)) == sorted(times)
    assert called.most_open == min(concurrency, len(times))


def test_unordered_results_arrive_when_they_are_there() -> None:
    calls = OpenCalls(Counted(), concurrency=3, ordered=False)
    assert list(calls.results([9.0, 1.0, 5.0])) == [1.0, 5.0, 9.0]


@pytest.mark.parametrize("ordered", [True, False])
def test_inputs_are_read_when_there_is_room(ordered: bool) -> None:
    read: list[float] = []

    def inputs() -> Iterator[float]:
        for number in range(10_000):
            read.append(number)
            yield 1.0

    results = OpenCalls(Counted(), concurrency=10, ordered=ordered).results(inputs())
    for taken, _ in enumerate(results, start=1):
        assert len(read) - taken < 40
        if taken == 500:
            break


def test_one_slow_call_does_not_make_inputs_pile_up() -> None:
    read: list[float] = []

    def inputs() -> Iterator[float]:
        for number in range(1_000):
            read.append(number)
            yield 1.0 if number else 10_000.0

    first = next(OpenCalls(Counted(), concurrency=5, ordered=True).results(inputs()))
    assert (first, len(read)) == (10_000.0, 20)


def test_an_error_ends_all_other_calls() -> None:
    called = Counted()
    calls = OpenCalls(called, concurrency=4, ordered=True)
    with pytest.raises(ZeroDivisionError):
        list(calls.results([100.0, 100.0, -1.0, 100.0]))
    assert (called.open, called.cancelled) == (0, 3)


def test_open_calls_are_cancelled_if_nobody_takes_their_results() -> None:
    called = Counted()
    results = OpenCalls(called, concurrency=4, ordered=False).results([1.0, *[100.0] * 20])
    assert next(results) == 1.0
    results.close()  # type: ignore[attr-defined]
    assert called.open == 0
    assert called.cancelled == 4


def test_inputs_that_cannot_be_read_end_all_calls() -> None:
    called = Counted()

    def inputs() -> Iterator[float]:
        yield from [1.0] * 30
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        list(OpenCalls(called, concurrency=8, ordered=True).results(inputs()))
    assert called.open == 0


def test_a_thread_makes_calls_go_on_while_results_are_used() -> None:
    """The calls end although nothing runs their loop from here."""
    ended = []

    async def called(number: int) -> int:
        await asyncio.sleep(0)
        ended.append(number)
        return number

    with with_event_loop(ThreadLoop()):
        results = OpenCalls(called, concurrency=4, ordered=True).results(range(100))
        assert list(results) == list(range(100))
    assert sorted(ended) == list(range(100))
