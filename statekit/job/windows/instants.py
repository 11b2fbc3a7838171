"""Instants and durations of windows, clipped to the range of datetimes."""

from __future__ import annotations

import datetime as dt

from statekit.errors import StateTypeError
from statekit.shown import shown
from statekit.timestamp import MAX_MICROS, MIN_MICROS, duration_to_micros, micros_to_datetime

FIRST, LAST = micros_to_datetime(MIN_MICROS), micros_to_datetime(MAX_MICROS)
"""The first and the last instant. A window that ends at the last one includes it."""

_ZERO = dt.timedelta(0)


def window_duration(given: dt.timedelta | str, what: str, least: int = 1) -> dt.timedelta:
    """Return a duration of windows that a user gave.

    Parameters:
        what: the argument, for messages.
        least: in microseconds.

    Raises:
        StateTypeError: it is not a duration, or less.
    """
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
