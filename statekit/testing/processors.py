"""`as_process`: a processor of Spark's `transformWithState` as a process function, for tests.

It needs pyspark, and neither a session nor a JVM.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StructField, StructType

from statekit.errors import StateTypeError
from statekit.functions.process import NOTHING_RENAMED, Process
from statekit.shown import shown
from statekit.spark.tws.declaration import DELAY, declared_calls
from statekit.spark.tws.grouping_key import GroupingKey
from statekit.spark.tws.in_process import CallsInProcess, InProcess
from statekit.spark.tws.pandas_frames import FrameOptions, takes_frames
from statekit.spark.tws.process import process_calling
from statekit.spark.tws.sql_values import parsed_schema
from statekit.timestamp import duration_to_micros

__all__ = ["InitialState", "as_process"]


class InitialState(NamedTuple):
    """The rows that `handleInitialState` gets: `createDataFrame(rows, schema).groupBy(*keys)`.

    Parameters:
        schema: of the rows, as a StructType or its JSON; or as DDL, if there is a session.
        keys: the columns to group by: one name or several.
        rows: dicts, `Row`s or tuples.
    """

    schema: StructType | str
    keys: str | Sequence[str]
    rows: Iterable[Any]


def as_process(
    schema: StructType | str,
    keys: str | Sequence[str],
    processor: StatefulProcessor,
    output_schema: StructType | str,
    output_mode: str = "append",
    time_mode: str = "none",
    initial_state: InitialState | None = None,
    event_time_column: str | None = None,
    *,
    watermark: tuple[str, str | dt.timedelta] | None = None,
    pandas: bool | None = None,
    renamed: Mapping[str, str] = NOTHING_RENAMED,
) -> Process[Any, Any, Any]:
    """Return a processor of Spark's `transformWithState` as a process function.

    A `Harness` drives it, and `check` checks it. `transform_with_state(df, keys, …)` becomes
    `as_process(schema of df, keys, …)`. Records are dicts, `Row`s or tuples. The processor gets the
    `Row`s, or the frames of pandas, that Spark would pass. Outputs are the `Row`s that `collect()`
    would return.

    Parameters:
        schema: of the rows, as a StructType or its JSON; or as DDL, if there is a session.
        keys, processor, output_schema, output_mode, time_mode, pandas, renamed: as for
            `transform_with_state`.
        initial_state: with its rows, which are processed in the first epoch.
        event_time_column: as for `transform_with_state`.
        watermark: the column with the event time, and the delay: the arguments of
            `df.withWatermark(…)`.

    Raises:
        StateTypeError: an argument is not valid; the message names it.

    >>> from pyspark.sql import Row
    >>> from pyspark.sql.types import StructType
    >>> from statekit.testing import Harness
    >>> words, number = StructType().add("word", "string"), StructType().add("n", "integer")
    >>> class Count(StatefulProcessor):
    ...     def init(self, handle):
    ...         self.count = handle.getValueState("count", number)
    ...     def handleInputRows(self, key, rows, timerValues):
    ...         (n,) = self.count.get() or (0,)
    ...         self.count.update((n + len(list(rows)),))
    ...         yield Row(word=key[0], n=self.count.get()[0])
    >>> counts = StructType().add("word", "string").add("n", "integer")
    >>> harness = Harness(as_process(words, "word", Count(), counts))
    >>> harness.send({"word": "a"}, {"word": "a"}), harness.send(Row(word="a"))
    ([Row(word='a', n=2)], [Row(word='a', n=3)])
    """
    rows = _with_watermark(parsed_schema(schema, "schema"), watermark)
    initial_key, initial_rows = _initial(initial_state)

    def checked(**arguments: Any) -> CallsInProcess:
        in_frames = takes_frames(processor) if pandas is None else pandas
        frames = FrameOptions() if in_frames else None
        return CallsInProcess(
            **arguments, initial=initial_key, frames=frames, initial_rows=initial_rows
        )

    calls = declared_calls(
        checked, rows, keys, processor, output_schema, output_mode, time_mode, event_time_column
    )
    return process_calling(calls, renamed=renamed, of=InProcess)


def _with_watermark(
    schema: StructType, watermark: tuple[str, str | dt.timedelta] | None
) -> StructType:
    """Return a schema with the delay in the metadata of its column, as `withWatermark` adds it."""
    if watermark is None:
        return schema
    column, delay = watermark
    if column not in schema.names:
        raise StateTypeError(
            f"watermark={shown(watermark)}: rows have no such column: they have "
            f"{', '.join(schema.names)}"
        )
    delay_ms = duration_to_micros(delay, "watermark") // 1000
    return StructType(
        [
            StructField(of.name, of.dataType, of.nullable, {**of.metadata, DELAY: delay_ms})
            if of.name == column
            else of
            for of in schema
        ]
    )


def _initial(given: InitialState | None) -> tuple[GroupingKey | None, list[Any]]:
    """Return the grouping key of initial state, and its rows."""
    if given is None:
        return None, []
    if not isinstance(given, InitialState):
        raise StateTypeError(
            f"initial_state is {type(given).__name__}: give an InitialState(schema, keys, rows)"
        )
    schema, keys, rows = given
    names = [keys] if isinstance(keys, str) else list(keys)
    return GroupingKey(parsed_schema(schema, "initial_state"), names), list(rows)
