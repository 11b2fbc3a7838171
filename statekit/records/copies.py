"""Copy records, so that no consumer sees what another one changes."""

from __future__ import annotations

import copy
import datetime as dt
import decimal
import enum
import types
import typing
import uuid
from collections.abc import Callable
from typing import Any, Literal

from statekit.records.declaration import RecordDeclaration, flavour_of, peel

Copy = Callable[[Any], Any]

_SCALARS = frozenset(
    {
        bool,
        int,
        float,
        complex,
        str,
        bytes,
        types.NoneType,
        dt.date,
        dt.datetime,
        dt.time,
        dt.timedelta,
        decimal.Decimal,
        uuid.UUID,
    }
)


def copier(annotation: Any) -> Copy | None:
    """A function that copies one value of an annotation; None if values cannot change.

    >>> copier(tuple[str, int]) is None
    True
    >>> given = {"tags": ["a"]}
    >>> made = copier(dict)(given)
    >>> made == given, made["tags"] is given["tags"]
    (True, False)
    """
    if is_immutable(annotation):
        return None
    members, _, _ = peel(annotation)
    if len(members) == 1 and flavour_of(members[0]) not in (None, "dict"):
        record = RecordDeclaration.of(members[0], where="")
        fields = record.fields or {}
        if all(is_immutable(field.annotation) for field in fields.values()):
            return copy.copy
    if members and all(flavour_of(member) == "dict" for member in members):
        return _copied_dict
    return copy.deepcopy


def _copied_dict(value: Any) -> Any:
    if type(value) is dict and _SCALARS.issuperset(map(type, value.values())):
        return value.copy()
    return copy.deepcopy(value)


def is_immutable(annotation: Any, around: tuple[Any, ...] = ()) -> bool:
    """Whether no value of an annotation can change.

    Parameters:
        around: the record types that the annotation is within.
    """
    members, _, _ = peel(annotation)
    return all(_member_is_immutable(member, around) for member in members)


def _member_is_immutable(member: Any, around: tuple[Any, ...]) -> bool:
    origin, arguments = typing.get_origin(member) or member, typing.get_args(member)
    if origin is Literal or member in _SCALARS:
        return True
    if isinstance(member, type) and issubclass(member, enum.Enum):
        return True
    if flavour_of(member) is not None:
        return member in around or _record_is_immutable(member, (*around, member))
    if origin in (tuple, frozenset) and arguments:
        return all(is_immutable(part, around) for part in arguments if part is not Ellipsis)
    return False


def _record_is_immutable(cls: Any, around: tuple[Any, ...]) -> bool:
    record = RecordDeclaration.of(cls, where="")
    fields = record.fields or {}
    return _is_frozen(record) and all(is_immutable(of.annotation, around) for of in fields.values())


def _is_frozen(record: RecordDeclaration) -> bool:
    """Whether fields cannot be set; what they hold may change."""
    cls = record.cls
    if record.flavour == "dataclass":
        return bool(cls.__dataclass_params__.frozen)
    if record.flavour == "struct":
        return bool(cls.__struct_config__.frozen)
    if record.flavour == "pydantic":
        return bool(cls.model_config.get("frozen"))
    return record.flavour == "namedtuple"
