"""A failed call leaves no trace: states, timers and outputs are as if the function had ignored the
record, whatever it did before it failed, and however records are cut into epochs.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import statekit as sk
from statekit.backend import mutation
from statekit.functions.process import Process
from statekit.state import base
from statekit.testing import Harness, check
from tests.support.effort import SOAK

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
SECOND = dt.timedelta(seconds=1)
KEYS = "ab"

Step = tuple[str, int]
"""What a function does to one of its states, and with which number."""


class Order(NamedTuple):
    """A record that says what the function does with it.

    Parameters:
        steps: in order.
        fails_at: the step before which the function fails; None if it does not.
    """

    key: str
    at: dt.datetime
    steps: list[Step]
    fails_at: int | None


pytestmark = pytest.mark.slow


class Boom(Exception):
    pass


def added(held: list[int], number: int) -> list[int]:
    held.append(number)
    return held


def joined(held: list[int], numbers: list[int]) -> list[int]:
    held += numbers
    return held


Kept = Annotated[sk.OperatorState[int], sk.Redistribute("broadcast")]
KeptList = Annotated[sk.OperatorListState[int], sk.Redistribute("even")]
OnWrite = sk.TTL("20 seconds", "event")
OnRead = sk.TTL("30 seconds", "event", refresh="read")


class States(NamedTuple):
    """All kinds of states, as a call gets them."""

    number: sk.ValueState[int]
    numbers: sk.ValueState[list[int]]
    elements: sk.ListState[int]
    entries: sk.MapState[int, list[int]]
    total: Annotated[sk.ReducingState[int], sk.Reduce(sum)]
    merged: Annotated[sk.ReducingState[list[int]], sk.Reduce(joined)]
    gathered: Annotated[
        sk.AggregatingState[int, list[int], int], sk.Aggregate(list[int], added, len)
    ]
    brief: Annotated[sk.ValueState[int], OnWrite]
    read_elements: Annotated[sk.ListState[int], OnRead]
    read_entries: Annotated[sk.MapState[int, int], OnRead]
    kept: Kept
    kept_list: KeptList


def take(step: Step, states: States, ctx: sk.Context) -> Any:
    """Do one step, and return something that depends on the state."""
    name, n = step
    soon = START + n * SECOND
    match name:
        case "number":
            states.number.update((states.number.get() or 0) + n)
        case "no number":
            states.number.clear()
        case "numbers":
            changed = states.numbers.get() or []
            changed.append(n)
            states.numbers.update(changed)
            changed.append(-1)
        case "element":
            states.elements.append(n)
        case "elements":
            states.elements.update([*states.elements.get(), *range(n % 7)])
        case "no elements":
            states.elements.clear()
        case "entry":
            states.entries[n % 9] = [*states.entries.get(n % 9, []), n]
        case "entries":
            for number, value in states.entries.items():
                if number % 2:
                    states.entries[number] = [*value, n]
                else:
                    del states.entries[number]
        case "no entries":
            states.entries.clear()
        case "total":
            states.total.add(n)
        case "no total":
            states.total.clear()
        case "merged":
            states.merged.add([n])
        case "gathered":
            states.gathered.add(n)
        case "brief":
            states.brief.update((states.brief.get() or 0) + n)
        case "no brief":
            states.brief.clear()
        case "read elements":
            states.read_elements.append(sum(states.read_elements))
        case "no read elements":
            states.read_elements.update([n])
        case "read entries":
            states.read_entries[n % 5] = sum(states.read_entries.values())
        case "read entry":
            return states.read_entries.pop(n % 5, None)
        case "no read entries":
            states.read_entries.clear()
        case "kept":
            states.kept.update((states.kept.get() or 0) + n)
        case "kept list":
            states.kept_list.append(n)
        case "timer":
            ctx.timers.set(soon, ("good", "bad")[n % 2])
        case "timers":
            ctx.timers.replace(soon)
        case "no timer":
            for timer in ctx.timers.list():
                ctx.timers.delete(timer.at, timer.name, timer.clock)
        case "clock":
            ctx.timers.set(ctx.processing_time + n * SECOND, clock="processing")
    return n


STEPS = [
    ("number", "no number"),
    ("numbers",),
    ("element", "elements", "no elements"),
    ("entry", "entries", "no entries"),
    ("total", "no total"),
    ("merged",),
    ("gathered",),
    ("brief", "no brief"),
    ("read elements", "no read elements"),
    ("read entries", "read entry", "no read entries"),
    ("kept", "kept list"),
    ("timer", "timers", "no timer", "clock"),
]
"""The steps at each state."""


def made(*, ignores: bool = False) -> Process[Any, Any, Any]:
    """Return a function that fails for bad records, or ignores them."""

    @sk.process(key="key", event_time="at", lateness="40 seconds", on_error="collect")
    def work(
        order: Order,
        ctx: sk.Context,
        number: sk.ValueState[int],
        numbers: sk.ValueState[list[int]],
        elements: sk.ListState[int],
        entries: sk.MapState[int, list[int]],
        total: Annotated[sk.ReducingState[int], sk.Reduce(sum)],
        merged: Annotated[sk.ReducingState[list[int]], sk.Reduce(joined)],
        gathered: Annotated[
            sk.AggregatingState[int, list[int], int], sk.Aggregate(list[int], added, len)
        ],
        brief: Annotated[sk.ValueState[int], OnWrite],
        read_elements: Annotated[sk.ListState[int], OnRead],
        read_entries: Annotated[sk.MapState[int, int], OnRead],
        kept: Kept,
        kept_list: KeptList,
    ) -> Iterator[tuple[str, int | None]]:
        if ignores and order.fails_at is not None:
            return
        states = States(
            *(number, numbers, elements, entries, total, merged, gathered),
            *(brief, read_elements, read_entries, kept, kept_list),
        )
        for place, step in enumerate(order.steps):
            if place == order.fails_at:
                raise Boom(order.key)
            found = take(step, states, ctx)
            if step[0] == "yield":
                yield order.key, found
        if order.fails_at is not None:
            raise Boom(order.key)

    @work.on_timer
    def good(
        timer: sk.Timer, ctx: sk.Context, number: sk.ValueState[int], elements: sk.ListState[int]
    ) -> Iterator[tuple[str, int | None]]:
        elements.append(number.get() or 0)
        yield "timer", number.get()

    @work.on_timer("bad")
    def bad(
        timer: sk.Timer, ctx: sk.Context, number: sk.ValueState[int], elements: sk.ListState[int]
    ) -> Iterator[tuple[str, int | None]]:
        if not ignores:
            number.update(-1)
            yield "never", number.get()
            elements.clear()
            ctx.timers.set(timer.at, "good")
            ctx.timers.set(timer.at + SECOND)
            raise Boom("timer")

    return work


def epochs_of(of_states: Sequence[Sequence[str]]) -> st.SearchStrategy[list[list[Order]]]:
    """Return epochs whose records change few states, so that they meet there."""
    names = [name for steps in of_states for name in steps]
    steps = st.lists(
        st.tuples(st.sampled_from([*names, "yield"]), st.integers(0, 60)), min_size=2, max_size=6
    )
    orders = st.builds(
        lambda key, second, steps, fails: Order(
            key, START + second * SECOND, steps, None if fails is None else fails % (len(steps) + 1)
        ),
        st.sampled_from(KEYS),
        st.integers(0, 60),
        steps,
        st.one_of(st.none(), st.integers(1, 100)),
    )
    return st.lists(st.lists(orders, min_size=3, max_size=8), min_size=1, max_size=3)


def spilling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have rows written to the backend in the middle of keys and of calls."""
    monkeypatch.setattr(base, "PENDING_ROWS_MAX", 3)
    monkeypatch.setattr(mutation, "BATCH_ROWS_MAX", 4)


def contents_of(harness: Harness[Any]) -> Any:
    """Return everything that is stored, with exact sizes and the times at which shards wake up."""
    last = harness.coordinator.last
    assert last is not None
    sizes = [(of.rows, of.bytes, [s.wake_us for s in of.shards]) for of in last.operators.values()]
    return harness.contents(), sizes


def ending(harness: Harness[Any], epochs: list[list[Order]], parallelism: int, crash: int) -> Any:
    """Run epochs, with a crash and another parallelism after one of them, and let timers fire."""
    outputs = []
    for number, orders in enumerate(epochs):
        outputs.append(harness.send(*orders))
        if number == crash:
            harness.rescale(parallelism)
    found = [contents_of(harness)]
    for seconds in (65, 75, 85, 100):  # elements expire one after the other
        outputs.append(harness.advance_watermark(START + seconds * SECOND))
        found.append(contents_of(harness))
    outputs.append(harness.advance_processing_time(START + 100 * SECOND))
    return outputs, [*found, contents_of(harness)]


@pytest.mark.parametrize("of_state", STEPS, ids=lambda steps: steps[0])
@settings(max_examples=300 if SOAK else 6, deadline=None)
@given(st.data(), st.integers(1, 3), st.integers(1, 3), st.integers(0, 3), st.booleans())
def test_failed_calls_leave_no_trace(
    of_state: Sequence[str], data: st.DataObject, before: int, after: int, crash: int, spills: bool
) -> None:
    epochs = data.draw(epochs_of([of_state]))
    real, ignoring = Harness(made(), before), Harness(made(ignores=True), before)
    with pytest.MonkeyPatch.context() as monkeypatch:
        if spills:
            spilling(monkeypatch)
        assert ending(real, epochs, after, crash) == ending(ignoring, epochs, after, crash)
    failed = [order for orders in epochs for order in orders if order.fails_at is not None]
    in_time = len(failed) - sum(late.fails_at is not None for late in real.late)
    assert sum(each.record is not None for each in real.errors) == in_time


@settings(max_examples=500 if SOAK else 10, deadline=None)
@given(epochs_of(STEPS), st.integers(1, 3))
def test_failed_records_are_the_same_for_every_cut_and_parallelism(
    epochs: list[list[Order]], parallelism: int
) -> None:
    one, other = Harness(made(), parallelism), Harness(made())
    orders = [order for some in epochs for order in some]
    every = [order._replace(at=START + n * SECOND) for n, order in enumerate(orders)]
    for start in range(0, len(every), 3):
        one.send(*every[start : start + 3])
    other.send(*every)
    records = [sorted(filter(None, (each.record for each in of.errors))) for of in (one, other)]
    assert records[0] == records[1]


class Payment(NamedTuple):
    customer: str
    at: dt.datetime
    cents: int


@sk.process(key="customer", event_time="at", lateness="1 minute", ordered=True, on_error="collect")
def balance(
    payment: Payment,
    ctx: sk.Context,
    total: sk.ValueState[int],
    recent: Annotated[sk.ListState[int], sk.TTL("1 minute", "event")],
) -> Iterator[tuple[str, int]]:
    total.update((total.get() or 0) + payment.cents)
    recent.append(payment.cents)
    ctx.timers.replace(payment.at + SECOND)
    yield payment.customer, total.get() or 0
    if payment.cents % 3 == 0:
        raise Boom(payment.customer)


@balance.on_timer
def settled(timer: sk.Timer, ctx: sk.Context, total: sk.ValueState[int]) -> None:
    seen = total.get() or 0
    total.clear()
    if seen % 2:
        raise Boom(str(ctx.key))


@sk.process(key="error")
def counted(failed: sk.FailedRecord, seen: sk.ValueState[int]) -> Iterator[int]:
    seen.update((seen.get() or 0) + 1)
    yield seen.get() or 0


def test_all_properties_hold_for_functions_that_fail() -> None:
    job = sk.Job("bank")
    outputs = job.source("payments", Payment).process(balance).sink("balances")
    outputs.errors.sink("bad")
    outputs.errors.process(counted).sink("counted")
    report = check(job, examples=200 if SOAK else 5)
    checked = {each.name for each in report.properties if each.histories}
    assert {"epochs", "plain Python", "replays", "parallelism", "faults"} <= checked
