"""The arguments of `transformWithState`, checked, for rows of Spark and for rows of tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from pyspark.sql import types as sql
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from statekit.errors import StateTypeError
from statekit.shown import shown
from statekit.spark.tws.grouping_key import GroupingKey
from statekit.spark.tws.process import ProcessorCalls
from statekit.spark.tws.sql_values import parsed_schema
from statekit.spark.tws.state_handles import TimeMode

C = TypeVar("C", bound=ProcessorCalls)

DELAY = "spark.watermarkDelayMs"
"""The metadata key of an event-time column: its maximum delay in milliseconds."""

_TIME_MODES: tuple[TimeMode, ...] = ("none", "processingtime", "eventtime")
_OUTPUT_MODES = ("append", "update", "complete")


def declared_calls(
    make: Callable[..., C],
    schema: sql.StructType,
    keys: str | Sequence[str],
    processor: StatefulProcessor,
    output_schema: sql.StructType | str,
    output_mode: str,
    time_mode: str,
    event_time_column: str | None,
    event_time_above: str | None = None,
) -> C:
    """Check the arguments of `transform_with_state` and return the calls of the processor.

    Parameters:
        make: creates the calls: `ProcessorCalls` or a subclass.
        schema: of the rows. A column with event time has its delay in its metadata.
        event_time_above: the column with the event time of another processor, whose outputs the
            rows are.

    Raises:
        StateTypeError: an argument is not valid; the message names it.
    """
    if not isinstance(processor, StatefulProcessor):
        raise StateTypeError(
            f"processor={shown(processor, 200)}: give an instance of a subclass of Spark's "
            "StatefulProcessor"
        )
    mode = _time_mode(time_mode)
    if str(output_mode).lower() not in _OUTPUT_MODES:
        raise StateTypeError(
            f"output_mode={shown(output_mode)}: there are append, update and complete; each emits "
            "what the processor yields"
        )
    outputs = parsed_schema(output_schema, "output_schema")
    delays = {field.name: field.metadata[DELAY] for field in schema if DELAY in field.metadata}
    if event_time_above is not None:
        delays = {event_time_above: 0}
    event_time, lateness_us = _event_time(delays, event_time_column, outputs.names, mode)
    key = GroupingKey(schema, [keys] if isinstance(keys, str) else list(keys))
    return make(
        processor=processor,
        outputs=outputs,
        time_mode=mode,
        key=key,
        event_time=event_time,
        lateness_us=lateness_us,
    )


def _time_mode(given: str) -> TimeMode:
    known_mode = next((mode for mode in _TIME_MODES if mode == str(given).lower()), None)
    if known_mode is None:
        raise StateTypeError(f"time_mode={shown(given)}: choose none, processingTime or eventTime")
    return known_mode


def _event_time(
    delays: Mapping[str, Any], named: str | None, outputs: Sequence[str], mode: TimeMode
) -> tuple[str | None, int]:
    """Return the event-time column of the input, and its maximum delay.

    Parameters:
        delays: of the columns that have event time, in milliseconds.
    """
    if named is not None and named not in outputs and named not in delays:
        raise StateTypeError(
            f"event_time_column={shown(named)}: the outputs have no such column (they have "
            f"{', '.join(outputs)})"
        )
    if mode == "none" or not delays:
        return None, 0
    if len(delays) > 1 and named not in delays:
        raise StateTypeError(
            f"the rows have several columns with a watermark, {', '.join(delays)}: say which one "
            "has event time by event_time_column="
        )
    column = named if named in delays else next(iter(delays))
    assert column is not None
    return column, delays[column] * 1000
