"""Record types as annotations declare them: their fields, and the members of unions."""

from __future__ import annotations

import collections.abc
import dataclasses
import datetime as dt
import itertools
import operator
import types
import typing
from collections.abc import Callable, Iterable
from typing import Any, Literal, Self, cast

import msgspec
import pydantic

from statekit.errors import StateTypeError

Flavour = Literal["pydantic", "dataclass", "namedtuple", "struct", "typeddict", "dict"]
ACCEPTED = (
    "a pydantic BaseModel, a dataclass, a NamedTuple, a msgspec Struct, a TypedDict, "
    "or plain dict / dict[str, Any]"
)
SEQUENCES: dict[Any, Callable[[Iterable[Any]], Any]] = {
    list: list,
    set: set,
    frozenset: frozenset,
    tuple: tuple,
    collections.abc.Sequence: list,
}
MAPPINGS = (dict, collections.abc.Mapping)


class Misfit(Exception):  # noqa: N818 - never leaves this package: it becomes a ProcessError
    """A value does not fit its declared type. Becomes a ProcessError once its record is known."""


@dataclasses.dataclass(frozen=True, slots=True)
class FieldType:
    """One field of a record type; a required one has to be given to make a record."""

    annotation: Any
    nullable: bool
    required: bool
    init: bool = True
    """False for a dataclass field that the constructor does not take."""


@dataclasses.dataclass(frozen=True, slots=True)
class RecordDeclaration:
    """A type whose instances are records, as it is declared. `fields` is None for a plain dict.

    >>> class Flight(typing.NamedTuple):
    ...     tail: str
    ...     delay: float | None = None
    >>> flight = RecordDeclaration.of(Flight, where="turnaround, parameter 'flight'")
    >>> flight.flavour, flight.field_names, flight.fields["delay"].nullable
    ('namedtuple', ('tail', 'delay'), True)
    """

    cls: Any
    name: str
    flavour: Flavour
    fields: dict[str, FieldType] | None
    where: str = dataclasses.field(compare=False)

    @classmethod
    def of(cls, annotation: Any, *, where: str) -> Self:
        """The record type of an annotation; `where` names the declaration in errors.

        Raises:
            StateTypeError: the annotation is not a record type, or names an unknown type.

        >>> RecordDeclaration.of(int, where="count, parameter 'n'")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        statekit.errors.StateTypeError: count, parameter 'n': int is not a record type. Use a ...
        """
        members, nullable, _ = peel(annotation)
        flavour = flavour_of(members[0]) if len(members) == 1 and not nullable else None
        if flavour is None:
            raise StateTypeError(
                f"{where}: {show(annotation)} is not a record type. Use {ACCEPTED}."
            )
        if flavour == "dict":
            return cls(dict, "dict", flavour, None, where)
        record = members[0]
        try:
            fields = _FIELDS[flavour](record)
        except (NameError, TypeError) as error:
            raise StateTypeError(
                f"{where}: the field types of {show(record)} cannot be resolved ({error}). "
                "Define or import them at module level."
            ) from error
        return cls(record, record.__name__, flavour, fields, where)

    @property
    def field_names(self) -> tuple[str, ...]:
        """The names of the fields in declared order; empty for a plain dict."""
        return tuple(self.fields or ())

    def column_annotation(self, field: FieldType) -> Any:
        """What a column of this field holds: a key that may be absent is a null there."""
        absent = self.flavour == "typeddict" and not field.required
        return typing.Optional[field.annotation] if absent else field.annotation  # noqa: UP045


def peel(annotation: Any) -> tuple[tuple[Any, ...], bool, tuple[Any, ...]]:
    """(union members without None, whether None is allowed, metadata) of an annotation.

    >>> peel(typing.Annotated[int | None, "meta"])
    ((<class 'int'>,), True, ('meta',))
    """
    metadata: tuple[Any, ...] = ()
    while True:
        origin = typing.get_origin(annotation)
        if origin is typing.Annotated:
            metadata = (*annotation.__metadata__, *metadata)
            annotation = annotation.__origin__
        elif origin in (typing.Required, typing.NotRequired, typing.Final):
            annotation = typing.get_args(annotation)[0]
        elif isinstance(annotation, typing.NewType):
            annotation = annotation.__supertype__
        elif type(annotation).__name__ == "TypeAliasType":
            annotation = annotation.__value__
        elif annotation is pydantic.AwareDatetime:
            annotation = dt.datetime
        else:
            break
    if annotation is None or annotation is types.NoneType:
        return (), True, metadata
    if annotation is Any or annotation is object:
        return (Any,), True, metadata
    if origin is Literal and None in (values := typing.get_args(annotation)):
        kept = tuple(value for value in values if value is not None)
        return ((Literal[kept],) if kept else ()), True, metadata
    if origin not in (typing.Union, types.UnionType):
        return (annotation,), False, metadata
    parts = [peel(member) for member in typing.get_args(annotation)]
    members = tuple(member for part in parts for member in part[0])
    inner = itertools.chain.from_iterable(part[2] for part in parts)
    return members, any(part[1] for part in parts), (*inner, *metadata)


def show(annotation: Any) -> str:
    """An annotation as a person would write it."""
    if isinstance(annotation, type) and not typing.get_args(annotation):
        return annotation.__name__
    return str(annotation).replace("typing.", "")


def shorten(value: Any, limit: int = 400) -> str:
    """The repr of a value, cut to a length that fits a message."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"


def flavour_of(annotation: Any) -> Flavour | None:
    """Which kind of record a bare annotation is, or None."""
    if annotation is dict:
        return "dict"
    if typing.get_origin(annotation) is dict:
        return "dict" if typing.get_args(annotation) == (str, Any) else None
    if not isinstance(annotation, type):
        return None
    if issubclass(annotation, pydantic.BaseModel):
        return "pydantic"
    if issubclass(annotation, msgspec.Struct):
        return "struct"
    if issubclass(annotation, tuple) and hasattr(annotation, "_fields"):
        return "namedtuple"
    if typing.is_typeddict(annotation):
        return "typeddict"
    return "dataclass" if dataclasses.is_dataclass(annotation) else None


def _field(annotation: Any, required: bool, init: bool = True) -> FieldType:
    return FieldType(annotation, peel(annotation)[1], required, init)


def _hints(cls: Any) -> dict[str, Any]:
    return typing.get_type_hints(cls, include_extras=True)


def _pydantic_fields(cls: Any) -> dict[str, FieldType]:
    cls.model_rebuild()
    found = {}
    for name, info in cls.model_fields.items():
        metadata = tuple(info.metadata)
        annotation = info.annotation
        if metadata:
            annotation = operator.getitem(cast("Any", typing.Annotated), (annotation, *metadata))
        found[name] = _field(annotation, info.is_required())
    return found


def _dataclass_fields(cls: Any) -> dict[str, FieldType]:
    hints, found = _hints(cls), {}
    for f in dataclasses.fields(cls):
        default = f.default is not f.default_factory  # both are MISSING without one
        found[f.name] = _field(hints[f.name], f.init and not default, f.init)
    return found


def _namedtuple_fields(cls: Any) -> dict[str, FieldType]:
    hints = _hints(cls)
    defaults = cls._field_defaults
    return {name: _field(hints.get(name, Any), name not in defaults) for name in cls._fields}


def _struct_fields(cls: Any) -> dict[str, FieldType]:
    hints = _hints(cls)
    return {f.name: _field(hints[f.name], f.required) for f in msgspec.structs.fields(cls)}


def _typeddict_fields(cls: Any) -> dict[str, FieldType]:
    found = {}
    for name, hint in _hints(cls).items():
        origin = typing.get_origin(hint)
        required = origin is typing.Required or name in cls.__required_keys__
        if origin in (typing.Required, typing.NotRequired):
            hint = typing.get_args(hint)[0]
        found[name] = _field(hint, required and origin is not typing.NotRequired)
    return found


_FIELDS: dict[str, Callable[[Any], dict[str, FieldType]]] = {
    "pydantic": _pydantic_fields,
    "dataclass": _dataclass_fields,
    "namedtuple": _namedtuple_fields,
    "struct": _struct_fields,
    "typeddict": _typeddict_fields,
}
