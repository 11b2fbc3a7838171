"""Open windows of one key as rows, with their deadlines.

An operator keeps one row per open window of a key. The module of a kind of windows says what its
rows are, and `window_values` what the value of a row is.
"""

from __future__ import annotations

import datetime as dt
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from statekit.checkpoint.job_file import Clock
from statekit.functions.context import Context
from statekit.job.windows.instants import FIRST, LAST, plus
from statekit.state.map_state import MapState
from statekit.state.timers import Timer
from statekit.timestamp import datetime_to_micros

_ZERO, _MICROSECOND = dt.timedelta(0), dt.timedelta(microseconds=1)
# The soonest at which a window closes: the first instant is over before there is a watermark.
_EARLIEST = FIRST + _MICROSECOND

_NEW: Any = object()

WINDOWS_AT_ONCE = 100
"""Windows of a key in memory at once while its records are added, beside those of two records."""

Windows = MapState[Any, Any]
"""The state with the open windows of a key, by their row keys."""


class OpenWindow(NamedTuple):
    """An open window of a key, which may still receive records: its row, bounds and accumulator."""

    row: Any
    start: dt.datetime
    end: dt.datetime
    held: Any


class Deadlines:
    """The due times of the timers of windows.

    Parameters:
        leads: the names of the timers of a window, and how long before the last moment at which a
            record of the window may arrive each is due.
        ordered: whether records are handled in order of time. A timer then fires before the records
            of its instant, so that the moment is the end of the window. Otherwise it is the last
            microsecond before: once the watermark is there, records of the window are late.
        has_timers: whether windows have timers. If not, the shard only wakes up when one is due.
        clock: the clock of windows and their timers. Records of the present instant may follow in
            the next epoch, so by processing time the moment is the end of the window, too.
    """

    def __init__(
        self,
        leads: dict[str, dt.timedelta],
        ordered: bool,
        *,
        has_timers: bool = True,
        clock: Clock = "event",
    ) -> None:
        self.clock = clock
        self.margin = _ZERO if ordered or clock == "processing" else _MICROSECOND
        self.leads = leads
        self.has_timers = has_timers

    def time_of(self, ctx: Context) -> dt.datetime:
        """Return the time of the current record."""
        return ctx.event_time if self.clock == "event" else ctx.processing_time

    def now(self, ctx: Context) -> dt.datetime:
        """Return the time up to which windows have fired, or fire in this epoch."""
        return ctx.watermark if self.clock == "event" else ctx.processing_time

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
            ctx.timers.wakes_at(self.due_us(end), self.clock)
            return
        for name in self.leads:
            ctx.timers.set(self.of(end, name), name, self.clock)

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


class WindowRows(ABC):
    """The open windows of a key, as rows.

    Attributes:
        row_type: the annotation of the row keys, after the key.
        deadlines: when they are due.
    """

    row_type: Any = dt.datetime
    deadlines: Deadlines

    def stored(self, accumulator: Any) -> Any:
        """Return the annotation of the value of a row, from that of the accumulator."""
        return accumulator

    @abstractmethod
    def put(self, ctx: Context, windows: Windows, value: Any) -> list[OpenWindow]:
        """Add a value to the windows of the current record, and return these windows."""

    @abstractmethod
    def put_all(
        self, ctx: Context, windows: Windows, values: Iterable[Any]
    ) -> Iterable[OpenWindow] | None:
        """Add a value for each record of a key. Return the windows that are full, if windows end
        with a record.

        Parameters:
            values: taken one by one, each while its record is handled.
        """

    @abstractmethod
    def ending(self, timer: Timer, ctx: Context, windows: Windows) -> Iterator[OpenWindow]:
        """Return the windows that a timer belongs to."""

    @abstractmethod
    def open_window(self, row: Any, stored: Any) -> OpenWindow:
        """Return a window from its row key and the value of its row."""

    def _opened(
        self, ctx: Context, windows: Windows, row: Any, end: dt.datetime, create: Callable[[], Any]
    ) -> Any:
        """Return the accumulator of the window of a row, and set the timers of a new one."""
        accumulator = windows.get(row, _NEW)
        if accumulator is _NEW:
            accumulator = create()
            self.deadlines.set_all(ctx, end)
        elif self.deadlines.has_closed(ctx, end):
            self.deadlines.close_again(ctx, end)
        return accumulator

    def alone(self, start: dt.datetime, end: dt.datetime) -> tuple[dt.datetime, dt.datetime]:
        """Return the interval of a window whose records are in no window that is deleted later."""
        return start, end
