"""A join of two tables over plain Python: `TableJoinModel` joins them anew in each epoch.
`MovesModel` and `NetChangesModel` are the operators before and after it, if rows may move.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from statekit.functions.process import Process
from statekit.job.joins.matching import Points
from statekit.job.joins.moves import MovingRows
from statekit.job.joins.net_changes import KeyedChanges
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
        gone = [self._result(pair, None) for of, pair in before.items() if of not in after]
        there = [
            self._result(pair, [of in before])
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
        """Yield the pairs of the join by the keys of both rows. A row alone has None as the other
        one.
        """
        matched: set[Any] = set()
        for ours, left in self._left.items():
            for theirs, right in self._right.items():
                if ours[0] == theirs[0] and None not in key_fields(ours[0]):
                    matched |= {("left", ours), ("right", theirs)}
                    if self._join.pairs:
                        yield (ours, theirs), (left, right)
        for key, row in self._left.items():
            if _is_alone(self._join.left, ("left", key) in matched):
                yield (key, None), (row, None)
        for key, row in self._right.items():
            if _is_alone(self._join.right, ("right", key) in matched):
                yield (None, key), (None, row)

    def _result(self, pair: _Pair, was: list[bool] | None) -> Any:
        """Return a change of a row of the join.

        Parameters:
            was: whether it was there; None if it is deleted.
        """
        rows = [None if row is None else [row] for row in pair]
        changes, point = self._join.changes, Points.one(0)
        return changes(rows[0], rows[1], point, lambda _: None, was)[0]


def _is_alone(table: TableSide, is_matched: bool) -> bool:
    """Return whether a row is a row of the join without one of the other table."""
    return table.alone == ("matched" if is_matched else "unmatched")


class MovesModel:
    """Model of the operator that emits the moves of a table's rows.

    Parameters:
        process: the operator.
    """

    def __init__(self, process: Process[Any, Any, Any]) -> None:
        self._table: MovingRows = process.traits.made_of
        self._key_of = process.key_of()
        self._rows: dict[Any, Any] = {}

    def run(self, records: Sequence[Any]) -> list[Any]:
        """Run one epoch, and return the last row of each key, and deleted rows for what moves."""
        last = {self._key_of(row): row for row in records}
        deleted, there = [], []
        for key, row in last.items():
            before, count = self._rows.pop(key, None), self._table.on_count
            is_there = not self._table.is_deleted(row)
            if before is not None and not (is_there and before == row[:count]):
                deleted.append(self._table.row(*before, *row[count:], True))
            if is_there:
                self._rows[key] = row[:count]
                there.append(self._table.row(*row, False))
        return deleted + there


class NetChangesModel:
    """Model of the operator that emits net changes: it keeps the rows of the join.

    Parameters:
        process: the operator.
    """

    def __init__(self, process: Process[Any, Any, Any]) -> None:
        keyed: KeyedChanges = process.traits.made_of
        self._identity = keyed.identity
        self._rows: dict[Any, dict[Any, Any]] = {}

    def run(self, records: Sequence[Any]) -> list[Any]:
        """Run one epoch, and return the result of each row that has changed."""
        gone: dict[Any, Any] = {}
        changed: set[Any] = set()
        for change in records:
            key = tuple(change)[: self._identity]
            rows = self._rows.setdefault(key, {})
            on = tuple(change)[self._identity : -3]
            if change.deleted:
                del rows[on]
                gone[key] = change.result
            else:
                rows[on] = change.result
            changed.add(key)
        deleted = [result for key, result in gone.items() if not self._rows[key]]
        return deleted + [row for key in changed for row in self._rows[key].values()]
