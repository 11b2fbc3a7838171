"""Clocks of time zones: the offsets of a zone's local time, and the instants of local times.

All numbers are microseconds. A local time is the time on the clock since 1970-01-01 00:00 local
time. The IANA database of the machine is read by the standard library's `zoneinfo`.
"""

from __future__ import annotations

import datetime as dt
import difflib
import zoneinfo
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from statekit.errors import StateTypeError
from statekit.shown import shown
from statekit.timestamp import MAX_MICROS, MIN_MICROS, datetime_to_micros, micros_to_datetime

Micros = npt.NDArray[np.int64]

SECOND_US = 1_000_000
DAY_US = 86_400 * SECOND_US

# No zone of the database has had two changes of its offset within two days.
_PROBE = dt.timedelta(days=2)
_FAR = 2**62  # after every time


class Offsets(NamedTuple):
    """The offsets of a zone's clock from UTC in an interval.

    Parameters:
        since: the instants from which an offset holds, in order. The first one holds before, too.
        offsets: local time less UTC.
    """

    since: Micros
    offsets: Micros


def zone_named(name: str) -> dt.tzinfo:
    """Return a time zone by its name in the IANA database.

    Raises:
        StateTypeError: there is no such zone on this machine.

    >>> zone_named("Europe/Berlin")
    zoneinfo.ZoneInfo(key='Europe/Berlin')
    """
    if not isinstance(name, str):
        raise StateTypeError(
            f'zone={shown(name)}: give the name of a time zone, such as "Europe/Berlin"'
        )
    if name == "UTC":  # which needs no database
        return dt.UTC
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):  # the last of a folder's name
        known = zoneinfo.available_timezones()
    if not known:
        raise StateTypeError(
            f"zone={shown(name)}: this machine has no time zone database: install it with "
            '"pip install tzdata", on the workers of a cluster as well'
        )
    close = difflib.get_close_matches(name, sorted(known), n=1)
    meant = f", such as {close[0]!r}" if close else ""
    raise StateTypeError(
        f"zone={shown(name)}: the time zone database of this machine has no such zone: give a name "
        f"of zoneinfo.available_timezones(){meant}, or update the database with "
        '"pip install --upgrade tzdata" and the packages of the system'
    )


def offsets_between(zone: dt.tzinfo, first_us: int, last_us: int) -> Offsets:
    """Return the offsets of a zone's clock from one instant to another."""
    at, last = _inside(first_us), _inside(last_us)
    since, offsets = [first_us], [_offset_at(zone, at)]
    while at < last:
        before, at = at, at + min(_PROBE, last - at)
        offset = _offset_at(zone, at)
        if offset != offsets[-1]:
            since.append(_change(zone, before, at))
            offsets.append(offset)
    return Offsets(np.array(since, np.int64), np.array(offsets, "m8[us]").astype(np.int64))


def first_shown(clock: Offsets, local: Micros) -> Micros:
    """Return the first instants at which the clock shows local times, or later ones.

    A local time that the clock skips has the instant of the change; a local time that the clock
    shows twice has the earlier instant.

    Parameters:
        clock: the offsets from before the first of the times on.
    """
    ends = np.append(clock.since[1:], _FAR) + clock.offsets
    period = np.searchsorted(np.maximum.accumulate(ends), local, side="right")
    shown_at: Micros = local - clock.offsets[period]
    return np.where(period > 0, np.maximum(clock.since[period], shown_at), shown_at)


def shown_again(clock: Offsets, local: Micros) -> Micros:
    """Return the later instants of the local times that the clock shows twice, because it was set
    back.
    """
    found = [np.empty(0, np.int64)]
    for since, before, after in zip(
        clock.since[1:], clock.offsets, clock.offsets[1:], strict=False
    ):
        twice = (local >= since + after) & (local < since + before)
        found.append(local[twice] - after)
    return np.concatenate(found)


def _inside(at_us: int) -> dt.datetime:
    """Return an instant whose local time is a datetime in every zone. In the first and the last day
    of datetimes, clocks do not change.
    """
    return micros_to_datetime(min(max(at_us, MIN_MICROS + DAY_US), MAX_MICROS - DAY_US))


def _offset_at(zone: dt.tzinfo, at: dt.datetime) -> dt.timedelta:
    """Return local time less UTC."""
    offset = zone.fromutc(at.replace(tzinfo=zone)).utcoffset()  # faster than `astimezone`
    assert offset is not None, "zones of the database have an offset at every time"
    return offset


def _change(zone: dt.tzinfo, before: dt.datetime, after: dt.datetime) -> int:
    """Return the instant, a second, of the only change of the offset between two instants."""
    offset = _offset_at(zone, before)
    first, last = (datetime_to_micros(at) // SECOND_US for at in (before, after))
    last += 1
    while last - first > 1:
        middle = (first + last) // 2
        if _offset_at(zone, micros_to_datetime(middle * SECOND_US)) == offset:
            first = middle
        else:
            last = middle
    return last * SECOND_US
