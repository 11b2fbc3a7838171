"""Time: which callbacks and calls fit, and which do not."""

import datetime as dt
from collections.abc import Iterator
from typing import NamedTuple, assert_type

import statekit as sk
from statekit.testing import Harness


class Flight(NamedTuple):
    tail: str
    at: dt.datetime


@sk.process(key="tail", event_time="at", lateness="2 hours")
def follow(flight: Flight, ctx: sk.Context, last: sk.ValueState[Flight]) -> Iterator[str]:
    due: dt.datetime = ctx.watermark + dt.timedelta(hours=1)
    ctx.timers.set(due)
    ctx.timers.set(flight.at, "landing", clock="processing")
    ctx.timers.replace(due, name="landing")
    ctx.timers.delete(ctx.processing_time)
    for timer in ctx.timers.list("landing"):
        yield timer.name
    yield f"{ctx.event_time}"


@follow.on_timer
def overdue(timer: sk.Timer, last: sk.ValueState[Flight]) -> Iterator[str]:
    yield f"{timer.at:%H:%M}"


@follow.on_timer("landing")
def landed(timer: sk.Timer, ctx: sk.Context) -> None:
    ctx.timers.delete(timer.at, timer.name, timer.clock)


job = sk.Job("fleet")
stream = job.source("flights", Flight).process(follow)
late: sk.Stream[Flight] = stream.late.sink("late")
wrongly_late: sk.Stream[str] = stream.late  # error: Incompatible types in assignment


@sk.process(key="tail")
def by_key(flight: Flight, ctx: sk.Context[str]) -> Iterator[str]:
    yield ctx.key.upper()
    yield ctx.key.uper()  # error: "str" has no attribute "uper"


@sk.process(key="tail")
def of_any_key(flight: Flight, ctx: sk.Context) -> Iterator[str]:
    yield f"{ctx.key}"
    yield ctx.key.upper()  # error: "object" has no attribute "upper"


@sk.process  # error: expected "Never"
def without_parentheses(flight: Flight) -> None: ...


@follow.on_timer  # error: incompatible type "Callable[[Flight], None]"
def takes_a_record(flight: Flight) -> None: ...


@follow.on_timer("other")  # error: incompatible type "Callable[[Timer], Iterator[int]]"
def yields_another_type(timer: sk.Timer) -> Iterator[int]:
    yield 1


@sk.process(key="tail", event_time=5)  # error: incompatible type "int"; expected "str | None"
def wrong(flight: Flight, ctx: sk.Context) -> None:
    ctx.timers.set("noon")  # error: incompatible type "str"; expected "datetime"
    ctx.timers.set(flight.at, clock="wall")  # error: expected "Literal['event', 'processing']"
    ctx.timers.set(ctx.watermark.hours)  # error: "datetime" has no attribute "hours"
    ctx.timers = None  # error: Property "timers" defined in "Context" is read-only


@sk.process(key="tail")
def in_runs(flights: Iterator[Flight]) -> Iterator[int]:
    yield sum(1 for _ in flights)


harness = Harness(follow)
assert_type(harness.send({"tail": "N1", "at": dt.datetime(2026, 1, 1)}), list[str])
assert_type(harness.late, list[Flight])
assert_type(Harness(stream).late, list[Flight])
assert_type(Harness(in_runs).late, list[Flight])
assert_type(harness.errors, list[sk.FailedRecord])
harness.send("N1")  # error: Argument 1 to "send" of "Harness"
Harness(follow, backend="disk")  # error: No overload variant of "Harness"
assert_type(stream.errors, sk.Stream[sk.FailedRecord])
