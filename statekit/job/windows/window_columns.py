"""Tumbling and sliding windows of many keys at a time: their rows are read, combined, fired and
written in columns.

Windows have no timers here. Those that are due are found by a scan of the open windows of each key
group, and there is one only if something is due: a shard knows when its next window ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, compress, islice
from operator import add
from typing import Any, NamedTuple

import numpy as np

from statekit.codec.vectorized import sortable_ints
from statekit.functions.context import Context
from statekit.functions.due import Due
from statekit.job.windows.definitions import FIRST, LAST, Deadlines, Sliding
from statekit.keygroup import GROUP_BYTES, key_fields
from statekit.records.keyed_batch import KeyColumns
from statekit.records.result_type import Make, made_of_columns
from statekit.state.map_state import MapState
from statekit.state.options import Aggregate
from statekit.timestamp import (
    MAX_MICROS,
    MIN_MICROS,
    datetime_to_micros,
    micros_of_sortable,
    micros_to_datetime,
    timedelta_to_micros,
)

OPEN_MAX = 16
"""Windows of more than so many intervals are not kept in columns. A scan for windows that are due
reads all open windows of a key."""

_ROWS_AT_ONCE = 8_192
_START_BYTES = 8
_WINDOWS_MAX = 10_000  # that are known


class _Window(NamedTuple):
    """When a window starts, ends, and is due in microseconds."""

    start: Any
    end: Any
    due_us: int


class WindowColumns:
    """Adds combined rows of many keys to windows, and fires them.

    Parameters:
        window: the kind of windows.
        aggregate: adds a value of a row to an accumulator, and computes the result.
        value_at: the place of that value in a row. The largest event time is the last one.
        make: creates a result from the key fields, start, end and value of a window.
        deadlines: when windows are due.
    """

    def __init__(
        self,
        window: Sliding,
        aggregate: Aggregate[Any, Any, Any],
        value_at: int,
        make: Make,
        deadlines: Deadlines,
    ) -> None:
        self._size = timedelta_to_micros(window.size)
        self._every = timedelta_to_micros(window.every)
        self._origin = timedelta_to_micros(window.offset % window.every)
        self._aggregate = aggregate
        self._value_at = value_at
        self._make = make
        self._deadlines = deadlines
        self._windows: dict[bytes, _Window] = {}

    def fold(self, keys: KeyColumns, ctx: Context, windows: MapState[Any, Any]) -> list[Any]:
        """Add rows to the windows of their largest event times. They have no results yet."""
        times = np.array(keys.columns[-1], np.int64)
        into = (times - self._origin) % self._every
        latest = times - into
        placed: list[tuple[list[bytes], Sequence[Any]]] = []
        soonest = MAX_MICROS
        values = keys.columns[self._value_at]
        for back in range(-(-self._size // self._every)):
            starts = latest - back * self._every
            contains = starts > times - self._size
            # Of windows that would begin before the year 1, there is the latest, cut off.
            contains &= starts > MIN_MICROS - self._every
            starts = np.maximum(starts, MIN_MICROS)
            if not contains.any():
                break
            soonest = min(soonest, int(starts[contains].min()))
            row_keys = map(add, keys.prefixes, sortable_ints(starts))
            if contains.all():
                placed.append((list(row_keys), values))
            else:
                chosen = contains.tolist()
                placed.append((list(compress(row_keys, chosen)), list(compress(values, chosen))))
        windows._add_all(
            list(chain.from_iterable(row_keys for row_keys, _ in placed)),
            list(chain.from_iterable(values for _, values in placed)),
            self._aggregate,
        )
        if placed:
            ctx.timers._wakes_at(self._window_of(sortable_ints([soonest])[0]).due_us)
        return []

    def fire(self, due: Due, _: Context, windows: MapState[Any, Any]) -> Iterator[list[Any]]:
        """Yield the results of the windows that are due, and delete these."""
        soonest = None
        rows = windows._rows_of_groups(due.groups)
        while some := list(islice(rows, _ROWS_AT_ONCE)):
            of_rows = [self._window_of(row_key[-_START_BYTES:]) for row_key, _ in some]
            is_due = [window.due_us <= due.now_us for window in of_rows]
            if not all(is_due):
                next_us = min(window.due_us for window in of_rows if window.due_us > due.now_us)
                soonest = next_us if soonest is None else min(soonest, next_us)
                some = list(compress(some, is_due))
                of_rows = list(compress(of_rows, is_due))
            if some:
                yield self._results(due, some, of_rows, windows)
                windows._remove_all(some)
        if soonest is not None:
            due.wakes_at(soonest)

    def _results(
        self,
        due: Due,
        rows: Sequence[tuple[bytes, bytes]],
        of_rows: Sequence[_Window],
        windows: MapState[Any, Any],
    ) -> list[Any]:
        """Return the results of windows that are stored in rows."""
        decode = due.key_codec.decode
        keys = [decode(row_key, GROUP_BYTES)[0] for row_key, _ in rows]
        fields = zip(*map(key_fields, keys), strict=True)
        starts = [window.start for window in of_rows]
        ends = [window.end for window in of_rows]
        values = map(self._aggregate.result, windows._values([row for _, row in rows]))
        return made_of_columns(self._make, *fields, starts, ends, list(values))

    def _window_of(self, stored_start: bytes) -> _Window:
        """Return the window of a row. Many rows are of one."""
        window = self._windows.get(stored_start)
        if window is None:
            if len(self._windows) >= _WINDOWS_MAX:
                self._windows.clear()
            window = self._windows[stored_start] = self._window(stored_start)
        return window

    def _window(self, stored_start: bytes) -> _Window:
        start_us = micros_of_sortable(stored_start)
        end_us = start_us + self._size - (start_us - self._origin) % self._every
        end = LAST if end_us >= MAX_MICROS else micros_to_datetime(end_us)
        start = FIRST if start_us == MIN_MICROS else micros_to_datetime(start_us)
        return _Window(start, end, datetime_to_micros(self._deadlines.of(end, "close")))
