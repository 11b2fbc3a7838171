"""State machines of states find states that differ from their models, and show the calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

import statekit as sk
from statekit.errors import StateTypeError
from statekit.state.ttl import Expiry
from statekit.testing.effort import INPUTS, Effort, set_default_effort
from statekit.testing.machines import JobMachine
from tests.support.state_machines import (
    AggregatingStateMachine,
    ListStateMachine,
    MapStateMachine,
    ReducingStateMachine,
    StateMachine,
    ValueStateMachine,
)


class Number(ValueStateMachine):
    state = Annotated[sk.ValueState[int], sk.Default(3)]


class Box(ValueStateMachine):
    state = Annotated[sk.ValueState[list[int]], sk.Default([7])]


class Numbers(ListStateMachine):
    state = sk.ListState[int]


class ByText(MapStateMachine):
    state = sk.MapState[str, int]


class Expiring(MapStateMachine):
    state = Annotated[sk.MapState[int, int], sk.TTL("8 s", "event", refresh="read")]


class ExpiringNumbers(ListStateMachine):
    state = Annotated[sk.ListState[int], sk.TTL("8 s")]


class Joined(ReducingStateMachine):
    state = Annotated[sk.ReducingState[list[int]], sk.Reduce(lambda old, new: old + new)]


class Largest(AggregatingStateMachine):
    state = Annotated[
        sk.AggregatingState[int, list[int], int],
        sk.Aggregate(list[int], lambda held, number: [*held, number], max),
    ]


def run(machine: type[RuleBasedStateMachine], *phases: Phase) -> None:
    given = settings(
        machine.TestCase.settings,
        database=None,
        derandomize=True,
        phases=phases or (Phase.generate,),
    )
    run_state_machine_as_test(machine, settings=given)


def first_half(extend: Any) -> Callable[[Any, Any], None]:
    """Drop the second of two appended elements."""
    return lambda state, values: extend(state, [v for n, v in enumerate(values) if n != 1])


BROKEN: list[tuple[type[StateMachine], type, str, Any]] = [
    (ByText, sk.MapState, "__delitem__", lambda state, key: state[key]),
    (ByText, sk.MapState, "setdefault", lambda state, key, value: value),
    (ByText, sk.MapState, "floor", lambda state, key: next(state.scan(None, key), None)),
    (ByText, sk.MapState, "clear", lambda state: None),
    (Numbers, sk.ListState, "extend", first_half(sk.ListState.extend)),
    (Numbers, sk.ListState, "append", lambda state, value: state.update([value])),
    (Numbers, sk.ListState, "__reversed__", lambda state: iter(state)),
    (Numbers, sk.ListState, "__len__", lambda state: len(state._pending_rows())),
    (Number, sk.ValueState, "exists", lambda state: True),
    (Number, sk.ValueState, "get", lambda state: state._known.get(state._scope.prefix)),
    (Joined, sk.ReducingState, "clear", lambda state: None),
    (Largest, sk.AggregatingState, "add", lambda state, value: None),
    (Expiring, sk.MapState, "_note_read", lambda state, row_key: None),
    (ExpiringNumbers, Expiry, "is_over", lambda expiry, written: False),
    (Expiring, Expiry, "stamp", lambda expiry, before: before if before > 0 else 1),
]


@pytest.mark.parametrize(
    ("machine", "cls", "method", "broken"), BROKEN, ids=[f"{b[1].__name__}.{b[2]}" for b in BROKEN]
)
def test_a_method_that_is_broken_is_found_within_the_default_depth(
    machine: type[StateMachine],
    cls: type,
    method: str,
    broken: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cls, method, broken)
    with pytest.raises(AssertionError):
        run(machine)


def test_a_failure_shows_the_fewest_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sk.MapState, "__delitem__", lambda state, key: state[key])
    with pytest.raises(AssertionError, match=r"the state returns .*, and its model") as caught:
        run(ByText, Phase.generate, Phase.shrink)
    calls = [line for line in caught.value.__notes__ if "state." in line]
    assert len("\n".join(calls).splitlines()) <= 8, calls


@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
def test_a_machine_has_the_backend_that_it_names(backend: str) -> None:
    machine = type("Named", (Number,), {"backend": backend})()
    machine.start(pending_rows=3, keys=1)
    machine.update(5, by_property=True)
    machine.crash()
    machine.check()
    assert type(machine._driver.backend).__name__.lower().startswith(backend[:5])
    machine.teardown()


def test_strategies_of_a_subclass_replace_those_of_the_types() -> None:
    found: set[tuple[str, int]] = set()

    class Few(MapStateMachine):
        state = sk.MapState[str, int]
        map_keys = st.just("only")
        values = st.just(1)

        def both(self, call: Callable[[Any], Any], *arguments: Any) -> None:
            super().both(call, *arguments)
            found.update(self.model.plain().items())

    run(Few)
    assert found == {("only", 1)}


def test_the_machine_of_another_state_type_is_refused() -> None:
    with pytest.raises(StateTypeError, match="declares a MapState: subclass the machine of that"):

        class Wrong(ValueStateMachine):
            state = sk.MapState[str, int]


def test_a_declaration_that_is_not_valid_is_refused_where_the_machine_is_declared() -> None:
    with pytest.raises(StateTypeError, match="needs an option"):

        class Wrong(ReducingStateMachine):
            state = sk.ReducingState[int]


@pytest.fixture
def quick() -> Iterator[None]:
    set_default_effort(Effort("quick"))
    yield
    set_default_effort(Effort())


def test_a_machine_without_a_declaration_or_with_another_backend_is_refused() -> None:
    class Undeclared(ValueStateMachine):
        pass

    class Elsewhere(Number):
        backend = "disk"  # type: ignore[assignment]

    class Jobless(JobMachine):
        pass

    for machine, said in [
        (Undeclared, "Undeclared has no state"),
        (Elsewhere, "backend='disk'"),
        (Jobless, "Jobless has no job"),
    ]:
        with pytest.raises(StateTypeError, match=said):
            machine()


@pytest.mark.usefixtures("quick")
def test_machines_try_as_many_examples_as_checks_unless_they_say_it() -> None:
    class Quick(ValueStateMachine):
        state = sk.ValueState[int]

    assert Quick.TestCase.settings.max_examples == INPUTS["quick"]
    assert Number.TestCase.settings.max_examples == 100
    Quick.TestCase.settings = settings(max_examples=7)
    assert Quick.TestCase.settings.max_examples == 7
