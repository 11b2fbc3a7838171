"""Reducers and aggregates that break a law are found, with the smallest values that show it."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import strategies as st

import statekit as sk
from statekit.testing import check_aggregate, check_migration, check_redistribution, check_reducer


def appended(current: list[int], added: list[int]) -> list[int]:
    added.append(1)
    return current + added


SHARED: list[int] = []


def list_kept(held: list[int], value: int) -> list[int]:
    held.append(value)
    return held


@pytest.mark.parametrize(
    ("reducer", "values"),
    [
        (max, int),
        (sk.Reduce("sum"), int),
        (operator.add, str),
        (lambda current, added: current | added, frozenset[int]),
        (lambda current, _: current, float),
    ],
)
def test_reducers_that_keep_the_laws_pass(reducer: Any, values: Any) -> None:
    check_reducer(reducer, values)


@pytest.mark.parametrize(
    ("reducer", "values", "message"),
    [
        (
            lambda current, added: (current + added) / 2,
            float,
            r"not associative: reduce\(reduce\(.*A value depends on how records are combined",
        ),
        (
            operator.add,
            str,
            r"not commutative: reduce\('(.)', '(.)'\) is '\1\2', and reduce\('\2', '\1'\) is "
            r"'\2\1'. A value depends on the order in which records arrive",
        ),
        (
            appended,
            list[int],
            r"changes the value that is added: \[\] is \[1\] after reduce\(\[\], \[\]\)",
        ),
    ],
    ids=["associative", "commutative", "changes"],
)
def test_what_breaks_a_law_of_reducers_is_shown(reducer: Any, values: Any, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_reducer(reducer, values, commutative=True)


def test_a_reducer_returns_what_the_state_can_hold() -> None:
    with pytest.raises(AssertionError, match=r"reduce\(0, 0\) is None, which is no int"):
        check_reducer(lambda current, added: None, int)


def test_an_accumulator_without_values_has_no_result() -> None:
    mean: sk.Aggregate[int, list[int], float] = sk.Aggregate(
        create=list, add=list_kept, result=lambda held: sum(held) / len(held)
    )
    check_aggregate(mean, int)


def test_functions_that_raise_are_shown_with_the_values() -> None:
    with pytest.raises(AssertionError, match=r"the reducer raises ZeroDivisionError with the val"):
        check_reducer(operator.floordiv, int)
    share: sk.Aggregate[int, list[int], float] = sk.Aggregate(
        create=list, add=list_kept, result=lambda held: 1 / sum(held)
    )
    with pytest.raises(
        AssertionError, match=r"with the values \[0\]: division by zero. A record"
    ) as e:
        check_aggregate(share, int)
    assert isinstance(e.value.__cause__, ZeroDivisionError)


def test_a_reducer_that_fails_once_does_not_pass() -> None:
    left = ["the first call"]

    def largest(current: int, added: int) -> int:
        if left:
            raise ValueError(left.pop())
        return max(current, added)

    with pytest.raises(AssertionError, match="and did not when it was called again"):
        check_reducer(largest, int)


def test_floats_may_be_compared_roughly() -> None:
    floats = st.floats(-1e6, 1e6)
    with pytest.raises(AssertionError, match="not associative"):
        check_reducer(operator.add, floats)

    def near(a: float, b: float) -> bool:
        return math.isclose(a, b, abs_tol=1e-6)

    check_reducer(operator.add, floats, equal=near)


MEAN: sk.Aggregate[int, tuple[int, int], float] = sk.Aggregate(
    create=lambda: (0, 0),
    add=lambda held, value: (held[0] + value, held[1] + 1),
    result=lambda held: held[0] / held[1] if held[1] else 0.0,
    merge=lambda held, more: (held[0] + more[0], held[1] + more[1]),
)


def test_an_aggregate_that_keeps_the_laws_passes() -> None:
    check_aggregate(MEAN, int)


def one_more(held: tuple[int, int], more: tuple[int, int]) -> tuple[int, int]:
    return held[0] + more[0], held[1] + more[1] + 1


BROKEN: list[tuple[str, Callable[[], sk.Aggregate[Any, Any, Any]], str]] = [
    (
        "shared",
        lambda: sk.Aggregate(lambda: SHARED, list_kept, sum),
        "were added to another accumulator. The values of one key are in the result of another",
    ),
    (
        "merge",
        lambda: sk.Aggregate(MEAN.create, MEAN.add, MEAN.result, one_more),
        r"merge counts otherwise than add: of the values \[\], \[1\] together it makes 0.5, and "
        "add makes 1.0. A window that two sessions were merged into has a wrong result",
    ),
    (
        "twice",
        lambda: sk.Aggregate(list, list_kept, lambda held: held.pop() if held else None),
        r"result\(\) changes the accumulator: of the values \[0\] it returns 0, and then None",
    ),
]


@pytest.mark.parametrize(
    ("make", "message"), [each[1:] for each in BROKEN], ids=[each[0] for each in BROKEN]
)
def test_what_breaks_a_law_of_aggregates_is_shown(
    make: Callable[[], sk.Aggregate[Any, Any, Any]], message: str
) -> None:
    with pytest.raises(AssertionError, match=message):
        check_aggregate(make(), int)


def test_an_add_that_changes_a_value_is_shown() -> None:
    def emptied(held: int, value: list[int]) -> int:
        held += sum(value)
        value.clear()
        return held

    wrong: sk.Aggregate[list[int], int, int] = sk.Aggregate(int, emptied, int)
    with pytest.raises(
        AssertionError, match=r"add\(\) changes what is added: \[\[0\]\] to \[\[\]\]"
    ):
        check_aggregate(wrong, list[int])


def test_what_cannot_be_checked_is_refused() -> None:
    not_one: Any = max
    with pytest.raises(sk.StateTypeError, match="takes an Aggregate"):
        check_aggregate(not_one, int)
    with pytest.raises(sk.StateTypeError, match="complex is not supported"):
        check_reducer(max, complex)
    deepest: Any = "deepest"
    with pytest.raises(sk.StateTypeError, match="use one of quick, normal, deep"):
        check_reducer(max, int, depth=deepest)


# ---------------------------------------------------------------------------------- migrations


class Cents(NamedTuple):
    cents: int


CALLS: list[int] = []


def numbered(_: str) -> int:
    CALLS.append(1)
    return len(CALLS)


def test_a_migration_of_all_values_passes() -> None:
    check_migration(int, Cents, Cents)
    check_migration(str | None, str, lambda text: text or "")
    check_migration(str, int, int, values=st.integers(0, 9).map(str))


@pytest.mark.parametrize(
    ("old", "new", "migrate", "message"),
    [
        (str, int, int, r"migrate\('.*'\) raises ValueError: invalid literal.* cannot be read"),
        (int, str, lambda number: number, r"migrate\(0\) is 0, which is no str: expected str"),
        (int, list[str], lambda number: [number], r"is \[0\], which is no list\[str\]"),
        (str, int, numbered, r"and \d+ when it is called again. A row has another value each time"),
    ],
    ids=["fails", "type", "inner type", "chance"],
)
def test_a_migration_that_loses_values_is_shown(
    old: Any, new: Any, migrate: Any, message: str
) -> None:
    with pytest.raises(AssertionError, match=message):
        check_migration(old, new, migrate)


def test_a_migration_of_no_type_is_refused() -> None:
    with pytest.raises(sk.StateTypeError, match="complex is not supported"):
        check_migration(complex, int, int)


@pytest.mark.parametrize(
    "fails",
    [
        lambda: check_reducer(operator.sub, int),
        lambda: check_aggregate(sk.Aggregate(list, list_kept, len, merge=operator.sub), int),
        lambda: check_migration(int, str, lambda value: value),
        lambda: check_redistribution(sk.Redistribute(split=lambda _, n: [0] * n, merge=sum), [1]),
    ],
    ids=["reducer", "aggregate", "migration", "redistribution"],
)
def test_pytest_shows_the_message_and_none_of_the_functions_that_found_it(
    fails: Callable[[], None],
) -> None:
    with pytest.raises(AssertionError) as caught:
        fails()
    own = [each for each in caught.traceback if "statekit/testing" in str(each.path)]
    assert own
    assert all(each.ishidden(caught) for each in own)
