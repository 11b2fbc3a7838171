"""Test functions that redistribute operator state."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

from statekit.errors import StateTypeError
from statekit.state.options import Redistribute


def check_redistribution(
    hooks: Redistribute | type[Any], states: Iterable[Any], shards: Iterable[int] = (2, 3, 7)
) -> None:
    """Check that a split state can be merged again: `merge(split(state, n)) == state`.

    Parameters:
        hooks: `Redistribute(split=..., merge=...)`, or a `Checkpointed` class with `split_state`
            and `merge_states`.
        states: example states, as plain Python.
        shards: the numbers of shards to split into.

    Raises:
        AssertionError: split returned another number of states, the merged state differs, or a
            function raised an error or changed its argument. The message names the state and the
            number.
        StateTypeError: there are no functions, states or numbers of shards to check.

    >>> def share(total: int, n: int) -> list[int]:
    ...     return [total // n] * n
    >>> check_redistribution(Redistribute(split=share, merge=sum), [6, 7], shards=[2])
    Traceback (most recent call last):
        ...
    AssertionError: merge(split(7, 2)) is 6: split returned [3, 3]
    """
    __tracebackhide__ = True
    split, merge = _functions(hooks)
    given_states, numbers = _listed("states", states), _listed("shards", shards)
    for state in given_states:
        for n in numbers:
            given = copy.deepcopy(state)
            call = f"split({state!r}, {n})"
            parts = _called(call, split, given, n)
            _check(given == state, f"{call} changed what it was given to {given!r}")
            is_list = isinstance(parts, list | tuple) and len(parts) == n
            _check(is_list, f"{call} returned {parts!r}, and not a list of {n} states")
            originals = copy.deepcopy(list(parts))
            merged = _called(f"merge({parts!r})", merge, list(parts))
            _check(
                list(parts) == originals,
                f"merge changed what it was given: {originals!r} to {parts!r}",
            )
            _check(merged == state, f"merge({call}) is {merged!r}: split returned {originals!r}")


def _listed(name: str, given: Any) -> list[Any]:
    """Return the elements of an argument.

    Raises:
        StateTypeError: there are none.
    """
    elements = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else []
    if not elements:
        raise StateTypeError(f"{name}={given!r:.100}: give a list with at least one of them")
    return elements


def _called(call: str, function: Any, *arguments: Any) -> Any:
    """Return what a function of the user returns."""
    __tracebackhide__ = True
    try:
        return function(*arguments)
    except Exception as error:
        raise AssertionError(f"{call} raises {type(error).__name__}: {error}") from error


def _check(holds: bool, message: str) -> None:
    """Raise an AssertionError, also under Python's -O."""
    __tracebackhide__ = True
    if not holds:
        raise AssertionError(message)


def _functions(hooks: Redistribute | type[Any]) -> tuple[Any, Any]:
    if isinstance(hooks, Redistribute):
        functions = hooks.split, hooks.merge
    else:
        functions = getattr(hooks, "split_state", None), getattr(hooks, "merge_states", None)
    if not all(callable(function) for function in functions):
        raise StateTypeError(
            f"{hooks!r} has no functions to check: give Redistribute(split=..., merge=...), or a "
            "class with split_state and merge_states"
        )
    return functions
