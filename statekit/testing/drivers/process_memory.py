"""Values that the user's code keeps in the memory of the process: globals, class attributes,
closures, default arguments and caches. A crash loses them.

A walk from the functions of a job finds these values, once. At each crash, and before each run, the
values that have changed are restored. Objects keep their identity and are not copied. Objects that
Python cannot look into, such as an iterator or an object of an extension, stay as they are: only a
new process loses them.
"""

from __future__ import annotations

import collections
import contextvars
import dis
import enum
import functools
import operator
import os
import random  # noqa: TID251 - whose state is set back
import sys
import sysconfig
import threading
import types
from collections.abc import (
    Callable,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
    MutableSequence,
    MutableSet,
)
from functools import cache
from itertools import chain
from typing import Any, NamedTuple

from statekit.testing.drivers.code_constants import constants_of, contents_of

_OBJECTS_MAX = 50_000
"""Maximum number of objects that are visited. A job of ordinary functions has some hundred."""

_LARGE = 10_000
"""Maximum number of elements of a container that are visited. For a larger container, only the
number of elements is compared.
"""

_ATOMS = (int, float, str, bytes, bool, type(None), complex)
_MISSING = object()
_CACHED: Any = type(functools.lru_cache(lambda: None))
_METHODS = (
    types.FunctionType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    classmethod,
    staticmethod,
    property,
)
_ADD_ALL: dict[Any, Callable[[Any, Iterable[Any]], object]] = {
    list: list.extend,
    bytearray: bytearray.extend,
    set: set.update,
    collections.deque: collections.deque.extend,
}
"""Containers, and their methods that add elements: those of a subclass may do anything."""

_MUTABLE = (MutableMapping, MutableSequence, MutableSet, types.SimpleNamespace, threading.local)

Parts = tuple[Any, ...]
Visit = tuple[Any, bool]
"""An object to visit, and whether it is held by an object of statekit: that one never changes."""


class ProcessMemory:
    """Values that functions keep in the memory of the process, as they are now.

    Parameters:
        root: an object that refers to the functions, such as a job.
        functions: functions whose packages are the user's, wherever they are installed.

    Attributes:
        constants: numbers, texts and durations that the functions of the user use.
    """

    def __init__(self, root: object, functions: Iterable[object] = ()) -> None:
        packages = {_package(getattr(each, "__module__", None)) for each in functions}
        self._packages = packages - {"statekit"} - sys.stdlib_module_names
        self._functions: list[types.FunctionType] = []
        self._kept: list[_Kept] = []
        self._seen: dict[int, Any] = {}  # keeps objects alive, so that none gets the id of another
        self._rebound: dict[int, tuple[dict[str, Any], set[str]]] = {}
        waiting: list[Visit] = [(root, True)]
        while waiting and len(self._seen) < _OBJECTS_MAX:
            value, is_ours = waiting.pop()
            if type(value) not in _ATOMS and id(value) not in self._seen:
                self._seen[id(value)] = value
                waiting += self._visited(value, is_ours)
        for names, rebound in self._rebound.values():
            self._kept.append(_globals(names, sorted(rebound)))
        self._seen.clear()
        self.constants = constants_of(self._functions)
        self._functions.clear()

    def restore(self) -> None:
        """Restore the values that have changed, as a new process has them."""
        for each in self._kept:
            each.restore()

    def _visited(self, value: Any, is_ours: bool) -> Iterable[Visit]:
        """Record the contents of an object, if it can change, and return the objects to which it
        refers.
        """
        match value:
            case types.FunctionType():
                return self._function(value)
            case types.MethodType():
                return [(value.__self__, is_ours), (value.__func__, is_ours)]
            case classmethod() | staticmethod():
                return [(value.__func__, is_ours)]
            case property():
                return [(value.fget, is_ours), (value.fset, is_ours)]
            case functools.partial():
                return [(part, is_ours) for part in (value.func, value.args, value.keywords)]
            case types.ModuleType() | enum.Enum() | os._Environ():
                return ()
            case type():
                return self._class(value)
            case tuple() | frozenset():
                return [(each, is_ours) for each in value]
        return self._instance(value, is_ours)

    def _function(self, function: types.FunctionType) -> Iterator[Visit]:
        is_ours = _package(function.__module__) == "statekit"
        for part in (*(function.__closure__ or ()), function.__defaults__, function.__kwdefaults__):
            yield part, is_ours
        yield (vars(function).get("__wrapped__") if is_ours else vars(function)), is_ours
        if self._is_of_user(function.__module__):
            self._functions.append(function)
            yield from self._names_of(function.__code__, function.__globals__)

    def _names_of(self, code: types.CodeType, names: dict[str, Any]) -> Iterator[Visit]:
        """Yield the globals that code uses, and the names of the user's modules that it uses."""
        of_code = _names_in(code)
        self._rebinds(names, of_code.bound)
        for name in of_code.used & names.keys():
            value = names[name]
            yield value, False
            if isinstance(value, types.ModuleType) and self._is_of_user(value.__name__):
                inside = vars(value)
                self._rebinds(inside, of_code.assigned & inside.keys())
                yield from ((inside[each], False) for each in of_code.used & inside.keys())

    def _rebinds(self, names: dict[str, Any], bound: Iterable[str]) -> None:
        self._rebound.setdefault(id(names), (names, set()))[1].update(bound)

    def _class(self, cls: type) -> Iterator[Visit]:
        if not self._is_of_user(cls.__module__) or issubclass(cls, enum.Enum):
            return
        self._kept.append(_attributes(cls))
        for name, value in [("", cls.__bases__), *vars(cls).items()]:
            if not name.startswith("__") or isinstance(value, _METHODS):
                yield value, False

    def _instance(self, value: Any, is_ours: bool) -> Iterator[Visit]:
        cls = type(value)
        if not is_ours and (kept := _of_builtin(value)) is not None:
            self._kept.append(kept)
        if isinstance(value, dict | list | set | collections.deque) and len(value) <= _LARGE:
            parts = chain(value, value.values()) if isinstance(value, dict) else value
            yield from ((each, is_ours) for each in list(parts))
        elif cls in (types.CellType, _CACHED):
            kept = value.__wrapped__ if cls is _CACHED else contents_of(value, _MISSING)
            yield kept, is_ours
        is_of_user = self._is_of_user(cls.__module__)
        is_ours = not is_of_user and _package(cls.__module__) == "statekit"
        if is_ours or is_of_user or isinstance(value, _MUTABLE):
            slotted = _slots(value)
            if not is_ours and slotted.first:
                self._kept.append(slotted)
            yield from ((each, is_ours) for each in slotted.first)
            yield getattr(value, "__dict__", None), is_ours
            yield cls, is_ours

    def _is_of_user(self, module: str | None) -> bool:
        package = _package(module)
        return package in self._packages or _is_outside(package)


def _package(module: object) -> str:
    return module.partition(".")[0] if isinstance(module, str) else ""


@cache
def _is_outside(package: str) -> bool:
    """Return whether a package is neither of Python nor installed, nor statekit itself."""
    if package in ("", "statekit", "builtins") or package in sys.stdlib_module_names:
        return False
    module = sys.modules.get(package)
    places = getattr(module, "__path__", None) or [getattr(module, "__file__", None)]
    installed = {sysconfig.get_path(kind) for kind in ("purelib", "platlib")}
    return not any(str(place).startswith(of) for place in places for of in installed)


# ----------------------------------------------------------------------------------- names in code


class _Names(NamedTuple):
    """Names in code.

    Parameters:
        used: all names.
        bound: the globals that the code binds or deletes.
        assigned: the attributes that the code sets or deletes.
    """

    used: frozenset[str]
    bound: frozenset[str]
    assigned: frozenset[str]


@cache
def _names_in(code: types.CodeType) -> _Names:
    """Return the names in code, and in the functions within it."""
    by_use: dict[str, set[str]] = {"GLOBAL": set(), "ATTR": set()}
    for each in dis.get_instructions(code):
        action, _, kind = each.opname.partition("_")
        if action in ("STORE", "DELETE") and kind in by_use:
            by_use[kind].add(each.argval)
    found = _Names(frozenset(code.co_names), *map(frozenset, by_use.values()))
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            within = _names_in(inner)
            found = _Names(*(one | other for one, other in zip(found, within, strict=True)))
    return found


# ------------------------------------------------------------------------------- what is set back


class _Kept:
    """Contents of an object that can change.

    Parameters:
        read: returns the contents, as a flat tuple.
        write: restores such a tuple.
        size: returns the length of the tuple, if only the length is compared.

    Attributes:
        first: the contents at first.
    """

    def __init__(
        self,
        read: Callable[[], Parts],
        write: Callable[[Parts], object],
        size: Callable[[], int] | None = None,
    ) -> None:
        self._read, self._write, self._size = read, write, size
        self.first = read()

    def restore(self) -> None:
        """Restore the first contents, if they have changed."""
        if self._size is not None and self._size() == len(self.first):
            return
        now = self._read()
        if len(now) != len(self.first) or not all(map(operator.is_, now, self.first)):
            self._write(self.first)


def _of_builtin(value: Any) -> _Kept | None:
    """Return the contents of an object of a built-in class; None if it cannot change."""
    match value:
        case dict():
            return _dict(value)
        case list() | bytearray() | set() | collections.deque():
            return _container(value)
        case types.CellType():
            return _cell(value)
        case random.Random():
            return _Kept(lambda: (value.getstate(),), lambda state: value.setstate(*state))
        case contextvars.ContextVar():
            return _context_variable(value)
    if type(value) is _CACHED:
        return _Kept(lambda: (value.cache_info().misses,), lambda _: value.cache_clear())
    return None


def _dict(value: dict[Any, Any]) -> _Kept:
    # Methods of the class itself: those of a subclass of the user may do anything.
    own: Any = collections.OrderedDict if isinstance(value, collections.OrderedDict) else dict

    def write(first: Parts) -> None:
        own.clear(value)
        half = len(first) // 2
        own.update(value, zip(first[:half], first[half:], strict=True))

    def read() -> Parts:
        return (*own.keys(value), *own.values(value))

    return _Kept(read, write, (lambda: 2 * len(value)) if len(value) > _LARGE else None)


def _container(value: Any) -> _Kept:
    own = next(cls for cls in _ADD_ALL if isinstance(value, cls))

    def write(first: Parts) -> None:
        own.clear(value)
        _ADD_ALL[own](value, first)

    return _Kept(lambda: tuple(value), write, value.__len__ if len(value) > _LARGE else None)


def _cell(cell: types.CellType) -> _Kept:
    def write(first: Parts) -> None:
        if first != (_MISSING,):
            cell.cell_contents = first[0]

    return _Kept(lambda: (contents_of(cell, _MISSING),), write)


def _context_variable(variable: contextvars.ContextVar[Any]) -> _Kept:
    def read() -> Parts:
        try:
            return (variable.get(),)
        except LookupError:
            return (_MISSING,)

    def write(first: Parts) -> None:
        if first != (_MISSING,):
            variable.set(*first)

    return _Kept(read, write)


def _globals(names: dict[str, Any], rebound: list[str]) -> _Kept:
    def write(first: Parts) -> None:
        for name, value in zip(rebound, first, strict=True):
            if value is not _MISSING:
                names[name] = value
            else:
                names.pop(name, None)

    return _Kept(lambda: tuple(names.get(name, _MISSING) for name in rebound), write)


def _attributes(cls: type) -> _Kept:
    """Return the attributes of a class that are no methods."""

    def own() -> dict[str, Any]:
        return {
            name: value
            for name, value in vars(cls).items()
            if not name.startswith(("__", "_abc_")) and not isinstance(value, _METHODS)
        }

    def write(_: Parts) -> None:
        now = own()
        for name in now.keys() - first.keys():
            delattr(cls, name)
        for name, value in first.items():
            if now.get(name, _MISSING) is not value:
                setattr(cls, name, value)

    first = own()
    return _Kept(lambda: tuple(chain.from_iterable(own().items())), write)


def _slots(value: Any) -> _Kept:
    """Return the contents of the slots of an object, which are not in its `__dict__`."""
    descriptors: Mapping[str, Any] = {
        name: each
        for cls in type(value).__mro__
        for name, each in vars(cls).items()
        if isinstance(each, types.MemberDescriptorType)
    }

    def read() -> Parts:
        return tuple(_slot(each, value) for each in descriptors.values())

    def write(first: Parts) -> None:
        for each, held in zip(descriptors.values(), first, strict=True):
            if held is _slot(each, value):
                continue
            if held is _MISSING:
                each.__delete__(value)
            else:
                each.__set__(value, held)

    return _Kept(read, write)


def _slot(descriptor: Any, value: Any) -> Any:
    try:
        return descriptor.__get__(value)
    except AttributeError:  # nothing was assigned yet
        return _MISSING
