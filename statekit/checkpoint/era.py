"""Eras of expiry: the effective write time of a row of a state with a TTL."""

from __future__ import annotations

from typing import NamedTuple

PERMANENT = 1 << 62
"""The write time of a row that never expires."""

UNWRITTEN = -PERMANENT
"""The write time of a row that does not exist."""


class EndedEra(NamedTuple):
    """An earlier era with a TTL. A row that had expired at its end stays expired.

    Parameters:
        number: of the era.
        since_us: as in `Era`.
        floor_us: rows that were written then, or before, had expired when it ended.
    """

    number: int
    since_us: int
    floor_us: int


class Era(NamedTuple):
    """The present era of a state's expiry. A new era begins when a TTL is turned on or off, or
    moves to another clock. Rows keep the stamps of earlier eras.

    All times are by the clock of the TTL. If downtime does not count, that is processing time
    without the downtime so far.

    Parameters:
        number: of the era; stamps of other eras do not count.
        since_us: the write time of rows without such a stamp: when the era began. `PERMANENT` if
            they do not expire.
        floor_us: rows that were written then, or before, have expired whatever the TTL is now: it
            was shorter. `UNWRITTEN` for none.
        paused_us: the downtime that does not count.
        ended: the earlier eras with a TTL.
    """

    number: int
    since_us: int = PERMANENT
    floor_us: int = UNWRITTEN
    paused_us: int = 0
    ended: tuple[EndedEra, ...] = ()

    def written(self, number: int, written: int) -> int:
        """Return the effective write time of a row with a stamp of some era; `UNWRITTEN` if the row
        had expired when an earlier era ended.

        Parameters:
            number: of the era of the stamp; 0 for a row without a stamp.
            written: the write time in the stamp.

        >>> era = Era(3, since_us=70, ended=(EndedEra(1, since_us=20, floor_us=30),))
        >>> era.written(3, 80), era.written(1, 31), era.written(1, 30) == UNWRITTEN
        (80, 70, True)
        """
        if number == self.number:
            return written if written != PERMANENT else self.since_us
        for era in self.ended:
            at = written if era.number == number and written != PERMANENT else era.since_us
            if era.number >= number and at <= era.floor_us:
                return UNWRITTEN
        return self.since_us
