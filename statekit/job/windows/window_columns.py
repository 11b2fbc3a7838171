"""Windows of many keys at once, on columns of rows.

`WindowColumns` fires the windows that are due, and deletes them with the elements that they
collected. Windows have no timers then: those that are due are found by a scan of the open windows
of each key group. There is one only if something is due, as a shard knows when its next window
ends.

If records are combined, it also adds the combined rows. `SlidingColumns` reads, combines and writes
the rows of tumbling and sliding windows in columns. `SessionColumns` reads sessions key by key, as
only a scan finds those that a row touches, and writes them together.
"""

from __future__ import annotations

import datetime as dt
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import chain, compress, groupby, islice, repeat
from operator import add, attrgetter, itemgetter, not_
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from statekit.backend.interface import prefix_end
from statekit.codec.vectorized import sortable_ints
from statekit.errors import CALL_FAILURES
from statekit.functions.context import Context, Due
from statekit.job.windows.definitions import FIRST, LAST, overlap, plus
from statekit.job.windows.elements import CollectedElements, Row, add_elements, pairs
from statekit.job.windows.open_windows import Rows, SessionRows, SlidingRows
from statekit.job.windows.window_values import WindowValues
from statekit.keygroup import GROUP_BYTES, key_fields
from statekit.records.keyed_batch import KeyColumns
from statekit.records.preaggregate import Combiner
from statekit.records.result_type import Make, made_of_columns
from statekit.state.map_state import MapState
from statekit.timestamp import (
    MAX_MICROS,
    MIN_MICROS,
    datetime_to_micros,
    micros_of_sortable,
    micros_to_datetime,
    timedelta_to_micros,
)

OPEN_MAX = 16
"""Sliding windows whose size is more than this many times `every` have timers. Without timers, a
scan for due windows reads all open windows of a key, so there must be few.
"""

_ROWS_AT_ONCE = 8_192
_START_BYTES = 8
_WINDOWS_MAX = 10_000  # that are known


class _Window(NamedTuple):
    """The start and the end of a window, and the time at which it is due in microseconds."""

    start: Any
    end: Any
    due_us: int


_Stored = tuple[bytes, int]
"""The key and the size of a stored row."""


class WindowColumns(ABC):
    """Adds to windows of many keys, and fires those that are due.

    Parameters:
        values: computes results from the values of rows and the elements.
        make: creates a result from the key fields, start, end and values of a window.
        rows: the open windows of a key.
        combiner: makes the rows that are added; None if records are added key by key.
    """

    def __init__(
        self, values: WindowValues, make: Make, rows: Rows, combiner: Combiner | None
    ) -> None:
        self._values = values
        self._make = make
        self._rows = rows
        self._combiner = combiner
        if combiner is not None:
            self._added, self._lists_at = values.added(combiner), values.lists_at(combiner)

    def fold(
        self, keys: KeyColumns, ctx: Context, windows: MapState[Any, Any], *collected: Any
    ) -> list[Any]:
        """Add combined rows to the windows of their event times, and store their elements. Return
        no results: a window fires later.

        Parameters:
            keys: the keys, and the columns of their rows. The largest event times are the last one.
            collected: the states of each `Collect`, two for each.
        """
        for place, states in zip(self._lists_at, pairs(collected), strict=True):
            add_elements(keys.prefixes, keys.columns[place], *states)
        due_us = self._add_rows(keys, windows)
        if due_us is not None:
            ctx.timers.wakes_at(due_us)
        return []

    @abstractmethod
    def _add_rows(self, keys: KeyColumns, windows: MapState[Any, Any]) -> int | None:
        """Add combined rows to windows. Return when the first of these windows is due, in
        microseconds; None if no window contains them.
        """

    @abstractmethod
    def _opened(
        self, rows: Sequence[Row], windows: MapState[Any, Any]
    ) -> tuple[list[_Window], Sequence[Any]]:
        """Return the window of each row, and the argument of `_held` for these rows."""

    @abstractmethod
    def _held(self, stored: Sequence[Any], windows: MapState[Any, Any]) -> list[Any]:
        """Return the values of rows."""

    def fire(
        self, due: Due, _: Context, windows: MapState[Any, Any], *collected: Any
    ) -> Iterator[list[Any]]:
        """Yield the results of due windows, and delete these windows.

        Parameters:
            collected: the states of each `Collect`, two for each.
        """
        soonest = None
        elements = [CollectedElements(due, self._rows.alone, *of) for of in pairs(collected)]
        rows = windows.rows_of_groups(due.groups)
        while some := list(islice(rows, _ROWS_AT_ONCE)):
            of_rows, stored = self._opened(some, windows)
            is_due = [window.due_us <= due.now_us for window in of_rows]
            if not all(is_due):
                next_us = min(window.due_us for window in of_rows if window.due_us > due.now_us)
                soonest = next_us if soonest is None else min(soonest, next_us)
                for of in elements:
                    of.keep(compress(some, map(not_, is_due)))
                some = list(compress(some, is_due))
                of_rows = list(compress(of_rows, is_due))
                stored = list(compress(stored, is_due))
            if some:
                held = self._held(stored, windows)
                lists = [of.taken(some, [window[:2] for window in of_rows]) for of in elements]
                yield self._results(due, some, of_rows, held, lists)
                windows.remove_rows(some)
        for of in elements:
            of.end()
        if soonest is not None:
            due.wakes_at(soonest)

    def _results(
        self,
        due: Due,
        rows: Sequence[Row],
        of_rows: Sequence[_Window],
        held: Sequence[Any],
        lists: Sequence[Sequence[Any]],
    ) -> list[Any]:
        """Return the results of windows.

        Parameters:
            rows: their rows.
            held: the values of these rows.
            lists: for each `Collect`, the elements of each window.
        """
        decode = due.key_codec.decode
        keys = [decode(row_key, GROUP_BYTES)[0] for row_key, _ in rows]
        fields = list(zip(*map(key_fields, keys), strict=True))
        starts = [window.start for window in of_rows]
        ends = [window.end for window in of_rows]
        try:
            values = self._values.results(held, lists)
            return made_of_columns(self._make, *fields, starts, ends, *values)
        except CALL_FAILURES:
            # Find the key that the error is about.
            for n, ((row_key, _), key) in enumerate(zip(rows, keys, strict=True)):
                due.at_key(row_key[: decode(row_key, GROUP_BYTES)[1]], key)
                one = self._values.results(held[n : n + 1], [of[n : n + 1] for of in lists])
                self._make(*key_fields(key), starts[n], ends[n], *(value for (value,) in one))
            raise


class SlidingColumns(WindowColumns):
    """Tumbling and sliding windows of many keys. Their row keys contain the starts."""

    def __init__(
        self, values: WindowValues, make: Make, rows: SlidingRows, combiner: Combiner | None
    ) -> None:
        super().__init__(values, make, rows, combiner)
        window = rows.window
        self._size_us = timedelta_to_micros(window.size)
        self._every_us = timedelta_to_micros(window.every)
        self._origin_us = timedelta_to_micros(window.offset % window.every)
        self._windows: dict[bytes, _Window] = {}

    def _opened(
        self, rows: Sequence[Row], windows: MapState[Any, Any]
    ) -> tuple[list[_Window], Sequence[Any]]:
        of_rows = [self._window_at(row_key[-_START_BYTES:]) for row_key, _ in rows]
        return of_rows, [row for _, row in rows]

    def _held(self, stored: Sequence[Any], windows: MapState[Any, Any]) -> list[Any]:
        return windows.values_of_rows(stored)

    def _window_at(self, stored_start: bytes) -> _Window:
        """Return the window with this stored start. Many rows share one window."""
        window = self._windows.get(stored_start)
        if window is None:
            if len(self._windows) >= _WINDOWS_MAX:
                self._windows.clear()
            window = self._windows[stored_start] = self._window(stored_start)
        return window

    def _window(self, stored_start: bytes) -> _Window:
        start_us = micros_of_sortable(stored_start)
        end_us = start_us + self._size_us - (start_us - self._origin_us) % self._every_us
        end = LAST if end_us >= MAX_MICROS else micros_to_datetime(end_us)
        start = FIRST if start_us == MIN_MICROS else micros_to_datetime(start_us)
        return _Window(start, end, self._rows.deadlines.due_us(end))

    def _add_rows(self, keys: KeyColumns, windows: MapState[Any, Any]) -> int | None:
        size_us, every_us = self._size_us, self._every_us
        times = np.array(keys.columns[-1], np.int64)
        latest = times - (times - self._origin_us) % every_us
        values = self._added(keys.columns)
        placed: list[tuple[list[bytes], Sequence[Any]]] = []
        soonest = MAX_MICROS
        for back in range(-(-size_us // every_us)):
            starts = latest - back * every_us
            # Of windows that would begin before the year 1, there is the latest, cut off.
            contains = (starts > times - size_us) & (starts > MIN_MICROS - every_us)
            if not contains.any():
                break
            starts = np.maximum(starts, MIN_MICROS)
            soonest = min(soonest, int(starts[contains].min()))
            row_keys = map(add, keys.prefixes, sortable_ints(starts))
            if contains.all():
                placed.append((list(row_keys), values))
            else:
                chosen = contains.tolist()
                placed.append((list(compress(row_keys, chosen)), list(compress(values, chosen))))
        if not placed:
            return None
        windows.add_all(
            list(chain.from_iterable(row_keys for row_keys, _ in placed)),
            list(chain.from_iterable(values for _, values in placed)),
            self._values.functions,
        )
        return self._window_at(sortable_ints([soonest])[0]).due_us


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
    ) -> tuple[list[_Window], Sequence[Any]]:
        due_us = self._rows.deadlines.due_us
        stored = windows.values_of_rows([row for _, row in rows])
        return [_Window(start, end, due_us(end)) for start, end, _ in stored], stored

    def _held(self, stored: Sequence[Any], windows: MapState[Any, Any]) -> list[Any]:
        return list(map(itemgetter(2), stored))

    def _add_rows(self, keys: KeyColumns, windows: MapState[Any, Any]) -> int:
        assert self._combiner is not None
        starts_us = np.array(keys.columns[self._combiner.key_size], np.int64) + MIN_MICROS
        # Rows are sorted by the ends of sessions. A session that overlaps ends after the start, so
        # its row is not before the row of a session that would end there.
        from_rows = map(add, keys.prefixes, self._row_ends(starts_us))
        starts = map(micros_to_datetime, starts_us.tolist())
        ends = [plus(micros_to_datetime(time), self._rows.gap) for time in keys.columns[-1]]
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
        self._write(windows, prefixes, grown)
        return self._rows.deadlines.due_us(min(map(attrgetter("end"), grown)))

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
    ) -> None:
        """Store sessions, and delete the rows of the earlier sessions that were merged into them.

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
