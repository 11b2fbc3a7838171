"""Records of one key and one time, with `ordered=True`: their order is declared."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import statekit as sk
from statekit.checkpoint.repository import Repository
from statekit.state import event_time_buffer
from statekit.testing import Harness
from tests.support.instants import at


class Event(NamedTuple):
    key: str
    at: dt.datetime
    amount: Decimal
    id: int = 0


class Other(NamedTuple):
    key: str
    at: dt.datetime
    amount: Decimal
    id: int = 0


def event(amount: str, id: int = 0, seconds: int = 1) -> Event:
    return Event("k", at(seconds), Decimal(amount), id)


@sk.process(key="key", event_time="at", ordered=True)
def by_value(event: Event, ctx: sk.Context) -> Iterator[tuple[str, Decimal, int]]:
    yield ctx.input, event.amount, event.id


@sk.process(key="key", event_time="at", ordered=True, order_by=("at", "id"))
def by_id(event: Event, ctx: sk.Context) -> Iterator[tuple[str, Decimal, int]]:
    yield ctx.input, event.amount, event.id


@sk.process(key="key", event_time="at", ordered=True)
def of_both(event: Event | Other) -> Iterator[str]:
    yield f"{type(event).__name__} {event.amount.normalize()}"


def job(process: Any, first: str = "first", second: str = "second") -> sk.Job:
    made = sk.Job("ties")
    made.source(first, Event).union(made.source(second, Event)).process(process).sink("out")
    return made


def run(process: Any, first: list[Event], second: list[Event], **options: Any) -> list[Any]:
    done = job(process).run({"first": first, "second": second}, **options)
    return [(source, str(amount.normalize()), id) for source, amount, id in done.outputs["out"]]


def test_records_of_one_time_are_in_the_order_of_their_inputs_and_then_of_their_values() -> None:
    first = [event("131.5"), event("22")]
    second = [event("9"), event("131.50", 1), event("131.5")]
    assert run(by_value, first, second) == [
        ("first", "22", 0),
        ("first", "131.5", 0),
        ("second", "9", 0),
        ("second", "131.5", 0),
        ("second", "131.5", 1),
    ]


def test_fields_that_break_ties_come_before_the_order_of_inputs() -> None:
    first = [event("131.5", 3), event("22", 1)]
    second = [event("9", 2), event("131.50", 1)]
    assert run(by_id, first, second) == [
        ("first", "22", 1),
        ("second", "131.5", 1),
        ("second", "9", 2),
        ("first", "131.5", 3),
    ]


def test_types_of_one_input_are_in_the_order_of_the_declaration() -> None:
    made = sk.Job("ties")
    made.source("events", Event, Other).process(of_both).sink("out")
    events = [Other("k", at(1), Decimal(1)), event("5"), Other("k", at(1), Decimal(0)), event("4")]
    done = made.run({"events": events})
    assert done.outputs["out"] == ["Event 4", "Event 5", "Other 0", "Other 1"]


EVENTS = st.lists(
    st.tuples(st.sampled_from(["1.5", "1.50", "2", "10"]), st.integers(0, 2), st.integers(1, 3)),
    max_size=8,
)


@given(EVENTS, EVENTS, st.permutations(range(8)), st.integers(1, 3), st.sampled_from([2, 20_000]))
@settings(max_examples=40, deadline=None)
def test_results_are_the_same_for_every_arrival_parallelism_and_slice(
    one: list[Any], two: list[Any], order: list[int], parallelism: int, slices: int
) -> None:
    first = [event(*given) for given in one]
    second = [event(*given) for given in two]
    shuffled = [[given[at] for at in order if at < len(given)] for given in (first, second)]
    for process in (by_value, by_id):
        expected = run(process, first, second)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(event_time_buffer, "DUE_MAX", slices)
            assert run(process, *shuffled, parallelism=parallelism) == expected


def test_a_record_that_was_buffered_keeps_its_input_when_inputs_are_declared_in_another_order(
    tmp_path: Path,
) -> None:
    inputs = {"first": [event("1")], "second": [event("2")]}
    job(by_value).run(inputs, checkpoint=tmp_path, drain=False)
    turned = job(by_value, "second", "first")
    done = turned.run(inputs, checkpoint=tmp_path)
    assert [(source, int(amount)) for source, amount, _ in done.outputs["out"]] == [
        ("second", 2),
        ("first", 1),
    ]
    file, _ = Repository(tmp_path).newest_job_file() or pytest.fail("there is one")
    assert file.operators[0].inputs == ("second", "first")
    assert file.operators[0].buffered_inputs == ("first", "second")


def test_the_input_of_a_record_that_an_earlier_version_buffered_is_not_known() -> None:
    harness = Harness(by_value)
    harness.send(event("1"))
    before = event_time_buffer.EventTimeBuffer.add

    def added(self: Any, prefix: bytes, time: int, record: Any, place: int) -> None:
        before(self, prefix, time, record, 0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(event_time_buffer.EventTimeBuffer, "add", added)
        harness.send(event("2", seconds=2))
    with pytest.raises(sk.StateTypeError, match="earlier version of statekit buffered"):
        harness.advance_watermark(at(5))


def test_a_timer_has_no_input() -> None:
    @sk.process(key="key", event_time="at")
    def waits(event: Event, ctx: sk.Context) -> Iterator[str]:
        ctx.timers.set(event.at)
        yield ctx.input

    @waits.on_timer
    def fires(timer: sk.Timer, ctx: sk.Context) -> Iterator[str]:
        yield ctx.input

    harness = Harness(waits)
    assert harness.send(event("1")) == ["records"]
    with pytest.raises(sk.StateTypeError, match="has no input here"):
        harness.advance_watermark(at(5))


def test_the_input_of_each_record_is_known_to_a_function_that_takes_all_records_of_a_key() -> None:
    @sk.process(key="key", event_time="at")
    def together(events: Iterator[Event], ctx: sk.Context) -> Iterator[str]:
        for event in events:
            yield f"{ctx.input} {event.amount}"

    done = job(together).run({"first": [event("1"), event("2")], "second": [event("3")]})
    assert [text.split(".")[0] for text in done.outputs["out"]] == [
        "first 1",
        "first 2",
        "second 3",
    ]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"order_by": "id"}, "declare ordered=True"),
        ({"order_by": 5, "ordered": True}, "order_by=5.: give the name of a record field"),
        ({"order_by": "nothing", "ordered": True}, "order_by='nothing' is not a field of Event"),
    ],
)
def test_fields_that_break_ties_need_order_and_have_to_exist(options: Any, said: str) -> None:
    with pytest.raises(sk.StateTypeError, match=said):

        @sk.process(key="key", event_time="at", **options)
        def f(event: Event) -> None: ...
