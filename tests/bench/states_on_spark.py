"""Other workloads on Spark: skewed keys, map entries, lists, totals, windowed sums and joins.

Counts, maps and lists run beside `transformWithState` (Row), with the same logic in Spark's own
idiom. Totals, windows and joins run beside what Spark has for them, which is streaming SQL: it runs
in the JVM and calls no Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import Row as SparkRow
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

import statekit as sk
from statekit.functions.process import Process
from tests.bench.on_spark import (
    OUT,
    SPARK_ROW,
    Engine,
    SparkCount,
    StatekitEngine,
    StatekitKeys,
    StatekitTotals,
    TransformWithState,
    in_turn,
)
from tests.bench.report import IN_THE_JVM, SPARK_DURABLE, STATEKIT_DURABLE, Row, faster
from tests.bench.workload import (
    Offer,
    Order,
    Timed,
    append_value,
    entries,
    events,
    map_entry,
    matched,
    moments,
    orders_and_offers,
    zipf_events,
)

PER_BATCH, WARM, ROUNDS = 100_000, 3, 5
WINDOW, LATENESS = "10 seconds", "10 seconds"


class EntryEngine(Engine):
    schema = "key long, entry long, value long"


class StatekitEntries(StatekitEngine, EntryEngine):
    def declared(self) -> Process[Any, Any, Any]:
        return map_entry


class EntryProcessor(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self.held = handle.getMapState("held", "entry long", "total long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        for row in rows:
            found = self.held.getValue((row.entry,))
            total = (found[0] if found else 0) + row.value
            self.held.updateValue((row.entry,), (total,))
            yield SparkRow(key=key[0], count=row.entry, sum=total)

    def close(self) -> None:
        pass


class SparkEntries(TransformWithState, EntryEngine):
    processor = EntryProcessor
    outputs = OUT


class StatekitLists(StatekitEngine):
    def declared(self) -> Process[Any, Any, Any]:
        return append_value


class ListProcessor(StatefulProcessor):
    """Appends all of a key's values of a batch at once."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.held = handle.getListState("held", "value long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        self.held.appendList([(row.value,) for row in rows])
        return iter(())

    def close(self) -> None:
        pass


class SparkLists(TransformWithState):
    processor = ListProcessor
    outputs = OUT


class SparkTotals(Engine):
    """The outputs of `StatekitTotals`, in Spark's streaming SQL."""

    name = "Spark SQL"

    def start(self, spark: SparkSession, df: DataFrame) -> StreamingQuery:
        df.createOrReplaceTempView("counted")
        found = spark.sql(
            "select key, count(*) as count, sum(value) as sum from counted group by 1"
        )
        return self.started(found, "update")


class WindowEngine(Engine):
    schema = "key long, value long, at timestamp"


class StatekitWindows(WindowEngine):
    name = "statekit"

    def start(self, spark: SparkSession, df: DataFrame) -> StreamingQuery:
        job = sk.Job("windows")
        windows = job.source("events", Timed).window(
            sk.tumbling(WINDOW), key="key", event_time="at", lateness=LATENESS
        )
        windows.sum("value").sink("out")
        return self.started_job(job, spark, {"events": df})


class SparkWindows(WindowEngine):
    name = "Spark SQL"

    def start(self, spark: SparkSession, df: DataFrame) -> StreamingQuery:
        df.withWatermark("at", LATENESS).createOrReplaceTempView("timed")
        found = f"select key, window(at, '{WINDOW}') as window, sum(value) as value from timed"
        return self.started(spark.sql(f"select key, window.*, value from ({found} group by 1, 2)"))


class JoinEngine(Engine):
    """Two inputs, which are in the same files."""

    schema = "key long, value long, is_order boolean"


class StatekitJoin(JoinEngine):
    name = "statekit"

    def start(self, spark: SparkSession, df: DataFrame) -> StreamingQuery:
        job = sk.Job("join")
        orders, offers = job.source("orders", Order), job.source("offers", Offer)
        orders.union(offers).process(matched).sink("out")
        sides = {"orders": df.where("is_order"), "offers": df.where("not is_order")}
        frames = {name: side.select("key", "value") for name, side in sides.items()}
        return self.started_job(job, spark, frames)


class SparkJoin(JoinEngine):
    name = "Spark SQL"

    def start(self, spark: SparkSession, df: DataFrame) -> StreamingQuery:
        orders = df.where("is_order").selectExpr("key", "value as ordered")
        offers = df.where("not is_order").selectExpr("key", "value as offered")
        return self.started(orders.join(offers, "key"))


def _beside(
    title: str,
    engines: tuple[type[Engine], type[Engine]],
    drawn: Callable[[int, int], pa.Table],
    *,
    per_batch: int,
    rounds: int,
    wanted: str = "20",
    note: str = "",
) -> Row:
    tables = (drawn(per_batch, number) for number in range(WARM + rounds))
    mine, spark = in_turn(engines, tables, WARM)
    name = engines[1].name if engines[1].name == "Spark SQL" else SPARK_ROW
    ours = mine.arm("statekit", STATEKIT_DURABLE, per_batch)
    theirs = spark.arm(name, SPARK_DURABLE, per_batch)
    title = f"{title} on Spark, {per_batch:,} events per batch: against {name}"
    return Row(title, faster(ours, theirs), wanted, (ours, theirs), note=note)


def _windowed(per_batch: int, number: int) -> pa.Table:
    """Each batch is a minute of 1,000 keys, whose windows of 10 seconds end with the next one."""
    return moments(per_batch, number, keys=1_000)


def zipf(per_batch: int = PER_BATCH, rounds: int = ROUNDS) -> list[Row]:
    engines = (StatekitKeys, SparkCount)
    title = "running count of keys drawn by Zipf's law"
    note = "Both read and write state once per key and batch here."
    return [_beside(title, engines, zipf_events, per_batch=per_batch, rounds=rounds, note=note)]


def maps(per_batch: int = PER_BATCH, rounds: int = ROUNDS) -> list[Row]:
    engines = (StatekitEntries, SparkEntries)
    title = "one of 100 entries in each of 1,000 maps"
    return [_beside(title, engines, entries, per_batch=per_batch, rounds=rounds)]


def lists(per_batch: int = PER_BATCH, rounds: int = ROUNDS) -> list[Row]:
    engines = (StatekitLists, SparkLists)
    title = "append to one of 100,000 lists"
    return [_beside(title, engines, events, per_batch=per_batch, rounds=rounds)]


def totals(sizes: Sequence[int] = (PER_BATCH, 10 * PER_BATCH), rounds: int = ROUNDS) -> list[Row]:
    engines = (StatekitTotals, SparkTotals)
    title = "count and sum of 100,000 keys as built-in aggregates"
    note = f"{IN_THE_JVM}; neither does statekit for an event or a key."
    return [
        _beside(title, engines, events, per_batch=size, rounds=rounds, wanted="1", note=note)
        for size in sizes
    ]


def windows(sizes: Sequence[int] = (PER_BATCH, 10 * PER_BATCH), rounds: int = ROUNDS) -> list[Row]:
    engines = (StatekitWindows, SparkWindows)
    title = "sum of each key and window of 10 seconds, 1,000 keys"
    note = f"{IN_THE_JVM}; neither does statekit for an event or a window."
    return [
        _beside(title, engines, _windowed, per_batch=size, rounds=rounds, wanted="1", note=note)
        for size in sizes
    ]


def joins(per_batch: int = PER_BATCH, rounds: int = ROUNDS) -> list[Row]:
    engines = (StatekitJoin, SparkJoin)
    title = "join of two inputs, kept for ever"
    given = {"per_batch": per_batch, "rounds": rounds}
    note = f"{IN_THE_JVM}; statekit calls it for each row."
    return [_beside(title, engines, orders_and_offers, **given, wanted="", note=note)]


BENCHMARKS: dict[str, Callable[[], list[Row]]] = {
    "spark-zipf": zipf,
    "spark-map": maps,
    "spark-list": lists,
    "spark-totals": totals,
    "spark-window": windows,
    "spark-join": joins,
}
