"""A job with keys and values of every kind, of which a server shows the types."""

from __future__ import annotations

import datetime as dt
import enum
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, NamedTuple, Optional

import msgspec
from hypothesis import strategies as st

import statekit as sk


class Colour(enum.Enum):
    RED = "GREEN"  # the name of another member
    GREEN = "RED"


class Level(enum.IntEnum):
    LOW = -5
    TOP = 2**63 - 1


class Leg(NamedTuple):
    origin: str
    minutes: float | None


class Trip(msgspec.Struct):
    legs: list[Leg]
    cost: Decimal
    by_day: dict[dt.date, int]


@dataclass
class Tree:
    name: str
    kids: list[Tree] = field(default_factory=list)
    left: Optional[Tree] = None  # noqa: UP045  a forward reference has no `|`


class Place(NamedTuple):
    x: int
    name: str | None


TEXTS = st.text(max_size=4) | st.sampled_from(["null", "5", '"a"', "a/b", "..", "é", "a\0b", "%2F"])
INTS = st.integers(-(2**63), 2**63 - 1)
TIMES = st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2200, 1, 1), timezones=st.just(dt.UTC))
SPANS = st.timedeltas(dt.timedelta(-9999), dt.timedelta(9999))
LEGS = st.builds(Leg, TEXTS, st.none() | st.floats(allow_nan=True))
TREES = st.recursive(
    st.builds(Tree, TEXTS),
    lambda inner: st.builds(Tree, TEXTS, st.lists(inner, max_size=2), st.none() | inner),
    max_leaves=4,
)
TRIPS = st.builds(
    Trip,
    st.lists(LEGS, max_size=2),
    st.decimals(allow_nan=False, allow_infinity=False, places=2),
    st.dictionaries(st.dates(), INTS, max_size=2),
)

KEYS: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "text": (str, TEXTS),
    "number": (int, INTS),
    "flag": (bool, st.booleans()),
    "day": (dt.date, st.dates()),
    "time": (dt.datetime, TIMES),
    "span": (dt.timedelta, SPANS),
    "raw": (bytes, st.binary(max_size=3)),
    "id": (uuid.UUID, st.uuids()),
    "colour": (Colour, st.sampled_from(Colour)),
    "level": (Level, st.sampled_from(Level)),
    "letter": (Literal["a", "'a'"], st.sampled_from(["a", "'a'"])),
    "maybe": (str | None, st.none() | TEXTS),
    "place": (Place, st.builds(Place, INTS, st.none() | TEXTS)),
    "pair": (tuple[str, bool | None], st.tuples(TEXTS, st.none() | st.booleans())),
}
"""Types of map keys, by the name of the operator that has a map of them."""

OF_OPERATORS = ("text", "number", "flag", "day", "time", "raw", "maybe")
"""The types of keys that operators may have."""

VALUES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (int, st.integers(-(2**63), 2**64 - 1)),
    (float, st.floats()),
    (Tree, TREES),
    (Trip, TRIPS),
    (Leg, LEGS),
    (list[bytes | None], st.lists(st.none() | st.binary(max_size=2), max_size=2)),
    (int | str | Leg, st.integers(0, 5) | TEXTS | LEGS),
    (dict[bool, Colour], st.dictionaries(st.booleans(), st.sampled_from(Colour), max_size=2)),
    (dict[Place, str], st.dictionaries(st.builds(Place, INTS, TEXTS), TEXTS, max_size=2)),
    (tuple[str, ...], st.lists(TEXTS, max_size=2).map(tuple)),
    (dt.timedelta, SPANS),
    (Literal["x", 1, None], st.sampled_from(["x", 1, None])),
    (uuid.UUID, st.uuids()),
    (set[int] | None, st.none() | st.sets(st.integers(0, 5), max_size=2)),
]
"""Types of values: the operators take one each."""


class Kind(NamedTuple):
    """An operator with keys of one type, and maps with keys of another.

    Parameters:
        name: of the operator.
        record: the class of its records.
        records: a strategy of them.
        function: its process function.
    """

    name: str
    record: Any
    records: st.SearchStrategy[Any]
    function: Any


def _kind(name: str, key: tuple[str, ...], value: tuple[Any, st.SearchStrategy[Any]]) -> Kind:
    keys = {f"key_{part}": KEYS[part] for part in key}
    parts = {**keys, "place": KEYS[name], "value": value}
    types = [(field, type_) for field, (type_, _) in parts.items()]
    record: Any = NamedTuple(f"Record_{name}", types)  # type: ignore[misc]

    def keep(record: Any, last: Any, by_place: Any, seen: Any) -> None:
        last.update(record.value)
        by_place[record.place] = record.value
        seen.append(record.value)

    states: Any = sk  # mypy takes no types that are computed
    keep.__name__ = keep.__qualname__ = name
    keep.__annotations__ = {
        "record": record,
        "last": states.ValueState[value[0]],
        "by_place": states.MapState[KEYS[name][0], value[0]],
        "seen": states.ListState[value[0]],
        "return": None,
    }
    records = st.builds(record, *(strategy for _, strategy in parts.values()))
    return Kind(name, record, records, sk.process(key=tuple(keys))(keep))


def _kinds() -> list[Kind]:
    """An operator for each type of map keys; some have keys of two fields."""
    found = []
    for at, name in enumerate(KEYS):
        first, second = (OF_OPERATORS[(at + step) % len(OF_OPERATORS)] for step in (0, 3))
        is_pair = at >= len(OF_OPERATORS)
        found.append(_kind(name, (first, second) if is_pair else (first,), VALUES[at]))
    return found


KINDS = _kinds()


def run(home: Path, records: Mapping[str, Sequence[Any]]) -> None:
    """Run the job over records, by the name of the operator."""
    job = sk.Job("types")
    for kind in KINDS:
        job.source(f"of_{kind.name}", kind.record).process(kind.function)
    given = {f"of_{kind.name}": list(records.get(kind.name, ())) for kind in KINDS}
    job.run(given, checkpoint=home, epoch_size=100)


def random_records(max_size: int = 3) -> st.SearchStrategy[dict[str, list[Any]]]:
    """Records of all operators."""
    return st.fixed_dictionaries(
        {kind.name: st.lists(kind.records, min_size=1, max_size=max_size) for kind in KINDS}
    )
