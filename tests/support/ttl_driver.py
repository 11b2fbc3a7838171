"""A process function over states of every kind that expire, and the same over plain Python."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import statekit as sk
from statekit.backend.interface import MemoryBackend
from statekit.checkpoint.job_file import EXPIRY
from statekit.testing import Harness
from tests.support.instants import at
from tests.support.loaded_rows import load

TTL_SECONDS = 20
LATENESS = 3

COUNT: sk.Aggregate[int, int, int] = sk.Aggregate(
    create=int, add=lambda acc, added: acc + added, result=lambda acc: acc
)


class Op(NamedTuple):
    """One call, as `state` and `what`, with up to two numbers."""

    state: str
    what: str
    first: int = 0
    second: int = 0


class Do(NamedTuple):
    key: str
    at: dt.datetime
    ops: tuple[Op, ...]


class Saw(NamedTuple):
    key: str
    seen: tuple[str, ...]


def do(key: str, seconds: float, *ops: Op) -> Do:
    return Do(key, at(seconds), ops)


def states_that_expire(ttl: sk.TTL, *, ordered: bool = False) -> sk.Process[Any, Any, Any]:
    """A process function that does with its states what records say, and tells what it read."""

    def act(
        record: Do,
        value: Annotated[sk.ValueState[int], ttl],
        box: Annotated[sk.ValueState[list[int]], ttl],
        items: Annotated[sk.ListState[int], ttl],
        entries: Annotated[sk.MapState[int, int], ttl],
        boxes: Annotated[sk.MapState[int, list[int]], ttl],
        total: Annotated[sk.ReducingState[int], sk.Reduce(sum), ttl],
        count: Annotated[sk.AggregatingState[int, int, int], COUNT, ttl],
        kept: sk.ValueState[int],
    ) -> Iterator[Saw]:
        kept.update((kept.get() or 0) + 1)
        states: dict[str, Any] = {
            "value": value,
            "box": box,
            "items": items,
            "entries": entries,
            "boxes": boxes,
            "total": total,
            "count": count,
        }
        seen = tuple(_called(states[op.state], op) for op in record.ops)
        yield Saw(record.key, tuple(one for one in seen if one is not None))

    declared: sk.Process[Any, Any, Any] = sk.process(
        key="key", event_time="at", lateness=dt.timedelta(seconds=LATENESS), ordered=ordered
    )(act)
    return declared


def _called(state: Any, op: Op) -> str | None:
    boxed = op.state in ("box", "boxes")
    match op.what:
        case "update":
            state.update([op.first] if boxed else op.first)
        case "get":
            return repr(state.get())
        case "exists":
            return repr(state.exists())
        case "add" | "append":
            getattr(state, op.what)(op.first)
        case "replace":
            state.update([op.first, op.second])
        case "all":
            return repr(list(state))
        case "last":
            return repr(state[-1] if state else None)
        case "backwards":
            return repr(list(reversed(state)))
        case "len":
            return repr((len(state), bool(state)))
        case "put":
            state[op.first] = [op.second] if boxed else op.second
        case "at":
            return repr(state.get(op.first))
        case "in":
            return repr(op.first in state)
        case "del":
            if op.first in state:
                del state[op.first]
        case "items":
            return repr(list(state.items()))
        case "keys":
            return repr(list(state))
        case "clear":
            state.clear()
    return None


WHATS = {
    "value": ("update", "get", "exists", "clear"),
    "box": ("update", "get", "exists", "clear"),
    "items": ("append", "append", "replace", "all", "last", "backwards", "len", "clear"),
    "entries": ("put", "put", "at", "in", "del", "items", "keys", "len", "clear"),
    "boxes": ("put", "put", "at", "in", "del", "items", "keys", "len", "clear"),
    "total": ("add", "get", "clear"),
    "count": ("add", "get", "clear"),
}


class Held:
    """One value, and when it was written."""

    def __init__(self, value: Any, written: int) -> None:
        self.value = value
        self.written = written


class Model:
    """What the states of all keys hold.

    Parameters:
        ttl: as declared.
        ordered: event time is that of the record.
    """

    def __init__(self, ttl: sk.TTL, *, ordered: bool = False) -> None:
        self.ttl = ttl
        self.ordered = ordered
        self.watermark: float = float("-inf")
        self.processing = 0
        self.largest: float = float("-inf")
        self._held: dict[tuple[str, str], dict[int, Held]] = defaultdict(dict)
        self._appended = 0

    def epoch(self, records: list[Do]) -> dict[str, list[Saw]]:
        """What an epoch puts out per key."""
        self.watermark = max(self.watermark, self.largest - LATENESS)
        out: dict[str, list[Saw]] = defaultdict(list)
        for record in records:
            seconds = int(record.at.timestamp())
            if seconds <= self.watermark and not self.ordered:
                continue
            self.largest = max(self.largest, seconds)
            out[record.key].append(self.handle(record))
        return out

    def handle(self, record: Do) -> Saw:
        seconds = int(record.at.timestamp())
        by_event = self.ttl.clock == "event"
        self._now = seconds if by_event else self.processing
        clock: float = seconds if self.ordered else self.watermark
        self._clock = clock if by_event else self.processing
        seen = (self._call(record.key, op) for op in record.ops)
        return Saw(record.key, tuple(one for one in seen if one is not None))

    def _call(self, key: str, op: Op) -> str | None:
        held = self._held[key, op.state]
        for place in [p for p, one in held.items() if one.written + TTL_SECONDS <= self._clock]:
            del held[place]
        boxed = op.state in ("box", "boxes")
        match op.what:
            case "update":
                self._write(held, 0, [op.first] if boxed else op.first)
            case "get":
                return repr(self._read(held, 0))
            case "exists":
                return repr(0 in held)
            case "add":
                self._write(held, 0, op.first + (held[0].value if 0 in held else 0))
            case "append":
                self._append(held, op.first)
            case "replace":
                held.clear()
                self._append(held, op.first)
                self._append(held, op.second)
            case "all":
                return repr([self._read(held, place) for place in sorted(held)])
            case "last":
                return repr(self._read(held, max(held)) if held else None)
            case "backwards":
                return repr([self._read(held, place) for place in sorted(held, reverse=True)])
            case "len":
                return repr((len(held), bool(held)))
            case "put":
                self._write(held, op.first, [op.second] if boxed else op.second)
            case "at":
                return repr(self._read(held, op.first))
            case "in":
                return repr(op.first in held)
            case "del":
                held.pop(op.first, None)
            case "items":
                return repr([(place, self._read(held, place)) for place in sorted(held)])
            case "keys":
                return repr(sorted(held))
            case "clear":
                held.clear()
        return None

    def _append(self, held: dict[int, Held], value: int) -> None:
        self._appended += 1
        self._write(held, self._appended, value)

    def _write(self, held: dict[int, Held], place: int, value: Any) -> None:
        before = held[place].written if place in held else self._now
        held[place] = Held(value, max(before, self._now))

    def _read(self, held: dict[int, Held], place: int) -> Any:
        if place not in held:
            return None
        if self.ttl.refresh == "read":
            held[place].written = max(held[place].written, self._now)
        return held[place].value


def rows_left(harness: Harness) -> dict[str, int]:
    """How many rows the checkpoint of a harness holds per state and of the index, by counting."""
    name, coordinator = harness.process.name, harness._runner.coordinator
    assert coordinator.last is not None
    families = tuple({*harness.process.families, EXPIRY})
    backend = MemoryBackend(families)
    last_group = harness.key_groups - 1
    load(coordinator.repository, backend, name, 0, last_group, coordinator.last.epoch)
    counted = {family: size.rows for family, size in backend.sizes().items()}
    for family, rows in coordinator.last.operators[name].rows.items():
        assert counted[family] == rows, f"{family}: {counted[family]} rows, told {rows}"
    return {family: rows for family, rows in counted.items() if rows}
