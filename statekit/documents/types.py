"""Types in documents: classes by their import path, and generic types, unions and annotations."""

from __future__ import annotations

import builtins
import datetime as dt
import decimal
import typing
import uuid
from collections.abc import Callable
from types import GenericAlias, NoneType, UnionType
from typing import Annotated, Any, Literal, Optional, Union

from statekit.documents.imports import import_path
from statekit.errors import StateTypeError
from statekit.shown import shown

_PLAIN: dict[str, Any] = {
    **{name: getattr(builtins, name) for name in ("bool", "int", "float", "str", "bytes")},
    **{name: getattr(builtins, name) for name in ("dict", "list", "tuple", "set", "frozenset")},
    "None": NoneType,
    "Any": Any,
    "date": dt.date,
    "datetime": dt.datetime,
    "time": dt.time,
    "timedelta": dt.timedelta,
    "Decimal": decimal.Decimal,
    "UUID": uuid.UUID,
    "...": ...,
}
"""Types that have a name of one word in documents."""


def is_type(value: Any) -> bool:
    """Return whether a value is a type or an annotation, and no function."""
    return isinstance(value, type) or value is Any or typing.get_origin(value) is not None


def type_to_json(annotation: Any, to_json: Callable[[Any], Any]) -> Any:
    """Return the form of a type in a document.

    Parameters:
        to_json: that of a value within `Annotated`.

    Raises:
        StateTypeError: it cannot be imported.

    >>> type_to_json(dict[str, int | None], str)
    {'of': 'dict', 'arguments': ['str', {'any_of': ['int', 'None']}]}
    """
    if annotation is None:
        return "None"
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is None:
        name = next((name for name, of in _PLAIN.items() if of is annotation), None)
        return import_path(annotation) if name is None else name
    if origin is Annotated:
        of, *added = arguments
        return {"annotated": type_to_json(of, to_json), "with": [to_json(each) for each in added]}
    if origin is Literal:
        return {"literal": [to_json(each) for each in arguments]}
    parts = [type_to_json(each, to_json) for each in arguments]
    if origin in (Union, UnionType):
        return {"any_of": parts}
    return {"of": type_to_json(origin, to_json), "arguments": parts}


def type_from_json(
    form: Any, imported: Callable[[str], Any], from_json: Callable[[Any], Any]
) -> Any:
    """Return the type of a form.

    Parameters:
        imported: imports a class by its path.
        from_json: returns the value of a form within `Annotated`.

    Raises:
        StateTypeError: it is no form of a type, or an import fails.

    >>> type_from_json({"of": "list", "arguments": ["int"]}, str, str)
    list[int]
    """
    if isinstance(form, str):
        return _PLAIN[form] if form in _PLAIN else _class(form, imported)
    parts = dict(form) if isinstance(form, dict) else {}
    if parts.keys() == {"annotated", "with"} and isinstance(parts["with"], list):
        of = type_from_json(parts["annotated"], imported, from_json)
        return Annotated[(of, *map(from_json, parts["with"]))]
    if parts.keys() == {"literal"} and isinstance(parts["literal"], list):
        return Literal[tuple(map(from_json, parts["literal"]))]
    listed = parts.get("any_of", parts.get("arguments"))
    if not isinstance(listed, list) or parts.keys() not in ({"any_of"}, {"of", "arguments"}):
        raise StateTypeError(
            f"{shown(form, 100)} is no type: write its name, as in 'int' or 'shop:Order', or "
            "{'of': …, 'arguments': […]}, {'any_of': […]}, {'annotated': …, 'with': […]} or "
            "{'literal': […]}"
        )
    arguments = tuple(type_from_json(each, imported, from_json) for each in listed)
    if "any_of" in parts:
        return _union(arguments)
    return _generic(type_from_json(parts["of"], imported, from_json), arguments)


def _class(path: str, imported: Callable[[str], Any]) -> Any:
    found = imported(path)
    if not is_type(found):
        raise StateTypeError(f"{shown(path)} is {shown(found, 100)}, and no type")
    return found


def _union(members: tuple[Any, ...]) -> Any:
    if not members:
        raise StateTypeError("a union without types is no type: name at least one")
    if NoneType in members and len(members) == 2:
        return Optional[next(each for each in members if each is not NoneType)]  # noqa: UP045
    return Union[members]  # noqa: UP007


def _generic(origin: Any, arguments: tuple[Any, ...]) -> Any:
    if isinstance(origin, type) and origin.__module__ == "builtins":
        return GenericAlias(origin, arguments)
    try:
        return origin[arguments]
    except TypeError as error:
        raise StateTypeError(f"{shown(origin, 100)} takes no such types ({error})") from error
