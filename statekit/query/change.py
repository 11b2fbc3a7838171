"""Change: one change of a state, as the feed yields it."""

from __future__ import annotations

import datetime as dt
from typing import Any, Literal, NamedTuple

Kind = Literal["snapshot", "changes", "difference"]
"""Origin of the changes of an epoch: all rows, for a table that starts empty; the change files of
the epoch; or the comparison of two states.
"""


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
