"""Calls by the names of their parameters, and the types of their arguments for a JSON Schema."""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NotRequired, Required, Union

from pydantic import ConfigDict, JsonValue, TypeAdapter
from typing_extensions import TypedDict

from statekit.declared_call import is_unpacked
from statekit.errors import StateTypeError

_PLAIN = (bool, int, float, str, types.NoneType)


def called(made: Callable[..., Any], arguments: Mapping[str, Any], at: str, *before: Any) -> Any:
    """Call a function with arguments by parameter, as a `DeclaredCall` has them.

    Parameters:
        at: the place of the call in a document, for messages.
        before: the first arguments, such as the object of a method.

    Raises:
        StateTypeError: the arguments do not fit, or the function refuses them.

    >>> called(sorted, {"iterable": [2, 1], "reverse": True}, "job")
    [2, 1]
    """
    left, args = dict(arguments), list(before)
    kwargs: dict[str, Any] = {}
    parameters = list(inspect.signature(made).parameters.values())[len(before) :]
    has_list = any(each.kind is each.VAR_POSITIONAL for each in parameters)
    for parameter in parameters:
        name, kind = parameter.name, parameter.kind
        by_place = kind is parameter.POSITIONAL_ONLY or (
            has_list and kind is parameter.POSITIONAL_OR_KEYWORD
        )
        if kind is parameter.VAR_KEYWORD:
            given = left if is_unpacked(parameter) else left.pop(name, {})
            kwargs |= given
            left = {} if is_unpacked(parameter) else left
        elif kind is parameter.VAR_POSITIONAL:
            args += left.pop(name, [])
        elif name in left:
            args.append(left.pop(name)) if by_place else kwargs.update({name: left.pop(name)})
        elif by_place and parameter.default is not parameter.empty:
            args.append(parameter.default)
    try:
        if left:
            raise TypeError(f"it has no parameter {min(left)!r}")
        inspect.signature(made).bind(*args, **kwargs)
        return made(*args, **kwargs)
    except (TypeError, ValueError) as error:
        raise StateTypeError(f"{at}: {error}") from error


@functools.cache
def arguments_type(made: Callable[..., Any], name: str, *, of_method: bool) -> TypeAdapter[Any]:
    """Return the type of the arguments of a call, from its signature.

    Numbers, texts, truth values and choices have their type. Anything else is a JSON value, which
    is checked when it is read.

    Parameters:
        name: of the call.
        of_method: leave out the first parameter.

    >>> def window(size: str, kind: Literal["a", "b"] = "a") -> None: ...
    >>> arguments_type(window, "window", of_method=False).json_schema()["required"]
    ['size']
    """
    fields: dict[str, Any] = {}
    for parameter, annotation, default in _parameters(made, of_method=of_method):
        kind = Required if default is inspect.Parameter.empty else NotRequired
        fields[parameter] = kind[_plain(annotation)]
    make: Any = TypedDict
    typed = make(name, fields)
    typed.__pydantic_config__ = ConfigDict(extra="forbid", strict=True)
    return TypeAdapter(typed)


def _parameters(made: Callable[..., Any], *, of_method: bool) -> Iterator[tuple[str, Any, Any]]:
    """Yield the name, the annotation and the default value of each argument."""
    function = made.__init__ if isinstance(made, type) else made  # type: ignore[misc]
    of_method = of_method or isinstance(made, type)
    hints = typing.get_type_hints(inspect.unwrap(function), include_extras=True)
    for parameter in list(inspect.signature(function).parameters.values())[of_method:]:
        annotation = hints.get(parameter.name, Any)
        if parameter.kind is parameter.VAR_KEYWORD and is_unpacked(parameter):
            (of,) = typing.get_args(annotation)
            types_ = typing.get_type_hints(of)
            for name, each in types_.items():
                needed = name in of.__required_keys__
                yield name, each, parameter.empty if needed else None
        elif parameter.kind is parameter.VAR_KEYWORD:
            yield parameter.name, dict[str, Any], None
        elif parameter.kind is parameter.VAR_POSITIONAL:
            yield parameter.name, list[Any], None
        else:
            yield parameter.name, annotation, parameter.default


def _plain(annotation: Any) -> Any:
    """Return the type of an argument: its own if it is plain, else any JSON value."""
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation in _PLAIN or origin is Literal:
        return annotation
    if origin in (Union, types.UnionType):
        plain = [_plain(each) for each in parts]
        return JsonValue if JsonValue in plain else Union[tuple(plain)]  # noqa: UP007
    if origin is list:
        return list[JsonValue]
    if origin is dict or (isinstance(origin, type) and issubclass(origin, Mapping)):
        return dict[str, JsonValue]
    return JsonValue
