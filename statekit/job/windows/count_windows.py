"""Windows by count: a result after each number of records of a key.

The row of a window has the number of the record that fills it, counted from the first record that
the key has had since it had no windows; and how many records are missing, with the value.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from statekit.declared_call import declarable
from statekit.errors import StateTypeError
from statekit.functions.context import Context
from statekit.job.windows.instants import FIRST, LAST
from statekit.job.windows.open_windows import Deadlines, OpenWindow, WindowRows, Windows
from statekit.job.windows.sliding import WINDOWS_PER_RECORD_MAX
from statekit.job.windows.window_kind import Window
from statekit.number_faults import int_fault
from statekit.shown import shown
from statekit.state.options import Aggregate
from statekit.state.timers import Timer

_TUPLE: Any = tuple


@dataclass(frozen=True)
class CountWindow(Window):
    """Windows of a number of records of a key. Created by `count_windows`."""

    size: int
    every: int
    has_times = False

    def __str__(self) -> str:
        every = "" if self.size == self.every else f" every {self.every}"
        return f"{self.size} records{every}"

    @property
    def overlaps(self) -> bool:
        return self.size > self.every

    def rows(self, functions: Aggregate[Any, Any, Any], deadlines: Deadlines) -> CountRows:
        return CountRows(self, functions, deadlines)

    def end_of(self, row: int, stored: Any) -> dt.datetime:
        return LAST


@declarable("count_windows")
def count_windows(size: int, *, every: int | None = None) -> CountWindow:
    """Return windows of a number of records of a key, in the order in which they arrive.

    A window fires with the record that fills it. Windows that are not full are kept.

    Parameters:
        size: the number of records of a window.
        every: a result after each so many records, of the last `size` ones, or fewer at first; by
            default `size`, so that each record is in one window.

    Raises:
        StateTypeError: a number is less than 1, `every` is more than the size, or a record would be
            in more than 10,000 windows.

    >>> print(count_windows(100))
    100 records
    >>> print(count_windows(100, every=10))
    100 records every 10
    """
    step = size if every is None else every
    for what, given in (("size", size), ("every", step)):
        if fault := int_fault(given, "give a number of records, at least 1", least=1):
            raise StateTypeError(f"count_windows: {what}={shown(given)}{fault}")
    call = f"count_windows({size}, every={step})"
    if step > size:
        raise StateTypeError(
            f"{call}: some records would be in no window: give every= at most the size"
        )
    if (windows := -(-size // step)) > WINDOWS_PER_RECORD_MAX:
        raise StateTypeError(
            f"{call}: each record would be in {windows:,} windows, and "
            f"{WINDOWS_PER_RECORD_MAX:,} is the limit: give a larger every="
        )
    return CountWindow(size, step)


class CountRows(WindowRows):
    """Windows by count as rows.

    With event time, a key with open windows has a timer at its end, so that the windows fire when
    the job is drained.
    """

    row_type = int

    def __init__(
        self, window: CountWindow, aggregate: Aggregate[Any, Any, Any], deadlines: Deadlines
    ) -> None:
        self.deadlines = deadlines
        self._size, self._every = window.size, window.every
        self._create, self._add = aggregate.create, aggregate.add

    def stored(self, accumulator: Any) -> Any:
        return _TUPLE[int, accumulator]

    def put(self, ctx: Context, windows: Windows, value: Any) -> list[OpenWindow]:
        """Add a value to the open windows, and return the full one."""
        return list(self.put_all(ctx, windows, (value,)))

    def put_all(
        self, ctx: Context, windows: Windows, values: Iterable[Any]
    ) -> Iterator[OpenWindow]:
        """Add a value for each record of a key, and yield full windows. Each window is read and
        written once.

        Parameters:
            values: taken one by one, each while its record is handled.
        """
        stored = dict(windows.items())
        opened = {row: held for row, (_, held) in stored.items()}
        number = next((row - missing for row, (missing, _) in stored.items()), 0)
        create, add, size, every = self._create, self._add, self._size, self._every
        for value in values:
            for row in range(number - number % every + every, number + size + 1, every):
                held = opened[row] if row in opened else create()
                opened[row] = add(held, value)
            number += 1
            if number % every == 0:
                yield OpenWindow(number, FIRST, LAST, opened.pop(number))
                number = number if opened else 0
        for row in stored.keys() - opened.keys():
            del windows[row]
        windows.update({row: (row - number, held) for row, held in opened.items()})
        self._set_timers(ctx, was_open=bool(stored), is_open=bool(opened))

    def open_window(self, row: int, stored: Any) -> OpenWindow:
        return OpenWindow(row, FIRST, LAST, stored[1])

    def _set_timers(self, ctx: Context, *, was_open: bool, is_open: bool) -> None:
        """Set the timers of a key that has open windows now, or delete those of one that had."""
        if is_open and not was_open:
            self.deadlines.set_all(ctx, LAST)
        elif was_open and not is_open:
            for name in self.deadlines.leads:
                ctx.timers.delete(self.deadlines.of(LAST, name), name)

    def ending(self, timer: Timer, ctx: Context, windows: Windows) -> Iterator[OpenWindow]:
        """Yield the window that would have been full next, if it has records that were in no
        result, and delete all others, whose records it has too.
        """
        rows = sorted(windows.items())
        for row, (missing, held) in rows[:1]:
            if missing < self._every:
                yield self.open_window(row, (missing, held))
                rows = rows[1:]
        for row, _ in rows:
            del windows[row]
