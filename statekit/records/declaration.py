"""Record types as annotations declare them: their fields, and the members of unions."""

from __future__ import annotations

import collections.abc
import dataclasses
import itertools
import typing
from collections.abc import Callable, Iterable
from typing import Any, Literal, Self

from statekit.codec.annotations import (
    IMMUTABLE,
    Field,
    generic_hint,
    peel,
    show,
    struct_fields,
    struct_flavour,
)
from statekit.codec.annotations import Flavour as StructFlavour
from statekit.codec.kept_fields import check_class
from statekit.errors import StateTypeError
from statekit.foreign import foreign_hint, is_foreign
from statekit.shown import shown, shown_text, type_name

Flavour = StructFlavour | Literal["dict"]
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


class ValueMismatch(Exception):  # noqa: N818 - never leaves this package: it becomes a ProcessError
    """A value does not fit its declared type. Becomes a ProcessError with its record."""


class BesideFields(ValueMismatch):
    """A record has attributes in addition to the fields of its class."""


class ForeignValue(ValueMismatch):
    """A value is one of NumPy or pandas."""


def misfit(path: str, declared: str, value: object, actual: str) -> ValueMismatch:
    """Return the error for a value that does not have its declared type.

    Parameters:
        path: to the value.
        declared: the type.
        actual: the value as text.
    """
    if hint := foreign_hint(value):
        actual = f"{shown(value)} of type {type_name(value)}{hint}"
    mismatch = ForeignValue if hint else ValueMismatch
    return mismatch(f"{path} is declared as {declared}, got {actual}")


def foreign_part(value: Any, around: frozenset[int] = frozenset()) -> Any:
    """Return the NumPy or pandas value that a value is or contains, also in containers and records;
    None if there is none.

    Parameters:
        around: the identities of the containers that contain the value.

    >>> import numpy as np
    >>> foreign_part({"delays": [1, np.int64(2)]}), foreign_part([1, "a", None])
    (np.int64(2), None)
    """
    cls = type(value)
    if cls in IMMUTABLE or value is None or id(value) in around:
        return None
    if is_foreign(value):
        return value
    parts: Iterable[Any] = ()
    if isinstance(value, dict):
        parts = itertools.chain(value, value.values())
    elif isinstance(value, list | tuple | set | frozenset):
        parts = value
    elif struct_flavour(cls) is not None:
        parts = (getattr(value, field.name, None) for field in struct_fields(cls))
    inside = around | {id(value)}
    found = (foreign_part(part, inside) for part in parts)
    return next((part for part in found if part is not None), None)


@dataclasses.dataclass(frozen=True, slots=True)
class RecordDeclaration:
    """A declared type whose instances are records. `fields` is None for a plain dict.

    >>> class Flight(typing.NamedTuple):
    ...     tail: str
    ...     delay: float | None = None
    >>> flight = RecordDeclaration.of(Flight, where="turnaround, parameter 'flight'")
    >>> flight.flavour, flight.field_names, flight.fields["delay"].required
    ('namedtuple', ('tail', 'delay'), False)
    """

    cls: Any
    name: str
    flavour: Flavour
    fields: dict[str, Field] | None
    where: str = dataclasses.field(compare=False)

    @classmethod
    def of(cls, annotation: Any, *, where: str) -> Self:
        """Return the record type of an annotation; `where` names the declaration in errors.

        Raises:
            StateTypeError: the annotation is not a record type, or names an unknown type.

        >>> RecordDeclaration.of(int, where="count, parameter 'n'")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        statekit.errors.StateTypeError: count, parameter 'n': int is not a record type. Use a ...
        """
        members, nullable, _ = peel(annotation)
        flavour = flavour_of(members[0]) if len(members) == 1 and not nullable else None
        if flavour is None and (hint := generic_hint(annotation)):
            raise StateTypeError(f"{where}: {show(annotation)} is not a record type: {hint}")
        if flavour is None:
            raise StateTypeError(
                f"{where}: {show(annotation)} is not a record type. Use {ACCEPTED}."
            )
        if flavour == "dict":
            return cls(dict, "dict", flavour, None, where)
        record = members[0]
        try:
            check_class(record)
            fields = {field.name: field for field in struct_fields(record)}
        except StateTypeError as error:
            raise StateTypeError(f"{where}: {shown_text(error)}") from error
        return cls(record, record.__name__, flavour, fields, where)

    @property
    def field_names(self) -> tuple[str, ...]:
        """The names of the fields in declared order; empty for a plain dict."""
        return tuple(self.fields or ())

    def column_annotation(self, field: Field) -> Any:
        """Return the type of this field's column. Null represents an absent key of a TypedDict."""
        absent = self.flavour == "typeddict" and not field.required
        return typing.Optional[field.annotation] if absent else field.annotation  # noqa: UP045


def flavour_of(annotation: Any) -> Flavour | None:
    """Return the kind of record of a bare annotation; None if it is no record."""
    is_dict = annotation is dict or (
        typing.get_origin(annotation) is dict and typing.get_args(annotation) == (str, Any)
    )
    return "dict" if is_dict else struct_flavour(annotation)
