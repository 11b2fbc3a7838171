"""`JoinModel`: a join of two streams over plain Python, with all rows of both sides."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from statekit.functions.process import Process
from statekit.job.joins.join_operator import JoinedResult
from statekit.job.joins.matching import Points
from statekit.job.windows.calendar_windows import CalendarWindow
from statekit.job.windows.sliding import Sliding
from statekit.keygroup import key_fields
from statekit.testing.oracles.window_model import calendar_bounds, window_bounds
from statekit.timestamp import MAX_MICROS, datetime_to_micros


@dataclass
class _Row:
    """A row of a side, once for each of its windows.

    Attributes:
        key: its key.
        at: its event time, or the start of its window, in microseconds.
        over_at: the watermark at which it can get no more matches, in microseconds.
        row: the row.
        came_at: the processing time of its epoch, in microseconds.
        is_matched: whether a match was found.
    """

    key: Any
    at: int
    over_at: int
    row: Any
    came_at: int
    is_matched: bool = False


class JoinModel:
    """Model of the operator of a join: it compares each row with all rows of the other side.

    Parameters:
        process: the operator.
    """

    def __init__(self, process: Process[Any, Any, Any]) -> None:
        self._made_of: JoinedResult = process.traits.made_of
        self._key_of = process.key_of()
        self._time_of = None if process.event_time is None else process.time_of()
        ttl = process.states[0].ttl
        self._kept_us = None if ttl is None else ttl.duration_us
        self._now_us = 0
        self._left: list[_Row] = []
        self._right: list[_Row] = []

    def run(self, records: Sequence[tuple[Any, int]], watermark: int, now_us: int) -> list[Any]:
        """Run one epoch, and return the results.

        Parameters:
            records: the records that are not late, each with the number of its input.
            watermark: of the epoch, in microseconds.
            now_us: the processing time of the epoch.
        """
        self._now_us = now_us
        if self._kept_us is not None:
            self._left, self._right = map(self._unexpired, (self._left, self._right))
        found: list[Any] = []
        for is_left in (True, False):
            cls = self._made_of.left if is_left else self._made_of.right
            for record, _ in records:
                if type(record) is cls:
                    for row in self._rows(record, is_left=is_left):
                        found += self._added(row, is_left=is_left)
        return found + list(self._over(watermark))

    def _unexpired(self, rows: list[_Row]) -> list[_Row]:
        assert self._kept_us is not None
        return [row for row in rows if self._now_us < row.came_at + self._kept_us]

    def _rows(self, record: Any, *, is_left: bool) -> Iterator[_Row]:
        """Yield the row of a record for each of its windows."""
        key, made_of = self._key_of(record), self._made_of
        if self._time_of is None:
            yield _Row(key, 0, MAX_MICROS + 1, record, self._now_us)
            return
        at = self._time_of(record)
        if made_of.window is None:
            after = made_of.reach.after if is_left else made_of.reach.before
            over_at = min(at + after, MAX_MICROS)
            if is_left and made_of.own is not None:
                over_at = datetime_to_micros(getattr(record, made_of.own.until))
            yield _Row(key, at, over_at, record, self._now_us)
            return
        for start, end in self._windows(at):
            over_at = MAX_MICROS if end == MAX_MICROS else end - 1
            yield _Row(key, start, over_at, record, self._now_us)

    def _windows(self, at: int) -> Iterable[tuple[int, int]]:
        """Return the start and end of each window that contains an instant."""
        match self._made_of.window:
            case Sliding() as kind:
                return window_bounds(kind, at)
            case CalendarWindow() as kind:
                return [calendar_bounds(kind, at)]
        raise TypeError(f"{self._made_of.window} has no model: add one to {__name__}")

    def _added(self, row: _Row, *, is_left: bool) -> Iterator[Any]:
        """Add a row, and yield the results that follow at once."""
        how = self._made_of.how
        own, others = (self._left, self._right) if is_left else (self._right, self._left)
        own.append(row)
        for other in others:
            left, right = (row, other) if is_left else (other, row)
            if not self._match(left, right):
                continue
            if how not in ("semi", "anti"):
                yield self._result(left, right)
            elif how == "semi" and not left.is_matched:
                yield self._result(left, None)
            left.is_matched = right.is_matched = True

    def _match(self, left: _Row, right: _Row) -> bool:
        if left.key != right.key or None in key_fields(left.key):
            return False
        if self._made_of.window is not None or self._time_of is None:
            return left.at == right.at
        reach = self._made_of.reach
        last = left.at + reach.after if self._made_of.own is None else left.over_at
        return left.at - reach.before <= right.at <= last

    def _over(self, watermark: int) -> Iterator[Any]:
        """Forget rows that can get no more matches, and yield results for those without any."""
        how = self._made_of.how
        for row in self._left:
            if row.over_at <= watermark and not row.is_matched and how in ("left", "full", "anti"):
                yield self._result(row, None)
        for row in self._right:
            if row.over_at <= watermark and not row.is_matched and how in ("right", "full"):
                yield self._result(None, row)
        self._left = [row for row in self._left if row.over_at > watermark]
        self._right = [row for row in self._right if row.over_at > watermark]

    def _result(self, left: _Row | None, right: _Row | None) -> Any:
        """Return the result of a pair, or of a row without a match."""
        some = left if left is not None else right
        assert some is not None
        points = Points.one(some.at)
        rows = [None if of is None else [of.row] for of in (left, right)]
        return self._made_of.results.of(rows[0], rows[1], points, lambda _: None)[0]
