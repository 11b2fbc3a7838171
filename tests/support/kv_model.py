"""A key-value store of plain Python, and jobs with all operations of a `KVStore`."""

from __future__ import annotations

import datetime as dt
import functools
import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from hypothesis import strategies as st

import statekit as sk
from tests.support.instants import at

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
"""All operations on single values."""

PAST_KINDS = ["get_as_of", "multi_get_as_of", "versions", "versions_since", "versions_until"]
"""The operations of a store with a history."""

RANGES: dict[str, tuple[str, dict[str, Any]]] = {
    "scan_all": ("scan", {}),
    "scan_between": ("scan", {"start": "low", "end": lambda op: op.high}),
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

SORTED_KINDS = [kind for kind in KINDS if kind != "multi_get"] + list(RANGES)
"""All operations of a sorted store."""

KEYS = ["a", "b", "c"]


class Held(NamedTuple):
    """A value."""

    amount: int


class HeldLater(NamedTuple):
    """The same class in a later version of the job."""

    amount: int
    note: str = ""


HeldLater.__name__ = HeldLater.__qualname__ = "Held"


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


PLACES = st.integers(-2, 3)

Answer = tuple[Any, ...]
"""An answer as the model gives it: its values in the order of the fields of the answer."""


def ops(seconds: int) -> st.SearchStrategy[Op]:
    """Operations on few keys, with times of so many seconds."""
    return st.builds(
        Op,
        key=st.sampled_from(KEYS[:2]),
        at=st.integers(1, seconds).map(at),
        amount=st.integers(0, 3),
        expected=st.none() | st.integers(0, 3),
        keys=st.lists(st.sampled_from(KEYS), max_size=3),
        as_of=st.integers(1, seconds).map(at),
        until=st.none() | st.integers(1, seconds).map(at),
        place=PLACES,
        low=st.none() | PLACES,
        high=st.none() | PLACES,
        after=st.none() | PLACES,
        most=st.none() | st.integers(0, 3),
        skip=st.integers(0, 2),
        ranges=st.lists(st.tuples(st.none() | PLACES, st.none() | PLACES), max_size=2),
    )


def changed(value: Any, op: Op, make: Callable[[int], Any]) -> Any:
    """What `update` makes of a value: 3 removes it."""
    return None if op.amount == 3 else make((0 if value is None else value.amount) + op.amount)


# ------------------------------------------------------------------------------------------ jobs


@functools.lru_cache(maxsize=64)
def store_job(
    kinds: tuple[str, ...],
    value: Any,
    key_groups: int | None = None,
    changes: bool = False,
    **options: Any,
) -> sk.Job:
    """A job with an operation of each of these kinds, declared in this order.

    Each has a source and a sink of its name, and with event time a sink "late.…". With `changes`
    there is a sink of all changes.
    """
    job = sk.Job("store", key_groups=key_groups)
    store = job.add(sk.KVStore("kv", key=str, value=value, **options))
    is_sorted = "sort" in options
    declared = {
        kind: _declared(store, kind, job.source(kind, Op), value, is_sorted) for kind in kinds
    }
    for kind, answers in declared.items():
        answers.sink(kind)
        if "event_time" in options:
            store.late(answers).sink(f"late.{kind}")
    if changes:
        store.changes().sink("changes")
    return job


def _declared(
    store: Any, kind: str, stream: sk.Stream[Op], value: Any, is_sorted: bool
) -> sk.Stream[Any]:
    """Declare one operation."""

    def new(op: Op) -> Any:
        return value(op.amount)

    def expected(op: Op) -> Any:
        return None if op.expected is None else value(op.expected)

    if kind in ("multi_get", "multi_get_as_of"):
        past = {"as_of": "as_of"} if kind == "multi_get_as_of" else {}
        return store.multi_get(stream, keys="keys", **past)  # type: ignore[no-any-return]
    if kind.startswith("versions"):
        return store.versions(stream, key="key", **VERSIONS[kind])  # type: ignore[no-any-return]
    if kind in RANGES:
        method, given = RANGES[kind]
        return getattr(store, method)(stream, key="key", **given)  # type: ignore[no-any-return]
    options: dict[str, Any] = {"key": "key"} | ({"sort": "place"} if is_sorted else {})
    if kind in ("put", "put_if_absent", "reduce"):
        options["value"] = new
    if kind == "compare_and_set":
        options |= {"expected": expected, "value": new}
    if kind == "get_as_of":
        kind, options["as_of"] = "get", "as_of"
    if kind == "reduce":
        return store.reduce(stream, max, **options)  # type: ignore[no-any-return]
    if kind == "update":
        return store.update(  # type: ignore[no-any-return]
            stream, lambda held, op: changed(held, op, value), **options
        )
    return getattr(store, kind)(stream, **options)  # type: ignore[no-any-return]


VERSIONS: dict[str, dict[str, Any]] = {
    "versions": {},
    "versions_since": {"start": "as_of"},
    "versions_until": {"start": "as_of", "end": lambda op: op.until},
}
"""The bounds of the intervals of `versions`."""

VERSION_BOUNDS: dict[str, Callable[[Op], tuple[Any, ...]]] = {
    "versions": lambda op: (),
    "versions_since": lambda op: (op.as_of,),
    "versions_until": lambda op: (op.as_of, op.until),
}
"""The same of an operation."""


def plain(value: Any) -> Any:
    """An answer, or a part of it, without classes that differ between versions of a job."""
    if isinstance(value, Held | HeldLater):
        return value.amount
    if isinstance(value, tuple | list):
        return tuple(map(plain, value))
    return value


# ----------------------------------------------------------------------------------------- model


class StoreModel:
    """A store without time: operations have their effect when they are handled.

    Parameters:
        is_sorted: whether keys have an ordered part.
        has_changes: whether there is a sink of all changes.
    """

    def __init__(self, is_sorted: bool = False, has_changes: bool = False) -> None:
        self.is_sorted, self.has_changes = is_sorted, has_changes
        self.changes: list[Answer] = []
        self.values: dict[tuple[Any, ...], Held] = {}

    def cell(self, op: Op) -> tuple[Any, ...]:
        """Return the key of the value that an operation names."""
        return (op.key, op.place) if self.is_sorted else (op.key,)

    def parts(self, kind: str, op: Op) -> tuple[Any, ...]:
        """Return the parts of the request of an operation, without the time."""
        if kind.startswith("multi_get"):
            return (op,)
        if kind.startswith("versions"):
            return op.key, *VERSION_BOUNDS[kind](op)
        if kind in RANGES:
            return op.key, *(_part(op, given) for given in _given(RANGES[kind][1]).values())
        own: dict[str, tuple[Any, ...]] = {
            "put": (Held(op.amount),),
            "reduce": (Held(op.amount),),
            "get_as_of": (op.as_of,),
            **dict.fromkeys(["get", "remove", "exists"], ()),
        }
        return *self.cell(op), *own.get(kind, (op,))

    def results(self, kind: str, op: Op) -> tuple[Any, ...]:
        """Carry out an operation, and return its results."""
        if kind in RANGES:
            method, options = RANGES[kind]
            return self.of_range(method, options, op)
        before, new = self.values.get(self.cell(op)), Held(op.amount)
        match kind:
            case "put":
                self.write(op, self.cell(op), new)
                return ()
            case "remove":
                self.write(op, self.cell(op), None)
                return (before,)
            case "exists":
                return (before is not None,)
            case "get" | "get_with":
                return (before,)
            case "multi_get":
                return ([self.values.get((key,)) for key in op.keys],)
            case "reduce":
                most = new if before is None else max(before, new)
                self.write(op, self.cell(op), most)
                return (most,)
            case "update":
                after = changed(before, op, Held)
                self.write(op, self.cell(op), after)
                return before, after
            case "put_if_absent":
                wins = before is None
            case _:
                assert kind == "compare_and_set"
                wins = before == (None if op.expected is None else Held(op.expected))
        if wins:
            self.write(op, self.cell(op), new)
        return wins, new if wins else before

    def of_range(self, method: str, options: Mapping[str, Any], op: Op) -> tuple[Any, ...]:
        """Carry out an operation on a range, and return its results."""
        given = {name: _part(op, of) for name, of in options.items()}
        closed = given.get("closed", "left")

        def within(low: int | None, high: int | None) -> list[tuple[int, Held]]:
            return [
                (place, value)
                for (key, place), value in sorted(self.values.items())
                if key == op.key
                and (low is None or low < place or (low == place and closed in ("left", "both")))
                and (
                    high is None or place < high or (place == high and closed in ("right", "both"))
                )
            ]

        if method == "multi_scan":
            return ([within(*bounds)[: given["limit"]] for bounds in op.ranges],)
        entries = within(given.get("start"), given.get("end"))
        match method:
            case "count":
                return (len(entries),)
            case "first":
                return entries[0] if entries else (None, None)
            case "last":
                return entries[-1] if entries else (None, None)
            case "remove_range":
                return (self.removed_all(op, entries),)
            case "trim":
                return (self.removed_all(op, entries[::-1][given["keep"] :]),)
        return self.scanned(entries, given)

    def removed_all(self, op: Op, entries: Sequence[tuple[int, Held]]) -> int:
        for place, _ in entries:
            self.write(op, (op.key, place), None)
        return len(entries)

    def scanned(self, entries: list[tuple[int, Held]], given: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the entries that a scan reads of those of its range."""
        if reverse := given.get("reverse", False):
            entries = entries[::-1]
        if (after := given.get("after")) is not None:
            entries = [
                each for each in entries if (each[0] < after if reverse else each[0] > after)
            ]
        entries = entries[given.get("offset", 0) :]
        some = entries[: given.get("limit")]
        if "after" not in given:
            return (some,)
        return some, some[-1][0] if some and len(entries) > len(some) else None

    def handle(self, kind: str, op: Op) -> Answer:
        """Carry out an operation, and return its answer."""
        return *self.parts(kind, op), *self.time(op), *self.results(kind, op)

    def write(self, op: Op, cell: tuple[Any, ...], value: Held | None) -> None:
        before = self.values.pop(cell, None)
        if value is not None:
            self.values[cell] = value
        if before is not None or value is not None:
            self.changes.append(plain((*cell, *self.time(op), before, value)))

    def time(self, op: Op) -> tuple[Any, ...]:
        """Return the time of an operation in an answer."""
        return ()

    def with_changes(self, found: dict[str, list[Answer]]) -> dict[str, list[Answer]]:
        """Return the answers of an epoch, and its changes."""
        if self.has_changes:
            found["changes"] = self.changes
        self.changes = []
        return found

    def removed(self, kind: str) -> None:
        """Remove an operation: the model of a store without time has nothing of it."""

    def epoch(
        self, kinds: Sequence[str], given: Mapping[str, Sequence[Op]]
    ) -> dict[str, list[Answer]]:
        """Carry out the operations of an epoch in the order of their declaration."""
        return self.with_changes(
            {kind: [plain(self.handle(kind, op)) for op in given.get(kind, ())] for kind in kinds}
        )


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are parts of a request, in the order of its fields."""
    names = ("ranges", "start", "end", "limit", "offset", "after", "keep")
    given = {name: options[name] for name in names if name in options}
    return {name: of for name, of in given.items() if isinstance(of, str) or callable(of)}


def _part(op: Op, given: Any) -> Any:
    if callable(given):
        return given(op)
    return getattr(op, given) if given in Op._fields else given


class TimedModel(StoreModel):
    """A store in event time that knows all versions of its values.

    Parameters:
        lateness: in seconds.
        history: in seconds.
        is_sorted, has_changes: as for `StoreModel`.
        by_arrival: whether operations of one time are in the order of arrival.
    """

    def __init__(
        self,
        lateness: int,
        history: int = 0,
        is_sorted: bool = False,
        has_changes: bool = False,
        by_arrival: bool = False,
    ) -> None:
        super().__init__(is_sorted, has_changes)
        self.by_arrival = by_arrival
        self.epochs = 0
        self.lateness = dt.timedelta(seconds=lateness)
        self.history = dt.timedelta(seconds=history)
        self.versions: dict[tuple[Any, ...], list[tuple[dt.datetime, Held | None]]]
        self.versions = defaultdict(list)
        self.watermark = dt.datetime.min.replace(tzinfo=dt.UTC)
        self.largest: dict[str, dt.datetime] = {}
        self.waiting: list[tuple[str, Op, int]] = []
        """Operations with the numbers of their epochs."""

    def time(self, op: Op) -> tuple[Any, ...]:
        return (op.at,)

    def handle(self, kind: str, op: Op) -> Answer:
        if kind == "multi_get_as_of":
            return op, op.at, op.as_of, *self.results(kind, op)
        return super().handle(kind, op)

    def results(self, kind: str, op: Op) -> tuple[Any, ...]:
        if kind == "get_as_of":
            return self.read_at(op, op.key)
        if kind == "multi_get_as_of":
            found = [self.read_at(op, key) for key in op.keys]
            return [value for value, _ in found], [status for _, status in found]
        if kind.startswith("versions"):
            return self.read_versions(op, *VERSION_BOUNDS[kind](op))
        return super().results(kind, op)

    def read_versions(self, op: Op, start: Any = None, end: Any = None) -> tuple[Any, ...]:
        last_of_time: dict[Any, Any] = dict(self.versions[self.cell(op)])
        found = [
            (last_of_time[since], since, until)
            for since, until in itertools.pairwise([*sorted(last_of_time), None])
            if last_of_time[since] is not None
            and (until is None or op.at - until < self.history)
            and (until is None or start is None or until > start)
            and (end is None or since < end)
        ]
        is_too_old = start is not None and op.at - start > self.history
        return found, "too old" if is_too_old else "complete"

    def write(self, op: Op, cell: tuple[Any, ...], value: Held | None) -> None:
        super().write(op, cell, value)
        self.versions[cell].append((op.at, value))

    def read_at(self, op: Op, key: str) -> tuple[Held | None, str]:
        if op.as_of > op.at:
            return None, "not yet"
        if op.at - op.as_of > self.history:
            return None, "too old"
        known = [value for since, value in self.versions[key,] if since <= op.as_of]
        value = known[-1] if known else None
        return value, "absent" if value is None else "found"

    def epoch(
        self, kinds: Sequence[str], given: Mapping[str, Sequence[Op]]
    ) -> dict[str, list[Answer]]:
        """Return the answers of an epoch, and its late operations as "late.…"."""
        self.epochs += 1
        if all(kind in self.largest for kind in kinds):
            seen = min(self.largest[kind] for kind in kinds) - self.lateness
            self.watermark = max(self.watermark, seen)
        found: dict[str, list[Answer]] = {name: [] for kind in kinds for name in _sinks(kind)}
        for kind in kinds:
            for op in given.get(kind, ()):
                if op.at <= self.watermark:
                    is_whole = kind.startswith("multi_get")
                    late = op if is_whole else (*self.parts(kind, op), op.at)
                    found[f"late.{kind}"].append(plain(late))
                    continue
                self.waiting.append((kind, op, self.epochs))
                self.largest[kind] = max(op.at, self.largest.get(kind, op.at))
        self.answer(found, kinds, self.watermark)
        return self.with_changes(found)

    def removed(self, kind: str) -> None:
        """Remove an operation. It would come back as a new input."""
        self.largest.pop(kind, None)

    def drain(self, kinds: Sequence[str]) -> dict[str, list[Answer]]:
        """Return the answers once event time has ended."""
        found: dict[str, list[Answer]] = {name: [] for kind in kinds for name in _sinks(kind)}
        self.answer(found, kinds, dt.datetime.max.replace(tzinfo=dt.UTC))
        return self.with_changes(found)

    def answer(
        self, found: dict[str, list[Answer]], kinds: Sequence[str], until: dt.datetime
    ) -> None:
        """Carry out the operations that are due, by time, declaration and values. Those of
        operations that were removed are dropped.
        """
        due = [each for each in self.waiting if each[1].at <= until and each[0] in kinds]
        self.waiting = [each for each in self.waiting if each[1].at > until]
        for kind, op, _ in sorted(due, key=lambda each: self.order(kinds, *each)):
            found[kind].append(plain(self.handle(kind, op)))

    def order(self, kinds: Sequence[str], kind: str, op: Op, epoch: int) -> tuple[Any, ...]:
        """Return the order of operations: of equal ones by the parts of their requests."""
        if self.by_arrival:
            return op.at, epoch, kinds.index(kind)
        return op.at, kinds.index(kind), _ordered(self.parts(kind, op))


def _sinks(kind: str) -> tuple[str, str]:
    return kind, f"late.{kind}"


def _ordered(value: Any) -> Any:
    """Return the order of a part of a request, in which None is first."""
    if isinstance(value, list | tuple):
        return 1, [_ordered(of) for of in value]
    return (0, 0) if value is None else (1, value)
