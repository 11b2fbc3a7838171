"""Random programs of a store, with all operations, against a model of plain Python.

A program declares a store and some of its operations. It runs epochs with operations in any order,
late ones too; it crashes, restarts with another parallelism, and changes the declaration.
"""

from __future__ import annotations

from typing import Any

import hypothesis
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from statekit.state import event_time_buffer
from tests.support.effort import SOAK
from tests.support.instants import after, at
from tests.support.kv_job_runs import Given, StoreRun, given_to, operations_of
from tests.support.kv_jobs import Held, Op, Shape, shapes

SPAN = 20
"""The times of operations, in seconds."""


class Programs(RuleBasedStateMachine):
    """A program of a store, and its model."""

    @initialize(
        data=st.data(),
        shape=shapes(),
        parallelism=st.integers(1, 4),
        key_groups=st.sampled_from([4, 128]),
        due=st.sampled_from([2, 20_000]),
    )
    def start(
        self, data: st.DataObject, shape: Shape, parallelism: int, key_groups: int, due: int
    ) -> None:
        kinds = data.draw(st.permutations(shape.kinds))
        declared = data.draw(st.integers(1, min(len(kinds), 12)))
        self.missing = kinds[declared:]
        self.passed = 0
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(event_time_buffer, "DUE_MAX", due)
        self.run = StoreRun(kinds[:declared], shape, parallelism, key_groups)

    @property
    def is_timed(self) -> bool:
        return self.run.shape.lateness is not None

    def given(self, operations: list[Any]) -> Given:
        by = after(self.passed)
        moved = [
            (number, op._replace(at=op.at + by, as_of=op.as_of + by), times)
            for number, op, times in operations
        ]
        return given_to(self.run.kinds, moved)

    @rule(operations=operations_of(SPAN))
    def epoch(self, operations: list[Any]) -> None:
        self.run.epoch(self.given(operations))

    @rule(operations=operations_of(SPAN), parallelism=st.integers(1, 4))
    def crash(self, operations: list[Any], parallelism: int) -> None:
        self.run.crash(self.given(operations), parallelism)

    @rule(seconds=st.sampled_from([1, 2, 5, 30]))
    def time_passes(self, seconds: int) -> None:
        self.passed += seconds
        self.run.pass_time(seconds)

    @precondition(lambda self: self.is_timed)
    @rule()
    def all_inputs_reach_the_same_time(self) -> None:
        """The watermark is the minimum of all inputs."""
        latest = Op("a", at(self.passed + SPAN + 1), as_of=at(self.passed))
        self.run.epoch({kind: [latest] for kind in self.run.kinds})

    @rule(parallelism=st.integers(1, 4))
    def restart(self, parallelism: int) -> None:
        self.run.restart(parallelism)

    @precondition(lambda self: self.run.shape.value is Held)
    @rule()
    def evolve(self) -> None:
        self.run.evolve()

    @precondition(lambda self: self.missing)
    @rule(place=st.integers(0, 20))
    def declare_another_operation(self, place: int) -> None:
        self.run.declare(self.missing.pop(), place)

    @rule(data=st.data())
    def declare_operations_in_another_order(self, data: st.DataObject) -> None:
        self.run.reorder(data.draw(st.permutations(self.run.kinds)))

    @precondition(lambda self: len(self.run.kinds) > 1)
    @rule(data=st.data())
    def remove_an_operation(self, data: st.DataObject) -> None:
        kind = data.draw(st.sampled_from(self.run.kinds))
        self.run.remove(kind)
        self.missing.insert(0, kind)

    def teardown(self) -> None:
        if hasattr(self, "run"):
            if self.is_timed:
                self.run.drain()
            self.patch.undo()


@pytest.mark.parametrize("part", range(50 if SOAK else 1))
def test_a_store_answers_as_its_model_in_random_programs(part: int) -> None:
    programs = hypothesis.seed(part)(Programs) if SOAK else Programs
    run_state_machine_as_test(
        programs, settings=settings(max_examples=20, stateful_step_count=10, deadline=None)
    )
