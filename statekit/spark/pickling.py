"""Pickle functions of users, and the shards that they run on, for Spark's workers."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Sequence
from functools import cache
from itertools import chain, repeat
from operator import is_
from typing import Any, Generic, NamedTuple, TypeVar

import cloudpickle
import pyarrow as pa

from statekit.checkpoint.manifest import ShardState
from statekit.records import by_value

T = TypeVar("T")

_CHUNK_SHARDS = 64
"""Shards that are unpickled together. With more of them, a task of few shards unpickles others."""


class Pickled(NamedTuple, Generic[T]):
    """A pickled process function or stateless function, unpickled once per worker process.

    Parameters:
        data: the pickled function with its types.
        path: where the sender imports modules from, so that a worker on the same file system finds
            modules that are pickled by reference.
    """

    data: bytes
    path: tuple[str, ...]


def pickled(function: T) -> Pickled[T]:
    """Pickle a function for the workers."""
    path = tuple(entry for entry in sys.path if os.path.isabs(entry))
    return Pickled(by_value.dumps(function), path)


def unpickled(function: Pickled[T]) -> T:
    """Return the function; the same object for the same data."""
    return _unpickled(function)  # type: ignore[no-any-return]


@cache
def _unpickled(function: Pickled[Any]) -> Any:
    for entry in function.path:
        if entry not in sys.path and os.path.isdir(entry):
            sys.path.append(entry)
    return cloudpickle.loads(function.data)


class PickledBases(Sequence[ShardState]):
    """The shards before an epoch. Each task gets all of them, and unpickles those that it needs.

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
        """Return whether it was made of the same objects. In a task it is not known."""
        source = self._source
        return source is not None and len(source) == len(shards) and all(map(is_, source, shards))

    def shards(self) -> Sequence[ShardState]:
        content = pa.decompress(self._data, self._size, codec="zstd", asbytes=True)
        return pickle.loads(content)  # type: ignore[no-any-return]  # noqa: S301 (the driver's own)

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_source": None}
