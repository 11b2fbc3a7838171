"""Streams with several record types, for a first parameter `A | B`."""

from __future__ import annotations

import typing
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from statekit.codec.annotations import peel, show
from statekit.errors import ProcessError, StateTypeError
from statekit.records.record_type import RecordType
from statekit.shown import shown, type_name


class RecordUnion:
    """Several record types of one stream. The class of a record determines its type.

    >>> from typing import NamedTuple
    >>> class Order(NamedTuple):
    ...     account: str
    >>> class Payment(NamedTuple):
    ...     account: str
    ...     cents: int
    >>> either = records_of(Order | Payment, where="settle, parameter 'event'")
    >>> either.name, either.getter(("account",))(Payment("a", 5))
    ('Order | Payment', 'a')
    """

    def __init__(self, members: tuple[RecordType, ...], where: str) -> None:
        self.members = members
        self.where = where
        self.name = " | ".join(member.name for member in members)
        self._by_class = {member.cls: member for member in members}

    @property
    def cls(self) -> Any:
        """The union of the classes."""
        return typing.Union[tuple(self._by_class)]  # noqa: UP007  built at run time

    @property
    def may_change_fields(self) -> bool:
        """True if a class may change values when a record is created from columns."""
        return any(member.may_change_fields for member in self.members)

    def coerce(self, value: Any) -> Any:
        """Return an instance of one of the types unchanged.

        Raises:
            ProcessError: it is something else. A mapping could be of several types, and an instance
                of a subclass could have more fields.
        """
        if type(value) in self._by_class:
            return value
        raise self._foreign(value)

    def getter(self, fields: tuple[str, ...]) -> Callable[[Any], Any]:
        """Return a getter of one field (a scalar) or of several (a tuple).

        A record of another class surfaces as KeyError: hand it to `missing`.

        Raises:
            ProcessError: one of the types has no such field, or no field is named.
        """
        getters = {cls: member.getter(fields) for cls, member in self._by_class.items()}
        return lambda record: getters[type(record)](record)

    def missing(self, _: KeyError, record: Any) -> ProcessError:
        """Return the ProcessError for a KeyError that a `getter` raised for this record."""
        return self._foreign(record)

    def _foreign(self, value: Any) -> ProcessError:
        return ProcessError(
            f"{self.where}: expected an instance of just one of {self.name}, got "
            f"{type_name(value)}: {shown(value)}"
        )


Records = RecordType | RecordUnion
"""The one or several record types of a stream."""


def records_of(*annotations: Any, where: str) -> Records:
    """Return the record type, or types, of annotations. `where` names the declaration in errors.

    Raises:
        StateTypeError: it is not a record type, or a union whose members are not distinct classes.

    >>> records_of(dict, where="count, parameter 'row'").name
    'dict'
    """
    if isinstance(annotations[0], RecordType):  # a subclass with its own reader
        return replace(annotations[0], where=where)
    peeled = [peel(annotation) for annotation in annotations]
    members: list[Any] = []
    for parts, _, _ in peeled:
        members += [member for member in parts if member not in members]
    if len(members) < 2:
        return RecordType.of(annotations[0], where=where)
    declared = " | ".join(map(show, annotations))
    if any(nullable for _, nullable, _ in peeled):
        raise StateTypeError(
            f"{where}: {declared} allows None, which no stream has: leave None out"
        )
    record_types = tuple(RecordType.of(member, where=where) for member in members)
    for record_type in record_types:
        if record_type.flavour in ("dict", "typeddict"):
            raise StateTypeError(
                f"{where}: {record_type.name} cannot be distinguished from the others of "
                f"{declared} by its class, since its records are plain dicts: use a NamedTuple, a "
                "dataclass, a Struct or a pydantic model"
            )
    return RecordUnion(record_types, where)
