"""Layouts: storage of a key in a store as one value, a sorted map, or a value with its past.

A layout declares the states of the operator, as parameters of its process function. `read`, `write`
and `remove` apply to the value of a request's key.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, NamedTuple, Protocol

from statekit.kv.annotations import named_class, optional
from statekit.state.map_state import MapState
from statekit.state.options import TTL
from statekit.state.single_row_states import ValueState

Respond = Callable[[Any, Any], tuple[Any, ...]]
"""Handles a request with the states of its key, and returns what the store emits."""


_FIRST = dt.datetime.min.replace(tzinfo=dt.UTC)


class KnownValue(NamedTuple):
    """A value with the interval in which it was there.

    Parameters:
        value: the value; None if it was absent.
        since: None if it was there before the history began.
        until: None for the present value.
    """

    value: Any
    since: Any
    until: dt.datetime | None


class Layout(Protocol):
    """Access of a store to the states of a key."""

    def function(self, respond: Respond) -> Callable[..., Any]:
        """Return the process function. Its parameters are a request and the annotated states."""

    def read(self, request: Any, states: Any) -> Any:
        """Return the value of a request's key; None if it is absent."""

    def exists(self, request: Any, states: Any) -> bool:
        """Return whether there is a value. It does not restart a TTL."""

    def write(self, request: Any, states: Any, value: Any) -> None:
        """Set the value of a request's key."""

    def remove(self, request: Any, states: Any) -> None:
        """Remove the value of a request's key."""


class OneValue:
    """One value per key.

    Parameters:
        value: its type.
        ttl: lifetime of a value; None for no limit.
    """

    def __init__(self, value: Any, ttl: TTL | None) -> None:
        self._state = _kept(ValueState[value], ttl)

    def function(self, respond: Respond) -> Callable[..., Any]:
        def handled(request: Any, value: Any) -> tuple[Any, ...]:
            return respond(request, value)

        handled.__annotations__["value"] = self._state
        return handled

    def read(self, request: Any, states: Any) -> Any:
        return states.get()

    def exists(self, request: Any, states: Any) -> bool:
        found: bool = states.exists()
        return found

    def write(self, request: Any, states: Any, value: Any) -> None:
        states.update(value)

    def remove(self, request: Any, states: Any) -> None:
        states.clear()

    def expire(self, request: Any, states: Any, lifetime: dt.timedelta | None) -> bool:
        """Set when a value expires, and return whether there is one. None keeps it."""
        is_there: bool = states.expire_in(lifetime)
        return is_there


class SortedValues:
    """A map for each partition of the keys, by the ordered part of the key.

    Parameters:
        sort, value: the types of the ordered part and of the values.
        ttl: lifetime of a value; None for no limit.
    """

    def __init__(self, sort: Any, value: Any, ttl: TTL | None) -> None:
        self._state = _kept(MapState[sort, value], ttl)

    def function(self, respond: Respond) -> Callable[..., Any]:
        def handled(request: Any, values: Any) -> tuple[Any, ...]:
            return respond(request, values)

        handled.__annotations__["values"] = self._state
        return handled

    def read(self, request: Any, states: Any) -> Any:
        return states.get(request.sort)

    def exists(self, request: Any, states: Any) -> bool:
        return request.sort in states

    def write(self, request: Any, states: Any, value: Any) -> None:
        states[request.sort] = value

    def remove(self, request: Any, states: Any) -> None:
        states.pop(request.sort, None)

    def expire(self, request: Any, states: Any, lifetime: dt.timedelta | None) -> bool:
        """Set when a value expires, and return whether there is one. None keeps it."""
        is_there: bool = states.expire_in(request.sort, lifetime)
        return is_there

    def remove_range(self, request: Any, states: Any, selected: Mapping[str, Any]) -> int:
        """Remove the entries of a range, and return their number.

        Parameters:
            selected: the arguments of `MapState.scan` that select the range.
        """
        removed: int = states.remove_range(**selected)
        return removed

    def trim(self, request: Any, states: Any, keep: int) -> int:
        """Remove all entries but the last ones, and return the number of removed ones."""
        removed: int = states.trim(keep)
        return removed


class ValueWithPast:
    """One value per key, and the values that were replaced within the history.

    A former value is stored under the time at which it was replaced, with the time at which it was
    set. So the value at a time is the first one that was replaced later, or the present one. If
    that value was set after the time, the one before has expired, or was replaced before the store
    had a history. A former value expires when its replacement is older than the history.

    A value without the time at which it was set is older than the history: it existed when the
    history began. A key without a value had no value since then.

    Parameters:
        value: the type of the values.
        history: lifetime of a replaced value, more than 0.
    """

    def __init__(self, value: Any, history: dt.timedelta) -> None:
        ttl = TTL(history, clock="event")
        self.history = history
        parts = {"since": optional(dt.datetime), "value": optional(value)}
        self._former = former = named_class("Former", parts)
        self._states = {
            "value": ValueState[value],
            "since": ValueState[dt.datetime],
            "former": _kept(MapState[dt.datetime, former], ttl),  # type: ignore[valid-type]
        }

    def function(self, respond: Respond) -> Callable[..., Any]:
        def handled(request: Any, value: Any, since: Any, former: Any) -> tuple[Any, ...]:
            return respond(request, (value, since, former))

        handled.__annotations__ |= self._states
        return handled

    def read(self, request: Any, states: Any) -> Any:
        return states[0].get()

    def exists(self, request: Any, states: Any) -> bool:
        found: bool = states[0].exists()
        return found

    def read_at(self, request: Any, states: Any) -> tuple[bool, Any]:
        """Return whether the value at `as_of` is known, and the value; None if it was absent."""
        found = next(self._since(request.as_of, states))
        is_known = self._is_known(found, request.as_of, request, states)
        return (True, found.value) if is_known else (False, None)

    def versions(self, request: Any, states: Any) -> tuple[bool, list[KnownValue]]:
        """Return whether all values between `start` and `end` are known, and the known ones, the
        oldest first.
        """
        start, end = getattr(request, "start", None), getattr(request, "end", None)
        oldest = max(request.at, _FIRST + self.history) - self.history
        begin = oldest if start is None else max(start, oldest)
        found: list[KnownValue] = []
        for version in self._since(begin, states):
            if found and end is not None and version.since is not None and version.since >= end:
                break
            found.append(version)
        is_known = start is None or start >= oldest
        is_known = is_known and self._is_known(found[0], begin, request, states)
        return is_known, [
            each
            for each in found
            if each.value is not None and (None in (end, each.since) or each.since < end)
        ]

    def _since(self, time: dt.datetime, states: Any) -> Iterator[KnownValue]:
        """Yield the value at a time, and those after it, also absent ones."""
        value, since, former = states
        for replaced_at, replaced in former.scan(time, closed="none"):
            yield KnownValue(replaced.value, replaced.since, replaced_at)
        yield KnownValue(value.get(), since.get(), None)

    def _is_known(self, found: KnownValue, time: dt.datetime, request: Any, states: Any) -> bool:
        """Return whether the value that was found for a time was that of the time."""
        if found.until is None and time == request.at:
            return True
        if found.since is not None:
            return bool(found.since <= time)
        complete_since = states[2].complete_since
        if complete_since is None:
            return found.value is None  # it was never there
        is_complete: bool = time >= complete_since
        return is_complete

    def write(self, request: Any, states: Any, value: Any) -> None:
        self._keep(request, states)
        states[0].update(value)
        states[1].update(request.at)

    def remove(self, request: Any, states: Any) -> None:
        self._keep(request, states)
        states[0].clear()
        states[1].clear()

    def _keep(self, request: Any, states: Any) -> None:
        """Store the present value as a former one, unless one was replaced at the same time."""
        value, since, former = states
        if request.at not in former:
            former[request.at] = self._former(since.get(), value.get())


def _kept(state: Any, ttl: TTL | None) -> Any:
    return state if ttl is None else Annotated[state, ttl]
