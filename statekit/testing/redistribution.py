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
            function changed its argument. The message names the state and the number.
        StateTypeError: there are no functions to check.

    >>> def share(total: int, n: int) -> list[int]:
    ...     return [total // n] * n
    >>> check_redistribution(Redistribute(split=share, merge=sum), [6, 7], shards=[2])
    Traceback (most recent call last):
        ...
    AssertionError: merge(split(7, 2)) is 6: split returned [3, 3]
    """
    split, merge = _functions(hooks)
    for state in states:
        for n in shards:
            given = copy.deepcopy(state)
            parts = split(given, n)
            call = f"split({state!r}, {n})"
            _check(given == state, f"{call} changed what it was given to {given!r}")
            is_list = isinstance(parts, list | tuple) and len(parts) == n
            _check(is_list, f"{call} returned {parts!r}, and not a list of {n} states")
            originals = copy.deepcopy(list(parts))
            merged = merge(list(parts))
            _check(
                list(parts) == originals,
                f"merge changed what it was given: {originals!r} to {parts!r}",
            )
            _check(merged == state, f"merge({call}) is {merged!r}: split returned {originals!r}")


def _check(holds: bool, message: str) -> None:
    """Raise an AssertionError, also under Python's -O."""
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
