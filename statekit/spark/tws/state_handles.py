"""The handle and state objects that a processor receives in place of Spark's own."""

from __future__ import annotations

import datetime as dt
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from operator import index
from typing import Any, Literal, NoReturn, TypeVar

from pyspark.errors import PySparkRuntimeError, PySparkValueError
from pyspark.sql import Row
from pyspark.sql.streaming import stateful_processor as spark

from statekit.checkpoint.job_file import Clock
from statekit.errors import StateTypeError
from statekit.functions.context import Context
from statekit.spark.tws.sql_values import SqlValues
from statekit.state.list_state import ListState
from statekit.state.map_state import MapState
from statekit.state.single_row_states import ValueState
from statekit.state.timers import Timers
from statekit.timestamp import MAX_MICROS, MIN_MICROS, datetime_to_micros, instant

T = TypeVar("T")

TimeMode = Literal["none", "processingtime", "eventtime"]

CLOCKS: dict[TimeMode, Clock] = {"processingtime": "processing", "eventtime": "event"}
"""The clock of timers by time mode; a mode without timers is missing."""


Kind = Literal["value", "list", "map"]


@dataclass(frozen=True)
class Declared:
    """A state as a processor declares it.

    Parameters:
        name: its name.
        stored: its name in the checkpoint.
        kind: value, list or map.
        values: types of the values.
        keys: types of the keys of a map.
        ttl_ms: time to live in milliseconds; None without.
    """

    name: str
    stored: str
    kind: Kind
    values: SqlValues
    keys: SqlValues | None = None
    ttl_ms: int | None = None


class StateHandle(spark.StatefulProcessorHandle, ABC):
    """A handle with one generic method for states of all kinds."""

    @abstractmethod
    def _state(self, name: str, kind: Kind, ttl_ms: int | None, *schemas: object) -> Any:
        """Return the object of a state.

        Parameters:
            name: its name.
            kind: value, list or map.
            ttl_ms: time to live in milliseconds; None or 0 without.
            schemas: of the values, and of the keys of a map.
        """

    def getValueState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> Any:
        return self._state(stateName, "value", ttlDurationMs, schema)

    def getListState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> Any:
        return self._state(stateName, "list", ttlDurationMs, schema)

    def getMapState(
        self, stateName: str, userKeySchema: Any, valueSchema: Any, ttlDurationMs: int | None = None
    ) -> Any:
        return self._state(stateName, "map", ttlDurationMs, valueSchema, userKeySchema)


@dataclass(eq=False, repr=False)
class Handle(StateHandle):
    """The handle that a processor's `init` gets, and keeps.

    Parameters:
        declared: the states that it declared when the job was built.
        deleted: the states that it deletes.
        states: the states of the running shard, by name.
        context: of that shard.
        time_mode: of the processor.
    """

    declared: Mapping[str, Declared]
    deleted: Collection[str]
    states: Mapping[str, Any]
    context: Context
    time_mode: TimeMode
    _fired_ms: int | None = None
    """The timer that is being handled. It is listed until its handler has ended."""
    _is_firing: bool = False
    _fired_key: Any = None
    _deleted_timers: set[int] = field(default_factory=set)
    """Timers that were deleted while the timers of `_fired_key` were handled. They still fire."""

    def start_timer(self, at_ms: int, key: Any) -> None:
        """Start to handle a timer of a key."""
        if key != self._fired_key:
            self._fired_key = key
            self._deleted_timers.clear()
        self._fired_ms = None if at_ms in self._deleted_timers else at_ms
        self._is_firing = True

    def end_timer(self, at_ms: int) -> None:
        """End the handling of a timer. The timer is deleted even if it was registered again, as in
        Spark.
        """
        self.deleteTimer(at_ms)
        self._is_firing = False

    def _state(self, name: str, kind: Kind, ttl_ms: int | None, *schemas: object) -> Any:
        if name in self.deleted:
            return _Deleted(name, "map" if kind == "map" else "value")  # so Spark calls a list
        declared = self.declared.get(name)
        if declared is None or declared.kind != kind:
            raise StateTypeError(
                f"the processor declares a {kind} state {name!r}, and did not when the job was "
                "built: init() has to declare the same states each time it is called"
            )
        return _OF_KIND[kind](self.states[name], declared)

    def registerTimer(self, expiryTimestampMs: int) -> None:
        timers, clock = self._timers()
        timers.set(_at(expiryTimestampMs), clock=clock)
        self._deleted_timers.discard(expiryTimestampMs)

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        timers, clock = self._timers()
        timers.delete(_at(expiryTimestampMs), clock=clock)
        if self._is_firing:
            self._deleted_timers.add(expiryTimestampMs)
        if expiryTimestampMs == self._fired_ms:
            self._fired_ms = None

    def listTimers(self) -> Iterator[int]:
        timers, clock = self._timers()

        def listed() -> Iterator[int]:
            times = {datetime_to_micros(timer.at) // 1000 for timer in timers.list(clock=clock)}
            return iter(sorted(times if self._fired_ms is None else times | {self._fired_ms}))

        return _at_first_next(listed)

    def _timers(self) -> tuple[Timers, Clock]:
        """Return the timers of the key, and the clock of timers."""
        clock = CLOCKS.get(self.time_mode)
        if clock is None:
            raise PySparkValueError(
                errorClass="UNSUPPORTED_OPERATION",
                messageParameters={"operation": "Timers with TimeMode.None"},
            )
        return self.context.timers, clock

    def deleteIfExists(self, stateName: str) -> None:
        """Do nothing in `init`: the states were deleted when the job was built."""
        if stateName not in self.deleted:
            raise StateTypeError(
                f"the processor deletes state {stateName!r}, and did not when the job was put "
                "together: call deleteIfExists() in init(), and clear() to remove what a key has"
            )


class _Deleted:
    """A state that `init` declares and then deletes. Its use fails with Spark's message."""

    def __init__(self, name: str, kind: str) -> None:
        self._name = name
        self._kind = kind

    def __getattr__(self, method: str) -> Callable[..., NoReturn]:
        doing = _DOING.get(method, "updating {} state").format(self._kind)

        def failing(*given: object) -> NoReturn:
            raise PySparkRuntimeError(f"Error {doing}: init() deletes {self._name!r}")

        return failing


_DOING = {
    "exists": "checking {} state exists",
    "get": "getting {} state",
    "clear": "clearing {} state",
}


def _at(milliseconds: int) -> dt.datetime:
    """Return the due time of a timer as a datetime."""
    micros = index(milliseconds) * 1000
    if not MIN_MICROS <= micros <= MAX_MICROS:
        raise StateTypeError(
            f"a timer at {milliseconds} milliseconds since 1970 is not within the years 1 to 9999: "
            "register none where nothing is to happen"
        )
    return instant(micros)


def now_ms(context: Context, time_mode: TimeMode) -> tuple[int, int]:
    """Return processing time and watermark in milliseconds, in the form for processors."""
    if time_mode == "none":
        return -1, -1
    watermark = datetime_to_micros(context.watermark) // 1000
    return datetime_to_micros(context.processing_time) // 1000, max(watermark, 0)


def _at_first_next(begin: Callable[[], Iterator[T]]) -> Iterator[T]:
    """Return an iterator that reads state when its first element is requested, as in Spark."""
    return chain.from_iterable(begin() for begin in (begin,))


class _State:
    """A state of the running shard. It converts the values of a processor."""

    def __init__(self, state: Any, declared: Declared) -> None:
        self._state = state
        self._stored, self._given = declared.values.stored, declared.values.given

    def exists(self) -> bool:
        return bool(self._state)

    def clear(self) -> None:
        self._state.clear()


class _Value(_State, spark.ValueState):
    _state: ValueState[Any]

    def exists(self) -> bool:
        return self._state.exists()

    def get(self) -> tuple[Any, ...] | None:
        stored = self._state.get()
        return None if stored is None else self._given(stored)

    def update(self, newValue: tuple[Any, ...]) -> None:
        self._state.update(self._stored(newValue))


class _List(_State, spark.ListState):
    _state: ListState[Any]

    def get(self) -> Iterator[tuple[Any, ...]]:
        return _at_first_next(lambda: map(self._given, iter(self._state)))

    def put(self, newState: Iterable[tuple[Any, ...]]) -> None:
        self._state.update(self._none_empty(newState))

    def appendValue(self, newState: tuple[Any, ...]) -> None:
        self._state.append(self._stored(newState))

    def appendList(self, newState: Iterable[tuple[Any, ...]]) -> None:
        self._state.extend(self._none_empty(newState))

    def _none_empty(self, given: Iterable[tuple[Any, ...]]) -> list[Any]:
        stored = [self._stored(value) for value in given]
        if not stored:
            raise StateTypeError(
                "a list state is given an empty list, which Spark refuses as well: call clear() to "
                "remove all of it, or nothing to add nothing"
            )
        return stored


class _Map(_State, spark.MapState):
    _state: MapState[Any, Any]

    def __init__(self, state: Any, declared: Declared) -> None:
        super().__init__(state, declared)
        assert declared.keys is not None, "it is a map"
        self._key, self._given_key = declared.keys.stored, declared.keys.given
        self._given_row = declared.values.given_row

    def getValue(self, key: tuple[Any, ...]) -> Row | None:
        stored = self._state.get(self._key(key))
        return None if stored is None else self._given_row(stored)

    def containsKey(self, key: tuple[Any, ...]) -> bool:
        return self._key(key) in self._state

    def updateValue(self, key: tuple[Any, ...], value: tuple[Any, ...]) -> None:
        self._state[self._key(key)] = self._stored(value)

    def iterator(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        return _at_first_next(lambda: map(self._given_pair, self._state.items()))

    def _given_pair(self, pair: tuple[Any, Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        return self._given_key(pair[0]), self._given(pair[1])

    def keys(self) -> Iterator[tuple[Any, ...]]:
        return _at_first_next(lambda: map(self._given_key, iter(self._state)))

    def values(self) -> Iterator[tuple[Any, ...]]:
        return _at_first_next(lambda: map(self._given, self._state.values()))

    def removeKey(self, key: tuple[Any, ...]) -> None:
        self._state.pop(self._key(key), None)


_OF_KIND: dict[Kind, type[_State]] = {"value": _Value, "list": _List, "map": _Map}
