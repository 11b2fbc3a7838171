"""Every state type behaves like the plain Python value it stands for, whatever happens between."""

from __future__ import annotations

import contextlib
from typing import Annotated, Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

import statekit as sk
from statekit.testing.models import model_of
from tests.support.state_driver import DECLARATIONS, KEYS, SPECS, Box, Driver
from tests.support.state_machines import (
    AggregatingStateMachine,
    ListStateMachine,
    MapStateMachine,
    ReducingStateMachine,
    StateMachine,
    ValueStateMachine,
)

numbers = st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3)
number_lists = st.lists(st.integers(-3, 3), max_size=3)
boxes = st.builds(Box, number_lists)

MACHINES: dict[str, tuple[type[StateMachine], dict[str, Any]]] = {
    "number": (ValueStateMachine, {"values": numbers}),
    "box": (ValueStateMachine, {"values": boxes}),
    "maybe": (ValueStateMachine, {"values": numbers | st.none()}),
    "zero": (ValueStateMachine, {"values": numbers}),
    "empty": (ValueStateMachine, {}),
    "pickled": (ValueStateMachine, {"values": st.complex_numbers(allow_nan=False)}),
    "numbers": (ListStateMachine, {"values": numbers}),
    "lists": (ListStateMachine, {}),
    "maybes": (ListStateMachine, {}),
    "by_number": (MapStateMachine, {"map_keys": st.integers(-4, 4)}),
    "boxes": (
        MapStateMachine,
        {"map_keys": st.tuples(st.sampled_from(["", "x", "x\x00", "xy"]), st.booleans())},
    ),
    "optionals": (
        MapStateMachine,
        {"map_keys": st.sampled_from(["", "é", "z", "\x00", "\U0001f600"])},
    ),
    "total": (ReducingStateMachine, {}),
    "least": (ReducingStateMachine, {"values": numbers}),
    "most": (ReducingStateMachine, {}),
    "count": (ReducingStateMachine, {}),
    "joined": (ReducingStateMachine, {}),
    "grown": (ReducingStateMachine, {}),
    "last": (ReducingStateMachine, {}),
    "mean": (AggregatingStateMachine, {"values": st.integers(-9, 9).map(float)}),
    "listed": (AggregatingStateMachine, {}),
    "kept": (AggregatingStateMachine, {}),
}
"""The machine of each state, with strategies where those of its types are too tame."""

OPERATOR_STATES: dict[str, tuple[type[StateMachine], Any]] = {
    "value": (ValueStateMachine, Annotated[sk.OperatorState[int], sk.Default(0)]),
    "list": (ListStateMachine, sk.OperatorListState[int]),
    "broadcast": (MapStateMachine, sk.BroadcastState[str, int]),
}

EXPIRING = ("zero", "box", "lists", "by_number", "boxes", "grown", "listed", "kept")
"""States that are tested with a TTL: of each type with mutable and immutable values."""

TTLS = {
    "processing, write": sk.TTL("8 s"),
    "processing, read": sk.TTL("8 s", refresh="read"),
    "event, write": sk.TTL("8 s", "event"),
    "event, read": sk.TTL("8 s", "event", refresh="read"),
}


def run(machine: type[RuleBasedStateMachine], examples: int, steps: int = 30) -> None:
    """Run a state machine."""
    few = settings(machine.TestCase.settings, max_examples=examples, stateful_step_count=steps)
    run_state_machine_as_test(machine, settings=few)


def machine_of(base: type[StateMachine], state: Any, **attributes: Any) -> type[StateMachine]:
    """Return a machine of a declaration."""
    return type(base.__name__, (base,), {"state": state, **attributes})


def test_each_declared_state_has_a_machine() -> None:
    assert list(MACHINES) == list(SPECS)


@pytest.mark.parametrize("name", MACHINES)
def test_states_in_memory_behave_like_plain_python_values(name: str) -> None:
    base, attributes = MACHINES[name]
    run(machine_of(base, DECLARATIONS[name], **attributes), 25)


@pytest.mark.parametrize("name", MACHINES)
def test_states_in_rocksdb_behave_like_plain_python_values(name: str) -> None:
    base, attributes = MACHINES[name]
    run(machine_of(base, DECLARATIONS[name], backend="rocksdb", **attributes), 3, 20)


@pytest.mark.parametrize("name", OPERATOR_STATES)
def test_operator_states_behave_like_plain_python_values(name: str) -> None:
    run(machine_of(*OPERATOR_STATES[name]), 10)


@pytest.mark.parametrize("ttl", TTLS.values(), ids=TTLS)
@pytest.mark.parametrize("name", EXPIRING)
def test_states_that_expire_behave_like_values_that_expire(name: str, ttl: sk.TTL) -> None:
    base, attributes = MACHINES[name]
    run(machine_of(base, Annotated[DECLARATIONS[name], ttl], **attributes), 15)


class SideBySide(RuleBasedStateMachine):
    """One state of each kind at one key, interleaved: no state sees another's rows."""

    names = ("box", "numbers", "by_number", "total")

    def __init__(self) -> None:
        super().__init__()
        self.driver = Driver(list(self.names))
        self.models = {
            (name, key): model_of(DECLARATIONS[name]) for name in self.names for key in KEYS
        }

    def both(self, name: str) -> tuple[Any, Any]:
        """The state of that name, and its model."""
        return self.driver.states[name], self.models[name, self.driver.scope.key]

    @rule(key=st.sampled_from(KEYS))
    def go_to(self, key: str) -> None:
        self.driver.enter(key)

    @rule()
    def begin_epoch(self) -> None:
        self.driver.next_epoch()

    @rule(value=number_lists)
    def write_all(self, value: list[int]) -> None:
        for state in self.both("box"):
            state.update(Box(value))
        for state in self.both("numbers"):
            state.extend(value)
        for state in self.both("by_number"):
            state.update({one: str(one) for one in value})
        for state in self.both("total"):
            for one in value:
                state.add(one)

    @rule(name=st.sampled_from(names))
    def clear(self, name: str) -> None:
        for state in self.both(name):
            state.clear()

    @rule()
    def check(self) -> None:
        box, numbers, by_number, total = (self.both(name) for name in self.names)
        assert box[0].get() == box[1].get()
        assert numbers[0].get() == numbers[1].get()
        assert list(by_number[0].items()) == list(by_number[1].items())
        assert total[0].get() == total[1].get()

    def teardown(self) -> None:
        with contextlib.closing(self.driver):
            for key in KEYS:
                self.driver.enter(key)
                self.check()


def test_states_side_by_side_do_not_see_rows_of_each_other() -> None:
    run(SideBySide, 50)
