"""Elements of windows that collect: rows of their own, by event time and a number per key.

So an element is stored once for any number of windows, merging windows moves none, and no window is
one large row. The states of a `Collect` are a map with the elements, and the number of elements
that a key has had since it had no windows.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, repeat
from operator import add
from typing import Any

from statekit.backend.interface import prefix_end
from statekit.codec.vectorized import sortable_ints
from statekit.functions.context import Context, Due
from statekit.job.windows.instants import LAST
from statekit.keygroup import GROUP_BYTES
from statekit.state.base import row_sizes
from statekit.state.map_state import MapState
from statekit.state.single_row_states import ValueState

_MAP: Any = MapState  # as a value, to be subscripted with types that are known at run time

Row = tuple[bytes, bytes]
"""The key of a row, and the row."""

Alone = Callable[[dt.datetime, dt.datetime], tuple[dt.datetime, dt.datetime]]
"""A function from the start and end of a window to an interval within the window."""

Found = list[tuple[tuple[dt.datetime, int], Any]]
"""Pairs of event time and number, each with an element."""


def element_hints(element_types: Sequence[Any]) -> dict[str, Any]:
    """Return the annotations of the states of some `Collect`, two for each: the first has no number
    in its names.
    """
    hints: dict[str, Any] = {}
    for place, element in enumerate(element_types, start=1):
        suffix = "" if place == 1 else f"_{place}"
        hints[f"elements{suffix}"] = _MAP[tuple[dt.datetime, int], element]
        hints[f"number{suffix}"] = ValueState[int]
    return hints


def pairs(collected: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield the two states of each `Collect`."""
    return zip(collected[::2], collected[1::2], strict=True)


# --------------------------------------------------------------------------- many keys at a time


class CollectedElements:
    """The elements of firing windows.

    Parameters:
        due: the windows that are due.
        alone: returns the interval of a window whose records are in no window that fires later.
        elements: by time and number, for each key.
        number: how many elements a key has had since it had no windows.
    """

    def __init__(
        self, due: Due, alone: Alone, elements: MapState[Any, Any], number: ValueState[int]
    ) -> None:
        self._decode = due.key_codec.decode
        self._alone = alone
        self._elements = elements
        self._number = number
        self._fired: set[bytes] = set()  # prefixes of keys
        self._kept: set[bytes] = set()

    def taken(
        self, rows: Iterable[Row], bounds: Iterable[tuple[dt.datetime, dt.datetime]]
    ) -> list[list[Any]]:
        """Return the elements of windows in order of time and arrival. Elements that are in no
        other window are deleted.

        Parameters:
            bounds: start and end of the window of each row.
        """
        found, removed = [], []
        for (row_key, _), window in zip(rows, bounds, strict=True):
            prefix = self._prefix(row_key)
            self._fired.add(prefix)
            own = self._stored(prefix, window)
            found.append(self._elements.values_of_rows([row for _, row in own]))
            first, end = self._bounds(prefix, *self._alone(*window))
            removed += [row for row in own if first <= row[0] < end]
        self._elements.remove_rows(removed)
        return found

    def within(
        self, rows: Iterable[Row], bounds: Iterable[tuple[dt.datetime, dt.datetime]]
    ) -> list[list[Any]]:
        """Return the elements of windows, as `taken`, and delete none."""
        found = [
            self._stored(self._prefix(row_key), window)
            for (row_key, _), window in zip(rows, bounds, strict=True)
        ]
        return [self._elements.values_of_rows([row for _, row in own]) for own in found]

    def _stored(self, prefix: bytes, window: tuple[dt.datetime, dt.datetime]) -> list[Row]:
        """Return the elements of a window as rows."""
        return list(self._elements.stored_between(*self._bounds(prefix, *window)))

    def keep(self, rows: Iterable[Row]) -> None:
        """Note the keys of rows whose windows stay open."""
        self._kept.update(self._prefix(row_key) for row_key, _ in rows)

    def end(self) -> None:
        """Reset the element count of keys without open windows."""
        prefixes = sorted(self._fired - self._kept)
        rows = zip(prefixes, self._number.read_rows(prefixes), strict=True)
        self._number.remove_rows([(prefix, row) for prefix, row in rows if row is not None])

    def _prefix(self, row_key: bytes) -> bytes:
        return row_key[: self._decode(row_key, GROUP_BYTES)[1]]

    def _bounds(self, prefix: bytes, start: dt.datetime, end: dt.datetime) -> tuple[bytes, bytes]:
        """Return the first row key of the elements of an interval, and the row key after the
        last.
        """
        subkey = self._elements.subkey
        first = prefix + subkey((start, 0))
        return first, prefix_end(prefix) if end == LAST else prefix + subkey((end, 0))


def add_elements(
    prefixes: Sequence[bytes],
    lists: Sequence[Sequence[tuple[int, Any]]],
    elements: MapState[Any, Any],
    number: ValueState[int],
) -> None:
    """Store the elements of combined rows.

    Parameters:
        prefixes: of the key of each row. The rows of a key follow each other.
        lists: the elements of each row, each with its event time in microseconds.
        elements, number: as for `CollectedElements`.
    """
    added: dict[bytes, int] = {}
    for prefix, own in zip(prefixes, lists, strict=True):
        if own:
            added[prefix] = added.get(prefix, 0) + len(own)
    if not added:
        return
    of_keys, sizes = list(added), list(added.values())
    stored = number.read_rows(of_keys)
    before = [count or 0 for count in number.values_of_rows(stored)]
    ends = list(map(add, before, sizes))
    times_us, values = zip(*chain.from_iterable(lists), strict=True)
    at_times = map(add, chain.from_iterable(map(repeat, of_keys, sizes)), sortable_ints(times_us))
    numbers = sortable_ints(list(chain.from_iterable(map(range, before, ends))))
    elements.replace_rows(list(map(add, at_times, numbers)), list(values), [0] * len(values), ())
    number.replace_rows(of_keys, ends, row_sizes(of_keys, stored), ())


# ------------------------------------------------------------------------------------ row by row


class KeyElements:
    """The elements of the current key, of one `Collect`.

    Parameters:
        elements, number: its states.
    """

    def __init__(self, elements: MapState[Any, Any], number: ValueState[int]) -> None:
        self._elements = elements
        self._number = number

    def storing(
        self,
        records: Iterable[Any],
        ctx: Context,
        time_of: Callable[[Context], dt.datetime],
        element_of: Callable[[Any], Any],
    ) -> Iterator[Any]:
        """Yield records. The element of each, unless it is None, is stored at the record's time.

        Parameters:
            records: taken one by one, each while it is handled.
            time_of: returns the time of the current record.
        """
        before = count = self._number.get() or 0
        for record in records:
            element = element_of(record)
            if element is not None:
                self._elements[time_of(ctx), count] = element
                count += 1
            yield record
        if count > before:
            self._number.update(count)

    def between(self, start: dt.datetime, end: dt.datetime) -> Found:
        """Return the elements from `start` on and before `end`, in order of time and arrival."""
        return list(self._elements.scan((start, 0), None if end == LAST else (end, 0)))

    def forget(self, found: Found, start: dt.datetime, end: dt.datetime, *, is_last: bool) -> None:
        """Delete the elements from `start` on and before `end`.

        Parameters:
            found: the elements of this interval, and maybe others.
            is_last: whether the key has no more windows.
        """
        for place, _ in found:
            if start <= place[0] and (place[0] < end or end == LAST):
                del self._elements[place]
        if is_last:
            self._number.clear()
