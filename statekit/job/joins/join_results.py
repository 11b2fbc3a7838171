"""The results of a join, created from columns of rows of both sides."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import Any, Literal, NamedTuple

from statekit.errors import CALL_FAILURES
from statekit.job.joins.matching import Ints, Points
from statekit.records.arrow_reader import Build, record_builder
from statekit.records.record_type import RecordType
from statekit.timestamp import micros_to_datetime

From = Literal["left", "right", "key", "start", "end", "deleted"]


class OwnFields(NamedTuple):
    """The fields that results may have of the join itself.

    Parameters:
        title: what they are of. A user names one as `title.field` if a side has a field of its
            name.
        types: their types, by name.
    """

    title: str
    types: Mapping[str, Any]


NO_FIELDS = OwnFields("join", {})
WINDOW_FIELDS = OwnFields("window", {"start": dt.datetime, "end": dt.datetime})
CHANGE_FIELDS = OwnFields("change", {"deleted": bool})


@dataclass(frozen=True)
class ResultField:
    """A field of a result.

    Parameters:
        name: of the field.
        side: where its value comes from: a row of the left or right side, the row that is there
            (for a key), the start or end of the window, or whether the result is deleted.
        place: the place of the value in a row.
    """

    name: str
    side: From
    place: int = 0


@dataclass(frozen=True)
class JoinResults:
    """Creates results from rows.

    Parameters:
        fields: those of a result, in order, if results are records; else the two arguments of the
            function, each a whole record.
        into: the class of the results; None if a function makes them.
        fn: the function, called with both records of a pair.
        ends_of: returns the ends of windows by their starts; None without windows.
    """

    fields: Sequence[ResultField]
    into: type[Any] | None
    fn: Callable[..., Any] | None = None
    ends_of: Callable[[Ints], Ints] | None = None

    def of(
        self,
        left: Sequence[Any] | None,
        right: Sequence[Any] | None,
        points: Points,
        at_key: Callable[[int], None],
        *,
        deleted: bool = False,
    ) -> list[Any]:
        """Return a result for each pair of rows.

        Parameters:
            left, right: the rows of each side, in parallel; None if results have no such row.
            points: the number of the key of each pair, and its point, as a window has.
            at_key: called with the number of the key that an error is about.
            deleted: whether the results are deleted.
        """
        try:
            return self._made(left, right, points.points, deleted)
        except CALL_FAILURES:
            for place, key in enumerate(points.keys.tolist()):  # of one of them
                at_key(key)
                one = slice(place, place + 1)
                of_sides = [None if side is None else side[one] for side in (left, right)]
                self._made(of_sides[0], of_sides[1], points.points[one], deleted)
            raise

    def _made(
        self, left: Sequence[Any] | None, right: Sequence[Any] | None, points: Ints, deleted: bool
    ) -> list[Any]:
        """Return a result for each pair of rows with these points."""
        rows = {"left": left, "right": right, "key": right if left is None else left}
        columns = [
            [deleted] * len(points)
            if field.side == "deleted"
            else self._column(field, rows, points)
            for field in self.fields
        ]
        if self.fn is not None:
            return list(map(self.fn, *columns))
        return self._build(columns, len(points))

    @cached_property
    def _build(self) -> Build:
        """The function from columns to records."""
        record = RecordType.of(self.into, where="join, into")
        return record_builder(record, [field.name for field in self.fields])

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes for pickle, without the function, which is made on demand."""
        return {name: of for name, of in self.__dict__.items() if name != "_build"}

    def _column(
        self, field: ResultField, rows: Mapping[str, Sequence[Any] | None], points: Ints
    ) -> list[Any]:
        """Return the values of a field."""
        if field.side in ("start", "end"):
            if field.side == "end":
                assert self.ends_of is not None
                points = self.ends_of(points)
            return list(map(micros_to_datetime, points.tolist()))
        own = rows[field.side]
        if own is None:
            return [None] * len(points)
        return list(map(itemgetter(field.place), own))
