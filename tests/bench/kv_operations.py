"""The operations of a key-value store in one process, beside the commands of Redis.

Both hold all keys in memory and write a log to the local disk. The store is called with epochs of
requests, Redis on loopback in pipelines. What counts is CPU, of the client and of the server.
"""

from __future__ import annotations

import datetime as dt
import gc
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil

import statekit as sk
from statekit.checkpoint.repository import Repository
from statekit.job.options import RunOptions
from statekit.runtime.local import LocalRunner
from statekit.working_copy.copies import MemoryCopies
from tests.bench.peers.environments import NotAvailable
from tests.bench.redis_server import PIPELINE, Redis, client_of
from tests.bench.report import STATEKIT_DURABLE, Arm, Row

KEYS, PLACES = 1_000, 100
OPERATIONS = 5_000
REMOVED = 20
"""Entries of a removed range: the operations of an epoch remove all entries of all keys."""
VERSIONS = 10
ROUNDS = 5
REDIS_DURABLE = "an append-only file, synced every second"


class Request(NamedTuple):
    """An operation of any kind."""

    key: int
    place: int
    until: int
    amount: int
    lifetime: dt.timedelta


class Ranges(NamedTuple):
    """A request for several ranges."""

    key: int
    ranges: list[tuple[int | None, int | None]]


class Begins(NamedTuple):
    """A request for the entries that begin with a text."""

    key: int
    prefix: str


class Change(NamedTuple):
    """A value at a time, and the interval whose versions are read."""

    key: int
    amount: int
    at: dt.datetime
    since: dt.datetime


def requests(seed: int) -> list[Any]:
    """Return the requests of an epoch, with keys drawn uniformly."""
    draw = random.Random(seed)
    hour = dt.timedelta(hours=1)
    found = []
    for _ in range(OPERATIONS):
        place = draw.randrange(PLACES)
        found.append(Request(draw.randrange(KEYS), place, place + 20, draw.randrange(100), hour))
    return found


def all_ranges(_seed: int) -> list[Any]:
    """Return requests that select each entry of each key once."""
    hour = dt.timedelta(hours=1)
    starts = [(number % KEYS, number // KEYS * REMOVED) for number in range(OPERATIONS)]
    return [Request(key, place, place + REMOVED, 0, hour) for key, place in starts]


def several_ranges(seed: int) -> list[Any]:
    of_one = requests(seed)
    starts = [(of.key, (of.place, (of.place + 30) % PLACES, 0)) for of in of_one]
    return [Ranges(key, [(place, place + 5) for place in places]) for key, places in starts]


def prefixes(seed: int) -> list[Any]:
    return [Begins(of.key, str(of.place // 10)) for of in requests(seed)]


def changes_in_time(seed: int) -> list[Any]:
    """Return puts of later times in each epoch, each key in its turn."""
    found, before = [], dt.timedelta(seconds=VERSIONS)
    for number in range(OPERATIONS):
        passed = seed * (OPERATIONS // KEYS + 1) + number // KEYS
        at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=passed)
        found.append(Change(number % KEYS, number, at, at - before))
    return found


class Kind(NamedTuple):
    """An operation of the store, and what does the same in Redis.

    Parameters:
        declare: declares it, and the operations before it.
        command: adds the commands of a request to a pipeline.
        fill: adds what is there before to a pipeline; None if nothing is.
        options: of the store.
        record: the class of its requests.
        requests: returns the requests of an epoch.
        sort: the place of an entry that is there before.
        refills: what is there before is there again before each epoch.
        warm: the number of epochs that are not counted.
    """

    declare: Callable[[Any, sk.Stream[Any]], sk.Stream[Any]]
    command: Callable[[Any, Any], Any]
    fill: Callable[[Any, Request], Any] | None
    options: dict[str, Any]
    record: type[Any] = Request
    requests: Callable[[int], list[Any]] = requests
    sort: Any = "place"
    refills: bool = False
    warm: int = 1


def put_and_trim(store: Any, requests: sk.Stream[Request]) -> sk.Stream[Any]:
    store.put(requests, key="key", sort="place", value="amount")
    trimmed: sk.Stream[Any] = store.trim(requests, key="key", keep=PLACES // 2)
    return trimmed


def put_and_persist(store: Any, requests: sk.Stream[Request]) -> sk.Stream[Any]:
    store.put(requests, key="key", value="amount", ttl="lifetime")
    persisted: sk.Stream[Any] = store.persist(requests, key="key")
    return persisted


def put_and_versions(store: Any, requests: sk.Stream[Change]) -> sk.Stream[Any]:
    store.put(requests, key="key", value="amount")
    found: sk.Stream[Any] = store.versions(requests, key="key", start="since")
    return found


def persisted(pipeline: Any, of: Request) -> None:
    pipeline.set(of.key, of.amount, ex=of.lifetime)
    pipeline.persist(of.key)


def scanned_ranges(pipeline: Any, of: Ranges) -> None:
    for start, end in of.ranges:
        pipeline.zrange(of.key, start, f"({end}", byscore=True, withscores=True)


def versions_of(pipeline: Any, of: Change) -> None:
    pipeline.zadd(of.key, {of.amount: of.at.timestamp()})
    since, at = of.since.timestamp(), of.at.timestamp()
    pipeline.zrange(of.key, since, at, byscore=True, withscores=True)


def add_text(pipeline: Any, of: Request) -> None:
    pipeline.zadd(of.key, {f"{of.place:02}": 0})


def trimmed(pipeline: Any, of: Request) -> None:
    pipeline.zadd(of.key, {of.place: of.place})
    pipeline.zremrangebyrank(of.key, 0, -PLACES // 2 - 1)


def add_entry(pipeline: Any, of: Request) -> None:
    pipeline.zadd(of.key, {of.place: of.place})


def set_value(pipeline: Any, of: Request) -> None:
    pipeline.set(of.key, of.amount)


_DAY = sk.TTL("1 day")
_RANGE: dict[str, Any] = {"key": "key", "start": "place", "end": "until"}
_SORTED = {"sort": int}

KINDS = {
    "increment": Kind(
        lambda store, of: store.increment(of, key="key", by="amount"),
        lambda pipeline, of: pipeline.incrby(of.key, of.amount),
        set_value,
        {},
    ),
    "append": Kind(
        lambda store, of: store.append(of, key="key", value="amount"),
        lambda pipeline, of: pipeline.rpush(of.key, of.amount),
        None,
        {"value": list[int]},
    ),
    "put with ttl=": Kind(
        lambda store, of: store.put(of, key="key", value="amount", ttl="lifetime"),
        lambda pipeline, of: pipeline.set(of.key, of.amount, ex=of.lifetime),
        set_value,
        {"ttl": _DAY},
    ),
    "put with ttl= and persist": Kind(put_and_persist, persisted, set_value, {"ttl": _DAY}),
    "expire": Kind(
        lambda store, of: store.expire(of, key="key", ttl="lifetime"),
        lambda pipeline, of: pipeline.expire(of.key, of.lifetime),
        set_value,
        {"ttl": _DAY},
    ),
    "scan of 10 entries": Kind(
        lambda store, of: store.scan(of, **_RANGE, limit=10),
        lambda pipeline, of: pipeline.zrange(
            of.key, of.place, of.until, byscore=True, offset=0, num=10, withscores=True
        ),
        add_entry,
        _SORTED,
    ),
    "multi_scan of 3 ranges of 5 entries": Kind(
        lambda store, of: store.multi_scan(of, key="key", ranges="ranges"),
        scanned_ranges,
        add_entry,
        _SORTED,
        record=Ranges,
        requests=several_ranges,
    ),
    "scan of a prefix, 10 entries": Kind(
        lambda store, of: store.scan(of, key="key", prefix="prefix"),
        lambda pipeline, of: pipeline.zrange(
            of.key, f"[{of.prefix}", f"({int(of.prefix) + 1:x}", bylex=True
        ),
        add_text,
        {"sort": str},
        record=Begins,
        requests=prefixes,
        sort=lambda of: f"{of.place:02}",
    ),
    "first": Kind(
        lambda store, of: store.first(of, key="key"),
        lambda pipeline, of: pipeline.zrange(of.key, 0, 0, withscores=True),
        add_entry,
        _SORTED,
    ),
    "last": Kind(
        lambda store, of: store.last(of, key="key"),
        lambda pipeline, of: pipeline.zrange(of.key, -1, -1, withscores=True),
        add_entry,
        _SORTED,
    ),
    "count of 20 entries": Kind(
        lambda store, of: store.count(of, **_RANGE),
        lambda pipeline, of: pipeline.zcount(of.key, of.place, of.until),
        add_entry,
        _SORTED,
    ),
    "remove_range of 20 entries": Kind(
        lambda store, of: store.remove_range(of, **_RANGE),
        lambda pipeline, of: pipeline.zremrangebyscore(of.key, of.place, f"({of.until}"),
        add_entry,
        _SORTED,
        requests=all_ranges,
        refills=True,
    ),
    "put and trim to 50": Kind(put_and_trim, trimmed, add_entry, _SORTED),
    "put and versions, 10 of them": Kind(
        put_and_versions,
        versions_of,
        None,
        {"event_time": "at", "history": "1 day"},
        record=Change,
        requests=changes_in_time,
        warm=3,
    ),
}


def all_entries() -> Iterator[Request]:
    for key in range(KEYS):
        for place in range(PLACES):
            yield Request(key, place, 0, 0, dt.timedelta(0))


class OurStore:
    """The store, with all keys and one kind of operation."""

    def __init__(self, kind: Kind, home: Path) -> None:
        job = sk.Job("bench")
        store: Any = job.add(sk.KVStore("store", key=int, **{"value": int, **kind.options}))
        if kind.fill is not None:
            cell = {"key": "key"} | ({"sort": kind.sort} if "sort" in kind.options else {})
            store.put(job.source("filled", Request), **cell, value="amount", name="fill")
        kind.declare(store, job.source("requests", kind.record)).sink("answers")
        options = RunOptions(parallelism=1)
        self._runner = LocalRunner(job.plan, Repository(home), MemoryCopies(), options)
        self._waiting = 0
        if kind.fill is not None:
            self.fill()

    def fill(self) -> None:
        """Put what is there before."""
        self._runner.epoch({"filled": list(all_entries())})

    def spent(self, given: list[Any]) -> float:
        began = time.process_time()
        answers = self._runner.epoch({"requests": given})
        spent = time.process_time() - began
        self._waiting += len(given) - len(answers["answers"])
        assert self._waiting in (0, OPERATIONS), "an ordered store answers in the next epoch"
        return spent


class RedisStore:
    """Redis, with all keys and the commands of one kind."""

    def __init__(self, kind: Kind, redis: Redis) -> None:
        self._client, self._kind = client_of(redis.port), kind
        self._client.flushall()
        self._server = psutil.Process(redis.pid)
        if kind.fill is not None:
            self.fill()

    def fill(self) -> None:
        """Put what is there before."""
        assert self._kind.fill is not None
        self._piped(self._kind.fill, list(all_entries()))

    def _piped(self, command: Callable[[Any, Any], Any], given: list[Any]) -> int:
        count = 0
        for start in range(0, len(given), PIPELINE):
            with self._client.pipeline(transaction=False) as pipeline:
                for of in given[start : start + PIPELINE]:
                    command(pipeline, of)
                count += len(pipeline.execute())
        return count

    def spent(self, given: list[Any]) -> float:
        began = time.process_time() + self._of_server()
        assert self._piped(self._kind.command, given) >= len(given)
        return time.process_time() + self._of_server() - began

    def _of_server(self) -> float:
        times = self._server.cpu_times()
        return float(times.user + times.system)


def operations() -> list[Row]:
    """All kinds of operations, each against Redis in turns."""
    with tempfile.TemporaryDirectory() as place:
        try:
            with Redis(Path(place)) as redis:
                return [_against_redis(name, kind, redis) for name, kind in KINDS.items()]
        except NotAvailable as error:
            return [Row("store: CPU of an operation", "not run", "", without=str(error))]


def _against_redis(name: str, kind: Kind, redis: Redis) -> Row:
    turns: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as home:
        ours, theirs = OurStore(kind, Path(home)), RedisStore(kind, redis)
        for seed in range(kind.warm + ROUNDS):
            given = kind.requests(seed)
            if seed and kind.refills:
                ours.fill()
                theirs.fill()
            gc.collect()
            if seed % 2:
                other, own = theirs.spent(given), ours.spent(given)
            else:
                own, other = ours.spent(given), theirs.spent(given)
            turns.append((own, other))
    own_turns, other_turns = zip(*turns[kind.warm :], strict=True)
    arms = tuple(
        Arm(who, statistics.median(of), durable, OPERATIONS, turns=of)
        for who, durable, of in (
            ("statekit", STATEKIT_DURABLE, own_turns),
            ("Redis", REDIS_DURABLE, other_turns),
        )
    )
    each = [arm.seconds / OPERATIONS * 1e6 for arm in arms]
    return Row(
        f"store: CPU of {OPERATIONS:,} {name} in one process, against Redis",
        f"{each[0]:.1f} µs each against {each[1]:.1f} µs",
        "",
        arms,
        note="The client and the server count. Redis may lose a second of changes.",
    )


BENCHMARKS: dict[str, Callable[[], list[Row]]] = {"store-operations": operations}
