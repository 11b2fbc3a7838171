"""The running count on Spark: statekit, Spark's transformWithState, and a floor, in one session.

All engines run as streaming queries that stay open; files are fed to them in turn, and the time of
a micro-batch is Spark's own `triggerExecution`. transformWithState runs with the RocksDB provider
and changelog checkpointing. The floors are the same carrier (foreachBatch, our shuffle and sort,
mapInArrow) with a plain dict in the worker and nothing durable: one adds up columns, the other
calls the function that statekit calls.
"""

from __future__ import annotations

import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StructType

import statekit as sk
from statekit.functions.process import Process
from statekit.job.per_key.aggregation import aggregation
from statekit.records.record_type import RecordType
from statekit.spark import transform_with_state
from statekit.spark.frames.key_columns import by_one_number
from statekit.spark.worker.rows import ARRIVAL, GROUP
from tests.bench.peers.jobs.handshake import bytes_in
from tests.bench.report import (
    NOT_DURABLE,
    SPARK_DURABLE,
    STATEKIT_DURABLE,
    Arm,
    Row,
    faster,
    times_as_fast,
)
from tests.bench.spark_processor import CountProcessor
from tests.bench.workload import Event, count_of_key, events, running_count

OUT = "key long, count long, sum long"
SHARDS = 2
WARM_EVENTS = 100_000

Counted = Callable[[list[int], list[int]], list[tuple[int, int, int]]]
Batches = Iterator[pa.RecordBatch]
SPARK_ROW = "transformWithState (Row)"


def session() -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable  # transformWithState needs it in the driver, too
    provider = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    spark = (
        SparkSession.builder.master(f"local[{SHARDS}]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "3g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", str(SHARDS))
        .config("spark.sql.streaming.pollingDelay", "20ms")
        .config("spark.sql.streaming.noDataMicroBatches.enabled", "false")
        .config("spark.sql.streaming.noDataProgressEventInterval", "1h")
        .config("spark.sql.streaming.numRecentProgressUpdates", "1000")
        .config("spark.sql.streaming.stateStore.providerClass", provider)
        .config("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    return spark


class Engine:
    """A streaming query over a directory that files are put into one by one.

    Parameters:
        home: where it keeps everything.
        writes: the format of its outputs, which go to the directory `out` if anywhere.
    """

    name = ""
    schema: ClassVar[str | StructType] = "key long, value long, ts long"
    shards: ClassVar[int] = SHARDS

    def __init__(self, spark: SparkSession, home: Path, writes: str = "noop") -> None:
        self.home = home
        self.writes = writes
        self._source = home / "source"
        self._source.mkdir(parents=True)
        self._numbers = itertools.count()
        frame = spark.readStream.schema(self.schema).option("maxFilesPerTrigger", 1)
        self.query = self.start(spark, frame.parquet(str(self._source)))

    def start(self, spark: SparkSession, df: DataFrame) -> StreamingQuery:
        raise NotImplementedError

    def started(self, out: DataFrame, mode: str = "append") -> StreamingQuery:
        """Start a query of Spark's that puts this out."""
        writer = out.writeStream.format(self.writes).outputMode(mode)
        writer = writer.option("path", str(self.home / "out"))
        return writer.option("checkpointLocation", str(self.home / "checkpoint")).start()

    def started_job(
        self, job: sk.Job, spark: SparkSession, frames: Mapping[str, DataFrame]
    ) -> StreamingQuery:
        """Start a job of ours that puts this out."""
        started = job.start(
            spark,
            frames,
            outputs={sink.name: self.output(sink.name) for sink in job.plan.sinks},
            checkpoint=self.home / "checkpoint",
            parallelism=self.shards,
            working_directory=self.home / "working",
        )
        query: StreamingQuery = started.query
        return query

    def output(self, name: str) -> Any:
        """Return where a sink of a job of ours writes."""
        return sk.sinks.writer(self.writes, path=str(self.home / name))

    def feed(self, table: pa.Table) -> float:
        """Run one micro-batch; its seconds."""
        number = next(self._numbers)
        draft = self.home / f"{number}.draft"
        # In pieces, so that all cores read: a file of one row group is read by a single task.
        pq.write_table(table, draft, row_group_size=max(1, -(-len(table) // SHARDS)))
        draft.rename(self._source / f"{number:06d}.parquet")
        self.query.processAllAvailable()
        for progress in self.query.recentProgress:
            spent = progress["durationMs"]  # idle polls have the same number and no batch
            if progress["batchId"] == number and "addBatch" in spent:
                return float(spent["triggerExecution"]) / 1000
        raise RuntimeError(f"{self.name} made no batch {number}: {self.query.exception()}")


class StatekitEngine(Engine):
    """Runs one process function."""

    name = "statekit"

    def declared(self) -> Process[Any, Any, Any]:
        raise NotImplementedError

    def start(self, spark: SparkSession, df: DataFrame) -> StreamingQuery:
        job, declared = sk.Job("bench"), self.declared()
        job.source("events", declared.record_type.cls).process(declared).sink("out")
        return self.started_job(job, spark, {"events": df})


class StatekitCount(StatekitEngine):
    def declared(self) -> Process[Any, Any, Any]:
        return running_count


class StatekitKeys(StatekitEngine):
    """The same, called once per key and batch, as Spark's processor is."""

    name = "statekit, a key's events at once"

    def declared(self) -> Process[Any, Any, Any]:
        return count_of_key


class StatekitTotals(StatekitEngine):
    """The same count and sum as built-in aggregates: a result per key and batch, not per event."""

    name = "statekit, built-in aggregates"

    def declared(self) -> Process[Any, Any, Any]:
        records = RecordType.of(Event, where="bench")
        kept = {"count": sk.Count(), "sum": sk.Sum("value")}
        return aggregation(records, key="key", aggregates=kept)


class DropIn(Engine):
    """Runs the processor that Spark runs, unchanged."""

    name = "statekit, drop-in"

    def start(self, spark: SparkSession, df: DataFrame) -> StreamingQuery:
        outputs = transform_with_state(df, "key", CountProcessor(), OUT)
        started = outputs.sink(sk.sinks.writer(self.writes, path=str(self.home / "out"))).start(
            spark,
            checkpoint=self.home / "checkpoint",
            parallelism=SHARDS,
            working_directory=self.home / "working",
        )
        assert started.query is not None
        return started.query


class TransformWithState(Engine):
    """Runs one of Spark's stateful processors."""

    name = "transformWithState"
    processor: ClassVar[type[StatefulProcessor]]
    outputs: ClassVar[str]
    time_mode = "None"
    method = "transformWithState"

    def start(self, spark: SparkSession, df: DataFrame) -> StreamingQuery:
        out = getattr(df.groupBy("key"), self.method)(
            statefulProcessor=self.processor(),
            outputStructType=self.outputs,
            outputMode="Append",
            timeMode=self.time_mode,
        )
        return self.started(out)


class SparkCount(TransformWithState):
    processor = CountProcessor
    outputs = OUT


class Floor(Engine):
    """The carrier of ours with a dict in the worker, which is gone with the batch."""

    name = "floor: a dict in the worker"
    note = "The floor makes no records, calls no function and keeps nothing durably."
    wanted = "at least 0.7"
    functions: ClassVar[int] = 2
    """How many of our functions are compared with it."""

    def start(self, spark: SparkSession, df: DataFrame) -> StreamingQuery:
        writer = df.writeStream.foreachBatch(self._batch)
        return writer.option("checkpointLocation", str(self.home / "checkpoint")).start()

    def _batch(self, df: DataFrame, _: int) -> None:
        group = F.pmod(F.xxhash64("key"), F.lit(128)).cast("int").alias(GROUP)
        arrival = F.monotonically_increasing_id().alias(ARRIVAL)
        rows = df.select(group, "key", "value", arrival)
        order = by_one_number(rows, ("key",), SHARDS, 128)
        shard = F.expr(f"cast(({GROUP} * {SHARDS}) div 128 as int)")
        routed = rows.repartitionById(SHARDS, shard).sortWithinPartitions(order)
        ordered = routed.select("key", "value")
        counted = _in_batches(self.counted())
        ordered.mapInArrow(counted, OUT).write.format("noop").mode("append").save()

    @staticmethod
    def counted() -> Counted:
        """What makes outputs of keys and values, with a dict of its own."""
        held: dict[int, tuple[int, int]] = {}

        def counted(keys: list[int], values: list[int]) -> list[tuple[int, int, int]]:
            out = []
            for key, value in zip(keys, values, strict=True):
                count, total = held.get(key, (0, 0))
                held[key] = count, total = count + 1, total + value
                out.append((key, count, total))
            return out

        return counted


class FunctionFloor(Floor):
    """The same with records, and with the function that statekit calls."""

    name = "floor: the same function over a dict in the worker"
    note = "It is given the same records, and keeps nothing durably."
    wanted = ""
    functions = 1

    @staticmethod
    def counted() -> Counted:
        held, count_event = _DictState(), running_count.__wrapped__

        def counted(keys: list[int], values: list[int]) -> list[tuple[int, int, int]]:
            out: list[tuple[int, int, int]] = []
            for key, value in zip(keys, values, strict=True):
                held.key = key
                out.extend(count_event(Event(key, value), held))
            return out

        return counted


class _DictState:
    """What the function needs of a state, over a dict."""

    def __init__(self) -> None:
        self.key = 0
        self._held: dict[int, tuple[int, int]] = {}

    def get(self) -> tuple[int, int] | None:
        return self._held.get(self.key)

    def update(self, value: tuple[int, int]) -> None:
        self._held[self.key] = value


def _in_batches(counted: Counted) -> Callable[[Batches], Batches]:
    """The same for batches of columns."""

    def step(batches: Batches) -> Batches:
        for batch in batches:
            out = counted(batch.column("key").to_pylist(), batch.column("value").to_pylist())
            columns = [pa.array(column, pa.int64()) for column in zip(*out, strict=True)]
            yield pa.record_batch(columns, names=["key", "count", "sum"])

    return step


class Taken(NamedTuple):
    """What an engine took.

    Parameters:
        seconds: of each micro-batch that counts.
        written: the bytes in its checkpoint when it ended.
    """

    seconds: list[float]
    written: int

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    def arm(self, name: str, durable: str, events: int) -> Arm:
        """With what half of the batches and 99 of 100 took, if there are as many."""
        enough = len(self.seconds) >= 100
        p99 = statistics.quantiles(self.seconds, n=100)[-1] if enough else None
        p50 = self.median if enough else None
        arm = Arm(name, self.median, durable, events, p50=p50, p99=p99, written=self.written)
        return arm._replace(turns=tuple(self.seconds))


def in_turn(engines: Sequence[type[Engine]], tables: Iterable[pa.Table], warm: int) -> list[Taken]:
    """What each engine took; each table is fed to one after the other, and the next in reverse.

    So none always runs right behind the same other one, whose garbage and files not yet written it
    would pay for.

    Parameters:
        warm: so many tables do not count.
    """
    spark = session()
    try:
        # A worker may still write a base.
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
            running = [made(spark, Path(home) / f"{n}") for n, made in enumerate(engines)]
            spent = [_turn(running, table, n % 2 == 1) for n, table in enumerate(tables)]
            for engine in running:
                engine.query.stop()
            written = [bytes_in(engine.home / "checkpoint") for engine in running]
    finally:
        spark.stop()
    each = zip(*spent[warm:], strict=True)
    return [Taken(list(seconds), size) for seconds, size in zip(each, written, strict=True)]


def _turn(engines: Sequence[Engine], table: pa.Table, reverse: bool) -> list[float]:
    """The seconds of each engine, in the order given, whichever ran first.

    Each begins when what the one before it left to be done, such as merging files, is done.
    """
    spent = {}
    for engine in reversed(engines) if reverse else engines:
        os.sync()
        if len(table) >= WARM_EVENTS:  # fewer leave next to nothing
            _come_to_rest()
        spent[engine] = engine.feed(table)
    return [spent[engine] for engine in engines]


def _come_to_rest() -> None:
    """Wait until the processors have had little to do for a second, but not for ever.

    Queries that look for new files keep two cores busy for a fifth of the time.
    """
    until = time.monotonic() + 20
    while psutil.cpu_percent(interval=1.0) > 30 and time.monotonic() < until:
        pass


def interleaved(
    engines: Sequence[type[Engine]], tables: Iterable[pa.Table], warm: int
) -> list[float]:
    """As `in_turn`: median seconds of a micro-batch per engine."""
    return [taken.median for taken in in_turn(engines, tables, warm)]


def _tables(per_batch: int, rounds: int, warm: int) -> Iterator[pa.Table]:
    for number in range(warm + rounds):
        # Code is compiled after a few small batches, but for what only a large one makes hot.
        count = min(per_batch, WARM_EVENTS) if number < warm - 1 else per_batch
        yield events(count, seed=number)


MINE = (StatekitCount, StatekitKeys, DropIn, StatekitTotals)


def _rows(per_batch: int, rounds: int, warm: int, wanted: Sequence[str]) -> list[Row]:
    """Each of ours against Spark's.

    Parameters:
        wanted: of process functions, the drop-in and built-in aggregates.
    """
    spark, *rest = in_turn((SparkCount, *MINE), _tables(per_batch, rounds, warm), warm)
    theirs = spark.arm(SPARK_ROW, SPARK_DURABLE, per_batch)
    found = []
    for engine, taken, to in zip(MINE, rest, wanted, strict=True):
        arm = taken.arm(engine.name, STATEKIT_DURABLE, per_batch)
        title = f"{_title(per_batch)}: {arm.name} against transformWithState"
        found.append(Row(title, faster(arm, theirs), to, (arm, theirs)))
    return found


def _floors(per_batch: int, rounds: int, warm: int) -> list[Row]:
    """Ours against what the carrier takes without it.

    In a session of their own: beside `transformWithState`, which leaves the JVM with much to do,
    whoever comes behind it is slower, and both sides of these rows are fast.
    """
    mine = (StatekitCount, StatekitKeys)
    floors = (Floor, FunctionFloor)
    all_taken = in_turn((*mine, *floors), _tables(per_batch, rounds, warm), warm)
    found = []
    for floor, taken in zip(floors, all_taken[len(mine) :], strict=True):
        held_against = taken.arm(floor.name, NOT_DURABLE, per_batch)
        for engine, ours in zip(mine[: floor.functions], all_taken, strict=False):
            arm = ours.arm(engine.name, STATEKIT_DURABLE, per_batch)
            told = f"{times_as_fast(arm, held_against):.2f} of its events per second"
            title = f"{_title(per_batch)}: {arm.name} against the {floor.name}"
            result = f"{told} ({arm.seconds:.2f} s against {held_against.seconds:.2f} s)"
            found.append(Row(title, result, floor.wanted, (arm, held_against), note=floor.note))
    return found


def _title(per_batch: int) -> str:
    return f"running count on Spark, {per_batch:,} event{'s' * (per_batch > 1)} per batch"


def batches_of_1() -> list[Row]:
    return _rows(1, rounds=100, warm=10, wanted=["at least 1.0"] * 4)


def batches_of_100() -> list[Row]:
    return _rows(100, rounds=100, warm=10, wanted=["at least 1.0"] * 4)


def batches_of_100_000() -> list[Row]:
    against_spark = _rows(100_000, rounds=7, warm=3, wanted=("20", "20", "10", "100"))
    return [*against_spark, *_floors(100_000, rounds=15, warm=5)]


def batches_of_1_000_000() -> list[Row]:
    against_spark = _rows(1_000_000, rounds=5, warm=3, wanted=("20", "20", "10", "100"))
    return [*against_spark, *_floors(1_000_000, rounds=9, warm=3)]
