"""Pickling of user functions and of shards for Spark's workers."""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import sys
import types
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import chain, repeat
from operator import is_
from typing import Any, Generic, NamedTuple, TypeVar

import cloudpickle
import pyarrow as pa

from statekit.checkpoint.manifest import ShardState
from statekit.errors import CALL_FAILURES, ProcessError, StateTypeError
from statekit.job.chaining import Chain
from statekit.job.plan import Plan, Transform
from statekit.records import by_value
from statekit.shown import shown_error, type_name

T = TypeVar("T")

_SEARCHED_MAX = 10_000
"""The maximum number of objects that are searched for one that cannot be pickled."""

_CHUNK_SHARDS = 64
"""The number of shards that are unpickled together. Larger chunks make a task with few shards
unpickle more of others.
"""


class Pickled(NamedTuple, Generic[T]):
    """A pickled function, or functions of a job. Each worker process unpickles them once.

    Parameters:
        name: what it is, for messages.
        data: the pickled functions with their types.
        path: where the sender imports modules from, so that a worker on the same file system finds
            modules that are pickled by reference.
    """

    name: str
    data: bytes
    path: tuple[str, ...]


def pickled(function: T, name: str = "a function") -> Pickled[T]:
    """Pickle a function for the workers.

    Parameters:
        name: what it is, for messages.

    Raises:
        StateTypeError: it uses an object that cannot be pickled.
    """
    path = tuple(entry for entry in sys.path if os.path.isabs(entry))
    try:
        return Pickled(name, by_value.dumps(function), path)
    except CALL_FAILURES as error:
        raise StateTypeError(
            f"{name} cannot be sent to Spark's workers: {_unpicklable(function)}"
            f"{shown_error(error)}. Nothing was started: make the object inside of the function, "
            "or in a function that is called on the first record, and not where the job is declared"
        ) from error


def pickled_chain(chained: Chain) -> Pickled[Chain]:
    """Pickle the operators and transforms of a chain; raises as `pickled` does."""
    names = ", ".join(repr(operator.name) for operator in chained.operators)
    return pickled(chained, f"operator{'s' * (len(chained.operators) > 1)} {names}")


def pickled_transforms(transforms: tuple[Transform, ...]) -> Pickled[tuple[Transform, ...]]:
    """Pickle the functions of transforms; raises as `pickled` does."""
    return pickled(transforms, ", ".join(map(_shown, transforms)))


def _shown(transform: Transform) -> str:
    return f"{transform.function.kind} {transform.name!r}"


def check_sendable(job: Plan) -> None:
    """Check that the functions of a job can be sent to Spark's workers.

    Raises:
        StateTypeError: one of them uses an object that cannot be pickled.
    """
    for operator in job.operators:
        pickled(operator.declared, f"operator {operator.name!r}")
    for transform in job.transforms:
        pickled(transform.function, _shown(transform))


def _unpicklable(function: object) -> str:
    """Return the object of a function that cannot be pickled, for a message; empty if it is not
    found.
    """
    for fn in _functions_of(function):
        for where, name, value in _used(fn):
            try:
                by_value.dumps(value)
            except CALL_FAILURES:
                if not isinstance(value, types.FunctionType):  # it is in what this one uses
                    return f"the {where} {name!r} of {fn.__name__} is a {type_name(value)}; "
    return ""


def _functions_of(given: object) -> Iterator[types.FunctionType]:
    seen: set[int] = set()
    waiting = [given]
    while waiting and len(seen) < _SEARCHED_MAX:
        one = waiting.pop(0)
        if id(one) in seen or isinstance(one, types.ModuleType | type):
            continue
        seen.add(id(one))
        if isinstance(one, types.FunctionType):
            yield one
            waiting += [value for _, _, value in _used(one)]
        else:
            waiting += gc.get_referents(one)


def _used(fn: types.FunctionType) -> Iterator[tuple[str, str, Any]]:
    """Yield the outside objects that a function uses: the kind of reference, the name and the
    object.
    """
    code = fn.__code__
    for name, cell in zip(code.co_freevars, fn.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # it is not assigned yet
            yield "variable", name, cell.cell_contents
    for name in code.co_names:
        if name in fn.__globals__:
            yield "global", name, fn.__globals__[name]
    defaults = fn.__defaults__ or ()
    named = code.co_varnames[: code.co_argcount]
    for name, value in zip(named[len(named) - len(defaults) :], defaults, strict=True):
        yield "default", name, value


def unpickled(function: Pickled[T]) -> T:
    """Return the unpickled function; the same object for the same data."""
    return _unpickled(function)  # type: ignore[no-any-return]


@cache
def _unpickled(function: Pickled[Any]) -> Any:
    for entry in function.path:
        if entry not in sys.path and os.path.isdir(entry):
            sys.path.append(entry)
    try:
        return cloudpickle.loads(function.data)
    except CALL_FAILURES as error:
        raise ProcessError(
            f"{function.name} cannot be read in a Spark worker: {shown_error(error)}. Nothing of "
            "this epoch is committed: give the workers the modules that it uses, as with "
            "spark.sparkContext.addPyFile, or correct how its objects are unpickled"
        ) from error


class PickledBases(Sequence[ShardState]):
    """The shards before an epoch, pickled in chunks. Every task receives all chunks and unpickles
    the ones that it needs.

    They are in compressed chunks. A chunk without a changed shard is taken from the epoch before,
    so the work of the driver follows the number of shards that have changed.

    Parameters:
        bases: the shards in order.
        before: those of an earlier epoch.
    """

    def __init__(self, bases: Sequence[ShardState], before: PickledBases | None = None) -> None:
        self._size = len(bases)
        chunks: tuple[_Chunk, ...] = () if before is None else before._chunks
        starts = range(0, self._size, _CHUNK_SHARDS)
        pieces = [bases[start : start + _CHUNK_SHARDS] for start in starts]
        self._chunks: tuple[_Chunk, ...] = tuple(
            known if known is not None and known.is_of(piece) else _Chunk(piece)
            for piece, known in zip(pieces, chain(chunks, repeat(None)), strict=False)
        )
        self._opened: tuple[int, Sequence[ShardState]] = (-1, ())

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [self[shard] for shard in range(*place.indices(self._size))]
        number, offset = divmod(range(self._size)[place], _CHUNK_SHARDS)
        if self._opened[0] != number:  # a task runs its shards in order
            self._opened = number, self._chunks[number].shards()
        return self._opened[1][offset]


class _Chunk:
    """Some shards, pickled and compressed."""

    def __init__(self, shards: Sequence[ShardState]) -> None:
        self._source: Sequence[ShardState] | None = shards
        content = pickle.dumps(shards, pickle.HIGHEST_PROTOCOL)
        self._size = len(content)
        self._data: bytes = pa.compress(content, codec="zstd", asbytes=True)

    def is_of(self, shards: Sequence[ShardState]) -> bool:
        """Return whether the chunk was made of the same objects. In a task it is not known."""
        source = self._source
        return source is not None and len(source) == len(shards) and all(map(is_, source, shards))

    def shards(self) -> Sequence[ShardState]:
        content = pa.decompress(self._data, self._size, codec="zstd", asbytes=True)
        return pickle.loads(content)  # type: ignore[no-any-return]  # noqa: S301 (the driver's own)

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_source": None}
