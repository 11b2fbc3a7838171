"""The rows of one side of a join: new ones, and those that are kept until no match can follow.

A kept row is an entry of a map: its key is the point, the epoch in which the row came and its
number among the rows of its key in that epoch. So the entries of a key are in order of points, and
the rows in a range are neighbours.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress, islice, repeat
from operator import add, ne, not_
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from statekit.backend.interface import prefix_end
from statekit.codec.vectorized import ints_of_sortable, sortable_columns
from statekit.job.joins.matching import Ints, Matches, Points, Reach
from statekit.state.map_state import MapState
from statekit.timestamp import MAX_MICROS, MIN_MICROS

ROWS_AT_ONCE = 16_384

Row = tuple[bytes, bytes]

Place = tuple[dt.datetime, int, int]
"""The point of a row, the epoch in which it came, and its number in that epoch."""

_ALL_BEFORE = Reach(2 * MAX_MICROS, 0)

_PLACE_BYTES = 24
_BEHIND = b"\xff" * (_PLACE_BYTES - 7)  # sorts behind the rest of each place


class NewRows(NamedTuple):
    """Rows of one side that have just come, or some of them.

    Parameters:
        points: the number of the key of each row, and its point. Keys are in order.
        rows: the rows.
        numbers: of each row among the rows of its key in the epoch.
        matched: whether rows have a match, for all rows that came.
        places: of these rows in `matched`.
    """

    points: Points
    rows: Sequence[Any]
    numbers: Ints
    matched: npt.NDArray[np.bool_]
    places: Ints

    @classmethod
    def of(cls, points: Points, rows: Sequence[Any], numbers: Ints) -> NewRows:
        """Return rows without a match."""
        count = len(rows)
        return cls(points, rows, numbers, np.zeros(count, np.bool_), np.arange(count))

    @property
    def is_matched(self) -> npt.NDArray[np.bool_]:
        """Whether each row has a match."""
        return self.matched[self.places]

    def note_matched(self, which: npt.NDArray[np.bool_]) -> None:
        """Note that some rows have a match."""
        self.matched[self.places[which]] = True

    def of_keys(self, first: int, end: int) -> NewRows:
        """Return the rows of the keys from `first` on and before `end`."""
        start, stop = np.searchsorted(self.points.keys, (first, end)).tolist()
        return self.part(start, stop)

    def part(self, start: int, end: int) -> NewRows:
        """Return the rows from `start` on and before `end`."""
        own = slice(start, end)
        return NewRows(
            self.points.part(start, end),
            self.rows[own],
            self.numbers[own],
            self.matched,
            self.places[own],
        )

    def ending(self, ends: Ints, reach: Reach) -> NewRows:
        """Return the rows with the ends of their intervals as points.

        Parameters:
            reach: of the rows at their present points, of which the beginnings follow.
        """
        return self._replace(points=Points(self.points.keys, ends, self.points.lowest(reach)))

    def chosen(self, which: Ints) -> NewRows:
        """Return some rows by their numbers, in that order."""
        return NewRows(
            self.points.at(which),
            list(map(self.rows.__getitem__, which.tolist())),
            self.numbers[which],
            self.matched,
            self.places[which],
        )


class KeptRows(NamedTuple):
    """Kept rows of some keys, in order of their row keys.

    Parameters:
        first: the number of the first key.
        end: the number after that of the last key.
        keys: the number of the key of each row.
        stored: row key and row of each.
        is_whole: whether these are all rows in question. If not, they are the first ones of one
            key, of which there are too many to be held at a time.
    """

    first: int
    end: int
    keys: Sequence[int]
    stored: Sequence[Row]
    is_whole: bool

    @classmethod
    def of_key(cls, key: int, stored: Sequence[Row]) -> KeptRows:
        """Return rows of one key."""
        return cls(key, key + 1, [key] * len(stored), stored, is_whole=True)

    def chosen(self, which: Sequence[bool]) -> KeptRows:
        """Return some of these rows."""
        keys, stored = list(compress(self.keys, which)), list(compress(self.stored, which))
        return self._replace(keys=keys, stored=stored)

    @property
    def points(self) -> Points:
        """The key and the point of each row."""
        point = slice(-_PLACE_BYTES, -_PLACE_BYTES + 8)
        packed = b"".join([row_key[point] for row_key, _ in self.stored])
        points = ints_of_sortable(np.frombuffer(packed, ">u8"))
        return Points(np.array(self.keys, np.int64), points)


@dataclass(frozen=True)
class Side:
    """One side of a join.

    Parameters:
        row: the class of its rows, a NamedTuple.
        stored: the class of its kept rows: with one more field, if it is known of a kept row
            whether it has a match.
        reach: where its rows match points of the other side.
        stays_us: how long after its point a row may get a match, in microseconds.
        begins: returns the first points of the other side that rows match; None if they follow from
            the reach.
        shows_unmatched: whether rows without a match are emitted when no match can follow.
        ends_at_match: whether a row is done with its first match.
    """

    row: type[Any]
    stored: type[Any]
    reach: Reach
    stays_us: int = 0
    begins: Callable[[Sequence[Any]], Ints] | None = None
    shows_unmatched: bool = False
    ends_at_match: bool = False

    @property
    def notes_matches(self) -> bool:
        """True if it is kept of a row whether it has a match."""
        return self.shows_unmatched and not self.ends_at_match

    def rows_of(self, values: Sequence[Any]) -> Sequence[Any]:
        """Return the rows of values of kept rows."""
        if not self.notes_matches:
            return values
        return [self.row._make(value[:-1]) for value in values]


class KeptSide:
    """The kept rows of one side of a join in a shard.

    Parameters:
        side: the side.
        state: its rows.
        prefixes: the key group and encoded key of each key, by number. Keys are in order.
    """

    def __init__(self, side: Side, state: MapState[Any, Any], prefixes: Sequence[bytes]) -> None:
        self.side = side
        self._state = state
        self._prefixes = prefixes

    def near(self, points: Points, reach: Reach) -> Iterator[KeptRows]:
        """Yield the kept rows that rows of the other side may match, some keys at a time.

        Parameters:
            points: of the other side's rows, in the order of their keys.
            reach: theirs.
        """
        return self._blocks(*self._ranges(points, reach))

    def _blocks(
        self, of_keys: Sequence[int], ranges: Sequence[tuple[bytes, bytes]]
    ) -> Iterator[KeptRows]:
        """Yield the kept rows of some keys in ranges of row keys, some keys at a time."""
        first, keys, stored = 0, list[int](), list[Row]()
        for key, found in zip(of_keys, self._state.stored_in(ranges, ROWS_AT_ONCE), strict=True):
            if not found:
                continue
            if len(found) == ROWS_AT_ONCE or len(stored) + len(found) > ROWS_AT_ONCE:
                yield KeptRows(first, key, keys, stored, is_whole=True)
                first, keys, stored = key, [], []
            if len(found) == ROWS_AT_ONCE:
                yield KeptRows(key, key + 1, [key] * len(found), found, is_whole=False)
                first = key + 1
            else:
                keys += repeat(key, len(found))
                stored += found
        yield KeptRows(first, len(self._prefixes), keys, stored, is_whole=True)

    def _ranges(self, points: Points, reach: Reach) -> tuple[list[int], list[tuple[bytes, bytes]]]:
        """Return the keys of rows in order, and the range of row keys that the rows of each may
        match.
        """
        starts = np.flatnonzero(np.diff(points.keys, prepend=-1))
        lowest = np.minimum.reduceat(points.lowest(reach), starts)
        highest = np.maximum.reduceat(points.points, starts) + reach.after
        keys: list[int] = points.keys[starts].tolist()
        prefixes = list(map(self._prefixes.__getitem__, keys))
        begins = map(add, prefixes, _packed(lowest))
        ends = map(add, map(add, prefixes, _packed(highest)), repeat(_BEHIND))
        return keys, list(zip(begins, ends, strict=True))

    def _ranges_until(self, last: int) -> list[tuple[bytes, bytes]]:
        """Return the range of row keys of each key up to a point."""
        (end,) = _packed(np.array([last]))
        return [(prefix, prefix + end + _BEHIND) for prefix in self._prefixes]

    def between(self, key: int, lowest: int, highest: int) -> Iterator[Row]:
        """Return the kept rows of a key with points from `lowest` to `highest`."""
        prefix = self._prefixes[key]
        begin, end = _packed(np.array([lowest, highest]))
        return iter(self._state.stored_between(prefix + begin, prefix + end + _BEHIND))

    def rows(self, stored: Sequence[Row]) -> Sequence[Any]:
        """Return kept rows as rows of the side."""
        return self.side.rows_of(self._state.values_of_rows([row for _, row in stored]))

    def points(self, block: KeptRows, rows: Sequence[Any]) -> Points:
        """Return where kept rows are.

        Parameters:
            rows: the rows.
        """
        begins = self.side.begins
        return block.points if begins is None else block.points._replace(begins=begins(rows))

    def keep(self, new: NewRows, epoch: int) -> None:
        """Keep new rows."""
        if not len(new.rows):
            return
        prefixes = map(self._prefixes.__getitem__, new.points.keys.tolist())
        epochs = np.full(len(new.rows), epoch)
        places = sortable_columns(new.points.points, epochs, new.numbers)
        row_keys = list(map(add, prefixes, places))
        values = list(new.rows)
        if self.side.notes_matches:
            matched = zip(new.is_matched.tolist(), strict=True)
            values = list(map(self.side.stored._make, map(add, map(tuple, values), matched)))
        self._state.replace_rows(row_keys, values, [0] * len(row_keys), ())

    def found(self, stored: Sequence[Row], *, at_once: bool) -> None:
        """Note that kept rows have a match, or remove them if they are done with it.

        Parameters:
            at_once: rows that are removed may be read again before others have come.
        """
        if self.side.ends_at_match:
            self._state.remove_rows(stored, at_once=at_once)
        elif self.side.notes_matches:
            rows = self._state.values_of_rows([row for _, row in stored])
            new = [n for n, row in enumerate(rows) if not row[-1]]
            if new:
                values = [rows[n]._replace(**{rows[n]._fields[-1]: True}) for n in new]
                sizes = [len(stored[n][0]) + len(stored[n][1]) for n in new]
                self._state.replace_rows([stored[n][0] for n in new], values, sizes, ())

    def take_until(self, last: int) -> Iterator[KeptRows]:
        """Remove the kept rows of all keys up to a point, and yield those without a match, if they
        are shown.
        """
        ranges = self._ranges_until(last)
        for part in self._parts(range(len(ranges)), ranges):
            yield from self._taken(part)

    def all_of(self, keys: Sequence[int]) -> Iterator[KeptRows]:
        """Yield all kept rows of some keys, some rows at a time.

        Parameters:
            keys: their numbers, in order.
        """
        prefixes = map(self._prefixes.__getitem__, keys)
        return self._parts(keys, [(prefix, prefix_end(prefix)) for prefix in prefixes])

    def first_of(self, keys: Sequence[int], most: int) -> Iterator[tuple[int, Sequence[Row]]]:
        """Yield the first kept rows of some keys, at most so many of each."""
        prefixes = map(self._prefixes.__getitem__, keys)
        ranges = ((prefix, prefix_end(prefix)) for prefix in prefixes)
        return zip(keys, self._state.stored_in(ranges, most), strict=True)

    def _parts(
        self, of_keys: Sequence[int], ranges: Sequence[tuple[bytes, bytes]]
    ) -> Iterator[KeptRows]:
        """Yield the kept rows of some keys in ranges of row keys, some rows at a time."""
        range_of = dict(zip(of_keys, ranges, strict=True))
        for block in self._blocks(of_keys, ranges):
            if block.is_whole:
                yield block
                continue
            rows = iter(self._state.stored_between(*range_of[block.first]))
            while some := list(islice(rows, ROWS_AT_ONCE)):
                yield KeptRows.of_key(block.first, some)

    def _taken(self, block: KeptRows) -> Iterator[KeptRows]:
        """Remove kept rows, and yield those without a match, if they are shown."""
        unmatched = block
        if self.side.notes_matches:
            values = self._state.values_of_rows([row for _, row in block.stored])
            unmatched = block.chosen([not value[-1] for value in values])
        if self.side.shows_unmatched and unmatched.stored:
            yield unmatched
        self._state.remove_rows(block.stored)

    def latest_at(self, points: Points) -> list[Any]:
        """Return the latest row at or before each point; None if there is none.

        Parameters:
            points: the number of the key of each point, in order, and the point.
        """
        found: list[Any] = [None] * len(points.keys)
        for block in self.near(points, _ALL_BEFORE):
            first, end = np.searchsorted(points.keys, (block.first, block.end)).tolist()
            if not block.is_whole:
                for place in range(first, end):
                    found[place] = self._last_at(block.first, int(points.points[place]))
                continue
            rows, some = self.rows(block.stored), points.part(first, end)
            matches = Matches(some, block.points, _ALL_BEFORE)
            for place, last in enumerate(matches.last.tolist(), first):
                if last >= 0:
                    found[place] = rows[last]
        return found

    def _last_at(self, key: int, point: int) -> Any:
        """Return the latest row of a key at or before a point; None if there is none."""
        prefix = self._prefixes[key]
        (end,) = _packed(np.array([point]))
        stored = self._state.last_in(prefix, prefix + end + _BEHIND)
        return None if stored is None else self.rows([stored])[0]

    def drop_replaced(self, last: int, is_deleted: Callable[[Any], bool]) -> None:
        """Remove the rows of all keys up to a point, except the latest one of each key.

        Parameters:
            is_deleted: whether a row says that there is none. It is removed, too.
        """
        ranges = self._ranges_until(last)
        for block in self._blocks(range(len(ranges)), ranges):
            is_latest = list(map(ne, block.keys, [*block.keys[1:], -1]))
            latest = block.chosen(is_latest)
            if block.is_whole:
                self._state.remove_rows(list(compress(block.stored, map(not_, is_latest))))
            else:
                rows = iter(self._state.stored_between(*ranges[block.first]))
                before = next(rows)
                while some := list(islice(rows, ROWS_AT_ONCE)):
                    self._state.remove_rows([before, *some[:-1]])
                    before = some[-1]
                latest = KeptRows.of_key(block.first, [before])
            gone = map(is_deleted, self.rows(latest.stored))
            self._state.remove_rows(list(compress(latest.stored, gone)))


def _packed(points: Ints) -> list[bytes]:
    """Return points as the start of places. Those outside of all years are cut off."""
    return sortable_columns(np.clip(points, MIN_MICROS - 1, MAX_MICROS + 1))
