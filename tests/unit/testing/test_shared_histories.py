"""All properties of a check are tried on the same histories, and each is tried."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pytest
from hypothesis import strategies as st

import statekit as sk
from statekit.testing import check
from statekit.testing.checks.property import Property, RunDifference
from statekit.testing.checks.search import Search, SharedHistories
from statekit.testing.counterexamples import counterexample
from statekit.testing.effort import Effort
from statekit.testing.runs.observed import Observed
from statekit.testing.runs.source_records import History
from statekit.testing.runs.subject import Subject

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class Order(NamedTuple):
    customer: str
    cents: int


@dataclass(frozen=True)
class Switch:
    is_on: bool


@sk.process(key="customer")
def spent(order: Order, total: sk.ValueState[int]) -> Iterator[int]:
    total.update((total.get() or 0) + order.cents)
    yield total.get() or 0


@sk.process(key="is_on")
def switched(switch: Switch, times: sk.ValueState[int]) -> Iterator[int]:
    times.update((times.get() or 0) + 1)
    yield times.get() or 0


def noted(name: str, seen: list[Any], share: float = 1.0, fails_at: int = 0) -> Property:
    """A property that notes on what it is tried, and does not hold for histories of some size."""

    def find(_: Subject, history: History, argument: Any) -> RunDifference | None:
        seen.append((history, argument))
        size = sum(len(records) for epoch in history for records in epoch.values())
        if fails_at and size >= fails_at:
            return RunDifference(name, ("one", "other"), (Observed(), None))
        return None

    return Property(name, name, find, share=share, is_confirmed=False)


def shared(properties: list[Property], **effort: Any) -> SharedHistories:
    subject = Subject(spent)
    return SharedHistories(subject, properties, subject.sources.histories(), Effort(**effort))


def test_properties_see_the_same_histories_each_according_to_its_share() -> None:
    half, usual, twice = list[Any](), list[Any](), list[Any]()
    tried = shared(
        [noted("half", half, 0.5), noted("usual", usual), noted("twice", twice, 2.0)], examples=30
    )
    assert tried.first_failed() is None
    assert [len(each) for each in tried.sizes] == [len(half), len(usual), len(twice)]
    assert [len(half), len(usual), len(twice)] == [15, 30, 60]
    of_twice = [id(history) for history, _ in twice]
    assert {id(history) for history, _ in (*half, *usual)} <= set(of_twice)


def test_few_histories_are_variants_of_another_one() -> None:
    seen = list[Any]()
    shared([noted("usual", seen)], examples=60).first_failed()
    records = {repr(each) for history, _ in seen for epoch in history for each in _all(epoch)}
    assert len(records) > 200


@pytest.mark.parametrize("seed", range(5))
def test_the_first_property_that_fails_is_named_though_another_fails_sooner(seed: int) -> None:
    tried = shared(
        [noted("holds", []), noted("at 12", [], fails_at=12), noted("at 1", [], fails_at=1)],
        examples=60,
        seed=seed,
    )
    failed = tried.first_failed()
    assert failed is not None
    assert failed.place == 1


def test_what_fails_is_drawn_again_for_one_property() -> None:
    def find(_: Subject, history: History, shards: int) -> RunDifference | None:
        records = [each for epoch in history for each in epoch["orders"]]
        if len(records) > 3 and shards > 2:
            return RunDifference("rare", ("one", "other"), (Observed(), None))
        return None

    rare = Property("rare", "rare", find, arguments=st.integers(0, 3), is_confirmed=False)
    subject = Subject(spent)
    histories = subject.sources.histories().map(
        lambda made: [{"orders": _all(each)} for each in made]
    )
    tried = SharedHistories(
        subject, [noted("holds", []), rare], histories, Effort(examples=100, seed=3)
    )
    failed = tried.first_failed()
    assert failed is not None
    found = Search(tried, failed.place).found_again(failed.drawn)
    assert found is not None
    history, shards, _ = found
    assert shards == 3
    assert sum(map(len, (epoch["orders"] for epoch in history))) == 4


def _all(epoch: dict[str, list[Any]]) -> list[Any]:
    return [record for records in epoch.values() for record in records]


def test_each_property_is_tried_though_there_are_few_histories() -> None:
    report = check(spent, examples=1)
    assert all(each.histories for each in report.properties if each.left_out is None)


def test_a_class_with_two_values_is_checked() -> None:
    report = check(switched, examples=3, holds=["errors", "restarts", "disk"])
    tried = {each.name: each.histories for each in report.properties if each.histories}
    assert tried == {"errors": 3, "restarts": 3, "disk": 1}


def test_errors_of_what_is_given_are_raised_as_they_are() -> None:
    def broken(orders: list[Order], totals: list[int]) -> bool:
        raise LookupError("no such total")

    with pytest.raises(LookupError, match="no such total"):
        check(spent, examples=3, holds=["invariant"], invariant=broken)


class Reading(NamedTuple):
    sensor: str
    at: dt.datetime


def test_a_few_histories_have_records_exactly_where_windows_begin_and_end() -> None:
    job, seen = sk.Job("readings"), list[Any]()
    window = sk.sliding("50 s", every="20 s", offset="7 s")
    of_sensors = job.source("readings", Reading).window(window, key="sensor", event_time="at")
    of_sensors.count().sink("counts")
    subject = Subject(job)
    found = SharedHistories(
        subject, [noted("a", seen)], subject.sources.histories(), Effort("quick")
    )
    assert found.first_failed() is None
    times = {at for history, _ in seen for epoch in history for _, at in epoch["readings"]}
    second, instant = dt.timedelta(seconds=1), dt.timedelta(microseconds=1)
    into = {(at - EPOCH) % (20 * second) for at in times}
    begins, ends = 7 * second, (7 + 50 - 40) * second
    assert {begins, ends} <= into
    assert into & {begins - instant, begins + instant, ends - instant, ends + instant}


def test_a_failure_is_made_smaller_with_as_many_tries_as_there_may_be() -> None:
    tried: list[int] = []

    def fails(number: int) -> bool:
        tried.append(number)
        return number > 1_000

    numbers = st.integers(0, 10_000_000)
    found = counterexample(numbers, fails, Effort("quick"), shrinks_max=3)
    first = next(place for place, number in enumerate(tried) if number > 1_000)
    assert len(tried) == first + 1 + 3
    assert found is not None
    assert 1_001 < found[0] <= tried[first]
    assert counterexample(numbers, fails, Effort("quick")) == (1_001,)


def test_no_history_is_tried_twice_to_make_it_smaller() -> None:
    """Hypothesis also makes the disturbances of other properties smaller."""
    tried = list[Any]()
    other = replace(noted("other", []), arguments=st.sets(st.integers(0, 9)))
    both = shared([noted("wanted", tried, fails_at=2), other], examples=20)
    failed = both.first_failed()
    assert failed is not None
    tried.clear()
    found = Search(both, failed.place).found_again(failed.drawn)
    assert found is not None
    assert found[2] is not None
    *before, last = [repr(each) for each in tried]
    assert len(before) == len(set(before)) > 5
    assert last in before, "the difference that is shown"
