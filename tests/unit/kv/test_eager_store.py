"""A store without time, against a dict that handles operations in the order of the declaration."""

from __future__ import annotations

from typing import Any, ClassVar

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
from tests.support.kv_job_runs import Given, StoreRun, given_to, operations_of
from tests.support.kv_model import KINDS, SORTED_KINDS, StoreModel


class EagerStore(RuleBasedStateMachine):
    """Operations in epochs, restarts, crashes, and another version of the job."""

    kinds = KINDS
    options: ClassVar[dict[str, Any]] = {}

    @initialize(data=st.data(), parallelism=st.integers(1, 4), key_groups=st.sampled_from([4, 128]))
    def start(self, data: st.DataObject, parallelism: int, key_groups: int) -> None:
        kinds = data.draw(st.permutations(self.kinds))
        declared = data.draw(st.integers(1, len(kinds)))
        self.missing = kinds[declared:]
        model = StoreModel("sort" in self.options, has_changes=data.draw(st.booleans()))
        self.run = StoreRun(kinds[:declared], model, parallelism, key_groups, **self.options)

    def given(self, operations: list[Any]) -> Given:
        return given_to(self.run.kinds, operations)

    @rule(operations=operations_of(9))
    def epoch(self, operations: list[Any]) -> None:
        self.run.epoch(self.given(operations))

    @rule(operations=operations_of(9), parallelism=st.integers(1, 4))
    def crash(self, operations: list[Any], parallelism: int) -> None:
        self.run.crash(self.given(operations), parallelism)

    @rule(parallelism=st.integers(1, 4))
    def restart(self, parallelism: int) -> None:
        self.run.restart(parallelism)

    @rule()
    def evolve(self) -> None:
        self.run.evolve()

    @precondition(lambda self: self.missing)
    @rule(place=st.integers(0, 20))
    def declare_another_operation(self, place: int) -> None:
        self.run.declare(self.missing.pop(), place)


class EagerSortedStore(EagerStore):
    """The same with a store whose keys have an ordered part."""

    kinds = SORTED_KINDS
    options: ClassVar[dict[str, Any]] = {"sort": int}


def histories(examples: int, machine: type[EagerStore] = EagerStore) -> None:
    run_state_machine_as_test(
        machine, settings=settings(max_examples=examples, stateful_step_count=10, deadline=None)
    )


def test_a_store_answers_as_a_dict_does_whatever_epochs_restarts_and_crashes_there_are() -> None:
    histories(12)


def test_a_sorted_store_answers_as_a_dict_of_sorted_items_does() -> None:
    histories(2, EagerSortedStore)


@pytest.mark.slow
def test_a_sorted_store_does_so_in_many_more_histories() -> None:
    histories(10_000 if SOAK else 25, EagerSortedStore)


@pytest.mark.slow
def test_it_does_so_in_many_more_histories() -> None:
    histories(10_000 if SOAK else 25)
