"""The join of two streams in columns: matches in range, and rows without a match in time.

The matches of new rows are found in two passes: new rows of the left side among the kept rows of
the right side, then new rows of the right side among all rows of the left side. Within an epoch a
key sees its left rows first. So each pair is found once, and the results of a key are in the order
in which the later row of each pair came, then in the order of the other row's point.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import compress, islice
from typing import Any, Literal, NamedTuple

import numpy as np

from statekit.functions.context import Context, Due
from statekit.job.joins.join_points import JoinPoints
from statekit.job.joins.join_results import JoinResults
from statekit.job.joins.matching import PAIRS_AT_ONCE, Ints, Matches, Points, Reach
from statekit.job.joins.side_rows import ROWS_AT_ONCE, KeptRows, KeptSide, NewRows, Row, Side
from statekit.job.joins.sweep import swept
from statekit.keygroup import key_fields
from statekit.records.keyed_batch import KeyedRecords
from statekit.state.map_state import MapState
from statekit.timestamp import MAX_MICROS, datetime_to_micros

TIMER = "over"
"""The name of the timers of rows that can get no more matches."""

_State = MapState[Any, Any]


@dataclass(frozen=True)
class StreamJoin:
    """A join of two streams.

    Parameters:
        left, right: the sides.
        points: where rows are in time, and until when they can get matches.
        results: creates the results.
        ends: returns the ends of the intervals of left rows, if these have their own.
        emits: "pairs" for each match, "left" for each left row at its first match, or "nothing".
    """

    left: Side
    right: Side
    points: JoinPoints
    results: JoinResults
    ends: Callable[[Sequence[Any]], Ints] | None = None
    emits: Literal["pairs", "left", "nothing"] = "pairs"

    def join(
        self, records: KeyedRecords, ctx: Context[Any], left: _State, right: _State
    ) -> Iterator[list[Any]]:
        """Add new rows, and yield the results that follow at once."""
        split = new_rows(records, self.left.row, self.points.of)
        if self.ends is not None:
            split = split.with_ends(self.ends, self.left.reach)
        new, without_key = (split.left, split.right), (split.left_never, split.right_never)
        kept = [
            KeptSide(side, state, records.prefixes)
            for side, state in ((self.left, left), (self.right, right))
        ]
        yield from _Pass(self, new[0], kept[1], None, records.note_key).results()
        yield from _Pass(self, new[1], kept[0], new[0], records.note_key).results()
        timers: list[tuple[Ints, Ints]] = []
        for of_side, never, rows in zip(kept, without_key, new, strict=True):
            timers.append(self._keep(rows, of_side, ctx))
            if of_side.side.shows_unmatched:
                timers.append(self._keep(never, of_side, ctx))
        if self.points.ends:
            set_timers(ctx, records.prefixes, timers, TIMER)

    def fire(self, due: Due, ctx: Context[Any], left: _State, right: _State) -> Iterator[list[Any]]:
        """Remove rows that can get no more matches, and yield results for those without any."""
        for prefixes in ctx.timers.take_all(due.groups, TIMER, due.wakes_at):
            at_key = partial(note_key, due, prefixes)
            for side, state in ((self.left, left), (self.right, right)):
                kept = KeptSide(side, state, prefixes)
                step_us = 1 if side.shows_unmatched else self.points.step_us
                last = self.points.last_over(side.stays_us, _until(due.now_us, step_us))
                for block in kept.take_until(last):
                    rows = kept.rows(block.stored)
                    left_rows, right_rows = (rows, None) if side is self.left else (None, rows)
                    yield self.results.of(left_rows, right_rows, block.points, at_key)

    def _keep(self, new: NewRows, kept: KeptSide, ctx: Context[Any]) -> tuple[Ints, Ints]:
        """Keep new rows until no match can follow. Return the keys and the times of their timers,
        in microseconds.
        """
        side = kept.side
        over_us = self.points.over_at(side.stays_us, new.points.points)
        which = np.ones(len(new.rows), np.bool_)
        if self.points.ends:
            which = over_us > datetime_to_micros(ctx.watermark)
            if side.shows_unmatched:
                which |= ~new.is_matched
        if side.ends_at_match:
            which &= ~new.is_matched
        some = np.flatnonzero(which)
        new, over_us = new.chosen(some), over_us[some]
        kept.keep(new, ctx.epoch)
        step_us = 1 if side.shows_unmatched else self.points.step_us  # fewer timers, a little later
        return new.points.keys, next_step(over_us, step_us)


def next_step(times_us: Ints, step_us: int) -> Ints:
    """Return the next steps at or after some times. The last instant is one."""
    return np.minimum(-(-times_us // step_us) * step_us, MAX_MICROS)


def note_key(due: Due, prefixes: Sequence[bytes], number: int) -> None:
    """Note the key that an error is about, by its number."""
    due.note_key(prefixes[number])


def set_timers(
    ctx: Context[Any], prefixes: Sequence[bytes], timers: Sequence[tuple[Ints, Ints]], name: str
) -> None:
    """Set the timers of all new rows at once: a timer that is set twice is one timer.

    Parameters:
        prefixes: of the keys.
        timers: the numbers of keys, and the time of a timer for each, in microseconds.
        name: of the timers.
    """
    keys, at_us = (np.concatenate(of).tolist() for of in zip(*timers, strict=True))
    if keys:
        ctx.timers.set_all(map(prefixes.__getitem__, keys), at_us, name)


class SplitRows(NamedTuple):
    """New rows by side.

    Parameters:
        left, right: the rows of each side.
        left_never, right_never: those whose key has a part that is None, so that they never match.
    """

    left: NewRows
    right: NewRows
    left_never: NewRows
    right_never: NewRows

    def with_ends(self, ends: Callable[[Sequence[Any]], Ints], reach: Reach) -> SplitRows:
        """Return the rows, those of the left side with the ends of their intervals as points."""
        left, never = self.left, self.left_never
        return self._replace(
            left=left.ending(ends(left.rows), reach),
            left_never=never.ending(ends(never.rows), reach),
        )


def new_rows(
    records: KeyedRecords, left: type[Any], points_of: Callable[[Ints], tuple[Ints, Ints]]
) -> SplitRows:
    """Return the new rows of each side.

    Parameters:
        left: the class of left rows.
        points_of: returns the points of rows by their times, and in parallel the place of the row.
            A row may have several points.
    """
    sizes = np.array(records.sizes, np.int64)
    keys = np.repeat(np.arange(len(sizes)), sizes)
    firsts = np.array(records.firsts, np.int64) - (np.cumsum(sizes) - sizes)
    numbers = np.arange(len(keys)) + np.repeat(firsts, sizes)
    times = np.array(records.times or [0] * len(keys), np.int64)
    is_left = np.array([type(row) is left for row in records.records], np.bool_)
    has_none = np.array([None in key_fields(key) for key in records.keys], np.bool_)[keys]

    def rows_where(which: Any) -> NewRows:
        some = np.flatnonzero(which)
        points, place = points_of(times[some])
        some = some[place]
        return NewRows.of(Points(keys[some], points), rows_at(records.records, some), numbers[some])

    return SplitRows(
        rows_where(is_left & ~has_none),
        rows_where(~is_left & ~has_none),
        rows_where(is_left & has_none),
        rows_where(~is_left & has_none),
    )


class _Pass:
    """Matches new rows of one side with rows of the other side.

    Parameters:
        join: the join.
        new: the new rows.
        kept: the kept rows of the other side.
        others: new rows of the other side that came before; None for the first pass.
        at_key: called with the number of the key that an error is about.
    """

    def __init__(
        self,
        join: StreamJoin,
        new: NewRows,
        kept: KeptSide,
        others: NewRows | None,
        at_key: Callable[[int], None],
    ) -> None:
        self._join = join
        self._new = new
        self._is_left = others is None
        self._reach = (join.left if self._is_left else join.right).reach
        self._kept = kept
        self._others = others
        self._at_key = at_key

    def results(self) -> Iterator[list[Any]]:
        """Yield the results of all matches."""
        if not len(self._new.rows):
            return
        for block in self._kept.near(self._new.points, self._reach):
            new, others = self._new.of_keys(block.first, block.end), self._others
            if others is not None:
                others = others.of_keys(block.first, block.end)
            if not len(new.rows):
                continue
            if block.is_whole:
                yield from self._matched(new, block, others, at_once=False)
            else:
                yield from self._matches_of_large_key(new, block.first, others)

    def _matches_of_large_key(
        self, new: NewRows, key: int, others: NewRows | None
    ) -> Iterator[list[Any]]:
        """Yield the results of the new rows of a key that has more rows than fit in memory."""
        found = None
        if self._join.emits == "pairs" and self._join.ends is None:
            found = swept(new, self._reach, self._kept, key, others)
        if found is None:
            for place in range(len(new.rows)):
                yield from self._matches_of_one(new.part(place, place + 1), key, others)
            return
        for start in range(0, len(found.of_new), PAIRS_AT_ONCE):
            some = slice(start, start + PAIRS_AT_ONCE)
            yield self._pairs(new, found.of_new[some], found.rows, found.found[some])
        new.note_matched(np.isin(np.arange(len(new.rows)), found.of_new))
        if self._kept.side.shows_unmatched:
            self._kept.found(found.kept, at_once=False)
            if others is not None:
                others.note_matched(np.isin(np.arange(len(others.rows)), found.others))

    def _matches_of_one(
        self, new: NewRows, key: int, others: NewRows | None
    ) -> Iterator[list[Any]]:
        """Yield the results of one row with those of many rows, some at a time."""
        if others is not None:
            others = others.chosen(np.argsort(others.points.points, kind="stable"))
        (lowest,), (point,) = new.points.lowest(self._reach).tolist(), new.points.points.tolist()
        rows = self._kept.between(key, lowest, point + self._reach.after)
        is_once = self._is_left and self._join.emits != "pairs"
        while some := list(islice(rows, ROWS_AT_ONCE)):
            if is_once and new.is_matched.any():
                return
            block, before = KeptRows.of_key(key, some), None
            if others is not None:
                last = block.points.points[-1]
                end = int(np.searchsorted(others.points.points, last))
                before, others = others.part(0, end), others.part(end, len(others.rows))
            yield from self._matched(new, block, before, at_once=True)
        if others is not None:
            yield from self._matched(new, KeptRows.of_key(key, []), others, at_once=True)

    def _matched(
        self, new: NewRows, block: KeptRows, others: NewRows | None, *, at_once: bool
    ) -> Iterator[list[Any]]:
        """Yield the results of new rows with kept rows and other new ones.

        Parameters:
            at_once: what is done to kept rows has to be seen by the next call.
        """
        if others is not None and self._kept.side.ends_at_match:
            others = others.chosen(np.flatnonzero(~others.is_matched))
        left_alone = self._is_left and self._join.emits != "pairs"
        kept_rows = () if left_alone else self._kept.rows(block.stored)
        points = self._kept.points(block, kept_rows)
        points = points if others is None else points.and_also(others.points)
        if not len(points.keys):
            return
        matches = Matches(new.points, points, self._reach)
        if left_alone:
            yield from self._left_rows(new, matches)
            return
        rows = [*kept_rows, *(() if others is None else others.rows)]
        hit, new_hit = np.zeros(len(rows), np.bool_), np.zeros(len(new.rows), np.bool_)
        for of_new, found in matches.pairs():
            if self._join.emits == "pairs":
                yield self._pairs(new, of_new, rows, found)
            elif self._join.emits == "left":
                first = _first_ones(found[~hit[found]])
                yield self._made(rows_at(rows, first), None, points.at(first))
            hit[found] = new_hit[of_new] = True
        new.note_matched(new_hit)
        self._note(block.stored, others, hit, at_once=at_once)

    def _left_rows(self, new: NewRows, matches: Matches) -> Iterator[list[Any]]:
        """Yield the results of new left rows alone, each at its first match. Nothing is noted of
        rows of the right side.
        """
        first = (matches.counts > 0) & ~new.is_matched
        new.note_matched(first)
        if self._join.emits == "left":
            some = np.flatnonzero(first)
            yield self._made(rows_at(new.rows, some), None, new.points.at(some))

    def _pairs(self, new: NewRows, of_new: Ints, rows: Sequence[Any], found: Ints) -> list[Any]:
        """Return the results of pairs of new rows and rows of the other side, by their places."""
        ours, theirs = rows_at(new.rows, of_new), rows_at(rows, found)
        left, right = (ours, theirs) if self._is_left else (theirs, ours)
        return self._made(left, right, new.points.at(of_new))

    def _made(self, left: Sequence[Any], right: Sequence[Any] | None, points: Points) -> list[Any]:
        """Return the results of pairs."""
        return self._join.results.of(left, right, points, self._at_key)

    def _note(
        self, stored: Sequence[Row], others: NewRows | None, hit: Any, *, at_once: bool
    ) -> None:
        """Note which rows of the other side have a match: kept ones first, then new ones."""
        if self._kept.side.shows_unmatched or self._kept.side.ends_at_match:
            self._kept.found(list(compress(stored, hit)), at_once=at_once)
            if others is not None:
                others.note_matched(hit[len(stored) :])


def _until(watermark_us: int, step_us: int) -> int:
    """Return the last step that a watermark has reached. The last instant is one."""
    return watermark_us if watermark_us >= MAX_MICROS else watermark_us // step_us * step_us


def _first_ones(numbers: Ints) -> Ints:
    """Return each number once, where it is first."""
    return numbers[np.sort(np.unique(numbers, return_index=True)[1])]


def rows_at(rows: Sequence[Any], places: Ints) -> list[Any]:
    """Return the rows at some places."""
    return list(map(rows.__getitem__, places.tolist()))
