"""Watermarks: how far event time has progressed.

An operator's watermark is the same for all shards of an epoch and follows from what was committed
before it, so that a replayed epoch finds the same records late and the same timers due:

- An operator that reads a source: the largest event time in all epochs before, minus its lateness.
- An operator with several inputs: the least of what its inputs say. One that had no record yet
  holds it back. Broadcast inputs have no say.
- An operator behind another: how far that one had come in the epoch before, minus its lateness. All
  that the other one still puts out belongs to records and timers later than that. It need not have
  an event time of its own: how far it has come is how far what feeds it has come.
"""

from __future__ import annotations

from statekit.timestamp import MAX_MICROS, MIN_MICROS

BEGINNING = MIN_MICROS - 1
"""The watermark before any: nothing is late."""

END = MAX_MICROS + 1
"""The watermark when nothing can follow: everything is due. No record brings it there."""


def advanced(watermark: int, seen: int | None, lateness: int) -> int:
    """The watermark after `seen`, the largest event time; it never goes back.

    For an operator fed by another, `seen` is that one's watermark: its end is the end for both.

    >>> advanced(BEGINNING, 100, 30), advanced(90, 100, 30), advanced(50, None, 30)
    (70, 90, 50)
    """
    if seen is None:
        return watermark
    return max(watermark, seen if seen in (BEGINNING, END) else seen - lateness)


def is_late(event_time: int, watermark: int) -> bool:
    """Whether a record comes too late. One exactly at the watermark does.

    >>> is_late(100, 100), is_late(101, 100)
    (True, False)
    """
    return event_time <= watermark
