"""Random jobs over random records, the same for the same seed.

Operators chain, branch and unite; functions change the records that they take, emit one object
again after a change, and emit values that are not their own stored form: ints in float fields and
instants in another time zone. All functions are keyed alike or ordered, so no result depends on the
order between keys, which differs between runtimes.
"""

import datetime as dt
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import msgspec
import pyarrow as pa
import pydantic

import statekit as sk

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
AHEAD = dt.timezone(dt.timedelta(hours=3))

SCHEMA = pa.schema(
    [
        ("k", pa.string()),
        ("g", pa.int64()),
        ("at", pa.timestamp("us", "UTC")),
        ("v", pa.float64()),
        ("tags", pa.list_(pa.int64())),
    ]
)
RULES = pa.schema([("name", pa.string()), ("limit", pa.float64())])


class Tuple(NamedTuple):
    k: str
    g: int
    at: dt.datetime
    v: float
    tags: list[int]


@dataclass
class Data:
    k: str
    g: int
    at: dt.datetime
    v: float
    tags: list[int]


class Struct(msgspec.Struct):
    k: str
    g: int
    at: dt.datetime
    v: float
    tags: list[int]


class Model(pydantic.BaseModel):
    k: str
    g: int
    at: dt.datetime
    v: float
    tags: list[int]


@dataclass
class Rule:
    name: str
    limit: float


CLASSES: tuple[Any, ...] = (Tuple, Data, Struct, Model)


def plain(record: Any) -> tuple[Any, ...]:
    """The fields of a record, or of a row as a dict, with the types of their values."""
    take = record.__getitem__ if isinstance(record, dict) else lambda name: getattr(record, name)
    k, g, at, v, tags = map(take, SCHEMA.names)
    return k, g, at.astimezone(dt.UTC), repr(v), tuple(tags)


def change(record: Any) -> None:
    """Change a record as far as its type allows."""
    record.tags.append(99)
    if not isinstance(record, Tuple):
        record.v += 100
        record.g += 1


def emitted(cls: Any, record: Any, value: float) -> Iterator[Any]:
    """Two records: one object, if it can change, emitted before and after a change."""
    at = record.at.astimezone(AHEAD)
    made = cls(k=record.k, g=record.g, at=at, v=value, tags=record.tags)
    if value.is_integer() and cls is not Model:
        made = cls(k=record.k, g=record.g, at=at, v=int(value), tags=record.tags)
    yield made
    change(made)
    yield made


def _sums(name: str, takes: Any, cls: Any, options: dict[str, Any]) -> Any:
    def fn(record: takes, total: sk.ValueState[float], last: sk.ListState[float]) -> Iterator[cls]:
        total.update((total.get() or 0.0) + record.v)
        last.append(record.v)
        yield from emitted(cls, record, total.get() or 0.0)
        change(record)

    return _named(fn, name, options)


def _maps(name: str, takes: Any, cls: Any, options: dict[str, Any]) -> Any:
    def fn(record: takes, seen: sk.MapState[int, float]) -> Iterator[cls]:
        change(record)
        seen[record.g] = seen.get(record.g, 0.0) + record.v + len(record.tags)
        yield from emitted(cls, record, sum(seen.values()))

    return _named(fn, name, options)


def _reduces(name: str, takes: Any, cls: Any, options: dict[str, Any]) -> Any:
    def fn(
        record: takes, most: Annotated[sk.ReducingState[float], sk.Reduce(max)]
    ) -> Iterator[cls]:
        most.add(record.v)
        yield from emitted(cls, record, most.get() or 0.0)
        change(record)

    return _named(fn, name, options)


def _times(name: str, takes: Any, cls: Any, options: dict[str, Any]) -> Any:
    def fn(record: takes, ctx: sk.Context, held: sk.ListState[float]) -> Iterator[cls]:
        held.append(record.v)
        ctx.timers.set(record.at + dt.timedelta(minutes=7))
        change(record)
        yield from emitted(cls, record, record.v)

    def fired(timer: sk.Timer, held: sk.ListState[float]) -> Iterator[cls]:
        made = cls(k="timer", g=len(held), at=timer.at, v=sum(held), tags=[])
        yield made
        change(made)
        yield made

    declared = _named(fn, name, options)
    declared.on_timer(fired)
    return declared


def _ruled(name: str, takes: Any, cls: Any, options: dict[str, Any]) -> Any:
    def fn(record: takes, rules: sk.BroadcastState[str, float]) -> Iterator[cls]:
        yield from emitted(cls, record, record.v + sum(rules.values()))
        change(record)

    def learn(rule: Rule, rules: sk.BroadcastState[str, float]) -> None:
        rules[rule.name] = rules.get(rule.name, 0.0) + rule.limit
        rule.limit *= 2

    declared = _named(fn, name, options)
    declared.on_broadcast(learn)
    return declared


def _named(fn: Any, name: str, options: dict[str, Any]) -> Any:
    fn.__name__ = name
    return sk.process(**options)(fn)


KINDS: tuple[Callable[..., Any], ...] = (_sums, _maps, _reduces, _times, _ruled)


class RandomJob:
    """A job of two to four operators, and records for its sources in one or two pieces.

    Attributes:
        job: of the seed.
        pieces: per epoch, the records of each source.
        states: per operator, the names of its keyed states.
    """

    def __init__(self, seed: int) -> None:
        chosen = random.Random(seed)
        self.job = job = sk.Job(f"random-{seed}")
        of_sources = {name: chosen.choice(CLASSES) for name in ("one", "two")}
        streams = [(job.source(name, cls), cls) for name, cls in of_sources.items()]
        rules = job.source("rules", Rule)
        operators = chosen.randint(2, 4)
        for number in range(operators):
            stream, takes = streams[number] if number < 2 else chosen.choice(streams)
            other, also = chosen.choice(streams)
            if chosen.random() < 0.3 and other is not stream:
                stream, takes = stream.union(other), takes | also
            elif chosen.random() < 0.5:
                stream, takes = chosen.choice(streams[-2:])
            cls = chosen.choice(CLASSES)
            options: dict[str, Any] = {"key": chosen.choice(("k", "g")), "event_time": "at"}
            # Between keys that differ there is no order, nor between streams of two operators.
            options |= {"ordered": True, "lateness": "2 hours"}
            if number == 0:
                stream, takes = streams[0]
                options["ordered"] = False
            kind = _ruled if number == operators - 1 else chosen.choice(KINDS[:-1])
            declared = kind(f"op{number}", takes, cls, options)
            made = stream.process(declared, broadcast=rules if kind is _ruled else ())
            streams.append((made, cls))
        for stream, _ in streams:  # without a sink, operators may share a pass
            if not job.plan.consumers_of(stream.name) or chosen.random() < 0.3:
                stream.sink(f"{stream.name}-out")
        self.states = {
            operator.name: [s.name for s in operator.declared.states if not s.kind.is_local]
            for operator in job.plan.operators
        }
        self.pieces = [
            {
                "one": _records(chosen, of_sources["one"]),
                "two": _records(chosen, of_sources["two"]),
                "rules": [Rule(chosen.choice("ab"), float(chosen.randint(1, 9)))] * 2,
            }
            for _ in range(1 if seed % 5 else 2)  # a second start of Spark takes seconds
        ]


def _records(chosen: random.Random, cls: Any) -> list[Any]:
    return [
        cls(
            k=chosen.choice("abcd"),
            g=chosen.randrange(3),
            at=(NOON + dt.timedelta(minutes=chosen.randrange(100))).astimezone(AHEAD),
            v=chosen.randint(0, 50) / 2 if chosen.random() < 0.5 else chosen.randint(0, 50),
            tags=[chosen.randrange(5) for _ in range(chosen.randrange(3))],
        )
        for _ in range(8)
    ]


def table(records: list[Any]) -> pa.Table:
    """Records as the frame of a source."""
    schema = RULES if isinstance(records[0], Rule) else SCHEMA
    rows = [{name: getattr(record, name) for name in schema.names} for record in records]
    return pa.Table.from_pylist(rows, schema=schema)
