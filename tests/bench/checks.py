"""How much CPU `check` takes at its quickest: here, and in the other processes that it starts."""

from __future__ import annotations

import datetime as dt
import os
import statistics
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import statekit as sk
from statekit.testing import check
from statekit.testing.runs.new_processes import PLACES
from tests.bench.report import Row

ROUNDS = 5
WANTED_S = {"a small function": 3, "a function with timers": 15}


class Order(NamedTuple):
    customer: str
    at: dt.datetime
    cents: int


@sk.process(key="customer")
def spent(order: Order, total: sk.ValueState[int]) -> Iterator[int]:
    total.update((total.get() or 0) + order.cents)
    yield total.get() or 0


@sk.process(key="customer", event_time="at", ordered=True)
def basket(order: Order, total: sk.ValueState[int], ctx: sk.Context) -> Iterator[int]:
    total.update((total.get() or 0) + order.cents)
    ctx.timers.replace(order.at + dt.timedelta(minutes=5))
    yield from ()


@basket.on_timer
def paid(timer: sk.Timer, total: sk.ValueState[int], ctx: sk.Context) -> Iterator[int]:
    yield total.get() or 0
    total.clear()


def seconds() -> list[Row]:
    check(spent, depth="quick", holds=["errors", "processes"])
    started_s = _others_s()
    rows = [_row("a small function", spent), _row("a function with timers", basket)]
    what = "check: other processes that the first one starts"
    return [*rows, Row(what, f"{started_s:.1f} s of CPU", "")]


def _row(what: str, checked: sk.Process[Any, Any, Any]) -> Row:
    here_s, others_s = zip(*(_spent_s(checked, seed) for seed in range(ROUNDS)), strict=True)
    here, others, wanted = statistics.median(here_s), statistics.median(others_s), WANTED_S[what]
    result = f"{here:.1f} s of CPU, and {others:.1f} s in other processes"
    return Row(f"check at depth quick: {what}", result, f"{wanted} s", ratio=wanted / here)


def _spent_s(checked: sk.Process[Any, Any, Any], seed: int) -> tuple[float, float]:
    """Return the CPU seconds of a check in this process and in others."""
    others_s, begun_s = _others_s(), time.process_time()
    check(checked, depth="quick", seed=seed)
    return time.process_time() - begun_s, _others_s() - others_s


def _others_s() -> float:
    """The CPU seconds of the other processes and their copies since they were started."""
    return sum(sum(place.call(os.times)[:4]) for place in PLACES)


BENCHMARKS = {"checks": seconds}
