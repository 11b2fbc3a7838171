"""A Spark stateful processor as a process function.

Spark calls a processor once per key and micro-batch, with all of the key's rows, and then for each
due timer. It creates a new one for each task, so the attributes of a processor do not outlive the
batch. Here each shard gets a copy of the original processor.
"""

from __future__ import annotations

import datetime as dt
import inspect
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass, replace
from functools import partial
from itertools import chain
from typing import Annotated, Any

import cloudpickle
import pyarrow as pa
from pyspark.sql import types as sql
from pyspark.sql.streaming import stateful_processor as spark

from statekit.errors import StateTypeError
from statekit.functions.context import Context
from statekit.functions.failed_record import FAILS
from statekit.functions.process import NOTHING_RENAMED, EpochWatermarks, Process, Traits
from statekit.functions.signature import Signature
from statekit.keygroup import key_fields
from statekit.records.keyed_batch import KeyedBatch
from statekit.spark.tws.grouping_key import ColumnNames, Getter, GroupingKey, renamed_columns
from statekit.spark.tws.pandas_frames import FrameOptions, FrameReader, frames_of, rows_of
from statekit.spark.tws.row_records import Initial, RowOutputs, RowRecords
from statekit.spark.tws.sql_values import SqlValues, parsed_schema, plain_name, widths
from statekit.spark.tws.state_handles import Declared, Handle, Kind, StateHandle, TimeMode, now_ms
from statekit.spark.worker.rows import AnyProcess, Batches, UnionRows
from statekit.state.list_state import ListState
from statekit.state.map_state import MapState
from statekit.state.options import TTL
from statekit.state.single_row_states import ValueState
from statekit.state.timers import Timer
from statekit.timestamp import datetime_to_micros
from statekit.watermark import BEGINNING


class _DeclaredStates(StateHandle):
    """Records the states that a processor declares in `init`. No state exists yet at that time."""

    def __init__(self, time_mode: TimeMode) -> None:
        self.declared: dict[str, Declared] = {}
        self.deleted: set[str] = set()
        self._time_mode = time_mode

    def deleteIfExists(self, stateName: str) -> None:
        self.declared.pop(stateName, None)
        self.deleted.add(stateName)

    def registerTimer(self, expiryTimestampMs: int) -> None:
        raise StateTypeError(_NO_KEY.format("a timer"))

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        raise StateTypeError(_NO_KEY.format("a timer"))

    def listTimers(self) -> Iterator[int]:
        raise StateTypeError(_NO_KEY.format("timers"))

    def _state(self, name: str, kind: Kind, ttl_ms: int | None, *schemas: object) -> Any:
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
        values, *keys = schemas
        value_types, key_types = SqlValues(parsed_schema(values, where), where, name), None
        if keys:
            of_keys = parsed_schema(keys[0], f"{where}, key")
            key_types = SqlValues(of_keys, f"{where}, key", f"{name}_entry", as_key=True)
        self.declared[name] = Declared(name, plain_name(name), kind, value_types, key_types, ttl_ms)
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


class StateFunction:
    """A function with generated parameters: the first one, the context, and states.

    Parameters:
        name: its name.
        first: the name of its first parameter.
        declared: the states.
    """

    def __init__(self, name: str, first: str, declared: Mapping[str, Declared]) -> None:
        self.__name__ = name
        self.__doc__ = None
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        names = (first, "_context", *(of.stored for of in declared.values()))
        self.__signature__ = inspect.Signature([inspect.Parameter(each, kind) for each in names])


@dataclass(eq=False, repr=False)
class ProcessorCalls(StateFunction):
    """Calls a processor with the rows of a key, and with its timers.

    Parameters:
        processor: the original, of which each shard gets a copy.
        outputs: the schema of its output.
        time_mode: whether there are timers, and by which clock.
        key: the grouping key of rows.
        event_time: the column of rows with event time; None without.
        lateness_us: how far event time may lag behind, in microseconds.
        initial: the grouping key of the initial state, if there is any.
        frames: options for frames of pandas, if it takes those.

    Attributes:
        packed: the processor, pickled.
        declared: the states that it declares, by name and in order.
        deleted: the states that it deletes, if they exist.
        records: the record type of rows.

    Raises:
        StateTypeError: a state, or the key of the initial state, is not valid.
    """

    processor: InitVar[spark.StatefulProcessor]
    outputs: sql.StructType
    time_mode: TimeMode
    key: GroupingKey
    event_time: str | None = None
    lateness_us: int = 0
    initial: GroupingKey | None = None
    frames: FrameOptions | None = None

    def __post_init__(self, processor: spark.StatefulProcessor) -> None:
        if self.initial is not None:
            self.initial.as_of(self.key)
        self.packed = cloudpickle.dumps(processor)
        handle = _DeclaredStates(self.time_mode)
        first = pickle.loads(self.packed)  # noqa: S301 (what was just packed)
        first.init(handle)
        first.close()
        self.declared = handle.declared
        self.deleted = frozenset(handle.deleted - handle.declared.keys())
        super().__init__(type(processor).__name__, "_rows", self.declared)
        self._running: Running | None = None

    @property
    def records(self) -> RowRecords:
        reads = None if self.frames is None else partial(FrameReader, self.frames)
        return RowRecords.grouped(self.key, reads=reads)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_running": None}

    def __call__(self, rows: Iterator[Any], context: Context, *states: Any) -> Any:
        running = self._running
        if running is None or context is not running.context:
            running = self.running_in(context, states)
        if running.key_of is None:
            return running.processor.handleInputRows(key_fields(context.key), rows, running.now)
        return running.handle_rows(rows, running.key_of)

    def running_in(self, context: Context, states: Sequence[Any]) -> Running:
        """Return the processor of a shard. The first call creates it."""
        if self._running is None or context is not self._running.context:
            self._running = Running(self, context, states)
        return self._running

    def end(self, context: Context) -> None:
        """Close the processor of a shard."""
        if self._running is not None and context is self._running.context:
            self._running.processor.close()
            self._running = None


class Running:
    """The processor of a shard in one epoch.

    Attributes:
        context: of the shard.
        processor: the copy of the processor.
        now: the clocks, as the processor reads them.
        key_of: reads the key from a row; None if the stored key is the processor's.
    """

    def __init__(self, calls: ProcessorCalls, context: Context, states: Sequence[Any]) -> None:
        self.context = context
        self.now = spark.TimerValues(*now_ms(context, calls.time_mode))
        by_name = dict(zip(calls.declared, states, strict=True))
        self._handle = Handle(calls.declared, calls.deleted, by_name, context, calls.time_mode)
        self.processor: Any = pickle.loads(calls.packed)  # noqa: S301 (the user's own code)
        self.processor.init(self._handle)
        self._key, self._frames = calls.key, calls.frames
        self._rows_of = None if calls.frames is None else rows_of(calls.outputs, calls.frames)
        self.key_of: Getter | None = None
        self._key_of_initial: Getter | None = None
        if calls.frames is not None or calls.initial is not None or calls.key.derived:
            self.key_of = self._getter(calls.key)
        if calls.initial is not None:
            self._key_of_initial = self._getter(calls.initial)

    def _getter(self, key: GroupingKey) -> Getter:
        """Return a function that reads the key from a row, or from a row of a frame."""
        return key.getter(len(key.in_front) if self._frames is None else 0)

    def handle_rows(self, rows: Iterator[Any], key_of: Getter) -> Any:
        """Pass the rows of a key to the processor, after those of the initial state."""
        initial = []
        first = next(rows)
        while type(first) is Initial:
            initial.append(first.row)
            first = next(rows, None)
        if initial:
            assert self._key_of_initial is not None, "there is initial state"
            key = self._key_of_initial(initial[0])
            for given in self._given(iter(initial)):
                self.processor.handleInitialState(key, given, self.now)
            if first is None:
                return None
        else:
            key = key_of(first)
        given = self._given(chain((first,), rows))
        return self._emitted(self.processor.handleInputRows(key, given, self.now))

    def handle_timer(self, at_ms: int) -> Iterator[Any]:
        """Yield the outputs for a due timer of the current key."""
        stored_key = self.context.key
        self._handle.start_timer(at_ms, stored_key)
        outputs = self.processor.handleExpiredTimer(
            key=self._key.of_timer(stored_key),
            timerValues=self.now,
            expiredTimerInfo=spark.ExpiredTimerInfo(at_ms),
        )
        yield from self._emitted(outputs) or ()
        self._handle.end_timer(at_ms)

    def _given(self, rows: Iterator[Any]) -> Iterator[Any]:
        """Return rows in the form that the processor takes."""
        return rows if self._frames is None else frames_of(rows, self._frames)

    def _emitted(self, outputs: Any) -> Any:
        """Return the rows that the processor yields."""
        return outputs if self._rows_of is None else self._rows_of(outputs or ())


class _TimerCalls(StateFunction):
    """Calls a processor's `handleExpiredTimer` with a timer."""

    def __init__(self, calls: ProcessorCalls) -> None:
        super().__init__(f"{calls.__name__}_expired", "_timer", calls.declared)
        self._calls = calls

    def __call__(self, timer: Timer, context: Context, *states: Any) -> Any:
        running = self._calls.running_in(context, states)
        return running.handle_timer(datetime_to_micros(timer.at) // 1000)


class ProcessorProcess(Process[Any, Any, Any]):
    """A process function that calls a stateful processor of Spark. Created by `process_calling`.

    Attributes:
        calls: the function.
    """

    takes_runs = True

    def __init__(
        self, fn: ProcessorCalls, key: tuple[str, ...], hints: dict[str, Any], *options: Any
    ) -> None:
        super().__init__(fn, key, hints, *options)
        self.calls = fn
        self.output_type = RowOutputs.of_schema(fn.outputs)
        if fn.time_mode != "none":
            given = {**hints, "_timer": Timer}
            self._callbacks[None] = Signature(_TimerCalls(fn), given, takes="timer")

    @property
    def field_names(self) -> ColumnNames:
        calls: Any = self.fn
        return ColumnNames(calls.key, self.record_type, self.renamed)

    def late_us(self, plan: EpochWatermarks) -> int:
        """Return the watermark of the last epoch in whole milliseconds, as in Spark."""
        if self.calls.time_mode != "eventtime":
            return BEGINNING - 1
        return plan.reached_us // 1000 * 1000

    @property
    def has_event_timers(self) -> bool:
        return self.calls.time_mode == "eventtime"  # also if event time never advances

    @property
    def initial_records(self) -> RowRecords:
        """The record type of the initial state."""
        initial = self.calls.initial
        assert initial is not None, "there is some"
        return RowRecords.grouped(initial, self.calls.key, self.calls.records.reads)

    def hint(self, error: BaseException) -> str:
        if isinstance(error, AttributeError) and self.calls.frames is None:
            return " The processor was given rows: if it takes frames of pandas, say pandas=True."
        return ""

    def ended(self, context: Context) -> None:
        self.calls.end(context)


class InitialRows(UnionRows):
    """Reads the rows of a processor's first epoch: the initial state, then the input.

    Rows of initial state are wrapped in `Initial`. They count as input and are never late.
    """

    def __init__(self, declared: AnyProcess, batches: Batches, key_groups: int) -> None:
        super().__init__(declared, batches, key_groups, types=(), restores=())
        assert isinstance(declared, ProcessorProcess), "no others have initial state"
        self._types = [declared.initial_records, *declared.record_type.members]
        self._restores = [False] * len(self._types)

    def _batch(self, rows: pa.RecordBatch) -> KeyedBatch:
        return super()._batch(rows)._replace(inputs=())

    def _read(self, slot: int, rows: pa.RecordBatch) -> list[Any]:
        records = super()._read(slot, rows)
        return records if slot else list(map(Initial, records))

    def _times(self, slot: int, rows: pa.RecordBatch, records: list[Any]) -> Sequence[int]:
        return super()._times(slot, rows, records) if slot else [FIRST_TIME_US] * len(records)


FIRST_TIME_US = 1  # in the first epoch of a processor, an event time of 0 would be late


def process_calling(
    calls: ProcessorCalls,
    *,
    row: Any = None,
    renamed: Mapping[str, str] = NOTHING_RENAMED,
    of: type[ProcessorProcess] = ProcessorProcess,
) -> ProcessorProcess:
    """Return a process function that calls a processor.

    Parameters:
        row: the class of rows, after another processor.
        renamed: the present names of columns by the names that they had before.
        of: the class of the process function.
    """
    states = calls.declared.values()
    hints: dict[str, Any] = {
        "_rows": calls.records if row is None else replace(calls.records, cls=row),
        "_context": Context,
        "return": Iterator[RowOutputs.annotation(calls.outputs)],  # type: ignore[misc]
        **{state.stored: _annotation(state) for state in states},
    }
    by_event_time = calls.time_mode == "eventtime"
    traits = Traits(
        widths=dict(chain.from_iterable(map(_widths, states))),
        timers_join=False,
        # A `Row` is a tuple, a dict and a list of names. A thousand of them stay in the cache of a
        # core, ten thousand do not: a tenth of what an output takes.
        outputs_at_once=1_000,
        settles=by_event_time and calls.event_time is not None,
        earliest_us=0 if by_event_time else BEGINNING,  # as in Spark, 1970
        dropped_states=frozenset(map(plain_name, calls.deleted)),
    )
    times = calls.event_time, calls.lateness_us, False, ()
    columns = renamed_columns(calls.key, renamed)
    return of(calls, calls.key.columns, hints, *times, None, columns, FAILS, traits)


_STATES: dict[Kind, Any] = {"value": ValueState, "list": ListState, "map": MapState}


def _annotation(of: Declared) -> Any:
    types = (of.values.annotation,)
    annotation = _STATES[of.kind][types if of.keys is None else (of.keys.annotation, *types)]
    if of.ttl_ms is None:
        return annotation
    return Annotated[annotation, TTL(dt.timedelta(milliseconds=of.ttl_ms), clock="processing")]


def _widths(of: Declared) -> Iterator[tuple[str, int]]:
    """Yield the bit widths of the numbers of a state, by name."""
    yield from widths(of.values.schema, of.name)
    if of.keys is not None:
        yield from widths(of.keys.schema, f"{of.name} by")
