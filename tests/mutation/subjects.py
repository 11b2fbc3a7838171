"""What is checked, to find faults of statekit: functions and jobs that use all of it.

`python -m tests.mutation.subjects [DEPTH [NAME …]]` checks them, and says by which property the
first fault was found.
"""

from __future__ import annotations

import datetime as dt
import os
import re
import sys
from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple, cast

from pydantic import Field

import statekit as sk
from statekit.testing import check
from statekit.testing.effort import Depth

Small = Annotated[int, Field(ge=0, le=4)]


class Change(NamedTuple):
    """A change of the states of a key."""

    key: str
    what: Literal["set", "append", "extend", "put", "delete", "add", "clear", "scan", "look"]
    number: Small


Mean: sk.Aggregate[int, tuple[int, int], float] = sk.Aggregate(
    create=lambda: (0, 0),
    add=lambda held, number: (held[0] + number, held[1] + 1),
    result=lambda held: held[0] / held[1],
)


@sk.process(key="key")
def changed(
    change: Change,
    value: Annotated[sk.ValueState[int], sk.Default(7)],
    items: sk.ListState[int],
    entries: sk.MapState[int, int],
    total: Annotated[sk.ReducingState[int], sk.Reduce(lambda a, b: (3 * a + b) % 1000)],
    mean: Annotated[sk.AggregatingState[int, tuple[int, int], float], Mean],
) -> Iterator[tuple[Any, ...]]:
    """Uses a state of each kind."""
    number = change.number
    match change.what:
        case "set":
            value.update(number)
        case "append":
            items.append(number)
        case "extend":
            items.extend(range(number))
        case "put":
            entries[number] = entries.get(number, 0) + 1
        case "delete":
            entries.pop(number, None)
        case "add":
            total.add(number)
            mean.add(number)
        case "clear":
            for state in (value, items, entries, total, mean)[: 1 + number]:
                state.clear()
        case "scan":
            yield change.key, "scan", list(entries.scan(1, number)), entries.floor(number)
    yield change.key, value.get(), items.get(), dict(entries), total.get(), mean.get()


class Order(NamedTuple):
    key: str
    at: dt.datetime
    number: Small


class Seen(NamedTuple):
    key: str
    at: dt.datetime
    numbers: list[int]


IN_TIME: dict[str, Any] = {"key": "key", "event_time": "at", "lateness": "20 seconds"}
NAMES = ["default", "again"]


@sk.process(**IN_TIME)
def alarmed(order: Order, ctx: sk.Context, rung: sk.ValueState[int]) -> Iterator[tuple[Any, ...]]:
    """Sets, replaces and deletes timers of both clocks."""
    of = order.number
    rung.update((rung.get() or 0) + 1)
    event = order.at + dt.timedelta(seconds=30 * of - 60)
    processing = ctx.processing_time + dt.timedelta(minutes=7 * of)
    ctx.timers.set(event, NAMES[of % 2])
    ctx.timers.replace(processing, NAMES[of % 2], "processing")
    if of == 2:
        ctx.timers.delete(event + dt.timedelta(seconds=30), "again")
        ctx.timers.replace(event, "again")
    yield order.key, "seen", rung.get(), len(ctx.timers.list())


@alarmed.on_timer
def rang(timer: sk.Timer, ctx: sk.Context, rung: sk.ValueState[int]) -> Iterator[tuple[Any, ...]]:
    rung.update((rung.get() or 0) + 1)
    yield ctx.key, timer.name, timer.clock, timer.at, rung.get()


@alarmed.on_timer("again")
def rang_again(
    timer: sk.Timer, ctx: sk.Context, rung: sk.ValueState[int]
) -> Iterator[tuple[Any, ...]]:
    rung.update((rung.get() or 0) + 1)
    ctx.timers.set(timer.at + dt.timedelta(seconds=3), "default", timer.clock)
    yield ctx.key, timer.name, timer.clock, timer.at, rung.get()


class Ranked(NamedTuple):
    key: str
    at: dt.datetime
    number: Small
    rank: Small


@sk.process(**IN_TIME, ordered=True, order_by="rank")
def in_order(order: Ranked, ctx: sk.Context, seen: sk.ListState[int]) -> Iterator[Seen]:
    """Takes records in order of time and rank, with timers between them."""
    seen.append(order.number)
    ctx.timers.set(order.at + dt.timedelta(seconds=10 * order.number))
    yield Seen(order.key, order.at, seen.get())


@in_order.on_timer
def between(timer: sk.Timer, ctx: sk.Context[str], seen: sk.ListState[int]) -> Iterator[Seen]:
    yield Seen(ctx.key, timer.at, [len(seen)])


ForAMinute = Annotated[sk.ValueState[int], sk.TTL("20 minutes")]


@sk.process(**IN_TIME)
def kept(
    order: Order,
    value: ForAMinute,
    read: Annotated[sk.MapState[int, int], sk.TTL("1 minute", clock="event", refresh="read")],
    items: Annotated[sk.ListState[int], sk.TTL("10 minutes")],
    total: Annotated[sk.ReducingState[int], sk.Reduce(sum), sk.TTL("1 minute", clock="event")],
) -> Iterator[tuple[Any, ...]]:
    """States whose values expire."""
    yield order.key, value.get(), dict(read), items.get(), total.get()
    if order.number != 2:
        value.update(order.number)
        items.append(order.number)
        total.add(order.number)
    if order.number > 2:
        read[order.number] = 1


class Numbered(NamedTuple):
    key: int
    number: Small


def shared(count: int, shards: int) -> list[int]:
    return [count, *[0] * (shards - 1)]


@sk.process(key="key")
def counted(
    change: Numbered,
    counts: Annotated[
        sk.OperatorState[int], sk.Default(0), sk.Redistribute(split=shared, merge=sum)
    ],
    numbers: Annotated[sk.OperatorListState[int], sk.Redistribute("even")],
    last: sk.ValueState[int],
) -> Iterator[tuple[int, int]]:
    """Has operator state, which is redistributed."""
    counts.update((counts.get() or 0) + 1)
    numbers.append(change.number)
    last.update((last.get() or 0) + change.number)
    yield change.key, last.get() or 0


def windows() -> sk.Job:
    """Windows of built-in aggregates and of others, and two operators in a row."""
    job = sk.Job("windows")
    orders = job.source("orders", Ranked)
    orders.window(sk.tumbling("30 seconds"), **IN_TIME).sum("number", name="sums").sink("sums")
    sessions = orders.window(sk.session("10 seconds"), **IN_TIME)
    sessions.collect("number", name="sessions").sink("sessions")
    alarms = orders.process(in_order)
    alarms.map(as_change, name="as_change").process(changed).sink("changed")
    return job


def as_change(seen: Seen) -> Change:
    return Change(seen.key, "put", len(seen.numbers) % 5)


SUBJECTS: dict[str, Any] = {
    "changed": changed,
    "alarmed": alarmed,
    "in_order": in_order,
    "kept": kept,
    "counted": counted,
    "windows": windows(),
}


KEEPS_ALL = {"growth": "some keep all records"}


def main() -> None:
    """Check subjects until one fails, and say which and how."""
    from tests.mutation.job_subjects import JOBS  # which has records of this module

    subjects = SUBJECTS | JOBS
    depth, *names = sys.argv[1:] or ["normal"]
    for name in names or SUBJECTS:
        try:
            check(subjects[name], depth=cast("Depth", depth), excused=KEEPS_ALL)
        except AssertionError as error:
            which = re.search(r": ('[A-Za-z ]+') does not hold", str(error))
            print(f"check of {name}: {which[1] if which else error}")
            if os.environ.get("STATEKIT_SHOW"):
                print(error)
            sys.exit(1)


if __name__ == "__main__":
    main()
