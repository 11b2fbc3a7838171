"""A store without time, against a dict that handles operations in the order of the declaration."""

from __future__ import annotations

from typing import Any

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

from tests.support.effort import SOAK
from tests.support.kv_job_runs import Given, StoreRun
from tests.support.kv_model import KINDS, StoreModel, ops

EPOCHS = st.lists(st.tuples(st.sampled_from(KINDS), ops(9), st.integers(1, 2)), max_size=20)
"""Operations of an epoch, some of them twice."""


class EagerStore(RuleBasedStateMachine):
    """Operations in epochs, restarts, crashes, and another version of the job."""

    @initialize(
        kinds=st.permutations(KINDS),
        declared=st.integers(1, len(KINDS)),
        parallelism=st.integers(1, 4),
        key_groups=st.sampled_from([4, 128]),
    )
    def start(self, kinds: list[str], declared: int, parallelism: int, key_groups: int) -> None:
        self.missing = kinds[declared:]
        self.run = StoreRun(kinds[:declared], StoreModel(), parallelism, key_groups)

    def given(self, operations: list[Any]) -> Given:
        given: Given = {kind: [] for kind in self.run.kinds}
        for kind, op, times in operations:
            if kind in given:
                given[kind] += [op] * times
        return given

    @rule(operations=EPOCHS)
    def epoch(self, operations: list[Any]) -> None:
        self.run.epoch(self.given(operations))

    @rule(operations=EPOCHS, parallelism=st.integers(1, 4))
    def crash(self, operations: list[Any], parallelism: int) -> None:
        self.run.crash(self.given(operations), parallelism)

    @rule(parallelism=st.integers(1, 4))
    def restart(self, parallelism: int) -> None:
        self.run.restart(parallelism)

    @rule()
    def evolve(self) -> None:
        self.run.evolve()

    @precondition(lambda self: self.missing)
    @rule(place=st.integers(0, len(KINDS)))
    def declare_another_operation(self, place: int) -> None:
        self.run.declare(self.missing.pop(), place)


def histories(examples: int) -> None:
    run_state_machine_as_test(
        EagerStore, settings=settings(max_examples=examples, stateful_step_count=10, deadline=None)
    )


def test_a_store_answers_as_a_dict_does_whatever_epochs_restarts_and_crashes_there_are() -> None:
    histories(12)


@pytest.mark.slow
def test_it_does_so_in_many_more_histories() -> None:
    histories(10_000 if SOAK else 25)
