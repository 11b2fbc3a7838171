"""`TableJoinModel`: a join of two tables over plain Python, joined anew in each epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from statekit.functions.process import Process
from statekit.job.joins.matching import Points
from statekit.job.joins.table_join import TableSide
from statekit.job.joins.table_join_operator import JoinedTables
from statekit.keygroup import key_fields

_Rows = dict[Any, Any]
_Pair = tuple[Any, Any]


class TableJoinModel:
    """Model of the operator of a join of tables: it compares the join before and after an epoch.

    Parameters:
        process: the operator.
    """

    def __init__(self, process: Process[Any, Any, Any]) -> None:
        made_of: JoinedTables = process.traits.made_of
        self._join = made_of.join
        self._key_of = process.key_of()
        self._left: _Rows = {}
        self._right: _Rows = {}

    def run(self, records: Sequence[Any]) -> list[Any]:
        """Run one epoch, and return the rows of the join that are new, changed or deleted."""
        before = dict(self._pairs())
        for row in records:
            is_left = type(row) is self._join.left.row
            table = self._join.left if is_left else self._join.right
            self._changed(self._left if is_left else self._right, table, row)
        after = dict(self._pairs())
        gone = [self._result(pair, deleted=True) for of, pair in before.items() if of not in after]
        there = [
            self._result(pair, deleted=False)
            for of, pair in after.items()
            if of not in before or before[of] != pair
        ]
        return gone + there

    def _changed(self, rows: _Rows, table: TableSide, row: Any) -> None:
        """Replace or delete a row."""
        key = self._key_of(row), table.key_of(row)
        if table.is_deleted(row):
            rows.pop(key, None)
        else:
            rows[key] = row

    def _pairs(self) -> Iterator[tuple[Any, _Pair]]:
        """Yield the pairs of the join by the keys of both rows."""
        matched: set[Any] = set()
        for ours, left in self._left.items():
            for theirs, right in self._right.items():
                if ours[0] == theirs[0] and None not in key_fields(ours[0]):
                    matched |= {("left", ours), ("right", theirs)}
                    yield (ours, theirs), (left, right)
        if self._join.left.shows_unmatched:
            for key, row in self._left.items():
                if ("left", key) not in matched:
                    yield (key, None), (row, None)
        if self._join.right.shows_unmatched:
            for key, row in self._right.items():
                if ("right", key) not in matched:
                    yield (None, key), (None, row)

    def _result(self, pair: _Pair, *, deleted: bool) -> Any:
        """Return a row of the join."""
        rows = [None if row is None else [row] for row in pair]
        results, point = self._join.results, Points.one(0)
        return results.of(rows[0], rows[1], point, lambda _: None, deleted=deleted)[0]
