"""Values of every type that a key field can have, beyond those of `key_vectors`."""

from __future__ import annotations

import datetime as dt
import enum
import uuid
from functools import cache
from typing import Any, Literal, NamedTuple


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Size(enum.Enum):
    SMALL = 1
    LARGE = 2


class Side(enum.StrEnum):
    BUY = "buy"
    SELL = "sell"


class Level(enum.IntEnum):
    LOW = -1
    HIGH = 1


class Place(NamedTuple):
    city: str
    day: dt.date


class Trip(NamedTuple):
    place: Place
    id: uuid.UUID
    seat: int | None


_PLACE = Place("oslo", dt.date(2024, 1, 1))
_ID = uuid.UUID("12345678-1234-5678-1234-567812345678")

KEY_TYPES: dict[str, tuple[Any, list[Any]]] = {
    "UUID": (uuid.UUID, [uuid.UUID(int=0), _ID, uuid.UUID(int=2**128 - 1)]),
    "Enum of str": (Color, list(Color)),
    "Enum of int": (Size, list(Size)),
    "StrEnum": (Side, list(Side)),
    "IntEnum": (Level, list(Level)),
    "Literal": (Literal["a", "b"], ["a", "b"]),
    "timedelta": (dt.timedelta, [dt.timedelta(0), dt.timedelta(-1, 0, 1), dt.timedelta(400, 5)]),
    "date": (dt.date, [dt.date(2024, 1, 1), dt.date(1950, 2, 3)]),
    "datetime": (dt.datetime, [dt.datetime(2024, 1, 1, tzinfo=dt.UTC)]),
    "bytes": (bytes, [b"", b"\0\xff"]),
    "NamedTuple": (Place, [_PLACE, Place("", dt.date(1950, 2, 3))]),
    "nested": (Trip, [Trip(_PLACE, _ID, None), Trip(_PLACE, _ID, 0)]),
    "UUID | None": (uuid.UUID | None, [None, _ID]),
    "Enum | None": (Color | None, [None, Color.RED]),
    "NamedTuple | None": (Place | None, [None, _PLACE]),
}
"""The annotation of a key field, and some values of it, by name."""


@cache
def record_of(annotation: Any) -> Any:
    """Return a class of records with a key of a type."""
    return NamedTuple("Keyed", [("key", annotation), ("n", int), ("at", dt.datetime)])


def records_of(annotation: Any, values: list[Any]) -> list[Any]:
    """Return two records of each key."""
    cls, start = record_of(annotation), dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    numbered = enumerate([*values, *values], 1)
    return [cls(value, number, start) for number, value in numbered]
