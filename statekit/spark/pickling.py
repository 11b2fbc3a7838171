"""Pickle functions of users, and the shards that they run on, for Spark's workers.

cloudpickle sends functions and classes that are defined in a script or notebook by value. Three
kinds of class need help: msgspec Structs, which cannot be rebuilt from their finished attributes;
classes on which msgspec keeps a private cache that cannot be pickled; and classes with annotations
as text (`from __future__ import annotations`), which only the script itself could resolve.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import os
import pickle
import sys
import typing
from collections.abc import Sequence
from functools import cache
from itertools import chain, repeat
from operator import is_
from typing import Any, Generic, NamedTuple, TypeVar

import cloudpickle
import msgspec
import pyarrow as pa

from statekit.checkpoint.manifest import ShardState

T = TypeVar("T")

_StructMeta: Any = type(msgspec.Struct)
_CACHE = "__msgspec_cache__"
_CHUNK_SHARDS = 64
"""Shards that are unpickled together. With more of them, a task of few shards unpickles others."""

# What msgspec makes itself when it builds a Struct class.
_MADE_BY_MSGSPEC = frozenset({"__dict__", "__weakref__", "__match_args__", "__slots__", _CACHE})


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
    buffer = io.BytesIO()
    _Pickler(buffer).dump(function)
    path = tuple(entry for entry in sys.path if os.path.isabs(entry))
    return Pickled(buffer.getvalue(), path)


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


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type):
            if _CACHE in vars(obj):
                delattr(obj, _CACHE)  # msgspec makes it again when it is needed
            if not _importable(obj):
                _resolve_annotations(obj)
                if isinstance(obj, _StructMeta):
                    return _struct_recipe(obj)
        return super().reducer_override(obj)


def _importable(cls: type) -> bool:
    """Return whether a worker can import a class by reference."""
    resolved: Any = sys.modules.get(cls.__module__)
    by_value = {"__main__", *cloudpickle.list_registry_pickle_by_value()}
    if any(f"{cls.__module__}.".startswith(f"{module}.") for module in by_value):
        return False
    for name in cls.__qualname__.split("."):
        resolved = getattr(resolved, name, None)
    return resolved is cls


def _resolve_annotations(cls: type) -> None:
    """Replace names of types by the types: the names mean nothing in a worker's `__main__`."""
    own = inspect.get_annotations(cls)
    if not own:
        return
    # A name that is unknown here is not used: decoration would have refused it.
    with contextlib.suppress(NameError, TypeError, AttributeError):
        hints = typing.get_type_hints(cls, include_extras=True)
        cls.__annotations__ = {name: hints.get(name, given) for name, given in own.items()}


def _struct_recipe(cls: Any) -> tuple[Any, ...]:
    """Return how to create a Struct class: its call, and what is set once the class exists.

    Annotations come second, since they may refer to the class itself.
    """
    own = inspect.get_annotations(cls)
    left_out = {*_MADE_BY_MSGSPEC, *cls.__struct_fields__, "__annotations__"}
    namespace = {
        name: value
        for name, value in vars(cls).items()
        if name not in left_out and not name.startswith("__struct_")
    }
    config = cls.__struct_config__
    options = {name: getattr(config, name) for name in dir(config) if not name.startswith("_")}
    fields_of_own = [field for field in msgspec.structs.fields(cls) if field.name in own]
    options["kw_only"] = any(field.name not in cls.__match_args__ for field in fields_of_own)
    fields = [(field.name, _field_recipe(field)) for field in fields_of_own]
    arguments = (cls.__name__, cls.__bases__, namespace, fields, options)
    return _struct_of, arguments, own, None, None, _annotate


def _field_recipe(field: Any) -> dict[str, Any]:
    """Return the arguments of `msgspec.field` for a field; its result cannot be pickled."""
    recipe = {"name": field.encode_name}
    if field.default is not msgspec.NODEFAULT:
        recipe["default"] = field.default
    if field.default_factory is not msgspec.NODEFAULT:
        recipe["default_factory"] = field.default_factory
    return recipe


def _struct_of(
    name: str,
    bases: tuple[type, ...],
    namespace: dict[str, Any],
    fields: list[tuple[str, dict[str, Any]]],
    options: dict[str, Any],
) -> Any:
    fields_by_name = {field: msgspec.field(**recipe) for field, recipe in fields}
    annotations = dict.fromkeys(fields_by_name, Any)
    return _StructMeta(
        name, bases, {**namespace, "__annotations__": annotations, **fields_by_name}, **options
    )


def _annotate(cls: type, annotations: dict[str, Any]) -> None:
    cls.__annotations__ = annotations
