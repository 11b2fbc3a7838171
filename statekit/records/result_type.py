"""Result records: records that statekit itself emits, with a key and its aggregates by name."""

from __future__ import annotations

import datetime as dt
import decimal
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, NamedTuple, cast

from statekit.codec.annotations import peel, show
from statekit.errors import StateTypeError
from statekit.records.record_type import RecordType
from statekit.shown import shown_text

SUMMABLE = (int, float, decimal.Decimal, dt.timedelta)
"""Types whose values can be added up."""

ORDERED = (*SUMMABLE, bool, str, bytes, dt.date, dt.datetime)
"""Types whose values have an order."""

Make = Callable[..., Any]
"""Creates a record from the values of its fields, in order."""


class ResultRecords:
    """The result types, derived from the type of the input records.

    Parameters:
        record: the type of the input records.
        operation: what is done to them, for messages.
    """

    def __init__(self, record: RecordType, operation: str) -> None:
        self.record = record
        self._operation = operation

    def annotation(self, field: str) -> Any:
        """Return the type of a field of the input records.

        Raises:
            StateTypeError: they have no such field, or are dicts without declared fields.
        """
        fields = self.record.fields
        if fields is None:
            raise self.error(
                "a dict has no declared fields: annotate the source with a NamedTuple, dataclass, "
                "TypedDict, Struct or pydantic model"
            )
        if field not in fields:
            raise self.error(
                f"{field!r} is not a field of {self.record.name} (it has {', '.join(fields)})"
            )
        return self.record.column_annotation(fields[field])

    def check_type(self, verb: str, field: str, accepted: Sequence[type]) -> Any:
        """Check that a field can be aggregated, and return its type without None.

        Parameters:
            verb: the aggregate function, for messages.
            accepted: the types of values that it takes.

        Raises:
            StateTypeError: the aggregate function does not take values of that type.
        """
        annotation = self.annotation(field)
        members, _, _ = peel(annotation)
        if len(members) != 1 or members[0] not in accepted:
            raise self.error(
                f"{verb}({field!r}): the field is {show(annotation)}: give one that is "
                f"{', '.join(kind.__name__ for kind in accepted)}, or use an Aggregate of your own"
            )
        return members[0]

    def getter(self, field: str) -> Callable[[Any], Any]:
        """Return a function from an input record to one of its fields."""
        self.annotation(field)
        if self.record.flavour == "typeddict":
            return operator.methodcaller("get", field)  # a key may be absent
        return self.record.getter((field,))

    def annotated(self, field: str | None) -> tuple[Any, Callable[[Any], Any]]:
        """Return the type of a field, or of the input records for None, with a function that
        returns it from a record.
        """
        if field is None:
            return self.record.cls, lambda record: record
        return self.annotation(field), self.getter(field)

    def result_class(self, name: str, types: dict[str, Any], into: Any) -> tuple[Any, Make]:
        """Return the result class, and a function that creates a result from the values of all
        fields.

        Parameters:
            name: of the operator; a generated NamedTuple is named after it.
            types: of the fields, by name.
            into: a record class of the user's instead of a NamedTuple; may have fewer fields.
        """
        if into is not None:
            return self._into(into, types)
        title = name.title().replace("_", "")
        try:
            cls = cast("Any", NamedTuple)(title, list(types.items()))
        except ValueError as error:
            raise self.error(
                f"{name} cannot emit a NamedTuple: {shown_text(error)}: use into="
            ) from None
        return cls, cls

    def _into(self, into: Any, types: dict[str, Any]) -> tuple[Any, Make]:
        record = RecordType.of(into, where=f"{self.record.where}, {self._operation}, into")
        if record.fields is None:
            raise self.error("into=dict has no fields: give a NamedTuple, a dataclass or the like")
        for name, field in record.fields.items():
            if name not in types and field.required and field.init:
                raise self.error(
                    f"into={record.name}: there is nothing for its field {name!r}: name its fields "
                    f"like those of the result, {', '.join(types)}, or give this one a default"
                )
            if name in types and not _holds(field.annotation, types[name]):
                raise self.error(
                    f"into={record.name}: its field {name!r} is {show(field.annotation)}, and gets "
                    f"{show(types[name])}: declare it so"
                )
        present = {name: n for n, name in enumerate(types) if name in record.fields}
        is_tuple = record.flavour == "namedtuple" and not record.may_change_fields
        return into, _Into(into, present, is_tuple)

    def error(self, reason: str) -> StateTypeError:
        """Return an error about the operation."""
        return StateTypeError(f"{self.record.where}, {self._operation}: {reason}")


def _holds(declared: Any, annotation: Any) -> bool:
    """Return whether a field with a declared type can hold all values of an annotation."""
    (accepted, accepts_none, _), (members, has_none, _) = peel(declared), peel(annotation)
    if Any in accepted:
        return True
    fits = all(cls in accepted or (cls is int and float in accepted) for cls in members)
    return fits and (accepts_none or not has_none)


@dataclass(frozen=True)
class WithoutKey:
    """Creates records from the values of their fields after the key, which they do not have.

    Parameters:
        make: creates a record from the values of its fields.
    """

    make: Make

    def __call__(self, key: Any, *values: Any) -> Any:
        return self.make(*values)


@dataclass(frozen=True)
class WithoutTimes:
    """Creates records without the start and the end of a window, which follow the key.

    Parameters:
        make: creates a record from the values of its fields.
        key_size: the number of key fields.
    """

    make: Make
    key_size: int

    def __call__(self, *values: Any) -> Any:
        return self.make(*values[: self.key_size], *values[self.key_size + 2 :])


@dataclass(frozen=True)
class _Into:
    """Creates records of a class of the user from the values of all fields of a result.

    Parameters:
        into: the class.
        present: its fields, with the indexes of their values.
        is_tuple: whether it is a NamedTuple.
    """

    into: Any
    present: Mapping[str, int]
    is_tuple: bool

    def __call__(self, *values: Any) -> Any:
        return self.into(**{name: values[n] for name, n in self.present.items()})

    @property
    def places(self) -> list[int] | None:
        """The index of the value of each field, in order; None if not just a tuple is created."""
        names = self.into._fields if self.is_tuple else ()
        has_all = bool(names) and all(name in self.present for name in names)
        return [self.present[name] for name in names] if has_all else None


def made_of_columns(make: Make, *columns: Sequence[Any]) -> list[Any]:
    """Create a result from each row of some columns."""
    if isinstance(make, WithoutKey):
        return made_of_columns(make.make, *columns[1:])
    if isinstance(make, _Into) and (places := make.places) is not None:
        return made_of_columns(make.into, *(columns[place] for place in places))
    if isinstance(make, type) and issubclass(make, tuple):  # a NamedTuple's own takes twice as long
        return list(map(tuple.__new__, repeat(make), zip(*columns, strict=True)))
    return list(map(make, *columns))
