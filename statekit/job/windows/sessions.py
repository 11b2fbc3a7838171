"""Sessions: windows of a key that end after a gap without records.

The row of a session has its end, rounded down to whole gaps, and its start, end and value. Sessions
of a key end at least a gap apart, so that no two of them share a row. The end locates the sessions
that a record may belong to. Rounding keeps the row in place for most records that move the end.

`SessionColumns` reads the sessions of many keys key by key, as only a scan finds those that a
combined row touches, and writes them together.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import chain, groupby, repeat
from operator import add, attrgetter, itemgetter
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from statekit.backend.interface import prefix_end
from statekit.codec.vectorized import sortable_ints
from statekit.declared_call import declarable
from statekit.errors import StateTypeError
from statekit.functions.context import Context
from statekit.job.windows.elements import Row
from statekit.job.windows.instants import LAST, overlap, plus, window_duration
from statekit.job.windows.open_windows import Deadlines, OpenWindow, WindowRows, Windows
from statekit.job.windows.window_columns import AddedRows, TimedWindow, WindowColumns
from statekit.job.windows.window_kind import Window
from statekit.job.windows.window_values import WindowValues
from statekit.records.keyed_batch import KeyColumns
from statekit.records.panes import SessionPanes
from statekit.records.preaggregate import Combiner
from statekit.records.result_type import Make
from statekit.shown import shown
from statekit.state.map_state import MapState
from statekit.state.options import Aggregate
from statekit.state.timers import Timer
from statekit.timestamp import (
    MAX_MICROS,
    MIN_MICROS,
    datetime_to_micros,
    micros_to_datetime,
    timedelta_to_micros,
)

_EPOCH = micros_to_datetime(0)
_TUPLE: Any = tuple

_Stored = tuple[bytes, int]
"""The key and the size of a stored row."""


@dataclass(frozen=True)
class Session(Window):
    """Windows that end after a gap without records of the key. Created by `session`."""

    gap: dt.timedelta
    at_most: dt.timedelta | None = None
    merges = True
    opens_few = True

    def __str__(self) -> str:
        return f"session {self.gap}" + (f", at most {self.at_most}" if self.at_most else "")

    @property
    def in_order(self) -> bool:
        return self.at_most is not None

    def panes(self, event_time: str) -> SessionPanes:
        """Return the panes: runs of a key's records that are in one session, regardless of other
        records.

        Parameters:
            event_time: the field with the time of a record.
        """
        return SessionPanes(event_time, timedelta_to_micros(self.gap))

    @property
    def durations(self) -> Sequence[dt.timedelta]:
        return (self.gap,) if self.at_most is None else (self.gap, self.at_most)

    def rows(self, functions: Aggregate[Any, Any, Any], deadlines: Deadlines) -> SessionRows:
        return SessionRows(self, functions, deadlines)

    def end_of(self, row: dt.datetime, stored: Any) -> dt.datetime:
        end: dt.datetime = stored[1]
        return end

    def columns(
        self, values: WindowValues, make: Make, deadlines: Deadlines, combiner: Combiner | None
    ) -> SessionColumns:
        return SessionColumns(values, make, self.rows(values.functions, deadlines), combiner)


@declarable("session")
def session(gap: dt.timedelta | str, *, at_most: dt.timedelta | str | None = None) -> Session:
    """Return windows per key from a record to `gap` after the last record that follows.

    Records belong to one session if less than the gap lies between them. With `at_most`, a session
    also ends so long after its first record: a record at that time, or later, starts the next
    session. Records are then handled in order of event time, so that sessions do not depend on the
    order of arrival.

    Parameters:
        gap: a timedelta or a text such as "30 minutes".
        at_most: the maximum length of a session, at least the gap; None for no maximum.

    Raises:
        StateTypeError: the gap is not a duration, or zero, or more than `at_most`.

    >>> print(session("30 minutes"))
    session 0:30:00
    >>> print(session("30 minutes", at_most="4 hours"))
    session 0:30:00, at most 4:00:00
    """
    silence = window_duration(gap, "gap")
    if at_most is None:
        return Session(silence)
    longest = window_duration(at_most, "at_most")
    if longest < silence:
        raise StateTypeError(
            f"session({shown(gap)}, at_most={shown(at_most)}): each session would end before its "
            "gap: give at least the gap"
        )
    return Session(silence, longest)


class OpenSession(Protocol):
    """An open session of a key."""

    @property
    def start(self) -> dt.datetime: ...
    @property
    def end(self) -> dt.datetime: ...
    @property
    def held(self) -> Any: ...


class SessionRows(WindowRows):
    """Sessions as rows.

    Attributes:
        gap: how long a key is silent between two sessions.
        add: of the aggregate.
        deadlines: when they are due.
    """

    def __init__(
        self, window: Session, aggregate: Aggregate[Any, Any, Any], deadlines: Deadlines
    ) -> None:
        assert aggregate.merge is not None
        self.gap, self._at_most = window.gap, window.at_most
        self.add = aggregate.add
        self._create, self._merge = aggregate.create, aggregate.merge
        self.deadlines = deadlines

    def stored(self, accumulator: Any) -> Any:
        return _TUPLE[dt.datetime, dt.datetime, accumulator]

    def put(self, ctx: Context, windows: Windows, value: Any) -> list[OpenWindow]:
        """Add a value to the session of the current record, and return this session."""
        start = self.deadlines.time_of(ctx)
        end = plus(start, self.gap)
        joined = list(self._overlapping(windows, start, end))
        start, end, accumulator = self.grown(joined, start, end, value)
        if not joined:
            self.deadlines.set_all(ctx, end)
        # The timer of one that has not fired yet finds the merged session.
        elif all(self.deadlines.has_closed(ctx, other.end) for other in joined):
            self.deadlines.close_again(ctx, end)
        row = self._store(windows, [other.row for other in joined], start, end, accumulator)
        return [OpenWindow(row, start, end, accumulator)]

    def grown(
        self, joined: Sequence[OpenSession], start: dt.datetime, end: dt.datetime, value: Any
    ) -> tuple[dt.datetime, dt.datetime, Any]:
        """Merge sessions with a new value, and return start, end and accumulator of the result.

        Parameters:
            joined: these sessions, in order.
            start, end: of a session of the value alone.
        """
        if not joined:
            return start, end, self.add(self._create(), value)
        held = reduce(self._merge, (session.held for session in joined))
        start, end = min(start, joined[0].start), max(end, joined[-1].end)
        return start, self._cut(start, end), self.add(held, value)

    def _cut(self, start: dt.datetime, end: dt.datetime) -> dt.datetime:
        """Return the end of a session, which is no longer than the maximum."""
        return end if self._at_most is None else min(end, plus(start, self._at_most))

    def put_all(self, ctx: Context, windows: Windows, values: Iterable[Any]) -> None:
        """Add a value for each record of a key.

        A session is written at the first and the last one of consecutive records in it.

        Parameters:
            values: taken one by one, each while its record is handled.
        """
        add, grows = self.add, not self.deadlines.closes_again
        row, start, end, accumulator = LAST, LAST, LAST, None
        # Whether the row is older than `held`, and the start of the next session.
        is_behind, limit = False, None
        for value in values:
            at = self.deadlines.time_of(ctx)
            if grows and start <= at < end:
                limit = limit or self._next_start(windows, end)
                until = plus(at, self.gap)
                if until <= limit and until < LAST:  # no other session is touched
                    end, is_behind = self._cut(start, max(end, until)), True
                    accumulator = add(accumulator, value)
                    continue
            if is_behind:
                self._store(windows, (row,), start, end, accumulator)
            ((row, start, end, accumulator),) = self.put(ctx, windows, value)
            is_behind, limit = False, None
        if is_behind:
            self._store(windows, (row,), start, end, accumulator)

    def ending(self, timer: Timer, ctx: Context, windows: Windows) -> Iterator[OpenWindow]:
        """Yield the sessions that end with a timer. A session that has grown since gets a new
        timer.
        """
        passed = self.deadlines.passed(timer)
        for row, stored in windows.scan(None if passed is None else self.row_of(passed)):
            window = self.open_window(row, stored)
            if passed is not None and passed < LAST and window.start >= passed:
                return
            at = self.deadlines.of(window.end, timer.name)
            if at == timer.at:
                yield window
            else:
                ctx.timers.set(at, timer.name, timer.clock)

    def open_window(self, row: dt.datetime, stored: Any) -> OpenWindow:
        return OpenWindow(row, *stored)

    def _overlapping(
        self, windows: Windows, start: dt.datetime, end: dt.datetime
    ) -> Iterator[OpenWindow]:
        for row, stored in windows.scan(self.row_of(start)):
            window = self.open_window(row, stored)
            if overlap(window.start, window.end, start, end):
                yield window
            elif window.start >= end:
                return

    def _next_start(self, windows: Windows, end: dt.datetime) -> dt.datetime:
        """Return the start of the first session after an end; the last instant if there is none."""
        starts = (session[0] for _, session in windows.scan(self.row_of(end)))
        return next((start for start in starts if start >= end), LAST)

    def _store(
        self,
        windows: Windows,
        before: Iterable[dt.datetime],
        start: dt.datetime,
        end: dt.datetime,
        accumulator: Any,
    ) -> dt.datetime:
        """Write a session in place of its earlier rows, and return it."""
        row = self.row_of(end)
        for other in before:
            if other != row:
                del windows[other]
        windows[row] = (start, end, accumulator)
        return row

    def row_of(self, end: dt.datetime) -> dt.datetime:
        """Return the row key of a session with this end: the end, rounded down to a multiple of the
        gap.

        A session ends at least a gap after it starts, also with a maximum length, so no two
        sessions of a key have the same row. A session
        that grows by less than the gap often keeps its row.
        """
        return end if end == LAST else plus(end, -((end - _EPOCH) % self.gap))


class _OpenSession(NamedTuple):
    """A session of a key, with the stored rows that it replaces.

    `is_stored` says that it is the one of its row, unchanged.
    """

    start: dt.datetime
    end: dt.datetime
    held: Any
    rows: tuple[_Stored, ...] = ()
    is_stored: bool = False


class SessionColumns(WindowColumns):
    """Sessions of many keys. Their rows contain the starts and ends."""

    _rows: SessionRows

    def _opened(
        self, rows: Sequence[Row], windows: MapState[Any, Any]
    ) -> tuple[list[TimedWindow], Sequence[Any]]:
        due_us = self._rows.deadlines.due_us
        stored = windows.values_of_rows([row for _, row in rows])
        return [TimedWindow(start, end, due_us(end)) for start, end, _ in stored], stored

    def _held(self, stored: Sequence[Any], windows: MapState[Any, Any]) -> list[Any]:
        return list(map(itemgetter(2), stored))

    def _add_rows(
        self, keys: KeyColumns, times: npt.NDArray[np.int64], windows: MapState[Any, Any]
    ) -> AddedRows:
        starts_us = self._starts(keys, times)
        # Rows are sorted by the ends of sessions. A session that overlaps ends after the start, so
        # its row is not before the row of a session that would end there.
        from_rows = map(add, keys.prefixes, self._row_ends(starts_us))
        starts = map(micros_to_datetime, starts_us.tolist())
        ends = [plus(micros_to_datetime(time), self._rows.gap) for time in times.tolist()]
        given = zip(keys.prefixes, from_rows, starts, ends, self._added(keys.columns), strict=True)
        prefixes: list[bytes] = []
        grown: list[_OpenSession] = []
        for prefix, own in groupby(given, itemgetter(0)):
            rows = list(own)
            opened = self._stored(windows, min(row[1] for row in rows), prefix)
            for _, _, start, end, value in rows:
                self._add(opened, start, end, value)
            changed = [session for session in opened if not session.is_stored]
            prefixes += repeat(prefix, len(changed))
            grown += changed
        row_keys = self._write(windows, prefixes, grown)
        first_end = min(map(attrgetter("end"), grown))
        return AddedRows(row_keys, self._rows.deadlines.due_us(first_end))

    def _starts(self, keys: KeyColumns, times: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the smallest times of rows, which are their panes."""
        assert self._combiner is not None
        if self._combiner.panes is None:
            return times
        return np.array(keys.columns[self._combiner.key_size], np.int64) + MIN_MICROS

    def _stored(
        self, windows: MapState[Any, Any], row_key: bytes, prefix: bytes
    ) -> list[_OpenSession]:
        """Return the stored sessions of a key, from a row key on."""
        rows = list(windows.stored_between(row_key, prefix_end(prefix)))
        stored = windows.values_of_rows([row for _, row in rows])
        return [
            _OpenSession(start, end, held, ((row_key, len(row_key) + len(row)),), is_stored=True)
            for (row_key, row), (start, end, held) in zip(rows, stored, strict=True)
        ]

    def _write(
        self,
        windows: MapState[Any, Any],
        prefixes: Sequence[bytes],
        sessions: Sequence[_OpenSession],
    ) -> list[bytes]:
        """Store sessions, and delete the rows of the earlier sessions that were merged into them.
        Return the row keys.

        Parameters:
            prefixes: of their keys.
        """
        ends_us = np.array([datetime_to_micros(session.end) for session in sessions], np.int64)
        row_keys = list(map(add, prefixes, self._row_ends(ends_us)))
        sizes: list[int] = []
        removed: list[_Stored] = []
        for row_key, session in zip(row_keys, sessions, strict=True):
            before = dict(session.rows)
            sizes.append(before.pop(row_key, 0))
            removed += before.items()
        windows.replace_rows(row_keys, [session[:3] for session in sessions], sizes, removed)
        return row_keys

    def _row_ends(self, ends_us: npt.NDArray[np.int64]) -> list[bytes]:
        """Return the ends of the row keys of sessions, computed as in `SessionRows.row_of`.

        Parameters:
            ends_us: in microseconds.
        """
        gap_us = timedelta_to_micros(self._rows.gap)
        starts_us = ends_us - ends_us % gap_us
        at_end = ends_us == MAX_MICROS
        return sortable_ints(np.where(at_end, ends_us, np.maximum(starts_us, MIN_MICROS)))

    def _add(
        self, opened: list[_OpenSession], start: dt.datetime, end: dt.datetime, value: Any
    ) -> None:
        """Add the value of a row to its session, after merging all sessions that the row
        overlaps.
        """
        joined = [each for each in opened if overlap(each.start, each.end, start, end)]
        joined.sort(key=attrgetter("end"))
        rows = tuple(chain.from_iterable(each.rows for each in joined))
        if joined:
            opened[:] = [each for each in opened if not overlap(each.start, each.end, start, end)]
        opened.append(_OpenSession(*self._rows.grown(joined, start, end, value), rows))
