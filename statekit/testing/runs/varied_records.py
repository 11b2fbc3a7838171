"""Variations of repeated records: later times, other numbers, and other members of enums."""

from __future__ import annotations

import datetime as dt
import enum
import typing
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from statekit.codec.annotations import union_members, with_metadata
from statekit.job.plan import Input
from statekit.records.record_type import RecordType
from statekit.testing.strategies import instance, is_limited, is_made

_STRIDE = 7
"""Difference between the ints of a field in two repetitions. They never meet those that other
records of a small history had.
"""


class VariedRecords:
    """Variations of the records of a source, one for each repetition.

    Parameters:
        source: the source.
        same: fields that stay as they are: those of keys.
        apart: the time between two repetitions.
    """

    def __init__(self, source: Input, same: Iterable[str], apart: dt.timedelta) -> None:
        self._members: Sequence[RecordType] = source.record_type.members
        self._same = frozenset(same)
        self._apart = apart

    def of(self, record: Any, number: int) -> Any:
        """Return the variation of a record in a repetition; the record itself if its class refuses
        the values.

        Parameters:
            number: the number of the repetition; 0 for the first time, when nothing differs.
        """
        if number == 0:
            return record
        fields = self._fields_of(record)
        for place, name in enumerate(fields):
            if name not in self._same:
                fields[name] = self._varied(record, name, fields[name], number, place)
        return self._made(record, fields)

    def at_one_key(self, record: Any, key: dict[str, Any]) -> Any:
        """Return a record with the common key.

        Parameters:
            key: the fields of the common key, by name. Missing fields are taken from the record.
        """
        fields = self._fields_of(record)
        for name in self._same & fields.keys():
            if type(key.setdefault(name, fields[name])) is type(fields[name]):
                fields[name] = key[name]
        return self._made(record, fields)

    def _fields_of(self, record: Any) -> dict[str, Any]:
        """Return the fields of a record that can be set, by name."""
        if isinstance(record, Mapping):
            return dict(record)
        member = self.member_of(record)
        known = {} if member is None else member.fields or {}
        return {name: getattr(record, name) for name, field in known.items() if field.init}

    def _made(self, record: Any, fields: dict[str, Any]) -> Any:
        """Return a record like another one, with other fields."""
        member = self.member_of(record)
        if member is None or member.fields is None:
            return fields if isinstance(record, dict) else record
        made = instance(member.cls, fields)
        return made if is_made(made) else record

    def has_all(self, records: Iterable[Any]) -> bool:
        """Return whether there is a record of each type."""
        there = {id(self.member_of(record)) for record in records}
        return len(there) >= len(self._members)

    def member_of(self, record: Any) -> RecordType | None:
        """Return the type of a record; None if none of the types is its class."""
        of_class = (each for each in self._members if type(record) is each.cls)
        only = self._members[0] if len(self._members) == 1 else None
        return next(of_class, only)

    def _later(self, value: Any, number: int) -> Any:
        is_time = isinstance(value, dt.date)  # a datetime is one, too
        return value + number * self._apart if is_time else value

    def _varied(self, record: Any, name: str, value: Any, number: int, place: int) -> Any:
        """Return the value of a field in a repetition. The values of a dict of unknown types stay,
        except for times.

        Parameters:
            place: the place of the field. Fields with few values change at different rates, so that
                different combinations occur.
        """
        member = self.member_of(record)
        if member is None or name not in (member.fields or {}):
            return self._later(value, number)
        assert member.fields is not None
        bare, metadata = with_metadata(member.fields[name].annotation)
        if (few := _few_values(bare)) is not None:
            at = few.index(value) if value in few else 0
            return few[(at + number // (place + 1)) % len(few)]
        match value:
            case dt.date():
                return self._later(value, number)
            case uuid.UUID():
                return uuid.UUID(int=(value.int + number) % 2**128)
            case int() if type(value) is int and not is_limited(metadata):
                return value + number * _STRIDE if abs(value) < 2**62 else value
        return value


def _few_values(bare: Any) -> Sequence[Any] | None:
    """Return all values of an annotation that has few; None if there are many."""
    if bare is bool:
        return [False, True]
    if typing.get_origin(bare) is typing.Literal:
        return typing.get_args(bare)
    if isinstance(bare, type) and issubclass(bare, enum.Enum):
        return list(bare)
    members = union_members(bare)
    if members is None:
        return None
    of_members = [_few_values(member) for member in members if member is not type(None)]
    if any(each is None for each in of_members):
        return None
    return [value for each in of_members for value in each or ()]
