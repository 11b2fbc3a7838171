"""Event time on Spark: sessions that time out, against transformWithState, and ordered handling.

Sessions: each event sets its key's only timer to its own time and a gap; when the timer fires, the
session is emitted and its state cleared. Event time moves on by a minute per batch, and half of the
keys are left behind with each, so that about 43,000 sessions end in a batch of 100,000 events.

Both engines fire with the watermark of the batches before. Spark may make a further batch without
data to fire with the newest one; that is turned off, so that both do the same work in one batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import Row as SparkRow
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from statekit.functions.process import Process
from tests.bench.on_spark import Engine, StatekitEngine, TransformWithState, in_turn, interleaved
from tests.bench.report import SPARK_DURABLE, STATEKIT_DURABLE, Row, faster, statekit
from tests.bench.workload import (
    GAP,
    KEYS,
    SESSION_LATENESS,
    moments,
    ordered_count,
    sessions,
    unordered_count,
)

GAP_MS = GAP.seconds * 1000


class TimedEngine(Engine):
    schema = "key long, value long, at timestamp"


class StatekitSessions(StatekitEngine, TimedEngine):
    def declared(self) -> Process[Any, Any, Any]:
        return sessions


class SessionProcessor(StatefulProcessor):
    """The same logic in Spark's own idiom: state and timer once per key and micro-batch."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.held = handle.getValueState("held", "count long, last long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        times = [row.ms for row in rows]
        count, last = len(times), max(times)
        held = self.held.get()
        if held is not None:
            count, last = count + held[0], max(last, held[1])
            if last == held[1]:
                self.held.update((count, last))
                return iter(())
            self.handle.deleteTimer(held[1] + GAP_MS)
        self.held.update((count, last))
        self.handle.registerTimer(last + GAP_MS)
        return iter(())

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Any]:
        held = self.held.get()
        assert held is not None
        self.held.clear()
        yield SparkRow(key=key[0], events=held[0])

    def close(self) -> None:
        pass


class SparkSessions(TransformWithState, TimedEngine):
    processor = SessionProcessor
    outputs = "key long, events long"
    time_mode = "EventTime"

    def start(self, spark: SparkSession, df: DataFrame) -> StreamingQuery:
        timed = df.withWatermark("at", SESSION_LATENESS)
        return super().start(spark, timed.selectExpr("key", "at", "unix_millis(at) as ms"))


def session_moments(count: int, number: int, keys: int = KEYS) -> pa.Table:
    """Events of batch `number`, half of whose keys come no more."""
    return moments(count, number, keys, passing=keys // 2)


def session_timeouts() -> list[Row]:
    """Sessions that end by a timer, against transformWithState."""
    per_batch, warm, rounds = 100_000, 3, 3
    tables = (session_moments(per_batch, number) for number in range(warm + rounds))
    mine, spark = in_turn((StatekitSessions, SparkSessions), tables, warm)
    ours = mine.arm("statekit", STATEKIT_DURABLE, per_batch)
    theirs = spark.arm("transformWithState (Row)", SPARK_DURABLE, per_batch)
    title = f"session time-outs in event time, {per_batch:,} events per batch"
    return [Row(title, faster(ours, theirs), "at least 10", (ours, theirs))]


class OrderedCount(StatekitEngine, TimedEngine):
    name = "ordered"

    def declared(self) -> Process[Any, Any, Any]:
        return ordered_count


class UnorderedCount(StatekitEngine, TimedEngine):
    name = "unordered"

    def declared(self) -> Process[Any, Any, Any]:
        return unordered_count


def ordered_against_unordered() -> list[Row]:
    """What it costs that records wait for their turn.

    Each batch covers as much event time as the lateness, so an ordered batch handles as many
    records of batches before as it lets wait.
    """
    per_batch, warm, rounds = 100_000, 4, 7
    tables = (moments(per_batch, number) for number in range(warm + rounds))
    ordered, unordered = interleaved((OrderedCount, UnorderedCount), tables, warm)
    return [
        Row(
            f"running count on Spark, {per_batch:,} events per batch: ordered against unordered",
            f"{ordered / unordered:.2f} times ({ordered:.2f} s against {unordered:.2f} s)",
            "less than 2.5",
            (
                statekit(ordered, per_batch, "statekit, ordered"),
                statekit(unordered, per_batch, "statekit, unordered"),
            ),
        )
    ]
