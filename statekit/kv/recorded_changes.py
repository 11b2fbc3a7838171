"""Recorded changes: what operations change in a store, as records of a stream."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any


class RecordedLayout:
    """A layout that records each change of a value.

    Parameters:
        layout: of the store.
        change: the class of changes, with the parts of the key, `sort` in a sorted store, `at` in
            a store with event time, `before` and `value`.
        parts: the fields of a change that are those of a request.
    """

    def __init__(self, layout: Any, change: Any, parts: tuple[str, ...]) -> None:
        self._layout, self._change, self._parts = layout, change, parts
        self._changes: list[Any] = []

    def begin(self) -> None:
        """Forget the changes of a request that failed."""
        self._changes.clear()

    def taken(self) -> list[Any]:
        """Return the changes since `begin`, in order."""
        return list(self._changes)

    def read(self, request: Any, states: Any) -> Any:
        return self._layout.read(request, states)

    def write(self, request: Any, states: Any, value: Any) -> None:
        before = self._layout.read(request, states)
        self._layout.write(request, states, value)
        self._record(request, before, self._layout.read(request, states))

    def expire(self, request: Any, states: Any, lifetime: Any) -> bool:
        is_there: bool = self._layout.expire(request, states, lifetime)
        return is_there

    def remove(self, request: Any, states: Any) -> None:
        before = self._layout.read(request, states)
        self._layout.remove(request, states)
        self._record(request, before, None)

    def remove_range(self, request: Any, states: Any, selected: Mapping[str, Any]) -> int:
        return self._remove_all(request, states, list(states.scan(**selected)))

    def trim(self, request: Any, states: Any, keep: int) -> int:
        return self._remove_all(
            request, states, list(islice(states.scan(reverse=True), keep, None))
        )

    def _remove_all(self, request: Any, states: Any, entries: list[tuple[Any, Any]]) -> int:
        for sort, value in entries:
            states.pop(sort, None)
            self._record(request, value, None, sort=sort)
        return len(entries)

    def _record(self, request: Any, before: Any, value: Any, **given: Any) -> None:
        own = {part: getattr(request, part) for part in self._parts if part not in given}
        self._changes.append(self._change(**own, **given, before=before, value=value))
