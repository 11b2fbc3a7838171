"""Operations: the effect and the results of each kind of request to a store.

A request has the key, the time in a store with `event_time`, and its own parts. An answer repeats
these and adds the results. So each operation is a function from a request and the states of its key
to its results.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from operator import attrgetter
from typing import Any, Literal, Protocol

from statekit.codec.digest import digest
from statekit.kv.layouts import Layout, ValueWithPast
from statekit.kv.requests import ArgumentCheck, key_of_request

Results = Callable[[Any, Any], tuple[Any, ...]]
"""Handles a request with the states of its key, and returns its results."""

OfLayout = Callable[[Any], Results]
"""Returns the function of an operation on the values of a layout."""

Status = Literal["found", "absent", "too old", "not yet"]
"""Status of the value at a time. "too old" is a time before the history, or before the store had a
history; "not yet" is a time after that of the request.
"""


Completeness = Literal["complete", "too old"]
"""Status of the values of an interval. "too old" is one that begins before the history, or before
the store had a history.
"""


class Expiring(Layout, Protocol):
    """A layout whose values have a TTL."""

    def expire(self, request: Any, states: Any, lifetime: dt.timedelta | None) -> bool: ...


MUTATIONS = {
    *("put", "remove", "update", "put_if_absent", "compare_and_set"),
    *("increment", "append", "reduce", "remove_range", "trim"),
}
"""The kinds of operations that change values."""


def put(layout: Layout) -> Results:
    write = layout.write

    def results(request: Any, states: Any) -> tuple[()]:
        write(request, states, request.value)
        return ()

    return results


def put_with_ttl(layout: Expiring, constant: dt.timedelta | None) -> Results:
    """Set a value with a lifetime of its own.

    Parameters:
        constant: the lifetime; None for that of each request, which may be that of the store.
    """

    def results(request: Any, states: Any) -> tuple[()]:
        layout.write(request, states, request.value)
        lifetime = request.ttl if constant is None else constant
        if lifetime is not None:
            layout.expire(request, states, lifetime)
        return ()

    return results


def expire(layout: Expiring, constant: dt.timedelta | None, default: dt.timedelta) -> Results:
    """Set when a value expires.

    Parameters:
        constant: its lifetime; None for that of each request.
        default: that of the store, for a request without one.
    """

    def results(request: Any, states: Any) -> tuple[bool]:
        lifetime = request.ttl if constant is None else constant
        return (layout.expire(request, states, default if lifetime is None else lifetime),)

    return results


def persist(layout: Expiring) -> Results:
    """Keep a value."""
    return lambda request, states: (layout.expire(request, states, None),)


def remove(layout: Layout) -> Results:
    def results(request: Any, states: Any) -> tuple[Any]:
        removed = layout.read(request, states)
        if removed is not None:
            layout.remove(request, states)
        return (removed,)

    return results


def get(layout: Layout) -> Results:
    read = layout.read
    return lambda request, states: (read(request, states),)


def exists(layout: Layout) -> Results:
    return lambda request, states: (layout.exists(request, states),)


def get_as_of(layout: ValueWithPast) -> Results:
    def results(request: Any, states: Any) -> tuple[Any, Status]:
        if request.as_of > request.at:
            return None, "not yet"
        if request.at - request.as_of > layout.history:
            return None, "too old"
        is_known, value = layout.read_at(request, states)
        if not is_known:
            return None, "too old"
        return value, "absent" if value is None else "found"

    return results


def versions(layout: ValueWithPast, version: Any) -> Results:
    """Read the values of an interval.

    Parameters:
        version: their class.
    """

    def results(request: Any, states: Any) -> tuple[list[Any], Completeness]:
        is_complete, found = layout.versions(request, states)
        made = [version(value, since, until) for value, since, until in found]
        return made, "complete" if is_complete else "too old"

    return results


def get_one_of_many(layout: Layout) -> Results:
    """Get a value for `multi_get`. A request without keys has an arbitrary key, which it does not
    read.
    """
    return lambda request, states: (
        layout.read(request, states) if request.position >= 0 else None,
    )


def get_one_of_many_as_of(layout: ValueWithPast) -> Results:
    """Get a value of the past for `multi_get`, as `get_one_of_many`."""
    handle = get_as_of(layout)
    return lambda request, states: (
        handle(request, states) if request.position >= 0 else (None, "absent")
    )


def reduce(
    layout: Layout,
    combine: Callable[[Any, Any], Any],
    *,
    first: Callable[[Any], Any] | None = None,
    part: str = "added",
    constant: Any = None,
) -> Results:
    """Replace the value by its combination with an added one.

    Parameters:
        first: the value, if there was none; by default the added one.
        part: the part of a request that is added.
        constant: what each request adds, instead of a part.
    """
    read, write = layout.read, layout.write
    added_by: Callable[[Any], Any] = attrgetter(part)

    def results(request: Any, states: Any) -> tuple[Any]:
        added = added_by(request) if constant is None else constant
        before = read(request, states)
        if before is not None:
            value = combine(before, added)
        else:
            value = added if first is None else first(added)
        write(request, states, value)
        return (value,)

    return results


def one(added: Any) -> list[Any]:
    """Return a list of one element."""
    return [added]


def appended(elements: list[Any], added: Any) -> list[Any]:
    """Return a list with one more element."""
    return [*elements, added]


def update(layout: Layout, changed: Callable[[Any, Any], Any], check: ArgumentCheck) -> Results:
    """Replace the value by the result of a function of it and the record; None removes it.

    Parameters:
        check: checks the result of the function.
    """

    def results(request: Any, states: Any) -> tuple[Any, Any]:
        before = layout.read(request, states)
        after = changed(layout.read(request, states), request.record)  # it may change its own
        check(after, request.record, key_of_request(request))
        if after is not None:
            layout.write(request, states, after)
        elif before is not None:
            layout.remove(request, states)
        return before, after

    return results


def put_if_absent(layout: Layout, value_of: Callable[[Any], Any], check: ArgumentCheck) -> Results:
    """Set the value if it is absent.

    Parameters:
        check: checks the result of the function, also if the value is not set.
    """

    def results(request: Any, states: Any) -> tuple[bool, Any]:
        value = check(value_of(request.record), request.record, key_of_request(request))
        held = layout.read(request, states)
        if held is not None:
            return False, held
        layout.write(request, states, value)
        return True, value

    return results


def compare_and_set(
    layout: Layout,
    expected_of: Callable[[Any], Any],
    value_of: Callable[[Any], Any],
    of: Any,
    checks: tuple[ArgumentCheck, ArgumentCheck],
) -> Results:
    """Replace the value if it equals the expected one. NaN equals itself, and True is not 1.

    Parameters:
        of: the type of values, or None.
        checks: check the results of the two functions, also if the value is not replaced.
    """
    check_expected, check_value = checks

    def is_same(held: Any, expected: Any) -> bool:
        if held == expected and type(held) is type(expected) and type(held) in _PLAIN:
            return True
        expected = check_expected.stored(expected)
        if digest(held, of) == digest(expected, of):
            return True
        return bool(held == expected) and _bools(held) == _bools(expected)

    def results(request: Any, states: Any) -> tuple[bool, Any]:
        record, key = request.record, key_of_request(request)
        held = layout.read(request, states)
        expected = check_expected(expected_of(record), record, key)
        value = check_value(value_of(record), record, key)
        if not is_same(held, expected):
            return False, held
        if value is not None:
            layout.write(request, states, value)
        elif held is not None:
            layout.remove(request, states)
        return True, value

    return results


_PLAIN = (bool, int, str, bytes, type(None))
"""Types for which equal values are the same value."""


def _bools(value: Any) -> Any:
    """Return the shape of a value with True for each bool in it, since bools equal numbers."""
    if isinstance(value, dict):
        return {key: _bools(of) for key, of in value.items()}
    if isinstance(value, list | tuple):
        return [_bools(of) for of in value]
    return isinstance(value, bool)
