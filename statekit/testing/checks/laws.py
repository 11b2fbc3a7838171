"""Laws that the functions of a state must keep for all values."""

from __future__ import annotations

import copy
import datetime as dt
import decimal
import operator
from collections.abc import Callable, Iterable, Iterator
from functools import partial, reduce
from itertools import islice, product
from typing import Any, NamedTuple

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from statekit.codec.value_codec import value_codec
from statekit.errors import StateTypeError
from statekit.shown import shown, shown_error, shown_text, type_name
from statekit.state.options import Aggregate, Reduce
from statekit.testing.counterexamples import counterexample, strategy_of
from statekit.testing.effort import Depth, Effort

Equal = Callable[[Any, Any], bool]


class _Broken(NamedTuple):
    """A law that does not hold for some values.

    Parameters:
        what: the evidence, with the values.
        means: the consequence in a job.
        error: the error that the function raised, if any.
    """

    what: str
    means: str
    error: Exception | None = None


_VALUES, _LISTS = 3, 20
"""Numbers of values that are drawn at once, and of lists that are made from them."""

_NUMBERS = (int, float, decimal.Decimal, dt.timedelta)

Law = Callable[[list[Any]], _Broken | None]
"""A function that returns the evidence if some values break a law; None if they do not."""


def check_reducer(
    reducer: Reduce | Callable[[Any, Any], Any],
    values: SearchStrategy[Any] | Any,
    *,
    commutative: bool = False,
    equal: Equal = operator.eq,
    depth: Depth | None = None,
) -> None:
    """Check the function of a `ReducingState`: values can be combined in parts, and added values
    stay unchanged.

    Parameters:
        reducer: as in `Annotated[ReducingState[int], Reduce(...)]`.
        values: the type of the values, or a Hypothesis strategy of them.
        commutative: also check that the order of the values does not matter.
        equal: whether two values count as equal, such as `math.isclose`.
        depth: the number of inputs: some 600, 2,000 or 40,000.

    Raises:
        AssertionError: a law does not hold. The message has the smallest values that show it, and
            the consequence.
        StateTypeError: this is no reducer, or there are no values of that type.

    >>> check_reducer(lambda current, added: current - added, int)
    Traceback (most recent call last):
        ...
    AssertionError: the reducer is not associative: reduce(reduce(0, 0), 1) is -1, and \
reduce(0, reduce(0, 1)) is 1. A value depends on how records are combined
    """
    __tracebackhide__ = True
    of = _Combined(reducer if isinstance(reducer, Reduce) else Reduce(reducer), values, equal)
    laws: list[Law] = [of.are_of_the_type, of.leave_what_is_added, of.are_the_same_in_parts]
    if commutative:
        laws.append(of.are_the_same_in_any_order)
    _check("the reducer", laws, values, (3, 3), depth)


def check_aggregate(
    aggregate: Aggregate[Any, Any, Any],
    values: SearchStrategy[Any] | Any,
    *,
    equal: Equal = operator.eq,
    depth: Depth | None = None,
) -> None:
    """Check an `Aggregate`: accumulators are independent, results can be read twice, and parts can
    be merged.

    Parameters:
        values: the type of the values that are added, or a Hypothesis strategy of them.
        equal, depth: as for `check_reducer`.

    Raises:
        AssertionError: a law does not hold. The message has the smallest values that show it, and
            the consequence.
        StateTypeError: this is no aggregate, or there are no values of that type.

    >>> largest = Aggregate(create=lambda: 0, add=max, result=int, merge=int.__add__)
    >>> check_aggregate(largest, int)
    Traceback (most recent call last):
        ...
    AssertionError: merge counts otherwise than add: of the values [1], [1] together it makes 2, \
and add makes 1. A window that two sessions were merged into has a wrong result
    """
    __tracebackhide__ = True
    if not isinstance(aggregate, Aggregate):
        raise StateTypeError(f"check_aggregate() takes an Aggregate(...), not {shown(aggregate)}")
    of = _Accumulators(aggregate, equal)
    laws: list[Law] = [of.are_apart, of.keep_what_is_added, of.can_be_read_twice]
    if aggregate.merge is not None:
        laws.append(of.can_be_merged)
    _check("the aggregate", laws, values, (1, 4), depth)


def check_migration(
    old: type[Any] | Any,
    new: type[Any] | Any,
    migrate: Callable[[Any], Any],
    *,
    values: SearchStrategy[Any] | None = None,
    depth: Depth | None = None,
) -> None:
    """Check a function of `@process(migrate=...)`: it converts each value of the old type to one of
    the new type, and to the same one each time.

    Parameters:
        old, new: the types of the state before and now.
        migrate: the function, which takes a value of the old type.
        values: a Hypothesis strategy of old values; None generates them from the type.
        depth: as for `check_reducer`.

    Raises:
        AssertionError: the function fails for a value, or returns a value that the new type does
            not allow. The message has the smallest such value.
        StateTypeError: a type is not supported.

    >>> check_migration(str, int, lambda text: len(text) or None)
    Traceback (most recent call last):
        ...
    AssertionError: migrate('') is None, which is no int: expected int, got NoneType None. Rows \
with such values cannot be read
    """
    __tracebackhide__ = True
    of_old, of_new = value_codec(old), value_codec(new)

    def converted(given: list[Any]) -> _Broken | None:
        (value,) = given
        try:
            one, other = (migrate(copied) for copied in _copies(value, value))
        except Exception as error:  # noqa: BLE001 - of the user's function
            what = f"migrate({shown(value)}) raises {shown_error(error)}"
            return _Broken(what, "Rows with such values cannot be read")
        if not of_new.accepts(one):
            what = f"migrate({shown(value)}) is {shown(one)}, which is no {of_new.schema.brief}"
            reason = of_new.reason(one)
            return _Broken(f"{what}: {reason}", "Rows with such values cannot be read")
        if of_new.encode(one) != of_new.encode(other):
            what = (
                f"migrate({shown(value)}) is {shown(one)}, and {shown(other)} when it is called "
                "again"
            )
            return _Broken(what, "A row has another value each time it is read")
        return None

    stored = strategy_of(old if values is None else values).filter(of_old.accepts)
    _check("migrate", [converted], stored, (1, 1), depth)


class _Combined:
    """Laws of the values that a reducer combines."""

    def __init__(self, reducer: Reduce, values: SearchStrategy[Any] | Any, equal: Equal) -> None:
        self._combine, self._equal = reducer.combine, equal
        self._codec = None if isinstance(values, SearchStrategy) else value_codec(values)

    def are_of_the_type(self, given: list[Any]) -> _Broken | None:
        a, b = given[:2]
        result = self._combine(*_copies(a, b))
        if self._codec is None or self._codec.accepts(result):
            return None
        return _Broken(
            f"reduce({shown(a)}, {shown(b)}) is {shown(result)}, which is no "
            f"{self._codec.schema.brief}: {self._codec.reason(result)}",
            "A record like this stops the job",
        )

    def leave_what_is_added(self, given: list[Any]) -> _Broken | None:
        a, b = given[:2]
        current, added = _copies(a, b)
        self._combine(current, added)
        if added == b:
            return None
        return _Broken(
            f"the reducer changes the value that is added: {shown(b)} is {shown(added)} after "
            f"reduce({shown(a)}, {shown(b)})",
            "The record that it is a part of changes, too",
        )

    def are_the_same_in_parts(self, given: list[Any]) -> _Broken | None:
        a, b, c = given[:3]
        left = self._combine(self._combine(*_copies(a, b)), copy.deepcopy(c))
        right = self._combine(copy.deepcopy(a), self._combine(*_copies(b, c)))
        if self._equal(left, right):
            return None
        return _Broken(
            f"the reducer is not associative: reduce(reduce({shown(a)}, {shown(b)}), {shown(c)}) "
            f"is {shown(left)}, and reduce({shown(a)}, reduce({shown(b)}, {shown(c)})) is "
            f"{shown(right)}",
            "A value depends on how records are combined",
        )

    def are_the_same_in_any_order(self, given: list[Any]) -> _Broken | None:
        a, b = given[:2]
        one, other = self._combine(*_copies(a, b)), self._combine(*_copies(b, a))
        if self._equal(one, other):
            return None
        return _Broken(
            f"the reducer is not commutative: reduce({shown(a)}, {shown(b)}) is {shown(one)}, and "
            f"reduce({shown(b)}, {shown(a)}) is {shown(other)}",
            "A value depends on the order in which records arrive",
        )


class _Accumulators:
    """Laws of an aggregate."""

    def __init__(self, aggregate: Aggregate[Any, Any, Any], equal: Equal) -> None:
        self._aggregate = aggregate
        self._equal = equal

    def _added(self, values: Iterable[Any]) -> Any:
        return reduce(self._aggregate.add, copy.deepcopy(list(values)), self._aggregate.create())

    def _result(self, accumulator: Any) -> Any:
        return self._aggregate.result(accumulator)

    def are_apart(self, values: list[Any]) -> _Broken | None:
        before = copy.deepcopy(self._aggregate.create())
        self._added(values)
        after = self._aggregate.create()
        if after == before:
            return None
        return _Broken(
            f"create() returned {shown(before)}, and {shown(after)} after the values "
            f"{shown(values)} were added to another accumulator",
            "The values of one key are in the result of another: create a new object each time",
        )

    def keep_what_is_added(self, values: list[Any]) -> _Broken | None:
        given, accumulator = copy.deepcopy(values), self._aggregate.create()
        for value in given:
            accumulator = self._aggregate.add(accumulator, value)
        if given == values:
            return None
        return _Broken(
            f"add() changes what is added: {shown(values)} to {shown(given)}",
            "The record that it is a part of changes, too",
        )

    def can_be_read_twice(self, values: list[Any]) -> _Broken | None:
        accumulator = self._added(values)
        first = copy.deepcopy(self._result(accumulator))
        second = self._result(accumulator)
        if self._equal(first, second):
            return None
        return _Broken(
            f"result() changes the accumulator: of the values {shown(values)} it returns "
            f"{shown(first)}, and then {shown(second)}",
            "A state that is read twice has two values",
        )

    def can_be_merged(self, values: list[Any]) -> _Broken | None:
        assert self._aggregate.merge is not None
        for place in range(len(values) + 1):
            first, second = values[:place], values[place:]
            merged = self._aggregate.merge(self._added(first), self._added(second))
            one, other = self._result(merged), self._result(self._added(values))
            if not self._equal(one, other):
                return _Broken(
                    f"merge counts otherwise than add: of the values {shown(first)}, "
                    f"{shown(second)} together it makes {shown(one)}, and add makes {shown(other)}",
                    "A window that two sessions were merged into has a wrong result",
                )
        return None


def _check(
    name: str,
    laws: Iterable[Law],
    values: SearchStrategy[Any] | Any,
    size: tuple[int, int],
    depth: Depth | None,
) -> None:
    """Raise an AssertionError for the first law that is broken for some values.

    Parameters:
        name: the name of the functions, for the message if one raises an error.
        size: the minimum and maximum number of values.
    """
    __tracebackhide__ = True
    laws, effort = list(laws), Effort(depth)

    def broken_by(law: Law, given: list[Any]) -> _Broken | None:
        try:
            return law(given)
        except Exception as error:  # noqa: BLE001 - of the user's function
            what = (
                f"{name} raises {type_name(error)} with the values {shown(given)}: "
                f"{shown_text(error)}"
            )
            return _Broken(what, "A record like this stops the job", error)

    least, most = size
    pools = st.lists(strategy_of(values), min_size=1, max_size=_VALUES)
    sizes = range(least, most + 1)
    lists = partial(_lists, sizes=sizes, negated=_can_be_negated(values))
    few = _LISTS // len(sizes)

    def fails(laws: list[Law], pool: list[Any]) -> bool:
        return any(broken_by(law, given) for given in lists(pool, few) for law in laws)

    failed = counterexample(pools, partial(fails, laws), effort, is_shrunk=False)
    if failed is None:
        return
    for law in laws:  # the first one that is broken is shown
        pool = counterexample(pools, partial(fails, [law]), effort)
        if pool is not None:
            broken = next(filter(None, (broken_by(law, each) for each in lists(*pool, None))), None)
            assert broken is not None, (
                f"{shown(pool[0])} failed, and then did not: it depends on chance"
            )
            raise AssertionError(f"{broken.what}. {broken.means}") from broken.error
    raise AssertionError(
        f"{name} broke a law with some of the values {shown(failed[0])}, and did not when it was "
        "called again: it keeps something between calls, or depends on chance"
    )


def _lists(
    pool: list[Any], most: int | None, *, sizes: range, negated: bool
) -> Iterator[list[Any]]:
    """Yield lists of some values, short ones first, also with equal and with negative values.

    Parameters:
        most: of each size, evenly spread; None for all.
    """
    some = [*pool, *([_negative(pool[-1])] if negated else [])]
    for size in sizes:
        every = 1 if most is None else -(-(len(some) ** size) // most)
        every += every > 1 and every % 2 == 0  # so that the last value is not the same each time
        for given in islice(product(some, repeat=size), 0, None, every):
            yield copy.deepcopy(list(given))


def _negative(value: Any) -> Any:
    """Return a value with its numbers negated."""
    if isinstance(value, _NUMBERS) and not isinstance(value, bool):
        return -value
    if hasattr(value, "_fields"):
        return type(value)(*map(_negative, value))
    return value


def _can_be_negated(values: Any) -> bool:
    """Return whether negative values are of the same type: it is a number type without limits."""
    if values in _NUMBERS:
        return True
    hints = getattr(values, "__annotations__", None)
    if not hasattr(values, "_fields") or hints is None:
        return False
    return not any("Annotated" in str(hint) for hint in hints.values())


def _copies(*values: Any) -> list[Any]:
    return copy.deepcopy(list(values))
