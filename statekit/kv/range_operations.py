"""Range operations: the effect and the results of requests for a range of a sorted store.

A range is read in order, and no entry outside of it is touched.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, takewhile
from typing import Any

from statekit.errors import StateTypeError
from statekit.kv.layouts import SortedValues
from statekit.kv.operations import Results
from statekit.kv.requests import RequestPart
from statekit.number_faults import int_fault
from statekit.shown import shown
from statekit.state.closed_bounds import ClosedBounds

_MOST = sys.maxsize
"""The largest number of entries that is counted to."""


@dataclass(frozen=True)
class SelectedRange:
    """The range that a request selects, from the parts that it has.

    Parameters:
        closed: the bounds that are in the range.
        parts: the parts of a request for the bounds and for the prefix.
    """

    closed: ClosedBounds
    parts: tuple[RequestPart, ...]

    def of(self, request: Any) -> dict[str, Any]:
        """Return the arguments of `MapState.scan` that select the range of a request."""
        selected = {argument: getattr(request, name) for argument, name in self._arguments}
        if self._of_prefix:
            parts = (getattr(request, name) for name in self._of_prefix)
            selected["prefix"] = tuple(takewhile(lambda part: part is not None, parts)) or None
        selected["closed"] = self.closed
        return selected

    @cached_property
    def _arguments(self) -> list[tuple[str, str]]:
        """The arguments of `MapState.scan`, and the parts of a request that have them."""
        names = [part.name for part in self.parts]
        arguments = (("lo", "start"), ("hi", "end"), ("prefix", "prefix"))
        return [(argument, name) for argument, name in arguments if name in names]

    @cached_property
    def _of_prefix(self) -> list[str]:
        """The parts of a request that are parts of a prefix."""
        return [part.name for part in self.parts if part.name.startswith("prefix_")]


@dataclass(frozen=True)
class EntryCount:
    """A number of entries: a constant, or a part of each request.

    Parameters:
        where: the operation, for messages.
        name: of the argument, and of the part.
        constant: the number; None for that of the request, or without a limit.
        least: the least number.
    """

    where: str
    name: str
    constant: int | None = None
    least: int = 0

    def __post_init__(self) -> None:
        if self.constant is not None:
            self._check(self.constant)

    def of(self, request: Any) -> int | None:
        """Return the number for a request; None for no limit."""
        if self.constant is not None:
            return min(self.constant, _MOST)
        given: int | None = getattr(request, self.name, None)
        if given is not None:
            self._check(given, f" for the request {shown(request, 300)}")
        return given

    def _check(self, given: int, of_request: str = "") -> None:
        use = f"give a number of entries, at least {self.least}"
        if fault := int_fault(given, use, least=self.least):
            is_lost = of_request and ". Nothing of this epoch is committed"
            message = f"{self.where}({self.name}={shown(given)}){of_request}{fault}{is_lost}"
            raise StateTypeError(message)


@dataclass(frozen=True)
class Scan:
    """A declared scan.

    Parameters:
        entry: the class of entries.
        selected: its range.
        reverse: from the greatest ordered part to the smallest.
        limit, offset: the number of entries, and of those that are left out before them.
        continues: whether a request has the entry to continue after.
    """

    entry: Any
    selected: SelectedRange
    reverse: bool
    limit: EntryCount
    offset: EntryCount
    continues: bool = False

    def results(self, request: Any, states: Any) -> tuple[Any, ...]:
        """Return the entries; if the scan continues, also where the next one continues."""
        first, most = self.offset.of(request) or 0, self.limit.of(request)
        if not self.continues:
            end = None if most is None else min(first + most, _MOST)
            return (list(islice(self._entries(request, states), first, end)),)
        one_more = None if most is None else min(first + most + 1, _MOST)
        found = list(islice(self._entries(request, states, after=request.after), first, one_more))
        has_more = most is not None and len(found) > most
        entries = found[:most]
        return entries, entries[-1].sort if entries and has_more else None

    def _entries(self, request: Any, states: Any, **after: Any) -> Iterator[Any]:
        return self._in_range(states, self.selected.of(request) | after)

    def _in_range(self, states: Any, selected: Mapping[str, Any]) -> Iterator[Any]:
        entry = self.entry
        found = states.scan(reverse=self.reverse, **selected)
        return (entry(sort=sort, value=value) for sort, value in found)

    def of_ranges(self, request: Any, states: Any) -> tuple[list[list[Any]]]:
        """Return the entries of each range of a request."""
        most, closed = self.limit.of(request), self.selected.closed
        ranges: Iterable[tuple[Any, Any]] = request.ranges
        return (
            [
                list(islice(self._in_range(states, {"lo": lo, "hi": hi, "closed": closed}), most))
                for lo, hi in ranges
            ],
        )


def scan(_layout: SortedValues, of: Scan) -> Results:
    """Read the entries of the range of a request, in order."""
    return of.results


def multi_scan(_layout: SortedValues, of: Scan) -> Results:
    """Read the entries of several ranges."""
    return of.of_ranges


def count_range(_layout: SortedValues, selected: SelectedRange) -> Results:
    """Count the entries of a range. No value is decoded."""
    return lambda request, states: (states.count(**selected.of(request)),)


def outermost(_layout: SortedValues, selected: SelectedRange, *, reverse: bool) -> Results:
    """Read the first or the last entry of a range. No other entry is read."""

    def results(request: Any, states: Any) -> tuple[Any, Any]:
        found = states.scan(reverse=reverse, **selected.of(request))
        sort, value = next(found, (None, None))
        return sort, value

    return results


def remove_range(layout: SortedValues, selected: SelectedRange) -> Results:
    """Remove the entries of a range."""
    return lambda request, states: (layout.remove_range(request, states, selected.of(request)),)


def trim(layout: SortedValues, keep: EntryCount) -> Results:
    """Remove all entries but the last ones."""
    return lambda request, states: (layout.trim(request, states, keep.of(request) or 0),)
