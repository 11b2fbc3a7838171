"""Copies of outputs. A function may change a record after emitting it, and emit it again.

`copy.deepcopy` looks at each part of each value. The type says which parts can change, so only
these are copied here. A value that does not have the declared type is left to `deepcopy`: it is
refused later.
"""

from __future__ import annotations

import copy
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import pydantic

from statekit.codec.annotations import IMMUTABLE, is_immutable, peel, struct_fields, struct_flavour
from statekit.codec.kept_fields import slot_names
from statekit.records.declaration import flavour_of

Copy = Callable[[Any], Any]
"""Copies one value."""


def copier(annotation: Any) -> Copy | None:
    """Return a function that copies one value of an annotation; None if values cannot change.

    >>> copier(tuple[str, int]) is None
    True
    >>> record = {"tags": ["a"]}
    >>> copied = copier(dict[str, list[str]])(record)
    >>> copied == record, copied["tags"] is record["tags"]
    (True, False)
    """
    copiers = _Copiers()
    copy_one = copiers.of(annotation)
    if copy_one is None or not copiers.is_recursive:
        return copy_one

    def copied(value: Any) -> Any:
        try:
            return copy_one(value)
        except RecursionError:  # it contains itself, and is refused later
            return copy.deepcopy(value)

    return copied


class _Copiers:
    """Compiles the copier of a type. Remembers the enclosing classes.

    Attributes:
        is_recursive: whether a class contains itself.
    """

    def __init__(self) -> None:
        self.is_recursive = False
        self._open: dict[Any, list[Copy]] = {}  # the copier, once it is made

    def of(self, annotation: Any) -> Copy | None:
        """Return the copier of a part's type."""
        if is_immutable(annotation):
            return None
        members, nullable, _ = peel(annotation)
        if members and all(flavour_of(member) == "dict" for member in members):
            return _copy_dict
        copy_one = self._of_member(members[0]) if len(members) == 1 else self._of_union(members)
        if not nullable or copy_one is copy.deepcopy:
            return copy_one
        return lambda value: None if value is None else copy_one(value)

    def _of_union(self, members: Sequence[Any]) -> Copy:
        """Return the copier of values of several types, by their classes."""
        classes = [typing.get_origin(member) or member for member in members]
        if len(set(classes)) < len(classes) or Any in classes:
            return copy.deepcopy
        copiers = dict(zip(classes, map(self.of, members), strict=True))

        def copied(value: Any) -> Any:
            copy_one = copiers.get(type(value), copy.deepcopy)
            return value if copy_one is None else copy_one(value)

        return copied

    def _of_member(self, member: Any) -> Copy:
        """Return the copier of values of one type that is mutable."""
        if struct_flavour(member) is not None:
            return self._of_class(member)
        origin, arguments = typing.get_origin(member), typing.get_args(member)
        if origin is list and arguments:
            return _copier_of_list(self.of(arguments[0]))
        if origin is dict and arguments and is_immutable(arguments[0]):
            return _copier_of_dict(self.of(arguments[1]))
        if origin is set and arguments and is_immutable(arguments[0]):
            return lambda value: value.copy() if type(value) is set else copy.deepcopy(value)
        if origin is tuple and arguments and Ellipsis not in arguments:
            return _copier_of_tuple(tuple, list(map(self.of, arguments)))
        if origin is tuple and arguments:
            copy_list = _copier_of_list(self.of(arguments[0]))
            return lambda value: (
                tuple(copy_list(list(value))) if type(value) is tuple else copy.deepcopy(value)
            )
        return copy.deepcopy

    def _of_class(self, cls: Any) -> Copy:
        own_copy = getattr(cls, "__deepcopy__", None)
        has_own_copy = own_copy not in (None, pydantic.BaseModel.__deepcopy__)
        if has_own_copy:
            return copy.deepcopy
        if cls in self._open:
            self.is_recursive, outer = True, self._open[cls]
            return lambda value: outer[0](value)
        self._open[cls] = made = []
        made.append(self._of_fields(cls))
        del self._open[cls]
        return made[0]

    def _of_fields(self, cls: Any) -> Copy:
        copiers = {field.name: self.of(field.annotation) for field in struct_fields(cls)}
        changing = {name: copy_one for name, copy_one in copiers.items() if copy_one is not None}
        match struct_flavour(cls):
            case "namedtuple":
                return _copier_of_tuple(cls, list(copiers.values()))
            case "typeddict":
                return _copier_of_typeddict(changing)
            case "msgspec":
                return _copier_of_object(cls, changing, msgspec.structs.force_setattr)
        return _copier_of_object(cls, changing, object.__setattr__)


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


def _copier_of_tuple(cls: Any, copiers: list[Copy | None]) -> Copy:
    make = partial(tuple.__new__, cls)
    changing = [(place, each) for place, each in enumerate(copiers) if each is not None]
    size, has_dict = len(copiers), bool(cls.__dictoffset__)

    def copied(value: Any) -> Any:
        if type(value) is not cls or len(value) != size:
            return copy.deepcopy(value)
        parts = list(value)
        for place, copy_part in changing:
            parts[place] = copy_part(parts[place])
        own = make(parts)
        if has_dict:
            own.__dict__.update(value.__dict__)
        return own

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
    copy_shallow = _shallow_copier(cls)

    def copied(value: Any) -> Any:
        if type(value) is not cls:
            return copy.deepcopy(value)
        own = copy_shallow(value)
        for name, copy_field in changing.items():
            set_field(own, name, copy_field(getattr(value, name)))
        return own

    return copied


def _shallow_copier(cls: Any) -> Copy:
    """Return a function that copies an object with all its attributes. Attributes other than fields
    are refused later.
    """
    make: Callable[[], Any] | None
    if struct_flavour(cls) == "dataclass" and not hasattr(cls, "__copy__"):
        make, slots = partial(object.__new__, cls), tuple(slot_names(cls))
    elif struct_flavour(cls) == "msgspec" and cls.__dictoffset__:
        make, slots = None, ()
    else:
        return copy.copy
    has_dict = bool(cls.__dictoffset__)

    def copied(value: Any) -> Any:
        own = copy.copy(value) if make is None else make()
        for name in slots:
            if hasattr(value, name):
                object.__setattr__(own, name, getattr(value, name))
        if has_dict:
            own.__dict__.update(value.__dict__)
        return own

    return copied


def _copy_dict(value: Any) -> Any:
    """Copy a record without a declared type."""
    if type(value) is dict and IMMUTABLE.issuperset(map(type, value.values())):
        return value.copy()
    return copy.deepcopy(value)
