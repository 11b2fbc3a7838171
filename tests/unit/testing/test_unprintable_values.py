"""Values whose `repr` fails do not replace the error that a check, or an argument, has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import strategies as st

import statekit as sk
from statekit.testing import (
    Harness,
    JobHarness,
    check,
    check_aggregate,
    check_migration,
    check_redistribution,
    check_reducer,
    check_sink,
    strategies,
)
from statekit.testing.checks.redistribution import wrong_pieces

FAILS = r"whose repr\(\) fails with AttributeError"


@dataclass
class Order:
    user: str
    cents: int = 0

    def __repr__(self) -> str:
        return str(self.lines)  # type: ignore[attr-defined]


BROKEN = Order("ann")
ORDERS = st.builds(Order, st.just("ann"), st.integers(0, 3))


def _raise(*_: Any) -> Any:
    raise ValueError("no such order")


@sk.process(key="user")
def last(order: Order, held: sk.ValueState[Order]) -> Iterator[Order]:
    held.update(order)
    yield order


LAWS: dict[str, Callable[[], object]] = {
    "is not associative": lambda: check_reducer(
        lambda a, b: Order("ann", a.cents - b.cents), ORDERS
    ),
    "raises ValueError with the values": lambda: check_reducer(_raise, ORDERS),
    "merge counts otherwise": lambda: check_aggregate(
        sk.Aggregate(list, lambda held, of: [of], list, lambda one, _: one), ORDERS
    ),
    "raises ValueError: no such order": lambda: check_migration(Order, int, _raise),
    "which is no int": lambda: check_migration(Order, int, lambda order: order),
    "not a list of 2": lambda: check_redistribution(
        sk.Redistribute(split=lambda of, n: of, merge=_raise), [BROKEN], shards=[2]
    ),
    "the invariant returns": lambda: check(
        last, history=[[Order("ann")]], holds=["invariant"], invariant=lambda *_: _Falsy()
    ),
}


class _Falsy:
    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return str(self.lines)  # type: ignore[attr-defined]


@pytest.mark.parametrize("said", LAWS)
def test_a_broken_law_is_reported_with_values_that_cannot_be_printed(said: str) -> None:
    with pytest.raises(AssertionError, match=FAILS) as told:
        LAWS[said]()
    assert said in str(told.value)


ARGUMENTS: dict[str, Callable[[Any], object]] = {
    "holds=": lambda it: check(last, holds=[it]),
    "history=": lambda it: check(last, history=it),
    "excused=": lambda it: check(last, excused=it),
    "the reason of excused=": lambda it: check(last, excused={"errors": it}),
    "events=": lambda it: check(last, events=it),
    "depth=": lambda it: check(last, depth=it),
    "seconds=": lambda it: check(last, seconds=it),
    "invariant=": lambda it: check(last, invariant=it),
    "aggregate": lambda it: check_aggregate(it, int),
    "states=": lambda it: check_redistribution(sk.Redistribute(split=_raise, merge=_raise), it),
    "hooks": lambda it: check_redistribution(it, [1]),
    "sink": lambda it: check_sink(it, [Order("ann")]),
    "function": lambda it: Harness(it),
    "job": lambda it: JobHarness(it),
    "checkpoint=": lambda it: Harness(last, checkpoint=it),
    "values": lambda it: strategies.values(it),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_an_argument_that_cannot_be_printed_is_refused_with_its_own_error(name: str) -> None:
    with pytest.raises(sk.StateTypeError, match=FAILS):
        ARGUMENTS[name](BROKEN)


def test_pieces_that_cannot_be_printed_are_reported() -> None:
    what = wrong_pieces(sk.Redistribute("even"), [[BROKEN]], [[], [Order("bob")]])
    assert what is not None
    assert "whose repr() fails with AttributeError" in what
