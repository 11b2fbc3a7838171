"""Kinds of windows: tumbling, sliding and session windows, as users declare them."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from statekit.errors import StateTypeError
from statekit.records.panes import SessionPanes, SlidingPanes
from statekit.shown import shown
from statekit.timestamp import (
    MAX_MICROS,
    MIN_MICROS,
    duration_to_micros,
    micros_to_datetime,
    timedelta_to_micros,
)

FIRST, LAST = micros_to_datetime(MIN_MICROS), micros_to_datetime(MAX_MICROS)
"""The first and the last instant. A window that ends at the last one includes it."""

_ZERO = dt.timedelta(0)

WINDOWS_PER_RECORD_MAX = 10_000
"""The maximum number of windows per record. More of them would stall a job."""


@dataclass(frozen=True)
class Sliding:
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


@dataclass(frozen=True)
class Session:
    """Windows that end after a gap without records of the key. Created by `session`."""

    gap: dt.timedelta

    def __str__(self) -> str:
        return f"session {self.gap}"

    def panes(self, event_time: str) -> SessionPanes:
        """Return the panes: runs of a key's records that are in one session, regardless of other
        records.

        Parameters:
            event_time: the field with the time of a record.
        """
        return SessionPanes(event_time, timedelta_to_micros(self.gap))


Window = Sliding | Session


def tumbling(size: dt.timedelta | str, offset: dt.timedelta | str = _ZERO) -> Sliding:
    """Return windows of one size, one after the other, so that each record is in one.

    Parameters:
        size: a timedelta or a text such as "1 hour".
        offset: windows start at 1970-01-01 00:00 UTC plus this.

    Raises:
        StateTypeError: a duration is not valid, or the size is zero.

    >>> tumbling("1 day", offset="6 hours").offset
    datetime.timedelta(seconds=21600)
    """
    length = _duration(size, "size")
    return Sliding(length, length, _duration(offset, "offset", least=0))


def sliding(
    size: dt.timedelta | str, every: dt.timedelta | str, offset: dt.timedelta | str = _ZERO
) -> Sliding:
    """Return overlapping windows of one size: one starts every `every`.

    Parameters:
        size: a timedelta or a text such as "1 hour".
        every: from the start of one window to that of the next; not more than the size.
        offset: windows start at 1970-01-01 00:00 UTC plus this.

    Raises:
        StateTypeError: a duration is not valid or zero, `every` is more than the size, or a record
            would be in more than 10,000 windows.

    >>> sliding("1 hour", every="15 minutes").every
    datetime.timedelta(seconds=900)
    """
    window = Sliding(
        _duration(size, "size"), _duration(every, "every"), _duration(offset, "offset", least=0)
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


def session(gap: dt.timedelta | str) -> Session:
    """Return windows per key from a record to `gap` after the last record that follows.

    Records belong to one session if less than the gap lies between them.

    Parameters:
        gap: a timedelta or a text such as "30 minutes".

    Raises:
        StateTypeError: the gap is not a duration, or zero.

    >>> session("30 minutes")
    Session(gap=datetime.timedelta(seconds=1800))
    """
    return Session(_duration(gap, "gap"))


def _duration(given: dt.timedelta | str, what: str, least: int = 1) -> dt.timedelta:
    micros = duration_to_micros(given, what)
    if micros < least:
        raise StateTypeError(f'{what}={shown(given)}: give more than nothing, such as "10 minutes"')
    return dt.timedelta(microseconds=micros)


def overlap(start: dt.datetime, end: dt.datetime, first: dt.datetime, last: dt.datetime) -> bool:
    """Return whether two half-open intervals overlap.

    Nothing comes after the last instant, so an interval that ends with it contains it.
    """
    return (start < last or last == LAST) and (first < end or end == LAST)


def plus(at: dt.datetime, by: dt.timedelta) -> dt.datetime:
    """Return `at + by`, clipped to the range of datetimes."""
    try:
        return at + by
    except OverflowError:
        return LAST if by > _ZERO else FIRST
