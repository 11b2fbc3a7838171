"""Types of the values of expressions, and the types of the fields of record classes."""

from __future__ import annotations

import datetime as dt
import decimal
import functools
import typing
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import pyarrow as pa

from statekit.codec.annotations import peel, struct_fields, struct_flavour
from statekit.expressions.tree import decimal_size
from statekit.records.arrow_scalars import scalar

Kind = Literal[
    "null", "bool", "int", "float", "decimal", "text", "date", "timestamp", "interval", "other"
]

_CLASSES: dict[type, Kind] = {
    bool: "bool",
    int: "int",
    float: "float",
    decimal.Decimal: "decimal",
    str: "text",
    dt.date: "date",
    dt.datetime: "timestamp",
    dt.timedelta: "interval",
}
_NAMES: dict[Kind, str] = {
    "null": "NULL",
    "bool": "BOOLEAN",
    "int": "BIGINT",
    "float": "DOUBLE",
    "text": "VARCHAR",
    "date": "DATE",
    "timestamp": "TIMESTAMP",
    "interval": "INTERVAL",
    "other": "a type that expressions do not have",
}
_ARROW: dict[Kind, Any] = {
    "null": pa.null(),
    "bool": pa.bool_(),
    "int": pa.int64(),
    "float": pa.float64(),
    "text": pa.string(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "interval": pa.duration("us"),
}


@dataclass(frozen=True)
class ValueType:
    """The type of a value in an expression.

    Parameters:
        kind: of value. "other" is that of fields that can only be NULL or not.
        nullable: whether it may be NULL.
        digits, places: of a decimal, as for `Decimals`.
    """

    kind: Kind
    nullable: bool = False
    digits: int = 0
    places: int = 0

    def __str__(self) -> str:
        if self.kind == "decimal":
            return f"DECIMAL({self.digits}, {self.places})"
        return _NAMES[self.kind]

    @property
    def arrow(self) -> Any:
        """The Arrow type of a column of such values."""
        if self.kind == "decimal":
            return pa.decimal128(self.digits, self.places)
        return _ARROW[self.kind]

    @property
    def annotation(self) -> Any:
        """The annotation of a field that holds such values; None if the kind does not say it.

        >>> ValueType("int", nullable=True).annotation
        int | None
        """
        classes = [cls for cls, kind in _CLASSES.items() if kind == self.kind]
        if not classes or self.kind == "decimal":
            return None
        return classes[0] | None if self.nullable else classes[0]

    def with_null(self, nullable: bool = True) -> ValueType:
        """Return the same type, nullable or not."""
        return self if self.nullable is nullable else replace(self, nullable=nullable)

    def holds(self, other: ValueType) -> bool:
        """Return whether every value of another type of this kind, NULL aside, is one of this."""
        if self.kind != "decimal" or other.kind != "decimal":
            return self.kind == other.kind
        whole = self.digits - self.places >= other.digits - other.places
        return whole and self.places >= other.places


def type_of_value(value: Any) -> ValueType:
    """Return the type of a constant."""
    if value is None:
        return ValueType("null", nullable=True)
    if isinstance(value, decimal.Decimal):
        return ValueType("decimal", False, *decimal_size(value))
    return ValueType(_CLASSES[type(value)])


def type_of_annotation(annotation: Any) -> ValueType:
    """Return the type of the values of a field.

    >>> str(type_of_annotation(float | None)), type_of_annotation(float | None).nullable
    ('DOUBLE', True)
    >>> str(type_of_annotation(list[int]))
    'a type that expressions do not have'
    """
    members, nullable, metadata = peel(annotation)
    classes = {
        type(value) if typing.get_origin(member) is Literal else member
        for member in members
        for value in (typing.get_args(member) if typing.get_origin(member) is Literal else (None,))
    }
    cls = classes.pop() if len(classes) == 1 else None
    if not isinstance(cls, type) or cls not in _CLASSES:
        return ValueType("other", nullable)
    if cls is not decimal.Decimal:
        return ValueType(_CLASSES[cls], nullable)
    arrow = scalar(cls, "", "", metadata).arrow
    return ValueType("decimal", nullable, arrow.precision, arrow.scale)


def holding_type(annotation: Any) -> ValueType | None:
    """Return the type of the values that a field can hold, all of them; None if it has no such
    type.

    >>> holding_type(Literal["de", "fr"]) is None
    True
    """
    members = peel(annotation)[0]
    found = type_of_annotation(annotation)
    is_plain = len(members) == 1 and typing.get_origin(members[0]) is not Literal
    return found if is_plain and found.kind != "other" else None


def nested_class(annotation: Any) -> Any:
    """Return the record class of a field that has fields itself; None for all others."""
    members, _, _ = peel(annotation)
    is_nested = len(members) == 1 and struct_flavour(members[0]) is not None
    return members[0] if is_nested else None


@functools.lru_cache(maxsize=64)  # an expression may have thousands of columns of one class
def field_annotations(cls: Any) -> Mapping[str, tuple[Any, bool]]:
    """Return the type of each field of a record class, and whether a key of that name may be
    absent.
    """
    may_lack = struct_flavour(cls) == "typeddict"
    return {
        field.name: (field.annotation, may_lack and not field.required)
        for field in struct_fields(cls)
    }
