"""Panes: stretches of event time all of whose records are in the same windows.

What lives here: which pane an instant is in, for columns of instants. What does not: when windows
begin and end (`windows`), and what is made of the records of a pane (`combining`).

Of windows of one size that begin at equal distances, an instant is in others than the instant
before if a window begins there, or one ends. Where the size is a multiple of the distance, these
are the same instants; else there are two panes from each beginning to the next.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from statekit.timestamp import MIN_MICROS

__all__ = ["LATE", "Panes"]

LATE = -1
"""The pane of all that is late."""


@dataclass(frozen=True)
class Panes:
    """The panes of windows, as numbers.

    Parameters:
        event_time: the field that says when a record happened.
        size_us: how long a window lasts.
        every_us: from the start of one window to that of the next.
        origin_us: where one starts.

    >>> panes = Panes("at", size_us=14, every_us=10, origin_us=0)
    >>> found = panes.of(pa.chunked_array([[-1, 0, 3, 4, 9, 10]]), late_us=-1).to_pylist()
    >>> found[0], [pane - found[1] for pane in found[1:]]
    (-1, [0, 0, 1, 1, 2])
    """

    event_time: str
    size_us: int
    every_us: int
    origin_us: int

    def of(self, times: pa.ChunkedArray, late_us: int) -> pa.ChunkedArray:
        """The pane of each instant, in microseconds; late ones have one of their own.

        Parameters:
            late_us: the watermark that makes a record late, as for `watermark.is_late`.
        """
        # Counted from a start before the year 1, as Arrow rounds towards zero.
        since = pc.subtract(times, MIN_MICROS - (MIN_MICROS - self.origin_us) % self.every_us)
        pane = pc.divide(since, self.every_us)
        if rest := self.size_us % self.every_us:
            into = pc.subtract(since, pc.multiply(pane, self.every_us))
            has_ended = pc.greater_equal(into, rest).cast(pa.int64())
            pane = pc.add(pc.multiply(pane, 2), has_ended)
        return pc.if_else(pc.less_equal(times, late_us), LATE, pane)
