"""Change: one change of a state, as the feed yields it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator
from typing import Any, Literal, NamedTuple

from statekit.query.rows.state_rows import StateRows
from statekit.timestamp import instant

Kind = Literal["snapshot", "changes", "difference"]
"""Origin of the changes of an epoch: all rows, for a table that starts empty; the change files of
the epoch; or the comparison of two states.
"""

TwoRows = tuple[bytes, bytes | None, bytes | None]
"""A row key, the row before an epoch, and the row after it; None for no row."""


class Change(NamedTuple):
    """One change of a state.

    Parameters:
        op: "upsert" sets the row at `key` and `place`; "delete" removes it, if it exists; "clear"
            removes all rows of `key`, or of the state if `key` is None.
        key: of the operator; for operator state the number of the shard.
        place: the map key, or the position of a list element: text that sorts as the elements do.
            None for states with one row per key, and for "clear".
        value: the value, element or entry; None if `op` is not "upsert".
        expires: when the row expires by the clock of its TTL; None if it does not.
        before: the value before the epoch, if the feed was asked for it; None if there was none.
    """

    op: Literal["upsert", "delete", "clear"]
    key: Any
    place: Any = None
    value: Any = None
    expires: dt.datetime | None = None
    before: Any = None


def change_of_row(
    rows: StateRows, row_key: bytes, row: bytes | None, shard: int | None, before: Any = None
) -> Change:
    """Return the change of a row.

    Parameters:
        row_key: of operator state, the part after the prefix of the shard.
        row: None if it was deleted.
        shard: of operator state, its shard.
        before: the value before it.
    """
    key, end = (shard, 0) if rows.is_local else rows.keys.split(row_key)
    place = rows.place(row_key, end)
    if row is None:
        return Change("delete", key, place, before=before)
    deadline = rows.deadline_us(row)
    expires = None if deadline is None else instant(deadline)
    return Change("upsert", key, place, rows.value(row), expires, before)


def unequal_rows(
    pairs: Iterable[TwoRows], rows_before: StateRows | None, rows: StateRows
) -> Iterator[TwoRows]:
    """Yield the rows whose value or deadline is another one than before.

    Parameters:
        rows_before, rows: the decoders of the rows before and after: the type may have changed.
            None if there were no rows before.
    """
    is_same_type = rows_before is not None and rows_before.state == rows.state
    for pair in pairs:
        _, old, new = pair
        if old is None or new is None or rows_before is None:
            is_same = old is new
        elif is_same_type:
            is_same = old == new
        else:
            is_same = rows_before.value(old) == rows.value(new)
            is_same = is_same and rows_before.deadline_us(old) == rows.deadline_us(new)
        if not is_same:
            yield pair
