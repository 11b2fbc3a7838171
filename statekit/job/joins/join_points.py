"""Points: where the rows of a join are in time, and when they can get no more matches.

In a join by intervals the point of a row is its event time. In a join by windows it is the start of
a window, and a row that is in several windows has a point for each. In a join without an end all
rows have one point.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from statekit.job.joins.matching import Ints, Reach
from statekit.job.windows.calendar_grid import CalendarGrid
from statekit.timestamp import MAX_MICROS, MIN_MICROS

_STEPS = 8
_STEP_MIN_US = 1_000_000


class JoinPoints(Protocol):
    """The points of the rows of a join, in microseconds."""

    @property
    def ends(self) -> bool:
        """True if rows can get no more matches after some time."""

    def of(self, times: Ints) -> tuple[Ints, Ints]:
        """Return points of rows, and in parallel the place of each row in the times.

        Parameters:
            times: the event time of each row.
        """

    def over_at(self, stays_us: int, points: Ints) -> Ints:
        """Return the watermarks at which rows can get no more matches, in the years of datetimes.

        Parameters:
            stays_us: how long after its point a row of their side may get a match.
        """

    def last_over(self, stays_us: int, watermark_us: int) -> int:
        """Return the last point whose rows can get no more matches at a watermark."""

    @property
    def span_us(self) -> int:
        """How far the time of a row may lie before a watermark at which it is emitted."""

    @property
    def step_us(self) -> int:
        """The distance of the watermarks at which rows are removed that nobody waits for."""


@dataclass(frozen=True)
class EventTimes:
    """The points of a join by intervals: event times.

    Parameters:
        reach: where left rows match points of the right side.
    """

    reach: Reach
    ends: ClassVar[bool] = True

    @property
    def span_us(self) -> int:
        return max(*self.reach, 0)

    def of(self, times: Ints) -> tuple[Ints, Ints]:
        return times_as_points(times)

    def over_at(self, stays_us: int, points: Ints) -> Ints:
        return np.clip(points + stays_us, MIN_MICROS, MAX_MICROS)

    def last_over(self, stays_us: int, watermark_us: int) -> int:
        return MAX_MICROS if watermark_us >= MAX_MICROS else watermark_us - stays_us

    @property
    def step_us(self) -> int:
        return max(sum(self.reach) // _STEPS, _STEP_MIN_US)


class _Starts(ABC):
    """Starts of windows as points."""

    ends: ClassVar[bool] = True
    step_us: ClassVar[int] = 1

    @abstractmethod
    def ends_of(self, starts: Ints) -> Ints:
        """Return the ends of windows by their starts."""

    def over_at(self, stays_us: int, points: Ints) -> Ints:
        """Return the last instant of each window."""
        ends = self.ends_of(points)
        return np.where(ends >= MAX_MICROS, MAX_MICROS, ends - 1)


@dataclass(frozen=True)
class WindowStarts(_Starts):
    """The points of a join by windows of one size: starts of windows.

    Parameters:
        size, every, offset: of the windows, in microseconds.
    """

    size: int
    every: int
    offset: int

    @property
    def span_us(self) -> int:
        return self.size

    def of(self, times: Ints) -> tuple[Ints, Ints]:
        latest = self._floor(times)
        starts, places = [], []
        for number in range(math.ceil(self.size / self.every)):
            start = latest - number * self.every
            # Of the windows that would begin before the first instant, only the latest one exists.
            is_in = (start + self.size > times) & (start + self.every > MIN_MICROS)
            starts.append(np.maximum(start[is_in], MIN_MICROS))
            places.append(np.flatnonzero(is_in))
        place = np.concatenate(places)
        order = np.argsort(place, kind="stable")
        return np.concatenate(starts)[order], place[order]

    def last_over(self, stays_us: int, watermark_us: int) -> int:
        if watermark_us >= MAX_MICROS:
            return MAX_MICROS
        last = min(watermark_us + 1, MAX_MICROS - 1) - self.size
        cut_off = int(self._floor(np.array([MIN_MICROS]))[0])  # the first window
        return max(last, MIN_MICROS) if cut_off <= last else last

    def ends_of(self, starts: Ints) -> Ints:
        return np.minimum(self._floor(starts) + self.size, MAX_MICROS)

    def _floor(self, times: Ints) -> Ints:
        """Return the latest start of a window that is not after each time."""
        return times - (times - self.offset) % self.every


@dataclass(frozen=True)
class CalendarStarts(_Starts):
    """The points of a join by calendar windows: starts of windows.

    Parameters:
        grid: of the windows.
    """

    grid: CalendarGrid

    @property
    def span_us(self) -> int:
        return self.grid.longest_us

    def of(self, times: Ints) -> tuple[Ints, Ints]:
        return self.grid.bounds_of(times)[0], np.arange(len(times))

    def last_over(self, stays_us: int, watermark_us: int) -> int:
        if watermark_us >= MAX_MICROS:
            return MAX_MICROS
        if watermark_us < MIN_MICROS:
            return MIN_MICROS - 1
        return self.grid.bounds(watermark_us + 1)[0] - 1

    def ends_of(self, starts: Ints) -> Ints:
        return self.grid.bounds_of(starts)[1]


@dataclass(frozen=True)
class OnePoint:
    """The point of all rows of a join without an end."""

    ends: ClassVar[bool] = False
    step_us: ClassVar[int] = 1
    span_us: ClassVar[int] = 0

    def of(self, times: Ints) -> tuple[Ints, Ints]:
        return np.zeros(len(times), np.int64), np.arange(len(times))

    def over_at(self, stays_us: int, points: Ints) -> Ints:
        return np.full(len(points), MAX_MICROS)

    def last_over(self, stays_us: int, watermark_us: int) -> int:
        return MIN_MICROS - 1


def times_as_points(times: Ints) -> tuple[Ints, Ints]:
    """Return the time of each row as its point, and the place of each row."""
    return times, np.arange(len(times))
