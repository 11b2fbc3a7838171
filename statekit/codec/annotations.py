"""Annotations without their wrappers, and the fields of a class."""

from __future__ import annotations

import dataclasses
import datetime as dt
import types
import typing
from collections.abc import Mapping
from typing import Any

import msgspec
import pydantic
import typing_extensions

from statekit.errors import StateTypeError


def unwrap(annotation: Any) -> Any:
    """The annotation without `Annotated`, `NewType`, `Required`, `ReadOnly`, `Final` and aliases.

    >>> unwrap(typing.Annotated[int, "minutes"])
    <class 'int'>
    """
    while True:
        origin = typing.get_origin(annotation)
        if origin in _WRAPPERS:
            annotation = typing.get_args(annotation)[0]
        elif isinstance(annotation, typing.NewType):
            annotation = annotation.__supertype__
        elif isinstance(annotation, _ALIASES):
            annotation = annotation.__value__
        elif annotation is pydantic.AwareDatetime:
            return dt.datetime
        else:
            return annotation


_WRAPPERS = (
    typing.Annotated,
    typing.Required,
    typing.NotRequired,
    typing.Final,
    typing_extensions.ReadOnly,
)
_ALIASES = tuple(
    {
        typing_extensions.TypeAliasType,
        getattr(typing, "TypeAliasType", typing_extensions.TypeAliasType),
    }
)


def union_members(annotation: Any) -> tuple[Any, ...] | None:
    """The members of a union, nested unions and aliases flattened; None if it is not a union.

    >>> union_members(int | None)
    (<class 'int'>, <class 'NoneType'>)
    """
    annotation = unwrap(annotation)
    if typing.get_origin(annotation) not in (typing.Union, types.UnionType):
        return None
    flat: list[Any] = []
    for member in typing.get_args(annotation):
        for part in union_members(member) or (unwrap(member),):
            if part not in flat:
                flat.append(part)
    return tuple(flat)


@dataclasses.dataclass(frozen=True, slots=True)
class FieldSpec:
    """One field of a struct class as Python knows it.

    Args:
        name: its name.
        annotation: its type, resolved.
        required: neither a default nor `total=False` lets it be absent.
    """

    name: str
    annotation: Any
    required: bool


def struct_flavour(cls: object) -> str | None:
    """Which kind of struct a class is, or None.

    >>> struct_flavour(int) is None
    True
    """
    if not isinstance(cls, type):
        return None
    if issubclass(cls, pydantic.BaseModel):
        return "pydantic"
    if issubclass(cls, msgspec.Struct):
        return "msgspec"
    if typing_extensions.is_typeddict(cls):
        return "typeddict"
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return "namedtuple"
    return "dataclass" if dataclasses.is_dataclass(cls) else None


def struct_fields(cls: Any) -> tuple[FieldSpec, ...]:
    """The fields of a struct class, in order.

    Raises:
        StateTypeError: an annotation cannot be resolved or the class keeps more than its fields.

    >>> from typing import NamedTuple
    >>> class Leg(NamedTuple):
    ...     minutes: float = 0.0
    >>> struct_fields(Leg)
    (FieldSpec(name='minutes', annotation=<class 'float'>, required=False),)
    """
    flavour = struct_flavour(cls)
    if flavour == "pydantic":
        return _pydantic_fields(cls)
    hints = _hints(cls)
    if flavour == "msgspec":
        return tuple(
            FieldSpec(info.name, hints[info.name], info.required)
            for info in msgspec.structs.fields(cls)
        )
    if flavour == "typeddict":
        required = _required_keys(cls, hints)
        return tuple(FieldSpec(name, hint, name in required) for name, hint in hints.items())
    if flavour == "namedtuple":
        if missing := [name for name in cls._fields if name not in hints]:
            raise StateTypeError(
                f"{cls.__name__}.{missing[0]} has no type: declare it with typing.NamedTuple"
            )
        defaults = cls._field_defaults
        return tuple(FieldSpec(name, hints[name], name not in defaults) for name in cls._fields)
    return _dataclass_fields(cls, hints)


def _dataclass_fields(cls: Any, hints: Mapping[str, Any]) -> tuple[FieldSpec, ...]:
    for name, hint in hints.items():
        if isinstance(hint, dataclasses.InitVar):
            raise StateTypeError(
                f"{cls.__name__}.{name} is an InitVar, which is not kept: use a field"
            )
    return tuple(
        FieldSpec(
            field.name,
            hints[field.name],
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING,
        )
        for field in dataclasses.fields(cls)
    )


def _pydantic_fields(cls: type[pydantic.BaseModel]) -> tuple[FieldSpec, ...]:
    if cls.model_config.get("extra") == "allow":
        raise StateTypeError(
            f'{cls.__name__} allows extra fields, which have no type: set extra="ignore"'
            " or add a field of type dict[str, str]"
        )
    if not cls.__pydantic_complete__ and cls.model_rebuild(raise_errors=False) is False:
        raise StateTypeError(
            f"an annotation of {cls.__name__} cannot be resolved: define the types it names"
            " at the top of a module"
        )
    return tuple(
        FieldSpec(name, info.annotation, info.is_required())
        for name, info in cls.model_fields.items()
    )


def _required_keys(cls: Any, hints: Mapping[str, Any]) -> frozenset[str]:
    """Which keys of a TypedDict are required, with string annotations read properly.

    `__required_keys__` is wrong under `from __future__ import annotations`: the class is made
    before anyone can see that the text says NotRequired.
    """
    required = set(cls.__required_keys__)
    for name, hint in hints.items():
        while (origin := typing.get_origin(hint)) in _WRAPPERS:
            if origin is typing.NotRequired:
                required.discard(name)
            elif origin is typing.Required:
                required.add(name)
            hint = typing.get_args(hint)[0]
    return frozenset(required)


def _hints(cls: Any) -> dict[str, Any]:
    try:
        return typing_extensions.get_type_hints(cls, include_extras=True)
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        raise StateTypeError(
            f"an annotation of {cls.__name__} cannot be resolved ({error}): define the types it"
            " names at the top of a module, not inside of a function or under TYPE_CHECKING"
        ) from error
