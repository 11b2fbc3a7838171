"""`transform_with_state`: run a processor for Spark's `transformWithState`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from pyspark.sql import DataFrame, GroupedData, SparkSession
from pyspark.sql import types as sql
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from statekit import sinks
from statekit.errors import RestoreError, StateTypeError
from statekit.functions.process import NOTHING_RENAMED
from statekit.job.job import Job
from statekit.job.options import StartOptions
from statekit.job.stream import Stream
from statekit.spark.frames.plan import FirstInput
from statekit.spark.query import Query
from statekit.spark.start import check_classic, start_once
from statekit.spark.tws.declaration import declared_calls
from statekit.spark.tws.grouping_key import GroupingKey
from statekit.spark.tws.importer import SparkImport
from statekit.spark.tws.pandas_frames import FrameOptions, takes_frames
from statekit.spark.tws.process import InitialRows, ProcessorCalls, process_calling

_INPUT, _OUTPUT = "rows", "outputs"
_HEARTBEAT = "1 second"


@dataclass(eq=False, repr=False)
class Transformed:
    """The outputs of a processor, with the job that computes them.

    Created by `transform_with_state`, which also takes it in place of a frame: the second processor
    becomes one more operator of the same job.

    Attributes:
        job: with one operator, or several in a row.
        stream: the outputs.
    """

    job: Job
    stream: Stream[Any]
    _df: DataFrame
    _schema: sql.StructType
    _event_time: str | None
    _first_inputs: Mapping[str, FirstInput]
    _beats: bool
    _outputs: dict[str, object] = field(default_factory=dict)

    def sink(self, output: object) -> Transformed:
        """Choose the sink of the outputs: a sink of `statekit.sinks`, a format such as "noop", or a
        function `(df, epoch)`. Return the object itself.
        """
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
        """Run the job, with the options of `Job.start`. The stream's own query is in `.query`.

        If processing-time timers are set, there is an epoch at least each second, or at the
        interval of the trigger, unless `heartbeat=` sets another one. Over static frames no timer
        fires, as in Spark, without `drain=True`.

        Parameters:
            from_spark: the checkpoint of a stopped query with this processor and Spark's own
                `transformWithState`. A new checkpoint is imported from it, with its state and
                timers, and reads on after its input. A checkpoint that was imported from it before
                continues.

        Raises:
            StatekitError: it cannot start; the class says how.
        """
        if not self._outputs:
            raise StateTypeError('nothing takes the outputs: call .sink(…), such as .sink("noop")')
        if options.get("restart") is not None:
            raise StateTypeError(
                "restart= is for job.start: a processor of Spark has its initial state once"
            )
        given = StartOptions(trigger=trigger)
        if not self._df.isStreaming:
            options = {"drain": False, **options}  # timers do not fire after static input
        elif self._beats and not given.ends_with_input:
            interval = given.spark_trigger.get("processingTime")
            options = {"heartbeat": interval or _HEARTBEAT, **options}
        if from_spark is not None:
            _check_begins_once(from_spark, options)
            spark_import = self.importing(from_spark, checkpoint, parallelism=parallelism)
            spark_import.carry_out(
                working_directory=options.get("working_directory"), rocksdb=options.get("rocksdb")
            )
        start_options = StartOptions(parallelism=parallelism, trigger=trigger, **options)
        inputs, first_inputs = {_INPUT: self._df}, self._first_inputs
        return start_once(
            self.job.plan, spark, inputs, self._outputs, checkpoint, start_options, first_inputs
        )

    def importing(
        self, from_spark: str | Path, checkpoint: str | Path, *, parallelism: int | None = None
    ) -> SparkImport:
        """Prepare the import of `from_spark=` without changing anything. Call `carry_out()`
        afterwards.

        Parameters:
            from_spark: the checkpoint of the query.
            checkpoint: the new one.
            parallelism: shards per operator; None for one per core.

        Raises:
            RestoreError: there is nothing to import, or not into this checkpoint.
            StateSchemaError: the query has other states, keys or timers than the processor.
        """
        return SparkImport(
            self._df.sparkSession, from_spark, self.job, checkpoint, parallelism=parallelism
        )


def transform_with_state(
    df: DataFrame | Transformed,
    keys: str | Sequence[str],
    processor: StatefulProcessor,
    output_schema: sql.StructType | str,
    output_mode: str = "append",
    time_mode: str = "none",
    initial_state: GroupedData | None = None,
    event_time_column: str | None = None,
    *,
    name: str | None = None,
    pandas: bool | None = None,
    renamed: Mapping[str, str] = NOTHING_RENAMED,
) -> Transformed:
    """Run an unchanged processor for Spark's `transformWithState`.

    `df.groupBy(*keys).transformWithState(processor, output_schema, …)` becomes
    `transform_with_state(df, keys, processor, output_schema, …)`. Then choose a sink with
    `.sink(…)`, and start it with `.start(spark, checkpoint=…)`. docs/guide/from-spark.md lists
    the differences.

    Parameters:
        df: the rows; or the outputs of another processor.
        keys: the columns to group by: one name or several, fields within columns as `a.b`.
        processor: an instance of the subclass.
        output_schema: of its outputs, as a StructType or DDL.
        output_mode: "append", "update" or "complete". It makes no difference, as in Spark.
        time_mode: "none", "processingTime" or "eventTime": the clock of timers.
        initial_state: a grouped frame; `handleInitialState` gets its rows, once.
        event_time_column: the column of the outputs with their event time, if another processor by
            event time follows. The watermark column of `df` needs no option.
        name: of the operator and of the job; the class's by default. The checkpoint finds its state
            by this name.
        pandas: whether the processor takes frames of pandas, as with `transformWithStateInPandas`;
            None decides by the annotations of `handleInputRows`.
        renamed: the present names of columns by the names that they had before. A checkpoint
            contains the names of `keys` and of the column with event time, and a start with other
            columns is refused unless they are renamed.

    Raises:
        StateTypeError: an argument is not valid; the message names it.
    """
    above = df if isinstance(df, Transformed) else None
    source = above._df if above else _checked_frame(df)
    initial = None if initial_state is None else _initial(initial_state)

    def checked(**arguments: Any) -> ProcessorCalls:
        in_frames = takes_frames(processor) if pandas is None else pandas
        frames = FrameOptions.of_session(source.sparkSession) if in_frames else None
        return ProcessorCalls(**arguments, initial=initial and initial[1], frames=frames)

    calls = declared_calls(
        checked,
        above._schema if above else source.schema,
        keys,
        processor,
        output_schema,
        output_mode,
        time_mode,
        event_time_column,
        above._event_time if above else None,
    )
    name = name or type(processor).__name__
    declared = process_calling(calls, row=_row_of(above), renamed=renamed)
    if above is None:
        job = Job(name)
        stream: Stream[Any] = job.source(_INPUT, cast(Any, declared.record_type))
    else:
        job, stream = above.job, above.stream
    emitted = stream.process(declared, name=name)
    first_inputs = dict(above._first_inputs) if above else {}
    if initial is not None:
        first_inputs[emitted.name] = FirstInput(initial[0], declared.initial_records, InitialRows)
    return Transformed(
        job,
        emitted,
        source,
        calls.outputs,
        event_time_column if event_time_column in calls.outputs.names else None,
        first_inputs,
        calls.time_mode == "processingtime" or (above is not None and above._beats),
    )


def _check_begins_once(from_spark: str | Path, options: Mapping[str, Any]) -> None:
    others = [name for name in ("from_savepoint", "from_epoch") if options.get(name) is not None]
    if others:
        raise RestoreError(
            f"from_spark={str(from_spark)!r} and {others[0]}={options[others[0]]!r}: a start "
            "begins at one of them: leave the other out"
        )


def _checked_frame(df: object) -> DataFrame:
    if not isinstance(df, DataFrame):
        raise StateTypeError(
            f"df is {type(df).__name__}: give a DataFrame, not grouped, of a classic Spark session"
        )
    check_classic(df.sparkSession, {"df": df})
    return df


def _row_of(above: Transformed | None) -> Any:
    """Return the row class of another processor's outputs."""
    if above is None:
        return None
    records = above.job.plan.record_of(above.stream.name)
    assert records is not None, "it yields rows"
    return records.members[0].cls


def _initial(given: GroupedData) -> tuple[DataFrame, GroupingKey]:
    """Return the rows of the initial state, and their grouping key."""
    if not isinstance(given, GroupedData):
        raise StateTypeError(
            f"initial_state is {type(given).__name__}: give a grouped frame, df.groupBy(…)"
        )
    df = given._df
    if df.isStreaming:
        raise StateTypeError("initial_state= is a stream: give a frame that is static")
    expressions = given._jgd.groupingExprs()
    names = [expressions.apply(at).sql() for at in range(expressions.size())]
    return df, GroupingKey(df.schema, names)
