"""Jobs that are checked, to find faults of windows, aggregates, stores, inputs and shards."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import statekit as sk
from tests.mutation.subjects import Small


class Reading(NamedTuple):
    key: str
    at: dt.datetime
    number: Small
    price: float | None


IN_TIME: dict[str, Any] = {"key": "key", "event_time": "at", "lateness": "20 seconds"}
LATE: dict[str, Any] = {"allowed_lateness": "30 seconds"}


def readings(name: str) -> tuple[sk.Job, sk.Stream[Reading]]:
    job = sk.Job(name)
    return job, job.source("readings", Reading)


def sliding() -> sk.Job:
    """Windows that overlap and do not start at full minutes."""
    job, of = readings("sliding")
    window = sk.sliding("50 seconds", every="20 seconds", offset="7 seconds")
    of.window(window, **IN_TIME).collect("number", name="lists").sink("lists")
    of.window(window, **IN_TIME).mean("price", name="means").sink("means")
    return job


def sessions() -> sk.Job:
    """Sessions of columns, and those that records are added to one by one."""
    job, of = readings("sessions")
    window = sk.session("10 seconds")
    of.window(window, **IN_TIME).sum("number", name="sums").sink("sums")
    again = of.window(window, **IN_TIME, **LATE).sum("number", name="again")
    again.sink("again")
    again.late.sink("late")
    return job


def kept_windows() -> sk.Job:
    """Windows that fire again, at each record, and in order of time."""
    job, of = readings("kept")
    minute = sk.tumbling("60 seconds")
    of.window(minute, **IN_TIME, **LATE).top(2, by="-price", name="tops").sink("tops")
    of.window(minute, **IN_TIME, emit="change").last(by="number", name="lasts").sink("lasts")
    of.window(minute, **IN_TIME, ordered=True).collect("number", name="all").sink("all")
    return job


def aggregates() -> sk.Job:
    """Aggregates of fields and records, with and without expiry."""
    job, of = readings("aggregates")
    every: dict[str, Any] = {
        "count": sk.Count("price"),
        "total": sk.Sum("price"),
        "mean": sk.Mean("number"),
        "first": sk.Top(2, by="-price", ties=True),
        "last": sk.Last("price", by="at"),
        "all": sk.Collect("number"),
    }
    of.aggregate(key="key", **every).sink("all")
    recent = of.aggregate(key=("key", "number"), ttl=sk.TTL("15 minutes"), **every)
    recent.sink("recent")
    return job


class Asked(NamedTuple):
    key: str
    at: dt.datetime
    number: Small
    back: Small


def number(record: Reading | Asked) -> int:
    return record.number


def back(asked: Asked) -> int:
    return asked.back


def sooner(asked: Asked) -> dt.datetime:
    return asked.at - dt.timedelta(seconds=5 * asked.back)


def added(held: int | None, reading: Reading) -> int | None:
    return None if reading.number == 3 else (held or 0) + reading.number


def store() -> sk.Job:
    """A store of numbers, of which 0 is one."""
    job, of = readings("store")
    asked = job.source("asked", Asked)
    held = job.add(sk.KVStore("held", key=str, value=int))
    held.put(of.filter(is_even, name="even"), key="key", value=number).sink("put")
    held.update(of, added, key="key").sink("updated")
    held.put_if_absent(asked, key="key", value=number).sink("absent")
    expected: dict[str, Any] = {"expected": number, "value": lambda of: of.back or None}
    held.compare_and_set(asked, key="key", **expected).sink("swapped")
    held.remove(asked.filter(is_zero, name="zero"), key="key").sink("removed")
    held.get(asked, key="key").sink("got")
    return job


def is_even(reading: Reading) -> bool:
    return reading.number % 2 == 0


def is_zero(asked: Asked) -> bool:
    return asked.back == 0


def sorted_store() -> sk.Job:
    """A store with an order, and scans of it in both directions."""
    job, of = readings("sorted")
    asked = job.source("asked", Asked)
    held = job.add(sk.KVStore("held", key=str, sort=int, value=int))
    held.put(of, key="key", sort=number, value=number).sink("put")
    held.remove(asked.filter(is_zero, name="zero"), key="key", sort=number).sink("removed")
    held.scan(asked, key="key", start=back, name="up", limit=2).sink("up")
    held.scan(asked, key="key", end=number, reverse=True, name="down", limit=2).sink("down")
    return job


def past_store() -> sk.Job:
    """A store in event time, which is asked for values of the past."""
    job, of = readings("past")
    asked = job.source("asked", Asked)
    held = job.add(
        sk.KVStore(
            "held", key=str, value=int, event_time="at", lateness="20 seconds", history="10 seconds"
        )
    )
    puts = held.put(of, key="key", value=number)
    puts.sink("put")
    held.late(puts).sink("late")
    held.get(asked, key="key", as_of=sooner).sink("got")
    return job


def inputs() -> sk.Job:
    """Two inputs, an operator without event time, and windows behind both."""

    @sk.process(**IN_TIME, ordered=True)
    def joined(event: Reading | Asked, last: sk.ValueState[int]) -> Iterator[Reading]:
        if isinstance(event, Asked):
            last.update(event.number)
        else:
            yield event._replace(number=last.get() or 0)

    @sk.process(key="key")
    def counted(reading: Reading, count: sk.ValueState[int]) -> Iterator[Reading]:
        count.update((count.get() or 0) + 1)
        yield reading._replace(number=count.get() or 0)

    job, of = readings("inputs")
    both = of.union(job.source("asked", Asked)).process(joined)
    both.sink("both")
    both.late.sink("late")
    windows = both.process(counted).window(sk.tumbling("30 seconds"), **IN_TIME)
    windows.sum("number", name="sums").sink("sums")
    return job


def halves(total: int, shards: int) -> list[int]:
    return [total // shards + (shard < total % shards) for shard in range(shards)]


@sk.process(key="key")
def shard_states(
    reading: Reading,
    even: Annotated[sk.OperatorListState[int], sk.Redistribute("even")],
    union: Annotated[sk.OperatorListState[int], sk.Redistribute("union")],
    first: Annotated[sk.OperatorState[int], sk.Redistribute("broadcast")],
    total: Annotated[sk.OperatorState[int], sk.Redistribute(split=halves, merge=sum)],
) -> Iterator[int]:
    """Operator state with each rule."""
    even.append(reading.number)
    if not union:
        union.append(reading.number)
    if first.get() is None:
        first.update(reading.number)
    total.update((total.get() or 0) + reading.number + 1)
    yield reading.number


@sk.process(**IN_TIME)
def maps(
    reading: Reading,
    ctx: sk.Context,
    entries: Annotated[sk.MapState[int, int], sk.TTL("15 minutes")],
    recent: Annotated[sk.MapState[int, int], sk.TTL("20 seconds", clock="event")],
    items: sk.ListState[int],
    best: Annotated[sk.ReducingState[int], sk.Reduce(max), sk.TTL("15 minutes")],
    seen: sk.ValueState[bool],
) -> Iterator[tuple[Any, ...]]:
    """Maps and lists with all of their operations, and timers."""
    seen.update(True)
    number = reading.number
    yield number, entries.floor(number), list(entries.scan(1, 3, reverse=True)), len(recent)
    entries[number] = entries.get(number, 0) + 1
    recent[number] = 1
    best.add(number)
    if number == 2 and entries:
        entries.popitem()
    if number == 3:
        recent.clear()
    items.append(number)
    if len(items) > 3:
        items.update(items[1:])
    ctx.timers.set(reading.at + dt.timedelta(seconds=10 * number), "a")
    ctx.timers.set(reading.at + dt.timedelta(seconds=20), "b")
    if number == 0:
        ctx.timers.delete(reading.at + dt.timedelta(seconds=20), "b")
    yield best.get(), items[-1], items[:2], len(ctx.timers.list("b"))


@maps.on_timer
def maps_fired(timer: sk.Timer, items: sk.ListState[int]) -> Iterator[tuple[Any, ...]]:
    yield timer.name, timer.at, items.get()
    items.clear()


JOBS: dict[str, Any] = {
    "sliding": sliding(),
    "sessions": sessions(),
    "kept_windows": kept_windows(),
    "aggregates": aggregates(),
    "store": store(),
    "sorted_store": sorted_store(),
    "past_store": past_store(),
    "inputs": inputs(),
    "shard_states": shard_states,
    "maps": maps,
}
