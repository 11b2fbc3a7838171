"""Copies of outputs. A function may change a record after it has emitted it, and emit it again.

`copy.deepcopy` looks at each part of each value. The type says which parts can change, so only
these are copied here. A value that does not have the declared type is left to `deepcopy`: it is
refused later.
"""

from __future__ import annotations

import copy
import typing
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec

from statekit.codec.annotations import IMMUTABLE, is_immutable, peel, struct_fields, struct_flavour
from statekit.records.declaration import flavour_of

Copy = Callable[[Any], Any]
"""Copies one value."""


def copier(annotation: Any, outer: tuple[Any, ...] = ()) -> Copy | None:
    """Return a function that copies one value of an annotation; None if values cannot change.

    Parameters:
        outer: the classes that the annotation is part of.

    >>> copier(tuple[str, int]) is None
    True
    >>> record = {"tags": ["a"]}
    >>> copied = copier(dict[str, list[str]])(record)
    >>> copied == record, copied["tags"] is record["tags"]
    (True, False)
    """
    if is_immutable(annotation):
        return None
    members, nullable, _ = peel(annotation)
    if members and all(flavour_of(member) == "dict" for member in members):
        return _copy_dict
    copy_one = _copier_of(members[0], outer) if len(members) == 1 else copy.deepcopy
    if not nullable or copy_one is copy.deepcopy:
        return copy_one
    return lambda value: None if value is None else copy_one(value)


def _copier_of(member: Any, outer: tuple[Any, ...]) -> Copy:
    """Return the copier of values of one type that can change."""
    if struct_flavour(member) is not None:
        return _copier_of_class(member, outer)
    origin, arguments = typing.get_origin(member), typing.get_args(member)
    if origin is list and arguments:
        return _copier_of_list(copier(arguments[0], outer))
    if origin is dict and arguments and is_immutable(arguments[0]):
        return _copier_of_dict(copier(arguments[1], outer))
    if origin is set and arguments and is_immutable(arguments[0]):
        return lambda value: value.copy() if type(value) is set else copy.deepcopy(value)
    return copy.deepcopy


def _copier_of_class(cls: Any, outer: tuple[Any, ...]) -> Copy:
    """Return the copier of records of a class."""
    fields = struct_fields(cls)
    if all(is_immutable(field.annotation) for field in fields):
        return copy.copy
    has_own_copy = hasattr(cls, "__deepcopy__") or not all(field.init for field in fields)
    if cls in outer or has_own_copy:
        return copy.deepcopy
    copiers = {field.name: copier(field.annotation, (*outer, cls)) for field in fields}
    changing = {name: copy_one for name, copy_one in copiers.items() if copy_one is not None}
    match struct_flavour(cls):
        case "namedtuple":
            return _copier_of_namedtuple(cls, list(copiers.values()))
        case "typeddict":
            return _copier_of_typeddict(changing)
        case "msgspec":
            return _copier_of_object(cls, changing, msgspec.structs.force_setattr)
        case "dataclass":
            return _copier_of_object(cls, changing, object.__setattr__)
    return copy.deepcopy


def _copier_of_list(copy_item: Copy | None) -> Copy:
    def copied(value: Any) -> Any:
        if type(value) is not list:
            return copy.deepcopy(value)
        return value.copy() if copy_item is None else list(map(copy_item, value))

    return copied


def _copier_of_dict(copy_item: Copy | None) -> Copy:
    def copied(value: Any) -> Any:
        if type(value) is not dict:
            return copy.deepcopy(value)
        if copy_item is None:
            return value.copy()
        return {key: copy_item(item) for key, item in value.items()}

    return copied


def _copier_of_namedtuple(cls: Any, copiers: list[Copy | None]) -> Copy:
    make = partial(tuple.__new__, cls)
    changing = [(place, each) for place, each in enumerate(copiers) if each is not None]

    def copied(value: Any) -> Any:
        if type(value) is not cls:
            return copy.deepcopy(value)
        parts = list(value)
        for place, copy_part in changing:
            parts[place] = copy_part(parts[place])
        return make(parts)

    return copied


def _copier_of_typeddict(changing: Mapping[str, Copy]) -> Copy:
    def copied(value: Any) -> Any:
        if type(value) is not dict:
            return copy.deepcopy(value)
        own = value.copy()
        for name, copy_field in changing.items():
            if name in own:
                own[name] = copy_field(own[name])
        return own

    return copied


def _copier_of_object(
    cls: Any, changing: Mapping[str, Copy], set_field: Callable[[Any, str, Any], None]
) -> Copy:
    """Return the copier of objects with attributes.

    Parameters:
        changing: the copiers of the fields whose values can change.
        set_field: sets a field, also one of a frozen object.
    """

    def copied(value: Any) -> Any:
        if type(value) is not cls:
            return copy.deepcopy(value)
        own = copy.copy(value)
        for name, copy_field in changing.items():
            set_field(own, name, copy_field(getattr(value, name)))
        return own

    return copied


def _copy_dict(value: Any) -> Any:
    """Copy a record without a declared type."""
    if type(value) is dict and IMMUTABLE.issuperset(map(type, value.values())):
        return value.copy()
    return copy.deepcopy(value)
