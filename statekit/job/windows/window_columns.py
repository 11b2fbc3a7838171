"""Windows of many keys at once, on columns of rows.

`WindowColumns` fires the windows that are due, and deletes them with the elements that they
collected. Windows have no timers then: those that are due are found by a scan of the open windows
of each key group. There is one only if something is due, as a shard knows when its next window
ends.

If records are combined, it also adds the combined rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import compress, islice
from operator import not_
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from statekit.errors import CALL_FAILURES
from statekit.functions.context import Context, Due
from statekit.job.windows.elements import CollectedElements, Row, add_elements, pairs
from statekit.job.windows.open_windows import WindowRows
from statekit.job.windows.window_values import WindowValues
from statekit.keygroup import GROUP_BYTES, key_fields
from statekit.records.keyed_batch import KeyColumns
from statekit.records.preaggregate import Combiner
from statekit.records.result_type import Make, made_of_columns
from statekit.state.map_state import MapState
from statekit.timestamp import datetime_to_micros

ROWS_AT_ONCE = 8_192
"""Rows of windows in memory at once while windows fire."""

_WINDOWS_MAX = 10_000  # that are known


class AddedRows(NamedTuple):
    """The rows of windows to which values were added.

    Parameters:
        row_keys: of these rows, in any order.
        due_us: when the first of the windows is due, in microseconds.
    """

    row_keys: Sequence[bytes]
    due_us: int


class TimedWindow(NamedTuple):
    """The start and the end of a window, and the time at which it is due in microseconds."""

    start: Any
    end: Any
    due_us: int


class WindowColumns(ABC):
    """Adds to windows of many keys, and fires those that are due.

    Parameters:
        values: computes results from the values of rows and the elements.
        make: creates a result from the key fields, start, end and values of a window.
        rows: the open windows of a key.
        combiner: makes the rows that are added; None if records are added key by key.
    """

    def __init__(
        self, values: WindowValues, make: Make, rows: WindowRows, combiner: Combiner | None
    ) -> None:
        self._values = values
        self._make = make
        self._rows = rows
        self._combiner = combiner
        if combiner is not None:
            self._added, self._lists_at = values.added(combiner), values.lists_at(combiner)

    def fold(
        self, keys: KeyColumns, ctx: Context, windows: MapState[Any, Any], *collected: Any
    ) -> list[Any]:
        """Add combined rows to their windows. Return no results: a window fires later. The
        parameters are those of `add`.
        """
        self.add(keys, ctx, windows, collected)
        return []

    def add(
        self, keys: KeyColumns, ctx: Context, windows: MapState[Any, Any], collected: Sequence[Any]
    ) -> Sequence[bytes]:
        """Add combined rows to the windows of their times, and store their elements. Return the row
        keys of these windows.

        Parameters:
            keys: the keys, and the columns of their rows. By event time, the largest times are the
                last one.
            collected: the states of each `Collect`, two for each.
        """
        assert self._combiner is not None
        for place, states in zip(self._lists_at, pairs(collected), strict=True):
            add_elements(keys.prefixes, keys.columns[place], *states)
        if self._combiner.panes is None:  # the records of an epoch have one time
            now_us = datetime_to_micros(ctx.processing_time)
            times = np.full(len(keys.prefixes), now_us, np.int64)
        else:
            times = np.array(keys.columns[-1], np.int64)
        added = self._add_rows(keys, times, windows)
        if added is None:
            return ()
        ctx.timers.wakes_at(added.due_us, self._rows.deadlines.clock)
        return added.row_keys

    @abstractmethod
    def _add_rows(
        self, keys: KeyColumns, times: npt.NDArray[np.int64], windows: MapState[Any, Any]
    ) -> AddedRows | None:
        """Add combined rows to windows; None if no window contains them.

        Parameters:
            times: of each row, the largest.
        """

    @abstractmethod
    def _opened(
        self, rows: Sequence[Row], windows: MapState[Any, Any]
    ) -> tuple[list[TimedWindow], Sequence[Any]]:
        """Return the window of each row, and the argument of `_held` for these rows."""

    @abstractmethod
    def _held(self, stored: Sequence[Any], windows: MapState[Any, Any]) -> list[Any]:
        """Return the values of rows."""

    def fire(
        self, due: Due, _: Context, windows: MapState[Any, Any], *collected: Any
    ) -> Iterator[list[Any]]:
        """Yield the results of due windows, and delete these windows. The parameters are those of
        `close`.
        """
        return self.close(due, windows, collected)

    def close(
        self, due: Due, windows: MapState[Any, Any], collected: Sequence[Any], *more: Any
    ) -> Iterator[list[Any]]:
        """Yield the results of due windows, and delete these windows.

        Parameters:
            collected: the states of each `Collect`, two for each.
            more: the values of each result after those of aggregates.
        """
        soonest = None
        elements = [CollectedElements(due, self._rows.alone, *of) for of in pairs(collected)]
        rows = windows.rows_of_groups(due.groups)
        while some := list(islice(rows, ROWS_AT_ONCE)):
            of_rows, stored = self._opened(some, windows)
            is_due = [window.due_us <= due.now_us for window in of_rows]
            if not all(is_due):
                next_us = min(window.due_us for window in of_rows if window.due_us > due.now_us)
                soonest = next_us if soonest is None else min(soonest, next_us)
                for of in elements:
                    of.keep(compress(some, map(not_, is_due)))
                some = list(compress(some, is_due))
                of_rows = list(compress(of_rows, is_due))
                stored = list(compress(stored, is_due))
            if some:
                held = self._held(stored, windows)
                lists = [of.taken(some, [window[:2] for window in of_rows]) for of in elements]
                yield self._results(due, some, of_rows, held, lists, more)
                windows.remove_rows(some)
        for of in elements:
            of.end()
        if soonest is not None:
            due.wakes_at(soonest)

    def open_results(
        self,
        due: Due,
        row_keys: Sequence[bytes],
        windows: MapState[Any, Any],
        collected: Sequence[Any],
        *more: Any,
    ) -> list[Any]:
        """Return the results of open windows so far.

        Parameters:
            row_keys: of the windows, sorted. Those without a row are left out.
            collected, more: as for `close`.
        """
        stored = zip(row_keys, windows.read_rows(row_keys), strict=True)
        rows = [(row_key, row) for row_key, row in stored if row is not None]
        if not rows:
            return []
        of_rows, opened = self._opened(rows, windows)
        bounds = [window[:2] for window in of_rows]
        lists = [
            CollectedElements(due, self._rows.alone, *of).within(rows, bounds)
            for of in pairs(collected)
        ]
        return self._results(due, rows, of_rows, self._held(opened, windows), lists, more)

    def _results(
        self,
        due: Due,
        rows: Sequence[Row],
        of_rows: Sequence[TimedWindow],
        held: Sequence[Any],
        lists: Sequence[Sequence[Any]],
        more: Sequence[Any],
    ) -> list[Any]:
        """Return the results of windows.

        Parameters:
            rows: their rows.
            held: the values of these rows.
            lists: for each `Collect`, the elements of each window.
            more: as for `close`.
        """
        decode = due.key_codec.decode
        keys = [decode(row_key, GROUP_BYTES)[0] for row_key, _ in rows]
        fields = list(zip(*map(key_fields, keys), strict=True))
        starts = [window.start for window in of_rows]
        ends = [window.end for window in of_rows]
        try:
            values = self._values.results(held, lists)
            ends_with = [[value] * len(rows) for value in more]
            return made_of_columns(self._make, *fields, starts, ends, *values, *ends_with)
        except CALL_FAILURES:
            # Find the key that the error is about.
            for n, ((row_key, _), key) in enumerate(zip(rows, keys, strict=True)):
                due.at_key(row_key[: decode(row_key, GROUP_BYTES)[1]], key)
                one = self._values.results(held[n : n + 1], [of[n : n + 1] for of in lists])
                one_each = (value for (value,) in one)
                self._make(*key_fields(key), starts[n], ends[n], *one_each, *more)
            raise


class ColumnsByPlace(WindowColumns):
    """Windows of many keys whose row keys end with their place in time: the start, or the start and
    the end.
    """

    _place_bytes: ClassVar[int]

    def __init__(
        self, values: WindowValues, make: Make, rows: WindowRows, combiner: Combiner | None
    ) -> None:
        super().__init__(values, make, rows, combiner)
        self._windows: dict[bytes, TimedWindow] = {}

    @abstractmethod
    def _window(self, place: bytes) -> TimedWindow:
        """Return the window at a place."""

    def _window_at(self, place: bytes) -> TimedWindow:
        """Return the window at a place. Many rows share one window."""
        window = self._windows.get(place)
        if window is None:
            if len(self._windows) >= _WINDOWS_MAX:
                self._windows.clear()
            window = self._windows[place] = self._window(place)
        return window

    def _opened(
        self, rows: Sequence[Row], windows: MapState[Any, Any]
    ) -> tuple[list[TimedWindow], Sequence[Any]]:
        size = self._place_bytes
        of_rows = [self._window_at(row_key[-size:]) for row_key, _ in rows]
        return of_rows, [row for _, row in rows]

    def _held(self, stored: Sequence[Any], windows: MapState[Any, Any]) -> list[Any]:
        return windows.values_of_rows(stored)
