"""Conversion of instants and durations from and to whole microseconds."""

from __future__ import annotations

import datetime as dt
import re
import struct

from statekit.errors import StateTypeError
from statekit.foreign import foreign_hint
from statekit.shown import shown, type_name

MIN_MICROS = -62_135_596_800_000_000
"""The first instant: the start of the year 1."""

MAX_MICROS = 253_402_300_799_999_999
"""The last instant: the end of the year 9999."""

DURATION_MAX = MAX_MICROS - MIN_MICROS
"""The longest duration in microseconds."""

LATENESS_MAX = 2**53
"""The longest lateness in microseconds. Every reader of JSON reads numbers up to it exactly."""

_YEAR = 31_557_600_000_000
"""A year in microseconds, for messages."""

TIME_BYTES = 8
"""The length of an instant packed by `sortable_micros`, in bytes."""

FIRST_DAY, LAST_DAY = -719_162, 2_932_896
"""The dates that Python has, of the years 1 to 9999, in days since 1970."""

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)
_SIGN = 1 << 63
_sortable = struct.Struct(">Q")
_UNITS = {
    ("microsecond", "us"): 1,
    ("millisecond", "ms"): 1_000,
    ("second", "sec", "s"): 1_000_000,
    ("minute", "min"): 60_000_000,
    ("hour", "h"): 3_600_000_000,
    ("day", "d"): 86_400_000_000,
    ("week",): 604_800_000_000,
}
_MICROS = {name: micros for names, micros in _UNITS.items() for name in names}
_DURATION = re.compile(r"\s*(?:(\d{1,20})\s*([a-zA-Z]+)\s*)+")
_PART = re.compile(r"(\d{1,20})\s*([a-zA-Z]+)")


def datetime_to_micros(value: dt.datetime) -> int:
    """Return microseconds since 1970-01-01 UTC.

    Parameters:
        value: an aware datetime.

    Raises:
        StateTypeError: it is not a datetime, is naive, or is outside of the years 1 to 9999 in UTC.

    >>> datetime_to_micros(dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC))
    1000000
    """
    if type(value) is not dt.datetime and (hint := foreign_hint(value)):
        raise StateTypeError(f"{shown(value)} of type {type_name(value)} is no instant{hint}")
    try:
        zone = value.tzinfo
        is_naive = zone is not dt.UTC and (zone is None or value.utcoffset() is None)
    except AttributeError:
        raise StateTypeError(
            f"{shown(value)} of type {type_name(value)} is no instant: give an aware datetime"
        ) from None
    if is_naive:
        raise StateTypeError(
            f"{shown(value)} has no timezone: attach one, for example value.replace(tzinfo=UTC)"
        )
    micros = (value - _EPOCH) // _MICROSECOND
    if not MIN_MICROS <= micros <= MAX_MICROS:
        raise StateTypeError(f"{shown(value)} is not within the years 1 to 9999 in UTC: clip it")
    return micros


def micros_to_datetime(micros: int) -> dt.datetime:
    """Return the aware UTC datetime for microseconds since 1970-01-01.

    Raises:
        OverflowError: it is outside of the years 1 to 9999.

    >>> micros_to_datetime(1_000_000)
    datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=datetime.timezone.utc)
    """
    return _EPOCH + _MICROSECOND * micros  # four times as fast as a new timedelta


def instant(micros: int) -> dt.datetime:
    """Return the aware UTC datetime, clipped to the years 1 to 9999.

    >>> instant(MIN_MICROS - 1)
    datetime.datetime(1, 1, 1, 0, 0, tzinfo=datetime.timezone.utc)
    """
    if not MIN_MICROS <= micros <= MAX_MICROS:
        micros = min(max(micros, MIN_MICROS), MAX_MICROS)
    return micros_to_datetime(micros)


def timedelta_to_micros(delta: dt.timedelta) -> int:
    """Return a duration in microseconds, exactly.

    >>> timedelta_to_micros(dt.timedelta(milliseconds=-1))
    -1000
    """
    return delta // _MICROSECOND


def duration_to_micros(duration: dt.timedelta | str, what: str, *, most: int = DURATION_MAX) -> int:
    """Return a duration in microseconds, from a timedelta or text such as "2 hours" or "1 day 12
    h".

    Parameters:
        duration: not negative.
        what: names the option in errors.
        most: the longest one in microseconds.

    Raises:
        StateTypeError: it is neither, negative, or too long.

    >>> duration_to_micros("1 minute 30 seconds", "lateness")
    90000000
    """
    if hint := foreign_hint(duration):
        raise StateTypeError(f"{what}={shown(duration)} is of type {type_name(duration)}{hint}")
    if isinstance(duration, dt.timedelta):
        micros = timedelta_to_micros(duration)
    elif _DURATION.fullmatch(str(duration)):
        micros = 0
        for count, unit in _PART.findall(str(duration)):
            factor = _MICROS.get(unit.lower()) or _MICROS.get(unit.lower().removesuffix("s"))
            if factor is None:
                raise StateTypeError(
                    f"{what}={shown(duration)}: {unit!r} is no unit of time: use weeks, days, "
                    "hours, "
                    "minutes, seconds, milliseconds or microseconds"
                )
            micros += int(count) * factor
    else:
        raise StateTypeError(
            f'{what}={shown(duration)}: give a timedelta or a text such as "10 seconds" or "2 '
            'hours"'
        )
    if not 0 <= micros <= most:
        years = f"0 to {most // _YEAR} years"
        raise StateTypeError(f"{what}={shown(duration)}: give a duration from {years}")
    return micros


def lateness_to_micros(lateness: dt.timedelta | str, what: str) -> int:
    """Return a lateness in microseconds, from a timedelta or text as for `duration_to_micros`.

    Parameters:
        what: names the option in errors.

    Raises:
        StateTypeError: it is neither, negative, or longer than 285 years, which no checkpoint
            stores.

    >>> lateness_to_micros("2 hours", "lateness")
    7200000000
    """
    return duration_to_micros(lateness, what, most=LATENESS_MAX)


def sortable_micros(micros: int) -> bytes:
    """Return eight bytes that sort in the order of instants.

    >>> sortable_micros(-1) < sortable_micros(0) < sortable_micros(1)
    True
    """
    return _sortable.pack(micros + _SIGN)


def micros_of_sortable(row: bytes, offset: int = 0) -> int:
    """Return the instant that `sortable_micros` packed, at an offset of a row.

    >>> micros_of_sortable(sortable_micros(-5))
    -5
    """
    packed: int = _sortable.unpack_from(row, offset)[0]
    return packed - _SIGN
