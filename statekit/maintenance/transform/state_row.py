"""Typed rows of states, as a transform reads and writes them."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class StateRow:
    """One row of a state.

    Attributes:
        key: the key of the operator; a tuple if it has several fields. Of operator state the number
            of the shard.
        value: the value, element, entry or accumulator; of timers the `Timer`.
        place: the key of a map entry, or the position of a list element; None for other states, and
            for a list element that is written behind the elements that were written before.
        written: when the row was written, for a state with a TTL; None for a row that does not
            expire; "epoch" for the time of the old epoch. Rows of a state without a TTL have
            "epoch".

    >>> StateRow("ada", 500).value
    500
    """

    key: Any
    value: Any
    place: Any = None
    written: dt.datetime | Literal["epoch"] | None = "epoch"
