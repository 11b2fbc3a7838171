"""Grids of calendar windows: the instants at which they begin, in the local time of a zone.

Boundaries are computed for an interval at a time, and kept, so that a search finds the window of a
record. All numbers are microseconds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from statekit.job.windows.zone_clock import (
    DAY_US,
    Micros,
    Offsets,
    first_shown,
    offsets_between,
    shown_again,
    zone_named,
)
from statekit.records.panes import CalendarPanes
from statekit.timestamp import MAX_MICROS, MIN_MICROS

WEEK_US = 7 * DAY_US
_MONDAY_US = -3 * DAY_US  # of the week of 1970-01-01

# An interval has about so many boundaries, and is at most eight years long, or one window.
_BOUNDARIES = 2_048
_INTERVAL_MAX_US = 8 * 366 * DAY_US
_INTERVALS_MAX = 256  # that are kept

# Local times differ from UTC by less than a day. Intervals are computed with a margin of two.
_MARGIN_US = 2 * DAY_US

# Records of the years from 1970 up to 2100 are combined by window. Others are combined if their
# event times are equal.
_COMBINED_US = (0, 4_102_444_800_000_000)


@dataclass(frozen=True)
class CalendarGrid:
    """The boundaries of calendar windows. One ends where the next one begins.

    Parameters:
        zone: the name of a time zone.
        months: the length of a window in months; 0 if it is `size_us`.
        size_us: the length of a window on the clock: part of a day, or whole days.
        offset_us: windows begin so long after the month, week, day, or part of the day.

    >>> days = CalendarGrid("Europe/Berlin", size_us=DAY_US)
    >>> start, end = days.bounds(1_774_738_800_000_000)  # 2026-03-29, when summer time begins
    >>> (end - start) // 3_600_000_000
    23
    """

    zone: str
    months: int = 0
    size_us: int = 0
    offset_us: int = 0

    @property
    def typical_us(self) -> int:
        """The length of a window without clock changes; about that of months."""
        return self.size_us or 30 * DAY_US * self.months

    @property
    def longest_us(self) -> int:
        """At least the length of the longest window. A clock is never set by more than a day."""
        return self.size_us + 31 * DAY_US * self.months + DAY_US

    def bounds(self, at_us: int) -> tuple[int, int]:
        """Return the start and the end of the window that contains an instant.

        The first window begins with the first instant, and the last one ends with the last one.
        """
        boundaries = self._interval(at_us // self._interval_us).as_list
        place = bisect_right(boundaries, at_us)
        return max(boundaries[place - 1], MIN_MICROS), min(boundaries[place], MAX_MICROS)

    def bounds_of(self, times: Micros) -> tuple[Micros, Micros]:
        """Return the starts and the ends of the windows that contain instants, as `bounds`."""
        numbers = times // self._interval_us
        starts, ends = np.empty_like(times), np.empty_like(times)
        for number in np.unique(numbers).tolist():
            is_here, boundaries = numbers == number, self._interval(number).boundaries
            place = np.searchsorted(boundaries, times[is_here], side="right")
            starts[is_here], ends[is_here] = boundaries[place - 1], boundaries[place]
        return np.maximum(starts, MIN_MICROS), np.minimum(ends, MAX_MICROS)

    def boundaries(self, first_us: int, last_us: int) -> Micros:
        """Return the boundaries from the last one that is not after an instant to the first one
        that is after another. There may be a few more.
        """
        local = self._local(first_us - _MARGIN_US, last_us + _MARGIN_US)
        clock = self._clock(int(local[0]) - _MARGIN_US, int(local[-1]) + _MARGIN_US)
        begins = first_shown(clock, local)
        if self._repeats:
            begins = np.concatenate([begins, shown_again(clock, local)])
        return np.unique(begins)

    def panes(self, event_time: str) -> CalendarPanes:
        """Return the panes of windows. A period of them is a window of months, or the time between
        two changes of the clock.

        Parameters:
            event_time: the field with the event time.
        """
        first_us, end_us = _COMBINED_US
        if self.months:
            begins = self.boundaries(first_us, end_us)
            since = begins[begins < end_us].tolist()
            size_us = int(np.diff(begins).max())
            return CalendarPanes.of_periods(event_time, since, since, end_us, size_us)
        clock = self._clock(first_us, end_us)
        into = (clock.since + clock.offsets - self._origin_us) % self.size_us
        since, starts = clock.since.tolist(), (clock.since - into).tolist()
        return CalendarPanes.of_periods(event_time, since, starts, end_us, self.size_us)

    def _clock(self, first_us: int, last_us: int) -> Offsets:
        return offsets_between(zone_named(self.zone), first_us, last_us)

    @property
    def _origin_us(self) -> int:
        """The local time at which a window begins that has a size."""
        return self.offset_us + (0 if self.size_us % WEEK_US else _MONDAY_US)

    @property
    def _repeats(self) -> bool:
        """True if windows begin each time the clock shows their start; False if only the first
        time: a day does not begin twice.
        """
        return 0 < self.size_us < DAY_US

    @property
    def _interval_us(self) -> int:
        return min(_BOUNDARIES * self.typical_us, max(_INTERVAL_MAX_US, self.typical_us))

    def _interval(self, number: int) -> _Interval:
        return _interval(self, number)

    def _local(self, first_us: int, last_us: int) -> Micros:
        """Return the local times of boundaries, from one before a local time to one after
        another.
        """
        ends = np.array([first_us, last_us], np.int64)
        if self.months:
            ends = (ends - self.offset_us).astype("M8[us]").astype("M8[M]").astype(np.int64)
            first, last = (ends // self.months).tolist()
            months = np.arange(first, last + 2, dtype=np.int64) * self.months
            return months.astype("M8[M]").astype("M8[us]").astype(np.int64) + self.offset_us
        first, last = ((ends - self._origin_us) // self.size_us).tolist()
        return np.arange(first, last + 2, dtype=np.int64) * self.size_us + self._origin_us


@dataclass(frozen=True)
class _Interval:
    """The boundaries of an interval, with the last one before it and the first one after it."""

    boundaries: Micros

    @cached_property
    def as_list(self) -> Sequence[int]:
        found: list[int] = self.boundaries.tolist()
        return found


@lru_cache(maxsize=_INTERVALS_MAX)
def _interval(grid: CalendarGrid, number: int) -> _Interval:
    """Return an interval of a grid by its number."""
    first_us = number * grid._interval_us
    return _Interval(grid.boundaries(first_us, first_us + grid._interval_us))
