"""Wrong functions: their results depend on shards, epochs, order or repetition, or they stop."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Annotated, Any

import statekit as sk
from tests.mutation.cases import BY_KEY, IN_TIME, Cases, Order, Visit, orders

WRONG = Cases()

# ------------------------------------------------------------------------------- shards and epochs


@WRONG.add("the number of the shard is part of the result")
@sk.process(**BY_KEY)
def number_of_the_shard(order: Order, ctx: sk.Context, seen: sk.ValueState[int]) -> Iterator[str]:
    seen.update((seen.get() or 0) + 1)
    yield f"{ctx.shard}-{seen.get()}"


Count = Annotated[sk.OperatorState[int], sk.Default(0)]


@WRONG.add("numbers of all orders from the state of a shard, without a rule for other shards")
@sk.process(**BY_KEY)
def numbers_of_a_shard(order: Order, count: Count) -> Iterator[int]:
    count.update((count.get() or 0) + 1)
    yield count.get() or 0


def halves(count: int, shards: int) -> list[int]:
    return [count // shards] * shards


@WRONG.add("split loses the remainder")
@sk.process(**BY_KEY)
def lossy_split(
    order: Order, count: Annotated[Count, sk.Redistribute(split=halves, merge=sum)]
) -> Iterator[int]:
    count.update((count.get() or 0) + 1)
    yield order.cents


def copies(count: int, shards: int) -> list[int]:
    return [count] * shards


@WRONG.add("split gives everything to every shard")
@sk.process(**BY_KEY)
def copying_split(
    order: Order, count: Annotated[Count, sk.Redistribute(split=copies, merge=sum)]
) -> Iterator[int]:
    count.update((count.get() or 0) + order.cents)
    yield order.cents


def to_the_first(count: int, shards: int) -> list[int]:
    return [count - 1, *[1] * (shards - 1)] if shards > 1 else [count]


@WRONG.add("merge takes the largest part of a sum")
@sk.process(**BY_KEY)
def merge_of_the_largest(
    order: Order, count: Annotated[Count, sk.Redistribute(split=to_the_first, merge=max)]
) -> Iterator[int]:
    count.update((count.get() or 0) + 1)
    yield order.cents


@WRONG.add("the number of the epoch is part of the result")
@sk.process(**BY_KEY)
def number_of_the_epoch(order: Order, ctx: sk.Context) -> Iterator[tuple[int, int]]:
    yield ctx.epoch, order.cents


@WRONG.add("the first order of each epoch is marked")
@sk.process(**BY_KEY)
def first_of_the_epoch(
    order: Order, ctx: sk.Context, last: sk.ValueState[int]
) -> Iterator[tuple[bool, int]]:
    yield last.get() != ctx.epoch, order.cents
    last.update(ctx.epoch)


@WRONG.add("the watermark decides which orders count")
@sk.process(**IN_TIME)
def counts_by_watermark(order: Order, ctx: sk.Context, count: sk.ValueState[int]) -> Iterator[int]:
    if order.at > ctx.watermark + dt.timedelta(seconds=20):
        count.update((count.get() or 0) + 1)
    yield count.get() or 0


# ------------------------------------------------------------------------------------------- order


def aggregated(name: str, aggregate: Any, accumulator: Any, result: Any, window: Any) -> sk.Job:
    job, of = orders(name)
    windows = of.window(window, **IN_TIME)
    windows.aggregate(
        result=sk.OwnAggregate(aggregate, accumulator=accumulator, result=result), name=name
    ).sink("out")
    return job


@WRONG.add("the merge of two sessions forgets the second one")
def forgetful_merge() -> sk.Job:
    total: Any = sk.Aggregate(
        int, lambda held, order: held + order.cents, int, merge=lambda a, b: a
    )
    return aggregated("forgetful", total, int, int, sk.session("10 seconds"))


@WRONG.add("the merge of two sessions counts one more")
def merge_of_one_more() -> sk.Job:
    count: Any = sk.Aggregate(int, lambda held, _: held + 1, int, merge=lambda a, b: a + b + 1)
    return aggregated("one_more", count, int, int, sk.session("10 seconds"))


@WRONG.add("the first order of a window is the first to arrive")
def first_to_arrive() -> sk.Job:
    first: Any = sk.Aggregate(
        lambda: -1, lambda held, order: order.cents if held < 0 else held, int
    )
    return aggregated("first", first, int, int, sk.tumbling("1 minute"))


@WRONG.add("the last order of a window is the last to arrive")
def last_to_arrive() -> sk.Job:
    last: Any = sk.Aggregate(int, lambda _, order: order.cents, int)
    return aggregated("last", last, int, int, sk.sliding("1 minute", every="20 seconds"))


Best = list[tuple[int, dt.datetime]]


@WRONG.add("of equal orders, the first two to arrive are the top two")
def top_by_arrival() -> sk.Job:
    def add(held: Best, order: Order) -> Best:
        best = sorted([*held, (order.cents // 10, order.at)], key=lambda each: -each[0])
        return best[:2]

    top: Any = sk.Aggregate(list[tuple[int, dt.datetime]], add, list[tuple[int, dt.datetime]])
    return aggregated("top", top, Best, Best, sk.tumbling("1 hour"))


@WRONG.add("a sum of thirds, whose last digits depend on the order")
def sum_of_thirds() -> sk.Job:
    thirds: Any = sk.Aggregate(float, lambda held, order: held + order.cents / 3, float)
    return aggregated("thirds", thirds, float, float, sk.tumbling("1 hour"))


@WRONG.add("sums of identifiers as floats, which have 53 bits")
def sum_in_floats() -> sk.Job:
    total: Any = sk.Aggregate(
        float, lambda held, order: held + float(order.cents * 9_007_199_254_740_993), float
    )
    return aggregated("floats", total, float, float, sk.tumbling("1 hour"))


GAP = dt.timedelta(seconds=10)

Sessions = list[tuple[dt.datetime, dt.datetime]]


@WRONG.add("sessions of its own: only one side includes the gap")
def sessions_off_by_one() -> sk.Job:
    def add(held: Sessions, order: Order) -> Sessions:
        start = end = order.at
        others = []
        for first, last in held:
            if first - GAP < order.at <= last + GAP:
                start, end = min(start, first), max(end, last)
            else:
                others.append((first, last))
        return sorted([*others, (start, end)])

    own: Any = sk.Aggregate(list[tuple[dt.datetime, dt.datetime]], add, len)
    return aggregated("sessions", own, Sessions, int, sk.tumbling("1 hour"))


SHARED: list[int] = []


def shared_add(held: list[int], order: Order) -> list[int]:
    held.append(order.cents)
    return held


@WRONG.add("create returns one list for all windows")
def shared_accumulator() -> sk.Job:
    total: Any = sk.Aggregate(lambda: SHARED, shared_add, sum)
    return aggregated("shared", total, list[int], int, sk.tumbling("10 seconds"))


# ----------------------------------------------------------------------------- changed, not written


@WRONG.add("a list that was read is changed, and not written")
@sk.process(**BY_KEY)
def append_without_update(order: Order, held: sk.ValueState[list[int]]) -> Iterator[int]:
    amounts = held.get()
    if amounts is None:
        held.update([order.cents])
    else:
        amounts.append(order.cents)
        yield len(amounts)


@WRONG.add("a dict in a map is changed, and not written")
@sk.process(**BY_KEY)
def nested_without_update(visit: Visit, pages: sk.MapState[str, dict[str, int]]) -> Iterator[int]:
    counted = pages.setdefault("all", {})
    counted[visit.page] = counted.get(visit.page, 0) + 1
    yield counted[visit.page]


# ----------------------------------------------------------------------------------- timers, growth


@WRONG.add("each order sets a timer, and the first one ends the visit")
@sk.process(**IN_TIME)
def timers_that_stay(order: Order, ctx: sk.Context, total: sk.ValueState[int]) -> Iterator[int]:
    total.update((total.get() or 0) + order.cents)
    ctx.timers.set(order.at + dt.timedelta(minutes=10))
    yield total.get() or 0


@timers_that_stay.on_timer
def visit_ends(timer: sk.Timer, total: sk.ValueState[int]) -> Iterator[int]:
    yield total.get() or 0
    total.clear()


@WRONG.add("a timer sets the next one for ever")
@sk.process(**IN_TIME)
def heartbeat_for_ever(order: Order, ctx: sk.Context, total: sk.ValueState[int]) -> Iterator[int]:
    total.update((total.get() or 0) + order.cents)
    ctx.timers.replace(order.at + dt.timedelta(minutes=5))
    yield total.get() or 0


@heartbeat_for_ever.on_timer
def beat(timer: sk.Timer, ctx: sk.Context, total: sk.ValueState[int]) -> Iterator[int]:
    yield total.get() or 0
    ctx.timers.set(timer.at + dt.timedelta(minutes=5))


@WRONG.add("the timer of an order that was paid stays")
@sk.process(**IN_TIME)
def unpaid(order: Order, ctx: sk.Context, open_: sk.ValueState[int]) -> Iterator[str]:
    if open_.get() is None:
        open_.update(order.cents)
        ctx.timers.set(order.at + dt.timedelta(minutes=15), "unpaid")
    else:
        open_.clear()
        yield "paid"


@unpaid.on_timer("unpaid")
def remind(timer: sk.Timer, open_: sk.ValueState[int]) -> Iterator[str]:
    yield f"unpaid {open_.get()}"
    open_.clear()


@WRONG.add("what was seen is kept for ever")
@sk.process(**BY_KEY)
def seen_for_ever(order: Order, seen: sk.MapState[int, bool]) -> Iterator[int]:
    if order.cents not in seen:
        seen[order.cents] = True
        yield order.cents


@WRONG.add("all orders are kept to compute a sum")
@sk.process(**BY_KEY)
def kept_for_a_sum(order: Order, amounts: sk.ListState[int]) -> Iterator[int]:
    amounts.append(order.cents)
    yield sum(amounts)


# ------------------------------------------------------------------------------------------- errors


@WRONG.add("a score may be None")
@sk.process(**BY_KEY)
def none_is_added(visit: Visit, total: sk.ValueState[float]) -> Iterator[float]:
    total.update((total.get() or 0.0) + visit.score)  # type: ignore[operator]
    yield total.get() or 0.0


@WRONG.add("an order of nothing divides by zero")
@sk.process(**BY_KEY)
def divided_by_zero(order: Order, last: sk.ValueState[int]) -> Iterator[float]:
    yield (last.get() or 1) / order.cents
    last.update(order.cents)


@WRONG.add("the fifth order is an error")
@sk.process(**BY_KEY)
def fifth_order(order: Order, count: sk.ValueState[int]) -> Iterator[str]:
    number = count.get() or 0
    yield ("first", "second", "third", "fourth")[number]
    count.update(number + 1)


@WRONG.add("a page that is not in the map is removed")
@sk.process(**BY_KEY)
def absent_entry(visit: Visit, pages: sk.MapState[str, int]) -> Iterator[int]:
    if visit.score is None:
        del pages[visit.page]
    else:
        pages[visit.page] = pages.get(visit.page, 0) + 1
    yield len(pages)


@WRONG.add("a product of orders has more than 64 bits")
@sk.process(**BY_KEY)
def product(order: Order, held: sk.ValueState[int]) -> Iterator[int]:
    held.update((held.get() or 1) * (order.cents + 2) * 1_000)
    yield held.get() or 0


@WRONG.add("29 February has no day a year later")
@sk.process(**BY_KEY)
def year_later(order: Order) -> Iterator[dt.datetime]:
    yield order.at.replace(year=order.at.year + 1)


@WRONG.add("processing time is taken for event time")
@sk.process(**BY_KEY)
def hour_of_processing(
    order: Order, ctx: sk.Context, hours: sk.MapState[int, int]
) -> Iterator[tuple[int, int]]:
    hour = int(ctx.processing_time.timestamp()) // 3600
    hours[hour] = hours.get(hour, 0) + order.cents
    yield hour, hours[hour]
