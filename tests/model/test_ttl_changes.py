"""A TTL that is turned on or off, is shorter or longer, or has another clock, in the next run."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import statekit as sk
from statekit.state import base
from statekit.testing import Harness
from statekit.testing.process_model import ProcessModel
from tests.support.instants import at
from tests.support.ttl_driver import (
    LATENESS,
    WHATS,
    Do,
    Op,
    by_key,
    do,
    rows_left,
    states_that_expire,
)

KEYS = "ab"


class Step(NamedTuple):
    """An epoch: records, or time that passes by a clock."""

    what: str
    seconds: int
    keys: str
    ops: tuple[Op, ...]


class Phase(NamedTuple):
    """A run with a TTL."""

    ttl: sk.TTL | None
    shards: int
    steps: list[Step]


class ChangingModel:
    """A model of the states that lives on when the TTL changes.

    Rows that had expired in the last epoch are gone. If a TTL was turned on, or moved to another
    clock, all others are written in the first epoch by that clock.
    """

    def __init__(self) -> None:
        self._ttl: sk.TTL | None = None
        self._model: ProcessModel | None = None
        self._not_begun: list[Any] = []

    def restart(self, ttl: sk.TTL | None) -> None:
        before, model = self._model, ProcessModel(states_that_expire(ttl))
        begins = ttl is not None and (self._ttl is None or self._ttl.clock != ttl.clock)
        if begins or ttl is None:
            self._not_begun = []
        if before is not None:
            for name in ("watermark", "processing_time", "_largest", "_epoch"):
                setattr(model, name, getattr(before, name))
            for key, had in before._keys.items():
                before._entered(key)
                for name, state in model._entered(key).states.items():
                    cells = dict(had.states[name]._present())
                    kept = {"_ttl": state._ttl, "clocks": state.clocks, "_cells": cells}
                    vars(state).update({**vars(had.states[name]), **kept})
                    for cell in cells.values():
                        if (begins and name != "kept") or ttl is None:
                            cell.written = None
                    if begins and name != "kept":
                        self._not_begun += cells.values()
        self._model, self._ttl = model, ttl

    def send(self, records: list[Do]) -> Any:
        assert self._model is not None
        self._begin(self.next_watermark, self._model.processing_time)
        return self._model.send(records=records)["outputs"]

    def advance_watermark(self, to: dt.datetime) -> None:
        assert self._model is not None
        self._begin(to, self._model.processing_time)
        self._model.advance_watermark(to)

    def advance_processing_time(self, to: dt.datetime) -> None:
        assert self._model is not None
        self._begin(self.next_watermark, to)
        self._model.processing_time = to
        self.send([])

    def _begin(self, watermark: dt.datetime | None, processing_time: dt.datetime) -> None:
        """Let the rows that were there be written now, if the clock of their TTL has begun."""
        now = processing_time
        if self._ttl is not None and self._ttl.clock == "event":
            if watermark is None:
                return
            now = watermark
        for cell in self._not_begun:
            if cell.written is None:
                cell.written = now
        self._not_begun = []

    @property
    def next_watermark(self) -> dt.datetime | None:
        """The watermark of an epoch without anything else."""
        assert self._model is not None
        reached, largest = self._model.watermark, self._model._largest
        if largest is None:
            return reached
        largest -= dt.timedelta(seconds=LATENESS)
        return largest if reached is None else max(reached, largest)

    def state(self, name: str, key: str) -> Any:
        assert self._model is not None
        return self._model.state(name, key)


def ops() -> st.SearchStrategy[Op]:
    number = st.integers(0, 2)

    def of(state: str) -> st.SearchStrategy[Op]:
        return st.builds(Op, st.just(state), st.sampled_from(WHATS[state]), number, number)

    return st.sampled_from(sorted(WHATS)).flatmap(of)


TTLS = st.none() | st.builds(
    sk.TTL,
    st.sampled_from(["8 s", "20 s", "1 minute"]),
    st.sampled_from(["event", "processing"]),
    st.sampled_from(["write", "read"]),
)
STEPS = st.builds(
    Step,
    st.sampled_from(["send", "send", "event", "processing"]),
    st.integers(0, 30),
    st.text(KEYS, min_size=1, max_size=2),
    st.lists(ops(), min_size=1, max_size=6).map(tuple),
)
PHASES = st.lists(
    st.builds(Phase, TTLS, st.integers(1, 3), st.lists(STEPS, min_size=1, max_size=4)),
    min_size=2,
    max_size=4,
)


def check(phases: list[Phase], swept: int) -> None:
    """Compare all that is read, in every epoch, with the model, and find nothing left in the end.

    Parameters:
        swept: the rows that a sweep may process in an epoch.
    """
    model, harness, now = ChangingModel(), None, 0
    with TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "SWEPT_MIN", swept)
        for number, phase in enumerate(phases):
            function = states_that_expire(phase.ttl)
            if harness is None:
                harness = Harness(function, parallelism=phase.shards)
            else:
                harness.checkpoint(Path(place) / str(number))
                harness = Harness.restore(
                    function, Path(place) / str(number), parallelism=phase.shards
                )
                harness._now_us = now * 1_000_000
            model.restart(phase.ttl)
            for step in phase.steps:
                now = check_step(harness, model, step, now)
        if model._ttl is not None:
            check_that_all_expires(harness, now)


def check_step(harness: Any, model: ChangingModel, step: Step, now: int) -> int:
    """Run an epoch in both, compare, and return the processing time."""
    if step.what == "send":
        second = now + step.seconds
        records = [do(key, second, *step.ops) for key in step.keys]
        assert by_key(harness.send(*records)) == by_key(model.send(records))
    elif step.what == "event":
        reached, to = model.next_watermark, at(now + step.seconds)
        if reached is None or to > reached:
            harness.advance_watermark(to)
            model.advance_watermark(to)
    else:
        now += 1 + step.seconds
        harness.advance_processing_time(at(now))
        model.advance_processing_time(at(now))
    if harness.epoch is not None:
        for key in KEYS:
            for name in WHATS:
                assert harness.state(name, key) == model.state(name, key), (name, key)
    return now


def check_that_all_expires(harness: Any, now: int) -> None:
    for hours in range(1, 3):
        harness.advance_watermark(at(now + hours * 3600))
        harness.advance_processing_time(at(now + hours * 3600))
    for more in range(60):
        if set(rows_left(harness)) <= {"kept"}:
            return
        harness.advance_processing_time(at(now + 3 * 3600 + more))
    raise AssertionError(f"rows that expired are left: {rows_left(harness)}")


@settings(max_examples=15, deadline=None)
@given(phases=PHASES, swept=st.sampled_from([2, 10_000]))
def test_states_expire_as_plain_values_would_when_their_ttl_changes(
    phases: list[Phase], swept: int
) -> None:
    check(phases, swept)


@pytest.mark.slow
@settings(max_examples=600, deadline=None)
@given(phases=PHASES, swept=st.sampled_from([1, 3, 10_000]))
def test_states_expire_as_plain_values_would_in_many_histories_of_ttls(
    phases: list[Phase], swept: int
) -> None:
    check(phases, swept)
