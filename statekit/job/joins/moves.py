"""Rows of a table that move: the fields of `on` are not in the row's own key, so an update may
change them.

The rows of such a table are shuffled by their own key before the join. The operator keeps the
values of `on` of each row. If they change, it emits a deleted row with the old ones and a row with
the new ones, so that the join only sees rows that stay where they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, compress
from typing import Any

from statekit.functions.context import Context
from statekit.functions.process import Process, Traits, process
from statekit.functions.signature import declare
from statekit.job.joins.join_declaration import Row, with_flag
from statekit.records.keyed_batch import KeyedRecords
from statekit.state.base import row_sizes
from statekit.state.single_row_states import ValueState

_VALUE: Any = ValueState
_ITERATOR: Any = Iterator
_TUPLE: Any = tuple


@dataclass(frozen=True)
class MovingRows:
    """A table whose rows may get other values of `on`.

    Parameters:
        row: the class of the emitted rows: the fields of a row, of which those of `on` are the
            first ones, and whether the row is deleted.
        on_count: the number of fields of `on`.
        is_deleted: whether a row deletes that of its key.
    """

    row: type[Any]
    on_count: int
    is_deleted: Callable[[Any], bool]

    def move(
        self, records: KeyedRecords, _: Context[Any], on: ValueState[Any]
    ) -> Iterator[list[Any]]:
        """Yield the last row of each key, after a deleted row if it moves. A row that deletes that
        of its key needs only the key.
        """
        ends = accumulate(records.sizes)
        last = dict(zip(records.prefixes, [records.records[end - 1] for end in ends], strict=True))
        places = sorted(last)
        stored = on.read_rows(places)
        before = on.values_of_rows(stored)
        rows = [last[place] for place in places]
        after = [None if self.is_deleted(row) else tuple(row[: self.on_count]) for row in rows]
        every = list(zip(rows, before, after, strict=True))
        yield [self._made(row, was, True) for row, was, on in every if was not in (None, on)]
        yield [self._made(row, on, False) for row, _, on in every if on is not None]
        self._write(on, places, stored, [was != on for _, was, on in every], after)

    def _made(self, row: Any, on: tuple[Any, ...], deleted: bool) -> Any:
        """Return a row with some values of `on`."""
        return self.row._make((*on, *row[self.on_count :], deleted))

    def _write(
        self,
        on: ValueState[Any],
        places: Sequence[bytes],
        stored: Sequence[bytes | None],
        changed: Sequence[bool],
        after: Sequence[Any],
    ) -> None:
        """Write the values that have changed."""
        sizes = row_sizes(places, stored)
        every = list(compress(zip(places, sizes, after, strict=True), changed))
        there = [each for each in every if each[2] is not None]
        on.replace_rows(
            [place for place, _, _ in there],
            [value for _, _, value in there],
            [size for _, size, _ in there],
            [(place, size) for place, size, value in every if value is None],
        )


def moves_operator(
    row: Row,
    key: Sequence[str],
    on_count: int,
    is_deleted: Callable[[Any], bool],
    definition: Mapping[str, str],
    name: str,
) -> Process[Any, ..., Any]:
    """Return the process function that emits the moves of a table's rows.

    Parameters:
        row: the row of the table, with the fields of `on` first.
        key: the names of the fields of the row with the table's key.
        on_count: the number of fields of `on`.
        is_deleted: whether a row deletes that of its key.
        definition: what may not change while there is state.
        name: of the operator.
    """
    moving = MovingRows(with_flag(row, "gone"), on_count, is_deleted)
    types = list(row.cls.__annotations__.values())[:on_count]
    hints = {
        "records": row.cls,
        "ctx": Context,
        "on": _VALUE[_TUPLE[tuple(types)]],
        "return": _ITERATOR[moving.row],
    }
    traits = Traits(definition=lambda _: definition, takes_many=True, made_of=moving)
    declared: Process[Any, ..., Any] = process(key=tuple(key))(declare(moving.move, name, hints))
    return declared.with_traits(traits)
