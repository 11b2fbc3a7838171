"""The key-value store on Spark, beside the same store as one of Spark's processors, and Redis.

A million keys are in each store. An epoch has 100,000 operations of one kind. Redis is on loopback
and is called by the tasks of Spark, in pipelines of 500, without a shuffle.
"""

from __future__ import annotations

import datetime as dt
import random
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import Row as SparkRow
from pyspark.sql import functions as F
from pyspark.sql import types as sql
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

import statekit as sk
from statekit.checkpoint.repository import Repository
from statekit.maintenance.savepoint.write import write_savepoint
from tests.bench.on_spark import SHARDS, Engine, in_turn, session
from tests.bench.peers.environments import NotAvailable
from tests.bench.processes_cpu import Spent, spent_by
from tests.bench.redis_server import Redis, operations_of
from tests.bench.report import SPARK_DURABLE, STATEKIT_DURABLE, Arm, Row, faster, times_as_fast
from tests.bench.workload import SPAN, moments

KEYS = 1_000_000
OPERATIONS = 100_000
KEYS_AT_ONCE, LOOKUPS = 10, 10_000
WARM, ROUNDS = 8, 7
SPARK_WARM, SPARK_ROUNDS = 1, 3
REDIS_DURABLE = "an append-only file, synced every second"


class Value(NamedTuple):
    number: int
    text: str


class Request(NamedTuple):
    """An operation on a key, with a value for those that write."""

    key: int
    value: Value


class Lookup(NamedTuple):
    """An operation on several keys."""

    id: int
    keys: list[int]


def added(value: Value | None, request: Request) -> Value:
    return Value((value.number if value else 0) + request.value.number, request.value.text)


Declared = Callable[[sk.KVStore[int, Value], sk.Stream[Any]], sk.Stream[Any]]

KINDS: dict[str, Declared] = {
    "get": lambda store, requests: store.get(requests, key="key"),
    "put": lambda store, requests: store.put(requests, key="key", value="value"),
    "get_with": lambda store, requests: store.get_with(requests, key="key"),
    "update": lambda store, requests: store.update(requests, added, key="key"),
    "multi_get": lambda store, requests: store.multi_get(requests, keys="keys"),
}
"""The operations by name. `multi_get` gets ten values."""

NOT_ABOVE_REDIS = ("put", "get_with")


def is_lookup(kind: str) -> bool:
    return kind == "multi_get"


def count_of(kind: str) -> int:
    """How many operations an epoch has: of `multi_get` as many as read 100,000 keys."""
    return LOOKUPS if is_lookup(kind) else OPERATIONS


def schema_of(kind: str) -> str:
    if is_lookup(kind):
        return "id long, keys array<long>"
    return "key long, value struct<number:long,text:string>"


def requests(kind: str, number: int) -> pa.Table:
    """The operations of epoch `number`, with keys drawn uniformly."""
    draw = random.Random(number)
    if is_lookup(kind):
        lists = [[draw.randrange(KEYS) for _ in range(KEYS_AT_ONCE)] for _ in range(LOOKUPS)]
        return pa.table(
            {
                "id": pa.array(range(LOOKUPS), pa.int64()),
                "keys": pa.array(lists, pa.list_(pa.int64())),
            }
        )
    keys = [draw.randrange(KEYS) for _ in range(OPERATIONS)]
    values = pa.StructArray.from_arrays(
        [pa.array(keys, pa.int64()), pa.array([f"text {key}" for key in keys])], ["number", "text"]
    )
    return pa.table({"key": pa.array(keys, pa.int64()), "value": values})


def all_keys() -> Iterator[Request]:
    return (Request(key, Value(key, f"text {key}")) for key in range(KEYS))


def store_job(kind: str) -> sk.Job:
    job = sk.Job("bench")
    store = job.add(sk.KVStore("store", key=int, value=Value))
    source = job.source("requests", Lookup if is_lookup(kind) else Request)
    KINDS[kind](store, source).sink(kind)
    return job


def savepoint(home: Path) -> str:
    """A savepoint of a store with all keys."""
    store_job("put").run(
        {"requests": all_keys()},
        outputs={"put": lambda records, epoch: None},
        checkpoint=home / "filled",
        parallelism=SHARDS,
        epoch_size=KEYS // 4,
        drain=False,
    )
    repository = Repository(home / "filled")
    write_savepoint(repository, "all")
    return f"{repository.url}/savepoints/all"


class OurStore(Engine):
    """A store of ours with all keys, and one kind of operation."""

    kind: ClassVar[str]
    filled: ClassVar[str]

    def start(self, spark: SparkSession, df: DataFrame) -> StreamingQuery:
        started = store_job(self.kind).start(
            spark,
            {"requests": df},
            {self.kind: sk.sinks.writer("noop")},
            checkpoint=self.home / "checkpoint",
            from_savepoint=self.filled,
            parallelism=SHARDS,
            working_directory=self.home / "working",
        )
        query: StreamingQuery = started.query
        return query


class RedisStore(Engine):
    """Redis with all keys, called by the tasks of Spark."""

    kind: ClassVar[str]
    port: ClassVar[int]

    def start(self, spark: SparkSession, df: DataFrame) -> StreamingQuery:
        step, out = operations_of(self.kind, self.port)

        def batch(df: DataFrame, _: int) -> None:
            df.mapInArrow(step, out).write.format("noop").mode("append").save()

        writer = df.writeStream.foreachBatch(batch)
        return writer.option("checkpointLocation", str(self.home / "checkpoint")).start()


VALUE = sql.StructType().add("number", "long").add("text", "string")


class StoreProcessor(StatefulProcessor):
    """The same store in Spark's own idiom."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.value = handle.getValueState("value", VALUE)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        held: tuple[Any, ...] | None
        for row in rows:
            if row.kind == "put":
                held = (row.value["number"], row.value["text"])
                self.value.update(held)
            else:
                held = self.value.get()
                if row.kind == "update":
                    number = (held[0] if held else 0) + row.value["number"]
                    held = (number, row.value["text"])
                    self.value.update(held)
            number, text = (held[0], held[1]) if held else (None, None)
            yield SparkRow(
                id=row.id, place=row.place, key=key[0], kind=row.kind, number=number, text=text
            )

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        self.value.update((initialState.number, initialState.text))

    def close(self) -> None:
        pass


class AssemblyProcessor(StatefulProcessor):
    """Puts the values of a multi_get together, once all of them have arrived."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.found = handle.getListState("found", "place int, number long, text string")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        found = [(row.place, row.number, row.text) for row in rows]
        found += [tuple(one) for one in self.found.get()]
        if len(found) < KEYS_AT_ONCE:
            self.found.put(found)
            return
        self.found.clear()
        found.sort(key=itemgetter(0))
        yield SparkRow(id=key[0], values=[(number, text) for _, number, text in found])

    def close(self) -> None:
        pass


class SparkStore(Engine):
    """Spark's processor with all keys, and one kind of operation."""

    kind: ClassVar[str]

    def start(self, spark: SparkSession, df: DataFrame) -> StreamingQuery:
        ids = F.col("id")
        text = F.concat(F.lit("text "), ids)
        everything = spark.range(KEYS).select(
            ids.alias("key"), ids.alias("number"), text.alias("text")
        )
        if is_lookup(self.kind):
            df = df.select(
                "id",
                F.posexplode("keys").alias("place", "key"),
                F.lit(None).cast(VALUE).alias("value"),
            )
        else:
            df = df.select("*", F.lit(0).alias("id"), F.lit(0).alias("place"))
        out = (
            df.withColumn("kind", F.lit(self.kind))
            .groupBy("key")
            .transformWithState(
                statefulProcessor=StoreProcessor(),
                outputStructType="id long, place int, key long, kind string, number long, "
                "text string",
                outputMode="Append",
                timeMode="None",
                initialState=everything.groupBy("key"),
            )
        )
        if is_lookup(self.kind):
            out = out.groupBy("id").transformWithState(
                statefulProcessor=AssemblyProcessor(),
                outputStructType="id long, values array<struct<number:long,text:string>>",
                outputMode="Append",
                timeMode="None",
            )
        return self.started(out)


def operations(kind: str) -> list[Row]:
    """One kind of operation against the same store as a processor of Spark's, and against Redis."""
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        filled = savepoint(home)
        rows = [_against_spark(kind, filled)]
        try:
            with Redis(home) as redis:
                redis.fill((request.key, request.value) for request in all_keys())
                return [*rows, _against_redis(kind, filled, redis.port)]
        except NotAvailable as error:
            return [*rows, Row(f"store: CPU of {kind} on Spark", "not run", "", without=str(error))]


BENCHMARKS: dict[str, Callable[[], list[Row]]] = {
    f"store-{kind}": partial(operations, kind) for kind in KINDS
}


def _against_redis(kind: str, filled: str, port: int) -> Row:
    options = {"kind": kind, "filled": filled, "port": port, "schema": schema_of(kind)}
    ours, redis = (type(of.__name__, (of,), options) for of in (OurStore, RedisStore))
    tables = (requests(kind, number) for number in range(WARM + ROUNDS))
    own, other = _turns([ours, redis], tables, WARM)
    arms = tuple(
        Arm(name, statistics.median(cpu), durable, count_of(kind), turns=tuple(cpu))
        for name, durable, cpu in (
            ("statekit", STATEKIT_DURABLE, [turn.cpu for turn in own]),
            ("Redis", REDIS_DURABLE, [turn.cpu for turn in other]),
        )
    )
    each = [arm.seconds / count_of(kind) * 1e6 for arm in arms]
    wall = statistics.median(b.seconds / a.seconds for a, b in zip(own, other, strict=True))
    return Row(
        f"store: CPU of {count_of(kind):,} {kind} on Spark, of {KEYS:,} keys, against Redis",
        f"{each[0]:.1f} µs each against {each[1]:.1f} µs; {wall:.2f} times as fast by the clock",
        "no more than Redis" if kind in NOT_ABOVE_REDIS else "",
        arms,
        note="All processes count, Spark's and the server. Redis is not shuffled to, and may lose "
        "a second of changes.",
    )


class Timed(NamedTuple):
    """An operation with its time."""

    key: int
    value: int
    at: dt.datetime


class EagerStore(Engine):
    """A get and a put of each request, in the order of their arrival."""

    name = "an eager store"
    schema = "key long, value long, at timestamp"
    options: ClassVar[dict[str, Any]] = {}

    def start(self, spark: SparkSession, df: DataFrame) -> StreamingQuery:
        job = sk.Job("bench")
        store = job.add(sk.KVStore("store", key=int, value=int, **self.options))
        timed = job.source("requests", Timed)
        store.get(timed, key="key").sink("got")
        store.put(timed, key="key", value="value").sink("put")
        return self.started_job(job, spark, {"requests": df})


class OrderedStore(EagerStore):
    """The same in order of time."""

    name = "an ordered store"
    options: ClassVar[dict[str, Any]] = {"event_time": "at", "lateness": SPAN}


def ordered_against_eager() -> list[Row]:
    """A store whose operations run in order of time, against one in order of arrival."""
    tables = (moments(OPERATIONS, number) for number in range(WARM + ROUNDS))
    taken = in_turn((OrderedStore, EagerStore), tables, WARM)
    arms = [
        of.arm(engine.name, STATEKIT_DURABLE, 2 * OPERATIONS)
        for engine, of in zip((OrderedStore, EagerStore), taken, strict=True)
    ]
    ratio = 1 / times_as_fast(*arms)
    title = f"store: {OPERATIONS:,} gets and puts on Spark, in order of time and of arrival"
    return [Row(title, f"{ratio:.2f} times the time", "at most 2.5", tuple(arms))]


def _against_spark(kind: str, filled: str) -> Row:
    options = {"kind": kind, "filled": filled, "schema": schema_of(kind)}
    made, theirs = (type(of.__name__, (of,), options) for of in (OurStore, SparkStore))
    tables = (requests(kind, number) for number in range(SPARK_WARM + SPARK_ROUNDS))
    own, other = _turns([made, theirs], tables, SPARK_WARM)
    arms = tuple(
        Arm(name, statistics.median(seconds), durable, count_of(kind), turns=tuple(seconds))
        for name, durable, seconds in (
            ("statekit", STATEKIT_DURABLE, [turn.seconds for turn in own]),
            ("transformWithState", SPARK_DURABLE, [turn.seconds for turn in other]),
        )
    )
    return Row(
        f"store: {count_of(kind):,} {kind} on Spark, of {KEYS:,} keys, against a processor",
        faster(*arms),
        "at least 10",
        arms,
        note="A second processor puts the answers together." if kind == "multi_get" else "",
    )


def _turns(
    engines: Sequence[type[Engine]], tables: Iterator[pa.Table], warm: int
) -> list[list[Spent]]:
    """What each engine took; each table is fed to one after the other, and the next in reverse."""
    spark = session()
    try:
        with tempfile.TemporaryDirectory() as home:
            running = [made(spark, Path(home) / f"{n}") for n, made in enumerate(engines)]
            spent: list[list[Spent]] = [[] for _ in running]
            for number, table in enumerate(tables):
                places = range(len(running))
                for place in reversed(places) if number % 2 else places:
                    spent[place].append(spent_by(lambda: running[place].feed(table)))  # noqa: B023
            for engine in running:
                engine.query.stop()
    finally:
        spark.stop()
    return [of[warm:] for of in spent]
