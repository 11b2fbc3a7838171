"""An input without records for a declared time no longer holds back event time."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

import statekit as sk
from statekit.checkpoint.repository import Repository
from statekit.job.options import RunOptions
from statekit.runtime.local import LocalRunner
from statekit.watermark import BEGINNING
from statekit.working_copy.copies import MemoryCopies
from tests.support.instants import at

MINUTE = 60 * 1_000_000


class Event(NamedTuple):
    key: str
    at: dt.datetime


@sk.process(key="key", event_time="at")
def watch(event: Event, ctx: sk.Context) -> Iterator[str]:
    ctx.timers.set(event.at)
    yield event.key


@watch.on_timer
def passed(timer: sk.Timer, ctx: sk.Context) -> Iterator[str]:
    yield f"passed {ctx.key}"


def job(idle_after: str | None = "5 minutes", *, between: bool = False) -> sk.Job:
    made = sk.Job("idle")
    busy = made.source("busy", Event)
    quiet = made.source("quiet", Event, idle_after=idle_after)
    if between:
        quiet = quiet.filter(lambda event: True, name="kept")
    busy.union(quiet).process(watch).sink("out")
    return made


class Epochs:
    """Runs epochs at given processing times."""

    def __init__(self, made: sk.Job, repository: Repository | None = None) -> None:
        self.repository = repository or Repository.in_memory()
        self.runner = LocalRunner(made.plan, self.repository, MemoryCopies(), RunOptions())

    def epoch(self, minute: float, **inputs: list[Event]) -> list[Any]:
        at_us = int(minute * MINUTE)
        return self.runner.epoch(inputs, at_us=at_us)["out"]

    @property
    def watermark(self) -> int | None:
        return self.runner.coordinator.watermarks_us["watch"]


@pytest.mark.parametrize("between", [False, True])
def test_an_input_is_idle_after_the_declared_time_and_holds_back_again_once_it_has_records(
    between: bool,
) -> None:
    epochs = Epochs(job(between=between))
    epochs.epoch(0, busy=[Event("a", at(100))], quiet=[Event("q", at(10))])
    epochs.epoch(1, busy=[Event("b", at(200))])
    assert epochs.watermark == 10_000_000
    epochs.epoch(4.9, busy=[Event("c", at(300))])
    assert epochs.watermark == 10_000_000, "four minutes and 54 seconds since its last record"
    assert "passed b" in epochs.epoch(5, busy=[])
    assert epochs.watermark == 300_000_000, "it is idle"
    epochs.epoch(6, quiet=[Event("q", at(400))])
    assert epochs.epoch(7, busy=[Event("d", at(390))]) == ["d"], "a record that is not late"
    assert epochs.watermark == 300_000_000, "it has had records, and the other input holds back"


def test_an_input_that_never_had_a_record_is_idle_from_the_first_epoch_on() -> None:
    epochs = Epochs(job())
    epochs.epoch(0, busy=[Event("a", at(100))])
    epochs.epoch(4)
    assert epochs.watermark == BEGINNING
    epochs.epoch(5)
    assert epochs.watermark == 100_000_000


def test_without_a_declaration_an_input_without_records_holds_back_event_time_for_ever() -> None:
    epochs = Epochs(job(None))
    epochs.epoch(0, busy=[Event("a", at(100))])
    epochs.epoch(10_000)
    assert epochs.watermark == BEGINNING


def test_event_time_stands_still_while_all_inputs_are_idle() -> None:
    made = sk.Job("idle")
    made.source("busy", Event, idle_after="1 minute").process(watch).sink("out")
    epochs = Epochs(made)
    epochs.epoch(0, busy=[Event("a", at(100))])
    epochs.epoch(1)
    assert epochs.watermark == BEGINNING, "idle, before the epoch that would advance it"
    epochs.epoch(2, busy=[Event("b", at(50))])
    epochs.epoch(2.5)
    assert epochs.watermark == 100_000_000


def test_a_replay_decides_as_the_first_attempt_did() -> None:
    instants = iter([0, 6 * MINUTE, 20 * MINUTE])
    repository = Repository.in_memory()
    options = RunOptions(clock=lambda: next(instants))
    runner = LocalRunner(job().plan, repository, MemoryCopies(), options)
    runner.epoch({"busy": [Event("a", at(100))], "quiet": [Event("q", at(10))]})
    runner.coordinator.begin()
    decided = runner.coordinator.watermarks_us
    assert decided == {"watch": 100_000_000}
    again = LocalRunner(job().plan, repository, MemoryCopies(), options)
    again.coordinator.begin()
    assert again.coordinator.watermarks_us == decided
    assert again.coordinator.processing_time_us == 6 * MINUTE


def test_operators_behind_an_idle_input_follow_its_event_time() -> None:
    made = sk.Job("idle")
    busy, quiet = made.source("busy", Event), made.source("quiet", Event, idle_after="1 minute")
    first = busy.union(quiet).process(again)
    first.process(watch).sink("out")
    epochs = Epochs(made)
    epochs.epoch(0, busy=[Event("a", at(100))])
    epochs.epoch(1)
    assert epochs.runner.coordinator.watermarks_us["again"] == 100_000_000
    epochs.epoch(1)
    assert epochs.watermark == 100_000_000


@sk.process(key="key", event_time="at")
def again(event: Event) -> Iterator[Event]:
    yield event


@pytest.mark.parametrize("given", ["0 seconds", "soon", dt.timedelta(-1)])
def test_a_time_that_is_none_is_refused(given: Any) -> None:
    with pytest.raises(sk.StateTypeError, match="idle_after"):
        sk.Job("idle").source("quiet", Event, idle_after=given)
