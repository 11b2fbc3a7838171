"""`StoreModel`: the operations of a key-value store over plain Python."""

from __future__ import annotations

import copy
import datetime as dt
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from statekit.functions.process import Process
from statekit.kv.range_operations import Scan
from statekit.kv.store_operator import StoredOperations
from statekit.testing.process_model import KeyModel

_RESULTS: Mapping[str, tuple[str, ...]] = {
    "put": (),
    "remove": ("value",),
    "get": ("value", "status"),
    "get_with": ("value", "status"),
    "multi_get": ("value", "status"),
    "versions": ("versions", "status"),
    "increment": ("value",),
    "append": ("value",),
    "reduce": ("value",),
    "update": ("before", "value"),
    "put_if_absent": ("won", "value"),
    "compare_and_set": ("won", "value"),
    "exists": ("exists",),
    "expire": ("exists",),
    "persist": ("exists",),
    "scan": ("entries", "next"),
    "multi_scan": ("entries",),
    "count": ("count",),
    "first": ("sort", "value"),
    "last": ("sort", "value"),
    "remove_range": ("removed",),
    "trim": ("removed",),
}
"""The names of the results of each operation, in order."""


class StoreModel(KeyModel):
    """A key of a key-value store: a value, or sorted values, and the values of the past.

    A `ProcessModel` of the store's operator calls it with each request. It knows which requests are
    late, in which order they are handled, and when values expire.

    Parameters:
        process: the operator of the store.
        key: the key.
    """

    def __init__(self, process: Process[Any, Any, Any], key: Any) -> None:
        super().__init__(process, key)
        self._declared: StoredOperations = process.traits.made_of
        self._cells: Any = self.states["values" if "values" in self.states else "value"]
        self._past: list[tuple[dt.datetime, Any]] = []
        self.states = {name: of for name, of in self.states.items() if name in ("value", "values")}
        self.function = self._answer, ()

    def _answer(self, request: Any) -> list[Any]:
        kind, arguments, cls = self._declared.of[type(request)]
        self._changes: list[Any] = []
        results = self._results(kind, arguments, request)
        found = request._asdict() | dict(zip(_RESULTS[kind], results, strict=False))
        answer = cls(**{name: found[name] for name in typing.get_type_hints(cls)})
        return [answer, *self._changes]

    def _changed(self, request: Any, before: Any, value: Any, **given: Any) -> None:
        """Note a change of a value, if the store emits changes."""
        cls = self._declared.change
        if cls is not None and not (before is None and value is None):
            found = request._asdict() | given | {"before": before, "value": copy.deepcopy(value)}
            self._changes.append(cls(**{name: found[name] for name in typing.get_type_hints(cls)}))

    def _results(self, kind: str, declared: Mapping[str, Any], request: Any) -> tuple[Any, ...]:
        """Handle a request, and return its results.

        Parameters:
            declared: the options with which the operation was declared.
        """
        match kind:
            case "put":
                self._set(request, request.value)
                lifetime = getattr(request, "ttl", declared.get("constant"))
                if lifetime is not None:
                    self._expire_in(request, lifetime)
                return ()
            case "expire":
                lifetime = getattr(request, "ttl", declared["constant"])
                lifetime = declared["default"] if lifetime is None else lifetime
                return (self._expire_in(request, lifetime),)
            case "persist":
                return (self._expire_in(request, None),)
            case "scan" | "multi_scan" | "count" | "first" | "last" | "remove_range" | "trim":
                return self._of_range(kind, declared, request)
            case "exists":
                return (self._get(request) is not None,)
            case "multi_get":
                is_past = hasattr(request, "as_of")
                if request.position < 0:
                    return None, "absent"
                return self._got_as_of(request) if is_past else (self._get(request),)
            case "versions":
                return self._versions(declared["version"], request)
            case "get" | "get_with" if hasattr(request, "as_of"):
                return self._got_as_of(request)
            case "get" | "get_with":
                return (self._get(request),)
        held = self._get(request)
        match kind:
            case "remove":
                self._set(request, None)
                return (held,)
            case "update":
                new = declared["changed"](copy.deepcopy(held), request.record)
                self._set(request, new)
                return held, new
            case "increment" | "append" | "reduce":
                added = getattr(request, "by" if kind == "increment" else "added", None)
                added = added if declared["constant"] is None else declared["constant"]
                first = added if declared["first"] is None else declared["first"](added)
                new = first if held is None else declared["combine"](copy.deepcopy(held), added)
                self._set(request, new)
                return (new,)
            case "put_if_absent":
                wins = held is None
            case _:
                wins = _are_equal(held, declared["expected"](request.record))
        if not wins:
            return False, held
        new = declared["new"](request.record)
        self._set(request, new)
        return True, new

    def _get(self, request: Any) -> Any:
        """Return the value that a request names; None if it is absent."""
        return self._cells.get(request.sort) if hasattr(request, "sort") else self._cells.get()

    def _expire_in(self, request: Any, lifetime: dt.timedelta | None) -> bool:
        """Set when the value that a request names expires, and return whether there is one."""
        places = (request.sort,) if hasattr(request, "sort") else ()
        is_there: bool = self._cells.expire_in(*places, lifetime)
        return is_there

    def _set(self, request: Any, value: Any) -> None:
        """Set the value that a request names; None removes it."""
        self._changed(request, self._get(request), value)
        if hasattr(request, "sort"):
            if value is None:
                self._cells.pop(request.sort, None)
            else:
                self._cells[request.sort] = value
            return
        if self._declared.history is not None:
            self._past.append((request.at, copy.deepcopy(value)))
        if value is None:
            self._cells.clear()
        else:
            self._cells.update(value)

    def _got_as_of(self, request: Any) -> tuple[Any, str]:
        """Return the value of a time, and whether there was one."""
        assert self._declared.history is not None
        if request.as_of > request.at:
            return None, "not yet"
        if request.at - request.as_of > self._declared.history:
            return None, "too old"
        known = [value for since, value in self._past if since <= request.as_of]
        value = copy.deepcopy(known[-1]) if known else None
        return value, "absent" if value is None else "found"

    def _versions(self, version: Any, request: Any) -> tuple[list[Any], str]:
        """Return the values that were there in an interval."""
        history = self._declared.history
        assert history is not None
        start, end = getattr(request, "start", None), getattr(request, "end", None)
        is_too_old = start is not None and request.at - start > history
        last_of_time = dict(self._past)
        times = sorted(last_of_time)
        found = [
            version(copy.deepcopy(last_of_time[since]), since, until)
            for since, until in zip(times, [*times[1:], None], strict=True)
            if last_of_time[since] is not None
            and (until is None or request.at - until < history)
            and (until is None or start is None or until > start)
            and (end is None or since < end)
        ]
        return found, "too old" if is_too_old else "complete"

    def _of_range(self, kind: str, declared: Mapping[str, Any], request: Any) -> tuple[Any, ...]:
        """Handle a request for a range, and return its results."""
        match kind:
            case "trim":
                found = list(self._cells.scan(reverse=True))
                return (self._removed(request, found[declared["keep"].of(request) :]),)
            case "scan" | "multi_scan":
                return self._scanned(kind, declared["of"], request)
        found = list(self._cells.scan(**declared["selected"].of(request)))
        match kind:
            case "count":
                return (len(found),)
            case "remove_range":
                return (self._removed(request, found),)
        first, last = (found[0], found[-1]) if found else [(None, None)] * 2
        return first if kind == "first" else last

    def _removed(self, request: Any, entries: Sequence[tuple[Any, Any]]) -> int:
        for sort, value in entries:
            del self._cells[sort]
            self._changed(request, value, None, sort=sort)
        return len(entries)

    def _scanned(self, kind: str, of: Scan, request: Any) -> tuple[Any, ...]:
        """Return the entries that a scan reads."""
        most = of.limit.of(request)

        def entries(**selected: Any) -> list[Any]:
            found = self._cells.scan(reverse=of.reverse, **selected)
            return [of.entry(sort=sort, value=value) for sort, value in found]

        if kind == "multi_scan":
            closed = of.selected.closed
            found = [entries(lo=lo, hi=hi, closed=closed) for lo, hi in request.ranges]
            return ([own[:most] for own in found],)
        after = {"after": request.after} if of.continues else {}
        every = entries(**of.selected.of(request), **after)[of.offset.of(request) or 0 :]
        some = every[:most]
        return some, some[-1].sort if some and len(every) > len(some) else None


def _are_equal(held: Any, expected: Any) -> bool:
    """Return whether a value is the expected one. NaN equals itself."""
    return bool(held == expected) or repr(held) == repr(expected)
