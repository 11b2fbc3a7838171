"""Closed bounds: which bounds of a range are in it."""

from __future__ import annotations

from typing import Any, Literal

from statekit.errors import StateTypeError
from statekit.shown import shown

ClosedBounds = Literal["left", "right", "both", "none"]
"""The bounds that are in a range."""

_ENDS = {
    "left": (True, False),
    "right": (False, True),
    "both": (True, True),
    "none": (False, False),
}


def closed_ends(closed: Any) -> tuple[bool, bool]:
    """Return whether the first bound of a range is in it, and whether the last one is.

    Parameters:
        closed: one of `ClosedBounds`.

    Raises:
        StateTypeError: it is another value.

    >>> closed_ends("left"), closed_ends("both")
    ((True, False), (True, True))
    """
    try:
        return _ENDS[closed]
    except (KeyError, TypeError):
        raise StateTypeError(
            f"closed={shown(closed, 100)}: use one of {', '.join(_ENDS)}"
        ) from None
