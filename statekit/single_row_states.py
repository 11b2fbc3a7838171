"""States with one row per key: value, reducing and aggregating.

What lives here: `ValueState`, `ReducingState`, `AggregatingState`. What does not: how they are
declared (`process`) and combined (`state_options`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

from statekit.backend import Backend
from statekit.errors import CorruptCheckpointError, StateTypeError
from statekit.expiry import PERMANENT, UNWRITTEN
from statekit.state import ABSENT, State, StateSpec
from statekit.visit import Visit

__all__ = ["AggregatingState", "ReducingState", "ValueState"]

T = TypeVar("T")
In = TypeVar("In")
Acc = TypeVar("Acc")
Out = TypeVar("Out")


class SingleRowState(State):
    """A state with one row per key: read once, written when the key is left."""

    # `_stored` is the size of the row in the backend: 0 if there is none, -1 if nobody looked.
    # `_from_row` and `_to_row` turn a row into what `_value` holds, and back. Of a state that
    # expires, `_indexed` says when the row in the backend was written and `_written` when `_value`.
    __slots__ = (
        "_changed",
        "_from_row",
        "_immutable",
        "_indexed",
        "_loaded",
        "_read",
        "_refreshes",
        "_stored",
        "_to_row",
        "_value",
        "_written",
    )

    def __init__(self, spec: StateSpec, visit: Visit, backend: Backend) -> None:
        super().__init__(spec, visit, backend)
        self._read = backend.getter(spec.name, visit.coming)
        self._immutable = spec.codec.immutable
        self._from_row: Callable[[bytes], Any] = self._decode
        self._to_row: Callable[[Any], bytes] = self._encode
        self._loaded = False
        self._changed = False
        self._stored = -1
        self._value: Any = ABSENT
        self._refreshes = self.expiry is not None and self.expiry.refreshes
        self._indexed = self._written = UNWRITTEN

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

    def _load(self) -> Any:
        """Read the row of this key; returns what becomes `_value`."""
        visit = self._visit
        row = self._read(visit.prefix)
        self._loaded = True
        visit.touched.append(self)
        if row is None:
            self._stored = 0
        else:
            self._stored = len(visit.prefix) + len(row)
            try:
                self._value = self._from_row(row) if self.expiry is None else self._unexpired(row)
            except CorruptCheckpointError as error:
                raise self._unreadable(error) from error
        return self._value

    def _unexpired(self, row: bytes) -> Any:
        """What becomes `_value`, for a row that may have a stamp."""
        assert self.expiry is not None
        value, written = self.expiry.read(row)
        self._indexed = self._written = written
        return ABSENT if value is None else self._from_row(value)

    def _note_write(self) -> None:
        """Let the time of the value begin anew."""
        assert self.expiry is not None
        self._written = self.expiry.stamp(self._written)

    def _note_read(self) -> None:
        """The same, for a value that was read."""
        if self._value is not ABSENT and self._written != PERMANENT:
            before = self._written
            self._note_write()
            self._changed = self._changed or self._written != before

    def _age(self) -> None:
        assert self.expiry is not None
        self.expiry.tick()
        if self._loaded and self._value is not ABSENT and self.expiry.is_over(self._written):
            self._value = ABSENT

    def _leave(self) -> None:
        if self._changed:
            visit, value, stored = self._visit, self._value, self._stored
            prefix = visit.prefix
            if stored < 0:  # written without a look at what was there
                before = self._read(prefix)
                stored = 0 if before is None else len(prefix) + len(before)
                if self.expiry is not None and before is not None:
                    self._indexed = self.expiry.split(before)[1]
            if value is ABSENT:
                visit.batch.delete(self._name, prefix)
                self._resized(prefix, stored, None)
                if self.expiry is not None:
                    self.expiry.forget(prefix, self._indexed)
            else:
                try:
                    row = self._to_row(value)
                except StateTypeError as error:
                    raise self._unstorable(value, error) from None
                if self.expiry is not None:
                    row = self.expiry.row(prefix, row, self._indexed, self._written)
                size = visit.batch.put(self._name, prefix, row)
                if not stored:
                    self.rows_added += 1
                self.bytes_added += size - stored
            self._changed = False
        self._loaded = False
        self._stored = -1
        self._value = ABSENT
        if self.expiry is not None:
            self._indexed = self._written = UNWRITTEN


class ValueState(SingleRowState, Generic[T]):
    """One value per key.

    An absent value reads as None, or as the declared `Default`. `update(None)` is an error unless
    the declared type is Optional: use `clear()`.
    """

    # For an immutable type `_value` holds the value itself, for a mutable type its row.
    __slots__ = ("_default", "_default_row")

    kind_name = "value"

    def __init__(self, spec: StateSpec, visit: Visit, backend: Backend) -> None:
        super().__init__(spec, visit, backend)
        if not self._immutable:
            self._from_row = self._to_row = bytes  # gives the very object back
        self._default = spec.default
        self._default_row = None if spec.default is None else self._encode(spec.default)

    def get(self) -> T | None:
        """The value of this key; None or the declared default if there is none."""
        value = self._value if self._loaded else self._load()
        if self._refreshes:
            self._note_read()
        if value is ABSENT:
            if self._immutable or self._default_row is None:
                return self._default  # type: ignore[no-any-return] # cast() takes time here
            return self._decode(self._default_row)  # type: ignore[no-any-return]
        return value if self._immutable else self._decode(value)  # type: ignore[no-any-return]

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
        if self.expiry is not None:
            self._note_write()

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


class _Accumulating(SingleRowState):
    """A single row whose decoded value is owned by the state and changed by `add`."""

    __slots__ = ()

    def _copy(self, value: Any) -> Any:
        """A value that shares nothing mutable with `value`."""
        return value if self._immutable else self._decode(self._encode(value))

    def _spoil(self) -> None:
        """Make sure that the epoch fails, even if the user's function catches the error.

        A mutable value may have been changed halfway by the user's `add` before it failed, and
        there is nothing to go back to.
        """
        if self._immutable or self._value is ABSENT:
            return
        where = self._where()

        def refuse(value: Any) -> bytes:
            raise StateTypeError(
                f"{where} was left half changed by an add that failed before: let that error pass"
            )

        self._to_row = refuse
        self._changed = True

    def _age(self) -> None:
        if self._to_row is self._encode:  # what was half changed has to fail
            super()._age()

    def clear(self) -> None:
        """Remove the value of this key."""
        self._to_row = self._encode  # whatever was half changed is gone
        super().clear()


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
        if self.expiry is not None:
            self._note_write()

    def get(self) -> T | None:
        """The combined value of this key; None if nothing was added."""
        if not self._loaded:
            self._load()
        if self._refreshes:
            self._note_read()
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
        if self.expiry is not None:
            self._note_write()

    def get(self) -> Out | None:
        """The result for the accumulator of this key; None if nothing was added."""
        if not self._loaded:
            self._load()
        if self._refreshes:
            self._note_read()
        if self._value is ABSENT:
            return None
        return cast("Out", self._aggregate.result(self._copy(self._value)))
