"""A stateful processor of Spark's as a process function.

What lives here: finding out which states a processor asks for, and the `Process` that calls it.
What does not: its states and timers (`processor_states`), rows in and out (`processor_rows`), and the
job that it becomes part of (`transform`).

Spark calls a processor once per key and micro-batch, with all of the key's rows, and then for each
timer that is due. It makes a new one for each task: what a processor keeps in its attributes is
gone with the batch. So it is here: each shard gets a copy of the processor as it was given.
"""

from __future__ import annotations

import datetime as dt
import inspect
import pickle
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import cloudpickle
from pyspark.sql import Row
from pyspark.sql import types as sql
from pyspark.sql.streaming import stateful_processor as spark

from statekit.context import Context
from statekit.errors import StateTypeError
from statekit.list_state import ListState
from statekit.map_state import MapState
from statekit.process import Process
from statekit.signature import Signature
from statekit.single_row_states import ValueState
from statekit.spark.processor_rows import RowOutputs, RowRecords
from statekit.spark.processor_states import Declared, Handle, TimeMode, now_ms
from statekit.spark.sql_values import SqlValues, parsed_schema
from statekit.state_options import TTL
from statekit.timers import Timer
from statekit.timestamp import datetime_to_micros

__all__ = ["ProcessorProcess", "process_of"]


class _Asked(spark.StatefulProcessorHandle):
    """Takes note of what a processor asks for in `init`, where there is no state yet."""

    def __init__(self, time_mode: TimeMode) -> None:
        self.declared: dict[str, Declared] = {}
        self._time_mode = time_mode

    def getValueState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> Any:
        return self._asked(stateName, "value", schema, None, ttlDurationMs)

    def getListState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> Any:
        return self._asked(stateName, "list", schema, None, ttlDurationMs)

    def getMapState(
        self,
        stateName: str,
        userKeySchema: Any,
        valueSchema: Any,
        ttlDurationMs: int | None = None,
    ) -> Any:
        return self._asked(stateName, "map", valueSchema, userKeySchema, ttlDurationMs)

    def deleteIfExists(self, stateName: str) -> None:
        self.declared.pop(stateName, None)

    def _asked(self, name: str, kind: Any, schema: Any, keys: Any, ttl_ms: int | None) -> Any:
        where = f"state {name!r}"
        if ttl_ms is not None and self._time_mode != "processingtime":
            raise StateTypeError(
                f"{where} has a TTL, which Spark counts in processing time: use "
                'time_mode="processingTime"'
            )
        values = SqlValues(parsed_schema(schema, where), where, name)
        if keys is not None:
            key_name = f"{name}_entry"
            keys = SqlValues(parsed_schema(keys, f"{where}, key"), f"{where}, key", key_name)
        self.declared[name] = Declared(name, kind, values, keys, ttl_ms)
        return _NotYet(name)


class _NotYet:
    """A state of no key: there is one only when rows are handled."""

    def __init__(self, state: str) -> None:
        self._state = state

    def __getattr__(self, name: str) -> Any:
        raise StateTypeError(
            f"init() asks for state {self._state!r} and uses it, but there is no key then: use it "
            "in handleInputRows() and handleExpiredTimer()"
        )


class _Calls:
    """What is called with the rows of a key: a processor's `handleInputRows`.

    Parameters:
        name: of the operator.
        packed: the processor, pickled.
        declared: the states that it asks for.
        outputs: the schema of what it yields.
        time_mode: whether there are timers, and by which clock.
        key: names of the columns that rows are grouped by.
    """

    def __init__(
        self,
        name: str,
        packed: bytes,
        declared: dict[str, Declared],
        outputs: sql.StructType,
        time_mode: TimeMode,
        key: tuple[str, ...],
    ) -> None:
        self.__name__ = name
        self.__doc__ = None
        self.packed = packed
        self.declared = declared
        self.outputs = outputs
        self.time_mode = time_mode
        self._row = Row(*key)
        self._context: Context | None = None
        self._processor: Any = None

    @property
    def __signature__(self) -> inspect.Signature:
        return _signature("rows", self.declared)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_context": None, "_processor": None, "_now": None}

    def __call__(self, rows: Iterator[Any], context: Context, *states: Any) -> Any:
        if context is not self._context:
            self._begin(context, states)
        return self._processor.handleInputRows(_key(context), rows, self._now)

    def expired(self, timer: Timer, context: Context, states: Any) -> Any:
        """The same for a timer that is due."""
        if context is not self._context:
            self._begin(context, states)
        at = datetime_to_micros(timer.at) // 1000
        info = spark.ExpiredTimerInfo(at)
        self._handle.ringing = at
        yield from (
            self._processor.handleExpiredTimer(
                key=self._row(*_key(context)), timerValues=self._now, expiredTimerInfo=info
            )
            or ()
        )
        self._handle.deleteTimer(at)  # also if it was registered anew, as in Spark

    def end(self, context: Context) -> None:
        """Close the processor of a shard."""
        if context is self._context:
            self._processor.close()
            self._context = self._processor = None

    def _begin(self, context: Context, states: Any) -> None:
        """Make a processor for a shard."""
        self._context = context
        self._now = spark.TimerValues(*now_ms(context, self.time_mode))
        by_name = dict(zip(self.declared, states, strict=True))
        self._handle = Handle(self.declared, by_name, context, self.time_mode)
        self._processor = pickle.loads(self.packed)  # noqa: S301 (the user's own code)
        self._processor.init(self._handle)


class _TimerCalls:
    """What is called with a timer: a processor's `handleExpiredTimer`."""

    def __init__(self, calls: _Calls) -> None:
        self.__name__ = f"{calls.__name__}_expired"
        self.__doc__ = None
        self._calls = calls

    @property
    def __signature__(self) -> inspect.Signature:
        return _signature("timer", self._calls.declared)

    def __call__(self, timer: Timer, context: Context, *states: Any) -> Any:
        return self._calls.expired(timer, context, states)


class ProcessorProcess(Process[Any, Any, Any]):
    """A process function that calls a stateful processor of Spark's. Made by `process_of`."""

    takes_runs = True
    timers_join = False

    def __init__(
        self,
        fn: Any,
        key: tuple[str, ...],
        hints: dict[str, Any],
        event_time: str | None = None,
        lateness_us: int = 0,
        ordered: bool = False,
        hooks: Any = None,
    ) -> None:
        super().__init__(fn, key, hints, event_time, lateness_us, ordered, hooks)
        self._calls: _Calls = fn
        self.output_type = RowOutputs.of_schema(fn.outputs)
        self.late_by = "before" if fn.time_mode == "eventtime" else "never"
        if fn.time_mode != "none":
            given = {**hints, "timer": Timer}
            self._callbacks[None] = Signature(_TimerCalls(fn), given, takes="timer")

    @property
    def asked(self) -> Mapping[str, Declared]:
        """The states that the processor asks for, in order."""
        return self._calls.declared

    @property
    def time_mode(self) -> TimeMode:
        """Whether there are timers, and by which clock."""
        return self._calls.time_mode

    def ended(self, context: Context) -> None:
        self._calls.end(context)


def process_of(
    processor: spark.StatefulProcessor,
    *,
    key: tuple[str, ...],
    rows: sql.StructType,
    outputs: sql.StructType,
    time_mode: TimeMode,
    event_time: str | None = None,
    lateness_us: int = 0,
) -> ProcessorProcess:
    """A process function that calls a processor.

    Parameters:
        key: names of the columns that rows are grouped by.
        rows, outputs: their schemas.
        event_time, lateness_us: as for `process`.

    Raises:
        StateTypeError: a state cannot be; the message names it.
    """
    packed = cloudpickle.dumps(processor)
    asked = _Asked(time_mode)
    first = pickle.loads(packed)  # noqa: S301 (what was just packed)
    first.init(asked)
    first.close()
    name = type(processor).__name__
    calls = _Calls(name, packed, asked.declared, outputs, time_mode, key)
    hints: dict[str, Any] = {
        "rows": RowRecords.of_schema(rows),
        "context": Context,
        "return": Iterator[RowOutputs.annotation(outputs)],  # type: ignore[misc]
        **{of.name: _annotation(of) for of in asked.declared.values()},
    }
    return ProcessorProcess(calls, key, hints, event_time, lateness_us)


def _annotation(of: Declared) -> Any:
    values = of.values.annotation
    if of.kind == "value":
        annotation: Any = ValueState[values]  # type: ignore[valid-type]
    elif of.kind == "list":
        annotation = ListState[values]  # type: ignore[valid-type]
    else:
        assert of.keys is not None, "it is a map"
        annotation = MapState[of.keys.annotation, values]  # type: ignore[valid-type,name-defined]
    if of.ttl_ms is None:
        return annotation
    return Annotated[annotation, TTL(dt.timedelta(milliseconds=of.ttl_ms), clock="processing")]


def _signature(first: str, declared: dict[str, Declared]) -> inspect.Signature:
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Signature([inspect.Parameter(n, kind) for n in (first, "context", *declared)])


def _key(context: Context) -> tuple[Any, ...]:
    key = context.key
    return key if type(key) is tuple else (key,)
