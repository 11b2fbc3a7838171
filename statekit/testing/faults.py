"""Stores and backends that fail at a given operation, for tests.

An operation on a store is a `get`, `put`, `create`, `list` or `delete`; one on a backend a `read`,
`scan` or `write`. These are the effects of a fault:

    fail before    the operation is not done, and an error is raised
    fail after     the operation is done, and an error is raised: the answer was lost
    delay          the operation is done later
    tear           half of it is done. A read returns half of the bytes. A write leaves half behind
                   and an error is raised. `create` is atomic in every store: it fails before
    flip           one bit is flipped, in the data that is read or stored
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import IO, TYPE_CHECKING, Any, Literal, TypeVar, cast, get_args

import xxhash

from statekit.backend.interface import Backend, FirstKey, NextKeys, RowReads, Rows, StateSize
from statekit.backend.mutation import Batch
from statekit.checkpoint.manifest import ShardPlan, ShardPlans
from statekit.checkpoint.object_store import (
    FileBytes,
    FilePage,
    Objects,
    RequestError,
    Stored,
    StoreOptions,
)
from statekit.checkpoint.repository import Repository
from statekit.clock import sleep_s
from statekit.errors import StateTypeError, StorageError
from statekit.number_faults import int_fault, number_fault
from statekit.shown import shown
from statekit.working_copy.copies import WorkingCopies, WorkingCopy

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

T = TypeVar("T")

What = Literal["fail before", "fail after", "delay", "tear", "flip"]
Operation = Literal["get", "put", "create", "list", "delete", "read", "scan", "write"]

_EARLY = 8
"""Half of all planned faults are at or before this operation: some operations are rare."""

_NOTICED_IF_TORN: Sequence[Operation] = ("get", "put", "create", "list", "delete", "write")

_NO_PAUSE = StoreOptions(retry_seconds=30.0, pause_seconds=0.0)


@dataclass(frozen=True)
class Fault:
    """One planned fault.

    Parameters:
        what: its effect.
        at: the number of the operation, from 0.
        operation: count operations of this kind; None counts all.

    >>> Fault("fail after", at=2, operation="create")
    Fault(what='fail after', at=2, operation='create')
    """

    what: What
    at: int
    operation: Operation | None = None

    def __post_init__(self) -> None:
        if self.what not in get_args(What):
            raise StateTypeError(f"what={shown(self.what)}: give one of {list(get_args(What))}")
        if self.operation is not None and self.operation not in get_args(Operation):
            raise StateTypeError(
                f"operation={shown(self.operation)}: give one of {list(get_args(Operation))}, or "
                "None"
            )
        if fault := int_fault(self.at, "give the number of an operation, from 0"):
            raise StateTypeError(f"at={shown(self.at)}{fault}")


class Faults:
    """A plan of faults, and the faults that happened. Equal plans have equal effects on equal
    operations.

    Parameters:
        planned: the planned faults; each happens once.
        rate: the share of all other operations that fail.
        seed: selects these operations, and their effects.
        effects: the possible effects of these faults.
        lasting: raise errors that retries do not repair. Else a retry succeeds, as after a network
            failure.
        delay_s: duration of a delay.
        sleep: the function that waits.

    Attributes:
        done: the faults that happened, in order: print it when a test fails.

    Raises:
        StateTypeError: the rate or the seed is no such number.

    >>> faults = Faults(Fault("fail after", at=0, operation="create"))
    >>> repository = faulty(Repository.in_memory(), faults)
    >>> repository.create("note", b"once")  # created, the answer lost, retried, found to be our own
    >>> repository.read("note"), faults.done
    (b'once', ['fail after: create 0 of note'])
    """

    def __init__(
        self,
        *planned: Fault,
        rate: float = 0.0,
        seed: int = 0,
        effects: Sequence[What] = ("fail before", "fail after", "tear"),
        lasting: bool = False,
        delay_s: float = 0.01,
        sleep: Callable[[float], object] = sleep_s,
    ) -> None:
        if fault := number_fault(rate, "give a share of the operations, from 0 to 1", most=1):
            raise StateTypeError(f"rate={shown(rate)}{fault}")
        if fault := int_fault(seed, "give an int from 0, of 64 bits", most=2**64 - 1):
            raise StateTypeError(f"seed={shown(seed)}{fault}")
        self.done: list[str] = []
        self.lasting = lasting
        self._planned = list(planned)
        self._rate = rate
        self._seed = seed
        self._effects = tuple(effects)
        self._delay_s = delay_s
        self._sleep = sleep
        self._counted: Counter[str | None] = Counter()
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"Faults(planned={self._planned}, rate={self._rate}, seed={self._seed})"

    def next(self, operation: Operation, on: str) -> What | None:
        """Return the fault of the next operation, if there is one. A delay has passed already."""
        with self._lock:
            numbers: dict[str | None, int] = {
                None: self._counted[None],
                operation: self._counted[operation],
            }
            self._counted.update((None, operation))
            effect = self._wanted(operation, numbers)
            if effect is not None:
                self.done.append(f"{effect}: {operation} {numbers[operation]} of {on}")
        if effect == "delay":
            self._sleep(self._delay_s)
            return None
        return effect

    def _wanted(self, operation: str, numbers: dict[str | None, int]) -> What | None:
        for fault in self._planned:
            if numbers.get(fault.operation) == fault.at:
                self._planned.remove(fault)
                return fault.what
        name = f"{operation} {numbers[operation]}".encode()
        drawn = xxhash.xxh3_64_intdigest(name, self._seed)
        if drawn % 1_000_000 >= self._rate * 1_000_000:
            return None
        return self._effects[drawn // 1_000_000 % len(self._effects)]


def faulty(repository: Repository, faults: Faults, options: StoreOptions = _NO_PAUSE) -> Repository:
    """Return the same checkpoint on a store with faults.

    Pass it as `checkpoint=` to `Job.run` or `Harness`. The code above the store is the same as with
    a good store: retries, verification, finding out who created a file.

    Parameters:
        options: the time for which failed requests are retried.
    """
    return repository.through(lambda objects: _FaultyObjects(objects, faults), options)


class _FaultyObjects:
    """Objects with faults."""

    def __init__(self, inner: Objects, faults: Faults) -> None:
        self._inner = inner
        self._faults = faults
        self.keeps_order = inner.keeps_order

    def get(self, path: str, start: int = 0, size: int | None = None) -> FileBytes:
        effect = self._faults.next("get", path)
        if effect in ("fail before", "fail after"):
            raise self._failed("get", path)
        piece = self._inner.get(path, start, size)
        return piece if effect is None else piece._replace(data=_damaged(piece.data, effect))

    def head(self, path: str) -> Stored:
        return self._done("get", path, partial(self._inner.head, path))

    def put(self, path: str, data: bytes | IO[bytes]) -> None:
        effect = self._faults.next("put", path)
        if effect in ("tear", "flip"):
            data = _damaged(data if isinstance(data, bytes) else data.read(), effect)
        if effect != "fail before":
            self._inner.put(path, data)
        if effect not in (None, "flip"):
            raise self._failed("put", path)

    def create(self, path: str, data: bytes) -> None:
        effect = self._faults.next("create", path)
        if effect in ("fail before", "tear"):
            raise self._failed("create", path)
        self._inner.create(path, _damaged(data, effect) if effect == "flip" else data)
        if effect == "fail after":
            raise self._failed("create", path)

    def page(self, under: str, behind: str | None = None) -> FilePage:
        return self._done("list", under, partial(self._inner.page, under, behind))

    def names(self, under: str) -> list[str]:
        return self._done("list", under, partial(self._inner.names, under))

    def delete(self, paths: Sequence[str]) -> None:
        effect = self._faults.next("delete", paths[0])
        if effect != "fail before":
            self._inner.delete(paths[: (len(paths) + 1) // 2] if effect == "tear" else paths)
        if effect in ("fail before", "fail after", "tear"):
            raise self._failed("delete", paths[0])

    def move(self, path: str, target: str) -> None:
        self._done("put", path, partial(self._inner.move, path, target))

    def sync_folder(self, folder: str) -> None:
        self._inner.sync_folder(folder)

    def _done(self, operation: Operation, path: str, ask: Callable[[], T]) -> T:
        """Return an answer other than bytes, which is never torn."""
        if self._faults.next(operation, path) is not None:
            raise self._failed(operation, path)
        return ask()

    def _failed(self, operation: str, path: str) -> RequestError:
        reason = f"{operation} of {path} failed on purpose"
        return RequestError(reason, may_pass=not self._faults.lasting)


class WrappedBackend:
    """A backend that forwards every call. Its prepared readers use `get`, `get_many` and `scan`.

    Parameters:
        inner: the backend with the rows.
    """

    def __init__(self, inner: Backend) -> None:
        self.inner = inner

    @property
    def states(self) -> Sequence[str]:
        return self.inner.states

    def get(self, state: str, key: bytes) -> bytes | None:
        return self.inner.get(state, key)

    def get_many(self, state: str, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.get(state, key) for key in keys]

    def scan(self, state: str, start: bytes, end: bytes, *, reverse: bool = False) -> Rows:
        return self.inner.scan(state, start, end, reverse=reverse)

    def reader(
        self, state: str, next_keys: NextKeys | None = None, first_key: FirstKey | None = None
    ) -> RowReads:
        return RowReads.each_by_itself(
            partial(self.get, state), partial(self.get_many, state), partial(self.scan, state)
        )

    def sizes(self) -> dict[str, StateSize]:
        return self.inner.sizes()

    def close(self) -> None:
        self.inner.close()


class FaultyBackend(WrappedBackend):
    """A backend with faults: it raises `StorageError`, as RocksDB does on a bad disk.

    Parameters:
        inner: the backend that has the rows.
        faults: when operations fail.

    Code above a backend cannot detect a flipped or torn row: RocksDB has checksums of its own.

    >>> from statekit.backend.interface import MemoryBackend
    >>> backend = FaultyBackend(MemoryBackend(["s"]), Faults(Fault("fail before", at=1)))
    >>> backend.get("s", b"k")
    >>> backend.get("s", b"k")
    Traceback (most recent call last):
    statekit.errors.StorageError: read of s failed on purpose: start again
    """

    def __init__(self, inner: Backend, faults: Faults) -> None:
        super().__init__(inner)
        self._faults = faults

    def get(self, state: str, key: bytes) -> bytes | None:
        effect = self._next_fault("read", state)
        row = self.inner.get(state, key)
        return row if row is None or effect is None else _damaged(row, effect)

    def first(self, state: str, start: bytes, end: bytes) -> bytes | None:
        self._next_fault("scan", state)
        return self.inner.first(state, start, end)

    def scan(self, state: str, start: bytes, end: bytes, *, reverse: bool = False) -> Rows:
        effect = self._next_fault("scan", state)
        for key, row in self.inner.scan(state, start, end, reverse=reverse):
            yield key, row if effect is None else _damaged(row, effect)

    def write(self, batch: Batch) -> None:
        _write(self._faults, batch, self.inner.write)

    def _next_fault(self, operation: Operation, state: str) -> What | None:
        effect = self._faults.next(operation, state)
        if effect in ("fail before", "fail after"):
            raise StorageError(f"{operation} of {state} failed on purpose: start again")
        return effect


class FaultyCopies:
    """Working copies whose backends have faults. Pass them as `backend=` to `Job.run` or `Harness`.

    Parameters:
        inner: `MemoryCopies` or `DiskCopies`.
        faults: when operations fail.
    """

    def __init__(self, inner: WorkingCopies, faults: Faults) -> None:
        self._inner = inner
        self._faults = faults

    def obtain(self, plan: ShardPlan, states: Sequence[str], repository: Repository) -> WorkingCopy:
        """Return a copy of the plan's shard, whose backend has faults."""
        copy = _FaultyCopy(self._inner.obtain(plan, states, repository), self._faults)
        return cast("WorkingCopy", copy)

    def tidy(self, plans: ShardPlans) -> None:
        """Make room before shards of an operator run."""
        self._inner.tidy(plans)

    def forget(self, checkpoint_id: str) -> None:
        """Remove the copies of a checkpoint that are not in use."""
        self._inner.forget(checkpoint_id)


class _FaultyCopy:
    """A working copy with faults in its reads and writes, and in nothing else."""

    def __init__(self, inner: WorkingCopy, faults: Faults) -> None:
        self._inner = inner
        self._faults = faults
        self.backend: Backend = FaultyBackend(inner.backend, faults)

    def write(self, batch: Batch) -> None:
        _write(self._faults, batch, self._inner.write)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _write(faults: Faults, batch: Batch, write: Callable[[Batch], None]) -> None:
    states = ", ".join(sorted(set(batch.states)))
    effect = faults.next("write", states)
    if effect in ("tear", "flip"):
        rows = list(batch.rows())
        batch = Batch(rows[: len(rows) // 2])
    if effect != "fail before":
        write(batch)
    if effect is not None:
        raise StorageError(f"write of {states} failed on purpose: start again")


def _damaged(data: bytes, effect: What) -> bytes:
    """Return half of the bytes, or all with a flipped bit in the middle."""
    middle = len(data) // 2
    if effect == "tear" or not data:
        return data[:middle]
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def plans(*, most: int = 4, until: int = 60, lasting: bool | None = None) -> SearchStrategy[Faults]:
    """Return a Hypothesis strategy of plans that never damage stored data.

    A job that is started again after each error survives every plan, with the results that it has
    on a good store.

    Parameters:
        most: faults in a plan.
        until: the number of the last operation with a fault.
        lasting: whether retries fail too; None for both.
    """
    from hypothesis import strategies as st

    chosen = safe_faults(most=most, until=until)
    last = st.booleans() if lasting is None else st.just(lasting)
    return st.builds(lambda faults, lasting: Faults(*faults, lasting=lasting), chosen, last)


def safe_faults(*, most: int, until: int) -> SearchStrategy[list[Fault]]:
    """Return a Hypothesis strategy of faults for a plan, as `plans` does."""
    from hypothesis import strategies as st

    at = st.integers(0, min(until, _EARLY)) | st.integers(0, until)
    failures = st.sampled_from(["fail before", "fail after"])
    fails = st.builds(Fault, failures, at, st.sampled_from([None, *get_args(Operation)]))
    # A torn row of a backend is not noticed: RocksDB has checksums of its own.
    tears = st.builds(Fault, st.just("tear"), at, st.sampled_from(_NOTICED_IF_TORN))
    flips = st.builds(Fault, st.just("flip"), at, st.just("get"))
    return st.lists(fails | tears | flips, max_size=most, unique=True)
