"""Accumulators of aggregates, by key or by window, and the functions that add values to them."""

from __future__ import annotations

import decimal
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from statekit.records.output_copy import Copy
from statekit.records.partial_aggregate import Verb
from statekit.state.options import Aggregate, Reduce

EXACT_DIGITS = 76
"""Digits for exact sums of decimals. Columns have half as many."""

_PLACES = 18  # of a mean of decimals, as a column of Spark has


def first_column(*columns: Sequence[Any]) -> Sequence[Any]:
    """Return the first of some columns."""
    return columns[0]


class Accumulation(NamedTuple):
    """An aggregate of records of one type: its accumulator and its functions.

    Parameters:
        state: the annotation of the state that keeps it by key, without windows.
        accumulator: the annotation of the accumulator of a window; None if it has none, because
            its elements are rows of their own.
        result: the annotation of the result.
        functions: add values to an accumulator, and compute the result. None adds nothing, except
            to an aggregate of the user.
        value_of: returns the value that a record adds.
        added: returns the value that each combined row adds, from the columns of the parts. It is
            added like the value of a record; a state by key may take another form.
        element: the annotation of the elements, if the result is a list of them.
        copy_added: copies a value that a record adds, if functions of the user may change it.
    """

    state: Any
    accumulator: Any
    result: Any
    functions: Aggregate[Any, Any, Any]
    value_of: Callable[[Any], Any]
    added: Callable[..., Sequence[Any]] = first_column
    element: Any = None
    copy_added: Copy | None = None


def kept_in_row(of: Accumulation) -> Accumulation:
    """Return the same accumulation with the elements of a list as its accumulator."""
    if of.element is None:
        return of
    functions: Aggregate[Any, Any, Any] = Aggregate(list, _appended, itself, operator.add)
    return of._replace(accumulator=of.result, functions=functions, element=None)


def _appended(elements: list[Any], value: Any) -> list[Any]:
    if value is not None:
        elements.append(value)
    return elements


def itself(value: Any) -> Any:
    """Return the argument."""
    return value


def no_value(*_: object) -> None:
    """Return None: the accumulator of no values, or of elements that are rows of their own."""
    return


def skipping_none(combine: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return `combine` for values that may be None. None is skipped."""

    def add(current: Any, value: Any) -> Any:
        if current is None:
            return value
        return current if value is None else combine(current, value)

    return add


def combining(verb: Verb, kind: Any) -> Callable[[Any, Any], Any]:
    """Return the function that combines two values of a type. Sums of decimals are exact."""
    if kind is decimal.Decimal and verb == "sum":
        return decimal.Context(prec=EXACT_DIGITS).add
    return reducer(verb, kind).combine


def reducer(verb: Verb, kind: Any) -> Reduce:
    """Return the reducer of two values of a type. The order of values matters only for sums of
    floats.

    NaN is neither the smallest nor the largest float if there is a number.
    """
    if kind is float and verb in ("min", "max"):
        return Reduce(_least if verb == "min" else _largest)
    return Reduce(verb)


def _least(current: float, value: float) -> float:
    return value if current != current or value < current else current


def _largest(current: float, value: float) -> float:
    return value if current != current or value > current else current


def adding_pairs(add: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return a function that adds two pairs of a sum and a count, with `add` for the sums."""
    return lambda current, more: (add(current[0], more[0]), current[1] + more[1])


def quotient(sum_and_count: tuple[Any, int] | None) -> Any:
    """Return the mean of values, from their sum and number; None for no values."""
    if sum_and_count is None:
        return None
    total, number = sum_and_count
    if not isinstance(total, decimal.Decimal):
        return total / number
    with decimal.localcontext(prec=EXACT_DIGITS):
        return round(total / number, _PLACES)
