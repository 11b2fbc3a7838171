"""A user's process function on its way to Spark's workers.

What lives here: turning a `Process` into bytes and back. What does not: anything stored; state is
never pickled unless a state asks for it (`codec`).

cloudpickle sends functions and classes defined in a script or notebook by value. Two kinds of class
need help: msgspec Structs, whose class cannot be rebuilt from its finished attributes, and classes
on which msgspec keeps a private cache that cannot be pickled.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Any

import cloudpickle
import msgspec
import xxhash

from statekit.process import Process

__all__ = ["Shipment", "pack", "unpack"]

_StructMeta: Any = type(msgspec.Struct)
_CACHE = "__msgspec_cache__"
# What msgspec makes itself when it builds a Struct class.
_MADE_BY_MSGSPEC = frozenset(
    {"__dict__", "__weakref__", "__match_args__", "__slots__", "__doc__", _CACHE}
)
_CONFIG = (
    "frozen",
    "eq",
    "order",
    "array_like",
    "gc",
    "repr_omit_defaults",
    "omit_defaults",
    "forbid_unknown_fields",
    "weakref",
    "dict",
    "cache_hash",
    "tag",
    "tag_field",
)


class Shipment:
    """A packed process function. Small to compare, unpacked once per worker process.

    Attributes:
        data: the pickled function with its types.
        digest: of `data`.
        path: where the sender imports modules from, so that a worker on the same file system finds
            what was sent by reference.
    """

    __slots__ = ("data", "digest", "path")

    def __init__(self, data: bytes, path: tuple[str, ...]) -> None:
        self.data = data
        self.digest = xxhash.xxh3_128_hexdigest(data)
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Shipment, (self.data, self.path)


def pack(declared: Process[Any, Any, Any]) -> Shipment:
    """Pickle a process function for the workers."""
    buffer = io.BytesIO()
    _Pickler(buffer).dump(declared)
    return Shipment(buffer.getvalue(), tuple(entry for entry in sys.path if os.path.isabs(entry)))


_unpacked: dict[str, Process[Any, Any, Any]] = {}


def unpack(shipment: Shipment) -> Process[Any, Any, Any]:
    """The process function of a shipment; the same object for the same shipment."""
    found = _unpacked.get(shipment.digest)
    if found is None:
        for entry in shipment.path:
            if entry not in sys.path and os.path.isdir(entry):
                sys.path.append(entry)
        found = cloudpickle.loads(shipment.data)
        _unpacked[shipment.digest] = found
    return found


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type):
            if _CACHE in vars(obj):
                delattr(obj, _CACHE)  # msgspec makes it again when it is needed
            if isinstance(obj, _StructMeta) and not _importable(obj):
                return _struct_recipe(obj)
        return super().reducer_override(obj)


def _importable(cls: type) -> bool:
    found: Any = sys.modules.get(cls.__module__)
    if cls.__module__ == "__main__":
        return False
    for name in cls.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is cls


def _struct_recipe(cls: Any) -> tuple[Any, ...]:
    members = vars(cls)
    slots = set(cls.__struct_fields__)
    namespace = {
        name: value
        for name, value in members.items()
        if name not in _MADE_BY_MSGSPEC
        and name not in slots
        and not name.startswith("__struct_")
    }
    namespace["__doc__"] = members.get("__doc__")
    namespace |= _defaults(cls)
    config = cls.__struct_config__
    options = {name: getattr(config, name) for name in _CONFIG if hasattr(config, name)}
    return _struct_of, (cls.__name__, cls.__bases__, namespace, options)


def _defaults(cls: Any) -> dict[str, Any]:
    """Defaults as the class body gave them; msgspec keeps those of the last fields."""
    own = cls.__dict__.get("__annotations__", {})
    found = {}
    for field in msgspec.structs.fields(cls):
        if field.name not in own:
            continue
        if field.default is not msgspec.NODEFAULT:
            found[field.name] = msgspec.field(default=field.default, name=_renamed(field))
        elif field.default_factory is not msgspec.NODEFAULT:
            factory = field.default_factory
            found[field.name] = msgspec.field(default_factory=factory, name=_renamed(field))
        elif _renamed(field) is not None:
            found[field.name] = msgspec.field(name=_renamed(field))
    return found


def _renamed(field: Any) -> str | None:
    return field.encode_name if field.encode_name != field.name else None


def _struct_of(
    name: str, bases: tuple[type, ...], namespace: dict[str, Any], options: dict[str, Any]
) -> Any:
    return _StructMeta(name, bases, namespace, **options)
