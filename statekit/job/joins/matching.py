"""Matching: which rows of one side of a join match rows of the other side, computed in columns.

A row has a key, as a number, and a point in time, as microseconds. It matches the rows of the other
side that have the same key and a point in a range. The rows of the other side are sorted by key and
point once. The matches of a row are then neighbours, which two binary searches find.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

PAIRS_AT_ONCE = 32_768
"""At most so many pairs are in memory at a time."""


class Reach(NamedTuple):
    """The range in which a row matches the points of the other side, in microseconds.

    Parameters:
        before: how far the range begins before the row's own point.
        after: how far it ends after that point. The end is in the range.
    """

    before: int
    after: int

    @property
    def reverse(self) -> Reach:
        """The range in which rows of the other side match a row of this side."""
        return Reach(self.after, self.before)


class Points(NamedTuple):
    """The keys and points of some rows, as parallel arrays.

    Parameters:
        keys: the number of the key of each row.
        points: the point of each row, in microseconds.
        begins: the first point of the other side that each row matches; None if it follows from a
            reach.
    """

    keys: Ints
    points: Ints
    begins: Ints | None = None

    @classmethod
    def one(cls, point: int) -> Points:
        """Return a single row, of key 0."""
        return cls(np.zeros(1, np.int64), np.array([point], np.int64))

    def part(self, start: int, end: int) -> Points:
        """Return the rows from `start` on and before `end`."""
        begins = None if self.begins is None else self.begins[start:end]
        return Points(self.keys[start:end], self.points[start:end], begins)

    def at(self, places: Ints) -> Points:
        """Return the rows at some places."""
        begins = None if self.begins is None else self.begins[places]
        return Points(self.keys[places], self.points[places], begins)

    def and_also(self, others: Points) -> Points:
        """Return these rows, and then others, which have `begins` if these have."""
        keys = np.concatenate([self.keys, others.keys])
        points = np.concatenate([self.points, others.points])
        if self.begins is None or others.begins is None:
            return Points(keys, points)
        return Points(keys, points, np.concatenate([self.begins, others.begins]))

    def lowest(self, reach: Reach) -> Ints:
        """Return the first point of the other side that each row matches.

        Parameters:
            reach: theirs, if they have no `begins`.
        """
        return _shifted(self.points, -reach.before) if self.begins is None else self.begins


class Matches:
    """The matches of some rows among the rows of the other side.

    Parameters:
        rows: the rows that are matched.
        others: the rows of the other side, in any order. If they have `begins`, rows before these
            do not match.
        reach: where the rows match points of the other side.

    Attributes:
        counts: the number of matches of each row, if rows of the other side have no `begins`.
            Otherwise it also counts those that `begins` leaves out.

    >>> rows = Points(np.array([1, 2]), np.array([10, 10]))
    >>> others = Points(np.array([2, 1, 1]), np.array([11, 9, 30]))
    >>> matches = Matches(rows, others, Reach(5, 5))
    >>> matches.counts.tolist()
    [1, 1]
    >>> [(of.tolist(), found.tolist()) for of, found in matches.pairs()]
    [([0, 1], [1, 0])]
    """

    def __init__(self, rows: Points, others: Points, reach: Reach) -> None:
        self._order = np.lexsort((others.points, others.keys))
        # Points become their ranks, so that key and point fit one number whatever their size.
        points = np.unique(others.points)
        ranks = len(points) + 1
        places = others.keys * ranks + np.searchsorted(points, others.points)
        places = places[self._order]
        lowest = np.searchsorted(points, rows.lowest(reach), "left")
        highest = np.searchsorted(points, _shifted(rows.points, reach.after), "right")
        self._starts = np.searchsorted(places, rows.keys * ranks + lowest)
        ends = np.searchsorted(places, rows.keys * ranks + highest)
        self.counts: Ints = np.maximum(ends - self._starts, 0)
        self._begins, self._points = others.begins, rows.points

    @property
    def last(self) -> Ints:
        """For each row, the number of the last row of the other side that it matches; -1 for
        none.
        """
        order = np.append(self._order, -1)
        return order[np.where(self.counts > 0, self._starts + self.counts - 1, len(order) - 1)]

    def pairs(self) -> Iterator[tuple[Ints, Ints]]:
        """Yield the numbers of matched rows and, in parallel, of rows of the other side that they
        match.

        Pairs are in the order of the rows. The matches of a row are in the order of their points,
        then of the other side's rows.
        """
        ends = np.cumsum(self.counts)
        total = int(ends[-1]) if len(ends) else 0
        firsts = self._starts - (ends - self.counts)  # of a row's matches, less the pairs before
        for start in range(0, total, PAIRS_AT_ONCE):
            places = np.arange(start, min(start + PAIRS_AT_ONCE, total))
            rows = np.searchsorted(ends, places, "right")
            found = self._order[firsts[rows] + places]
            if self._begins is not None:
                match = self._begins[found] <= self._points[rows]
                rows, found = rows[match], found[match]
            yield rows, found


def _shifted(points: Ints, by: int) -> Ints:
    """Add to points. Sums that do not fit are the smallest or the largest number."""
    low, high = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    if by >= 0:
        return np.where(points > high - by, high, points + min(by, high))
    return np.where(points < low - by, low, points + max(by, low))
