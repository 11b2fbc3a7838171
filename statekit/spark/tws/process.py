"""A Spark stateful processor as a process function.

Spark calls a processor once per key and micro-batch, with all of the key's rows, and then for each
due timer. It creates a new one for each task, so the attributes of a processor do not outlive the
batch. Here each shard gets a copy of the original processor.
"""

from __future__ import annotations

import datetime as dt
import inspect
import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Annotated, Any

import cloudpickle
from pyspark.sql import types as sql
from pyspark.sql.streaming import stateful_processor as spark

from statekit.checkpoint.manifest import ShardPlan
from statekit.errors import StateTypeError
from statekit.functions.context import Context
from statekit.functions.process import Process, Traits
from statekit.functions.signature import Signature
from statekit.keygroup import key_fields
from statekit.spark.tws.grouping_key import GroupingKey
from statekit.spark.tws.pandas_frames import FrameOptions, FrameReader, frames_of, rows_of
from statekit.spark.tws.row_records import Initial, RowOutputs, RowRecords
from statekit.spark.tws.sql_values import SqlValues, parsed_schema, plain_name, widths
from statekit.spark.tws.state_handles import Declared, Handle, TimeMode, now_ms
from statekit.state.list_state import ListState
from statekit.state.map_state import MapState
from statekit.state.options import TTL
from statekit.state.single_row_states import ValueState
from statekit.state.timers import Timer
from statekit.timestamp import datetime_to_micros
from statekit.watermark import BEGINNING


@dataclass(frozen=True)
class InitialInput:
    """The initial state.

    Parameters:
        schema: of its rows.
        key: its grouping key.
    """

    schema: sql.StructType
    key: GroupingKey


class _DeclaredStates(spark.StatefulProcessorHandle):
    """Records the states that a processor declares in `init`, where no state exists yet."""

    def __init__(self, time_mode: TimeMode) -> None:
        self.declared: dict[str, Declared] = {}
        self.deleted: set[str] = set()
        self._time_mode = time_mode

    def getValueState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> Any:
        return self._asked(stateName, "value", schema, None, ttlDurationMs)

    def getListState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> Any:
        return self._asked(stateName, "list", schema, None, ttlDurationMs)

    def getMapState(
        self, stateName: str, userKeySchema: Any, valueSchema: Any, ttlDurationMs: int | None = None
    ) -> Any:
        return self._asked(stateName, "map", valueSchema, userKeySchema, ttlDurationMs)

    def deleteIfExists(self, stateName: str) -> None:
        self.declared.pop(stateName, None)
        self.deleted.add(stateName)

    def registerTimer(self, expiryTimestampMs: int) -> None:
        raise StateTypeError(_NO_KEY.format("a timer"))

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        raise StateTypeError(_NO_KEY.format("a timer"))

    def listTimers(self) -> Iterator[int]:
        raise StateTypeError(_NO_KEY.format("timers"))

    def _asked(self, name: str, kind: Any, schema: Any, keys: Any, ttl_ms: int | None) -> Any:
        where = f"state {name!r}"
        if name in self.deleted:
            raise StateTypeError(
                f"init() deletes {where} and asks for it again, and Spark would empty it in each "
                "batch: leave deleteIfExists() out"
            )
        if name in self.declared:
            raise StateTypeError(
                f"init() asks for {where} twice, and both would be one and the same: give each a "
                "name of its own"
            )
        ttl_ms = ttl_ms or None  # 0 means none, as in Spark
        if ttl_ms is not None and self._time_mode != "processingtime":
            raise StateTypeError(
                f"{where} has a TTL, which Spark counts in processing time: use "
                'time_mode="processingTime"'
            )
        values = SqlValues(parsed_schema(schema, where), where, name)
        if keys is not None:
            key_name = f"{name}_entry"
            of_keys = parsed_schema(keys, f"{where}, key")
            keys = SqlValues(of_keys, f"{where}, key", key_name, as_key=True)
        self.declared[name] = Declared(name, plain_name(name), kind, values, keys, ttl_ms)
        return _NotYet(name)


class _NotYet:
    """A state without a key, before rows are processed."""

    def __init__(self, state: str) -> None:
        self._state = state

    def __getattr__(self, name: str) -> Any:
        raise StateTypeError(_NO_KEY.format(f"state {self._state!r}"))


_NO_KEY = (
    "init() uses {}, but there is no key then: use it in handleInputRows() and handleExpiredTimer()"
)


class _Calls:
    """Calls a processor's `handleInputRows` with the rows of a key.

    Parameters:
        name: of the operator.
        packed: the processor, pickled.
        asked: its declared and deleted states.
        rows, outputs: the schemas of its input and of its output.
        time_mode: whether there are timers, and by which clock.
        key: the grouping key of rows.
    """

    initial: InitialInput | None = None

    def __init__(
        self,
        name: str,
        packed: bytes,
        declared: _DeclaredStates,
        rows: sql.StructType,
        outputs: sql.StructType,
        time_mode: TimeMode,
        key: GroupingKey,
    ) -> None:
        self.__name__ = name
        self.__doc__ = None
        self.packed = packed
        self.declared = declared.declared
        self.deleted = declared.deleted - declared.declared.keys()
        self.rows = rows
        self.outputs = outputs
        self.time_mode = time_mode
        self.key = key
        self._context: Context | None = None
        self._processor: Any = None

    @property
    def __signature__(self) -> inspect.Signature:
        return _signature("_rows", self.declared)

    @property
    def records(self) -> RowRecords:
        """The record type of rows."""
        return RowRecords.of_schema(self.rows, self.key)

    def __getstate__(self) -> dict[str, Any]:
        attributes = {name: value for name, value in vars(self).items() if name not in _OF_A_SHARD}
        return {**attributes, "_context": None, "_processor": None}

    def __call__(self, rows: Iterator[Any], context: Context, *states: Any) -> Any:
        if context is not self._context:
            self._begin(context, states)
        return self._processor.handleInputRows(key_fields(context.key), rows, self._now)

    def expired(self, timer: Timer, context: Context, states: Any) -> Any:
        """Yield the outputs for a due timer."""
        if context is not self._context:
            self._begin(context, states)
        at = datetime_to_micros(timer.at) // 1000
        info = spark.ExpiredTimerInfo(at)
        self._handle.start_timer(at, context.key)
        key = self.key.of_timer(context.key)
        outputs = self._processor.handleExpiredTimer(
            key=key, timerValues=self._now, expiredTimerInfo=info
        )
        yield from self._emitted(outputs or ())
        self._handle.end_timer(at)

    def _emitted(self, outputs: Any) -> Any:
        """Return the rows that the processor yields."""
        return outputs

    def end(self, context: Context) -> None:
        """Close the processor of a shard."""
        if context is self._context:
            self._processor.close()
            self._context = self._processor = None

    def _begin(self, context: Context, states: Any) -> None:
        """Create a processor for a shard."""
        self._context = context
        self._now = spark.TimerValues(*now_ms(context, self.time_mode))
        by_name = dict(zip(self.declared, states, strict=True))
        self._handle = Handle(self.declared, self.deleted, by_name, context, self.time_mode)
        self._processor = pickle.loads(self.packed)  # noqa: S301 (the user's own code)
        self._processor.init(self._handle)


_OF_A_SHARD = frozenset(("_handle", "_now"))


class _KeyedCalls(_Calls):
    """Calls for a key that is read from rows, or with initial state."""

    def __init__(self, *outputs_type: Any, initial: InitialInput | None = None) -> None:
        super().__init__(*outputs_type)
        self.initial = initial

    def __call__(self, rows: Iterator[Any], context: Context, *states: Any) -> Any:
        if context is not self._context:
            self._begin(context, states)
        first = next(rows)
        if type(first) is Initial:
            key, first = self._take_initial(first, rows)
            if first is None:
                return None
        else:
            key = self._key_of(first)
        return self._handled(key, chain((first,), rows))

    def _handled(self, key: tuple[Any, ...], rows: Iterator[Any]) -> Any:
        return self._processor.handleInputRows(key, rows, self._now)

    def _take_initial(self, first: Initial, rows: Iterator[Any]) -> tuple[tuple[Any, ...], Any]:
        """Pass the initial state of a key to the processor. Return the key and the first of its
        other rows.
        """
        key, given, following = self._key_of_initial(first.row), [first.row], None
        for row in rows:
            if type(row) is not Initial:
                following = row
                break
            given.append(row.row)
        for initial in self._initials(iter(given)):
            self._processor.handleInitialState(key, initial, self._now)
        return key, following

    def _initials(self, rows: Iterator[Any]) -> Iterator[Any]:
        return rows

    def _begin(self, context: Context, states: Any) -> None:
        super()._begin(context, states)
        self._key_of = self.key.getter(self.rows.names, self._skipped(self.key))
        if (initial := self.initial) is not None:
            skip = self._skipped(initial.key)
            self._key_of_initial = initial.key.getter(initial.schema.names, skip)

    def _skipped(self, key: GroupingKey) -> int:
        """Return the number of fields before the columns of a row."""
        return len(key.in_front)

    def __getstate__(self) -> dict[str, Any]:
        attributes = super().__getstate__()
        return {name: value for name, value in attributes.items() if not name.startswith("_key_of")}


class _FrameCalls(_KeyedCalls):
    """Calls of a processor that takes frames of pandas."""

    def __init__(
        self, *outputs_type: Any, options: FrameOptions, initial: InitialInput | None = None
    ) -> None:
        super().__init__(*outputs_type, initial=initial)
        self._options = options
        self._rows_of = rows_of(self.outputs, options)

    @property
    def records(self) -> RowRecords:
        return RowRecords.of_schema(self.rows, self.key, reads=partial(FrameReader, self._options))

    def _skipped(self, key: GroupingKey) -> int:
        return 0

    def _handled(self, key: tuple[Any, ...], rows: Iterator[Any]) -> Any:
        frames = frames_of(rows, self._options)
        return self._emitted(self._processor.handleInputRows(key, frames, self._now) or ())

    def _initials(self, rows: Iterator[Any]) -> Iterator[Any]:
        return frames_of(rows, self._options)

    def _emitted(self, outputs: Any) -> Any:
        return self._rows_of(outputs)


class _TimerCalls:
    """Calls a processor's `handleExpiredTimer` with a timer."""

    def __init__(self, calls: _Calls) -> None:
        self.__name__ = f"{calls.__name__}_expired"
        self.__doc__ = None
        self._calls = calls

    @property
    def __signature__(self) -> inspect.Signature:
        return _signature("_timer", self._calls.declared)

    def __call__(self, timer: Timer, context: Context, *states: Any) -> Any:
        return self._calls.expired(timer, context, states)


class ProcessorProcess(Process[Any, Any, Any]):
    """A process function that calls a stateful processor of Spark. Created by `process_of`."""

    takes_runs = True

    def __init__(
        self,
        fn: Any,
        key: tuple[str, ...],
        hints: dict[str, Any],
        event_time: str | None = None,
        lateness_us: int = 0,
        ordered: bool = False,
        hooks: Any = None,
        traits: Traits | None = None,
    ) -> None:
        super().__init__(fn, key, hints, event_time, lateness_us, ordered, hooks, traits)
        self._calls: _Calls = fn
        self.output_type = RowOutputs.of_schema(fn.outputs)
        if fn.time_mode != "none":
            given = {**hints, "_timer": Timer}
            self._callbacks[None] = Signature(_TimerCalls(fn), given, takes="timer")

    @property
    def asked(self) -> Mapping[str, Declared]:
        """The states that the processor declares, in order."""
        return self._calls.declared

    @property
    def deleted(self) -> frozenset[str]:
        """The states that the processor deletes, if they exist."""
        return frozenset(self._calls.deleted)

    @property
    def grouping(self) -> GroupingKey:
        """The grouping key of rows."""
        return self._calls.key

    @property
    def time_mode(self) -> TimeMode:
        """Whether there are timers, and by which clock."""
        return self._calls.time_mode

    def late_us(self, plan: ShardPlan) -> int:
        """Return the watermark of the epoch before, in whole milliseconds, as in Spark."""
        if self._calls.time_mode != "eventtime":
            return BEGINNING - 1
        return plan.reached_us // 1000 * 1000

    @property
    def has_event_timers(self) -> bool:
        return self._calls.time_mode == "eventtime"  # also if event time never advances

    @property
    def initial_records(self) -> RowRecords:
        """The record type of initial state."""
        initial = self._calls.initial
        assert initial is not None, "there is some"
        key, schema = self._calls.key, initial.schema
        expressions = initial.key.as_of(key, schema.names)
        reads = self._calls.records.reads
        return RowRecords.of_schema(
            schema, key, grouped=initial.key, derived=expressions, reads=reads
        )

    def hint(self, error: Exception) -> str:
        if isinstance(error, AttributeError) and not isinstance(self._calls, _FrameCalls):
            return " The processor was given rows: if it takes frames of pandas, say pandas=True."
        return ""

    def ended(self, context: Context) -> None:
        self._calls.end(context)


def process_of(
    processor: spark.StatefulProcessor,
    *,
    key: GroupingKey,
    rows: sql.StructType,
    outputs: sql.StructType,
    time_mode: TimeMode,
    event_time: str | None = None,
    lateness_us: int = 0,
    initial: InitialInput | None = None,
    frames: FrameOptions | None = None,
    row: Any = None,
) -> ProcessorProcess:
    """Return a process function that calls a processor.

    Parameters:
        key: the grouping key of rows.
        rows, outputs: their schemas.
        event_time, lateness_us: as for `process`.
        initial: the initial state, if there is any.
        frames: options for frames of pandas, if it takes those.
        row: the class of rows, after another processor.

    Raises:
        StateTypeError: a state is not valid; the message names it.
    """
    if initial is not None:
        initial.key.as_of(key, initial.schema.names)
    packed = cloudpickle.dumps(processor)
    declared = _DeclaredStates(time_mode)
    first = pickle.loads(packed)  # noqa: S301 (what was just packed)
    first.init(declared)
    first.close()
    arguments = type(processor).__name__, packed, declared, rows, outputs, time_mode, key
    if frames is not None:
        calls: _Calls = _FrameCalls(*arguments, options=frames, initial=initial)
    elif initial is not None or not key.is_plain:
        calls = _KeyedCalls(*arguments, initial=initial)
    else:
        calls = _Calls(*arguments)
    hints: dict[str, Any] = {
        "_rows": calls.records if row is None else replace(calls.records, cls=row),
        "_context": Context,
        "return": Iterator[RowOutputs.annotation(outputs)],  # type: ignore[misc]
        **{of.stored: _annotation(of) for of in declared.declared.values()},
    }
    by_event_time = time_mode == "eventtime"
    traits = Traits(
        widths=dict(chain.from_iterable(map(_widths, declared.declared.values()))),
        timers_join=False,
        # A `Row` is a tuple, a dict and a list of names. A thousand of them stay in the cache of a
        # core, ten thousand do not: a tenth of what an output takes.
        outputs_at_once=1_000,
        settles=by_event_time and event_time is not None,
        earliest_us=0 if by_event_time else BEGINNING,  # as in Spark, 1970
        dropped_states=frozenset(map(plain_name, calls.deleted)),
    )
    return ProcessorProcess(calls, key.columns, hints, event_time, lateness_us, traits=traits)


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


def _widths(of: Declared) -> Iterator[tuple[str, int]]:
    """Yield how many bits the numbers of a state have, by name."""
    yield from widths(of.values.schema, of.name)
    if of.keys is not None:
        yield from widths(of.keys.schema, f"{of.name} by")


def _signature(first: str, declared: dict[str, Declared]) -> inspect.Signature:
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    names = (first, "_context", *(of.stored for of in declared.values()))
    return inspect.Signature([inspect.Parameter(name, kind) for name in names])
