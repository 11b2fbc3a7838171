"""`check` finds what people get wrong, shows the smallest history, and passes what is right."""

from __future__ import annotations

import datetime as dt
import decimal
import re
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import msgspec
import pydantic
import pytest
from hypothesis import strategies as st

import statekit as sk
from statekit.functions.process import Process
from statekit.testing import check
from statekit.testing.checks.properties import PROPERTIES
from statekit.testing.runs.comparison import exactly, in_any_order
from statekit.testing.runs.observed import Observed
from tests.support.effort import SOAK
from tests.support.instants import at


class Order(NamedTuple):
    customer: str
    at: dt.datetime
    cents: int


IN_TIME: dict[str, Any] = {"key": "customer", "event_time": "at", "lateness": "1 minute"}

# ------------------------------------------------------------------------------------------- wrong

COUNTED = {"orders": 0}


@sk.process(key="customer")
def numbered(order: Order) -> Iterator[tuple[str, int]]:
    COUNTED["orders"] += 1
    yield order.customer, COUNTED["orders"]


def remembered(order: Order, seen: list[int] = []) -> list[int]:  # noqa: B006 - it is the mistake
    seen.append(order.cents)
    return seen


@sk.process(key="customer")
def with_mutable_default(order: Order, count: sk.ValueState[int]) -> Iterator[int]:
    count.update(len(remembered(order)))
    yield count.get() or 0


@sk.process(key="customer")
def first_of_all(order: Order, first: sk.ValueState[int]) -> Iterator[int]:
    if first.get() is None:
        first.update(order.cents)
    yield first.get() or 0


@sk.process(**IN_TIME)
def reminded(order: Order, ctx: sk.Context, total: sk.ValueState[int]) -> Iterator[int]:
    total.update((total.get() or 0) + order.cents)
    ctx.timers.set(order.at + dt.timedelta(minutes=30))
    yield total.get() or 0


@reminded.on_timer
def is_over(timer: sk.Timer, total: sk.ValueState[int]) -> Iterator[int]:
    yield total.get() or 0
    total.clear()


def merged_twice() -> sk.Stream[Any]:
    orders = sk.Job("shop").source("orders", Order)
    counted: sk.Aggregate[Any, int, int] = sk.Aggregate(
        create=int, add=lambda held, _: held + 1, result=int, merge=lambda a, b: a + b + 1
    )
    windows = orders.window(sk.session("10 s"), **IN_TIME)
    return windows.aggregate(
        visits=sk.OwnAggregate(counted, accumulator=int, result=int), name="visits"
    )


@sk.process(key="customer")
def first_letter(order: Order, seen: sk.ListState[str]) -> Iterator[str]:
    yield next(iter({order.customer, "x", "y", "z"}))


@sk.process(key="customer")
def halved(order: Order, total: sk.ValueState[float]) -> Iterator[float]:
    total.update(1 / order.cents)
    yield total.get() or 0.0


@sk.process(key="customer")
def per_call(orders: Iterator[Order]) -> Iterator[int]:
    yield sum(1 for _ in orders)


@sk.process(key="customer")
def dated(order: Order, seen: sk.ListState[str]) -> Iterator[dt.date]:
    yield dt.date.today()


@sk.process(key="customer")
def by_local_hour(order: Order, seen: sk.ListState[str]) -> Iterator[int]:
    yield dt.datetime.fromtimestamp(order.at.timestamp()).hour


@sk.process(key="customer")
def of_today(order: Order, seen: sk.ListState[str]) -> Iterator[int]:
    if abs(order.at - dt.datetime.now(dt.UTC)) < dt.timedelta(days=1):
        yield order.cents


@sk.process(key="customer")
def woken(order: Order, ctx: sk.Context, total: sk.ValueState[int]) -> Iterator[int]:
    total.update((total.get() or 0) + order.cents)
    ctx.timers.set(ctx.processing_time + dt.timedelta(hours=1), clock="processing")
    yield total.get() or 0


@woken.on_timer
def asleep(timer: sk.Timer, total: sk.ValueState[int]) -> Iterator[int]:
    yield total.get() or 0
    total.clear()


@sk.process(**IN_TIME)
def without_end(order: Order, ctx: sk.Context, total: sk.ValueState[int]) -> Iterator[int]:
    total.update((total.get() or 0) + order.cents)
    ctx.timers.replace(order.at + dt.timedelta(minutes=1))
    yield total.get() or 0


@without_end.on_timer
def once_more(timer: sk.Timer, ctx: sk.Context, total: sk.ValueState[int]) -> Iterator[int]:
    yield total.get() or 0
    ctx.timers.set(timer.at + dt.timedelta(minutes=1))


WRONG: list[tuple[Any, str, str]] = [
    (numbered, "restarts", "such as in a global variable or a cache"),
    (with_mutable_default, "restarts", "What differs: the records of sink 'outputs'"),
    (reminded, "leftovers", "and the timers"),
    (merged_twice(), "arrival order", "depend on the order in which records arrive"),
    (halved, "errors", "ZeroDivisionError"),
    (first_letter, "processes", "the order of a set"),
    (dated, "processes", "the clock or the time zone"),
    (by_local_hour, "processes", "the clock or the time zone"),
    (of_today, "processes", "the clock or the time zone"),
    (woken, "leftovers", "clock='processing'"),
    (without_end, "leftovers", "timers set each other without end"),
]


FEW = [0, 2, 3, 4, 5, 7]
"""Of each property one, and two of other processes."""


@pytest.mark.parametrize(
    ("given", "name", "message"),
    [
        pytest.param(*WRONG[number], id=f"{WRONG[number][1]} {number}")
        for number in (range(len(WRONG)) if SOAK else FEW)
    ],
)
def test_a_mistake_is_found(given: Any, name: str, message: str) -> None:
    with pytest.raises(AssertionError) as caught:
        check(given, depth="quick")
    text = str(caught.value)
    assert f": {name!r} does not hold" in text
    assert message in text
    assert text.count("Order(") <= 16, "the history is small"


def test_what_depends_on_arrival_is_found_when_it_is_said_not_to() -> None:
    with pytest.raises(AssertionError, match="'arrival order' does not hold"):
        check(in_time, holds=["arrival order"], depth="quick")
    with pytest.raises(AssertionError, match="'epochs' does not hold"):
        check(per_call, holds={"epochs"}, depth="quick")


@sk.process(**IN_TIME)
def in_time(order: Order, first: sk.ValueState[int]) -> Iterator[int]:
    if first.get() is None:
        first.update(order.cents)
    yield first.get() or 0


def test_the_printed_test_runs_the_failure_again() -> None:
    with pytest.raises(AssertionError) as caught:
        check(reminded, depth="quick")
    lines = str(caught.value).split("This test runs it again:")[1].split("If this is intended")[0]
    names: dict[str, Any] = {"Order": Order, "reminded": reminded}
    exec(re.sub(r"^    ", "", lines, flags=re.MULTILINE), names)
    with pytest.raises(AssertionError, match="'leftovers' does not hold"):
        names["test_reminded_leftovers"]()


# ------------------------------------------------------------------------------------------- right


@sk.process(**IN_TIME, ordered=True)
def spent(
    order: Order,
    ctx: sk.Context,
    total: sk.ValueState[int],
    orders: sk.ListState[int],
    by_cents: sk.MapState[int, int],
    most: Annotated[sk.ReducingState[int], sk.Reduce(max)],
) -> Iterator[tuple[int, int]]:
    total.update((total.get() or 0) + order.cents)
    orders.append(order.cents)
    by_cents[order.cents] = by_cents.get(order.cents, 0) + 1
    most.add(order.cents)
    ctx.timers.replace(order.at + dt.timedelta(minutes=30))
    yield total.get() or 0, len(orders)


@spent.on_timer
def forgotten(
    timer: sk.Timer,
    total: sk.ValueState[int],
    orders: sk.ListState[int],
    by_cents: sk.MapState[int, int],
    most: Annotated[sk.ReducingState[int], sk.Reduce(max)],
) -> Iterator[tuple[int, int]]:
    yield total.get() or 0, -len(by_cents)
    for state in (total, orders, by_cents, most):
        state.clear()


def summed() -> sk.Stream[Any]:
    orders = sk.Job("shop").source("orders", Order)
    return orders.window(sk.sliding("20 s", "10 s"), **IN_TIME).sum("cents")


def largest() -> sk.Stream[Any]:
    """Gathers a list, whose order does not matter for what it comes to."""
    orders = sk.Job("shop").source("orders", Order)
    gathered: sk.Aggregate[Any, list[int], int] = sk.Aggregate(
        create=list, add=lambda held, order: [*held, order.cents], result=max, merge=list.__add__
    )
    windows = orders.window(sk.tumbling("10 s"), **IN_TIME)
    return windows.aggregate(
        largest=sk.OwnAggregate(gathered, accumulator=list[int], result=int), name="largest"
    )


def totals() -> sk.Stream[Any]:
    orders = sk.Job("shop").source("orders", Order)
    made: sk.Stream[Any] = orders.aggregate(key="customer", total=sk.Sum("cents"))
    return made


class Rate(NamedTuple):
    currency: str
    dollars: float


@sk.process(key="customer")
def priced(order: Order, rates: sk.BroadcastState[str, float]) -> Iterator[float]:
    yield order.cents * rates.get("a", 1.0)


@priced.on_broadcast
def learn(rate: Rate, rates: sk.BroadcastState[str, float]) -> None:
    rates[rate.currency] = rate.dollars


def shop() -> sk.Job:
    job = sk.Job("shop")
    orders = job.source("orders", Order)
    small = orders.filter(lambda order: order.cents < 100, name="small")
    small.process(first_of_all).sink("firsts")
    orders.window(sk.tumbling("10 s"), **IN_TIME).count(name="counts").sink("counts")
    return job


class Payment(NamedTuple):
    customer: str
    amount: decimal.Decimal
    tags: frozenset[str]


@sk.process(key="customer")
def paid(
    payment: Payment, total: sk.ValueState[decimal.Decimal], seen: sk.ValueState[set[str]]
) -> Iterator[tuple[str, frozenset[str]]]:
    """Decimals and sets have several texts for one value."""
    total.update((total.get() or decimal.Decimal(0)) + payment.amount)
    seen.update((seen.get() or set()) | payment.tags)
    yield str(payment.amount), payment.tags


ForAnHour = Annotated[sk.ValueState[int], sk.TTL("1 hour", refresh="read")]


@sk.process(key="customer")
def beating(order: Order, ctx: sk.Context, total: ForAnHour) -> Iterator[int]:
    """Wakes up every five minutes as long as there is state, which is right."""
    total.update((total.get() or 0) + order.cents)
    ctx.timers.replace(ctx.processing_time + dt.timedelta(minutes=5), clock="processing")
    yield total.get() or 0


@beating.on_timer
def beat(timer: sk.Timer, ctx: sk.Context, total: ForAnHour) -> Iterator[int]:
    yield total.get() or 0
    ctx.timers.set(timer.at + dt.timedelta(minutes=5), clock="processing")


@sk.process(key=("customer", "cents"))
def by_two_fields(order: Order, seen: sk.MapState[int, int]) -> Iterator[int]:
    seen[order.cents] = seen.get(order.cents, 0) + 1
    yield seen[order.cents]


Last = Annotated[sk.ValueState[int], sk.TTL("20 minutes")]


@sk.process(**IN_TIME)
def kept_for_a_while(
    order: Order,
    ctx: sk.Context,
    last: Last,
    seen: Annotated[sk.MapState[int, int], sk.TTL("1 minute", clock="event", refresh="read")],
    every: Annotated[sk.ListState[int], sk.TTL("1 hour", clock="event")],
    total: Annotated[sk.ReducingState[int], sk.Reduce(sum), sk.TTL("1 day")],
) -> Iterator[tuple[int | None, int]]:
    yield last.get(), len(seen)
    last.update(order.cents)
    seen[order.cents] = 1
    every.append(order.cents)
    total.add(order.cents)
    ctx.timers.replace(ctx.processing_time + dt.timedelta(minutes=15), clock="processing")


@kept_for_a_while.on_timer
def looked_at_again(timer: sk.Timer, last: Last) -> Iterator[tuple[int | None, int]]:
    yield last.get(), 0


class Limited(NamedTuple):
    customer: str
    pieces: Annotated[int, pydantic.Field(ge=0)]
    price: Annotated[float, pydantic.Field(gt=0)]
    share: Annotated[float, pydantic.Field(ge=0, le=1)]


@sk.process(key="customer")
def later(of: Limited, count: sk.ValueState[int], price: sk.ValueState[float]) -> Iterator[float]:
    count.update((count.get() or 0) + of.pieces)
    price.update((price.get() or 0.0) + of.price + of.share)
    yield price.get() or 0.0


class Measured(NamedTuple):
    customer: str
    at: dt.datetime
    value: float


def stamped_means() -> sk.Stream[Any]:
    values = sk.Job("values").source("values", Measured)
    return values.window(sk.session("10 minutes"), **IN_TIME).mean("value", name="mean")


stamped = stamped_means()


class Tagged(msgspec.Struct):
    customer: str
    tags: set[str]


@sk.process(key="customer")
def tagged(of: Tagged, seen: sk.ValueState[set[str]]) -> Iterator[Tagged]:
    seen.update((seen.get() or set()) | of.tags)
    yield Tagged(of.customer, seen.get() or set())


@sk.process(key="customer")
def growing(order: Order) -> Iterator[list[int]]:
    """Emits a list that it changes later: what is emitted is a copy."""
    emitted: list[int] = []
    for number in range(2):
        emitted.append(number)
        yield emitted


@sk.process(key="customer", event_time="at")
def in_instalments(order: Order, ctx: sk.Context, left: sk.ValueState[int]) -> Iterator[int]:
    """Sets a timer after the other, and ends some time."""
    if left.get() is None:
        left.update(60)
        ctx.timers.set(order.at + dt.timedelta(days=30))
    yield left.get() or 0


@in_instalments.on_timer
def instalment(timer: sk.Timer, ctx: sk.Context, left: sk.ValueState[int]) -> Iterator[int]:
    still = (left.get() or 0) - 1
    yield still
    if still > 0:
        left.update(still)
        ctx.timers.set(timer.at + dt.timedelta(days=30))
    else:
        left.clear()


def renamed() -> sk.Job:
    """A job of one function, whose sink has a name of its own."""
    job = sk.Job("renamed")
    job.source("orders", Order).process(first_of_all).sink("firsts")
    return job


SEEN: set[str] = set()
RATES: dict[str, int] = {}


@sk.process(key="customer")
def only_once(order: dict[str, Any]) -> Iterator[str]:
    if order["customer"] not in SEEN:
        SEEN.add(order["customer"])
        yield order["customer"]


@sk.process(key="customer")
def cached(order: Order) -> Iterator[int]:
    yield RATES.setdefault(order.customer, order.cents)


def copied(count: int, shards: int) -> list[int]:
    return [count] * shards


@sk.process(key="customer")
def replicated(
    order: Order,
    count: Annotated[
        sk.OperatorState[int], sk.Default(0), sk.Redistribute(split=copied, merge=sum)
    ],
) -> Iterator[int]:
    count.update((count.get() or 0) + 1)
    yield order.cents


@sk.process(**IN_TIME)
def reset(order: Order, ctx: sk.Context, held: sk.ValueState[list[int]]) -> Iterator[int]:
    """Keeps an empty list, which is a value."""
    amounts = [*(held.get() or []), order.cents]
    held.update([] if len(amounts) == 2 else amounts)
    ctx.timers.replace(order.at + dt.timedelta(minutes=1))
    yield len(amounts)


@reset.on_timer
def flushed(timer: sk.Timer, held: sk.ValueState[list[int]]) -> Iterator[int]:
    yield -len(held.get() or [])
    held.clear()


def test_an_empty_list_in_a_value_state_is_a_value() -> None:
    check(reset, holds=["leftovers", "queries", "plain Python"], depth="quick")


class Row(NamedTuple):
    customer: str
    seconds: int


class Limit(NamedTuple):
    name: str
    cents: int


@sk.process(**IN_TIME, ordered=True)
def limited(
    order: Order, total: sk.ValueState[int], limits: sk.BroadcastState[str, int]
) -> Iterator[int]:
    total.update((total.get() or 0) + order.cents)
    yield min([total.get() or 0, *(cents for _, cents in limits.items())])


@limited.on_broadcast
def limit(given: Limit, limits: sk.BroadcastState[str, int]) -> None:
    limits[given.name] = given.cents


def parsed(row: Row) -> Order:
    return Order(row.customer, at(row.seconds % 100), 1)


def only_positive(row: Row) -> Order:
    if row.seconds <= 0:
        raise ValueError(row.seconds)
    return parsed(row)


@pytest.mark.parametrize("is_parsed", [False, True], ids=["broadcast", "mapped"])
def test_records_whose_class_has_no_event_time_may_arrive_in_another_order(is_parsed: bool) -> None:
    job = sk.Job("shop")
    orders: sk.Stream[Any] = job.source("orders", Row if is_parsed else Order)
    orders = orders.map(parsed) if is_parsed else orders
    orders.process(limited, broadcast=job.source("limits", Limit)).sink("totals")
    check(job, holds=["arrival order"], depth="quick")


@sk.process(**IN_TIME)
def first_parsed(order: Order, first: sk.ValueState[str]) -> Iterator[str]:
    if first.get() is None:
        first.update(order.at.isoformat())
    yield first.get() or ""


def test_records_are_ordered_by_the_time_that_a_map_gives_them() -> None:
    job = sk.Job("shop")
    orders = (
        job.source("orders", Row).map(parsed).filter(lambda order: order.cents > 0, name="some")
    )
    orders.process(first_parsed).sink("firsts")
    with pytest.raises(AssertionError, match="'arrival order' does not hold"):
        check(job, holds=["arrival order"])


def test_records_keep_their_order_if_what_they_become_may_not_be_asked() -> None:
    """A function may fail for a record that a filter before it refuses."""
    job = sk.Job("shop")
    orders = job.source("orders", Row).filter(lambda row: row.seconds > 0, name="some")
    orders.map(only_positive).process(limited, broadcast=job.source("limits", Limit)).sink("totals")
    check(job, holds=["arrival order"], depth="quick")


@pytest.mark.slow
@pytest.mark.parametrize(
    "given",
    [
        spent,
        first_of_all,
        summed(),
        largest(),
        totals(),
        priced,
        paid,
        beating,
        by_two_fields,
        kept_for_a_while,
        shop(),
    ],
    ids=[
        "spent",
        "first_of_all",
        "summed",
        "largest",
        "totals",
        "priced",
        "paid",
        "beating",
        "by_two_fields",
        "kept_for_a_while",
        "shop",
    ],
)
def test_what_is_right_passes(given: Process[Any, Any, Any] | sk.Stream[Any] | sk.Job) -> None:
    check(given, depth="quick")


@pytest.mark.parametrize("kind", ["windows", "sessions", "aggregates"])
def test_operators_of_several_key_fields_that_are_not_the_first_ones_pass(kind: str) -> None:
    job = sk.Job("shop")
    orders, key = job.source("orders", Order), ("customer", "cents")
    if kind == "aggregates":
        orders.aggregate(key=key, orders=sk.Count()).sink("counts")
    else:
        window = sk.session("10 s") if kind == "sessions" else sk.tumbling("10 s")
        orders.window(window, **{**IN_TIME, "key": key}).count(name="counts").sink("counts")
    check(job, depth="quick", holds=["plain Python"])


def test_timers_are_compared_also_if_the_last_records_advance_event_time_beyond_the_first() -> None:
    history = [[Order("ada", at(hours * 3_600), 5) for hours in (0, 2, 5)]]
    check(reminded, history=history, holds={"plain Python": None})


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (later, "errors"),
        (stamped, "epochs"),
        (tagged, "processes"),
        (growing, "plain Python"),
        (renamed(), "plain Python"),
        (in_instalments, "leftovers"),
    ],
    ids=["limits", "floats", "sets", "copies", "sinks", "timers"],
)
def test_what_is_right_causes_no_false_alarm(given: Any, name: str) -> None:
    check(given, holds=[name], depth="quick")


def test_what_is_kept_in_a_module_is_lost_in_a_crash() -> None:
    with pytest.raises(AssertionError, match="'restarts' does not hold"):
        check(only_once, events=[{"customer": "ada"}, {"customer": "bob"}])
    with pytest.raises(AssertionError, match="'restarts' does not hold"):
        check(cached)
    assert not SEEN
    assert not RATES


def test_operator_state_that_is_split_and_merged_is_the_same() -> None:
    with pytest.raises(
        AssertionError, match=r"operator state 'count' of replicated: merge\(split\(1"
    ):
        check(replicated, depth="quick")


def test_a_check_whose_runs_fail_is_no_pass() -> None:
    with pytest.raises(
        sk.StateTypeError, match="'parallelism' checks nothing: 1 of 1 runs of 'halved'"
    ):
        check(halved, history=[[Order("ada", at(0), 0)]], holds={"parallelism": 2})
    with pytest.raises(
        sk.StateTypeError, match=r"checks nothing: .* The first error: .*division by"
    ):
        check(halved, events=[Order("ada", at(0), 0)], excused={"errors": "some are empty"})


def test_a_property_may_be_excused() -> None:
    check(per_call, depth="quick")
    others = [each.name for each in PROPERTIES if each.name not in ("errors", "leftovers")]
    check(numbered, depth="quick", excused=dict.fromkeys(others, "numbers may have gaps"))


# ------------------------------------------------------------------------------------------ events


@sk.process(key="customer")
def of_dicts(order: dict[str, Any], total: sk.ValueState[int]) -> Iterator[int]:
    total.update((total.get() or 0) + order["cents"])
    yield total.get() or 0


def test_events_may_be_given() -> None:
    records = [{"customer": "ada", "cents": cents} for cents in (1, 2)]
    few: dict[str, Any] = {"depth": "quick", "holds": ["repeats", "parallelism"]}
    check(of_dicts, events=records, **few)
    check(of_dicts, events=st.sampled_from(records), **few)
    check(shop(), events={"orders": [Order("ada", at(0), 5)]}, **few)


def test_a_history_may_be_given() -> None:
    check(first_of_all, history=[[Order("ada", at(0), 5)], []])
    twice = [[Order("ada", at(0), 5)], [Order("ada", at(0), 5)]]
    with pytest.raises(AssertionError, match="'restarts' does not hold"):
        check(numbered, history=twice, holds={"restarts": {1}})


def test_what_cannot_be_checked_is_refused() -> None:
    with pytest.raises(sk.StateTypeError, match="give examples with events="):
        check(of_dicts)
    with pytest.raises(sk.StateTypeError, match="events= names 'order': the sources of 'shop' are"):
        check(shop(), events={"order": []})
    with pytest.raises(
        sk.StateTypeError, match="no property 'reordering': there are repeats, errors"
    ):
        check(numbered, holds=["reordering"])
    with pytest.raises(sk.StateTypeError, match="say why, in a sentence"):
        check(numbered, excused={"repeats": " "})
    not_one: Any = len
    with pytest.raises(sk.StateTypeError, match="decorated with @process, or an operator"):
        check(not_one)


def test_each_property_says_what_it_means() -> None:
    for each in PROPERTIES:
        assert each.means[0].isupper()
        assert not each.means.endswith(".")
    assert len({each.name for each in PROPERTIES}) == len(PROPERTIES)


def test_runs_of_other_numbers_of_epochs_differ() -> None:
    one, other = Observed(), Observed()
    one.epochs.append({"outputs": []})
    for compare in (exactly, in_any_order):
        assert compare(one, other) == "the number of epochs: 1 and 0"


def test_an_epoch_of_a_history_may_be_empty() -> None:
    with pytest.raises(AssertionError, match=r"history = \[\s+\[Order"):
        check(halved, history=[{}, [Order("ada", at(0), 0)]], holds={"errors": None})


# -------------------------------------------------------------------------- what is said and chosen


def test_a_check_returns_what_it_has_checked_and_why_it_left_something_out() -> None:
    report = check(
        first_of_all,
        examples=7,
        seed=3,
        holds=["errors", "repeats"],
        excused={"repeats": "numbers may have gaps"},
    )
    by_name = {each.name: each for each in report.properties}
    assert by_name["errors"].histories == 7
    assert by_name["errors"].left_out is None
    assert by_name["repeats"].left_out == "excused: numbers may have gaps"
    assert by_name["disk"].left_out == "not in holds="
    assert str(report).startswith("first_of_all (seed 3)\n  repeats         not checked: excused")


def test_each_property_is_checked_or_has_a_reason() -> None:
    report = check(reminded, examples=1, excused={"processes": "it takes long"})
    for each in report.properties:
        assert bool(each.histories) != (each.left_out is not None), each
    reasons = {each.name: each.left_out for each in report.properties}
    assert "has timers, which fire between epochs: declare ordered=True" in str(reasons["epochs"])


def test_another_seed_tries_other_histories() -> None:
    tried: dict[int, list[Any]] = {}

    def kept(orders: list[Order], _: list[int]) -> None:
        tried[seed].append(orders)

    for seed in (1, 1, 2):
        tried[seed] = []
        check(first_of_all, examples=5, seed=seed, invariant=kept, holds=["invariant"])
        first = tried.setdefault(-seed, tried[seed])
        assert first == tried[seed]
    assert tried[1] != tried[2]


def test_a_check_ends_when_its_time_is_up() -> None:
    report = check(first_of_all, depth="deep", seconds=0.5, holds=["errors", "parallelism"])
    for each in report.properties:
        if each.name in ("errors", "parallelism"):
            assert 0 < each.histories < 2_000
            assert each.left_out == "stopped after 0.5 seconds"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"examples": 0}, "examples=0: give an int of at least 1"),
        ({"seed": "today"}, "seed='today': give an int"),
        ({"seconds": 0}, "seconds=0: give a number of seconds above 0"),
        ({"invariant": 5}, "invariant=5: give a function"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(sk.StateTypeError, match=message):
        check(first_of_all, **options)


def never_more_than_two(orders: list[Order], emitted: list[int]) -> None:
    assert len(emitted) <= 2, "too many"


def firsts(orders: list[Order]) -> list[int]:
    by_customer: dict[str, int] = {}
    return [by_customer.setdefault(order.customer, order.cents) for order in orders]


def lasts(orders: list[Order]) -> list[int]:
    return [order.cents for order in orders]


def test_an_invariant_and_a_model_of_the_user_are_checked() -> None:
    check(first_of_all, model=firsts, holds=["model"], depth="quick")
    with pytest.raises(AssertionError, match="'model' does not hold") as caught:
        check(first_of_all, model=lasts, holds=["model"])
    assert "check(first_of_all, history=history, model=lasts, holds={'model': None})" in str(
        caught.value
    )
    with pytest.raises(AssertionError, match="the invariant fails: too many") as caught:
        check(first_of_all, invariant=never_more_than_two, holds=["invariant"])
    assert str(caught.value).count("Order(") == 3
