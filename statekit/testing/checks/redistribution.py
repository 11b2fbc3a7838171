"""Test functions that redistribute operator state."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from statekit.errors import StateTypeError
from statekit.shown import shown, shown_error
from statekit.state.options import Redistribute
from statekit.testing.runs.comparison import is_same


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
            call = f"split({shown(state)}, {n})"
            parts = _called(call, split, given, n)
            _check(given == state, f"{call} changed what it was given to {shown(given)}")
            is_list = isinstance(parts, list | tuple) and len(parts) == n
            _check(is_list, f"{call} returned {shown(parts)}, and not a list of {n} states")
            originals = copy.deepcopy(list(parts))
            merged = _called(f"merge({shown(parts)})", merge, list(parts))
            _check(
                list(parts) == originals,
                f"merge changed what it was given: {shown(originals)} to {shown(parts)}",
            )
            _check(
                merged == state,
                f"merge({call}) is {shown(merged)}: split returned {shown(originals)}",
            )


def wrong_pieces(rule: Redistribute, before: Sequence[Any], after: Sequence[Any]) -> str | None:
    """Return a message if the operator state of new shards is not that of the rule; otherwise None.

    Parameters:
        rule: the rule of the state.
        before, after: the state of each old and of each new shard; None or an empty list for none.
    """
    if len(before) == len(after):
        expected = list(before)
    elif rule.known == "hooks":
        expected = _by_hooks(rule, before, len(after))
    elif rule.known == "broadcast":
        expected = [before[shard % len(before)] for shard in range(len(after))]
    else:
        elements = [element for part in before for element in part]
        expected = [elements] * len(after) if rule.known == "union" else _even(elements, len(after))
    if is_same(expected, list(after)):
        return None
    return (
        f"{shown(list(before))} became {shown(list(after))}, and {rule.known} is {shown(expected)}"
    )


def _even(elements: list[Any], shards: int) -> list[list[Any]]:
    """Return consecutive pieces. The first ones have one element more."""
    size, larger = divmod(len(elements), shards)
    waiting = iter(elements)
    sizes = [size + 1] * larger + [size] * (shards - larger)
    return [list(islice(waiting, size)) for size in sizes]


def _by_hooks(hooks: Redistribute, before: Sequence[Any], shards: int) -> list[Any]:
    """Return the states of the new shards, by the user's functions. A state that is neither split
    nor merged stays as it is.
    """
    split, merge = _functions(hooks)
    blank: Any = [] if any(isinstance(part, list) for part in before) else None
    if len(before) > shards:
        parts = [
            [part for old, part in enumerate(before) if old * shards // len(before) == new]
            for new in range(shards)
        ]
        held = [[part for part in some if part not in (None, [])] for some in parts]
        return [
            some[0] if len(some) == 1 else merge(copy.deepcopy(of)) if of else blank
            for some, of in zip(parts, held, strict=True)
        ]
    expected: list[Any] = []
    for old, part in enumerate(before):
        number = sum(new * len(before) // shards == old for new in range(shards))
        if number == 1 or part in (None, []):
            expected += [part, *[blank] * (number - 1)]
        else:
            expected += split(copy.deepcopy(part), number)
    return expected


def _listed(name: str, given: Any) -> list[Any]:
    """Return the elements of an argument.

    Raises:
        StateTypeError: there are none.
    """
    elements = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else []
    if not elements:
        raise StateTypeError(f"{name}={shown(given, 100)}: give a list with at least one of them")
    return elements


def _called(call: str, function: Any, *arguments: Any) -> Any:
    """Return the result of a function of the user. Its error becomes an AssertionError."""
    __tracebackhide__ = True
    try:
        return function(*arguments)
    except Exception as error:
        raise AssertionError(f"{call} raises {shown_error(error)}") from error


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
            f"{shown(hooks)} has no functions to check: give Redistribute(split=..., merge=...), "
            "or a class with split_state and merge_states"
        )
    return functions
