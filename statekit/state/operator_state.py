"""Operator state: state of a shard, not of a key.

These are the value, list and map of keyed state, bound to the scope of the whole shard. The prefix
of that scope is the first key group of the shard, so the rows are stored with the key groups of the
shard.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

from statekit.backend.interface import Backend
from statekit.checkpoint.state_kinds import STATE_KINDS
from statekit.codec.value_codec import PickleCodec
from statekit.errors import (
    CALL_FAILURES,
    CorruptCheckpointError,
    ProcessError,
    StateTypeError,
    is_users,
)
from statekit.shown import shown_error
from statekit.state.base import State, StateSpec
from statekit.state.key_scope import KeyScope
from statekit.state.list_state import ListState
from statekit.state.map_state import MapState
from statekit.state.options import Default, Redistribute
from statekit.state.single_row_states import ValueState

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
S = TypeVar("S")


class OperatorState(ValueState[T]):
    """One value per shard, for all its keys: a `ValueState` of the shard.

    Declare with `Annotated[…, Redistribute(…)]` how it is redistributed when the parallelism
    changes.

    Declare a parameter of a process function as one.

    >>> from collections.abc import Iterator
    >>> import statekit as sk
    >>> from statekit.testing import Harness
    >>> @sk.process(key="user")
    ... def numbered(event: dict, last: sk.OperatorState[int]) -> Iterator[int]:
    ...     last.update((last.get() or 0) + 1)
    ...     yield last.get() or 0
    >>> Harness(numbered, parallelism=1).send({"user": "ada"}, {"user": "bob"})
    [1, 2]
    """

    __slots__ = ()

    kind = STATE_KINDS["operator_value"]
    options = (PickleCodec, Default, Redistribute)


class OperatorListState(ListState[T]):
    """One list per shard, for all its keys: a `ListState` of the shard.

    Declare with `Annotated[…, Redistribute(…)]` how it is redistributed when the parallelism
    changes.

    Declare a parameter of a process function as one.

    >>> from collections.abc import Iterator
    >>> import statekit as sk
    >>> from statekit.testing import Harness
    >>> @sk.process(key="user")
    ... def batched(event: dict, waiting: sk.OperatorListState[str]) -> Iterator[list[str]]:
    ...     waiting.append(event["user"])
    ...     if len(waiting) == 2:
    ...         yield sorted(waiting)
    ...         waiting.clear()
    >>> Harness(batched, parallelism=1).send({"user": "ada"}, {"user": "bob"})
    [['ada', 'bob']]
    """

    __slots__ = ()

    kind = STATE_KINDS["operator_list"]
    options = (PickleCodec, Redistribute)


class BroadcastState(MapState[K, V]):
    """One map per shard, equal in all shards. A broadcast input writes it, and all keys read it.

    Only a function decorated with `@….on_broadcast` may change it.

    Declare a parameter of a process function as one.

    >>> from collections.abc import Iterator
    >>> import statekit as sk
    >>> from statekit.testing import Harness
    >>> @sk.process(key="customer")
    ... def in_cents(order: dict, rates: sk.BroadcastState[str, int]) -> Iterator[int]:
    ...     yield order["price"] * rates.get(order["currency"], 1)
    >>> @in_cents.on_broadcast
    ... def changed(rate: dict, rates: sk.BroadcastState[str, int]) -> None:
    ...     rates[rate["currency"]] = rate["cents"]
    >>> harness = Harness(in_cents)
    >>> harness.broadcast({"currency": "EUR", "cents": 108})
    []
    >>> harness.send({"customer": "ada", "price": 5, "currency": "EUR"})
    [540]
    """

    __slots__ = ()

    kind = STATE_KINDS["broadcast"]
    options = (PickleCodec, Redistribute)

    def __setitem__(self, key: K, value: V) -> None:
        """Set one entry.

        Raises:
            StateTypeError: the declared types do not allow the key or the value, or the caller is
                not a function decorated with `@….on_broadcast`.
        """
        self._check_broadcasting()
        super().__setitem__(key, value)

    def __delitem__(self, key: K) -> None:
        self._check_broadcasting()
        super().__delitem__(key)

    def clear(self) -> None:
        """Remove all entries."""
        self._check_broadcasting()
        super().clear()

    def _check_broadcasting(self) -> None:
        if not self._scope.broadcasting:
            raise StateTypeError(
                f"{self._where()} is broadcast state: it may only be changed by a function "
                f"decorated with @{self._scope.operator}.on_broadcast, so that it is the same in "
                "all shards"
            )


class Checkpointed(Protocol[S]):
    """A plain object as state of a shard. A parameter annotated with the class declares it.

    The class is called without arguments, once per shard and epoch; the function is given the
    object. What `snapshot_state` returns is stored at the end of the epoch, if it differs from what
    is stored, and is given to `restore_state` the next time. Its return annotation says what type
    that is.

    A class may also say what becomes of what is stored when the parallelism changes, as `split` and
    `merge` of `Redistribute` do:

        @staticmethod
        def split_state(state: S, n: int) -> list[S]: ...

        @staticmethod
        def merge_states(states: list[S]) -> S: ...

    >>> from collections.abc import Iterator
    >>> import statekit as sk
    >>> class Mean:
    ...     def __init__(self) -> None:
    ...         self.count, self.total = 0, 0.0
    ...     def snapshot_state(self) -> tuple[int, float]:
    ...         return self.count, self.total
    ...     def restore_state(self, state: tuple[int, float]) -> None:
    ...         self.count, self.total = state
    >>> @sk.process()
    ... def above(record: dict, mean: Mean) -> Iterator[bool]:
    ...     mean.count += 1
    ...     mean.total += record["price"]
    ...     yield record["price"] > mean.total / mean.count
    >>> from statekit.testing import Harness
    >>> harness = Harness(above)
    >>> harness.send({"price": 1.0}), harness.send({"price": 3.0})
    ([False], [True])
    >>> harness.operator_state("mean")
    [(2, 4.0)]
    """

    def snapshot_state(self) -> S:
        """Return the value to store."""

    def restore_state(self, state: S, /) -> None:
        """Restore the object from a stored value."""


def is_checkpointed(cls: object) -> bool:
    """Return whether a class has the methods of `Checkpointed`."""
    return isinstance(cls, type) and all(
        callable(getattr(cls, name, None)) for name in ("snapshot_state", "restore_state")
    )


class ObjectState(State):
    """A `Checkpointed` object, with one row for its snapshot."""

    __slots__ = ("_object", "_stored")

    kind = STATE_KINDS["object"]
    options = (PickleCodec, Redistribute)

    def __init__(self, spec: StateSpec, scope: KeyScope, backend: Backend) -> None:
        super().__init__(spec, scope, backend)
        assert spec.made is not None
        self._stored = backend.get(spec.name, scope.prefix)
        self._object = self._restored(spec.made)
        scope.touched.append(self._flush)

    @property
    def handle(self) -> Any:
        """The object of the user's class."""
        return self._object

    def get(self) -> Any:
        """Return the stored snapshot; None if there is none."""
        return None if self._stored is None else self._decode(self._stored)

    def _restored(self, cls: type[Any]) -> Any:
        try:
            restored = cls()
            if self._stored is not None:
                restored.restore_state(self._decode(self._stored))
        except CorruptCheckpointError as error:
            raise self._unreadable(error) from error
        except CALL_FAILURES as error:
            raise self._failed(f"{cls.__name__}.restore_state", error) from error
        return restored

    def _flush(self) -> None:
        try:
            value = self._object.snapshot_state()
        except CALL_FAILURES as error:
            if not is_users(error):
                raise
            name = f"{type(self._object).__name__}.snapshot_state"
            raise self._failed(name, error) from error
        row, prefix, before = self._row(value), self._scope.prefix, self._stored
        if row != before:
            self._scope.batch.put(self._name, prefix, row)
            self._resized(prefix, 0 if before is None else len(prefix) + len(before), row)
            self._stored = row

    def _failed(self, what: str, error: BaseException) -> ProcessError:
        return ProcessError(
            f"{self._where()}: {what} failed with {shown_error(error)}. Nothing of this "
            "epoch is committed: correct the class, then start the job again"
        )
