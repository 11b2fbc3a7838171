"""What a run comes to has each epoch once, also if reading it failed and was tried again; and when
its epochs are.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from itertools import pairwise
from typing import Annotated, NamedTuple

import pytest

import statekit as sk
from statekit.testing import JobHarness
from statekit.testing.drivers.driver import EpochContents
from statekit.testing.runs.observed import Observed
from statekit.testing.runs.subject import Subject


class Order(NamedTuple):
    customer: str
    cents: int


@sk.process(key="customer")
def spent(order: Order, total: sk.ValueState[int]) -> Iterator[int]:
    total.update((total.get() or 0) + order.cents)
    yield total.get() or 0


def test_an_epoch_whose_contents_cannot_be_read_is_not_added(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness, observed = JobHarness(Subject(spent).job, 1), Observed()
    emitted = harness.send(records=[Order("a", 1)])

    def unreadable() -> EpochContents:
        raise sk.StorageError("the disk is gone")

    with monkeypatch.context() as patched:
        patched.setattr(harness, "contents", unreadable)
        with pytest.raises(sk.StorageError):
            observed.add(emitted, harness)
    assert not observed.epochs
    assert not observed.contents
    observed.add(emitted, harness)
    assert observed.epochs == [{"outputs": [1]}]


@sk.process(key="customer")
def recent(
    order: Order, last: Annotated[sk.ValueState[int], sk.TTL("30 seconds")]
) -> Iterator[int | None]:
    yield last.get()
    last.update(order.cents)


def test_epochs_are_an_instant_before_a_value_expires_in_processing_time_and_when_it_does() -> None:
    history = [{"records": [Order("a", number)]} for number in range(4)]
    steps = list(Subject(recent).steps(history, Observed()))
    _, before, at = [after.at - step.at for step, after in pairwise(steps[:4])]
    assert before == dt.timedelta(seconds=30, microseconds=-1)
    assert before + at == dt.timedelta(seconds=30)


def test_processing_time_stands_for_a_function_that_does_not_use_it() -> None:
    history = [{"records": [Order("a", number)]} for number in range(4)]
    assert len({step.at for step in Subject(spent).steps(history, Observed())}) == 1


class Visit(NamedTuple):
    user: str
    at: dt.datetime


@sk.process(key="user", event_time="at", lateness="1 minute")
def visits(visit: Visit, seen: sk.ValueState[int]) -> None:
    seen.update((seen.get() or 0) + 1)


def test_the_end_of_event_time_is_tried_until_it_has_nothing_to_do() -> None:
    subject, observed = Subject(visits), Observed()
    harness, tried = subject.harness(), list[str]()
    at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    for step in subject.steps([{subject.job.plan.sources[0].name: [Visit("ada", at)]}], observed):
        tried.append(step.what)
        if not step.has_nothing_to_do(harness):
            observed.add(step.run(harness), harness)
    assert tried == ["records", "end", "end"]
    assert len(observed.epochs) == 2
