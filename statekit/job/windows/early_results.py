"""Early results: open windows that have changed fire every so often before their end.

A state has a mark for each window that has changed since its last result: the instant at which it
fires. All marked windows of a key fire with the first of them. `EarlyColumns` scans the marks of
many keys. `EarlyWindows` has a timer for each key with marks.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any, NamedTuple

from statekit.checkpoint.job_file import Clock
from statekit.functions.context import Context, Due
from statekit.job.windows.elements import Row
from statekit.job.windows.instants import plus
from statekit.job.windows.key_windows import KeyWindows
from statekit.job.windows.open_windows import Deadlines, OpenWindow
from statekit.job.windows.window_columns import ROWS_AT_ONCE, WindowColumns
from statekit.keygroup import GROUP_BYTES
from statekit.records.keyed_batch import KeyColumns
from statekit.state.map_state import MapState
from statekit.timestamp import datetime_to_micros, micros_to_datetime

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

    def next(self, ctx: Context) -> dt.datetime:
        """Return the next of them."""
        return self.after(ctx.watermark if self.clock == "event" else ctx.processing_time)


class EarlyColumns:
    """Windows of many keys with early results. They have no timers.

    Parameters:
        columns: the windows.
        deadlines: when they are due.
        times: of early results.
    """

    def __init__(self, columns: WindowColumns, deadlines: Deadlines, times: EarlyTimes) -> None:
        self._columns, self._deadlines, self._times = columns, deadlines, times

    def fold(
        self,
        keys: KeyColumns,
        ctx: Context,
        windows: MapState[Any, Any],
        changed: MapState[Any, int],
        *collected: Any,
    ) -> list[Any]:
        """Add combined rows to their windows, and mark these. Return no results.

        Parameters:
            keys, collected: as for `WindowColumns.add`.
            changed: the marks.
        """
        row_keys = sorted(set(self._columns.add(keys, ctx, windows, collected)))
        marks = zip(row_keys, changed.read_rows(row_keys), strict=True)
        new = [row_key for row_key, mark in marks if mark is None]
        at_us = datetime_to_micros(self._times.next(ctx))
        changed.replace_rows(new, [at_us] * len(new), [0] * len(new), ())
        if new:
            ctx.timers.wakes_at(at_us, self._times.clock)
        return []

    def fire(
        self,
        due: Due,
        _: Context,
        windows: MapState[Any, Any],
        changed: MapState[Any, int],
        *collected: Any,
    ) -> Iterator[list[Any]]:
        """Yield the results of windows that are due, and then of those with a mark that is due."""
        if due.clock == self._deadlines.clock:
            yield from self._columns.close(due, windows, collected, True)
            windows.remove_rows((), at_once=True)  # so that their marks find no row
        if due.clock == self._times.clock:
            marks = self._due_marks(due, changed)
            while some := list(islice(marks, ROWS_AT_ONCE)):
                row_keys = [row_key for row_key, _ in some]
                yield self._columns.open_results(due, row_keys, windows, collected, False)
                changed.remove_rows(some)

    def _due_marks(self, due: Due, changed: MapState[Any, int]) -> Iterator[Row]:
        """Yield the marks of keys with one that is due. Note when the first of the others is."""
        decode = due.key_codec.decode
        rows = changed.rows_of_groups(due.groups)
        for _, own in groupby(rows, lambda row: row[0][: decode(row[0], GROUP_BYTES)[1]]):
            marks = list(own)
            at_us = min(changed.values_of_rows([row for _, row in marks]))
            if at_us <= due.now_us:
                yield from marks
            else:
                due.wakes_at(at_us)


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
            self.times.next(ctx), "early", self.times.clock
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
        deadlines, at = self.rows.deadlines, self.times.next(ctx)
        opened = [window.row for window in windows if not deadlines.has_closed(ctx, window.end)]
        for row in opened:
            changed.setdefault(row, datetime_to_micros(at))
        if not opened:
            return
        if deadlines.has_timers:
            ctx.timers.set(at, "early", self.times.clock)
        else:
            ctx.timers.wakes_at(datetime_to_micros(at), self.times.clock)
