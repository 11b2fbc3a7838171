"""The join of two tables: the changes of its rows that follow from changes of the tables' rows.

All rows of a key match each other. So a row has a match if the other table has any row of its key,
and nothing is kept about matches. For each key with changes, a pair of rows has changed if one of
its rows has. A row that the join shows alone, since it has a match or has none, has changed if it
has, or if the other table has got its first row of the key, or lost its last one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress, repeat
from operator import add, ne
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from statekit.functions.context import Context
from statekit.job.joins.join_points import times_as_points
from statekit.job.joins.join_results import JoinResults
from statekit.job.joins.matching import Ints, Matches, Points, Reach
from statekit.job.joins.net_changes import KeyedChanges
from statekit.job.joins.side_rows import KeptRows, KeptSide, NewRows, Side
from statekit.job.joins.stream_join import SplitRows, new_rows, rows_at
from statekit.records.keyed_batch import KeyedRecords
from statekit.state.base import row_sizes
from statekit.state.map_state import MapState

_HERE = Reach(0, 0)

Alone = Literal["unmatched", "matched", "none"]
"""Which rows of a side are rows of the join without those of the other side."""

_Flags = npt.NDArray[np.bool_]
_State = MapState[Any, Any]


@dataclass(frozen=True)
class TableSide:
    """One side of a join of tables.

    Parameters:
        row: the class of its rows, a NamedTuple.
        key_of: returns the key that a row has in the table.
        is_deleted: whether a row deletes that of its key.
        alone: which rows are rows of the join without those of the other side: those without a
            match, those with one, or none.
    """

    row: type[Any]
    key_of: Callable[[Any], Any]
    is_deleted: Callable[[Any], bool]
    alone: Alone


class Versions(NamedTuple):
    """Rows of a table before and after a change, in parallel.

    Parameters:
        keys: the number of the key of each row, in order.
        before, after: the row; None if there is none.
        was, remains: whether there is a row before and after.
    """

    keys: Ints
    before: Sequence[Any]
    after: Sequence[Any]
    was: _Flags
    remains: _Flags

    @classmethod
    def of(cls, keys: Sequence[int], before: Sequence[Any], after: Sequence[Any]) -> Versions:
        """Return rows that may have changed."""
        flags = [np.array([row is not None for row in of], np.bool_) for of in (before, after)]
        return cls(np.array(keys, np.int64), before, after, *flags)

    @property
    def points(self) -> Points:
        """The keys as points of one time."""
        return Points(self.keys, np.zeros(len(self.keys), np.int64))

    def where(self, which: _Flags) -> Versions:
        """Return some of the rows."""
        return self.at(np.flatnonzero(which))

    def at(self, places: Ints) -> Versions:
        """Return the rows at some places."""
        rows = rows_at(self.before, places), rows_at(self.after, places)
        return Versions(self.keys[places], *rows, self.was[places], self.remains[places])

    def in_order(self) -> Versions:
        """Return the rows in the order of their keys."""
        return self.at(np.argsort(self.keys, kind="stable"))

    def of_keys(self, first: int, end: int) -> Versions:
        """Return the rows of the keys from `first` on and before `end`."""
        start, stop = np.searchsorted(self.keys, (first, end)).tolist()
        own = slice(start, stop)
        rows = self.before[own], self.after[own]
        return Versions(self.keys[own], *rows, self.was[own], self.remains[own])


@dataclass(frozen=True)
class TableJoin:
    """A join of two tables.

    Parameters:
        left, right: the tables.
        pairs: whether pairs of rows are rows of the join.
        results: creates the rows of the join, each with whether it is deleted.
        keyed: adds what identifies the rows of the join; None if they are emitted as they are.
    """

    left: TableSide
    right: TableSide
    pairs: bool
    results: JoinResults
    keyed: KeyedChanges | None = None

    def join(
        self, records: KeyedRecords, _: Context[Any], left: _State, right: _State
    ) -> Iterator[list[Any]]:
        """Change both tables, and yield the changes of the join.

        Rows without those of the other side that are gone come first, and new ones last. So if the
        join has one row for a left row, the last change of it says what it is.
        """
        split = new_rows(records, self.left.row, times_as_points)
        changes = _Changes(self, records, split, left, right)
        yield from changes.alone(deleted=True)
        if self.pairs:
            yield from changes.matched()
        yield from changes.alone(deleted=False)
        changes.write()

    def changes(
        self,
        left: Sequence[Any] | None,
        right: Sequence[Any] | None,
        points: Points,
        at_key: Callable[[int], None],
        was: Sequence[bool] | None,
    ) -> list[Any]:
        """Return changes of rows of the join; see `JoinResults.of`.

        Parameters:
            was: of rows that are there, whether each one was there before; None for deleted rows.
        """
        deleted = was is None
        results = self.results.of(left, right, points, at_key, deleted=deleted)
        if self.keyed is None:
            return results
        before = repeat(True) if was is None else was
        return self.keyed.of(left, right, results, before, deleted=deleted)


class _ChangedTable:
    """The changes of one table in some keys, and its other rows.

    Parameters:
        table: the table.
        state: its rows.
        records: all records.
        new: the rows that replace or delete others, in order of arrival within each key. Several
            lists have different keys.

    Attributes:
        changed: the rows that differ from what they were.
    """

    def __init__(
        self, table: TableSide, state: _State, records: KeyedRecords, new: Sequence[NewRows]
    ) -> None:
        self.table = table
        self._state = state
        self._kept = KeptSide(Side(table.row, table.row, _HERE), state, records.prefixes)
        keys = [key for some in new for key in some.points.keys.tolist()]
        rows = [row for some in new for row in some.rows]
        own = state.subkeys(list(map(table.key_of, rows)))
        row_keys = list(map(add, map(records.prefixes.__getitem__, keys), own))
        last = dict(zip(row_keys, zip(keys, rows, strict=True), strict=True))
        places = sorted(last)
        stored = state.read_rows(places)
        before = state.values_of_rows(stored)
        given = [last[place][1] for place in places]
        gone = map(table.is_deleted, given)
        after = [None if no else row for no, row in zip(gone, given, strict=True)]
        differs = list(map(ne, before, after))
        self._row_keys = list(compress(places, differs))
        self._stored = list(compress(stored, differs))
        self._own = set(self._row_keys)
        self._versions = Versions.of(
            [last[place][0] for place in self._row_keys],
            list(compress(before, differs)),
            list(compress(after, differs)),
        )
        self.changed = self._versions.in_order()

    def others(self, keys: Ints) -> Iterator[tuple[KeptRows, Versions]]:
        """Yield the rows of some keys that do not change, some at a time: as they are stored, and
        as versions.
        """
        if not len(keys):
            return
        for part in self._kept.all_of(keys.tolist()):
            is_other = [row_key not in self._own for row_key, _ in part.stored]
            part = part.chosen(is_other)
            if part.stored:
                rows, yes = self._kept.rows(part.stored), np.ones(len(part.stored), np.bool_)
                yield part, Versions(np.array(part.keys, np.int64), rows, rows, yes, yes)

    def is_empty(self, keys: Ints, count: int) -> tuple[_Flags, _Flags]:
        """Return whether the table has no row of each key before, and after.

        Parameters:
            keys: the keys in question.
            count: the number of all keys.
        """
        changed = self.changed
        empty = np.ones(count, np.bool_), np.ones(count, np.bool_)
        empty[0][changed.keys[changed.was]] = False
        empty[1][changed.keys[changed.remains]] = False
        # The first rows of a key may all change. Then more of them are read.
        unknown: list[int] = keys[empty[0][keys] | empty[1][keys]].tolist()
        most = 2
        while unknown:
            all_change = list[int]()
            for key, some in self._kept.first_of(unknown, most):
                if any(row_key not in self._own for row_key, _ in some):
                    empty[0][key] = empty[1][key] = False
                elif len(some) == most:
                    all_change.append(key)
            unknown, most = all_change, 4 * most
        return empty

    def write(self) -> None:
        """Write the changes."""
        changed = self._versions
        sizes = row_sizes(self._row_keys, self._stored)
        remains = changed.remains.tolist()
        gone = zip(self._row_keys, sizes, strict=True)
        self._state.replace_rows(
            list(compress(self._row_keys, remains)),
            list(compress(changed.after, remains)),
            list(compress(sizes, remains)),
            list(compress(gone, (~changed.remains).tolist())),
        )


class _Changes:
    """The changes of a join in some keys.

    Parameters:
        join: the join.
        records: all records.
        split: their rows by table.
        left, right: the rows of the tables.
    """

    def __init__(
        self, join: TableJoin, records: KeyedRecords, split: SplitRows, left: _State, right: _State
    ) -> None:
        self._join = join
        self._at_key = records.note_key
        self._left = self._changed(join.left, left, records, (split.left, split.left_never))
        self._right = self._changed(join.right, right, records, (split.right, split.right_never))
        count = len(records.keys)
        self._never = np.zeros(count, np.bool_)
        for rows in (split.left_never, split.right_never):
            self._never[rows.points.keys] = True
        touched = np.union1d(self._left.changed.keys, self._right.changed.keys)
        touched = touched[~self._never[touched]]
        # For each table whose rows are rows of the join alone: of which keys they were before, and
        # are after.
        self._alone: dict[_ChangedTable, tuple[_Flags, _Flags]] = {}
        for table, other in ((self._left, self._right), (self._right, self._left)):
            if table.table.alone == "none":
                continue
            before, after = (none | self._never for none in other.is_empty(touched, count))
            is_inverse = table.table.alone == "matched"
            self._alone[table] = (~before, ~after) if is_inverse else (before, after)

    def _changed(
        self, table: TableSide, state: _State, records: KeyedRecords, rows: tuple[NewRows, NewRows]
    ) -> _ChangedTable:
        """Return the changes of a table. Rows that never match are kept if they are shown."""
        shown = rows if table.alone == "unmatched" else rows[:1]
        return _ChangedTable(table, state, records, shown)

    def write(self) -> None:
        """Write the changes of both tables."""
        self._left.write()
        self._right.write()

    def matched(self) -> Iterator[list[Any]]:
        """Yield the changes of pairs of rows."""
        left = self._left.changed.where(~self._never[self._left.changed.keys])
        right = self._right.changed.where(~self._never[self._right.changed.keys])
        yield from self._pairs(left, right)
        for part, others in self._right.others(np.unique(left.keys)):
            yield from self._pairs(left.of_keys(part.first, part.end), others)
        for part, others in self._left.others(np.unique(right.keys)):
            yield from self._pairs(others, right.of_keys(part.first, part.end))

    def _pairs(self, left: Versions, right: Versions) -> Iterator[list[Any]]:
        """Yield the changes of the pairs of these rows."""
        if not len(left.keys) or not len(right.keys):
            return
        for ours, theirs in Matches(left.points, right.points, _HERE).pairs():
            was = left.was[ours] & right.was[theirs]
            remains = left.remains[ours] & right.remains[theirs]
            gone, there = np.flatnonzero(was & ~remains), np.flatnonzero(remains)
            for some, of_left, of_right, before in (
                (gone, left.before, right.before, None),
                (there, left.after, right.after, was[there]),
            ):
                if len(some):
                    yield self._join.changes(
                        rows_at(of_left, ours[some]),
                        rows_at(of_right, theirs[some]),
                        left.points.at(ours[some]),
                        self._at_key,
                        None if before is None else before.tolist(),
                    )

    def alone(self, *, deleted: bool) -> Iterator[list[Any]]:
        """Yield the rows without those of the other side that are gone, or those that are new or
        changed.
        """
        for table, (before, after) in self._alone.items():
            yield from self._rows_alone(table, table.changed, deleted=deleted)
            flips = np.flatnonzero(before & ~after if deleted else after & ~before)
            for _, others in table.others(flips):
                yield from self._rows_alone(table, others, deleted=deleted)

    def _rows_alone(
        self, table: _ChangedTable, rows: Versions, *, deleted: bool
    ) -> Iterator[list[Any]]:
        """Yield the changes of those of some rows that are, or were, rows of the join alone."""
        before, after = self._alone[table]
        was, remains = rows.was & before[rows.keys], rows.remains & after[rows.keys]
        some = np.flatnonzero(was & ~remains if deleted else remains)
        if len(some):
            own = rows_at(rows.before if deleted else rows.after, some)
            left, right = (own, None) if table is self._left else (None, own)
            points = rows.points.at(some)
            yield self._join.changes(
                left, right, points, self._at_key, None if deleted else was[some].tolist()
            )
