"""A key-value store of plain Python, as the documentation describes it.

Values are numbers, or tuples of numbers for values that are lists.
"""

from __future__ import annotations

import datetime as dt
import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from tests.support.instants import after, at
from tests.support.kv_jobs import (
    PREFIXED,
    RANGES,
    SORTS,
    Held,
    HeldLater,
    Op,
    Shape,
    arguments,
    changed,
)

Answer = tuple[Any, ...]
"""An answer as the model gives it: its values in the order of the fields of the answer."""

Given = Mapping[str, Sequence[Op]]
"""The operations of an epoch, of each kind."""

ON_RANGES = RANGES | PREFIXED


def plain(value: Any) -> Any:
    """An answer, or a part of it, without classes that differ between versions of a job."""
    if isinstance(value, Held | HeldLater):
        return value.amount
    if isinstance(value, tuple | list):
        return tuple(map(plain, value))
    return value


class StoreModel:
    """A store without time: operations have their effect when they are handled.

    Attributes:
        now: the processing time, by which values expire.
        until: when each value with a TTL expires; None for one that stays.
    """

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.now = at(0)
        self.changes: list[Answer] = []
        self.values: dict[tuple[Any, ...], Any] = {}
        self.until: dict[tuple[Any, ...], dt.datetime | None] = {}

    # ---------------------------------------------------------------------------------- epochs

    def epoch(self, kinds: Sequence[str], given: Given) -> dict[str, list[Answer]]:
        """Carry out the operations of an epoch in the order of their declaration."""
        return self.with_changes(
            {kind: [plain(self.handle(kind, op)) for op in given.get(kind, ())] for kind in kinds}
        )

    def with_changes(self, found: dict[str, list[Answer]]) -> dict[str, list[Answer]]:
        """Return the answers of an epoch, and its changes."""
        if self.shape.changes:
            found["changes"] = self.changes
        self.changes = []
        return found

    def removed(self, kind: str) -> None:
        """Remove an operation: the model of a store without time has nothing of it."""

    # -------------------------------------------------------------------------------- requests

    def handle(self, kind: str, op: Op) -> Answer:
        """Carry out an operation, and return its answer."""
        self.forget_expired(op)
        return *self.parts(kind, op), *self.time(op), *self.results(kind, op)

    def cell(self, op: Op) -> tuple[Any, ...]:
        """Return the key of the value that an operation names."""
        return (op.key,) if self.shape.sort is None else (op.key, SORTS[self.shape.sort](op.place))

    def new(self, op: Op) -> Any:
        """Return the value that an operation puts."""
        return plain(self.shape.made(op.amount))

    def parts(self, kind: str, op: Op) -> tuple[Any, ...]:
        """Return the parts of the request of an operation, without the time."""
        if kind.startswith("multi_get"):
            return (op,)
        if kind in ON_RANGES or kind.startswith("versions"):
            names = ("ranges", "start", "end", "prefix", "limit", "offset", "after", "keep")
            own = _given(kind, self.shape, names)
            return op.key, *(_part(op, of) for of in own.values())
        own_parts: dict[str, tuple[Any, ...]] = {
            **dict.fromkeys(["put", "put_for_3", "reduce"], (self.new(op),)),
            "put_for": (self.new(op), op.ttl),
            "expire": (op.ttl,),
            "increment": (op.amount,),
            "append": (op.amount,),
            "get_as_of": (op.as_of,),
            **dict.fromkeys(["get", "remove", "exists", "persist", "expire_in_2"], ()),
            "increment_by_2": (),
        }
        return *self.cell(op), *own_parts.get(kind, (op,))

    def time(self, op: Op) -> tuple[Any, ...]:
        """Return the time of an operation in an answer."""
        return ()

    # --------------------------------------------------------------------------------- results

    def results(self, kind: str, op: Op) -> tuple[Any, ...]:
        """Carry out an operation, and return its results."""
        if kind in ON_RANGES:
            return self.of_range(kind, op)
        cell, new = self.cell(op), self.new(op)
        before = self.values.get(cell)
        match kind:
            case "put" | "put_for" | "put_for_3":
                self.write(op, cell, new)
                lifetime = {"put_for": op.ttl, "put_for_3": after(3)}.get(kind)
                if lifetime is not None:
                    self.live(op, cell, lifetime)
                return ()
            case "remove":
                self.write(op, cell, None)
                return (before,)
            case "exists":
                return (before is not None,)
            case "get" | "get_with":
                return (before,)
            case "multi_get":
                return ([self.values.get((key,)) for key in op.keys],)
            case "expire" | "expire_in_2":
                given = op.ttl if kind == "expire" else after(2)
                self.live(op, cell, after(self.shape.ttl) if given is None else given)
                return (before is not None,)
            case "persist":
                self.live(op, cell, None)
                return (before is not None,)
            case "reduce":
                return self.combined(op, new if before is None else max(before, new))
            case "increment" | "increment_by_2":
                return self.combined(op, (before or 0) + (2 if kind[9:] else op.amount))
            case "append":
                return self.combined(op, (*(before or ()), op.amount))
            case "update":
                after_it = plain(changed(before, op, self.shape.made))
                self.write(op, cell, after_it)
                return before, after_it
            case "put_if_absent":
                wins = before is None
            case _:
                assert kind == "compare_and_set"
                expected = None if op.expected is None else self.shape.made(op.expected)
                wins = before == plain(expected)
        if wins:
            self.write(op, cell, new)
        return wins, new if wins else before

    def combined(self, op: Op, value: Any) -> tuple[Any, ...]:
        self.write(op, self.cell(op), value)
        return (value,)

    def of_range(self, kind: str, op: Op) -> tuple[Any, ...]:
        """Carry out an operation on a range, and return its results."""
        method, options = arguments(kind, self.shape)
        given = {name: _part(op, of) for name, of in options.items()}
        if method == "multi_scan":
            ranges = _part(op, options["ranges"])
            return ([self.within(op, given, *each)[: given["limit"]] for each in ranges],)
        entries = self.within(op, given, given.get("start"), given.get("end"))
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

    def within(
        self, op: Op, given: Mapping[str, Any], low: Any, high: Any
    ) -> list[tuple[Any, Any]]:
        """Return the entries between two bounds, with the prefix of an operation."""
        closed, prefix = given.get("closed", "left"), given.get("prefix")
        return [
            (place, value)
            for (key, place), value in sorted(self.values.items())
            if key == op.key
            and (low is None or low < place or (low == place and closed in ("left", "both")))
            and (high is None or place < high or (place == high and closed in ("right", "both")))
            and (prefix is None or _begins(place, prefix))
        ]

    def removed_all(self, op: Op, entries: Sequence[tuple[Any, Any]]) -> int:
        for place, _ in entries:
            self.write(op, (op.key, place), None)
        return len(entries)

    def scanned(self, entries: list[tuple[Any, Any]], given: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the entries that a scan reads of those of its range."""
        if reverse := given.get("reverse", False):
            entries = entries[::-1]
        if (last := given.get("after")) is not None:
            entries = [each for each in entries if (each[0] < last if reverse else each[0] > last)]
        entries = entries[given.get("offset", 0) :]
        some = entries[: given.get("limit")]
        if "after" not in given:
            return (some,)
        return some, some[-1][0] if some and len(entries) > len(some) else None

    # ---------------------------------------------------------------------------------- values

    def write(self, op: Op, cell: tuple[Any, ...], value: Any) -> None:
        """Set or remove a value. A write restarts the TTL, and never shortens a lifetime."""
        before = self.values.pop(cell, None)
        until = self.until.pop(cell, at(0))
        if value is not None:
            self.values[cell] = value
        if value is not None and self.shape.ttl:
            restarted = self.clock(op) + after(self.shape.ttl)
            self.until[cell] = None if until is None else max(until, restarted)
        if before is not None or value is not None:
            self.changes.append(plain((*cell, *self.time(op), before, value)))

    def live(self, op: Op, cell: tuple[Any, ...], lifetime: dt.timedelta | None) -> None:
        """Set when a value expires; None keeps it."""
        if cell in self.values:
            self.until[cell] = None if lifetime is None else self.clock(op) + lifetime
        self.forget_expired(op)

    def clock(self, op: Op) -> dt.datetime:
        """Return the time by which values expire."""
        return self.now

    def forget_expired(self, op: Op) -> None:
        now = self.clock(op)
        for cell in [each for each, until in self.until.items() if until and until <= now]:
            del self.values[cell], self.until[cell]


class TimedModel(StoreModel):
    """A store in event time that knows all versions of its values."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.epochs = 0
        self.lateness, self.history = after(shape.lateness or 0), after(shape.history)
        self.versions: dict[tuple[Any, ...], list[tuple[dt.datetime, Any]]] = defaultdict(list)
        self.watermark = dt.datetime.min.replace(tzinfo=dt.UTC)
        self.largest: dict[str, dt.datetime] = {}
        self.waiting: list[tuple[str, Op, int]] = []
        """Operations with the numbers of their epochs."""

    # ---------------------------------------------------------------------------------- epochs

    def epoch(self, kinds: Sequence[str], given: Given) -> dict[str, list[Answer]]:
        """Return the answers of an epoch, and its late operations as "late.…"."""
        self.epochs += 1
        if all(kind in self.largest for kind in kinds):
            seen = min(self.largest[kind] for kind in kinds) - self.lateness
            self.watermark = max(self.watermark, seen)
        found: dict[str, list[Answer]] = {name: [] for kind in kinds for name in _sinks(kind)}
        for kind in kinds:
            for op in given.get(kind, ()):
                if op.at <= self.watermark:
                    is_record = kind.startswith("multi_get")
                    late = op if is_record else (*self.parts(kind, op), op.at)
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
        if self.shape.ties == "arrival":
            return op.at, epoch, kinds.index(kind)
        return op.at, kinds.index(kind), _ordered(self.parts(kind, op))

    # --------------------------------------------------------------------------------- results

    def handle(self, kind: str, op: Op) -> Answer:
        if kind == "multi_get_as_of":
            return op, op.at, op.as_of, *self.results(kind, op)
        return super().handle(kind, op)

    def time(self, op: Op) -> tuple[Any, ...]:
        return (op.at,)

    def clock(self, op: Op) -> dt.datetime:
        return op.at

    def results(self, kind: str, op: Op) -> tuple[Any, ...]:
        if kind == "get_as_of":
            return self.read_at(op, op.key)
        if kind == "multi_get_as_of":
            found = [self.read_at(op, key) for key in op.keys]
            return [value for value, _ in found], [status for _, status in found]
        if kind.startswith("versions"):
            bounds = _given(kind, self.shape, ("start", "end"))
            return self.read_versions(op, **{name: _part(op, of) for name, of in bounds.items()})
        return super().results(kind, op)

    def read_at(self, op: Op, key: str) -> tuple[Any, str]:
        if op.as_of > op.at:
            return None, "not yet"
        if op.at - op.as_of > self.history:
            return None, "too old"
        known = [value for since, value in self.versions[key,] if since <= op.as_of]
        value = known[-1] if known else None
        return value, "absent" if value is None else "found"

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

    def write(self, op: Op, cell: tuple[Any, ...], value: Any) -> None:
        super().write(op, cell, value)
        self.versions[cell].append((op.at, value))


def model_of(shape: Shape) -> StoreModel:
    """Return the model of a store."""
    return StoreModel(shape) if shape.lateness is None else TimedModel(shape)


def _sinks(kind: str) -> tuple[str, str]:
    return kind, f"late.{kind}"


def _begins(place: Any, prefix: str) -> bool:
    """Whether a text begins with a prefix, or a tuple with it as its first part."""
    return bool(place.startswith(prefix) if isinstance(place, str) else place[0] == prefix)


def _given(kind: str, shape: Shape, names: Sequence[str]) -> dict[str, Any]:
    """Return the options that are parts of a request, in the order of its fields."""
    _, options = arguments(kind, shape)
    given = {name: options[name] for name in names if name in options}
    return {name: of for name, of in given.items() if isinstance(of, str) or callable(of)}


def _part(op: Op, given: Any) -> Any:
    if callable(given):
        return given(op)
    return getattr(op, given) if given in Op._fields else given


def _ordered(value: Any) -> Any:
    """Return the order of a part of a request, in which None is first."""
    if isinstance(value, list | tuple):
        return 1, [_ordered(of) for of in value]
    return (0, 0) if value is None else (1, value)
