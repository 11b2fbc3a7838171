"""`LookupModel`: a lookup over plain Python, with all rows of the table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from statekit.functions.process import Process
from statekit.job.joins.lookup_operator import LookedUp
from statekit.job.joins.matching import Points
from statekit.keygroup import key_fields
from statekit.timestamp import MAX_MICROS


class _Version(NamedTuple):
    """A row of the table from a time on; None if there is none from then on."""

    at: int
    row: Any


class LookupModel:
    """Model of the operator of a lookup.

    Parameters:
        process: the operator.
    """

    def __init__(self, process: Process[Any, Any, Any]) -> None:
        self._made_of: LookedUp = process.traits.made_of
        self._key_of = process.key_of()
        self._time_of = process.time_of() if self._made_of.as_of else lambda _: 0
        self._versions: dict[Any, list[_Version]] = {}
        self._waiting: list[Any] = []

    def run(self, records: Sequence[tuple[Any, int]], watermark: int) -> list[Any]:
        """Run one epoch, and return the results.

        Parameters:
            records: the records that are not late, each with the number of its input.
            watermark: of the epoch, in microseconds.
        """
        lookup = self._made_of.lookup
        for row, _ in records:
            if type(row) is lookup.right:
                version = _Version(self._time_of(row), None if lookup.is_deleted(row) else row)
                self._versions.setdefault(self._key_of(row), []).append(version)
        self._waiting += [row for row, _ in records if type(row) is lookup.left]
        if not self._made_of.as_of:
            watermark = MAX_MICROS
        due = [row for row in self._waiting if self._time_of(row) <= watermark]
        self._waiting = [row for row in self._waiting if self._time_of(row) > watermark]
        return [result for row in due for result in self._found(row)]

    def _found(self, row: Any) -> Iterator[Any]:
        """Yield the result of a row, if it has one."""
        lookup, key, at = self._made_of.lookup, self._key_of(row), self._time_of(row)
        versions = [] if None in key_fields(key) else self._versions.get(key, [])
        # Of equal times the one that came last; `sorted` keeps the order of arrival.
        before = sorted((v for v in versions if v.at <= at), key=lambda version: version.at)
        of_table = before[-1].row if before else None
        if of_table is None and lookup.how in ("inner", "semi"):
            return
        if of_table is not None and lookup.how == "anti":
            return
        points = Points.one(at)
        right = None if of_table is None or lookup.how == "semi" else [of_table]
        yield lookup.results.of([row], right, points, lambda _: None)[0]
