"""The state types: what a user declares, and what the function is handed.

What lives here: one class per state type. A class is both the annotation a user writes and the
handle that is bound to the key being visited. What does not: who binds (`task`), what a row looks
like in bytes (`codec`), and where rows are kept (`backend`).

Theory of operation. A `Visit` is the stay at one key: it holds the row prefix that all states of
the key share. A state reads a row on first access, keeps what it read while the visit lasts, and
hands its changes to the visit's batch when the key is left. A state that is not touched does
nothing at all. Rows of a state, with P the prefix (key group and encoded key):

    value, reducing, aggregating    P                                  → value
    list                            P + epoch (6 bytes) + number (6)   → element
    map                             P + encoded map key                → map value

A list position is made of the epoch and a running number, so an append needs to know nothing
about the elements that are there: it reads no row.

Ownership. What `get` returns belongs to the caller: changing it changes nothing until it is
written back. Values of immutable types (str, int, frozen dataclasses, …) are decoded once and
handed out as they are. Values of mutable types are decoded anew for every `get` and encoded at
every `update`; that is the cost of the guarantee.
"""

from __future__ import annotations

import sys
from collections.abc import (
    Callable,
    ItemsView,
    Iterable,
    Iterator,
    KeysView,
    MutableMapping,
    Sequence,
    ValuesView,
)
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar, cast, overload

from statekit.backend import Backend, prefix_end
from statekit.codec import ValueCodec
from statekit.errors import StateTypeError
from statekit.key_codec import KeyCodec
from statekit.mutation import Batch

__all__ = [
    "Aggregate",
    "AggregatingState",
    "Default",
    "ListState",
    "MapState",
    "Reduce",
    "ReducingState",
    "State",
    "StateSpec",
    "ValueState",
    "Visit",
]

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")
In = TypeVar("In")
Acc = TypeVar("Acc")
Out = TypeVar("Out")

# A state hands its pending rows on when it holds this many for one key, so that a key with
# millions of elements or entries never sits in memory as a whole.
PENDING_ROWS_MAX = 32_768

POSITION_BYTES = 12


class _Absent:
    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Any = _Absent()
"""Stands for a row that is known not to be there."""


# --------------------------------------------------------------------------------- declarations


@dataclass(frozen=True)
class Default:
    """What an absent `ValueState` reads as: `Annotated[ValueState[int], Default(0)]`."""

    value: Any


@dataclass(frozen=True)
class Reduce:
    """How a `ReducingState` combines its value with a new one.

    Parameters:
        fn: `fn(current, added) -> combined`; or one of the known reducers `sum`, `min`, `max` (the
            builtins, or their names) and `"count"`, which counts what is added.

    >>> Reduce(max).combine(2, 3), Reduce(sum).combine(2, 3), Reduce("count").combine(2, "x")
    (3, 5, 3)
    """

    fn: Callable[[Any, Any], Any] | Literal["sum", "min", "max", "count"]

    @property
    def known(self) -> str | None:
        """`sum`, `min`, `max` or `count` for a known reducer, else None."""
        for name, fn in (("sum", sum), ("min", min), ("max", max), ("count", None)):
            if self.fn == name or (fn is not None and self.fn is fn):
                return name
        return None

    @property
    def combine(self) -> Callable[[Any, Any], Any]:
        """The function of two arguments to call."""
        match self.known:
            case "sum":
                return lambda current, added: current + added
            case "min":
                return lambda current, added: added if added < current else current
            case "max":
                return lambda current, added: added if added > current else current
            case "count":
                return lambda current, added: current + 1
        if not callable(self.fn):
            raise StateTypeError(
                f"Reduce({self.fn!r}) is not a reducer: pass a function of two arguments, or one "
                "of sum, min, max, 'count'"
            )
        return self.fn


@dataclass(frozen=True)
class Aggregate(Generic[In, Acc, Out]):
    """How an `AggregatingState` works.

    Parameters:
        create: makes an empty accumulator.
        add: `add(accumulator, added) -> accumulator`.
        result: what `get` returns for an accumulator.
        merge: combines two accumulators; used when windows merge.
    """

    create: Callable[[], Acc]
    add: Callable[[Acc, In], Acc]
    result: Callable[[Acc], Out]
    merge: Callable[[Acc, Acc], Acc] | None = None


@dataclass(frozen=True)
class StateSpec:
    """A state as declared: its name, its kind, its codecs and its options. Pure data.

    Parameters:
        operator, name: where it is declared and what it is called.
        kind: the class of the handle.
        codec: of values, elements, entries or accumulators.
        key_codec: of map keys; None for other kinds.
        added: codec of what `add` takes, which is checked but never stored; None for other kinds.
        default: of a `ValueState`.
        reduce, aggregate: as declared.
    """

    operator: str
    name: str
    kind: type[State]
    codec: ValueCodec[Any]
    key_codec: KeyCodec[Any] | None = None
    added: ValueCodec[Any] | None = None
    default: Any = None
    reduce: Reduce | None = None
    aggregate: Aggregate[Any, Any, Any] | None = None

    def bind(self, visit: Visit, backend: Backend) -> State:
        """A handle for this state in one shard."""
        return self.kind(self, visit, backend)


class Spill(Protocol):
    """Applies the visit's batch now, so that it can be read and memory is free again."""

    def __call__(self) -> None: ...


@dataclass(slots=True)
class Visit:
    """The stay at one key: what all states of a shard share while a function runs.

    Parameters:
        operator: for messages.
        epoch: list positions start with it.
        batch: where changes go when the key is left.
        spill: applies the batch before the end of the epoch.
        prefix: key group and encoded key, the start of every row of the key.
        key: the key as the user knows it.
        touched: states that hold something about this key.
    """

    operator: str
    epoch: int
    batch: Batch
    spill: Spill
    prefix: bytes = b""
    key: Any = None
    touched: list[State] = field(default_factory=list)

    def leave(self) -> None:
        """Hand all changes of this key to the batch and forget the key."""
        for state in self.touched:
            state._leave()
        self.touched.clear()

    def abandon(self) -> None:
        """Forget the key and its changes."""
        for state in self.touched:
            state._forget()
        self.touched.clear()


# -------------------------------------------------------------------------------------- handles


class State:
    """What all states have in common. Users never make one: the task binds it."""

    __slots__ = ("_accepts", "_backend", "_codec", "_decode", "_encode", "_name", "_spec", "_visit")

    kind_name: ClassVar[str] = ""

    def __init__(self, spec: StateSpec, visit: Visit, backend: Backend) -> None:
        self._spec = spec
        self._name = spec.name
        self._visit = visit
        self._backend = backend
        self._codec = spec.codec
        self._accepts = spec.codec.accepts
        self._encode = spec.codec.encode
        self._decode = spec.codec.decode

    def _leave(self) -> None:
        """Hand changes to the batch and forget the key."""
        raise NotImplementedError

    def _forget(self) -> None:
        """Forget the key and what was changed."""
        raise NotImplementedError

    def _refuse(self, value: object, codec: ValueCodec[Any] | None = None) -> StateTypeError:
        codec = codec or self._codec
        return StateTypeError(
            f"{self._where()} cannot hold {_shown(value)}: its type is {codec.schema}; "
            f"{codec.reason(value)}. Nothing of this epoch is committed: convert the value, "
            "or change the declared type"
        )

    def _unstorable(self, value: object, error: StateTypeError) -> StateTypeError:
        """For a value of the right type that has no bytes, such as an int beyond 64 bits."""
        return StateTypeError(
            f"{self._where()} cannot hold {_shown(value)}: {error}. Nothing of this epoch is "
            "committed"
        )

    def _row(self, value: Any) -> bytes:
        """The bytes of a value; an error if the declared type cannot hold it."""
        if not self._accepts(value):
            raise self._refuse(value)
        try:
            return self._encode(value)
        except StateTypeError as error:
            raise self._unstorable(value, error) from None

    def _where(self) -> str:
        visit = self._visit
        return f"state {self._name!r} of operator {visit.operator!r} at key {visit.key!r}"


class _Single(State):
    """A state with one row per key: read once, written when the key is left."""

    __slots__ = ("_changed", "_immutable", "_loaded", "_read", "_value")

    def __init__(self, spec: StateSpec, visit: Visit, backend: Backend) -> None:
        super().__init__(spec, visit, backend)
        self._read = backend.getter(spec.name)
        self._immutable = spec.codec.immutable
        self._loaded = False
        self._changed = False
        self._value: Any = ABSENT

    def clear(self) -> None:
        """Remove the value of this key."""
        if self._loaded and self._value is ABSENT and not self._changed:
            return
        self._set(ABSENT)

    def _set(self, value: Any) -> None:
        if not self._loaded:
            self._loaded = True
            self._visit.touched.append(self)
        self._value = value
        self._changed = True

    def _leave(self) -> None:
        if self._changed:
            visit = self._visit
            if self._value is ABSENT:
                visit.batch.delete(self._name, visit.prefix)
            else:
                try:
                    row = self._encode(self._value)
                except StateTypeError as error:
                    raise self._unstorable(self._value, error) from None
                visit.batch.put(self._name, visit.prefix, row)
        self._forget()

    def _forget(self) -> None:
        self._loaded = False
        self._changed = False
        self._value = ABSENT


class ValueState(_Single, Generic[T]):
    """One value per key.

    An absent value reads as None, or as the declared `Default`. `update(None)` is an error unless
    the declared type is Optional: use `clear()`.
    """

    # For an immutable type `_value` holds the value itself, for a mutable type its row.
    __slots__ = ("_default", "_default_row")

    kind_name = "value"

    def __init__(self, spec: StateSpec, visit: Visit, backend: Backend) -> None:
        super().__init__(spec, visit, backend)
        self._default = spec.default
        self._default_row = None if spec.default is None else self._encode(spec.default)

    def get(self) -> T | None:
        """The value of this key; None or the declared default if there is none."""
        value = self._value if self._loaded else self._load()
        if value is ABSENT:
            if self._immutable or self._default_row is None:
                return cast("T | None", self._default)
            return cast("T", self._decode(self._default_row))
        return cast("T", value if self._immutable else self._decode(value))

    def update(self, value: T) -> None:
        """Set the value of this key.

        Raises:
            StateTypeError: the declared type cannot hold the value.
        """
        if self._immutable:
            if not self._accepts(value):
                raise self._refuse(value)
            kept: Any = value
        else:
            kept = self._row(value)
        if not self._loaded:
            self._loaded = True
            self._visit.touched.append(self)
        self._value = kept
        self._changed = True

    def exists(self) -> bool:
        """Whether this key has a value."""
        if not self._loaded:
            self._load()
        return self._value is not ABSENT

    @property
    def value(self) -> T | None:
        """The same as `get()` and `update()`, as an attribute."""
        return self.get()

    @value.setter
    def value(self, value: T) -> None:
        self.update(value)

    def _load(self) -> Any:
        visit = self._visit
        row = self._read(visit.prefix)
        self._loaded = True
        visit.touched.append(self)
        if row is not None:
            self._value = self._decode(row) if self._immutable else row
        return self._value

    def _leave(self) -> None:
        if self._changed:
            visit, value = self._visit, self._value
            if value is ABSENT:
                visit.batch.delete(self._name, visit.prefix)
            else:
                try:
                    row = self._encode(value) if self._immutable else value
                except StateTypeError as error:
                    raise self._unstorable(value, error) from None
                visit.batch.put(self._name, visit.prefix, row)
            self._changed = False
        self._loaded = False
        self._value = ABSENT


class _Accumulating(_Single):
    """A single row whose decoded value is owned by the state and changed by `add`."""

    __slots__ = ()

    def _load(self) -> None:
        visit = self._visit
        row = self._read(visit.prefix)
        self._loaded = True
        visit.touched.append(self)
        if row is not None:
            self._value = self._decode(row)

    def _copy(self, value: Any) -> Any:
        """A value that shares nothing mutable with `value`."""
        return value if self._immutable else self._decode(self._encode(value))

    def _spoil(self) -> None:
        """Make sure that the epoch fails, even if the user's function catches the error.

        A mutable value may have been changed halfway by the user's `add` before it failed, and
        there is nothing to go back to.
        """
        if self._immutable:
            return
        where = self._where()

        def refuse(value: Any) -> bytes:
            raise StateTypeError(
                f"{where} was left half changed by an add that failed before: let that error pass"
            )

        self._encode = refuse
        self._changed = True


class ReducingState(_Accumulating, Generic[T]):
    """One value per key that combines everything added: `Annotated[…, Reduce(max)]`."""

    __slots__ = ("_combine", "_counts")

    kind_name = "reducing"

    def __init__(self, spec: StateSpec, visit: Visit, backend: Backend) -> None:
        super().__init__(spec, visit, backend)
        assert spec.reduce is not None
        self._combine = spec.reduce.combine
        self._counts = spec.reduce.known == "count"

    def add(self, value: T) -> None:
        """Combine the value of this key with `value`.

        Raises:
            StateTypeError: the declared type cannot hold `value`, or what the reducer returned.
        """
        if not self._loaded:
            self._load()
        current = self._value
        if self._counts:
            self._value = 1 if current is ABSENT else current + 1
        else:
            if not self._immutable:  # what a reducer returns may share parts with what it is given
                value = self._decode(self._row(value))
            elif not self._accepts(value):
                raise self._refuse(value)
            if current is ABSENT:
                self._value = value
            else:
                try:
                    combined = self._combine(current, value)
                    if not self._accepts(combined):
                        raise self._refuse(combined)
                except BaseException:
                    self._spoil()
                    raise
                self._value = combined
        self._changed = True

    def get(self) -> T | None:
        """The combined value of this key; None if nothing was added."""
        if not self._loaded:
            self._load()
        return None if self._value is ABSENT else cast("T", self._copy(self._value))


class AggregatingState(_Accumulating, Generic[In, Acc, Out]):
    """One accumulator per key: `Annotated[…, Aggregate(create, add, result, merge)]`."""

    __slots__ = ("_added", "_aggregate", "_copies_added")

    kind_name = "aggregating"

    def __init__(self, spec: StateSpec, visit: Visit, backend: Backend) -> None:
        super().__init__(spec, visit, backend)
        assert spec.aggregate is not None
        assert spec.added is not None
        self._aggregate = spec.aggregate
        self._added = spec.added
        # An accumulator that can be changed may keep parts of what is added.
        self._copies_added = not (self._immutable or spec.added.immutable)

    def add(self, value: In) -> None:
        """Add `value` to the accumulator of this key.

        Raises:
            StateTypeError: the declared types cannot hold `value`, or the new accumulator.
        """
        if not self._loaded:
            self._load()
        if not self._added.accepts(value):
            raise self._refuse(value, self._added)
        if self._copies_added:
            value = self._added.decode(self._added.encode(value))
        current = self._aggregate.create() if self._value is ABSENT else self._value
        try:
            accumulated = self._aggregate.add(current, value)
            if not self._accepts(accumulated):
                raise self._refuse(accumulated)
        except BaseException:
            self._spoil()
            raise
        self._value = accumulated
        self._changed = True

    def get(self) -> Out | None:
        """The result for the accumulator of this key; None if nothing was added."""
        if not self._loaded:
            self._load()
        if self._value is ABSENT:
            return None
        return cast("Out", self._aggregate.result(self._copy(self._value)))


class _Rows(State):
    """A state with many rows per key, some of which are in the backend and some still pending."""

    __slots__ = ("_cleared", "_entered")

    def __init__(self, spec: StateSpec, visit: Visit, backend: Backend) -> None:
        super().__init__(spec, visit, backend)
        self._entered = False
        self._cleared = False

    def clear(self) -> None:
        """Remove everything this key holds."""
        self._enter()
        self._drop_pending()
        if not self._cleared and next(self._stored(), None) is not None:
            self._cleared = True

    def _enter(self) -> None:
        if not self._entered:
            self._entered = True
            self._visit.touched.append(self)

    def _stored(self, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Rows of this key that the backend holds and that were not cleared since."""
        if self._cleared:
            return iter(())
        prefix = self._visit.prefix
        return self._backend.scan(self._name, prefix, prefix_end(prefix), reverse=reverse)

    def _leave(self) -> None:
        self._hand_on()
        self._forget()

    def _forget(self) -> None:
        self._drop_pending()
        self._cleared = False
        self._entered = False

    def _spill(self) -> None:
        """Give pending rows to the backend in the middle of a visit."""
        self._hand_on()
        self._visit.spill()
        self._drop_pending()
        self._cleared = False

    def _hand_on(self) -> None:
        if self._cleared:
            prefix = self._visit.prefix
            self._visit.batch.delete_range(self._name, prefix, prefix_end(prefix))
        self._put_pending()

    def _put_pending(self) -> None:
        raise NotImplementedError

    def _drop_pending(self) -> None:
        raise NotImplementedError


class ListState(_Rows, Sequence[T]):
    """An ordered list per key, one row per element.

    Appending reads nothing. Reading streams: a list of any length can be iterated. Iteration sees
    the list as it was when it began. An empty list and no list are the same. None elements are
    refused unless T is Optional.
    """

    __slots__ = ("_appended", "_pending", "_position")

    kind_name = "list"

    def __init__(self, spec: StateSpec, visit: Visit, backend: Backend) -> None:
        super().__init__(spec, visit, backend)
        self._pending: list[bytes] = []
        # Running number of everything appended in this epoch by this shard, whatever the key:
        # it only grows, so positions within one key are in order of appending.
        self._appended = 0
        self._position = visit.epoch.to_bytes(6, "big")

    def append(self, value: T) -> None:
        """Add one element at the end.

        Raises:
            StateTypeError: the declared type cannot hold the element.
        """
        if not self._accepts(value):
            raise self._refuse(value)
        try:
            row = self._encode(value)
        except StateTypeError as error:
            raise self._unstorable(value, error) from None
        if not self._entered:
            self._entered = True
            self._visit.touched.append(self)
        pending = self._pending
        pending.append(row)
        if len(pending) >= PENDING_ROWS_MAX:
            self._spill()

    def extend(self, values: Iterable[T]) -> None:
        """Add elements at the end, in order. One that does not fit ends it; those before it stay.

        Raises:
            StateTypeError: the declared type cannot hold an element.
        """
        for value in values:
            self.append(value)

    def update(self, values: Iterable[T]) -> None:
        """Replace the whole list, or nothing of it if an element does not fit.

        Raises:
            StateTypeError: the declared type cannot hold an element.
        """
        rows = [self._row(value) for value in values]  # may be made from this very list
        self.clear()
        for start in range(0, len(rows), PENDING_ROWS_MAX):
            self._pending = rows[start : start + PENDING_ROWS_MAX]
            if len(self._pending) == PENDING_ROWS_MAX:
                self._spill()

    def get(self) -> list[T]:
        """All elements as a Python list."""
        return list(iter(self))  # list(self) would ask for the length first, which is a scan

    def __iter__(self) -> Iterator[T]:
        decode = self._decode
        stored, pending = self._stored(), self._pending[:]
        return _chained(decode, (row for _, row in stored), pending)

    def __reversed__(self) -> Iterator[T]:
        stored, pending = self._stored(reverse=True), self._pending[::-1]
        return _chained(self._decode, pending, (row for _, row in stored))

    def __len__(self) -> int:
        return sum(1 for _ in self._stored()) + len(self._pending)

    def __bool__(self) -> bool:
        return bool(self._pending) or next(self._stored(), None) is not None

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice):
            return self._slice(index)
        rows = reversed(self) if index < 0 else iter(self)
        found = next(islice(rows, -index - 1 if index < 0 else index, None), ABSENT)
        if found is ABSENT:
            raise IndexError(f"{self._where()} has no element {index}")
        return cast("T", found)

    def index(self, value: object, start: int = 0, stop: int = sys.maxsize) -> int:
        """The first position of an element that equals `value`. Reads the list once."""
        return self.get().index(cast("T", value), start, stop)

    def _slice(self, index: slice) -> list[T]:
        parts = (index.start, index.stop, index.step)
        if any(part is not None and part < 0 for part in parts):
            return self.get()[index]
        return list(islice(iter(self), index.start, index.stop, index.step))

    def __repr__(self) -> str:
        return f"ListState({self.get()!r})"

    def _put_pending(self) -> None:
        if not self._pending:
            return
        visit, name, position = self._visit, self._name, self._position
        put = visit.batch.put
        start = visit.prefix + position
        for number, row in enumerate(self._pending, self._appended):
            put(name, start + number.to_bytes(6, "big"), row)
        self._appended += len(self._pending)

    def _drop_pending(self) -> None:
        self._pending = []


class MapState(_Rows, MutableMapping[K, V]):
    """A map per key, one row per entry.

    Touching one entry reads and writes that entry only. `items()`, `keys()`, `values()` and `scan`
    stream in key order (the order of the type: numbers by value, text by code point) and see the
    map as it was when iteration began. `len` counts by scanning.
    """

    # `_known` maps row keys to what is known of the entry: for an immutable type the value itself,
    # for a mutable type its row, or ABSENT. `_changed` has the row keys to write.
    __slots__ = ("_changed", "_encode_key", "_immutable", "_known", "_last", "_read")

    kind_name = "map"

    def __init__(self, spec: StateSpec, visit: Visit, backend: Backend) -> None:
        super().__init__(spec, visit, backend)
        assert spec.key_codec is not None
        self._encode_key = spec.key_codec.encode
        self._read = backend.getter(spec.name)
        self._immutable = spec.codec.immutable
        self._known: dict[bytes, Any] = {}
        self._changed: dict[bytes, None] = {}
        # The last key asked for, with its row key: `m[k] = m[k] + 1` encodes k once.
        self._last: tuple[Any, bytes] = (ABSENT, b"")

    def __getitem__(self, key: K) -> V:
        found = self._find(key)
        if found is ABSENT:
            raise KeyError(key)
        return cast("V", found if self._immutable else self._decode(found))

    @overload
    def get(self, key: K, default: None = None, /) -> V | None: ...
    @overload
    def get(self, key: K, default: V, /) -> V: ...
    @overload
    def get(self, key: K, default: D, /) -> V | D: ...
    def get(self, key: K, default: Any = None, /) -> Any:
        """The value at `key`, or `default`."""
        found = self._find(key)
        if found is ABSENT:
            return default
        return found if self._immutable else self._decode(found)

    def __contains__(self, key: object) -> bool:
        return self._find(cast("K", key)) is not ABSENT

    def __setitem__(self, key: K, value: V) -> None:
        """Set one entry.

        Raises:
            StateTypeError: the declared types cannot hold the key or the value.
        """
        if self._immutable:
            if not self._accepts(value):
                raise self._refuse(value)
            kept: Any = value
        else:
            kept = self._row(value)
        row_key = self._row_key(key)
        self._known[row_key] = kept
        self._changed[row_key] = None

    def __delitem__(self, key: K) -> None:
        if self._find(key) is ABSENT:
            raise KeyError(key)
        row_key = self._row_key(key)
        self._known[row_key] = ABSENT
        self._changed[row_key] = None

    def __iter__(self) -> Iterator[K]:
        return (key for key, _ in self._pairs(decode=False))

    def __len__(self) -> int:
        return sum(1 for _ in self._rows_between(*self._bounds()))

    def __bool__(self) -> bool:
        return next(self._rows_between(*self._bounds()), None) is not None

    def keys(self) -> KeysView[K]:
        return KeysView(self)

    def items(self) -> ItemsView[K, V]:
        return _StreamedItems(self)

    def values(self) -> ValuesView[V]:
        return _StreamedValues(self)

    def scan(self, lo: K | None = None, hi: K | None = None) -> Iterator[tuple[K, V]]:
        """Entries with `lo <= key < hi` in key order; None leaves that side open."""
        return self._pairs(lo, hi)

    def __repr__(self) -> str:
        return f"MapState({dict(self.items())!r})"

    def _row_key(self, key: K) -> bytes:
        last, row_key = self._last
        if last is key:
            return row_key
        if not self._entered:
            self._entered = True
            self._visit.touched.append(self)
        row_key = self._visit.prefix + self._subkey(key)
        if len(self._known) >= PENDING_ROWS_MAX:
            self._spill()
        self._last = (key, row_key)
        return row_key

    def _subkey(self, key: K) -> bytes:
        try:
            return self._encode_key(key)
        except StateTypeError as error:
            raise StateTypeError(f"{self._where()}, map key {_shown(key)}: {error}") from None

    def _find(self, key: K) -> Any:
        row_key = self._row_key(key)
        found = self._known.get(row_key)
        if found is None and row_key not in self._known:
            row = None if self._cleared else self._read(row_key)
            found = ABSENT if row is None else self._decode(row) if self._immutable else row
            self._known[row_key] = found
        return found

    def _bounds(self, lo: K | None = None, hi: K | None = None) -> tuple[bytes, bytes]:
        prefix = self._visit.prefix
        start = prefix if lo is None else prefix + self._subkey(lo)
        end = prefix_end(prefix) if hi is None else prefix + self._subkey(hi)
        return start, end

    def _pairs(
        self, lo: K | None = None, hi: K | None = None, *, decode: bool = True
    ) -> Iterator[tuple[K, Any]]:
        # Not itself a generator: what is iterated is settled here, not at the first `next`.
        rows = self._rows_between(*self._bounds(lo, hi))
        return self._decoded(rows, len(self._visit.prefix), decode=decode)

    def _decoded(
        self, rows: Iterator[tuple[bytes, Any]], skip: int, *, decode: bool
    ) -> Iterator[tuple[K, Any]]:
        assert self._spec.key_codec is not None
        decode_key = self._spec.key_codec.decode
        for row_key, found in rows:
            key = decode_key(row_key, skip)[0]
            if not decode:
                yield key, None
            elif isinstance(found, _Stored):
                yield key, self._decode(found.row)
            else:
                yield key, found if self._immutable else self._decode(found)

    def _rows_between(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, Any]]:
        """Stored and pending rows merged in key order; pending ones win."""
        self._enter()
        pending = sorted(row_key for row_key in self._changed if start <= row_key < end)
        known = {row_key: self._known[row_key] for row_key in pending}
        stored: Iterator[tuple[bytes, bytes]] = iter(())
        if not self._cleared:
            stored = self._backend.scan(self._name, start, end)
        return _merged(stored, pending, known)

    def _put_pending(self) -> None:
        visit, name, known = self._visit, self._name, self._known
        for row_key in self._changed:
            value = known[row_key]
            if value is ABSENT:
                if not self._cleared:
                    visit.batch.delete(name, row_key)
            else:
                try:
                    row = self._encode(value) if self._immutable else value
                except StateTypeError as error:
                    raise self._unstorable(value, error) from None
                visit.batch.put(name, row_key, row)

    def _drop_pending(self) -> None:
        self._known = {}
        self._changed = {}
        self._last = (ABSENT, b"")


class _Stored:
    """A row as the backend holds it, not decoded."""

    __slots__ = ("row",)

    def __init__(self, row: bytes) -> None:
        self.row = row


class _StreamedItems(ItemsView[K, V]):
    _mapping: MapState[K, V]

    def __iter__(self) -> Iterator[tuple[K, V]]:
        return self._mapping.scan()


class _StreamedValues(ValuesView[V]):
    _mapping: MapState[Any, V]

    def __contains__(self, value: object) -> bool:
        return any(found is value or found == value for found in self)

    def __iter__(self) -> Iterator[V]:
        return (value for _, value in self._mapping.scan())


def _merged(
    stored: Iterator[tuple[bytes, bytes]], pending: list[bytes], known: dict[bytes, Any]
) -> Iterator[tuple[bytes, Any]]:
    waiting = iter(pending)
    upcoming = next(waiting, None)
    for row_key, row in stored:
        while upcoming is not None and upcoming < row_key:
            if known[upcoming] is not ABSENT:
                yield upcoming, known[upcoming]
            upcoming = next(waiting, None)
        if upcoming == row_key:
            if known[row_key] is not ABSENT:
                yield row_key, known[row_key]
            upcoming = next(waiting, None)
        else:
            yield row_key, _Stored(row)
    while upcoming is not None:
        if known[upcoming] is not ABSENT:
            yield upcoming, known[upcoming]
        upcoming = next(waiting, None)


def _chained(
    decode: Callable[[bytes], T], first: Iterable[bytes], second: Iterable[bytes]
) -> Iterator[T]:
    for rows in (first, second):
        for row in rows:
            yield decode(row)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}… ({type(value).__name__})"
