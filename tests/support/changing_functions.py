"""Jobs whose functions change all that they get, and the same jobs over plain Python.

In the plain form each function gets a deep copy of its record, and what it emits is copied. So
whatever a job shares between two functions shows as a difference.
"""

from __future__ import annotations

import copy
import dataclasses
import datetime as dt
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import statekit as sk
from statekit.records.value_order import order_of_value

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


@dataclasses.dataclass
class Tagged:
    """A record that can change, also in depth."""

    user: str
    at: dt.datetime
    score: int
    tags: list[str]
    notes: dict[str, list[int]]


def change(record: Any, by: str) -> None:
    """Change all that a record has, except the key and the time."""
    record.score += 100
    record.tags.append(by)
    record.notes.setdefault(by, []).append(record.score)


def keep(record: Tagged) -> bool:
    change(record, "filter")
    return record.score % 3 != 0


def keep_again(record: Tagged) -> bool:
    change(record, "again")
    return len(record.tags) < 9


def same(record: Tagged) -> Tagged:
    change(record, "map")
    return record


def several(record: Tagged) -> Iterator[Tagged]:
    yield record
    change(record, "flat")
    yield record
    change(record, "after")


HELD: list[Any] = []
"""What `hoard` has got. A function may keep a record and change it later."""


def hoard(record: Tagged) -> Tagged:
    for held in HELD[-3:]:
        change(held, "later")
    HELD.append(record)
    return record


def first_of(one: Tagged, other: Tagged) -> Tagged:
    change(other, "reduced")
    one.tags.append("kept")
    return one


@sk.process(key="user", event_time="at", lateness="1 hour")
def change_all(
    record: Tagged,
    last: sk.ValueState[Tagged],
    every: sk.ListState[Tagged],
    named: sk.MapState[str, Tagged],
    first: Annotated[sk.ReducingState[Tagged], sk.Reduce(first_of)],
) -> Iterator[Tagged]:
    before = last.get()
    if before is not None:
        record.tags.append(before.tags[-1] if before.tags else "none")
        change(before, "read")
        for one in every:
            change(one, "listed")
        change(named["a"], "mapped")
        record.score += len(every[-1].tags) + named["a"].score
    last.update(record)
    every.append(record)
    named["a"] = record
    first.add(copy.deepcopy(record))
    yield record
    change(record, "emitted")
    yield record
    change(record, "left")


@sk.process(key="user", event_time="at", lateness="1 hour", ordered=True)
def change_ordered(record: Tagged, last: sk.ValueState[Tagged]) -> Iterator[Tagged]:
    before = last.get()
    change(record, "ordered" if before is None else before.tags[-1])
    last.update(record)
    change(record, "after")
    yield record


@sk.process(key="user")
def with_broadcast(record: Tagged, rules: sk.BroadcastState[str, Tagged]) -> Iterator[Tagged]:
    rule = rules["a"]
    record.score += rule.score
    change(record, rule.tags[-1])
    yield record


@with_broadcast.on_broadcast
def put_rule(rule: Tagged, rules: sk.BroadcastState[str, Tagged]) -> None:
    change(rule, "rule")
    rules["a"] = rule
    change(rule, "lost")


# ------------------------------------------------------------------ the same in plain Python


def _plain_changing(records: Iterable[Tagged]) -> Iterator[Tagged]:
    states: dict[str, list[Tagged]] = defaultdict(list)
    for given in records:
        record, every = copy.deepcopy(given), states[given.user]
        if every:
            before = every[-1]
            record.tags.append(before.tags[-1] if before.tags else "none")
            record.score += len(before.tags) + before.score
        every.append(copy.deepcopy(record))
        yield copy.deepcopy(record)
        change(record, "emitted")
        yield copy.deepcopy(record)


def _plain_ordered(records: Iterable[Tagged]) -> Iterator[Tagged]:
    last: dict[str, str] = {}
    for given in sorted(records, key=lambda one: (one.at, order_of_value(one))):
        record = copy.deepcopy(given)
        change(record, last.get(record.user, "ordered"))
        last[record.user] = record.tags[-1]
        change(record, "after")
        yield record


def _plain_broadcast(records: Iterable[Tagged]) -> Iterator[Tagged]:
    rule = copy.deepcopy(RULE)
    change(rule, "rule")
    for given in records:
        record = copy.deepcopy(given)
        record.score += rule.score
        change(record, rule.tags[-1])
        yield record


def _plain_filter(fn: Callable[[Tagged], bool]) -> Callable[[Iterable[Tagged]], Iterator[Tagged]]:
    return lambda records: (record for record in records if fn(copy.deepcopy(record)))


def _plain_several(records: Iterable[Tagged]) -> Iterator[Tagged]:
    for record in records:
        yield from map(copy.deepcopy, several(copy.deepcopy(record)))


RULE = Tagged("rule", START, 7, ["given"], {})


PLAIN: Mapping[str, Callable[[Iterable[Tagged]], Iterable[Tagged]]] = {
    "filter": _plain_filter(keep),
    "filter again": _plain_filter(keep_again),
    "map": lambda records: [same(copy.deepcopy(record)) for record in records],
    "hoard": lambda records: records,
    "flat_map": _plain_several,
    "process": _plain_changing,
    "ordered": _plain_ordered,
    "broadcast": _plain_broadcast,
}
"""What each kind of stream emits for the records of another."""

Graph = Sequence[tuple[str, int]]
"""The streams behind the source: the kind of each, and the number of the stream that it reads."""


def plain_run(graph: Graph, records: Sequence[Tagged]) -> list[list[Tagged]]:
    """The records of the source and of each stream behind it."""
    streams = [list(copy.deepcopy(records))]
    for kind, of in graph:
        streams.append(list(copy.deepcopy(list(PLAIN[kind](copy.deepcopy(streams[of]))))))
    return streams


def changing_job(graph: Graph, sinks: Sequence[int], twice: Sequence[int] = ()) -> sk.Job:
    """A job with the streams of a graph.

    Parameters:
        sinks: the streams that have a sink.
        twice: those that have another one.
    """
    job = sk.Job("changing")
    source, rules = job.source("in", Tagged), job.source("rules", Tagged)
    streams: list[Any] = [source]
    for number, (kind, of) in enumerate(graph, 1):
        streams.append(_behind(streams[of], kind, f"stream_{number}", rules))
    for number in sinks:
        streams[number].sink(f"sink_{number}")
    for number in twice:
        streams[number].sink(f"second_{number}")
    return job


def _behind(stream: Any, kind: str, name: str, rules: Any) -> Any:
    match kind:
        case "filter" | "filter again":
            return stream.filter(keep if kind == "filter" else keep_again, name=name)
        case "map" | "hoard":
            return stream.map(same if kind == "map" else hoard, name=name)
        case "flat_map":
            return stream.flat_map(several, name=name)
        case "broadcast":
            return stream.process(with_broadcast, broadcast=rules, name=name)
    return stream.process(change_all if kind == "process" else change_ordered, name=name)


def sorted_records(records: Iterable[Any]) -> list[str]:
    """Records in an order that does not depend on keys and shards."""
    return sorted(map(repr, records))
