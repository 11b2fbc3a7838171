"""Right functions, each with something that looks wrong to a check that is too strict."""

from __future__ import annotations

import datetime as dt
import decimal
import functools
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import msgspec
import pydantic

import statekit as sk
from tests.mutation.cases import BY_KEY, IN_TIME, Cases, Order, Visit, orders

RIGHT = Cases()

LIMITS = {"gold": 100, "silver": 10}
MINUTE = dt.timedelta(minutes=1)

# ------------------------------------------------------------------------------------------ states


@RIGHT.add("a sum in a state")
@sk.process(**BY_KEY)
def total(order: Order, held: sk.ValueState[int]) -> Iterator[int]:
    held.update((held.get() or 0) + order.cents)
    yield held.get() or 0


@RIGHT.add("a constant of the module")
@sk.process(**BY_KEY)
def by_limits(order: Order, over: sk.ValueState[int]) -> Iterator[str]:
    for name, limit in LIMITS.items():
        if order.cents > limit:
            over.update((over.get() or 0) + 1)
            yield name


@functools.lru_cache(maxsize=64)
def squared(number: int) -> int:
    return number % 97 * (number % 97)


@RIGHT.add("a cache of a function that has no effects")
@sk.process(**BY_KEY)
def cached_squares(order: Order, held: sk.ValueState[int]) -> Iterator[int]:
    held.update(squared(order.cents))
    yield held.get() or 0


@RIGHT.add("a list that was read is sorted to emit its first element")
@sk.process(**BY_KEY)
def sorted_copy(order: Order, held: sk.ValueState[list[int]]) -> Iterator[int]:
    amounts = [*(held.get() or []), order.cents][-5:]
    held.update(amounts)
    read = held.get() or []
    read.sort()
    yield read[0]


@RIGHT.add("a list that was read is changed and written")
@sk.process(**BY_KEY)
def written_back(order: Order, held: sk.ValueState[list[int]]) -> Iterator[int]:
    amounts = held.get() or []
    amounts.append(order.cents)
    held.update(amounts[-3:])
    yield len(amounts)


@RIGHT.add("a state that is cleared when it is complete")
@sk.process(**BY_KEY)
def in_threes(order: Order, held: sk.ListState[int]) -> Iterator[int]:
    held.append(order.cents)
    if len(held) == 3:
        yield sum(held)
        held.clear()


@RIGHT.add("a set is sorted before it is emitted")
@sk.process(**BY_KEY)
def sorted_set(visit: Visit, pages: sk.ValueState[set[str]]) -> Iterator[list[str]]:
    pages.update({*sorted({visit.page, *(pages.get() or ())})[:4]})
    yield sorted(pages.get() or ())


@RIGHT.add("an identifier that is made of the record")
@sk.process(**BY_KEY)
def identified(order: Order) -> Iterator[str]:
    yield str(uuid.uuid5(uuid.NAMESPACE_URL, f"{order.customer}/{order.at.isoformat()}"))


@RIGHT.add("a Counter of one call")
@sk.process(**BY_KEY)
def letters(visit: Visit) -> Iterator[list[tuple[str, int]]]:
    yield sorted(Counter(visit.page).items())


@RIGHT.add("None is skipped")
@sk.process(**BY_KEY)
def known_scores(visit: Visit, best: sk.ValueState[float]) -> Iterator[float | None]:
    if visit.score is not None and visit.score > (best.get() or 0.0):
        best.update(visit.score)
    yield best.get()


@RIGHT.add("Optional values, which are not absent ones")
@sk.process(**BY_KEY)
def last_score(visit: Visit, last: sk.ValueState[float | None]) -> Iterator[bool]:
    yield last.exists()
    last.update(visit.score)


@RIGHT.add("the largest map entries are kept")
@sk.process(**BY_KEY)
def few_pages(visit: Visit, pages: sk.MapState[str, int]) -> Iterator[int]:
    pages[visit.page] = pages.get(visit.page, 0) + 1
    while len(pages) > 3:
        pages.popitem()
    yield len(pages)


@RIGHT.add("a reducer with an order of its own")
@sk.process(**BY_KEY)
def polynomial(
    order: Order, held: Annotated[sk.ReducingState[int], sk.Reduce(lambda a, b: (7 * a + b) % 997)]
) -> Iterator[int]:
    held.add(order.cents)
    yield held.get() or 0


Mean: sk.Aggregate[int, tuple[int, int], float] = sk.Aggregate(
    lambda: (0, 0), lambda held, n: (held[0] + n, held[1] + 1), lambda h: h[0] / h[1]
)


@RIGHT.add("a mean of integers")
@sk.process(**BY_KEY)
def mean(
    order: Order, held: Annotated[sk.AggregatingState[int, tuple[int, int], float], Mean]
) -> Iterator[float]:
    held.add(order.cents % 1_000)
    yield held.get() or 0.0


class Price(pydantic.BaseModel):
    customer: str
    amount: decimal.Decimal = pydantic.Field(ge=0, max_digits=10, decimal_places=2)


@RIGHT.add("sums of decimals in a model of pydantic")
@sk.process(**BY_KEY)
def decimals(price: Price, held: sk.ValueState[Price]) -> Iterator[Price]:
    before = held.get()
    if before is None or price.amount > before.amount:
        held.update(price)
    yield held.get() or price


class Reading(msgspec.Struct):
    customer: str
    levels: list[int]


@RIGHT.add("Structs that are changed after they were emitted")
@sk.process(**BY_KEY)
def emitted_and_changed(reading: Reading) -> Iterator[Reading]:
    for number in range(2):
        reading.levels.append(number)
        yield reading


@dataclass
class Basket:
    customer: str
    items: dict[str, int]


@RIGHT.add("dataclasses with dicts, in any order")
@sk.process(**BY_KEY)
def baskets(basket: Basket, held: sk.ValueState[Basket]) -> Iterator[Basket]:
    before = held.get() or Basket(basket.customer, {})
    held.update(Basket(basket.customer, {**before.items, **dict(sorted(basket.items.items())[:2])}))
    yield held.get() or basket


# --------------------------------------------------------------------------------------- operators


def shared(count: int, shards: int) -> list[int]:
    return [count // shards + (shard < count % shards) for shard in range(shards)]


@RIGHT.add("a counter of a shard that is split and merged, and not emitted")
@sk.process(**BY_KEY)
def counted(
    order: Order,
    count: Annotated[
        sk.OperatorState[int], sk.Default(0), sk.Redistribute(split=shared, merge=sum)
    ],
) -> Iterator[int]:
    count.update((count.get() or 0) + 1)
    yield order.cents


@RIGHT.add("a list of a shard that is redistributed evenly")
@sk.process(**BY_KEY)
def buffered(
    order: Order, held: Annotated[sk.OperatorListState[int], sk.Redistribute("even")]
) -> Iterator[int]:
    held.append(order.cents)
    yield order.cents


class Rule(NamedTuple):
    name: str
    limit: int


@RIGHT.add("rules that every shard gets")
@sk.process(**BY_KEY)
def ruled(order: Order, rules: sk.BroadcastState[str, int]) -> Iterator[list[str]]:
    yield [name for name, limit in rules.items() if order.cents > limit]


@ruled.on_broadcast
def rule(given: Rule, rules: sk.BroadcastState[str, int]) -> None:
    rules[given.name] = given.limit


class Large(NamedTuple):
    customer: str
    cents: int


class Small(NamedTuple):
    customer: str
    orders: int


@RIGHT.add("results of two types")
@sk.process(**BY_KEY)
def of_two_types(order: Order, small: sk.ValueState[int]) -> Iterator[Large | Small]:
    if order.cents > 10:
        yield Large(order.customer, order.cents)
    else:
        small.update((small.get() or 0) + 1)
        yield Small(order.customer, small.get() or 0)


@RIGHT.add("all records of a key and an epoch at once")
@sk.process(**BY_KEY)
def per_epoch(some: Iterator[Order], held: sk.ValueState[int]) -> Iterator[int]:
    held.update((held.get() or 0) + sum(order.cents for order in some))
    yield held.get() or 0


# ------------------------------------------------------------------------------------------- timers


@RIGHT.add("one timer, which each order replaces")
@sk.process(**IN_TIME, ordered=True)
def sessions(order: Order, ctx: sk.Context, held: sk.ValueState[int]) -> Iterator[int]:
    held.update((held.get() or 0) + order.cents)
    ctx.timers.replace(order.at + MINUTE)
    yield held.get() or 0


@sessions.on_timer
def session_ends(timer: sk.Timer, held: sk.ValueState[int]) -> Iterator[int]:
    yield -(held.get() or 0)
    held.clear()


@RIGHT.add("a reminder that is deleted when it is not needed")
@sk.process(**IN_TIME)
def reminded(order: Order, ctx: sk.Context, due: sk.ValueState[dt.datetime]) -> Iterator[str]:
    at = due.get()
    if at is None:
        due.update(order.at + MINUTE)
        ctx.timers.set(order.at + MINUTE, "remind")
    else:
        ctx.timers.delete(at, "remind")
        due.clear()
        yield "paid"


@reminded.on_timer("remind")
def reminder(timer: sk.Timer, due: sk.ValueState[dt.datetime]) -> Iterator[str]:
    yield "reminder"
    due.clear()


@RIGHT.add("a heartbeat that ends")
@sk.process(**IN_TIME)
def heartbeat(order: Order, ctx: sk.Context, left: sk.ValueState[int]) -> Iterator[int]:
    left.update(5)
    ctx.timers.replace(order.at + MINUTE)
    yield order.cents


@heartbeat.on_timer
def beat(timer: sk.Timer, ctx: sk.Context, left: sk.ValueState[int]) -> Iterator[int]:
    still = (left.get() or 0) - 1
    yield still
    if still > 0:
        left.update(still)
        ctx.timers.set(timer.at + MINUTE)
    else:
        left.clear()


@RIGHT.add("a timer of processing time")
@sk.process(**BY_KEY)
def idle(order: Order, ctx: sk.Context, held: sk.ValueState[int]) -> Iterator[int]:
    held.update((held.get() or 0) + 1)
    ctx.timers.replace(ctx.processing_time + dt.timedelta(hours=1), clock="processing")
    yield held.get() or 0


@idle.on_timer
def is_idle(timer: sk.Timer, held: sk.ValueState[int]) -> Iterator[int]:
    yield -(held.get() or 0)
    held.clear()


@RIGHT.add("orders in the order of time")
@sk.process(**IN_TIME, ordered=True)
def differences(order: Order, last: sk.ValueState[int]) -> Iterator[int]:
    yield order.cents - (last.get() or 0)
    last.update(order.cents)


@RIGHT.add("values that expire by processing time")
@sk.process(**BY_KEY)
def recent(
    order: Order, seen: Annotated[sk.MapState[int, int], sk.TTL("15 minutes")]
) -> Iterator[int]:
    if order.cents not in seen:
        seen[order.cents] = 1
        yield order.cents


@RIGHT.add("values that expire by event time, in order")
@sk.process(**IN_TIME, ordered=True)
def recent_in_order(
    order: Order, seen: Annotated[sk.ValueState[int], sk.TTL("1 minute", clock="event")]
) -> Iterator[int | None]:
    yield seen.get()
    seen.update(order.cents)


# --------------------------------------------------------------------------------------------- jobs


@RIGHT.add("windows of a minute, and late orders")
def minutes() -> sk.Job:
    job, of = orders("minutes")
    counted = of.window(sk.tumbling("1 minute"), **IN_TIME).count(name="minutes")
    counted.sink("minutes")
    counted.late.sink("late")
    return job


@RIGHT.add("sliding means of floats")
def sliding_means() -> sk.Job:
    job = sk.Job("means")
    visits = job.source("visits", Visit)
    windows = visits.window(sk.sliding("1 minute", every="20 seconds"), **IN_TIME)
    windows.mean("score", name="means").sink("means")
    return job


@RIGHT.add("sessions that are collected, with late results")
def collected_sessions() -> sk.Job:
    job, of = orders("sessions")
    windows = of.window(sk.session("10 seconds"), **IN_TIME, allowed_lateness="1 minute")
    windows.collect("cents", name="sessions").sink("sessions")
    return job


@RIGHT.add("the top of windows")
def top_of_windows() -> sk.Job:
    job, of = orders("tops")
    of.window(sk.tumbling("1 minute"), **IN_TIME).top(2, by="-cents", name="tops").sink("tops")
    return job


@RIGHT.add("results at each change")
def at_each_change() -> sk.Job:
    job, of = orders("changes")
    windows = of.window(sk.tumbling("1 minute"), **IN_TIME, emit="change")
    windows.max("cents", name="largest").sink("largest")
    return job


@RIGHT.add("an aggregate of sessions, with a merge")
def own_sessions() -> sk.Job:
    job, of = orders("own")
    both: sk.Aggregate[Order, int, int] = sk.Aggregate(
        int, lambda held, order: held + order.cents % 7, int, merge=lambda a, b: a + b
    )
    windows = of.window(sk.session("10 seconds"), **IN_TIME)
    windows.aggregate(own=sk.OwnAggregate(both, accumulator=int, result=int), name="own").sink(
        "own"
    )
    return job


@RIGHT.add("built-in aggregates")
def aggregates() -> sk.Job:
    job = sk.Job("aggregates")
    visits = job.source("visits", Visit)
    of = visits.aggregate(
        key="customer",
        visits=sk.Count(),
        best=sk.Max("score"),
        last=sk.Last("page", by="at"),
        top=sk.Top(2, by="-score"),
        ttl=sk.TTL("1 hour"),
    )
    of.sink("aggregates")
    return job


class Payment(NamedTuple):
    customer: str
    at: dt.datetime
    paid: int


@RIGHT.add("two inputs in the order of time")
def joined() -> sk.Job:
    @sk.process(**IN_TIME, ordered=True)
    def settled(event: Order | Payment, due: sk.ValueState[int]) -> Iterator[int]:
        change = event.cents if isinstance(event, Order) else -event.paid
        due.update((due.get() or 0) + change)
        yield due.get() or 0

    job, of = orders("joined")
    of.union(job.source("payments", Payment)).process(settled).sink("balances")
    return job


@RIGHT.add("windows after a function and a filter")
def chained() -> sk.Job:
    @sk.process(**IN_TIME, ordered=True)
    def rises(order: Order, last: sk.ValueState[int]) -> Iterator[Order]:
        if order.cents > (last.get() or 0):
            yield order
        last.update(order.cents)

    job, of = orders("chained")
    large = of.process(rises).filter(lambda order: order.cents % 2 == 0, name="even")
    windows = large.window(sk.tumbling("1 minute"), **IN_TIME)
    windows.count(name="minutes").sink("minutes")
    return job


@RIGHT.add("a key-value store")
def store() -> sk.Job:
    job, of = orders("store")
    balances = job.add(sk.KVStore("balances", key=str, value=int))
    questions = job.source("questions", Visit)
    balances.update(of, lambda held, order: (held or 0) + order.cents, key="customer").sink("all")
    balances.get(questions, key="customer").sink("answers")
    return job


@RIGHT.add("a key-value store in event time, with values of the past")
def store_of_the_past() -> sk.Job:
    job, of = orders("past")
    prices = job.add(
        sk.KVStore(
            "prices", key=str, value=int, event_time="at", lateness="20 seconds", history="1 minute"
        )
    )
    prices.put(of, key="customer", value="cents").sink("puts")
    questions = job.source("questions", Visit)
    before: Any = lambda visit: visit.at - dt.timedelta(seconds=10)  # noqa: E731
    prices.get(questions, key="customer", as_of=before).sink("answers")
    return job
