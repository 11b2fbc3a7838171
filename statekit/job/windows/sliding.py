"""Tumbling and sliding windows: windows of one size that start at equal distances.

The row of a window has the window's start, and its value. `SlidingColumns` reads, combines and
writes the rows of many keys in columns.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, compress, starmap, takewhile
from operator import add
from typing import Any

import numpy as np
import numpy.typing as npt

from statekit.codec.vectorized import sortable_ints
from statekit.declared_call import declarable
from statekit.errors import StateTypeError
from statekit.functions.context import Context
from statekit.job.windows.calendar_windows import CalendarWindow, calendar_windows, is_calendar
from statekit.job.windows.instants import FIRST, LAST, plus, window_duration
from statekit.job.windows.open_windows import (
    WINDOWS_AT_ONCE,
    Deadlines,
    OpenWindow,
    WindowRows,
    Windows,
)
from statekit.job.windows.window_columns import AddedRows, ColumnsByPlace, TimedWindow
from statekit.job.windows.window_kind import Window
from statekit.job.windows.window_values import WindowValues
from statekit.records.keyed_batch import KeyColumns
from statekit.records.panes import SlidingPanes
from statekit.records.preaggregate import Combiner
from statekit.records.result_type import Make
from statekit.shown import shown
from statekit.state.map_state import MapState
from statekit.state.options import Aggregate
from statekit.state.timers import Timer
from statekit.timestamp import (
    MAX_MICROS,
    MIN_MICROS,
    TIME_BYTES,
    micros_of_sortable,
    micros_to_datetime,
    timedelta_to_micros,
)

_ZERO = dt.timedelta(0)
_EPOCH = micros_to_datetime(0)
_NEW: Any = object()

_OPEN_MAX = 16
"""Sliding windows whose size is more than this many times `every` have timers. Without timers, a
scan for due windows reads all open windows of a key, so there must be few.
"""

WINDOWS_PER_RECORD_MAX = 10_000
"""The maximum number of windows per record. More of them would stall a job."""


@dataclass(frozen=True)
class Sliding(Window):
    """Windows of one size that start at equal distances. Created by `tumbling` and `sliding`."""

    size: dt.timedelta
    every: dt.timedelta
    offset: dt.timedelta = _ZERO

    def __str__(self) -> str:
        offset = f", offset {self.offset}" if self.offset else ""
        if self.size == self.every:
            return f"tumbling {self.size}{offset}"
        return f"sliding {self.size} every {self.every}{offset}"

    def panes(self, event_time: str) -> SlidingPanes:
        """Return the panes: intervals in which all records belong to the same windows.

        Parameters:
            event_time: the field that says when a record happened.
        """
        every_us = timedelta_to_micros(self.every)
        origin_us = timedelta_to_micros(self.offset % self.every)
        return SlidingPanes(event_time, timedelta_to_micros(self.size), every_us, origin_us)

    @property
    def overlaps(self) -> bool:
        return self.size > self.every

    @property
    def opens_few(self) -> bool:
        return self.size <= _OPEN_MAX * self.every

    @property
    def durations(self) -> Sequence[dt.timedelta]:
        return self.size, self.every

    @property
    def edges(self) -> Sequence[tuple[dt.timedelta, dt.timedelta]]:
        ends = self.offset + self.size
        return [(self.every, of % self.every) for of in (self.offset, ends)]

    def rows(self, functions: Aggregate[Any, Any, Any], deadlines: Deadlines) -> SlidingRows:
        return SlidingRows(self, functions, deadlines)

    def end_of(self, row: dt.datetime, stored: Any) -> dt.datetime:
        return row + self.size

    def columns(
        self, values: WindowValues, make: Make, deadlines: Deadlines, combiner: Combiner | None
    ) -> SlidingColumns:
        return SlidingColumns(values, make, self.rows(values.functions, deadlines), combiner)


@declarable("tumbling")
def tumbling(
    size: dt.timedelta | str, offset: dt.timedelta | str = _ZERO, *, zone: str | None = None
) -> Sliding | CalendarWindow:
    """Return windows of one size, one after the other, so that each record is in one.

    Parameters:
        size: a timedelta or a text such as "1 hour"; also "1 month" or "1 year".
        offset: windows start at 1970-01-01 00:00 UTC plus this; with a zone, or with months and
            years, so long after midnight.
        zone: the name of a time zone in whose local time windows start, such as "Europe/Berlin":
            at midnight, on Monday, or on the first day of a month or year. Without a zone, months
            are in UTC, and all others are multiples of their size since 1970-01-01 00:00 UTC.

    Raises:
        StateTypeError: a duration is not valid, the size is zero, windows of this size cannot
            follow the clock of a zone, or there is no such zone.

    >>> tumbling("1 day", offset="6 hours").offset
    datetime.timedelta(seconds=21600)
    >>> print(tumbling("1 month", zone="Europe/Berlin"))
    tumbling 1 month in Europe/Berlin
    """
    if zone is not None or is_calendar(size):
        return calendar_windows(size, offset, "UTC" if zone is None else zone)
    length = window_duration(size, "size")
    return Sliding(length, length, window_duration(offset, "offset", least=0))


@declarable("sliding")
def sliding(
    size: dt.timedelta | str,
    every: dt.timedelta | str,
    offset: dt.timedelta | str = _ZERO,
    *,
    zone: str | None = None,
) -> Sliding:
    """Return overlapping windows of one size: one starts every `every`.

    Parameters:
        size: a timedelta or a text such as "1 hour".
        every: from the start of one window to that of the next; not more than the size.
        offset: windows start at 1970-01-01 00:00 UTC plus this.
        zone: sliding windows have none. Only tumbling windows start in the local time of a zone.

    Raises:
        StateTypeError: a duration is not valid or zero, `every` is more than the size, a record
            would be in more than 10,000 windows, or there is a zone.

    >>> sliding("1 hour", every="15 minutes").every
    datetime.timedelta(seconds=900)
    """
    if zone is not None or is_calendar(size) or is_calendar(every):
        raise StateTypeError(
            f"sliding({shown(size)}, every={shown(every)}): sliding windows have fixed durations, "
            'and neither months, years nor zones: give days, such as "30 days", without zone=, or '
            'use tumbling("1 day", zone="Europe/Berlin") and combine its results'
        )
    window = Sliding(
        window_duration(size, "size"),
        window_duration(every, "every"),
        window_duration(offset, "offset", least=0),
    )
    if window.every > window.size:
        raise StateTypeError(
            f"every={shown(every)} is more than size={shown(size)}, and records between two "
            "windows would be "
            "in none: give at most the size"
        )
    if (windows := -(-window.size // window.every)) > WINDOWS_PER_RECORD_MAX:
        raise StateTypeError(
            f"sliding({shown(size)}, every={shown(every)}): each record would be in {windows:,} "
            f"windows, and {WINDOWS_PER_RECORD_MAX:,} is the limit: give a longer every="
        )
    return window


class SlidingRows(WindowRows):
    """Tumbling and sliding windows as rows.

    Attributes:
        window: their kind.
        deadlines: when they are due.
    """

    def __init__(
        self, window: Sliding, aggregate: Aggregate[Any, Any, Any], deadlines: Deadlines
    ) -> None:
        self.window, self.deadlines = window, deadlines
        self._size, self._every = window.size, window.every
        self._origin = _EPOCH + window.offset % window.every
        self._cut_off = self._into(FIRST) > _ZERO
        self._create, self._add = aggregate.create, aggregate.add

    def put(self, ctx: Context, windows: Windows, value: Any) -> list[OpenWindow]:
        """Add a value to the windows of the current record, and return these windows."""
        touched = []
        for start, end in self._bounds(self.deadlines.time_of(ctx)):
            held = self._opened(ctx, windows, start, end, self._create)
            windows[start] = accumulator = self._add(held, value)
            touched.append(OpenWindow(start, start, end, accumulator))
        return touched

    def put_all(self, ctx: Context, windows: Windows, values: Iterable[Any]) -> None:
        """Add a value for each record of a key. Each window is read and written once.

        Parameters:
            values: taken one by one, each while its record is handled.
        """
        accumulators: dict[dt.datetime, Any] = {}
        add, of_one = self._add, -(-self._size // self._every)
        at_once, is_tumbling = WINDOWS_AT_ONCE + 2 * of_one, of_one == 1
        start = end = LAST
        for value in values:
            at = self.deadlines.time_of(ctx)
            if is_tumbling and start <= at < end:  # as most records of a key that follow each other
                accumulators[start] = add(accumulators[start], value)
                continue
            if len(accumulators) > at_once:
                windows.update(accumulators)
                accumulators.clear()
            for start, end in self._bounds(at):
                if start not in accumulators:
                    accumulators[start] = self._opened(ctx, windows, start, end, self._create)
                accumulators[start] = add(accumulators[start], value)
        windows.update(accumulators)

    def ending(self, timer: Timer, ctx: Context, windows: Windows) -> Iterator[OpenWindow]:
        """Return the windows that a timer belongs to: one, or several at the first and the last
        instant.
        """
        passed = self.deadlines.passed(timer)
        start = None if passed is None else plus(passed, -self._size)
        if start is None or passed == LAST:
            rows = windows.scan(start)
        else:  # it is one window, and read as a single row it is cached when it is deleted
            accumulator = windows.get(start, _NEW)
            rows = iter(() if accumulator is _NEW else ((start, accumulator),))
        opened = starmap(self.open_window, rows)
        return takewhile(lambda w: self.deadlines.of(w.end, timer.name) == timer.at, opened)

    def open_window(self, row: dt.datetime, stored: Any) -> OpenWindow:
        return OpenWindow(row, row, plus(row, self._size - self._into(row)), stored)

    def alone(self, start: dt.datetime, _: dt.datetime) -> tuple[dt.datetime, dt.datetime]:
        """Return the interval of a window whose records are in no window that is deleted later."""
        return start, plus(start, self._every - self._into(start))

    def _bounds(self, at: dt.datetime) -> list[tuple[dt.datetime, dt.datetime]]:
        """Return start and end of the windows that contain a time, the earliest first."""
        into = self._into(at)
        bounds = []
        while into < self._size:
            end = plus(at, self._size - into)
            try:
                bounds.append((at - into, end))
            except OverflowError:
                # Of windows that would begin before the year 1, there is the latest, cut off.
                if self._cut_off:
                    bounds.append((FIRST, end))
                break
            into += self._every
        return bounds[::-1]

    def _into(self, at: dt.datetime) -> dt.timedelta:
        """Return the time between the latest start of a window and an instant."""
        return (at - self._origin) % self._every


class SlidingColumns(ColumnsByPlace):
    """Tumbling and sliding windows of many keys. Their row keys contain the starts."""

    _place_bytes = TIME_BYTES

    def __init__(
        self, values: WindowValues, make: Make, rows: SlidingRows, combiner: Combiner | None
    ) -> None:
        super().__init__(values, make, rows, combiner)
        window = rows.window
        self._size_us = timedelta_to_micros(window.size)
        self._every_us = timedelta_to_micros(window.every)
        self._origin_us = timedelta_to_micros(window.offset % window.every)

    def _window(self, place: bytes) -> TimedWindow:
        start_us = micros_of_sortable(place)
        end_us = start_us + self._size_us - (start_us - self._origin_us) % self._every_us
        end = LAST if end_us >= MAX_MICROS else micros_to_datetime(end_us)
        start = FIRST if start_us == MIN_MICROS else micros_to_datetime(start_us)
        return TimedWindow(start, end, self._rows.deadlines.due_us(end))

    def _add_rows(
        self, keys: KeyColumns, times: npt.NDArray[np.int64], windows: MapState[Any, Any]
    ) -> AddedRows | None:
        size_us, every_us = self._size_us, self._every_us
        latest = times - (times - self._origin_us) % every_us
        values = self._added(keys.columns)
        placed: list[tuple[list[bytes], Sequence[Any]]] = []
        soonest = MAX_MICROS
        for back in range(-(-size_us // every_us)):
            starts = latest - back * every_us
            # Of windows that would begin before the year 1, there is the latest, cut off.
            contains = (starts > times - size_us) & (starts > MIN_MICROS - every_us)
            if not contains.any():
                break
            starts = np.maximum(starts, MIN_MICROS)
            soonest = min(soonest, int(starts[contains].min()))
            row_keys = map(add, keys.prefixes, sortable_ints(starts))
            if contains.all():
                placed.append((list(row_keys), values))
            else:
                chosen = contains.tolist()
                placed.append((list(compress(row_keys, chosen)), list(compress(values, chosen))))
        if not placed:
            return None
        added = list(chain.from_iterable(row_keys for row_keys, _ in placed))
        values = list(chain.from_iterable(values for _, values in placed))
        windows.add_all(added, values, self._values.functions)
        return AddedRows(added, self._window_at(sortable_ints([soonest])[0]).due_us)
