"""Timers fire once each, in order, in the epoch in which they are due, whatever happens between."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

from hypothesis import settings
from hypothesis import strategies as st

import statekit as sk
from statekit.checkpoint.job_file import TIMERS, Clock
from statekit.testing.machines import JobMachine
from statekit.testing.process_model import ProcessModel
from tests.support.effort import SOAK
from tests.support.instants import at

Emitted = dict[str, list[Any]]
KEYS = ["a", "b", "c"]


class Op(NamedTuple):
    what: str
    seconds: int
    name: str = "default"
    clock: Clock = "event"


class Ops(NamedTuple):
    key: str
    at: dt.datetime
    ops: tuple[Op, ...] = ()


class Rang(NamedTuple):
    key: str
    seconds: int
    name: str
    clock: str


def ops(key: str, seconds: float, *given: Op) -> Ops:
    return Ops(key, at(seconds), given)


@sk.process(key="key", event_time="at", lateness="2 seconds")
def alarms(record: Ops, ctx: sk.Context, rung: sk.ValueState[int]) -> Iterator[Rang]:
    """Does to its timers what the record says."""
    for what, seconds, name, clock in record.ops:
        getattr(ctx.timers, what)(at(seconds), name, clock)
    yield from ()


@alarms.on_timer
def ring(timer: sk.Timer, ctx: sk.Context[str], rung: sk.ValueState[int]) -> Iterator[Rang]:
    rung.update((rung.get() or 0) + 1)
    yield Rang(ctx.key, int(timer.at.timestamp()), timer.name, timer.clock)


@alarms.on_timer("again")
def ring_again(timer: sk.Timer, ctx: sk.Context[str], rung: sk.ValueState[int]) -> Iterator[Rang]:
    """Sets a timer three seconds on, which may be due at once."""
    rung.update((rung.get() or 0) + 1)
    ctx.timers.set(timer.at + dt.timedelta(seconds=3), "default", timer.clock)
    yield Rang(ctx.key, int(timer.at.timestamp()), timer.name, timer.clock)


OPS = st.builds(
    Op,
    st.sampled_from(["set", "set", "delete", "replace"]),
    st.integers(-5, 40),
    st.sampled_from(["default", "other", "again"]),
    st.sampled_from(["event", "processing"]),
)
RECORDS = st.builds(ops, st.sampled_from(KEYS), st.integers(-5, 40), OPS, OPS)


class TimerMachine(JobMachine):
    """The timers of the function, and those of the same function over plain Python."""

    job = alarms
    events = RECORDS
    unit = dt.timedelta(seconds=1)
    model: ProcessModel

    def make_model(self) -> ProcessModel:
        return ProcessModel(alarms)

    def check(self, emitted: Emitted, expected: Emitted) -> None:
        assert by_key(emitted["outputs"]) == by_key(expected["outputs"])
        assert len(emitted["late"]) == len(expected["late"])

    def check_contents(self) -> None:
        contents = self.harness.contents()
        timers, rung = contents.timers["alarms"], contents.states["alarms", "rung"]
        for key in KEYS:
            assert timers.get(key, []) == self.model.timers(key)
            assert rung.get(key) == self.model.state("rung", key)
        last = self.harness._runner.coordinator.last
        assert last is not None
        counted = last.operators["alarms"].rows.get(TIMERS, 0)
        assert counted == sum(len(self.model.timers(key)) for key in KEYS)


def by_key(outputs: list[Rang]) -> dict[str, list[Rang]]:
    """The outputs of each key, in order."""
    found: dict[str, list[Rang]] = defaultdict(list)
    for output in outputs:
        found[output.key].append(output)
    return found


class RocksTimerMachine(TimerMachine):
    backend = "rocksdb"


TestTimers = TimerMachine.TestCase
TestTimers.settings = settings(
    max_examples=60 if SOAK else 30, stateful_step_count=20, deadline=None
)
TestRocksTimers = RocksTimerMachine.TestCase
TestRocksTimers.settings = settings(max_examples=15, stateful_step_count=12, deadline=None)
