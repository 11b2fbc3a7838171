"""The matches of many new rows of one key with more kept rows than fit in memory.

The kept rows in question are read once, in order of points. The new rows that may match some of
them are neighbours if they are sorted by their points, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from statekit.job.joins import matching, side_rows
from statekit.job.joins.matching import Ints, Matches, Reach
from statekit.job.joins.side_rows import KeptRows, KeptSide, NewRows, Row

_PAIRS_MAX = 8  # times as many as are in memory otherwise
_KEPT_PER_ROW_MAX = 64  # so many kept rows are read for each new row at most


class Swept(NamedTuple):
    """Pairs of new rows of a key with rows of the other side, in the order of results.

    Parameters:
        of_new: the place of the new row of each pair.
        found: the place of the other row in `rows`.
        rows: the other rows that have a match.
        kept: those of them that are kept, as they are stored.
        others: the places of those of them that are new.
    """

    of_new: Ints
    found: Ints
    rows: list[Any]
    kept: list[Row]
    others: Ints


def swept(
    new: NewRows, reach: Reach, kept: KeptSide, key: int, others: NewRows | None
) -> Swept | None:
    """Return the pairs of new rows of a key; None if there are too many, or if few of the kept
    rows between the first and the last of them match.

    Parameters:
        new: rows of one key, in order of arrival.
        reach: theirs.
        kept: the kept rows of the other side.
        others: new rows of the other side that came before.
    """
    most = _PAIRS_MAX * matching.PAIRS_AT_ONCE
    order = np.argsort(new.points.points, kind="stable")
    points, found = new.points.at(order), _Found()
    lowest, highest = int(points.points[0]) - reach.before, int(points.points[-1]) + reach.after
    scan, left = kept.between(key, lowest, highest), _KEPT_PER_ROW_MAX * len(order)
    while some := list(islice(scan, side_rows.ROWS_AT_ONCE)):
        left -= len(some)
        block = KeptRows.of_key(key, some)
        first, last = block.points.points[0] - reach.after, block.points.points[-1] + reach.before
        start = int(np.searchsorted(points.points, first))
        end = int(np.searchsorted(points.points, last, "right"))
        matches = Matches(points.part(start, end), block.points, reach)
        if left < 0 or found.count + matches.counts.sum() > most:
            return None
        of_new, places = _all_pairs(matches)
        hit, numbers = np.unique(places, return_inverse=True)
        stored = [some[place] for place in hit.tolist()]
        found.add(order[of_new + start], numbers, block.points.points[places], kept.rows(stored))
        found.kept += stored
    of_others = np.zeros(0, np.int64)
    if others is not None and len(others.rows):
        matches = Matches(new.points, others.points, reach)
        if found.count + matches.counts.sum() > most:
            return None
        of_new, of_others = _all_pairs(matches)
        found.add(of_new, of_others, others.points.points[of_others], others.rows)
    return found.in_order(of_others)


class _Found:
    """Pairs that were found so far.

    Attributes:
        count: of the pairs.
        kept: the stored rows of those that are kept.
    """

    def __init__(self) -> None:
        self.count = 0
        self.kept: list[Row] = []
        self._rows: list[Any] = []
        self._pairs: list[tuple[Ints, Ints, Ints]] = []

    def add(self, of_new: Ints, places: Ints, points: Ints, rows: Sequence[Any]) -> None:
        """Add pairs.

        Parameters:
            of_new: the place of the new row of each.
            places: of the other row in `rows`.
            points: of the other row.
            rows: the other rows.
        """
        self._pairs.append((of_new, places + len(self._rows), points))
        self._rows += rows
        self.count += len(of_new)

    def in_order(self, others: Ints) -> Swept:
        """Return all pairs by new row, then by the point of the other row, kept rows first.

        Parameters:
            others: the places of the new rows of the other side that have a match.
        """
        nothing = np.zeros(0, np.int64)
        columns = zip(*self._pairs, (nothing,) * 3, strict=True)
        of_new, found, points = (np.concatenate(column) for column in columns)
        order = np.lexsort((found, points, of_new))
        return Swept(of_new[order], found[order], self._rows, self.kept, others)


def _all_pairs(matches: Matches) -> tuple[Ints, Ints]:
    """Return all pairs at once."""
    nothing = np.zeros(0, np.int64)
    of_new, found = zip((nothing, nothing), *matches.pairs(), strict=True)
    return np.concatenate(of_new), np.concatenate(found)
