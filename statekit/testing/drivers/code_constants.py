"""Constants in the code of functions: the numbers, texts and durations that they compare fields
with.
"""

from __future__ import annotations

import datetime as dt
import dis
import types
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

_CONSTANTS_MAX = 64
"""Maximum number of constants that are returned. Larger containers are ignored."""

_TEXT_MAX = 40
"""Maximum length of a constant text, in characters: longer texts are documentation or messages."""


def constants_of(functions: Iterable[types.FunctionType]) -> list[Any]:
    """Return the constants in the code of functions, and in the globals, defaults and closures that
    they use.

    >>> LIMITS = {"gold": 100}
    >>> def is_large(cents, status):
    ...     return cents > LIMITS[status] or cents == 7
    >>> sorted(constants_of([is_large]), key=str)
    [100, 7, 'gold']
    """
    found = chain.from_iterable(map(_used_by, functions))
    kept = [each for each in found if _is_constant(each)]
    return list(dict.fromkeys(kept))[:_CONSTANTS_MAX]


def _used_by(function: types.FunctionType) -> Iterator[Any]:
    """Yield the constants, globals, defaults and closure values that a function uses."""
    code, names = function.__code__, function.__globals__
    yield from _in_code(code)
    for name in _names_in(code):
        yield from _flat(names.get(name))
    yield from _flat(function.__defaults__)
    yield from _flat(function.__kwdefaults__)
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        if name != "__class__":
            yield from _flat(contents_of(cell))


def _in_code(code: types.CodeType) -> Iterator[Any]:
    """Yield the constants in code, and in the functions within it."""
    for instruction in dis.get_instructions(code):
        if instruction.opname == "LOAD_SMALL_INT":  # of Python 3.14: not among the constants
            yield instruction.arg
    for each in code.co_consts:
        yield from _in_code(each) if isinstance(each, types.CodeType) else _flat(each)


def _names_in(code: types.CodeType) -> Iterator[str]:
    """Yield the names in code, and in the functions within it."""
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from _names_in(each)


def _flat(value: Any) -> Iterable[Any]:
    """Return a value, or the elements of a small container."""
    if not isinstance(value, dict | list | tuple | set | frozenset):
        return (value,)
    if len(value) > _CONSTANTS_MAX:
        return ()
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)  # each process has another order
    return chain(value, value.values()) if isinstance(value, dict) else value


def contents_of(cell: types.CellType, empty: Any = None) -> Any:
    """Return the contents of a closure cell.

    Parameters:
        empty: returned if the cell is still empty.
    """
    try:
        return cell.cell_contents
    except ValueError:
        return empty


def _is_constant(value: Any) -> bool:
    """Return whether a field may be compared with a value."""
    if type(value) is str:
        return 0 < len(value) <= _TEXT_MAX and "\n" not in value
    return type(value) in (int, float, dt.timedelta)
