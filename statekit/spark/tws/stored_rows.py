"""Rows in the state store of Spark's `transformWithState`, and the process that imports them.

A row has the columns of the key, the number of the state in the order in which the processor
declares it, a time (the expiry of the row, or the time of a timer), and for each state a column
with its content, which is null for other states. The rows of a list are in the order of its
elements.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial, reduce
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as sql

from statekit.errors import StateSchemaError, StateTypeError
from statekit.functions.context import Context
from statekit.functions.process import Process
from statekit.shown import shown
from statekit.spark.frames.columns import quoted
from statekit.spark.tws.checkpoint import KeptState, TwsCheckpoint
from statekit.spark.tws.grouping_key import GroupingKey
from statekit.spark.tws.process import ProcessorCalls, ProcessorProcess, StateFunction
from statekit.spark.tws.row_records import RowRecords
from statekit.spark.tws.state_handles import CLOCKS, Declared
from statekit.state.timers import Timer
from statekit.timestamp import instant

_STATE = "statekit_state"
_TIME = "statekit_time"
_HELD = "statekit_held_{}".format
_FIXED = (_STATE, _TIME)

# What Spark's source `statestore` calls the parts of its rows.
_ELEMENTS = {"value": "value", "list": "list_element", "map": "user_map_value"}
_ENTRY, _TIMER = "user_map_key", "expiration_timestamp_ms"
_UNEXPIRED, _EXPIRES = "value", "ttlExpirationMs"


def stored_frame(checkpoint: TwsCheckpoint, declared: ProcessorProcess) -> DataFrame:
    """Return all states and timers of a query, in the form that `StoredRows` reads.

    Parameters:
        declared: the processor to import them for.

    Raises:
        StateSchemaError: the query has other states, keys or timers than the processor.
        RestoreError: the query does not have a single `transformWithState`.
        CorruptCheckpointError: Spark cannot read it.
    """
    declared_states, operator = declared.calls.declared, checkpoint.operator
    _check_declared(checkpoint, declared.calls)
    frames = []
    for number, of in enumerate(declared_states.values()):
        if of.name in operator.states:
            rows = checkpoint.rows(stateVarName=of.name, flattenCollectionTypes=True)
            frames.append(_of_state(rows, number, of, checkpoint.url))
    if declared.calls.time_mode != "none":
        rows = checkpoint.rows(readRegisteredTimers=True)
        time = F.col(_TIMER).cast("bigint").alias(_TIME)
        frames.append(rows.select("key", F.lit(len(declared_states)).alias(_STATE), time))
    if not frames:
        raise StateSchemaError(
            f"{checkpoint.url} has none of the states that the processor declares: pass the "
            "processor that wrote them"
        )
    wanted = declared.calls.key.schema
    for frame in frames:
        _check_type(frame.schema["key"].dataType, wanted, "the key", checkpoint.url)
    merged = reduce(partial(DataFrame.unionByName, allowMissingColumns=True), frames)
    columns = [name for name in merged.columns if name not in ("key", *_FIXED)]
    return merged.select("key.*", *_FIXED, *sorted(columns))


def _of_state(rows: DataFrame, number: int, of: Declared, url: str) -> DataFrame:
    value: Any = F.col(_ELEMENTS[of.kind])
    time = F.lit(None).cast("bigint")
    if of.ttl_ms is not None:
        value, time = value[_UNEXPIRED], value[_EXPIRES].cast("bigint")
    parts = [value.alias("value")]
    if of.keys is not None:
        parts.append(F.col(_ENTRY).alias("entry"))
    frame = rows.select(
        "key", F.lit(number).alias(_STATE), time.alias(_TIME), F.struct(*parts).alias(_HELD(number))
    )
    stored = frame.schema[_HELD(number)].dataType
    assert isinstance(stored, sql.StructType)
    _check_type(stored["value"].dataType, of.values.schema, f"state {of.name!r}", url)
    if of.keys is not None:
        what = f"the map keys of state {of.name!r}"
        _check_type(stored["entry"].dataType, of.keys.schema, what, url)
    return frame


# ---------------------------------------------------------------------------------------- checks


def _check_declared(checkpoint: TwsCheckpoint, calls: ProcessorCalls) -> None:
    """Check that a processor declares all states of a query. It may declare more."""
    operator, url = checkpoint.operator, checkpoint.url
    if operator.time_mode != calls.time_mode:
        raise StateSchemaError(
            f"{url} is of a query with time mode {operator.time_mode}, and the job has "
            f"{calls.time_mode}: give it the time_mode that the query has"
        )
    lost = sorted(operator.states.keys() - calls.declared.keys() - calls.deleted)
    if lost:
        raise StateSchemaError(
            f"{url} has {', '.join(map(repr, lost))}, which the processor does not declare: pass "
            "the processor that wrote it. Drop the state after the import"
        )
    for name, of in calls.declared.items():
        wanted = KeptState(name, of.kind, of.ttl_ms is not None)
        stored = operator.states.get(name, wanted)
        if stored != wanted:
            raise StateSchemaError(
                f"state {name!r} is {_shown(stored)} in {url}, and the processor asks for "
                f"{_shown(wanted)}: pass the processor that made it"
            )


def _shown(state: KeptState) -> str:
    return f"a {state.kind} state {'with' if state.expires else 'without'} a TTL"


def _check_type(stored: sql.DataType, wanted: sql.DataType, what: str, url: str) -> None:
    if _bare(stored) != _bare(wanted):
        raise StateSchemaError(
            f"{what} is {stored.simpleString()} in {url}, and {wanted.simpleString()} in the job: "
            "give the job the types that the query has, import, and change them afterwards"
        )


def _bare(of: sql.DataType) -> str:
    """Return a type without nullability and without text lengths."""
    return re.sub(r"\b(var)?char\(\d+\)", "string", of.simpleString())


# ---------------------------------------------------------------------------------------- putting

_Put = Callable[[int, Any], None]
"""Writes a row to state, given its expiry time (or the time of a timer) and its content."""


class _Puts(StateFunction):
    """Writes the rows of a key to state.

    Parameters:
        name: of the process function.
        calls: the processor.
        columns: of the rows.
    """

    def __init__(self, name: str, calls: ProcessorCalls, columns: Sequence[str]) -> None:
        super().__init__(name, "_rows", calls.declared)
        self._declared = calls.declared
        self.time_mode = calls.time_mode
        self._columns = list(columns)
        self._key_size = len(calls.key.types) if calls.key.has_floats else 0
        self._context: Context | None = None
        self._puts: list[tuple[_Put, int]] = []

    def __call__(self, rows: Iterator[Any], context: Context, *states: Any) -> None:
        if context is not self._context:
            self._context = context
            self._puts = list(self._bound(context, states))
        state, time = map(self._columns.index, _FIXED)
        for row in self._of_one_key(rows) if self._key_size else rows:
            put, content = self._puts[row[state]]
            put(row[time], row[content])

    def _of_one_key(self, rows: Iterator[Any]) -> Iterator[Any]:
        """Yield the rows, and check that they have a single key in Spark, where -0.0 and 0.0
        differ.
        """
        first = None
        for row in rows:
            key = row[: self._key_size]
            first = first or key
            if repr(key) != repr(first):
                raise _two_in_one("state of the keys", first, key)
            yield row

    def _bound(self, context: Context, states: Sequence[Any]) -> Iterator[tuple[_Put, int]]:
        """Yield, per state, the function that writes its rows and the number of its column; the
        last pair is for timers.
        """
        for number, (of, state) in enumerate(zip(self._declared.values(), states, strict=True)):
            column = _HELD(number)
            place = self._columns.index(column) if column in self._columns else 0
            yield partial(_put, of, state), place
        if self.time_mode != "none":
            clock = CLOCKS[self.time_mode]
            yield lambda at, _: context.timers.set(instant(at * 1000), clock=clock), 0


def _put(of: Declared, state: Any, expires_ms: int, content: Any) -> None:
    """Write a row of a state as the processor would, at its original write time."""
    if of.ttl_ms is not None:
        state.expiry.write_as_of((expires_ms - of.ttl_ms) * 1000)
    value = of.values.stored(_from_arrow(of.values.schema, content["value"]))
    if of.kind == "value":
        state.update(value)
    elif of.kind == "list":
        state.append(value)
    else:
        assert of.keys is not None, "it is a map"
        entry = of.keys.stored(_from_arrow(of.keys.schema, content["entry"]))
        if entry in state:
            raise _two_in_one(f"state {of.name!r} with the map keys", content["entry"], entry)
        state[entry] = value


def _two_in_one(what: str, one: object, other: object) -> StateTypeError:
    return StateTypeError(
        f"the query has {what} {shown(one)} and {shown(other)}, which are one key in statekit: "
        "remove one of "
        "them in the query. Nothing was imported"
    )


def _from_arrow(of: sql.DataType, value: Any) -> Any:
    """Convert a value of Arrow to the value that a processor would write.

    Arrow returns structs as dicts and maps as lists of pairs, and dicts cannot be keys of a map.
    """
    if value is None:
        return None
    if isinstance(of, sql.StructType):
        return tuple([_from_arrow(field.dataType, value[field.name]) for field in of.fields])
    if isinstance(of, sql.ArrayType):
        return [_from_arrow(of.elementType, one) for one in value]
    if isinstance(of, sql.MapType):
        return {_from_arrow(of.keyType, k): _from_arrow(of.valueType, v) for k, v in value}
    return value


class StoredRows(Process[Any, Any, Any]):
    """Writes rows of Spark's state store to the states of their processor.

    It has the states and timers of the processor's own process function, so what it stores is what
    that one finds. Made by `of`.
    """

    takes_runs = True

    @classmethod
    def of(cls, declared: ProcessorProcess, frame: sql.StructType) -> StoredRows:
        """Return the process function for the rows of `stored_frame`."""
        calls, key = declared.calls, declared.calls.key
        grouped = GroupingKey(frame, [quoted(name) for name in key.schema.names])
        records = RowRecords.grouped(grouped, key)
        annotations = {declared.signature.first: records, "return": None}
        puts = _Puts(declared.name, calls, frame.names)
        process = cls(puts, declared.key, {**declared.signature.hints, **annotations})
        if calls.time_mode != "none":
            process.on_timer(_never_called)
        return process

    @property
    def has_event_timers(self) -> bool:
        return self.fn.time_mode == "eventtime"  # type: ignore[attr-defined,no-any-return]


def _never_called(timer: Timer) -> None:
    """Do nothing. No timer is due in an import, so nothing calls this."""
