"""Plain-Python models of states and timers, to compare the real ones with.

A model has the contents of a state at one key, and the methods of that state: no rows, no epochs,
no shards. A process function can be called with models in place of its states.
"""

from __future__ import annotations

import copy
import datetime as dt
from collections.abc import (
    Callable,
    ItemsView,
    Iterable,
    Iterator,
    MutableMapping,
    Sequence,
    ValuesView,
)
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, Self, TypedDict, TypeVar, Unpack, cast, overload

from statekit.checkpoint.job_file import Clock
from statekit.checkpoint.state_kinds import RowShape
from statekit.codec.value_codec import ValueCodec
from statekit.errors import StateTypeError
from statekit.functions.process import Process
from statekit.functions.state_parameters import state_spec
from statekit.records.value_order import order_of_value
from statekit.shown import shown
from statekit.state.base import StateSpec
from statekit.state.closed_bounds import ClosedBounds
from statekit.state.options import TTL, Aggregate, Reduce
from statekit.state.timers import Timer
from statekit.timestamp import duration_to_micros

__all__ = [
    "AggregatingModel",
    "ListModel",
    "MapModel",
    "ModelClocks",
    "ReducingModel",
    "StateModel",
    "TimersModel",
    "ValueModel",
    "model_of",
    "models_of",
]

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
In = TypeVar("In")
Acc = TypeVar("Acc")
Out = TypeVar("Out")

Stored = Callable[[Any], Any]
"""A function that returns the stored form of a value, which is a copy."""

_ABSENT: Any = object()


@dataclass
class ModelClocks:
    """Times that models with a TTL read. The caller of the models sets them.

    Parameters:
        processing_time: of the epoch.
        watermark: of the epoch; in a timer's callback, the time of the timer. None before event
            time begins.
        event_time: of the current record or timer; None if it has none.
    """

    processing_time: dt.datetime = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    watermark: dt.datetime | None = None
    event_time: dt.datetime | None = None

    def expires_by(self, clock: Clock) -> dt.datetime | None:
        """Return the time up to which state expires; None before event time begins."""
        return self.processing_time if clock == "processing" else self.watermark

    def writes_at(self, clock: Clock) -> dt.datetime | None:
        """Return the write time of a value that is written now; None before event time begins."""
        if clock == "processing":
            return self.processing_time
        return self.watermark if self.event_time is None else self.event_time


@dataclass
class _Cell:
    """A value, a list element or a map entry, with its write time: None if it never expires."""

    value: Any
    written: dt.datetime | None


class _Options(TypedDict, total=False):
    """Options of all models, as for `StateModel`."""

    ttl: TTL | None
    clocks: ModelClocks | None
    stored: Stored


class StateModel:
    """The common part of all models: cells that expire.

    Values are copied when they are written and when they are read.

    Parameters:
        ttl: the TTL of cells; None if they do not expire.
        clocks: the clocks of the TTL.
        stored: returns the stored form of a value; a deep copy by default.
    """

    def __init__(
        self,
        *,
        ttl: TTL | None = None,
        clocks: ModelClocks | None = None,
        stored: Stored = copy.deepcopy,
    ) -> None:
        self.clocks = ModelClocks() if clocks is None else clocks
        self._ttl = ttl
        self._stored = stored
        self._cells: dict[Any, _Cell] = {}
        self._lent: list[tuple[_Cell, Any]] | None = None

    def lend(self) -> None:
        """Record the values that are read from now on, for `write_changes`."""
        self._lent = []

    def write_changes(self) -> None:
        """Write the changes of values that were read since `lend`, unless the state was written."""
        for cell, lent in self._lent or ():
            cell.value = self._stored(lent)
        self._lent = None

    def clear(self) -> None:
        """Remove all cells."""
        self._lent = None
        self._cells.clear()

    def saved(self) -> Any:
        """Return a copy of the contents, for `restore`."""
        return copy.deepcopy(self._cells)

    def restore(self, saved: Any) -> None:
        """Take back all changes since `saved`."""
        self._lent = None
        self._cells = saved

    def plain(self) -> Any:
        """Return the state as plain Python, as `Harness.state` does. This is no read: it does not
        restart a TTL.
        """
        raise NotImplementedError

    @property
    def complete_since(self) -> dt.datetime | None:
        """Time from which on the state is complete; None, since it always is."""
        return None

    @property
    def handle(self) -> Self:
        """The object that the function gets."""
        return self

    def _present(self) -> dict[Any, _Cell]:
        """Return the cells that have not expired."""
        if self._ttl is None:
            return self._cells
        now = self.clocks.expires_by(self._ttl.clock)
        return {
            place: cell for place, cell in self._cells.items() if not _is_over(cell, self._ttl, now)
        }

    def _write(self, place: Any, value: Any) -> None:
        """Write a cell. In event time it keeps the latest write time."""
        self._lent = None
        value = self._stored(value)
        before = self._present().get(place)
        self._cells[place] = _Cell(value, self._write_time(before))

    def _write_time(self, before: _Cell | None) -> dt.datetime | None:
        if self._ttl is None:
            return None
        now = self.clocks.writes_at(self._ttl.clock)
        if now is None or before is None or before.written is None:
            return now
        return max(now, before.written)

    def _set_lifetime(self, place: Any, lifetime: dt.timedelta | None) -> bool:
        """Set when a cell expires, and return whether it exists."""
        cell = self._present().get(place)
        if cell is None:
            return False
        assert self._ttl is not None
        duration = dt.timedelta(microseconds=duration_to_micros(self._ttl.duration, "TTL"))
        now = self.clocks.writes_at(self._ttl.clock)
        if now is None:
            cell.written = None
        elif lifetime is None:
            cell.written = dt.datetime.max.replace(tzinfo=dt.UTC) - 2 * duration
        else:
            cell.written = now + lifetime - duration
        if place not in self._present():
            del self._cells[place]
        return True

    def _read(self, cell: _Cell) -> Any:
        """Return a copy of the value of a cell, and restart its TTL if reads do."""
        if self._ttl is not None and self._ttl.refresh == "read" and cell.written is not None:
            cell.written = self._write_time(cell)
        value = copy.deepcopy(cell.value)
        if self._lent is not None:
            self._lent.append((cell, value))
        return value


def _is_over(cell: _Cell, ttl: TTL, now: dt.datetime | None) -> bool:
    if cell.written is None or now is None:
        return False
    duration = dt.timedelta(microseconds=duration_to_micros(ttl.duration, "TTL(duration)"))
    return now - cell.written >= duration


# ------------------------------------------------------------------------------- one value per key


class _OneCellModel(StateModel, Generic[Out]):
    """A model with one value."""

    def exists(self) -> bool:
        """Return whether there is a value."""
        return None in self._present()

    def get(self) -> Out | None:
        """Return the value, or the result for the accumulator. Return the default, or None, if
        there is none.
        """
        cell = self._present().get(None)
        return self._result(_ABSENT if cell is None else self._read(cell))

    def plain(self) -> Out | None:
        """Return the same as `get`. This is no read."""
        return self._result(self._plain())

    def _plain(self) -> Any:
        """Return a copy of the value without a read, `_ABSENT` for none."""
        cell = self._present().get(None)
        return _ABSENT if cell is None else copy.deepcopy(cell.value)

    def _result(self, value: Any) -> Out | None:
        """Return the result for a value, which may be `_ABSENT`."""
        return None if value is _ABSENT else cast("Out", value)


class ValueModel(_OneCellModel[T]):
    """The model of a `ValueState`, and of an `OperatorState` in one shard.

    Parameters:
        default: of an absent value.
        ttl, clocks, stored: as for `StateModel`.

    >>> seen = ValueModel(default=0)
    >>> seen.value += 1
    >>> seen.get(), seen.exists()
    (1, True)
    """

    def __init__(self, default: T | None = None, **options: Unpack[_Options]) -> None:
        super().__init__(**options)
        self._default = None if default is None else self._stored(default)

    def update(self, value: T) -> None:
        """Set the value."""
        self._write(None, value)

    def expire_in(self, lifetime: dt.timedelta | None) -> bool:
        """Set when the value expires. See `ValueState.expire_in`."""
        return self._set_lifetime(None, lifetime)

    @property
    def value(self) -> T | None:
        """The value as an attribute: `get()` when read, `update()` when set."""
        return self.get()

    @value.setter
    def value(self, value: T) -> None:
        self.update(value)

    def _result(self, value: Any) -> T | None:
        return copy.deepcopy(self._default) if value is _ABSENT else cast("T", value)


class ReducingModel(_OneCellModel[T]):
    """The model of a `ReducingState`.

    Parameters:
        reduce: as declared.
        ttl, clocks, stored: as for `StateModel`.

    >>> largest = ReducingModel[int](Reduce(max))
    >>> for number in (2, 7, 5):
    ...     largest.add(number)
    >>> largest.get()
    7
    """

    def __init__(self, reduce: Reduce, **options: Unpack[_Options]) -> None:
        super().__init__(**options)
        self._reduce = reduce

    def add(self, value: T) -> None:
        """Combine the value with another one."""
        current = self._plain()
        if self._reduce.known == "count":
            self._write(None, 1 if current is _ABSENT else current + 1)
        else:
            added = self._stored(value)
            self._write(None, added if current is _ABSENT else self._reduce.combine(current, added))


class AggregatingModel(_OneCellModel[Out], Generic[In, Acc, Out]):
    """The model of an `AggregatingState`.

    Parameters:
        aggregate: as declared.
        ttl, clocks, stored: as for `StateModel`; `stored` is that of accumulators.
        stored_input: the same for the values that are added.

    >>> mean = Aggregate(list[int], lambda held, n: [*held, n], lambda held: sum(held) / len(held))
    >>> model = AggregatingModel(mean)
    >>> model.add(3)
    >>> model.add(4)
    >>> model.get()
    3.5
    """

    def __init__(
        self,
        aggregate: Aggregate[In, Acc, Out],
        *,
        stored_input: Stored = copy.deepcopy,
        **options: Unpack[_Options],
    ) -> None:
        super().__init__(**options)
        self._aggregate = aggregate
        self._stored_input = stored_input

    def add(self, value: In) -> None:
        """Add a value to the accumulator."""
        current, added = self._plain(), self._stored_input(value)
        accumulator = self._aggregate.create() if current is _ABSENT else current
        self._write(None, self._aggregate.add(accumulator, added))

    def _result(self, accumulator: Any) -> Out | None:
        return None if accumulator is _ABSENT else self._aggregate.result(accumulator)


# ------------------------------------------------------------------------------ many cells per key


class ListModel(StateModel, Sequence[T]):
    """The model of a `ListState`, and of an `OperatorListState` in one shard.

    An iterator sees the list as it was when the iteration began. A read of an element also reads
    the elements before it; with a negative index, those behind it.

    Parameters:
        ttl, clocks, stored: as for `StateModel`.

    >>> pages = ListModel[str]()
    >>> pages.extend(["/", "/cart"])
    >>> pages.append("/pay")
    >>> list(pages), pages[-1], len(pages)
    (['/', '/cart', '/pay'], '/pay', 3)
    """

    _appended = 0

    def append(self, value: T) -> None:
        """Add one element at the end."""
        self._write(self._appended, value)
        self._appended += 1

    def extend(self, values: Iterable[T]) -> None:
        """Add elements at the end, in order."""
        for value in values:
            self.append(value)

    def update(self, values: Iterable[T]) -> None:
        """Replace the whole list."""
        stored = list(map(self._stored, values))  # may be made from this very list
        self.clear()
        self.extend(stored)

    def get(self) -> list[T]:
        """Return all elements as a Python list."""
        return list(iter(self))

    def __iter__(self) -> Iterator[T]:
        return map(self._read, list(self._present().values()))

    def __reversed__(self) -> Iterator[T]:
        return map(self._read, list(self._present().values())[::-1])

    def __len__(self) -> int:
        return len(self._present())

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice):
            return self._slice(index)
        elements = reversed(self) if index < 0 else iter(self)
        element = next(islice(elements, -index - 1 if index < 0 else index, None), _ABSENT)
        if element is _ABSENT:
            raise IndexError(f"the list has no element {index}")
        return cast("T", element)

    def _slice(self, index: slice) -> list[T]:
        parts = (index.start, index.stop, index.step)
        if any(part is not None and part < 0 for part in parts):
            return self.get()[index]
        return list(islice(iter(self), *parts))

    def index(self, value: object, start: int = 0, stop: int | None = None) -> int:
        """Return the first position of an element that equals `value`. Reads the whole list."""
        elements = self.get()
        return elements.index(cast("T", value), start, len(elements) if stop is None else stop)

    def plain(self) -> list[T]:
        """Return all elements."""
        return [copy.deepcopy(cell.value) for cell in self._present().values()]

    def __repr__(self) -> str:
        return f"ListModel({self.plain()!r})"


class MapModel(StateModel, MutableMapping[K, V]):
    """The model of a `MapState`, and of a `BroadcastState` in one shard.

    Its entries are in the order of their keys. An iterator sees the map as it was when the
    iteration began.

    Parameters:
        ttl, clocks, stored: as for `StateModel`; `stored` is that of values.

    >>> delays = MapModel[int, str]()
    >>> delays.update({3: "late", 1: "on time", 2: "late"})
    >>> list(delays.scan(2)), delays.floor(9), delays.popitem()
    ([(2, 'late'), (3, 'late')], (3, 'late'), (1, 'on time'))
    """

    def __getitem__(self, key: K) -> V:
        return cast("V", self._read(self._present()[key]))

    def __contains__(self, key: object) -> bool:
        return key in self._present()

    def __setitem__(self, key: K, value: V) -> None:
        self._write(key, value)

    def setdefault(self, key: K, default: Any = None) -> Any:
        """Return the value of a key. If it is absent, set `default` and return its stored form."""
        if key not in self:
            self[key] = default
        return self[key]

    def __delitem__(self, key: K) -> None:
        del self._present()[key]  # an expired entry is none
        self._cells.pop(key, None)

    def __iter__(self) -> Iterator[K]:
        return iter([key for key, _ in self._sorted()])

    def __len__(self) -> int:
        return len(self._present())

    def items(self) -> ItemsView[K, V]:
        return _Items(self)

    def values(self) -> ValuesView[V]:
        return _Values(self)

    def scan(
        self,
        lo: K | None = None,
        hi: K | None = None,
        *,
        reverse: bool = False,
        closed: ClosedBounds = "left",
        prefix: Any = None,
        after: K | None = None,
    ) -> Iterator[tuple[K, V]]:
        """Yield the entries of a range in key order. See `MapState.scan`."""
        found = self._between(lo, hi, closed, prefix)
        if after is not None:
            low, high = (None, after) if reverse else (after, None)
            behind = self._between(low, high, "none", None)
            found = [entry for entry in found if entry in behind]
        return ((key, self._read(cell)) for key, cell in (found[::-1] if reverse else found))

    def count(
        self,
        lo: K | None = None,
        hi: K | None = None,
        *,
        closed: ClosedBounds = "left",
        prefix: Any = None,
    ) -> int:
        """Return the number of entries in a range. See `MapState.count`."""
        return len(self._between(lo, hi, closed, prefix))

    def remove_range(
        self,
        lo: K | None = None,
        hi: K | None = None,
        *,
        closed: ClosedBounds = "left",
        prefix: Any = None,
    ) -> int:
        """Remove the entries in a range, and return their number."""
        return self._remove_all(self._between(lo, hi, closed, prefix))

    def trim(self, most: int) -> int:
        """Remove all entries but those with the `most` greatest keys, and return the number of
        removed ones.
        """
        return self._remove_all(self._sorted()[::-1][most:])

    def expire_in(self, key: K, lifetime: dt.timedelta | None) -> bool:
        """Set when an entry expires. See `MapState.expire_in`."""
        return self._set_lifetime(key, lifetime)

    def _remove_all(self, entries: list[tuple[K, _Cell]]) -> int:
        for key, _ in entries:
            del self._cells[key]
        return len(entries)

    def _between(
        self, lo: K | None, hi: K | None, closed: ClosedBounds, prefix: Any
    ) -> list[tuple[K, _Cell]]:
        low, high = (None if of is None else order_of_value(of) for of in (lo, hi))
        found = []
        for key, cell in self._sorted():
            place = order_of_value(key)
            is_from = low is None or place > low or (place == low and closed in ("left", "both"))
            is_to = high is None or place < high or (place == high and closed in ("right", "both"))
            if is_from and is_to and _begins_with(key, prefix):
                found.append((key, cell))
        return found

    def floor(self, key: K) -> tuple[K, V] | None:
        """Return the entry with the greatest key that is at or below `key`; None without one."""
        below = [
            (own, cell)
            for own, cell in self._sorted()
            if order_of_value(own) <= order_of_value(key)
        ]
        return (below[-1][0], self._read(below[-1][1])) if below else None

    def plain(self) -> dict[K, V]:
        """Return all entries in the order of their keys."""
        return {key: copy.deepcopy(cell.value) for key, cell in self._sorted()}

    def _sorted(self) -> list[tuple[K, _Cell]]:
        return sorted(self._present().items(), key=lambda entry: order_of_value(entry[0]))

    def __repr__(self) -> str:
        return f"MapModel({self.plain()!r})"


def _begins_with(key: Any, prefix: Any) -> bool:
    """Return whether a key begins with a text, with bytes, or with the first parts of a tuple."""
    if isinstance(key, str | bytes) and prefix is not None:
        return key.startswith(prefix)
    return prefix is None or key[: len(prefix)] == prefix


class _Items(ItemsView[K, V]):
    _mapping: MapModel[K, V]

    def __iter__(self) -> Iterator[tuple[K, V]]:
        return self._mapping.scan()


class _Values(ValuesView[V]):
    _mapping: MapModel[Any, V]

    def __contains__(self, value: object) -> bool:
        return any(own is value or own == value for own in self)

    def __iter__(self) -> Iterator[V]:
        return (value for _, value in self._mapping.scan())


# ---------------------------------------------------------------------------------------- timers


class TimersModel:
    """The model of the timers of a key: a set.

    >>> noon = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
    >>> timers = TimersModel()
    >>> timers.set(noon, "closes")
    >>> timers.replace(noon + dt.timedelta(hours=1), "closes")
    >>> timers.take_due(noon, noon) is None
    True
    >>> timers.take_due(noon + dt.timedelta(hours=2), noon).at.hour
    13
    >>> timers.list()
    []
    """

    def __init__(self) -> None:
        self._timers: set[Timer] = set()

    def set(self, at: dt.datetime, name: str = "default", clock: Clock = "event") -> None:
        """Set a timer."""
        self._timers.add(Timer(at, name, clock))

    def delete(self, at: dt.datetime, name: str = "default", clock: Clock = "event") -> None:
        """Delete a timer; do nothing if it is not set."""
        self._timers.discard(Timer(at, name, clock))

    def replace(self, at: dt.datetime, name: str = "default", clock: Clock = "event") -> None:
        """Set a timer, and delete all others of that name and clock."""
        self._timers.difference_update(self.list(name, clock))
        self.set(at, name, clock)

    def list(self, name: str | None = None, clock: Clock | None = None) -> Sequence[Timer]:
        """Return the timers in the order in which they fire; of one name, of one clock, or all."""
        return [
            timer
            for timer in sorted(self._timers, key=lambda timer: (timer.at, timer.clock, timer.name))
            if name in (None, timer.name) and clock in (None, timer.clock)
        ]

    def saved(self) -> Any:
        """Return a copy of the timers, for `restore`."""
        return self._timers.copy()

    def restore(self, saved: Any) -> None:
        """Take back all changes since `saved`."""
        self._timers = saved

    def take_due(
        self, watermark: dt.datetime | None, processing_time: dt.datetime | None
    ) -> Timer | None:
        """Delete the soonest due timer and return it; None if there is none.

        Parameters:
            watermark, processing_time: the time of each clock; None if none of its timers is due.
        """
        now = {"event": watermark, "processing": processing_time}
        for timer in self.list():
            due_at = now[timer.clock]
            if due_at is not None and timer.at <= due_at:
                self._timers.discard(timer)
                return timer
        return None


# ---------------------------------------------------------------------------------- declarations


def model_of(annotation: Any, clocks: ModelClocks | None = None) -> Any:
    """Return the model of a declared state. It has the declared options, and checks types.

    Parameters:
        annotation: as of a parameter, such as `MapState[str, int]`.
        clocks: the times by which it expires.

    Raises:
        StateTypeError: it declares no state, or one of an object.

    >>> from typing import Annotated
    >>> from statekit.state.options import Default
    >>> from statekit.state.single_row_states import ValueState
    >>> model_of(Annotated[ValueState[int], Default(7)]).get()
    7
    >>> model_of(ValueState[int]).update("text")
    Traceback (most recent call last):
        ...
    statekit.errors.StateTypeError: the model of state 'model' cannot hold 'text': its type is int
    """
    return _model(state_spec("model", "model", annotation), clocks or ModelClocks())


def models_of(process: Process[Any, Any, Any], clocks: ModelClocks | None = None) -> dict[str, Any]:
    """Return a model for each state of a process function, by the names of its parameters.

    Parameters:
        clocks: the times by which they expire.

    Raises:
        StateTypeError: it has a `Checkpointed` object, which is plain Python already.

    >>> from collections.abc import Iterator
    >>> import statekit as sk
    >>> @sk.process(key="word")
    ... def count(record: dict, seen: sk.ValueState[int]) -> Iterator[int]:
    ...     seen.update((seen.get() or 0) + 1)
    ...     yield seen.get() or 0
    >>> models = models_of(count)
    >>> [list(count({"word": "a"}, **models)) for _ in range(2)]
    [[1], [2]]
    """
    clocks = clocks or ModelClocks()
    return {spec.name: _model(spec, clocks) for spec in process.states}


def _model(spec: StateSpec, clocks: ModelClocks) -> StateModel:
    if spec.made is not None:
        raise StateTypeError(
            f"parameter {spec.name!r} is a {spec.made.__name__}, which is plain Python already: "
            "create one in place of a model"
        )
    ttl = None
    if spec.ttl is not None:
        duration = dt.timedelta(microseconds=spec.ttl.duration_us)
        ttl = TTL(duration, spec.ttl.clock, spec.ttl.refresh, spec.ttl.downtime)
    options: dict[str, Any] = {"ttl": ttl, "clocks": clocks}
    options["stored"] = _stored_form(spec.name, spec.codec)
    match spec.kind.shape:
        case RowShape.ELEMENTS:
            return ListModel(**options)
        case RowShape.ENTRIES:
            return MapModel(**options)
    if spec.reduce is not None:
        return ReducingModel(spec.reduce, **options)
    if spec.aggregate is not None:
        assert spec.added is not None
        options["stored_input"] = _stored_form(spec.name, spec.added)
        return AggregatingModel(spec.aggregate, **options)
    return ValueModel(spec.default, **options)


def _stored_form(name: str, codec: ValueCodec[Any]) -> Stored:
    """Return a function that returns the stored form of a value of a type, and refuses others."""

    def stored(value: Any) -> Any:
        if not codec.accepts(value):
            raise StateTypeError(
                f"the model of state {name!r} cannot hold {shown(value)}: its type is "
                f"{codec.schema}"
            )
        return codec.decode(codec.encode(value))

    return stored
