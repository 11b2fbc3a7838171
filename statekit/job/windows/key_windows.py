"""Windows of one key: functions that take its records and timers one by one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from statekit.functions.context import Context
from statekit.job.windows.accumulation import itself
from statekit.job.windows.elements import Found, KeyElements, pairs
from statekit.job.windows.open_windows import OpenWindow, WindowRows
from statekit.job.windows.window_values import WindowValues
from statekit.keygroup import key_fields
from statekit.records.result_type import Make


@dataclass(frozen=True)
class KeyWindows:
    """Process functions and timer callbacks of windows. Their arguments after the context are the
    state with the open windows, and `collected`: the states of each `Collect`.

    Parameters:
        make: creates a result from the key fields, start, end and values of a window.
        values: what the rows of windows hold.
        rows: the open windows.
        value_of: returns the value that a record, or a combined row, adds.
        forgets_closed: whether a window is deleted when it fires.
    """

    make: Make
    values: WindowValues
    rows: WindowRows
    value_of: Callable[[Any], Any]
    forgets_closed: bool

    def adding(self) -> Callable[..., None]:
        """Return the function that adds a record to its windows."""
        put, value_of = self.rows.put, self.value_of

        def add(record: Any, ctx: Any, windows: Any, *collected: Any) -> None:
            self._store(record, ctx, collected)
            put(ctx, windows, value_of(record))

        return add

    def add_and_fire(self, record: Any, ctx: Any, windows: Any, *collected: Any) -> list[Any]:
        """Add a record, and return the results of its windows so far."""
        self._store(record, ctx, collected)
        return [
            self._result(ctx, window, self._between(collected, window))
            for window in self.rows.put(ctx, windows, self.value_of(record))
        ]

    def add_all(
        self, records: Any, ctx: Any, windows: Any, *collected: Any
    ) -> Iterator[Any] | None:
        """Add all records of the key, and return the results of the windows that end with one."""
        records = self._storing(records, ctx, collected)
        values = records if self.value_of is itself else map(self.value_of, records)
        full = self.rows.put_all(ctx, windows, values)
        return None if full is None else (self._result(ctx, window, ()) for window in full)

    def _store(self, record: Any, ctx: Context, collected: Sequence[Any]) -> None:
        """Store the elements of a record."""
        if collected:
            deque(self._storing((record,), ctx, collected), maxlen=0)

    def _storing(self, records: Any, ctx: Context, collected: Sequence[Any]) -> Any:
        """Return an iterable of records that stores the elements of each as it is taken."""
        time_of = self.rows.deadlines.time_of
        for states, element_of in zip(pairs(collected), self.values.elements_of, strict=True):
            records = KeyElements(*states).storing(records, ctx, time_of, element_of)
        return records

    def close(self, timer: Any, ctx: Any, windows: Any, *collected: Any) -> Iterator[Any]:
        """Fire the windows of a timer."""
        for window in self.rows.ending(timer, ctx, windows):
            yield from self._closed(ctx, window, windows, collected)

    def _closed(
        self, ctx: Context, window: OpenWindow, windows: Any, collected: Sequence[Any], *more: Any
    ) -> Iterator[Any]:
        """Yield the result of a window, and delete the window unless it gets late records.

        Parameters:
            more: the values of the result after those of aggregates.
        """
        found = self._between(collected, window)
        yield self._result(ctx, window, found, *more)
        if self.forgets_closed:
            self._forget(window, found, windows, collected)

    def forget(self, timer: Any, ctx: Any, windows: Any, *collected: Any) -> None:
        """Delete the windows of a timer."""
        for window in self.rows.ending(timer, ctx, windows):
            found = _elements(collected, *self.rows.alone(window.start, window.end))
            self._forget(window, found, windows, collected)

    def _result(self, ctx: Any, window: OpenWindow, found: Sequence[Found], *more: Any) -> Any:
        """Return the result of a window.

        Parameters:
            found: its elements, for each `Collect`.
            more: the values of the result after those of aggregates.
        """
        if found or len(self.values.aggregates) > 1:
            lists = [[[element for _, element in of]] for of in found]
            values = [value for (value,) in self.values.results([window.held], lists)]
        else:  # the row has the accumulator itself
            values = [self.values.functions.result(window.held)]
        return self.make(*key_fields(ctx.key), window.start, window.end, *values, *more)

    def _between(self, collected: Sequence[Any], window: OpenWindow) -> list[Found]:
        """Return the elements of a window, for each `Collect`."""
        return _elements(collected, window.start, window.end)

    def _forget(
        self, window: OpenWindow, found: Sequence[Found], windows: Any, collected: Sequence[Any]
    ) -> None:
        """Delete a window, and its elements that no window needs that is deleted later.

        Parameters:
            found: the elements of the window, for each `Collect`.
        """
        del windows[window.row]
        if collected:
            start, end = self.rows.alone(window.start, window.end)
            is_last = not windows
            for states, of in zip(pairs(collected), found, strict=True):
                KeyElements(*states).forget(of, start, end, is_last=is_last)


def _elements(collected: Sequence[Any], start: Any, end: Any) -> list[Found]:
    """Return the elements of an interval, for each `Collect`."""
    return [KeyElements(*states).between(start, end) for states in pairs(collected)]
