"""Own intervals: left rows of a join whose interval ends at a time of their own, such as the end of
an auction.

The point of such a row is the end of its interval, so that rows are removed in the order of points.
A right row matches those that end at its time or later, and begin at it or earlier.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from statekit.codec.annotations import peel, show
from statekit.errors import StateTypeError
from statekit.job.joins.join_declaration import JoinDeclaration
from statekit.job.joins.matching import Ints
from statekit.timestamp import datetime_to_micros


class OwnIntervals(NamedTuple):
    """The intervals of left rows.

    Parameters:
        time: the name of the field with the event time.
        until: the name of the field with the end, which belongs to the interval.
        before_us: how long before the event time they begin, in microseconds.
    """

    time: str
    until: str
    before_us: int

    @classmethod
    def of(cls, declaration: JoinDeclaration, until: str, before_us: int) -> OwnIntervals:
        """Return the intervals of the left rows of a join.

        Parameters:
            until: the field of the left records with the end.

        Raises:
            StateTypeError: it is not a time.
        """
        row, time = declaration.left, declaration.time
        assert time is not None
        name = next(name for name, source in row.fields.items() if source == until)
        members, may_be_none, _ = peel(row.cls.__annotations__[name])
        if members != (dt.datetime,) or may_be_none:
            raise declaration.error(
                f"within=(…, {until!r}): {until!r} is {show(row.cls.__annotations__[name])}: an "
                "interval ends at a field that is a datetime"
            )
        return cls(time, name, before_us)

    def begins(self, rows: Sequence[Any]) -> Ints:
        """Return the first point of the right side that each row matches."""
        times = [datetime_to_micros(getattr(row, self.time)) for row in rows]
        return np.array(times, np.int64) - self.before_us

    def ends(self, rows: Sequence[Any]) -> Ints:
        """Return the last point of the right side that each row matches.

        Raises:
            StateTypeError: the end of a row has no time zone.
        """
        return np.array([self._end(row) for row in rows], np.int64)

    def _end(self, row: Any) -> int:
        try:
            return datetime_to_micros(getattr(row, self.until))
        except StateTypeError as error:
            raise StateTypeError(f"the end of an interval, {self.until!r}: {error}") from error
