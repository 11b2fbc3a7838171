"""Records that statekit emits itself: a key and its aggregates, by name."""

from __future__ import annotations

import datetime as dt
import decimal
import operator
from collections.abc import Callable
from typing import Any, NamedTuple, cast

from statekit.codec.annotations import peel, show
from statekit.errors import StateTypeError
from statekit.records.record_type import RecordType

_SUMMED = (int, float, decimal.Decimal, dt.timedelta)
_ORDERED = (*_SUMMED, bool, str, bytes, dt.date, dt.datetime)

Make = Callable[..., Any]
"""Makes a record of the values of its fields, in order."""


class ResultRecords:
    """Results for records of a type.

    Parameters:
        record: the type of the records that come in.
        what: what is done to them, for messages.
    """

    def __init__(self, record: RecordType, what: str) -> None:
        self._record = record
        self._what = what

    def annotation(self, field: str) -> Any:
        """The type of a field of the records that come in.

        Raises:
            StateTypeError: they have no such field, or nothing says which they have.
        """
        fields = self._record.fields
        if fields is None:
            raise self.error(
                "a dict says nothing of what is in it: annotate the source with a NamedTuple, "
                "dataclass, TypedDict, Struct or pydantic model"
            )
        if field not in fields:
            raise self.error(
                f"{field!r} is not a field of {self._record.name} (it has {', '.join(fields)})"
            )
        return self._record.column_annotation(fields[field])

    def check_combines(self, verb: str, field: str) -> Any:
        """The type of a field's values, beside None, if there is such an aggregate of them.

        Raises:
            StateTypeError: there is none.
        """
        annotation = self.annotation(field)
        members, _, _ = peel(annotation)
        fits = _SUMMED if verb in ("sum", "mean") else _ORDERED
        if len(members) != 1 or members[0] not in fits:
            raise self.error(
                f"{verb}({field!r}): the field is {show(annotation)}: give one that is "
                f"{', '.join(kind.__name__ for kind in fits)}, or use an Aggregate of your own"
            )
        return members[0]

    def getter(self, field: str) -> Callable[[Any], Any]:
        """What takes a field of a record that came in."""
        self.annotation(field)
        if self._record.flavour == "typeddict":
            return operator.methodcaller("get", field)  # a key may be absent
        return self._record.getter((field,))

    def result_class(self, name: str, types: dict[str, Any], into: Any) -> tuple[Any, Make]:
        """The class of the results, and how one is made.

        Parameters:
            name: what NamedTuples are called after.
            types: of their fields, by name.
            into: a record class of the user's in the place of NamedTuples; takes the fields it has.
        """
        if into is not None:
            return self._into(into, types)
        title = name.title().replace("_", "")
        try:
            made = cast("Any", NamedTuple)(title, list(types.items()))
        except ValueError as error:
            raise self.error(f"{name} cannot put out a NamedTuple: {error}: use into=") from None
        return made, made

    def _into(self, into: Any, types: dict[str, Any]) -> tuple[Any, Make]:
        record = RecordType.of(into, where=f"{self._record.where}, {self._what}, into")
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
        taken = [(n, name) for n, name in enumerate(types) if name in record.fields]

        def make(*values: Any) -> Any:
            return into(**{name: values[n] for n, name in taken})

        return into, make

    def error(self, reason: str) -> StateTypeError:
        """The error for what cannot be."""
        return StateTypeError(f"{self._record.where}, {self._what}: {reason}")


def _holds(declared: Any, given: Any) -> bool:
    """Whether a field may be given a value of a type."""
    (takes, takes_none, _), (gets, gets_none, _) = peel(declared), peel(given)
    if Any in takes:
        return True
    fits = all(kind in takes or (kind is int and float in takes) for kind in gets)
    return fits and (takes_none or not gets_none)
