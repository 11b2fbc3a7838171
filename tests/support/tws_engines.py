"""Runs the same processor through Spark's own transformWithState and through statekit.

Both read the same files, one per micro-batch, from where they stood. What they put out is compared
batch by batch; between the rows of a batch there is no order.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import DataFrame, GroupedData, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StructType

from statekit.spark import transform_with_state
from statekit.spark.frames.arrow_schemas import arrow_schema
from statekit.testing import Harness
from statekit.testing.processors import InitialState, as_process
from tests.support.spark_runs import ONCE, collector, stream_of, write_batch
from tests.support.timeouts import PATIENCE_S

OF_SPARK = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.shuffle.partitions": "1",  # each costs a task with a server of its own
}

Batches = Mapping[int, list[Any]]


@dataclass
class Case:
    """A stateful query.

    Parameters:
        schema: of its rows, as DDL.
        keys: to group by.
        processor: the same instance for both.
        outputs: of what it yields, as DDL.
        mode: of time.
        watermark: the column with it, and the delay.
        initial: rows of initial state, with their schema and keys.
        pandas: whether the processor takes frames.
        rows_out: how many rows it yields in all, where it does not end by itself.
        then: another query behind it, of which only keys, processor and outputs count.
    """

    schema: str
    keys: Sequence[str]
    processor: StatefulProcessor
    outputs: str
    mode: str = "none"
    watermark: tuple[str, str] | None = None
    initial: tuple[list[Any], str, list[str]] | None = None
    pandas: bool = False
    then: Case | None = None
    rows_out: int | None = None
    event_time_column: str | None = None


class Engines:
    """Both, on the files below one directory."""

    def __init__(self, spark: SparkSession, home: Path) -> None:
        self.spark = spark
        self.home = home
        self._files = 0
        self._fed: list[list[Any]] = []

    def feed(self, rows: list[Any], schema: str) -> None:
        """One more file, which makes one more micro-batch."""
        types = cast(StructType, StructType.fromDDL(schema))
        made = [Row(*types.names)(*row).asDict(True) for row in rows]
        table = pa.Table.from_pylist(made, schema=arrow_schema(types))
        write_batch(self.home / "rows", self._files, table)
        self._files += 1
        self._fed.append(rows)

    def rows(self, case: Case) -> DataFrame:
        df = stream_of(self.spark, self.home / "rows", case.schema)
        return df.withWatermark(*case.watermark) if case.watermark else df

    def initial(self, case: Case) -> GroupedData | None:
        if case.initial is None:
            return None
        rows, schema, keys = case.initial
        return self.spark.createDataFrame(rows, schema).groupBy(*keys)

    def of_spark(self, case: Case) -> Batches:
        """What Spark emits for all there is."""
        df, step, initial = self.rows(case), case, self.initial(case)
        while True:
            grouped = df.groupBy(*step.keys)
            call = grouped.transformWithStateInPandas if step.pandas else grouped.transformWithState
            df = call(
                step.processor,
                step.outputs,
                "append",
                step.mode,
                initial,
                step.event_time_column or "",
            )
            if step.then is None:
                break
            step, initial = step.then, None
        found, collect = collector()
        before = {name: self.spark.conf.get(name, None) for name in OF_SPARK}
        for name, value in OF_SPARK.items():
            self.spark.conf.set(name, value)
        try:
            writer = df.writeStream.foreachBatch(collect)
            writer = writer.option("checkpointLocation", str(self.home / "of-spark"))
            if case.mode == "processingTime":  # with availableNow it would never end
                query = writer.start()
                while query.isActive and not self._is_done(case, query, len(found)):
                    time.sleep(0.1)
                query.stop()
            else:
                query = writer.trigger(**ONCE).start()
                assert query.awaitTermination(int(PATIENCE_S))
        finally:
            for name, held in before.items():
                self.spark.conf.unset(name) if held is None else self.spark.conf.set(name, held)
        return by_batch(found)

    def _is_done(self, case: Case, query: StreamingQuery, rows: int) -> bool:
        """Whether a query has handled the last file, or yielded all its rows."""
        if case.rows_out is not None:
            return rows >= case.rows_out
        progress = query.lastProgress
        return progress is not None and progress["batchId"] >= self._files - 1

    def of_statekit(self, case: Case, parallelism: int = 2) -> Batches:
        """What statekit emits for all there is."""
        made = transform_with_state(
            self.rows(case),
            case.keys,
            case.processor,
            case.outputs,
            time_mode=case.mode,
            initial_state=self.initial(case),
            event_time_column=case.event_time_column,
            pandas=case.pandas or None,
        )
        step = case.then
        while step is not None:
            made = transform_with_state(
                made,
                step.keys,
                step.processor,
                step.outputs,
                time_mode=step.mode,
                event_time_column=step.event_time_column,
                name=f"then{step.outputs[:3]}",
            )
            step = step.then
        found, collect = collector()
        query = made.sink(collect).start(
            self.spark,
            checkpoint=self.home / "of-statekit",
            working_directory=self.home / "working",
            parallelism=parallelism,
            trigger=ONCE if case.rows_out is None else None,
            retention=None,
        )
        while case.rows_out is not None and len(found) < case.rows_out:
            assert not query.await_termination(1), "it ended before all timers rang"
        if case.rows_out is not None:
            query.stop()
        assert query.query is not None
        assert query.query.awaitTermination(int(PATIENCE_S))  # as the user of Spark waits
        return by_batch(found)

    def of_harness(self, case: Case, parallelism: int = 2) -> Batches:
        """What a harness emits for all there is, without Spark."""
        initial = None
        if case.initial is not None:
            rows, schema, keys = case.initial
            initial = InitialState(schema, keys, rows)
        process = as_process(
            case.schema,
            case.keys,
            case.processor,
            case.outputs,
            time_mode=case.mode,
            initial_state=initial,
            watermark=case.watermark,
            pandas=case.pandas or None,
        )
        harness = Harness(process, parallelism)
        batches = [harness.send(*rows) for rows in self._fed]
        if case.watermark is not None:
            batches.append(harness.send())  # as the last batch of a query with event time
        return by_batch([(number, row) for number, rows in enumerate(batches) for row in rows])

    def assert_same(self, case: Case, parallelism: int = 2) -> Batches:
        """Run both; returns what came out."""
        found, expected = self.of_statekit(case, parallelism), self.of_spark(case)
        for batch in sorted(found.keys() | expected.keys()):
            ours, theirs = found.get(batch, []), expected.get(batch, [])
            strange = [row for row in ours if row not in theirs]
            missing = [row for row in theirs if row not in ours]
            told = f"batch {batch}: {strange} and not {missing}"
            assert ours == theirs, told
        return expected


def by_batch(found: list[tuple[int, Any]]) -> Batches:
    batches: dict[int, list[Any]] = defaultdict(list)
    for batch, row in found:
        batches[batch].append(tuple(row))
    return {batch: sorted(rows, key=repr) for batch, rows in batches.items()}
