"""The operator of a lookup: each left record with the row of a table that has its key.

The right side is a table: each of its records replaces the row of its key, or deletes it. By order
of arrival a left record sees the row that is there; within an epoch a key sees the changes of the
table first. By event time (`as_of`) it waits until the watermark has reached its time, and sees the
row of that time: all versions are kept that a left record may still need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from statekit.functions.context import Context, Due
from statekit.job.joins.join_points import times_as_points
from statekit.job.joins.join_results import JoinResults
from statekit.job.joins.matching import Points, Reach
from statekit.job.joins.side_rows import KeptSide, NewRows, Side
from statekit.job.joins.stream_join import new_rows, next_step, note_key, rows_at, set_timers
from statekit.records.keyed_batch import KeyedRecords
from statekit.state.base import row_sizes
from statekit.state.map_state import MapState
from statekit.state.single_row_states import ValueState
from statekit.timestamp import MAX_MICROS

TIMER = "reached"
"""The name of the timers of waiting records, and of versions that may replace older ones."""

# Older versions are removed at the next of these instants, so that there are few timers.
_STEP_US = 60_000_000

_HERE = Reach(0, 0)


@dataclass(frozen=True)
class Lookup:
    """The common part of lookups by arrival and by event time.

    Parameters:
        left, right: the classes of the rows.
        how: "inner" emits left rows with a row of the table, "left" all of them, "semi" and "anti"
            those with and those without one, alone.
        is_deleted: whether a right row deletes that of its key.
        results: creates the results.
    """

    left: type[Any]
    right: type[Any]
    how: str
    is_deleted: Callable[[Any], bool]
    results: JoinResults

    def found(
        self,
        rows: Sequence[Any],
        table: Sequence[Any],
        points: Points,
        at_key: Callable[[int], None],
    ) -> Iterator[list[Any]]:
        """Yield the results of left rows.

        Parameters:
            table: the row of the table for each; None if there is none.
            points: the number of the key of each row, and its point.
            at_key: called with the number of the key that an error is about.
        """
        has_row = np.array([row is not None for row in table], np.bool_)
        if self.how != "anti" and has_row.any():
            some = np.flatnonzero(has_row)
            of_table = None if self.how == "semi" else rows_at(table, some)
            yield self.results.of(rows_at(rows, some), of_table, points.at(some), at_key)
        if self.how in ("left", "anti") and not has_row.all():
            some = np.flatnonzero(~has_row)
            yield self.results.of(rows_at(rows, some), None, points.at(some), at_key)


class LookupByArrival(Lookup):
    """A lookup of the row that is there when a record arrives."""

    def look(
        self, records: KeyedRecords, _: Context[Any], table: ValueState[Any]
    ) -> Iterator[list[Any]]:
        """Change the table, and yield the results of left records."""
        split = new_rows(records, self.left, times_as_points)
        current = self._changed(records.prefixes, split.right, table)
        for rows, matches in ((split.left, True), (split.left_never, False)):
            keys = rows.points.keys.tolist()
            of_table = list(map(current.__getitem__, keys)) if matches else [None] * len(keys)
            yield from self.found(rows.rows, of_table, rows.points, records.note_key)

    def _changed(
        self, prefixes: Sequence[bytes], new: NewRows, table: ValueState[Any]
    ) -> Sequence[Any]:
        """Write new rows of the table. Return the row of each key after that; None for none."""
        stored = table.read_rows(prefixes)
        current = table.values_of_rows(stored)
        last = dict(zip(new.points.keys.tolist(), new.rows, strict=True))  # the last one of a key
        written, removed = list[int](), list[int]()
        for key, row in last.items():
            deleted = self.is_deleted(row)
            (removed if deleted else written).append(key)
            current[key] = None if deleted else row
        sizes = row_sizes(prefixes, stored)
        table.replace_rows(
            [prefixes[key] for key in written],
            [current[key] for key in written],
            [sizes[key] for key in written],
            [(prefixes[key], sizes[key]) for key in removed if sizes[key]],
        )
        return current


class LookupByTime(Lookup):
    """A lookup of the row that the table had at the time of a record."""

    def look(
        self,
        records: KeyedRecords,
        ctx: Context[Any],
        versions: MapState[Any, Any],
        waiting: MapState[Any, Any],
    ) -> Iterator[list[Any]]:
        """Keep new versions, and left records until their time is reached. Yield nothing."""
        split = new_rows(records, self.left, times_as_points)
        kept = self._sides(records.prefixes, versions, waiting)
        for side, rows in zip(kept, (split.right, split.left), strict=True):
            side.keep(rows, ctx.epoch)
        kept[1].keep(split.left_never, ctx.epoch)
        timers = []
        for rows, step_us in ((split.right, _STEP_US), (split.left, 1), (split.left_never, 1)):
            timers.append((rows.points.keys, next_step(rows.points.points, step_us)))
        set_timers(ctx, records.prefixes, timers, TIMER)
        yield from ()

    def fire(
        self, due: Due, ctx: Context[Any], versions: MapState[Any, Any], waiting: MapState[Any, Any]
    ) -> Iterator[list[Any]]:
        """Yield the results of left records whose time is reached, and remove old versions."""
        last = min(due.now_us, MAX_MICROS)
        for prefixes in ctx.timers.take_all(due.groups, TIMER, due.wakes_at):
            of_versions, of_waiting = self._sides(prefixes, versions, waiting)
            at_key = partial(note_key, due, prefixes)
            for block in of_waiting.take_until(last):
                points, rows = block.points, of_waiting.rows(block.stored)
                of_table = self._versions_at(of_versions, points)
                yield from self.found(rows, of_table, points, at_key)
            of_versions.drop_replaced(last, self.is_deleted)

    def _sides(
        self, prefixes: Sequence[bytes], versions: MapState[Any, Any], waiting: MapState[Any, Any]
    ) -> tuple[KeptSide, KeptSide]:
        waits = Side(self.left, self.left, _HERE, shows_unmatched=True, ends_at_match=True)
        table = Side(self.right, self.right, _HERE)
        return KeptSide(table, versions, prefixes), KeptSide(waits, waiting, prefixes)

    def _versions_at(self, versions: KeptSide, points: Points) -> list[Any]:
        """Return the row of the table for each waiting row at its time; None if there is none."""
        return [
            None if row is None or self.is_deleted(row) else row
            for row in versions.latest_at(points)
        ]
