"""Early results: open windows that have changed fire every so often before their end.

A state has a mark for each window that has changed since its last result, and a key with marks has
a timer at the next multiple of the period. So windows without changes cost nothing.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from statekit.checkpoint.job_file import Clock
from statekit.functions.context import Context
from statekit.job.windows.instants import plus
from statekit.job.windows.key_windows import KeyWindows
from statekit.job.windows.open_windows import OpenWindow
from statekit.timestamp import micros_to_datetime

_EPOCH = micros_to_datetime(0)
_GONE: Any = object()

IS_FINAL = "is_final"
"""The field of results that is False in early ones."""


class EarlyTimes(NamedTuple):
    """The instants of early results: multiples of a period since 1970, by a clock."""

    period: dt.timedelta
    clock: Clock

    def after(self, at: dt.datetime) -> dt.datetime:
        """Return the first of them after an instant.

        >>> EarlyTimes(dt.timedelta(hours=6), "event").after(dt.datetime(2026, 1, 1, tzinfo=dt.UTC))
        datetime.datetime(2026, 1, 1, 6, 0, tzinfo=datetime.timezone.utc)
        """
        return plus(at, self.period - (at - _EPOCH) % self.period)


@dataclass(frozen=True)
class EarlyWindows(KeyWindows):
    """Windows of one key with early results. After the state with the open windows, functions take
    that with the marks.

    Parameters:
        times: of early results.
    """

    times: EarlyTimes

    def adding(self) -> Callable[..., None]:
        """Return the function that adds a record to its windows, and marks them."""
        put, value_of = self.rows.put, self.value_of

        def add(record: Any, ctx: Any, windows: Any, changed: Any, *collected: Any) -> None:
            self._store(record, ctx, collected)
            self._mark(ctx, changed, put(ctx, windows, value_of(record)))

        return add

    def close(
        self, timer: Any, ctx: Any, windows: Any, changed: Any = None, *collected: Any
    ) -> Iterator[Any]:
        """Fire the windows of a timer with their last results. A mark of one stays until the timer
        of early results finds it, so that a key has marks as long as it has that timer.
        """
        for window in self.rows.ending(timer, ctx, windows):
            yield from self._closed(ctx, window, windows, collected, True)

    def forget(
        self, timer: Any, ctx: Any, windows: Any, changed: Any = None, *collected: Any
    ) -> None:
        """Delete the windows of a timer."""
        super().forget(timer, ctx, windows, *collected)

    def early(
        self, timer: Any, ctx: Any, windows: Any, changed: Any, *collected: Any
    ) -> Iterator[Any]:
        """Fire the open windows with a mark, and remove all marks."""
        ctx.timers.delete(
            self._next(ctx), "early", self.times.clock
        )  # records of this epoch set it
        for row in list(changed):
            del changed[row]
            stored = windows.get(row, _GONE)
            if stored is _GONE:
                continue  # it has fired, or is a session that has another row now, with a mark
            window = self.rows.open_window(row, stored)
            # Of a window that closes in this epoch, the last result is enough.
            if self.rows.deadlines.of(window.end, "close") > self.rows.deadlines.now(ctx):
                yield self._result(ctx, window, self._between(collected, window), False)

    def _mark(self, ctx: Context, changed: Any, windows: Iterable[OpenWindow]) -> None:
        """Mark windows, except for those that have had their last result: they fire again anyway,
        once per epoch.
        """
        opened = [w.row for w in windows if not self.rows.deadlines.has_closed(ctx, w.end)]
        changed.update(dict.fromkeys(opened, True))
        if opened:
            ctx.timers.set(self._next(ctx), "early", self.times.clock)

    def _next(self, ctx: Context) -> dt.datetime:
        """Return the next instant of early results."""
        by_event = self.times.clock == "event"
        return self.times.after(ctx.watermark if by_event else ctx.processing_time)
