"""Panes: intervals of event time in which all records belong to the same windows.

A pane of tumbling or sliding windows begins where a window begins or ends. If the size is a
multiple of the slide, these are the same instants. Otherwise there are two panes from one beginning
to the next.

A pane of calendar windows also begins where the zone's clock changes.

A pane of sessions has the records of a key that follow each other within the gap.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statekit.records.arrow_sort import comparable_parts, order_by, sort_keys
from statekit.timestamp import MIN_MICROS

LATE = -1
"""The pane of all late records."""

_ALONE = 2**60  # panes from here on have records of one event time

# Spark finds the period of a time in a table with the periods at the starts of intervals of two to
# this power of microseconds: 13 days.
_TABLE_BITS = 40


class Panes(Protocol):
    """The panes of a kind of windows."""

    @property
    def event_time(self) -> str:
        """The field with the event time."""
        ...

    def of(
        self, keys: Sequence[pa.ChunkedArray], times: pa.ChunkedArray, late_us: int
    ) -> pa.ChunkedArray:
        """Return the pane of each record, a number; `LATE` for late records.

        Parameters:
            keys: the columns of the key.
            times: the event times, in microseconds.
            late_us: the watermark that makes a record late, as for `watermark.is_late`.
        """
        ...

    def sql(self, time: str) -> str | None:
        """Return the pane of a record that is not late, in Spark's SQL. None if it depends on other
        records.

        Parameters:
            time: the column with the event times, in microseconds.
        """
        ...


@dataclass(frozen=True)
class SlidingPanes:
    """The panes of tumbling and sliding windows. They are numbers, and equal for all keys.

    Parameters:
        event_time: the field with the event time.
        size_us: how long a window lasts.
        every_us: from the start of one window to the start of the next.
        origin_us: where some window starts.

    >>> panes = SlidingPanes("at", size_us=14, every_us=10, origin_us=0)
    >>> late, *others = panes.of([], pa.chunked_array([[-1, 0, 3, 4, 9, 10]]), -1).to_pylist()
    >>> late, [pane - others[0] for pane in others]
    (-1, [0, 0, 1, 1, 2])
    """

    event_time: str
    size_us: int
    every_us: int
    origin_us: int

    @property
    def first_us(self) -> int:
        """The start of a window before the year 1. Panes are counted from it, because Arrow and
        Spark round towards zero.
        """
        return MIN_MICROS - (MIN_MICROS - self.origin_us) % self.every_us

    def of(
        self, keys: Sequence[pa.ChunkedArray], times: pa.ChunkedArray, late_us: int
    ) -> pa.ChunkedArray:
        """Return the pane of each record, as `Panes.of`."""
        since = pc.subtract(times, self.first_us)
        pane = pc.divide(since, self.every_us)
        if remainder := self.size_us % self.every_us:
            into = pc.subtract(since, pc.multiply(pane, self.every_us))
            has_ended = pc.greater_equal(into, remainder).cast(pa.int64())
            pane = pc.add(pc.multiply(pane, 2), has_ended)
        return pc.if_else(pc.less_equal(times, late_us), LATE, pane)

    def sql(self, time: str) -> str:
        """Return the pane of a record, as `Panes.sql`."""
        since = f"({time} - {self.first_us}L)"
        pane = f"{since} div {self.every_us}L"
        if remainder := self.size_us % self.every_us:
            into = f"{since} % {self.every_us}L"
            pane = f"2L * ({pane}) + if({into} >= {remainder}L, 1L, 0L)"
        return pane


@dataclass(frozen=True)
class CalendarPanes:
    """The panes of calendar windows. They are numbers, and equal for all keys.

    In a period, panes have one size. Periods begin where windows change their size: where a month
    begins, or where the clock of a zone changes. A time outside of all periods is a pane of its
    own.

    Parameters:
        event_time: the field with the event time.
        since_us: where the periods begin, in order.
        origins_us: for each period, where the pane with the number 0 would begin.
        end_us: where the last period ends.
        size_us: how long a pane lasts.

    >>> panes = CalendarPanes("at", since_us=(0, 13), origins_us=(0, -7), end_us=30, size_us=10)
    >>> *inside, outside = panes.of([], pa.chunked_array([[0, 9, 10, 13, 23, 30]]), -1).to_pylist()
    >>> inside, outside >= 2**60
    ([0, 0, 1, 2, 3], True)
    """

    event_time: str
    since_us: tuple[int, ...]
    origins_us: tuple[int, ...]
    end_us: int
    size_us: int

    @classmethod
    def of_periods(
        cls, event_time: str, since: Sequence[int], starts: Sequence[int], end_us: int, size_us: int
    ) -> CalendarPanes:
        """Return the panes of periods.

        Parameters:
            starts: for each period, where some window would begin that is not after the period.
        """
        origins, count = [], 0
        for start, until in zip(starts, [*since[1:], end_us], strict=True):
            origins.append(start - count * size_us)
            count += (until - 1 - start) // size_us + 1
        return cls(event_time, tuple(since), tuple(origins), end_us, size_us)

    def of(
        self, keys: Sequence[pa.ChunkedArray], times: pa.ChunkedArray, late_us: int
    ) -> pa.ChunkedArray:
        """Return the pane of each record, as `Panes.of`."""
        if not len(times):
            return times
        first_us, last_us = pc.min_max(times).as_py().values()
        first = max(bisect_right(self.since_us, first_us) - 1, 0)
        last = max(bisect_right(self.since_us, last_us) - 1, 0)
        origin = self.origins_us[first]  # of all times in most batches
        if first < last:
            later = np.searchsorted(self.since_us[first + 1 : last + 1], times, side="right")
            origin = pa.array(np.array(self.origins_us[first : last + 1], np.int64)[later])
        pane = pc.divide(pc.subtract(times, origin), self.size_us)
        if first_us < self.since_us[0] or last_us >= self.end_us:
            is_inside = pc.and_(
                pc.greater_equal(times, self.since_us[0]), pc.less(times, self.end_us)
            )
            pane = pc.if_else(is_inside, pane, pc.add(times, _ALONE - MIN_MICROS))
        return pc.if_else(pc.less_equal(times, late_us), LATE, pane)

    def sql(self, time: str) -> str:
        """Return the pane of a record, as `Panes.sql`.

        A table has the period at the start of each interval of some days. The period of a time is
        that one, or the next ones if they have begun. Spark makes arrays of the tables once.
        """
        first_us = self.since_us[0]
        begins = np.arange(first_us, self.end_us, 1 << _TABLE_BITS)
        periods = np.searchsorted(self.since_us, begins, side="right") - 1
        last = len(self.since_us) - 1
        steps = max(after - before for before, after in pairwise([*periods.tolist(), last]))
        place = (
            f"get({_array(periods, 'int')}, int(shiftright({time} - {first_us}L, {_TABLE_BITS})))"
        )
        since = _array(self.since_us, "bigint")
        following = (
            f" + if({time} >= get({since}, {place} + {n}), 1, 0)" for n in range(1, steps + 1)
        )
        origin = f"get({_array(self.origins_us, 'bigint')}, {place}{''.join(following)})"
        return (
            f"if({time} >= {first_us}L and {time} < {self.end_us}L, "
            f"({time} - {origin}) div {self.size_us}L, {time} + {_ALONE - MIN_MICROS}L)"
        )


@dataclass(frozen=True)
class InstantPanes:
    """A pane for each event time: its records are of one instant.

    Parameters:
        event_time: the field with the event time.
    """

    event_time: str

    def of(
        self, keys: Sequence[pa.ChunkedArray], times: pa.ChunkedArray, late_us: int
    ) -> pa.ChunkedArray:
        """Return the pane of each record, as `Panes.of`."""
        return pc.if_else(pc.less_equal(times, late_us), LATE, pc.subtract(times, MIN_MICROS))

    def sql(self, time: str) -> str:
        """Return the pane of a record, as `Panes.sql`."""
        return f"{time} - ({MIN_MICROS}L)"


@dataclass(frozen=True)
class OnePane:
    """One pane for all records that are not late.

    Parameters:
        event_time: the field with the event time.
    """

    event_time: str

    def of(
        self, keys: Sequence[pa.ChunkedArray], times: pa.ChunkedArray, late_us: int
    ) -> pa.ChunkedArray:
        """Return the pane of each record, as `Panes.of`."""
        return pc.if_else(pc.less_equal(times, late_us), LATE, 0)

    def sql(self, time: str) -> str:
        """Return the pane of a record, as `Panes.sql`."""
        return "0L"


def _array(numbers: Sequence[int] | npt.NDArray[np.int64], kind: str) -> str:
    """Return an array in Spark's SQL. One text is parsed much faster than many numbers."""
    return f"cast(split('{','.join(map(str, numbers))}', ',') as array<{kind}>)"


@dataclass(frozen=True)
class SessionPanes:
    """Panes of a key: runs of records whose event times differ by less than a gap. Late records
    fill no gap.

    The number of a pane is its first event time. Panes of other batches may touch it: the session
    merges them.

    Parameters:
        event_time: the field with the event time.
        gap_us: how long a key is silent between two sessions.

    >>> panes = SessionPanes("at", gap_us=10)
    >>> keys, times = pa.chunked_array([["a", "b", "a", "a"]]), pa.chunked_array([[19, 12, 10, 29]])
    >>> [pane + MIN_MICROS for pane in panes.of([keys], times, late_us=-1).to_pylist()]
    [10, 12, 10, 29]
    """

    event_time: str
    gap_us: int

    def of(
        self, keys: Sequence[pa.ChunkedArray], times: pa.ChunkedArray, late_us: int
    ) -> pa.ChunkedArray:
        """Return the pane of each record, as `Panes.of`."""
        if not len(times):
            return times
        is_late, time = pc.less_equal(times, late_us), times.combine_chunks()
        parts = (part for column in keys for part in comparable_parts(column))
        sorted_by = [key for part in parts for key in sort_keys(part)]
        sorted_by += [is_late.combine_chunks().cast(pa.int8()), time]
        order = order_by(sorted_by)
        *others, time = (column.take(order) for column in sorted_by)
        gaps = pc.subtract(time.slice(1), time.slice(0, len(time) - 1))
        begins = pc.greater_equal(gaps, self.gap_us)
        for column in others:
            is_other = pc.not_equal(column.slice(1), column.slice(0, len(column) - 1))
            begins = pc.or_(begins, is_other)
        begins = pa.concat_arrays([pa.array([True]), begins])
        number = pc.subtract(pc.cumulative_sum(begins.cast(pa.int64())), 1)
        in_input_order = pc.sort_indices(order)
        firsts = time.filter(begins).take(number).take(in_input_order)
        return pc.if_else(is_late, LATE, pc.subtract(firsts, MIN_MICROS))

    def sql(self, time: str) -> None:
        """Return None, as `Panes.sql`: the pane depends on other records of the key."""
        return
