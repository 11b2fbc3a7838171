"""Panes: intervals of event time in which all records belong to the same windows.

A pane of tumbling or sliding windows begins where a window begins or ends. If the size is a
multiple of the slide, these are the same instants. Otherwise there are two panes from one beginning
to the next.

A pane of sessions has the records of a key that follow each other within the gap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from statekit.records.arrow_sort import comparable_parts, order_by, sort_keys
from statekit.timestamp import MIN_MICROS

LATE = -1
"""The pane of all late records."""


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
