"""`transform_with_state`: a processor written for Spark's `transformWithState`, run by statekit.

What lives here: the call, and the one-operator job that it makes. What does not: the processor as a
process function (`processors`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as sql
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from statekit.errors import StateTypeError
from statekit.job import Job, Stream
from statekit.spark.importing import SparkImport
from statekit.spark.processor_states import TimeMode
from statekit.spark.processors import process_of
from statekit.spark.query import Query
from statekit.spark.sql_values import parsed_schema
from statekit.spark.starting import start

__all__ = ["Transformed", "transform_with_state"]

_INPUT, _OUTPUT = "rows", "outputs"
_DELAY = "spark.watermarkDelayMs"
_TIME_MODES: tuple[TimeMode, ...] = ("none", "processingtime", "eventtime")


class Transformed:
    """A stream of what a processor yields, with the job that makes it.

    Attributes:
        job: of one operator. More may be added behind `stream`.
        stream: the outputs.
    """

    def __init__(self, job: Job, stream: Stream[Any], df: DataFrame) -> None:
        self.job = job
        self.stream = stream
        self._df = df
        self._outputs: dict[str, object] = {}

    def sink(self, output: object) -> Transformed:
        """Say where the outputs go: a sink of `statekit.sinks`, a format such as "noop", or a
        function `(df, epoch)`."""
        from statekit import sinks

        given = sinks.writer(output) if isinstance(output, str) else output
        if not self._outputs:
            self.stream.sink(_OUTPUT)
        self._outputs = {_OUTPUT: given}
        return self

    def start(
        self,
        spark: SparkSession,
        *,
        checkpoint: str | Path,
        from_spark: str | Path | None = None,
        parallelism: int | None = None,
        trigger: Mapping[str, Any] | str | None = None,
        **options: Any,
    ) -> Query:
        """Run it, as `Job.start` does.

        Parameters:
            from_spark: the checkpoint of a query with this processor and Spark's own
                `transformWithState`, which a new checkpoint goes on from: with its state and its
                timers, right behind what it has read. One that was made of it goes on from where it
                is. The query must have been stopped.
        """
        if from_spark is not None:
            found = self.importing(from_spark, checkpoint, parallelism=parallelism)
            found.carry_out(
                working_directory=options.get("working_directory"), rocksdb=options.get("rocksdb")
            )
        return start(
            self.job,
            spark,
            {_INPUT: self._df},
            self._outputs,
            checkpoint=checkpoint,
            parallelism=parallelism,
            trigger=trigger,
            **options,
        )

    def importing(
        self,
        from_spark: str | Path,
        checkpoint: str | Path,
        *,
        parallelism: int | None = None,
    ) -> SparkImport:
        """What `from_spark=` does before a start: look at it, then call `carry_out()`.

        Parameters:
            from_spark: the checkpoint of the query.
            checkpoint: the one that is to be made of it.
            parallelism: shards per operator; None for one per core.

        Raises:
            RestoreError: there is nothing to import, or not into this checkpoint.
            StateSchemaError: the query has not the states, the keys or the timers of the processor.
        """
        return SparkImport(
            self._df.sparkSession,
            from_spark,
            self.job,
            self._df.schema,
            checkpoint,
            parallelism=parallelism,
        )


def transform_with_state(
    df: DataFrame,
    keys: str | Sequence[str],
    processor: StatefulProcessor,
    output_schema: sql.StructType | str,
    output_mode: str = "append",
    time_mode: str = "none",
    event_time_column: str | None = None,
    *,
    name: str | None = None,
) -> Transformed:
    """Run a processor that was written for Spark's `transformWithState`, as it is."""
    mode = next((known for known in _TIME_MODES if known == time_mode.lower()), None)
    if mode is None:
        raise StateTypeError(
            f"time_mode={time_mode!r}: there are none, processingTime and eventTime"
        )
    key = (keys,) if isinstance(keys, str) else tuple(keys)
    event_time, lateness_us = _event_time(df, event_time_column, mode)
    declared = process_of(
        processor,
        key=key,
        rows=df.schema,
        outputs=parsed_schema(output_schema, "output_schema"),
        time_mode=mode,
        event_time=event_time,
        lateness_us=lateness_us,
    )
    job = Job(name or declared.name)
    source: Stream[Any] = job.source(_INPUT, cast(Any, declared.record_type))
    return Transformed(job, source.process(declared), df)


def _event_time(df: DataFrame, column: str | None, mode: TimeMode) -> tuple[str | None, int]:
    """The column with event time, and how far it may lag behind, as `withWatermark` says."""
    delays = {field.name: field.metadata[_DELAY] for field in df.schema if _DELAY in field.metadata}
    if mode == "none":
        return None, 0
    if column is None and len(delays) == 1:
        (column,) = delays
    if column is None and mode == "processingtime":
        return None, 0
    if column is None or column not in delays:
        raise StateTypeError(
            'time_mode="eventTime" takes event time from a column with a watermark: call '
            "df.withWatermark(column, delay) before, or say which column by event_time_column="
        )
    return column, delays[column] * 1000
