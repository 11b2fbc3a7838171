"""States with one row per key: value, reducing and aggregating."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate, compress, islice
from operator import is_not
from typing import Any, ClassVar, Generic, TypeVar, cast

from statekit.backend.interface import Backend, RowReads
from statekit.checkpoint.era import PERMANENT, UNWRITTEN
from statekit.checkpoint.state_kinds import STATE_KINDS
from statekit.codec.value_codec import PickleCodec
from statekit.errors import CorruptCheckpointError, StateTypeError
from statekit.state.base import ABSENT, StateSpec, row_sizes
from statekit.state.key_scope import KeyScope
from statekit.state.options import TTL, Aggregate, Default, Reduce
from statekit.state.row_cache import UNKNOWN, RowCache
from statekit.state.ttl import Expiry
from statekit.state.undo_log import UndoLog

T = TypeVar("T")
In = TypeVar("In")
Acc = TypeVar("Acc")
Out = TypeVar("Out")


class SingleRowState(RowCache):
    """A state with one row per key. The row key is the prefix of the key."""

    __slots__ = ()

    def _reader(self, backend: Backend) -> RowReads:
        return backend.reader(self._name, next_keys=self._scope.next_keys)

    def clear(self) -> None:
        """Remove the value of this key."""
        prefix = self._scope.prefix
        if self._known.get(prefix, UNKNOWN) is not ABSENT:
            self._drop(prefix)

    def exists(self) -> bool:
        """Return whether this key has a value."""
        return self._look(self._scope.prefix) is not ABSENT

    def _expire(self) -> None:
        super()._expire()
        prefix = self._scope.prefix
        if self.expiry is not None and self._has_aged(prefix, self.expiry):
            self._known[prefix] = ABSENT
            self._has_removed = True

    # ------------------------------------------------------------------------- many keys at a time

    def _read_rows(self, prefixes: list[bytes]) -> tuple[list[int], list[Any], list[int]]:
        """Return size, value and write time of the rows of many keys.

        A missing row has the value None. The write times are empty for a state without a TTL.
        """
        rows: list[Any] = self._read_all(prefixes)
        sizes = row_sizes(prefixes, rows)
        decode, written = self._decode, []
        try:
            if self.expiry is not None:
                read = self.expiry.read
                read_rows = [(None, UNWRITTEN) if row is None else read(row) for row in rows]
                rows, written = map(list, zip(*read_rows, strict=True))
            if None in rows:
                return sizes, [None if row is None else decode(row) for row in rows], written
            return sizes, list(map(decode, rows)), written
        except CorruptCheckpointError as error:
            raise self._unreadable(error) from error

    def _times(
        self, expiry: Expiry, changed: list[bool], current: list[Any], before: list[int]
    ) -> list[int]:
        """Return the present or earlier write time of each row. Reads that restart the TTL count as
        writes.
        """
        written = [
            expiry.stamp(time) if is_new else time
            for is_new, time in zip(changed, before, strict=True)
        ]
        if self._refreshes and not all(changed):
            for at, time in enumerate(before):
                if not changed[at] and current[at] is not None and time != PERMANENT:
                    written[at] = expiry.stamp(time)
                    changed[at] = written[at] != time
        return written

    def _put_some(self, changed: list[bool], columns: Sequence[Any]) -> None:
        """Write some of many rows.

        Parameters:
            changed: which rows to write.
            columns: the arguments of `_put_all`.
        """
        row_keys, values, before, indexed, written = (
            list(compress(column, changed)) for column in columns
        )
        self._put_all(row_keys, values, before, indexed, written)


class ValueState(SingleRowState, Generic[T]):
    """One value per key.

    An absent value reads as None, or as the declared `Default`. `update(None)` is an error unless
    the declared type is Optional: use `clear()`.

    Declare a parameter of a process function as one. Calls see the value of their key.

    >>> from collections.abc import Iterator
    >>> import statekit as sk
    >>> from statekit.testing import Harness
    >>> @sk.process(key="customer")
    ... def spent(order: dict, total: sk.ValueState[int]) -> Iterator[int]:
    ...     total.update((total.get() or 0) + order["cents"])
    ...     yield total.get() or 0
    >>> orders = [{"customer": "ada", "cents": 500}, {"customer": "ada", "cents": 20}]
    >>> Harness(spent).send(*orders)
    [500, 520]
    """

    __slots__ = ("_default", "_default_row")

    kind = STATE_KINDS["value"]
    options: ClassVar[tuple[type, ...]] = (PickleCodec, TTL, Default)

    def __init__(self, spec: StateSpec, scope: KeyScope, backend: Backend) -> None:
        super().__init__(spec, scope, backend)
        self._default = spec.default
        self._default_row = None
        if spec.default is not None:
            self._default_row = self._row(spec.default)
            self._default = self._decode(self._default_row)

    def get(self) -> T | None:
        """Return the value of this key; None or the declared default if there is none."""
        prefix = self._scope.prefix
        value = self._known.get(prefix, UNKNOWN)
        if value is UNKNOWN:
            value = self._load(prefix)
        if value is ABSENT:
            if self._immutable or self._default_row is None:
                return self._default  # type: ignore[no-any-return] # cast() takes time here
            return self._decode(self._default_row)  # type: ignore[no-any-return]
        if self._refreshes:
            self._note_read(prefix)
        return value if self._immutable else self._decode(value)  # type: ignore[no-any-return]

    def update(self, value: T) -> None:
        """Set the value of this key.

        Raises:
            StateTypeError: the declared type does not allow the value.
        """
        stored_value: Any = value
        if not self._immutable:
            stored_value = self._row(value)
        elif not self._exact(value):
            stored_value = self._stored_form(value)
        scope, cached = self._scope, self._known  # what `_set` does, as a call costs as much again
        if not cached:
            scope.gathered.append(self._flush)
        prefix = scope.prefix
        cached[prefix] = stored_value
        self._changed[prefix] = scope.key
        if self.expiry is not None:
            self._written[prefix] = self.expiry.stamp(self._written.get(prefix, UNWRITTEN))

    def expire_in(self, lifetime: dt.timedelta | None) -> bool:
        """Set when the value of this key expires, whatever the TTL of the state is. Return whether
        there is a value.

        Later writes restart the TTL of the state, if that makes the value stay longer.

        Parameters:
            lifetime: from now on, by the clock of the TTL; 0 or less removes the value, and None
                keeps it.

        Raises:
            StateTypeError: the state has no TTL.

        >>> import datetime as dt
        >>> from collections.abc import Iterator
        >>> from typing import Annotated
        >>> import statekit as sk
        >>> from statekit.testing import Harness
        >>> @sk.process(key="user")
        ... def login(
        ...     record: dict, name: Annotated[sk.ValueState[str], sk.TTL("1 hour")]
        ... ) -> Iterator[str | None]:
        ...     if "name" in record:
        ...         name.update(record["name"])
        ...         name.expire_in(dt.timedelta(minutes=record["minutes"]))
        ...     yield name.get()
        >>> harness = Harness(login)
        >>> harness.send({"user": 1, "name": "ada", "minutes": 5})
        ['ada']
        >>> _ = harness.advance_processing_time(dt.datetime(1970, 1, 1, 0, 6, tzinfo=dt.UTC))
        >>> harness.send({"user": 1})
        [None]
        """
        return self._set_lifetime(self._scope.prefix, lifetime)

    def add_absent(self, prefixes: list[bytes], value: T) -> list[bool]:
        """Set the value of those of many keys that have none. Return which had none. Nothing is
        cached, as for `add_all` of a `ReducingState`.

        Parameters:
            prefixes: of the keys, each once.
            value: in its stored form.
        """
        before, current, indexed = self._read_rows(prefixes)
        is_absent = [was is None for was in current]
        changed, written = list(is_absent), indexed
        if self.expiry is not None:
            written = self._times(self.expiry, changed, current, indexed)
        new = [value if was is None else was for was in current]
        self._put_some(changed, (prefixes, new, before, indexed, written))
        return is_absent

    @property
    def value(self) -> T | None:
        """The value as an attribute: `get()` when read, `update()` when set."""
        return self.get()

    @value.setter
    def value(self, value: T) -> None:
        self.update(value)


class _Accumulating(SingleRowState):
    """A state whose decoded value is owned by the state and changed by `add`."""

    __slots__ = ("_spoiled",)

    @property
    def _keeps_parts(self) -> bool:
        """Whether a new value has the stored form, as what it is combined of has it."""
        return False

    def __init__(self, spec: StateSpec, scope: KeyScope, backend: Backend) -> None:
        super().__init__(spec, scope, backend)
        self._from_row, self._to_row = self._decode, self._encode
        # Where an `add` failed half-way, and what there is to say about it.
        self._spoiled: dict[bytes, str] = {}

    def _keeping(self, add: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        """Return a function that adds to a copy of the value, if it is mutable."""
        return add if self._immutable else lambda value, added: add(self._copy(value), added)

    def _copy(self, value: Any) -> Any:
        """Return a deep copy if the value is mutable."""
        return value if self._immutable else self._decode(self._encode(value))

    def add_all(self, prefixes: list[bytes], values: Sequence[Any]) -> list[Any]:
        """Add to many keys at a time, and return the result of `get` for each.

        Nothing is cached: rows are read, and changed rows are added to the batch at once. An error
        names the current key if there is just one.

        Parameters:
            prefixes: of the keys, each once.
            values: in their stored form, without None, which adds nothing.

        Raises:
            StateTypeError: as for `add`.
        """
        return self.results(self._added_all(prefixes, values, keeps=False)[1])

    def change_all(
        self, prefixes: list[bytes], values: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        """Add to many keys at a time, as `add_all`. Return the value of each key before and after,
        for `results`; None for no value.
        """
        return self._added_all(prefixes, values, keeps=True)

    def add_each(self, prefixes: list[bytes], values: Sequence[Sequence[Any]]) -> list[list[Any]]:
        """Add several values to each of many keys, one after the other. Return the result of `get`
        after each. Nothing is cached, as for `add_all`.

        Parameters:
            prefixes: of the keys, each once.
            values: for each key those to add, of the declared type. None adds nothing.

        Raises:
            StateTypeError: as for `add`.
        """
        before, current, indexed = self._read_rows(prefixes)
        steps = [
            self._stored_forms(self._after_each(was, own))
            for was, own in zip(current, values, strict=True)
        ]
        changed = [any(value is not None for value in own) for own in values]
        new = [own[-1] for own in steps]
        self._put_added(prefixes, changed, current, new, before, indexed)
        return list(map(self.results, steps))

    def _after_each(self, current: Any, values: Sequence[Any]) -> list[Any]:
        """Return the value of a key after each added value."""
        steps = []
        for value in values:
            if value is not None:
                held = current if self._immutable or current is None else self._copy(current)
                (current,) = self._combined([held], [value])
            steps.append(current)
        return steps

    def _added_all(
        self, prefixes: list[bytes], values: Sequence[Any], *, keeps: bool
    ) -> tuple[list[Any], list[Any]]:
        """Add to many keys. Return the values before and after.

        Parameters:
            keeps: whether the values before are needed as they were.
        """
        before, current, indexed = self._read_rows(prefixes)
        held = current
        if keeps and not self._immutable:
            held = [None if was is None else self._copy(was) for was in current]
        new = self._combined(held, values)
        if not self._keeps_parts:
            new = self._stored_forms(new)
        changed = [value is not None for value in values]
        self._put_added(prefixes, changed, current, new, before, indexed)
        return current, new

    def _put_added(
        self,
        prefixes: list[bytes],
        changed: list[bool],
        current: list[Any],
        new: list[Any],
        before: list[int],
        indexed: list[int],
    ) -> None:
        """Write the rows of keys that have changed.

        Parameters:
            changed: which keys something was added to.
            current, new: the values before and after.
            before, indexed: as for `_put_all`.
        """
        written = indexed
        if self.expiry is not None:
            written = self._times(self.expiry, changed, current, indexed)
        elif self._immutable:
            changed = list(map(is_not, current, new))
        if all(changed):
            self._put_all(prefixes, new, before, indexed, written)
        else:
            self._put_some(changed, (prefixes, new, before, indexed, written))

    def _combined(self, current: list[Any], values: Sequence[Any]) -> list[Any]:
        """Return the new value of each key; None for no value."""
        raise NotImplementedError

    def results(self, values: list[Any]) -> list[Any]:
        """Return the result of `get` for each value; None for no value."""
        return values

    def _got(self) -> Any:
        """Return a copy of the value of this key; ABSENT for no value."""
        prefix = self._scope.prefix
        value = self._look(prefix)
        if value is ABSENT:
            return ABSENT
        if self._refreshes:
            self._note_read(prefix)
        return self._copy(value)

    def _spoil(self, before: Any) -> None:
        """Make the epoch fail, even if the user's function catches the error.

        The user's `add` may have changed a mutable value halfway before it failed, and there is no
        earlier value to restore.
        """
        if self._immutable or before is ABSENT or self._scope.undo is not None:
            return  # with an undo log, it was a copy that changed
        prefix = self._scope.prefix
        self._spoiled[prefix] = (
            f"{self._where()} was left half changed by an add that failed before: let that error "
            "pass"
        )
        self._set(prefix, before)

    def _expire(self) -> None:
        if self._scope.prefix not in self._spoiled:  # a half-changed value must fail the epoch
            super()._expire()

    def clear(self) -> None:
        """Remove the value of this key."""
        self._spoiled.pop(self._scope.prefix, None)  # the half-changed value is gone
        super().clear()

    def _put_changed(self) -> None:
        for message in self._spoiled.values():
            raise StateTypeError(message)
        super()._put_changed()


class ReducingState(_Accumulating, Generic[T]):
    """One value per key that combines all added values: `Annotated[…, Reduce(max)]`.

    Declare a parameter of a process function as one. Calls see the value of their key.

    >>> from collections.abc import Iterator
    >>> from typing import Annotated
    >>> import statekit as sk
    >>> from statekit.testing import Harness
    >>> @sk.process(key="auction")
    ... def highest(
    ...     bid: dict, price: Annotated[sk.ReducingState[int], sk.Reduce(max)]
    ... ) -> Iterator[int]:
    ...     price.add(bid["price"])
    ...     yield price.get() or 0
    >>> Harness(highest).send({"auction": 1, "price": 7}, {"auction": 1, "price": 5})
    [7, 7]
    """

    __slots__ = ("_combine", "_counts")

    kind = STATE_KINDS["reducing"]
    options = (PickleCodec, TTL, Reduce)
    required_option = "Reduce(max)"

    def __init__(self, spec: StateSpec, scope: KeyScope, backend: Backend) -> None:
        super().__init__(spec, scope, backend)
        assert spec.reduce is not None
        self._combine = spec.reduce.combine
        self._counts = spec.reduce.known == "count"

    def take_undo_log(self, undo: UndoLog) -> None:
        super().take_undo_log(undo)
        self._combine = self._keeping(self._combine)

    def add(self, value: T) -> None:
        """Combine the value of this key with `value`.

        Raises:
            StateTypeError: the declared type does not allow `value`, or the result of the reducer.
        """
        current = self._look(self._scope.prefix)
        if self._counts:
            self._set(self._scope.prefix, 1 if current is ABSENT else current + 1)
            return
        # The result of a reducer may share mutable parts with its arguments.
        if not self._immutable or not self._exact(value):
            value = self._stored_form(value)
        if current is not ABSENT:
            try:
                value = self._combine(current, value)
                if not self._exact(value):
                    value = self._stored_form(value)
            except BaseException:
                self._spoil(current)
                raise
        self._set(self._scope.prefix, value)

    def _combined(self, current: list[Any], values: Sequence[Any]) -> list[Any]:
        assert not self._counts, "counts of aggregates are sums"
        combine = self._combine
        if None not in values and None not in current:
            return list(map(combine, current, values))
        return [
            was if value is None else value if was is None else combine(was, value)
            for was, value in zip(current, values, strict=True)
        ]

    def _after_each(self, current: Any, values: Sequence[Any]) -> list[Any]:
        if None in values or not self._immutable:
            return super()._after_each(current, values)
        if current is None:
            return list(accumulate(values, self._combine))
        return list(islice(accumulate(values, self._combine, initial=current), 1, None))

    def get(self) -> T | None:
        """Return the combined value of this key; None if nothing was added."""
        value = self._got()
        return None if value is ABSENT else cast("T", value)


class AggregatingState(_Accumulating, Generic[In, Acc, Out]):
    """One accumulator per key: `Annotated[…, Aggregate(create, add, result, merge)]`.

    Declare a parameter of a process function as one. Calls see the result of their key.

    >>> from collections.abc import Iterator
    >>> from typing import Annotated
    >>> import statekit as sk
    >>> from statekit.testing import Harness
    >>> longest = sk.Aggregate(str, lambda longest, word: max(longest, word, key=len), len)
    >>> @sk.process(key="user")
    ... def length(
    ...     text: dict, state: Annotated[sk.AggregatingState[str, str, int], longest]
    ... ) -> Iterator[int]:
    ...     state.add(text["word"])
    ...     yield state.get() or 0
    >>> Harness(length).send({"user": "ada", "word": "stream"}, {"user": "ada", "word": "of"})
    [6, 6]
    """

    __slots__ = ("_added", "_aggregate", "_copies_added")

    kind = STATE_KINDS["aggregating"]
    type_parameters = ("input", "value", "result")
    options = (PickleCodec, TTL, Aggregate)
    required_option = "Aggregate(create, add, result)"

    def __init__(self, spec: StateSpec, scope: KeyScope, backend: Backend) -> None:
        super().__init__(spec, scope, backend)
        assert spec.aggregate is not None
        assert spec.added is not None
        self._aggregate = spec.aggregate
        self._added = spec.added
        # A mutable accumulator may keep parts of the added value.
        self._copies_added = not (self._immutable or spec.added.immutable)

    def take_undo_log(self, undo: UndoLog) -> None:
        super().take_undo_log(undo)
        self._aggregate = replace(self._aggregate, add=self._keeping(self._aggregate.add))

    def add(self, value: In) -> None:
        """Add `value` to the accumulator of this key.

        Raises:
            StateTypeError: the declared types do not allow `value`, or the new accumulator.
        """
        if self._copies_added or not self._added.exact(value):
            value = self._added.decode(self._row(value, self._added))
        accumulator = self._look(self._scope.prefix)
        current = self._aggregate.create() if accumulator is ABSENT else accumulator
        try:
            accumulated = self._aggregate.add(current, value)
            if not self._exact(accumulated):
                accumulated = self._stored_form(accumulated)
        except BaseException:
            self._spoil(accumulator)
            raise
        self._set(self._scope.prefix, accumulated)

    def _combined(self, current: list[Any], values: Sequence[Any]) -> list[Any]:
        create, add = self._aggregate.create, self._aggregate.add
        return [
            was if value is None else add(create() if was is None else was, value)
            for was, value in zip(current, values, strict=True)
        ]

    @property
    def _keeps_parts(self) -> bool:
        return self._aggregate.keeps_parts

    def results(self, values: list[Any]) -> list[Any]:
        result = self._aggregate.result
        return [None if accumulator is None else result(accumulator) for accumulator in values]

    def get(self) -> Out | None:
        """Return the result for the accumulator of this key; None if nothing was added."""
        value = self._got()
        return None if value is ABSENT else cast("Out", self._aggregate.result(value))
