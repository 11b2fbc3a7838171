"""Timers fire once each, in order, in the epoch in which they are due, whatever happens between."""

from __future__ import annotations

import datetime as dt
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import statekit as sk
from statekit.checkpoint.job_file import TIMERS, Clock
from statekit.testing import Harness
from tests.support.instants import at

Backend = Literal["memory", "rocksdb"]
BACKENDS: list[Backend] = ["memory", "rocksdb"]


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
def ring(timer: sk.Timer, ctx: sk.Context, rung: sk.ValueState[int]) -> Iterator[Rang]:
    rung.update((rung.get() or 0) + 1)
    yield Rang(ctx.key, int(timer.at.timestamp()), timer.name, timer.clock)


@alarms.on_timer("again")
def ring_again(timer: sk.Timer, ctx: sk.Context, rung: sk.ValueState[int]) -> Iterator[Rang]:
    """Sets a timer three seconds on, which may be due at once."""
    rung.update((rung.get() or 0) + 1)
    ctx.timers.set(timer.at + dt.timedelta(seconds=3), "default", timer.clock)
    yield Rang(ctx.key, int(timer.at.timestamp()), timer.name, timer.clock)


# ------------------------------------------------------------------------------ against a model


class Model:
    """The same over plain Python."""

    def __init__(self) -> None:
        self.timers: dict[str, set[tuple[int, str, str]]] = defaultdict(set)
        self.rung: dict[str, int] = defaultdict(int)
        self.largest: float | None = None
        self.watermark: float = float("-inf")
        self.now: float = 0

    def epoch(self, records: tuple[Ops, ...]) -> dict[str, list[Rang]]:
        if self.largest is not None:
            self.watermark = max(self.watermark, self.largest - 2)
        for record in records:
            seconds = record.at.timestamp()
            if seconds > self.watermark:
                self.largest = max(self.largest or seconds, seconds)
                self.apply(record)
        return {key: fired for key in sorted(self.timers) if (fired := self.fire(key))}

    def apply(self, record: Ops) -> None:
        timers = self.timers[record.key]
        for what, seconds, name, clock in record.ops:
            timer = (seconds, clock, name)
            if what == "replace":
                timers -= {other for other in timers if other[1:] == (clock, name)}
            if what == "delete":
                timers.discard(timer)
            else:
                timers.add(timer)

    def fire(self, key: str) -> list[Rang]:
        fired: list[Rang] = []
        timers = self.timers[key]
        while due := sorted(timer for timer in timers if self.is_due(timer)):
            seconds, clock, name = due[0]
            timers.remove(due[0])
            self.rung[key] += 1
            fired.append(Rang(key, seconds, name, clock))
            if name == "again":
                timers.add((seconds + 3, clock, "default"))
        return fired

    def is_due(self, timer: tuple[int, str, str]) -> bool:
        return timer[0] <= (self.watermark if timer[1] == "event" else self.now)


OPS = st.builds(
    Op,
    st.sampled_from(["set", "set", "delete", "replace"]),
    st.integers(-5, 40),
    st.sampled_from(["default", "other", "again"]),
    st.sampled_from(["event", "processing"]),
)
RECORDS = st.lists(
    st.builds(ops, st.sampled_from(["a", "b", "c"]), st.integers(-5, 40), OPS, OPS), max_size=5
)


class TimerMachine(RuleBasedStateMachine):
    backend: Backend = "memory"

    @initialize(parallelism=st.integers(1, 4))
    def start(self, parallelism: int) -> None:
        self.harness = Harness(alarms, parallelism=parallelism, backend=self.backend)
        self.model = Model()
        self.harness.advance_processing_time(at(1e-6))

    @rule(records=RECORDS)
    def send(self, records: list[Ops]) -> None:
        self.check(self.model.epoch(tuple(records)), self.harness.send(*records))

    @rule(ahead=st.integers(1, 10))
    def advance_processing_time(self, ahead: int) -> None:
        self.model.now += ahead
        self.check(
            self.model.epoch(()), self.harness.advance_processing_time(at(self.model.now + 1e-6))
        )

    @rule(ahead=st.integers(1, 10))
    def advance_watermark(self, ahead: int) -> None:
        largest = float("-inf") if self.model.largest is None else self.model.largest - 2
        self.model.watermark = max(self.model.watermark, largest, -10) + ahead
        found = self.harness.advance_watermark(at(self.model.watermark))
        self.check(self.model.epoch(()), found)

    @rule()
    def crash(self) -> None:
        self.harness.crash()

    @rule(parallelism=st.integers(1, 4))
    def restart_with_other_shards(self, parallelism: int) -> None:
        with tempfile.TemporaryDirectory() as place:
            self.harness.checkpoint(Path(place) / "checkpoint")
            now = self.harness._now_us
            self.harness = Harness.restore(
                alarms, Path(place) / "checkpoint", parallelism, backend=self.backend
            )
            self.harness._now_us = now

    def check(self, expected: dict[str, list[Rang]], outputs: list[Rang]) -> None:
        found: dict[str, list[Rang]] = defaultdict(list)
        for output in outputs:
            found[output.key].append(output)
        assert dict(sorted(found.items())) == expected

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        if not hasattr(self, "harness"):
            return
        for key in "abc":
            held = [(int(t.at.timestamp()), t.clock, t.name) for t in self.harness.timers(key)]
            assert held == sorted(self.model.timers[key])
            assert (self.harness.state("rung", key) or 0) == self.model.rung[key]
        last = self.harness._runner.coordinator.last
        if last is not None:
            count = last.operators["alarms"].rows.get(TIMERS, 0)
            assert count == sum(map(len, self.model.timers.values()))


class RocksTimerMachine(TimerMachine):
    backend: Backend = "rocksdb"


TestTimers = TimerMachine.TestCase
TestTimers.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)
TestRocksTimers = RocksTimerMachine.TestCase
TestRocksTimers.settings = settings(max_examples=15, stateful_step_count=12, deadline=None)
