"""The running count on Spark with pandas: `transformWithStateInPandas`, `applyInPandasWithState`.

Both call a function with a DataFrame for each key and batch, so that batches of a few events per
key are slow: a batch here has fewer events than elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from tests.bench.on_spark import OUT, Engine, StatekitCount, TransformWithState, in_turn
from tests.bench.report import SPARK_DURABLE, STATEKIT_DURABLE, Row, faster
from tests.bench.spark_processor import HELD
from tests.bench.workload import events

PER_BATCH = 10_000


def counted(
    key: int, frames: Iterator[pd.DataFrame], held: tuple[int, int]
) -> tuple[pd.DataFrame, tuple[int, int]]:
    """The outputs of the records of a key, and what is kept of it then."""
    values = pd.concat([frame["value"] for frame in frames])
    count, total = held
    counts, sums = count + pd.RangeIndex(1, len(values) + 1), total + values.cumsum()
    out = pd.DataFrame({"key": key, "count": counts, "sum": sums.to_numpy()})
    return out, (int(counts[-1]), int(sums.iloc[-1]))


class PandasCountProcessor(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self.held = handle.getValueState("held", HELD)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        found = self.held.get()
        out, held = counted(key[0], rows, (found[0], found[1]) if found else (0, 0))
        self.held.update(held)
        yield out

    def close(self) -> None:
        pass


class PandasCount(TransformWithState):
    name = "transformWithStateInPandas"
    processor = PandasCountProcessor
    outputs = OUT
    method = "transformWithStateInPandas"


def count_group(
    key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: GroupState
) -> Iterator[pd.DataFrame]:
    found = state.get if state.exists else (0, 0)
    out, held = counted(key[0], frames, (found[0], found[1]))
    state.update(held)
    yield out


class GroupedPandasCount(Engine):
    name = "applyInPandasWithState"

    def start(self, spark: SparkSession, df: DataFrame) -> StreamingQuery:
        out = df.groupBy("key").applyInPandasWithState(
            count_group, OUT, "count long, sum long", "append", GroupStateTimeout.NoTimeout
        )
        return self.started(out)


def against_pandas(per_batch: int = PER_BATCH, rounds: int = 3) -> list[Row]:
    """A process function beside both, over the same batches."""
    warm, theirs = 1, (PandasCount, GroupedPandasCount)
    tables = (events(per_batch, seed=number) for number in range(warm + rounds))
    mine, *others = in_turn((StatekitCount, *theirs), tables, warm)
    ours = mine.arm("statekit", STATEKIT_DURABLE, per_batch)
    found = []
    for engine, taken in zip(theirs, others, strict=True):
        arm = taken.arm(engine.name, SPARK_DURABLE, per_batch)
        title = f"running count on Spark, {per_batch:,} events per batch: against {arm.name}"
        note = f"It is slow with many keys: hence {per_batch:,} events per batch."
        found.append(Row(title, faster(ours, arm), "20", (ours, arm), note=note))
    return found
