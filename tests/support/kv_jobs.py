"""Jobs with any operations of a `KVStore`, each with a source and a sink of its name."""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from hypothesis import strategies as st

import statekit as sk
from tests.support.instants import after, at

KINDS = [
    "put",
    "remove",
    "get",
    "get_with",
    "multi_get",
    "update",
    "put_if_absent",
    "compare_and_set",
    "exists",
    "reduce",
]
"""All operations on single values of any type."""

PAST_KINDS = ["get_as_of", "multi_get_as_of", "versions", "versions_since", "versions_until"]
"""The operations of a store with a history."""

EXPIRING_KINDS = ["put_for", "put_for_3", "expire", "expire_in_2", "persist"]
"""The operations of a store with a TTL."""

RANGES: dict[str, tuple[str, dict[str, Any]]] = {
    "scan_all": ("scan", {}),
    "scan_between": ("scan", {"start": "low", "end": "high"}),
    "scan_down": ("scan", {"start": "low", "end": "high", "closed": "both", "reverse": True}),
    "scan_two": ("scan", {"start": "low", "closed": "none", "limit": 2, "offset": 1}),
    "scan_some": ("scan", {"end": "high", "closed": "right", "limit": "most", "offset": "skip"}),
    "scan_page": ("scan", {"start": "low", "after": "after", "limit": 2}),
    "scan_page_down": ("scan", {"after": "after", "limit": "most", "reverse": True}),
    "multi_scan": ("multi_scan", {"ranges": "ranges", "closed": "both", "limit": 2}),
    "count": ("count", {"start": "low", "end": "high", "closed": "right"}),
    "first": ("first", {"start": "low", "closed": "none"}),
    "last": ("last", {"end": "high", "closed": "right"}),
    "remove_range": ("remove_range", {"start": "low", "end": "high"}),
    "trim": ("trim", {"keep": "skip"}),
    "trim_to_two": ("trim", {"keep": 2}),
}
"""All operations on ranges of a sorted store: the method, and its options."""

PREFIXED: dict[str, tuple[str, dict[str, Any]]] = {
    "scan_prefix": ("scan", {"prefix": "prefix", "reverse": True}),
    "page_of_prefix": ("scan", {"prefix": "prefix", "after": "after", "limit": 1}),
    "count_prefix": ("count", {"prefix": "prefix", "end": "high"}),
    "last_prefix": ("last", {"prefix": "prefix"}),
    "remove_prefix": ("remove_range", {"prefix": "prefix"}),
}
"""Operations on the entries with a prefix."""

KEYS = ["a", "b\0", "é"]


class Held(NamedTuple):
    """A value."""

    amount: int


class HeldLater(NamedTuple):
    """The same class in a later version of the job."""

    amount: int
    note: str = ""


HeldLater.__name__ = HeldLater.__qualname__ = "Held"


def one(amount: int) -> list[int]:
    """A value that is a list."""
    return [amount]


MAKERS: dict[Any, Callable[[int], Any]] = {int: int, list[int]: one}
"""How a value is made of a number, by its type."""

PLACES = range(-2, 4)
TEXTS = ["", "a", "a\0", "ab", "b", "é"]
PAIRS = [("", 0), ("a", -1), ("a", 2), ("a\0", 0), ("b", 0), ("b", 1)]
SORTS: dict[Any, Callable[[int], Any]] = {
    int: int,
    str: lambda place: TEXTS[place - PLACES[0]],
    tuple[str, int]: lambda place: PAIRS[place - PLACES[0]],
}
"""The ordered part at each of `PLACES`, by its type. They are in this order."""

START = at(0)


class Op(NamedTuple):
    """A record of any operation: a field that it does not use is empty."""

    key: str
    at: dt.datetime
    amount: int = 0
    expected: int | None = None
    keys: list[str] = []  # noqa: RUF012  a NamedTuple
    as_of: dt.datetime = START
    until: dt.datetime | None = None
    place: int = 0
    low: int | None = None
    high: int | None = None
    after: int | None = None
    most: int | None = None
    skip: int = 0
    ranges: list[tuple[int | None, int | None]] = []  # noqa: RUF012  a NamedTuple
    begins: str | None = None
    ttl: dt.timedelta | None = None


def ops(seconds: int) -> st.SearchStrategy[Op]:
    """Operations on few keys, with times of so many seconds."""
    place = st.sampled_from(PLACES)
    return st.builds(
        Op,
        key=st.sampled_from(KEYS[:2]),
        at=st.integers(1, seconds).map(at),
        amount=st.integers(0, 3),
        expected=st.none() | st.integers(0, 3),
        keys=st.lists(st.sampled_from(KEYS), max_size=3),
        as_of=st.integers(1, seconds).map(at),
        until=st.none() | st.integers(1, seconds).map(at),
        place=place,
        low=st.none() | place,
        high=st.none() | place,
        after=st.none() | place,
        most=st.none() | st.integers(0, 3),
        skip=st.integers(0, 2),
        ranges=st.lists(st.tuples(st.none() | place, st.none() | place), max_size=2),
        begins=st.none() | st.sampled_from(["", "a", "a\0", "x"]),
        ttl=st.none() | st.integers(-1, 9).map(after),
    )


class Shape(NamedTuple):
    """The declaration of a store.

    Parameters:
        value: the type of its values.
        sort: the type of the ordered part of its keys.
        lateness: in seconds; None for a store without time.
        history, ttl: in seconds; 0 for none.
    """

    value: Any = Held
    sort: Any = None
    lateness: int | None = None
    history: int = 0
    ttl: int = 0
    ties: Any = "values"
    changes: bool = False

    @property
    def kinds(self) -> list[str]:
        """All operations that such a store has."""
        found = [*KINDS] if self.sort is None else [kind for kind in KINDS if kind != "multi_get"]
        found += RANGES if self.sort is not None else []
        found += PREFIXED if self.sort in (str, tuple[str, int]) else []
        found += PAST_KINDS if self.history else []
        found += EXPIRING_KINDS if self.ttl else []
        found += {int: ["increment", "increment_by_2"], list[int]: ["append"]}.get(self.value, [])
        return found

    @property
    def options(self) -> dict[str, Any]:
        """The options of the store."""
        given: dict[str, Any] = {} if self.sort is None else {"sort": self.sort}
        if self.lateness is not None:
            given |= {"event_time": "at", "lateness": after(self.lateness), "ties": self.ties}
        if self.history:
            given["history"] = after(self.history)
        if self.ttl:
            clock: Any = "processing" if self.lateness is None else "event"
            given["ttl"] = sk.TTL(after(self.ttl), clock=clock)
        return given

    def made(self, amount: int) -> Any:
        """Return the value of a number."""
        return MAKERS.get(self.value, self.value)(amount)


TIMES = st.sampled_from([None, 4])


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    """Declarations of stores."""
    sort = draw(st.sampled_from([None, None, *SORTS]))
    lateness = draw(TIMES)
    past = draw(st.sampled_from(["ttl", "history", ""]))
    return Shape(
        value=draw(st.sampled_from([Held, int, list[int]])),
        sort=sort,
        lateness=lateness,
        history=6 if past == "history" and lateness is not None and sort is None else 0,
        ttl=5 if past == "ttl" else 0,
        ties="values" if lateness is None else draw(st.sampled_from(["values", "arrival"])),
        changes=draw(st.booleans()),
    )


def changed(value: Any, op: Op, make: Callable[[int], Any]) -> Any:
    """What `update` makes of a value: 3 removes it."""
    return None if op.amount == 3 else make(amount_of(value) + op.amount)


def amount_of(value: Any) -> int:
    """The number of a value; 0 for None."""
    if isinstance(value, list | tuple) and not hasattr(value, "amount"):
        return sum(value)
    return int(getattr(value, "amount", value) or 0)


@functools.lru_cache(maxsize=64)
def store_job(kinds: tuple[str, ...], shape: Shape, key_groups: int | None = None) -> sk.Job:
    """A job with an operation of each of these kinds, declared in this order.

    Each has a source and a sink of its name, and with event time a sink "late.…". There may be a
    sink of all changes.
    """
    job = sk.Job("store", key_groups=key_groups)
    store = job.add(sk.KVStore("kv", key=str, value=shape.value, **shape.options))
    declared = {kind: _declared(store, kind, job.source(kind, Op), shape) for kind in kinds}
    for kind, answers in declared.items():
        answers.sink(kind)
        if shape.lateness is not None:
            store.late(answers).sink(f"late.{kind}")
    if shape.changes:
        store.changes().sink("changes")
    return job


def _declared(store: Any, kind: str, stream: sk.Stream[Op], shape: Shape) -> sk.Stream[Any]:
    """Declare one operation."""
    method, options = arguments(kind, shape)
    return getattr(store, method)(stream, **options)  # type: ignore[no-any-return]


def arguments(kind: str, shape: Shape) -> tuple[str, dict[str, Any]]:
    """Return the method of an operation, and its options."""
    if kind in ("multi_get", "multi_get_as_of"):
        return "multi_get", {"keys": "keys"} | ({"as_of": "as_of"} if kind[9:] else {})
    if kind.startswith("versions"):
        return "versions", {"key": "key", **VERSIONS[kind]}
    if kind in RANGES or kind in PREFIXED:
        method, given = (RANGES | PREFIXED)[kind]
        return method, {"key": "key", **{name: of_range(of, shape) for name, of in given.items()}}
    options: dict[str, Any] = {"key": "key"}
    if shape.sort is not None:
        options["sort"] = "place" if shape.sort is int else _placed(shape, "place")
    method, own = _of_cell(shape).get(kind, (kind, {}))
    return method, options | own


def _of_cell(shape: Shape) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return the methods and options of operations on one value."""
    made = shape.made

    def new(op: Op) -> Any:
        return made(op.amount)

    def expected(op: Op) -> Any:
        return None if op.expected is None else made(op.expected)

    return {
        "put": ("put", {"value": new}),
        "put_for": ("put", {"value": new, "ttl": "ttl"}),
        "put_for_3": ("put", {"value": new, "ttl": after(3)}),
        "expire": ("expire", {"ttl": "ttl"}),
        "expire_in_2": ("expire", {"ttl": after(2)}),
        "put_if_absent": ("put_if_absent", {"value": new}),
        "compare_and_set": ("compare_and_set", {"expected": expected, "value": new}),
        "reduce": ("reduce", {"fn": max, "value": new}),
        "increment": ("increment", {"by": "amount"}),
        "increment_by_2": ("increment", {"by": 2}),
        "append": ("append", {"value": "amount"}),
        "get_as_of": ("get", {"as_of": "as_of"}),
        "update": ("update", {"fn": lambda held, op: changed(held, op, made)}),
    }


def of_range(given: Any, shape: Shape) -> Any:
    """Return an option of an operation on a range: a field, a function or a constant."""
    if given == "prefix":
        return lambda op: op.begins
    if given == "ranges" and shape.sort is not int:
        sort = _or_none(shape)
        return lambda op: [(sort(low), sort(high)) for low, high in op.ranges]
    if given in ("low", "high", "after") and shape.sort is not int:
        return _placed(shape, given)
    return given


def _placed(shape: Shape, field: str) -> Callable[[Op], Any]:
    """Return a function of the ordered part at the place in a field."""
    sort = _or_none(shape)
    return lambda op: sort(getattr(op, field))


def _or_none(shape: Shape) -> Callable[[int | None], Any]:
    of: Callable[[int], Any] = SORTS[shape.sort]
    return lambda place: None if place is None else of(place)


VERSIONS: dict[str, dict[str, Any]] = {
    "versions": {},
    "versions_since": {"start": "as_of"},
    "versions_until": {"start": "as_of", "end": lambda op: op.until},
}
"""The bounds of the intervals of `versions`."""
