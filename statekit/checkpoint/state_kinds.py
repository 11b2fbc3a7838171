"""State kinds: the rows of a state per key or shard.

Each state type registers its kind here, and its class in `functions/state_parameters`.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

POSITION_BYTES = 12
"""The length of the position in the row key of a list element or a buffered record."""


class RowShape(Enum):
    """The part of a row key after its prefix of key group and encoded key.

    Attributes:
        VALUE: nothing; there is one row.
        ELEMENTS: the position of a list element, 12 bytes; there is one row per element.
        ENTRIES: the encoded map key; there is one row per entry.
    """

    VALUE = "value"
    ELEMENTS = "element"
    ENTRIES = "entry"


class StateKind(NamedTuple):
    """A kind of state as checkpoints name it.

    Parameters:
        name: in job files.
        shape: of its rows.
        is_local: whether it is operator state, which belongs to shards and not to keys.
    """

    name: str
    shape: RowShape
    is_local: bool = False


STATE_KINDS = {
    kind.name: kind
    for kind in (
        StateKind("value", RowShape.VALUE),
        StateKind("list", RowShape.ELEMENTS),
        StateKind("map", RowShape.ENTRIES),
        StateKind("reducing", RowShape.VALUE),
        StateKind("aggregating", RowShape.VALUE),
        StateKind("operator_value", RowShape.VALUE, is_local=True),
        StateKind("operator_list", RowShape.ELEMENTS, is_local=True),
        StateKind("broadcast", RowShape.ENTRIES, is_local=True),
        StateKind("object", RowShape.VALUE, is_local=True),
    )
}
"""All kinds, by name."""
