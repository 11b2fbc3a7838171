"""A process function over states of every kind that expire."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import statekit as sk
from statekit.backend.interface import MemoryBackend
from statekit.checkpoint.job_file import EXPIRY
from statekit.testing.drivers.driver import JobDriver
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


def states_that_expire(ttl: sk.TTL | None, *, ordered: bool = False) -> sk.Process[Any, Any, Any]:
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


def by_key(outputs: list[Saw]) -> dict[str, list[Saw]]:
    """The outputs of each key, in order."""
    found: dict[str, list[Saw]] = defaultdict(list)
    for saw in outputs:
        found[saw.key].append(saw)
    return found


def rows_left(harness: JobDriver) -> dict[str, int]:
    """How many rows the checkpoint of a harness holds per state and of the index, by counting.

    The rows and bytes that its manifest tells of are compared with them.
    """
    (operator,) = harness._job.plan.operators
    name, coordinator = operator.name, harness._runner.coordinator
    assert coordinator.last is not None
    families = tuple({*operator.declared.families, EXPIRY})
    backend = MemoryBackend(families)
    last_group = harness.key_groups - 1
    load(coordinator.repository, backend, name, 0, last_group, coordinator.last.epoch)
    counted, told = backend.sizes(), coordinator.last.operators[name]
    for family, rows in told.rows.items():
        assert counted[family].rows == rows, f"{family}: {counted[family]}, told {rows} rows"
        size = told.bytes[family]
        assert counted[family].bytes == size, f"{family}: {counted[family]}, told {size} bytes"
    return {family: size.rows for family, size in counted.items() if size.rows}
