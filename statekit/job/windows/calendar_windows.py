"""Calendar windows: tumbling windows of days, weeks, months or years in the local time of a zone.

The row key of a window has its start and its end, so that an open window keeps both if the time
zone database changes. `CalendarColumns` reads, combines and writes the rows of many keys in
columns.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import add
from typing import Any

import numpy as np
import numpy.typing as npt

from statekit.codec.vectorized import sortable_ints
from statekit.errors import StateTypeError
from statekit.functions.context import Context
from statekit.job.windows.calendar_grid import CalendarGrid
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
from statekit.job.windows.zone_clock import zone_named
from statekit.records.keyed_batch import KeyColumns
from statekit.records.panes import CalendarPanes
from statekit.records.preaggregate import Combiner
from statekit.records.result_type import Make
from statekit.shown import shown
from statekit.state.map_state import MapState
from statekit.state.options import Aggregate
from statekit.state.timers import Timer
from statekit.timestamp import (
    TIME_BYTES,
    datetime_to_micros,
    instant,
    micros_of_sortable,
    timedelta_to_micros,
)

_ZERO, _MICROSECOND = dt.timedelta(0), dt.timedelta(microseconds=1)
_DAY, _MINUTE = dt.timedelta(days=1), dt.timedelta(minutes=1)
_TUPLE: Any = tuple

_YEARS_MAX = 100
_MONTHS_OF = {"month": 1, "months": 1, "year": 12, "years": 12}
_CALENDAR = re.compile(r"\d\s*(?:month|year)s?\b", re.IGNORECASE)
_MONTHS = re.compile(r"\s*(?:\d{1,4}\s*(?:month|year)s?\s*)+", re.IGNORECASE)
_PART = re.compile(r"(\d+)\s*([a-z]+)", re.IGNORECASE)

# Histories of checks are near the beginning of this year.
_YEAR_OF_CHECKS = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)


def is_calendar(size: Any) -> bool:
    """Return whether a size is a text with months or years.

    >>> is_calendar("1 year 6 months"), is_calendar("30 days")
    (True, False)
    """
    return isinstance(size, str) and _CALENDAR.search(size) is not None


def calendar_windows(
    size: dt.timedelta | str, offset: dt.timedelta | str, zone: str
) -> CalendarWindow:
    """Return calendar windows. The parameters and errors are those of `tumbling`."""
    zone_named(zone)
    after = window_duration(offset, "offset", least=0)
    if is_calendar(size):
        return CalendarWindow(zone, _months_of(str(size)), _ZERO, after)
    length = window_duration(size, "size")
    divides_day = length >= _MINUTE and not _DAY % length
    if not divides_day and (length % _DAY or length > 365 * _YEARS_MAX * _DAY):
        raise StateTypeError(
            f"size={shown(size)}, zone={shown(zone)}: windows in the local time of a zone are "
            "whole days, weeks, months or years, at most 100 years, or a part of a day that "
            "divides it, at least a minute: give such a size, or omit zone= for windows in UTC"
        )
    return CalendarWindow(zone, 0, length, after % length)


def _months_of(size: str) -> int:
    """Return the number of months of a size."""
    if _MONTHS.fullmatch(size) is not None:
        parts = _PART.findall(size)
        months = sum(int(count) * _MONTHS_OF[unit.lower()] for count, unit in parts)
        if 0 < months <= 12 * _YEARS_MAX:
            return months
    raise StateTypeError(
        f"size={shown(size)}: give 1 month to {_YEARS_MAX} years in months and years only"
    )


@dataclass(frozen=True)
class CalendarWindow(Window):
    """Windows that begin at local times of a zone. Created by `tumbling`.

    Parameters:
        zone: the name of a time zone.
        months: the length in months; 0 if it is `size`.
        size: the length on the clock of the zone.
        offset: the time from midnight to the start of a window, on the clock.
    """

    zone: str
    months: int
    size: dt.timedelta
    offset: dt.timedelta

    def __str__(self) -> str:
        size = f"{self.months} month{'s' if self.months > 1 else ''}" if self.months else self.size
        offset = f", offset {self.offset}" if self.offset else ""
        return f"tumbling {size} in {self.zone}{offset}"

    @property
    def grid(self) -> CalendarGrid:
        """The boundaries of the windows."""
        sizes = (self.months, timedelta_to_micros(self.size))
        return CalendarGrid(self.zone, *sizes, timedelta_to_micros(self.offset))

    @property
    def opens_few(self) -> bool:
        return True

    @property
    def durations(self) -> Sequence[dt.timedelta]:
        return (dt.timedelta(microseconds=self.grid.typical_us),)

    @property
    def edges(self) -> Sequence[tuple[dt.timedelta, dt.timedelta]]:
        start, end = self.grid.bounds(datetime_to_micros(_YEAR_OF_CHECKS))
        return [(dt.timedelta(microseconds=end - start), dt.timedelta(microseconds=start))]

    def panes(self, event_time: str) -> CalendarPanes:
        """Return the panes: parts of windows between changes of the clock.

        Parameters:
            event_time: the field with the time of a record.
        """
        return _panes(self.grid, event_time)

    def rows(self, functions: Aggregate[Any, Any, Any], deadlines: Deadlines) -> CalendarRows:
        return CalendarRows(self, functions, deadlines)

    def end_of(self, row: Any, stored: Any) -> dt.datetime:
        end: dt.datetime = row[1]
        return end

    def columns(
        self, values: WindowValues, make: Make, deadlines: Deadlines, combiner: Combiner | None
    ) -> CalendarColumns:
        return CalendarColumns(values, make, self.rows(values.functions, deadlines), combiner)


@lru_cache(maxsize=64)
def _panes(grid: CalendarGrid, event_time: str) -> CalendarPanes:
    """Return the panes of a grid. A grid of 130 years takes some milliseconds."""
    return grid.panes(event_time)


class CalendarRows(WindowRows):
    """Calendar windows as rows.

    Attributes:
        grid: their boundaries.
    """

    row_type = _TUPLE[dt.datetime, dt.datetime]

    def __init__(
        self, window: CalendarWindow, aggregate: Aggregate[Any, Any, Any], deadlines: Deadlines
    ) -> None:
        self.grid, self.deadlines = window.grid, deadlines
        self._create, self._add = aggregate.create, aggregate.add

    def put(self, ctx: Context, windows: Windows, value: Any) -> list[OpenWindow]:
        """Add a value to the window of the current record, and return this window."""
        row = self._bounds(self.deadlines.time_of(ctx))
        held = self._opened(ctx, windows, row, row[1], self._create)
        windows[row] = accumulator = self._add(held, value)
        return [OpenWindow(row, row[0], row[1], accumulator)]

    def put_all(self, ctx: Context, windows: Windows, values: Iterable[Any]) -> None:
        """Add a value for each record of a key. Each window is read and written once.

        Parameters:
            values: taken one by one, each while its record is handled.
        """
        accumulators: dict[tuple[dt.datetime, dt.datetime], Any] = {}
        row = (LAST, LAST)
        for value in values:
            at = self.deadlines.time_of(ctx)
            if not row[0] <= at < row[1]:  # else as most records of a key that follow each other
                row = self._bounds(at)
            if row not in accumulators:
                if len(accumulators) > WINDOWS_AT_ONCE:
                    windows.update(accumulators)
                    accumulators.clear()
                accumulators[row] = self._opened(ctx, windows, row, row[1], self._create)
            accumulators[row] = self._add(accumulators[row], value)
        windows.update(accumulators)

    def ending(self, timer: Timer, ctx: Context, windows: Windows) -> Iterator[OpenWindow]:
        """Yield the windows that a timer belongs to: those with its end. There may be two if the
        time zone database has changed since one of them was opened.
        """
        passed = self.deadlines.passed(timer)
        since = FIRST if passed is None else self._start_before(self._start_before(passed))
        for row, accumulator in windows.scan((since, FIRST)):
            if passed is not None and passed < LAST and row[0] >= passed:
                return
            if self.deadlines.of(row[1], timer.name) == timer.at:
                yield self.open_window(row, accumulator)

    def open_window(self, row: tuple[dt.datetime, dt.datetime], stored: Any) -> OpenWindow:
        return OpenWindow(row, *row, stored)

    def _start_before(self, at: dt.datetime) -> dt.datetime:
        """Return the start of the window that contains the microsecond before an instant."""
        return self._bounds(plus(at, -_MICROSECOND))[0]

    def _bounds(self, at: dt.datetime) -> tuple[dt.datetime, dt.datetime]:
        start_us, end_us = self.grid.bounds(datetime_to_micros(at))
        return instant(start_us), instant(end_us)


class CalendarColumns(ColumnsByPlace):
    """Calendar windows of many keys. Their row keys contain the starts and the ends."""

    _rows: CalendarRows
    _place_bytes = 2 * TIME_BYTES

    def _window(self, place: bytes) -> TimedWindow:
        start, end = (instant(micros_of_sortable(place, at)) for at in (0, TIME_BYTES))
        return TimedWindow(start, end, self._rows.deadlines.due_us(end))

    def _add_rows(
        self, keys: KeyColumns, times: npt.NDArray[np.int64], windows: MapState[Any, Any]
    ) -> AddedRows:
        starts, ends = self._rows.grid.bounds_of(times)
        places = map(add, sortable_ints(starts), sortable_ints(ends))
        row_keys = list(map(add, keys.prefixes, places))
        windows.add_all(row_keys, self._added(keys.columns), self._values.functions)
        return AddedRows(row_keys, self._rows.deadlines.due_us(instant(int(ends.min()))))
