"""Calls that made parts of a job, kept as data, so that a job can be written as a document."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from typing import Any, TypeVar

M = TypeVar("M", bound=Callable[..., Any])

_KEPT = "_declared_call"


@dataclass(frozen=True)
class DeclaredCall:
    """The call of a public function or class that made an object.

    Parameters:
        name: of the function or class, such as "sources.kafka".
        arguments: by parameter, as they were given; without those that have their default.
    """

    name: str
    arguments: Mapping[str, Any]

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave the call behind when its object goes to another process, which writes no document:
        not all arguments can be pickled.
        """
        return type(None), ()


DECLARABLE: dict[str, Callable[..., Any]] = {}
"""The functions and classes whose objects may be in a document, by name."""

_NAMES: dict[type, str] = {}


def declarable(name: str) -> Callable[[M], M]:
    """Decorate a function or a class whose objects may be in a document.

    A function, or the `__init__` of a class, keeps its arguments with the object. Those of a
    dataclass are its fields.

    Parameters:
        name: below `statekit`.

    >>> @declarable("examples.bounded")
    ... class Bounded:
    ...     def __init__(self, least: int, *, most: int = 9) -> None:
    ...         self.between = least, most
    >>> declared_call_of(Bounded(2))
    DeclaredCall(name='examples.bounded', arguments={'least': 2})
    >>> del DECLARABLE["examples.bounded"]
    """

    def decorate(made: Any) -> Any:
        if not isinstance(made, type):
            DECLARABLE[name] = made = _keeping(made, name)
            return made
        if not is_dataclass(made):
            made.__init__ = _keeping_of_init(made.__init__, name)  # type: ignore[misc]
        _NAMES[made] = name
        DECLARABLE[name] = made
        return made

    return decorate


def declared_call_of(of: object) -> DeclaredCall | None:
    """Return the call that made an object; None if that was none of a declarable function or
    class.
    """
    kept: DeclaredCall | None = getattr(of, _KEPT, None)
    if kept is not None:
        return kept
    name = _NAMES.get(type(of))
    return None if name is None or not is_dataclass(of) else DeclaredCall(name, given_fields(of))


def given_fields(of: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that its class is called with and that have no default
    value.

    >>> @dataclass
    ... class Order:
    ...     number: int
    ...     cents: int = 0
    >>> given_fields(Order(7))
    {'number': 7}
    """
    values = {
        field.name: (getattr(of, field.name), _default(field)) for field in fields(of) if field.init
    }
    return {name: value for name, (value, default) in values.items() if not _equals(value, default)}


def arguments_of(
    signature: inspect.Signature, args: Any, kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a call by parameter.

    Those after `**` are there by their own names if a TypedDict declares them, and otherwise as a
    dict by the name of the parameter. Those that equal their default are left out.

    Raises:
        TypeError: the call does not fit the signature.

    >>> def area(width: int, height: int = 1, **units: str) -> None: ...
    >>> arguments_of(inspect.signature(area), (2,), {"width_unit": "m"})
    {'width': 2, 'units': {'width_unit': 'm'}}
    """
    arguments = dict(signature.bind(*args, **kwargs).arguments)
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD and is_unpacked(parameter):
            arguments |= arguments.pop(parameter.name, {})
        elif parameter.kind is parameter.VAR_POSITIONAL and parameter.name in arguments:
            arguments[parameter.name] = list(arguments[parameter.name])
        elif parameter.name in arguments and _equals(arguments[parameter.name], parameter.default):
            del arguments[parameter.name]
    return arguments


def is_unpacked(parameter: inspect.Parameter) -> bool:
    """Return whether a TypedDict declares the arguments after `**`."""
    return "Unpack[" in str(parameter.annotation)


def _keeping(function: Any, name: str) -> Any:
    signature = inspect.signature(function)

    @functools.wraps(function)
    def keeping(*args: Any, **kwargs: Any) -> Any:
        made = function(*args, **kwargs)
        call = DeclaredCall(name, arguments_of(signature, args, kwargs))
        object.__setattr__(made, _KEPT, call)  # also of a frozen dataclass
        return made

    return keeping


def _keeping_of_init(init: Any, name: str) -> Any:
    signature = inspect.signature(init)

    @functools.wraps(init)
    def keeping(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        arguments = arguments_of(signature, (self, *args), kwargs)
        arguments.pop(next(iter(signature.parameters)))
        object.__setattr__(self, _KEPT, DeclaredCall(name, arguments))

    return keeping


def _equals(value: Any, default: Any) -> bool:
    return type(value) is type(default) and bool(value == default)


def _default(field: Field[Any]) -> Any:
    """Return the default value of a field, or `MISSING`."""
    if field.default is not MISSING:
        return field.default
    return field.default_factory() if field.default_factory is not MISSING else MISSING
