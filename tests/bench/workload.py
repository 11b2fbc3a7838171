"""The workloads that all engines run: counts, map entries, sessions and counts in order of time."""

from __future__ import annotations

import datetime as dt
import itertools
import random
from collections.abc import Iterator
from typing import Annotated, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

import statekit as sk
from statekit.spark.worker.rows import GROUP
from tests.bench.built import groups_of

KEYS = 100_000
INSTANT = pa.timestamp("us", tz="UTC")


class Event(msgspec.Struct):
    key: int
    value: int


class Count(NamedTuple):
    key: int
    events: int
    total: int


@sk.process(key="key")
def running_count(event: Event, held: sk.ValueState[tuple[int, int]]) -> Iterator[Count]:
    count, total = held.get() or (0, 0)
    count, total = count + 1, total + event.value
    held.update((count, total))
    yield Count(event.key, count, total)


@sk.process(key="key")
def count_of_key(events: Iterator[Event], held: sk.ValueState[tuple[int, int]]) -> Iterator[Count]:
    """The running count, given all events of a key at once."""
    count, total = held.get() or (0, 0)
    for event in events:
        count, total = count + 1, total + event.value
        yield Count(event.key, count, total)
    held.update((count, total))


@sk.process(key="key")
def expiring_count(
    event: Event, held: Annotated[sk.ValueState[tuple[int, int]], sk.TTL("1 hour")]
) -> Iterator[Count]:
    """The running count over state that expires."""
    count, total = held.get() or (0, 0)
    count, total = count + 1, total + event.value
    held.update((count, total))
    yield Count(event.key, count, total)


class Entry(msgspec.Struct):
    key: int
    entry: int
    value: int


@sk.process(key="key")
def map_entry(event: Entry, held: sk.MapState[int, int]) -> Iterator[Count]:
    total = held.get(event.entry, 0) + event.value
    held[event.entry] = total
    yield Count(event.key, event.entry, total)


class Flight(msgspec.Struct):
    """A record of 64 bytes or so."""

    key: int
    tail: str
    origin: str
    destination: str
    departed: dt.datetime
    arrived: dt.datetime
    miles: int
    delay: float


class Flown(NamedTuple):
    """What is known of an aircraft."""

    miles: int
    delay: float
    at: str
    since: dt.datetime


class Leg(NamedTuple):
    key: int
    origin: str
    destination: str
    departed: dt.datetime
    miles: int


@sk.process(key="key")
def last_flight(flight: Flight, held: sk.ValueState[Flown]) -> Iterator[Leg]:
    """Where an aircraft is, and how far it has flown."""
    before = held.get()
    miles, delay = (before.miles, before.delay) if before else (0, 0.0)
    miles += flight.miles
    held.update(Flown(miles, delay + flight.delay, flight.destination, flight.arrived))
    yield Leg(flight.key, flight.origin, flight.destination, flight.departed, miles)


@sk.process(key="key")
def append_value(event: Event, held: sk.ListState[int]) -> None:
    held.append(event.value)


class Order(NamedTuple):
    key: int
    value: int


class Offer(NamedTuple):
    key: int
    value: int


class Match(NamedTuple):
    key: int
    ordered: int
    offered: int


@sk.process(key="key")
def matched(
    event: Order | Offer, orders: sk.ListState[int], offers: sk.ListState[int]
) -> Iterator[Match]:
    """Joins all orders and all offers of a key, whichever comes first, for ever."""
    if isinstance(event, Order):
        orders.append(event.value)
        for offered in offers:
            yield Match(event.key, event.value, offered)
    else:
        offers.append(event.value)
        for ordered in orders:
            yield Match(event.key, ordered, event.value)


# One batch covers a minute of event time, in any order.
SPAN = dt.timedelta(minutes=1)
SPAN_MS = 60_000

GAP = dt.timedelta(seconds=30)
SESSION_LATENESS = "10 seconds"


class Moment(NamedTuple):
    """An event with its time."""

    key: int
    at: dt.datetime


class Session(NamedTuple):
    key: int
    events: int


@sk.process(key="key", event_time="at", lateness=SESSION_LATENESS)
def sessions(
    event: Moment, ctx: sk.Context, held: sk.ValueState[tuple[int, dt.datetime]]
) -> Iterator[Session]:
    """Counts a key's events until none came for a while."""
    count, last = held.get() or (0, event.at)
    last = max(last, event.at)
    held.update((count + 1, last))
    ctx.timers.replace(last + GAP)
    yield from ()


@sessions.on_timer
def session_ends(
    timer: sk.Timer, ctx: sk.Context[int], held: sk.ValueState[tuple[int, dt.datetime]]
) -> Iterator[Session]:
    count, _ = held.get() or (0, timer.at)
    held.clear()
    yield Session(ctx.key, count)


class Timed(NamedTuple):
    """As `Event`, with a time."""

    key: int
    value: int
    at: dt.datetime


@sk.process(key="key", event_time="at")
def reminders(event: Timed, ctx: sk.Context) -> Iterator[Session]:
    """Sets a timer as many seconds on as the event says."""
    ctx.timers.set(event.at + dt.timedelta(seconds=event.value))
    yield from ()


@reminders.on_timer
def remind(timer: sk.Timer, ctx: sk.Context[int]) -> Iterator[Session]:
    yield Session(ctx.key, 1)


def count_timed(event: Timed, held: sk.ValueState[tuple[int, int]]) -> Iterator[Count]:
    count, total = held.get() or (0, 0)
    count, total = count + 1, total + event.value
    held.update((count, total))
    yield Count(event.key, count, total)


unordered_count = sk.process(key="key", event_time="at", lateness=SPAN)(count_timed)
ordered_count = sk.process(key="key", event_time="at", lateness=SPAN, ordered=True)(count_timed)


def events(count: int, seed: int, keys: int = KEYS) -> pa.Table:
    """Events with keys drawn uniformly."""
    draw = random.Random(seed)
    return pa.table(
        {
            "key": pa.array([draw.randrange(keys) for _ in range(count)], pa.int64()),
            "value": pa.array([draw.randrange(1000) for _ in range(count)], pa.int64()),
            "ts": pa.array(range(count), pa.int64()),
        }
    )


def zipf_events(count: int, seed: int, keys: int = KEYS) -> pa.Table:
    """Events with keys drawn by Zipf's law: the n-th most frequent one by 1 in n to the power 1.1.

    One event in seven is of the most frequent key.
    """
    draw = random.Random(seed)
    shuffled = random.Random(0).sample(range(keys), keys)
    weights = list(itertools.accumulate(rank**-1.1 for rank in range(1, keys + 1)))
    drawn = draw.choices(shuffled, cum_weights=weights, k=count)
    return pa.table(
        {
            "key": pa.array(drawn, pa.int64()),
            "value": pa.array([draw.randrange(1000) for _ in range(count)], pa.int64()),
            "ts": pa.array(range(count), pa.int64()),
        }
    )


def entries(count: int, seed: int) -> pa.Table:
    """Entries of 1,000 maps of 100, drawn uniformly."""
    draw = random.Random(seed)
    return pa.table(
        {
            "key": pa.array([draw.randrange(1_000) for _ in range(count)], pa.int64()),
            "entry": pa.array([draw.randrange(100) for _ in range(count)], pa.int64()),
            "value": pa.array([draw.randrange(1000) for _ in range(count)], pa.int64()),
        }
    )


def orders_and_offers(count: int, number: int) -> pa.Table:
    """The orders and offers of batch `number`: a key has one of each on average, in two batches."""
    draw = random.Random(number)
    first = number * count // 2
    return pa.table(
        {
            "key": pa.array([first + draw.randrange(count) for _ in range(count)], pa.int64()),
            "value": pa.array([draw.randrange(1000) for _ in range(count)], pa.int64()),
            "is_order": pa.array([draw.random() < 0.5 for _ in range(count)], pa.bool_()),
        }
    )


def flights(count: int, seed: int) -> pa.Table:
    """Flights of aircraft that are drawn uniformly."""
    draw = random.Random(seed)
    keys = [draw.randrange(KEYS) for _ in range(count)]
    departed = [1_400_000_000_000_000 + draw.randrange(10**13) for _ in range(count)]
    airports = [f"K{number:03d}" for number in range(300)]
    return pa.table(
        {
            "key": pa.array(keys, pa.int64()),
            "tail": pa.array([f"N{key:05d}UNITED" for key in keys]),
            "origin": pa.array(draw.choices(airports, k=count)),
            "destination": pa.array(draw.choices(airports, k=count)),
            "departed": pa.array(departed, INSTANT),
            "arrived": pa.array([at + 7_200_000_000 for at in departed], INSTANT),
            "miles": pa.array([draw.randrange(5000) for _ in range(count)], pa.int64()),
            "delay": pa.array([draw.random() * 60 for _ in range(count)], pa.float64()),
        }
    )


def moments(count: int, number: int, keys: int = KEYS, *, passing: int = 0) -> pa.Table:
    """The events of batch `number`: a minute of event time, with keys drawn uniformly.

    Parameters:
        passing: so many of the keys are left behind with each batch, and as many come anew.
    """
    draw = random.Random(number)
    first = number * passing
    times = [number * SPAN_MS + draw.randrange(SPAN_MS) for _ in range(count)]
    return pa.table(
        {
            "key": pa.array([first + draw.randrange(keys) for _ in range(count)], pa.int64()),
            "value": pa.array([draw.randrange(1000) for _ in range(count)], pa.int64()),
            "at": pa.array([time * 1000 for time in times], INSTANT),
        }
    )


def as_sorted(columns: dict[str, list[int]]) -> list[pa.RecordBatch]:
    """Columns of integers as a shard gets them from Spark: see `sorted_batches`."""
    return sorted_batches(pa.table({n: pa.array(v, pa.int64()) for n, v in columns.items()}))


def sorted_batches(table: pa.Table, key: tuple[str, ...] = ("key",)) -> list[pa.RecordBatch]:
    """A table as a shard gets it from Spark: key group first, sorted by group and key.

    The group of a key of two fields is that of the first: to one shard it is the same which it is.
    """
    first, *others = (table.column(name).to_numpy() for name in key)
    groups = groups_of(first)
    order = np.lexsort((*reversed(others), first, groups))
    grouped = table.add_column(0, GROUP, pa.array(groups, pa.int32()))
    return list(grouped.take(order).combine_chunks().to_batches(max_chunksize=10_000))
