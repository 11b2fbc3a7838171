"""Instants and durations as whole microseconds, and back.

What lives here: the one integer that stands for an instant wherever one is stored or hashed, and
the range of instants there are. What does not: the bytes of that integer (`key_codec`), and what
time it is now (`clock`).
"""

from __future__ import annotations

import datetime as dt

from statekit.errors import StateTypeError

__all__ = ["datetime_to_micros", "micros_to_datetime", "timedelta_to_micros"]

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MIN_MICROS = -62_135_596_800_000_000
_MAX_MICROS = 253_402_300_799_999_999


def datetime_to_micros(value: dt.datetime) -> int:
    """Microseconds since 1970-01-01 UTC.

    Args:
        value: an aware datetime.

    Raises:
        StateTypeError: it is naive, or outside of the years 1 to 9999 in UTC.

    >>> datetime_to_micros(dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC))
    1000000
    """
    if value.tzinfo is None or value.utcoffset() is None:
        raise StateTypeError(
            f"{value!r} has no timezone: attach one, for example value.replace(tzinfo=UTC)"
        )
    micros = timedelta_to_micros(value - _EPOCH)
    if not _MIN_MICROS <= micros <= _MAX_MICROS:
        raise StateTypeError(f"{value!r} is not within the years 1 to 9999 in UTC: clip it")
    return micros


def micros_to_datetime(micros: int) -> dt.datetime:
    """The aware UTC datetime of that many microseconds since 1970-01-01.

    Raises:
        OverflowError: it is outside of the years 1 to 9999.

    >>> micros_to_datetime(1_000_000)
    datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=datetime.timezone.utc)
    """
    return _EPOCH + dt.timedelta(microseconds=micros)


def timedelta_to_micros(delta: dt.timedelta) -> int:
    """A duration in microseconds, exactly.

    >>> timedelta_to_micros(dt.timedelta(milliseconds=-1))
    -1000
    """
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds
