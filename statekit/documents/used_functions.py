"""The functions that a function uses, as far as its code names them, with digests of their source.

Followed are names of globals that are functions of the same top-level package, attributes of its
modules, and variables of enclosing functions; and what these use, in turn. Methods, functions that
are found by other ways, such as in a dict or by `getattr`, classes and constants are not.
"""

from __future__ import annotations

import hashlib
import inspect
import textwrap
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from statekit.functions.process import Process

_DIGEST_CHARACTERS = 16

_FUNCTIONS_MAX = 1_000
"""How many functions are followed. More are left out, the same ones in each process."""


def source_digest(of: Callable[..., Any]) -> str | None:
    """Return a digest of the source of a function, with its callbacks if it is a process function.

    It does not change with the place of the function in its file, and not with what it calls.
    None without a source, as for functions of C.
    """
    return _digest(_functions_of(of))


def used_digests(of: Callable[..., Any]) -> dict[str, str]:
    """Return the digests of the functions of its package that a function uses, by
    `module:qualified name`, sorted.

    >>> sorted(used_digests(used_digests))[0]
    'statekit.documents.used_functions:_called_by'
    """
    own = _functions_of(of)
    seen: dict[str, FunctionType] = {}
    waiting = [each for each in own if isinstance(each, FunctionType)]
    known = set(map(_name_of, waiting))
    while waiting and len(seen) < _FUNCTIONS_MAX:
        for used in _called_by(waiting.pop(0)):
            name = _name_of(used)
            if name not in known:
                known.add(name)
                seen[name] = used
                waiting.append(used)
    digests = ((name, _digest([seen[name]])) for name in sorted(seen))
    return {name: digest for name, digest in digests if digest is not None}


def _functions_of(of: Any) -> tuple[Callable[..., Any], ...]:
    return of.functions if isinstance(of, Process) else (of,)


def _digest(functions: Iterable[Callable[..., Any]]) -> str | None:
    digest = hashlib.sha256()
    for function in functions:
        try:
            digest.update(textwrap.dedent(inspect.getsource(function)).encode())
        except (OSError, TypeError):
            return None
    return digest.hexdigest()[:_DIGEST_CHARACTERS]


def _called_by(function: FunctionType) -> Iterator[FunctionType]:
    """Yield the functions of the same package that a function names, in the order of its code."""
    unwrapped: Any = inspect.unwrap(function)
    if not isinstance(unwrapped, FunctionType):
        return
    function = unwrapped
    names = list(_names_in(function.__code__))
    values = [function.__globals__[name] for name in names if name in function.__globals__]
    values += [_content(cell) for cell in function.__closure__ or ()]
    package = _package(function.__module__)
    modules = [value for value in values if isinstance(value, ModuleType)]
    values += [
        vars(module)[name]
        for module in modules
        if _package(module.__name__) == package
        for name in names
        if name in vars(module)
    ]
    for value in values:
        for used in _functions_of(value):
            if isinstance(used, FunctionType) and _package(used.__module__) == package:
                yield used


def _names_in(code: CodeType) -> Iterator[str]:
    """Yield the names of globals and attributes in code, and in the functions within it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is not assigned yet
        return None


def _package(module: str | None) -> str:
    return (module or "").partition(".")[0]


def _name_of(function: FunctionType) -> str:
    return f"{function.__module__}:{function.__qualname__}"
