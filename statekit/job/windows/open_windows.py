"""Open windows of one key as rows, with their deadlines.

An operator keeps one row per open window of a key:

    tumbling, sliding    the window's start                      → value
    session              its end, rounded down to whole gaps     → start, end, value

Sessions of a key end at least a gap apart, so that no two of them share a row. The end locates the
sessions that a record may belong to. Rounding keeps the row in place for most records that move the
end. `window_values` says what the value of a row is.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from itertools import takewhile
from typing import Any, NamedTuple, Protocol

from statekit.functions.context import Context
from statekit.job.windows.definitions import FIRST, LAST, Session, Sliding, overlap, plus
from statekit.state.map_state import MapState
from statekit.state.options import Aggregate
from statekit.state.timers import Timer
from statekit.timestamp import datetime_to_micros, micros_to_datetime

_EPOCH = micros_to_datetime(0)
_ZERO, _MICROSECOND = dt.timedelta(0), dt.timedelta(microseconds=1)
# The soonest at which a window closes: the first instant is over before there is a watermark.
_EARLIEST = FIRST + _MICROSECOND
_NEW: Any = object()
# Windows of a key in memory at once while its records are added, beside those of two records.
_WINDOWS_AT_ONCE = 100

Windows = MapState[dt.datetime, Any]
"""The state with the open windows of a key, by their row keys."""


class OpenWindow(NamedTuple):
    """An open window of a key, which may still receive records: its row, bounds and accumulator."""

    row: dt.datetime
    start: dt.datetime
    end: dt.datetime
    held: Any


class OpenSession(Protocol):
    """An open session of a key."""

    @property
    def start(self) -> dt.datetime: ...
    @property
    def end(self) -> dt.datetime: ...
    @property
    def held(self) -> Any: ...


class Deadlines:
    """The due times of the timers of windows.

    Parameters:
        leads: the names of the timers of a window, and how long before the last moment at which a
            record of the window may arrive each is due.
        ordered: whether records are handled in order of time. A timer then fires before the records
            of its instant, so that the moment is the end of the window. Otherwise it is the last
            microsecond before: once the watermark is there, records of the window are late.
        has_timers: whether windows have timers. If not, the shard only wakes up when one is due.
    """

    def __init__(
        self, leads: dict[str, dt.timedelta], ordered: bool, *, has_timers: bool = True
    ) -> None:
        self.margin = _ZERO if ordered else _MICROSECOND
        self.leads = leads
        self.has_timers = has_timers

    def of(self, end: dt.datetime, name: str) -> dt.datetime:
        """Return the due time of a timer for a window with this end."""
        lead = self.leads[name]
        return max(plus(end, -lead if end == LAST else -lead - self.margin), _EARLIEST)

    @property
    def closes_again(self) -> bool:
        """True if a window may receive records after it has fired, and then fires again."""
        return len(self.leads) > 1

    def due_us(self, end: dt.datetime) -> int:
        """Return the time at which a window with this end fires, in microseconds."""
        return datetime_to_micros(self.of(end, "close"))

    def set_all(self, ctx: Context, end: dt.datetime) -> None:
        """Set the timers of a new window."""
        if not self.has_timers:
            ctx.timers.wakes_at(self.due_us(end))
            return
        for name in self.leads:
            ctx.timers.set(self.of(end, name), name)

    def has_closed(self, ctx: Context, end: dt.datetime) -> bool:
        """Return whether a window has fired and is kept for late records.

        Without allowed lateness there is no such window: its records arrive before it fires.
        """
        return self.closes_again and self.of(end, "close") <= ctx.watermark

    def close_again(self, ctx: Context, end: dt.datetime) -> None:
        """Set the timer that fires a window at its end. If the end has passed, it fires after the
        records of this epoch.
        """
        ctx.timers.set(self.of(end, "close"), "close")

    def passed(self, timer: Timer) -> dt.datetime | None:
        """Return the end of the windows that a timer belongs to; None if the timer was clipped, so
        that any window may be meant.
        """
        if timer.at == _EARLIEST:
            return None  # clipped
        return plus(timer.at, self.leads[timer.name] + self.margin)


class SlidingRows:
    """Tumbling and sliding windows as rows.

    Attributes:
        window: their kind.
        deadlines: when they are due.
    """

    def __init__(
        self, window: Sliding, aggregate: Aggregate[Any, Any, Any], deadlines: Deadlines
    ) -> None:
        self.window, self.deadlines = window, deadlines
        self._size, self._every = window.size, window.every
        self._origin = _EPOCH + window.offset % window.every
        self._cut_off = self._into(FIRST) > _ZERO
        self._create, self._add = aggregate.create, aggregate.add

    def put(self, ctx: Context, windows: Windows, value: Any) -> list[OpenWindow]:
        """Add a value to the windows of the current record, and return these windows."""
        touched = []
        for start, end in self._bounds(ctx.event_time):
            windows[start] = accumulator = self._add(self._held(ctx, windows, start, end), value)
            touched.append(OpenWindow(start, start, end, accumulator))
        return touched

    def put_all(self, ctx: Context, windows: Windows, values: Iterable[Any]) -> None:
        """Add a value for each record of a key. Each window is read and written once.

        Parameters:
            values: taken one by one, each while its record is handled.
        """
        accumulators: dict[dt.datetime, Any] = {}
        add, of_one = self._add, -(-self._size // self._every)
        at_once, is_tumbling = _WINDOWS_AT_ONCE + 2 * of_one, of_one == 1
        start = end = LAST
        for value in values:
            at = ctx.event_time
            if is_tumbling and start <= at < end:  # as most records of a key that follow each other
                accumulators[start] = add(accumulators[start], value)
                continue
            if len(accumulators) > at_once:
                windows.update(accumulators)
                accumulators.clear()
            for start, end in self._bounds(at):
                if start not in accumulators:
                    accumulators[start] = self._held(ctx, windows, start, end)
                accumulators[start] = add(accumulators[start], value)
        windows.update(accumulators)

    def _held(self, ctx: Context, windows: Windows, start: dt.datetime, end: dt.datetime) -> Any:
        """Return the accumulator of a window, and set the timers of a new one."""
        accumulator = windows.get(start, _NEW)
        if accumulator is _NEW:
            accumulator = self._create()
            self.deadlines.set_all(ctx, end)
        elif self.deadlines.has_closed(ctx, end):
            self.deadlines.close_again(ctx, end)
        return accumulator

    def ending(self, timer: Timer, ctx: Context, windows: Windows) -> Iterator[OpenWindow]:
        """Return the windows that a timer belongs to: one, or several at the first and the last
        instant.
        """
        passed = self.deadlines.passed(timer)
        start = None if passed is None else plus(passed, -self._size)
        if start is None or passed == LAST:
            rows = windows.scan(start)
        else:  # it is one window, and read as a single row it is cached when it is deleted
            accumulator = windows.get(start, _NEW)
            rows = iter(() if accumulator is _NEW else ((start, accumulator),))
        opened = (
            OpenWindow(start, start, plus(start, self._size - self._into(start)), accumulator)
            for start, accumulator in rows
        )
        return takewhile(lambda w: self.deadlines.of(w.end, timer.name) == timer.at, opened)

    def alone(self, start: dt.datetime, _: dt.datetime) -> tuple[dt.datetime, dt.datetime]:
        """Return the interval of a window whose records are in no window that is deleted later."""
        return start, plus(start, self._every - self._into(start))

    def _bounds(self, at: dt.datetime) -> list[tuple[dt.datetime, dt.datetime]]:
        """Return start and end of the windows that contain a time, the earliest first."""
        into = self._into(at)
        bounds = []
        while into < self._size:
            end = plus(at, self._size - into)
            try:
                bounds.append((at - into, end))
            except OverflowError:
                # Of windows that would begin before the year 1, there is the latest, cut off.
                if self._cut_off:
                    bounds.append((FIRST, end))
                break
            into += self._every
        return bounds[::-1]

    def _into(self, at: dt.datetime) -> dt.timedelta:
        """Return the time between the latest start of a window and an instant."""
        return (at - self._origin) % self._every


class SessionRows:
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
        self.gap = window.gap
        self.add = aggregate.add
        self._create, self._merge = aggregate.create, aggregate.merge
        self.deadlines = deadlines

    def put(self, ctx: Context, windows: Windows, value: Any) -> list[OpenWindow]:
        """Add a value to the session of the current record, and return this session."""
        start, end = ctx.event_time, plus(ctx.event_time, self.gap)
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
        return start, end, self.add(held, value)

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
            at = ctx.event_time
            if grows and start <= at < end:
                limit = limit or self._next_start(windows, end)
                until = plus(at, self.gap)
                if until <= limit and until < LAST:  # no other session is touched
                    end, accumulator, is_behind = max(end, until), add(accumulator, value), True
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
            window = OpenWindow(row, *stored)
            if passed is not None and passed < LAST and window.start >= passed:
                return
            at = self.deadlines.of(window.end, timer.name)
            if at == timer.at:
                yield window
            else:
                ctx.timers.set(at, timer.name)

    def alone(self, start: dt.datetime, end: dt.datetime) -> tuple[dt.datetime, dt.datetime]:
        """Return the interval of a window whose records are in no window that is deleted later."""
        return start, end

    def _overlapping(
        self, windows: Windows, start: dt.datetime, end: dt.datetime
    ) -> Iterator[OpenWindow]:
        for row, stored in windows.scan(self.row_of(start)):
            window = OpenWindow(row, *stored)
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

        A session is at least one gap long, so no two sessions of a key have the same row. A session
        that grows by less than the gap often keeps its row.
        """
        return end if end == LAST else plus(end, -((end - _EPOCH) % self.gap))


Rows = SlidingRows | SessionRows
"""The open windows of a key, as rows."""
