"""The base class of all state types.

Theory of operation. A class is both the annotation that a user writes and the handle that is bound
to the current key. A `KeyScope` has the row prefix that all states of a key share. A state reads a
row on first access, caches it, and flushes its changes to the batch of the scope some time after
the key was left, along with those of other keys. A state that is not touched does nothing at all.
Rows of a state, with P the prefix (key group and encoded key):

    value, reducing, aggregating    P                                  → value
    list                            P + epoch (6 bytes) + number (6)   → element
    map                             P + encoded map key                → map value

Ownership. A value that `get` returns belongs to the caller: changing it has no effect until it is
written back. Values of immutable types (str, int, frozen dataclasses, …) are decoded once and
returned as they are. Values of mutable types are decoded again for every `get` and encoded at every
`update`. That is the cost of the guarantee.

Stored form. A read always returns the stored form of a value, even before the row is written: an
int that is written to a float state is read as a float at once. Otherwise a result would depend on
where the input was cut into epochs. A value that is its own stored form, which one check detects
(`ValueCodec.exact`), is kept as it is. Any other value is encoded and decoded.

Sizes. A state counts the rows and bytes that it adds and removes, exactly: before a row is replaced
or removed, its old size is known from a read, or is looked up.

To add a state type with an existing row shape: write its class here in `state`, add its kind to
`checkpoint/state_kinds`, its class to `functions/state_parameters`, and export it in
`statekit/__init__`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from statekit.backend.interface import Backend, Rows, prefix_end
from statekit.checkpoint.job_file import TtlRecord
from statekit.checkpoint.state_kinds import StateKind
from statekit.codec.key_codec import KeyCodec
from statekit.codec.value_codec import PickleCodec, ValueCodec
from statekit.errors import CorruptCheckpointError, StateTypeError
from statekit.shown import shown, shown_text
from statekit.state.key_scope import KeyScope
from statekit.state.options import TTL, Aggregate, Redistribute, Reduce
from statekit.state.row_versions import Hook, generation_codec
from statekit.state.ttl import Expiry
from statekit.state.undo_log import UndoLog
from statekit.timestamp import instant
from statekit.watermark import END

# A state writes its pending rows when it has this many for one key, so that a key with
# millions of elements or entries is never completely in memory.
PENDING_ROWS_MAX = 32_768

# The same for bytes of rows, so that a few large ones do not either.
PENDING_BYTES_MAX = 16 * 1024 * 1024

# So many rows that have expired are removed from a state in an epoch, and more in one that adds
# many: what expires must not come faster than it goes.
SWEPT_MIN = 10_000

# The same when event time has ended, and the epoch has nothing else to do.
SWEPT_AT_END = 200_000


def row_sizes(row_keys: Iterable[bytes], rows: Iterable[bytes | None]) -> list[int]:
    """Return the bytes that each row takes with its key; 0 for an absent row.

    >>> row_sizes([b"ada", b"bob"], [b"500", None])
    [6, 0]
    """
    return [
        0 if row is None else len(row_key) + len(row)
        for row_key, row in zip(row_keys, rows, strict=True)
    ]


class _Absent:
    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Any = _Absent()
"""The cached value of a row that does not exist."""

_HERE: Any = object()


@dataclass(frozen=True)
class StateSpec:
    """A declared state: its name, kind, codecs and options, as pure data.

    Parameters:
        operator, name: the operator that declares it, and its name.
        state_class: the class of the handle.
        codec: of values, elements, entries or accumulators.
        key_codec: of map keys; None for other kinds.
        added: codec of the input of `add`, which is checked but never stored; None for other kinds.
        default: of a `ValueState`.
        reduce, aggregate: as declared.
        ttl: when its rows expire; None if they do not.
        redistribute: how operator state is redistributed to another number of shards.
        made: the class of the object that the function gets; None for other kinds.
        hooks: convert values of earlier types.
    """

    operator: str
    name: str
    state_class: type[State]
    codec: ValueCodec[Any]
    key_codec: KeyCodec[Any] | None = None
    added: ValueCodec[Any] | None = None
    default: Any = None
    reduce: Reduce | None = None
    aggregate: Aggregate[Any, Any, Any] | None = None
    ttl: TtlRecord | None = None
    redistribute: Redistribute | None = None
    made: type[Any] | None = None
    hooks: tuple[Hook, ...] = ()

    @property
    def kind(self) -> StateKind:
        """The kind of the state, as it is named in checkpoints."""
        return self.state_class.kind

    def bind(self, scope: KeyScope, backend: Backend) -> State:
        """Return a handle for this state in one shard."""
        spec, migrated = self, scope.migrated.get(self.name)
        if migrated is not None:
            spec = replace(self, codec=generation_codec(self.codec, migrated, self.hooks, scope))
        return self.state_class(spec, scope, backend)


class State:
    """The common part of all states. The task creates states, users never do."""

    __slots__ = (
        "_backend",
        "_cleared",
        "_codec",
        "_decode",
        "_encode",
        "_exact",
        "_name",
        "_scan",
        "_scan_each",
        "_scope",
        "_spec",
        "bytes_added",
        "expiry",
        "rows_added",
    )

    kind: ClassVar[StateKind]
    type_parameters: ClassVar[tuple[str, ...]] = ("value",)
    """The roles of the types in brackets: "key" of map keys, "input" of the argument of `add`."""
    options: ClassVar[tuple[type, ...]] = (PickleCodec, TTL)
    """The classes of the options that its annotation may have."""
    noted: ClassVar[tuple[str, ...]] = ("rows_added", "bytes_added", "_cleared")
    """Attributes that a call of the user's function may replace."""
    required_option: ClassVar[str] = ""
    """An example of the option that the annotation must have; empty if there is none."""

    def __new__(cls, *given: object) -> Self:
        """Create a state. Without the scope that the task passes, refuse to create one.

        Raises:
            StateTypeError: it is called without arguments, as in `ValueState[int]()`.
        """
        if not given:
            raise StateTypeError(
                f"{cls.__name__} cannot be created by calling it: a state belongs to a key of an "
                "operator. Declare it as a parameter of a process function, such as `def "
                f"count(event: Event, seen: sk.{cls.__name__}[...])`; to call the function "
                "directly in a test, use statekit.testing.states(count)"
            )
        return super().__new__(cls)

    def __init__(self, spec: StateSpec, scope: KeyScope, backend: Backend) -> None:
        self._spec = spec
        # The change of the shard's size in this epoch; negative if it shrank.
        self.rows_added = 0
        self.bytes_added = 0
        self._name = spec.name
        self._scope = scope
        self._backend = backend
        self._codec = spec.codec
        self._exact = spec.codec.exact
        self._encode = spec.codec.encode
        self._decode = spec.codec.decode
        # The prefix of the key whose rows in the backend were all removed since it was entered.
        self._cleared: bytes | None = None
        # None unless rows may carry a stamp.
        self.expiry: Expiry | None = None
        if spec.ttl is not None or spec.name in scope.eras:
            self.expiry = Expiry(spec.name, spec.ttl, scope)
        if spec.ttl is not None and spec.ttl.clock == "event":
            scope.clocks.expiring.append(self._expire)

    def take_undo_log(self, undo: UndoLog) -> None:
        """Have changes of failed calls taken back. Call it before the first change."""
        undo.note_attributes(self, self.noted)
        if self.expiry is not None:
            undo.note_attributes(self.expiry, ("indexed", "wake_us"))

    @property
    def complete_since(self) -> dt.datetime | None:
        """The write time from which on all unexpired rows exist; None if all unexpired rows
        exist.
        """
        since_us = None if self.expiry is None else self.expiry.complete_since_us
        return None if since_us is None else instant(since_us)

    @property
    def handle(self) -> Any:
        """The object that is passed to the user's function."""
        return self

    def _flush(self) -> None:
        """Write the changes to the batch and forget the keys."""
        raise NotImplementedError

    def _expire(self) -> None:
        """Drop cached rows of the current key that have expired since the clock advanced."""
        if self.expiry is not None:
            self.expiry.tick()

    def begin_scan(self, groups: tuple[int, int]) -> None:
        """Schedule a scan of these key groups. It removes the rows of before the present era of
        expiry once they have expired.
        """
        assert self.expiry is not None
        self.expiry.begin_scan(self._backend, groups)

    def sweep(self, groups: tuple[int, int]) -> None:
        """Remove expired rows of these key groups, up to the limit of one epoch."""
        assert self.expiry is not None
        at_end = self._scope.clocks.expiry_us == END
        most = (SWEPT_AT_END if at_end else SWEPT_MIN) + 2 * self.expiry.indexed
        for row_key, size in self.expiry.sweep(self._backend, groups, most):
            self._resized(row_key, size, None)

    def _resized(self, row_key: bytes, before: int, row: bytes | None) -> None:
        """Count the replacement of a row of `before` bytes (0: no row) by `row` (None: removed)."""
        after = 0 if row is None else len(row_key) + len(row)
        self.rows_added += (after > 0) - (before > 0)
        self.bytes_added += after - before

    def _unstorable(
        self, value: object, error: StateTypeError, key: object = _HERE
    ) -> StateTypeError:
        """Return the error for a value of the right type that cannot be encoded, such as an int
        beyond 64 bits.

        Parameters:
            key: the key of the value; the current key by default.
        """
        return StateTypeError(
            f"{self._where(key)} cannot hold {shown(value)}: {shown_text(error)}. Nothing of this "
            "epoch is "
            "committed"
        )

    def _unreadable(self, error: CorruptCheckpointError) -> CorruptCheckpointError:
        return CorruptCheckpointError(f"{self._where()}: {shown_text(error)}")

    def _row(self, value: Any, codec: ValueCodec[Any] | None = None) -> bytes:
        """Encode a value. Raise an error if the type does not allow it.

        Parameters:
            codec: of the type; by default that of the state.
        """
        codec = self._codec if codec is None else codec
        if not codec.accepts(value):
            clear = "call clear() to remove it, " if value is None else ""
            raise StateTypeError(
                f"{self._where()} cannot hold {shown(value)}: its type is {codec.schema}; "
                f"{codec.reason(value)}. Nothing of this epoch is committed: convert the value, "
                f"{clear}or change the declared type"
            )
        try:
            return codec.encode(value)
        except StateTypeError as error:
            raise self._unstorable(value, error) from None

    def _stored_form(self, value: Any) -> Any:
        """Return the stored form of a value. Raise an error if the declared type does not allow
        it.
        """
        return self._decode(self._row(value))

    def _where(self, key: object = _HERE) -> str:
        scope = self._scope
        place = scope.place if key is _HERE else scope.place_of(key)
        return f"state {self._name!r} of operator {scope.operator!r} {place} in epoch {scope.epoch}"


class ManyRowState(State):
    """A state with many rows per key. Some are in the backend, others are pending."""

    __slots__ = ()  # so that a class may have another base beside this one

    def __init__(self, spec: StateSpec, scope: KeyScope, backend: Backend) -> None:
        super().__init__(spec, scope, backend)
        reads = backend.reader(spec.name)
        self._scan, self._scan_each = reads.scan, reads.scan_each

    def clear(self) -> None:
        """Remove all rows of this key. Stored rows are counted one by one, and removed as one
        range.
        """
        self._drop_pending()
        prefix, has_rows = self._scope.prefix, False
        for row_key, row in self._stored_rows():
            has_rows = True
            self._resized(row_key, self._counted(row_key, row), None)
            if self.expiry is not None:
                self.expiry.forget(row_key, self.expiry.split(row)[1])
        if has_rows:
            self._scope.batch.delete_range(self._name, prefix, prefix_end(prefix))
            self._cleared = prefix

    def _counted(self, row_key: bytes, row: bytes) -> int:
        """Return the size in bytes that was counted for a stored row of this key."""
        return len(row_key) + len(row)

    def _stored_rows(self, *, reverse: bool = False) -> Rows:
        """Yield the rows of this key in the backend, except rows that were cleared since."""
        prefix = self._scope.prefix
        if self._cleared is prefix:
            return iter(())
        if reverse:
            return self._backend.scan(self._name, prefix, prefix_end(prefix), reverse=True)
        return iter(self._scan(prefix, prefix_end(prefix)))

    def _make_room(self, rows: int, size: int) -> None:
        """Write pending rows to the backend if there are too many, or too many bytes."""
        if rows >= PENDING_ROWS_MAX or size >= PENDING_BYTES_MAX:
            self._spill()

    def _spill(self) -> None:
        """Write pending rows to the backend in the middle of a scope. If the call may be taken
        back, they are written after it.
        """
        undo = self._scope.undo
        if undo is not None and undo.defers(self._spill):
            return
        self._flush()
        self._scope.spill()
        self._cleared = None

    def _drop_pending(self) -> None:
        """Forget the pending rows of this key."""
        raise NotImplementedError
