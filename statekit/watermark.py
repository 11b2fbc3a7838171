"""Watermarks: the progress of event time.

An operator's watermark is the same for all shards of an epoch and follows from what was committed
before it, so that a replayed epoch finds the same records late and the same timers due:

- An operator that reads a source: the largest event time in all previous epochs, minus its
  lateness.
- An operator with several inputs: the minimum over its inputs. An input without any record holds
  the watermark back. Broadcast inputs do not count.
- An operator fed by another: the progress of that operator in the previous epoch, minus its own
  lateness. Everything that the feeding operator still emits is later than its progress. The
  progress of an operator without event time is that of its inputs.
"""

from __future__ import annotations

from statekit.timestamp import MAX_MICROS, MIN_MICROS

BEGINNING = MIN_MICROS - 1
"""The watermark before any record. No record is late."""

END = MAX_MICROS + 1
"""The watermark after the last record. Everything is due. No record advances the watermark this
far.
"""


def advanced(watermark: int, seen: int | None, lateness: int) -> int:
    """Return the watermark after `seen`, the largest event time. It never decreases.

    For an operator fed by another, `seen` is the watermark of the feeding operator; both end
    together.

    >>> advanced(BEGINNING, 100, 30), advanced(90, 100, 30), advanced(50, None, 30)
    (70, 90, 50)
    """
    if seen is None:
        return watermark
    return max(watermark, seen if seen in (BEGINNING, END) else seen - lateness)


def is_late(event_time: int, watermark: int) -> bool:
    """Return whether a record is late. A record exactly at the watermark is late.

    `ShardTask` counts late records and drops them. `late_records` of Spark's frames, and without
    Spark `put_late`, give them to `stream.late`.

    >>> is_late(100, 100), is_late(101, 100)
    (True, False)
    """
    return event_time <= watermark
