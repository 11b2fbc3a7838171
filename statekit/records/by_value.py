"""Pickling by value of functions and classes that are defined in a script or notebook.

cloudpickle does so. Three kinds of class need help: msgspec Structs, which cannot be rebuilt from
their finished attributes; classes on which msgspec keeps a private cache that cannot be pickled;
and classes with annotations as text (`from __future__ import annotations`), which only the script
itself could resolve.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import sys
import types
import typing
from typing import Any

import cloudpickle
import msgspec

# What pickles of cloudpickle call by these names, so that they stay.
from cloudpickle.cloudpickle import _get_or_create_tracker_id, _lookup_class_or_track

_StructMeta: Any = type(msgspec.Struct)
_NO_FILE = "<dynamic-code>"
_CACHE = "__msgspec_cache__"

# What msgspec makes itself when it builds a Struct class.
_MADE_BY_MSGSPEC = frozenset({"__dict__", "__weakref__", "__match_args__", "__slots__", _CACHE})


def dumps(given: object, *, keeps_files: bool = False) -> bytes:
    """Pickle an object. `pickle.loads` reads it in any process.

    Parameters:
        keeps_files: whether code still says which file it is of. cloudpickle leaves it out, so that
            a function has the same bytes wherever it is defined.

    >>> import pickle
    >>> pickle.loads(dumps(lambda number: number + 1))(1)
    2
    """
    buffer = io.BytesIO()
    (_FilesKept if keeps_files else _Pickler)(buffer).dump(given)
    return buffer.getvalue()


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


class _FilesKept(_Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, types.CodeType):
            return super().reducer_override(obj)
        create, arguments, *rest = self.dispatch_table[types.CodeType](obj)
        is_file = [isinstance(each, str) and each == _NO_FILE for each in arguments]
        kept = (
            obj.co_filename if own else each for own, each in zip(is_file, arguments, strict=True)
        )
        return create, tuple(kept), *rest


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
    """Replace the names of types in annotations by the types. In a worker's `__main__` the names
    are undefined.
    """
    own = inspect.get_annotations(cls)
    if not own:
        return
    # A name that is unknown here is not used: decoration would have refused it.
    with contextlib.suppress(NameError, TypeError, AttributeError):
        hints = typing.get_type_hints(cls, include_extras=True)
        cls.__annotations__ = {name: hints.get(name, given) for name, given in own.items()}


def _struct_recipe(cls: Any) -> tuple[Any, ...]:
    """Return the recipe of a Struct class for pickle: its constructor call, and attributes that are
    set afterwards.

    Annotations come second, since they may refer to the class itself. Each process has a class
    once: cloudpickle's register has it under the name that it got where it was defined.
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
    known_as = _get_or_create_tracker_id(cls)
    arguments = (known_as, cls.__name__, cls.__bases__, namespace, fields, options)
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
    known_as: str,
    name: str,
    bases: tuple[type, ...],
    namespace: dict[str, Any],
    fields: list[tuple[str, dict[str, Any]]],
    options: dict[str, Any],
) -> Any:
    fields_by_name = {field: msgspec.field(**recipe) for field, recipe in fields}
    annotations = dict.fromkeys(fields_by_name, Any)
    made = _StructMeta(
        name, bases, {**namespace, "__annotations__": annotations, **fields_by_name}, **options
    )
    return _lookup_class_or_track(known_as, made)


def _annotate(cls: type, annotations: dict[str, Any]) -> None:
    cls.__annotations__ = annotations
