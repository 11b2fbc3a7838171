"""A key-value store of plain Python, and jobs with all operations of a `KVStore`."""

from __future__ import annotations

import datetime as dt
import functools
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
]
"""All operations on single values."""

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
    )


def changed(value: Any, op: Op, make: Callable[[int], Any]) -> Any:
    """What `update` makes of a value: 3 removes it."""
    return None if op.amount == 3 else make((0 if value is None else value.amount) + op.amount)


# ------------------------------------------------------------------------------------------ jobs


@functools.lru_cache(maxsize=64)
def store_job(
    kinds: tuple[str, ...], value: Any, key_groups: int | None = None, **options: Any
) -> sk.Job:
    """A job with an operation of each of these kinds, declared in this order.

    Each has a source and a sink of its name, and with event time a sink "late.…".
    """
    job = sk.Job("store", key_groups=key_groups)
    store = job.add(sk.KVStore("kv", key=str, value=value, **options))
    declared = {kind: _declared(store, kind, job.source(kind, Op), value) for kind in kinds}
    for kind, answers in declared.items():
        answers.sink(kind)
        if "event_time" in options:
            store.late(answers).sink(f"late.{kind}")
    return job


def _declared(store: Any, kind: str, stream: sk.Stream[Op], value: Any) -> sk.Stream[Any]:
    """Declare one operation."""

    def new(op: Op) -> Any:
        return value(op.amount)

    def expected(op: Op) -> Any:
        return None if op.expected is None else value(op.expected)

    if kind == "multi_get":
        return store.multi_get(stream, keys="keys")  # type: ignore[no-any-return]
    options: dict[str, Any] = {"key": "key"}
    if kind in ("put", "put_if_absent"):
        options["value"] = new
    if kind == "compare_and_set":
        options |= {"expected": expected, "value": new}
    if kind == "get_as_of":
        kind, options["as_of"] = "get", "as_of"
    if kind == "update":
        return store.update(  # type: ignore[no-any-return]
            stream, lambda held, op: changed(held, op, value), **options
        )
    return getattr(store, kind)(stream, **options)  # type: ignore[no-any-return]


def plain(value: Any) -> Any:
    """An answer, or a part of it, without classes that differ between versions of a job."""
    if isinstance(value, Op):
        return *value[:4], tuple(value.keys), value.as_of
    if isinstance(value, Held | HeldLater):
        return value.amount
    if isinstance(value, tuple | list):
        return tuple(map(plain, value))
    return value


# ----------------------------------------------------------------------------------------- model


class StoreModel:
    """A store without time: operations have their effect when they are handled."""

    def __init__(self) -> None:
        self.values: dict[str, Held] = {}

    def handle(self, kind: str, op: Op) -> Answer:
        """Carry out an operation, and return its answer without the time."""
        before, new = self.values.get(op.key), Held(op.amount)
        if kind == "put":
            self.write(op, new)
            return op.key, new
        if kind == "remove":
            self.write(op, None)
            return op.key, before
        if kind == "get":
            return op.key, before
        if kind == "get_with":
            return op.key, op, before
        if kind == "multi_get":
            return op, [self.values.get(key) for key in op.keys]
        if kind == "update":
            after = changed(before, op, Held)
            self.write(op, after)
            return op.key, op, before, after
        if kind == "put_if_absent":
            if before is None:
                self.write(op, new)
            return op.key, op, before is None, new if before is None else before
        assert kind == "compare_and_set"
        wins = before == (None if op.expected is None else Held(op.expected))
        if wins:
            self.write(op, new)
        return op.key, op, wins, new if wins else before

    def write(self, op: Op, value: Held | None) -> None:
        self.values.pop(op.key, None)
        if value is not None:
            self.values[op.key] = value

    def removed(self, kind: str) -> None:
        """Remove an operation: the model of a store without time has nothing of it."""

    def epoch(
        self, kinds: Sequence[str], given: Mapping[str, Sequence[Op]]
    ) -> dict[str, list[Answer]]:
        """Carry out the operations of an epoch in the order of their declaration."""
        return {
            kind: [plain(self.handle(kind, op)) for op in given.get(kind, ())] for kind in kinds
        }


class TimedModel(StoreModel):
    """A store in event time that knows all versions of its values.

    Parameters:
        lateness: in seconds.
        history: in seconds.
    """

    def __init__(self, lateness: int, history: int = 0) -> None:
        super().__init__()
        self.lateness = dt.timedelta(seconds=lateness)
        self.history = dt.timedelta(seconds=history)
        self.versions: dict[str, list[tuple[dt.datetime, Held | None]]] = defaultdict(list)
        self.watermark = dt.datetime.min.replace(tzinfo=dt.UTC)
        self.largest: dict[str, dt.datetime] = {}
        self.waiting: list[tuple[str, Op]] = []

    def handle(self, kind: str, op: Op) -> Answer:
        if kind == "get_as_of":
            return op.key, op.as_of, op.at, *self.read_at(op)
        answer = super().handle(kind, op)
        parts = {"put": 2, "get_with": 2, "multi_get": 1, "get": 1, "remove": 1}.get(kind, 2)
        return *answer[:parts], op.at, *answer[parts:]

    def write(self, op: Op, value: Held | None) -> None:
        super().write(op, value)
        self.versions[op.key].append((op.at, value))

    def read_at(self, op: Op) -> tuple[Held | None, str]:
        if op.as_of > op.at:
            return None, "not yet"
        if op.at - op.as_of > self.history:
            return None, "too old"
        known = [value for since, value in self.versions[op.key] if since <= op.as_of]
        value = known[-1] if known else None
        return value, "absent" if value is None else "found"

    def epoch(
        self, kinds: Sequence[str], given: Mapping[str, Sequence[Op]]
    ) -> dict[str, list[Answer]]:
        """Return the answers of an epoch, and its late operations as "late.…"."""
        if all(kind in self.largest for kind in kinds):
            seen = min(self.largest[kind] for kind in kinds) - self.lateness
            self.watermark = max(self.watermark, seen)
        found: dict[str, list[Answer]] = {name: [] for kind in kinds for name in _sinks(kind)}
        for kind in kinds:
            for op in given.get(kind, ()):
                if op.at <= self.watermark:
                    found[f"late.{kind}"].append(plain(late_request(kind, op)))
                    continue
                self.waiting.append((kind, op))
                self.largest[kind] = max(op.at, self.largest.get(kind, op.at))
        self.answer(found, kinds, self.watermark)
        return found

    def removed(self, kind: str) -> None:
        """Remove an operation. It would come back as a new input."""
        self.largest.pop(kind, None)

    def drain(self, kinds: Sequence[str]) -> dict[str, list[Answer]]:
        """Return the answers once event time has ended."""
        found: dict[str, list[Answer]] = {name: [] for kind in kinds for name in _sinks(kind)}
        self.answer(found, kinds, dt.datetime.max.replace(tzinfo=dt.UTC))
        return found

    def answer(
        self, found: dict[str, list[Answer]], kinds: Sequence[str], until: dt.datetime
    ) -> None:
        """Carry out the operations that are due, by time, declaration and values. Those of
        operations that were removed are dropped.
        """
        due = [each for each in self.waiting if each[1].at <= until and each[0] in kinds]
        self.waiting = [(kind, op) for kind, op in self.waiting if op.at > until]
        for kind, op in sorted(due, key=lambda each: _order(kinds.index(each[0]), *each)):
            found[kind].append(plain(self.handle(kind, op)))


def _sinks(kind: str) -> tuple[str, str]:
    return kind, f"late.{kind}"


def _order(place: int, kind: str, op: Op) -> tuple[Any, ...]:
    """The order of operations: of equal ones by what their requests have."""
    if kind == "put":
        return op.at, place, op.amount
    if kind == "get_as_of":
        return op.at, place, op.as_of
    expected = (op.expected is not None, op.expected or 0)
    return op.at, place, op.key, op.amount, expected, op.keys, op.as_of


def late_request(kind: str, op: Op) -> Any:
    """A late request as `KVStore.late` emits it."""
    if kind == "multi_get":
        return op
    if kind == "put":
        return op.key, Held(op.amount), op.at
    if kind in ("get", "remove"):
        return op.key, op.at
    if kind == "get_as_of":
        return op.key, op.as_of, op.at
    return op.key, op, op.at
