"""Outputs of several record types, of a function declared `-> Iterator[A | B]`.

A stream of several types is one frame on Spark: a struct column per type, with the name of the
class, of which one in each row is not null.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import pyarrow as pa

from statekit.codec.annotations import peel, show
from statekit.errors import ProcessError, StateTypeError
from statekit.records.declaration import flavour_of
from statekit.records.output_copy import Copy
from statekit.records.output_type import OutputType
from statekit.records.union import RecordUnion
from statekit.shown import shown, type_name

F = TypeVar("F")


class OutputUnion:
    """The output record types of a function, compiled from the `A | B` of its `Iterator[A | B]`.

    It has the operations of `OutputType`, which apply to each output the type of its class.

    Parameters:
        members: the types.
        annotation: the declared union.
        where: the declaration, for messages.
        noun: what messages call one of the values.

    Attributes:
        record_type: the same as a union of record types.

    Raises:
        StateTypeError: two classes have one name, which could not be columns of one frame.

    >>> from typing import NamedTuple
    >>> class Paid(NamedTuple):
    ...     cents: int
    >>> class Refused(NamedTuple):
    ...     reason: str
    >>> either = output_type_of(Paid | Refused, where="pay, return annotation")
    >>> either.name, either.to_batch([Paid(5), Refused("limit")]).to_pylist()
    ('Paid | Refused', [{'Paid': {'cents': 5}, 'Refused': None}, \
{'Paid': None, 'Refused': {'reason': 'limit'}}])
    """

    def __init__(
        self, members: Sequence[OutputType], annotation: Any, where: str, noun: str = "output"
    ) -> None:
        self.members = tuple(members)
        self.annotation = annotation
        self.where = where
        self._noun = noun
        self._by_class = {
            member.record_type.cls: member for member in members if member.record_type is not None
        }
        record_types = (member.record_type for member in members)
        self.record_type = RecordUnion(tuple(of for of in record_types if of is not None), where)
        self.name = self.record_type.name
        names = [member.name for member in self.members]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise StateTypeError(
                f"{where}: two types of {show(annotation)} have the name {twice[0]}, by which "
                "streams and columns find them: rename one"
            )

    @functools.cached_property
    def copy(self) -> Copy | None:
        """A function that copies one output when it is emitted; None if outputs are immutable."""
        copies = {cls: member.copy for cls, member in self._by_class.items()}
        if not any(copies.values()):
            return None

        def copy(record: Any) -> Any:
            copy_one = copies.get(type(record))
            return record if copy_one is None else copy_one(record)

        return copy

    @functools.cached_property
    def arrow_schema(self) -> pa.Schema:
        """The schema of the batches: a nullable struct column per type.

        Raises:
            StateTypeError: a field has no Arrow type; names it and says what to do.
        """
        return pa.schema(
            pa.field(member.name, pa.struct(list(member.arrow_schema))) for member in self.members
        )

    def to_batch(self, records: list[Any]) -> pa.RecordBatch:
        """Return the outputs as one record batch, after checking each of them.

        Raises:
            ProcessError: an output is of none of the types, or does not fit its type.
        """
        self._check_classes(records)
        places = places_of_classes(records, self._by_class)
        columns = []
        for cls, member in self._by_class.items():
            own = places[cls]
            rows = member.to_batch([records[place] for place in own])
            structs = pa.StructArray.from_arrays(rows.columns, fields=list(rows.schema))
            columns.append(structs if len(own) == len(records) else _spread(structs, own, records))
        return pa.RecordBatch.from_arrays(columns, schema=self.arrow_schema)

    def stored(self, records: list[Any]) -> list[Any]:
        """Return the outputs in the form in which a reader of their columns gets them; see
        `OutputType.stored`.

        Raises:
            ProcessError: an output is of none of the types, or does not fit its type.
        """
        self._check_classes(records)
        return of_each_class(records, self._by_class, OutputType.stored)

    def copies(self, stored: list[Any]) -> list[Any]:
        """Return copies for another consumer, which may change them."""
        return stored if self.copy is None else list(map(self.copy, stored))

    def _check_classes(self, records: list[Any]) -> None:
        if set(map(type, records)) <= self._by_class.keys():
            return
        place, foreign = next(
            (place, record)
            for place, record in enumerate(records)
            if type(record) not in self._by_class
        )
        raise ProcessError(
            f"{self.where}: {self._noun} {place}, {shown(foreign)}, is a "
            f"{type_name(foreign)}: emit an instance of just one of {self.name}"
        )


def _spread(structs: pa.StructArray, places: list[int], records: list[Any]) -> pa.Array:
    """Return a column with structs at some positions, and null at all others."""
    sources: list[int | None] = [None] * len(records)
    for source, place in enumerate(places):
        sources[place] = source
    return structs.take(pa.array(sources, pa.int64()))


def places_of_classes(records: Iterable[Any], classes: Iterable[Any]) -> dict[Any, list[int]]:
    """Return the positions of the records of each class. Every record has one of these classes."""
    places: dict[Any, list[int]] = {cls: [] for cls in classes}
    for place, record in enumerate(records):
        places[type(record)].append(place)
    return places


def of_each_class(
    records: list[Any], forms: Mapping[Any, F], convert: Callable[[F, list[Any]], list[Any]]
) -> list[Any]:
    """Apply a function to the records of each class, in groups, and keep the order of all records.

    Parameters:
        forms: what the function gets beside the records of a class.
    """
    if len(forms) == 1 or not records:
        return convert(next(iter(forms.values())), records) if records else records
    results = list(records)
    for cls, places in places_of_classes(records, forms).items():
        if places:
            converted = convert(forms[cls], [records[place] for place in places])
            for place, record in zip(places, converted, strict=True):
                results[place] = record
    return results


AnyOutput = OutputType | OutputUnion
"""The one or several output types of a function."""


def output_type_of(annotation: Any, where: str, noun: str = "output") -> AnyOutput:
    """Return the output type of an annotation: a union for several record classes.

    Parameters:
        annotation: the declared type.
        where: the declaration, for messages.
        noun: what messages call one of the values.

    Raises:
        StateTypeError: the annotation names a type that cannot be resolved, or two of its classes
            have one name.
    """
    members, nullable, _ = peel(annotation)
    plain = (None, "dict", "typeddict")
    if len(members) < 2 or nullable or any(flavour_of(member) in plain for member in members):
        return OutputType(annotation, where, noun)
    types = [OutputType(member, where, noun) for member in members]
    return OutputUnion(types, annotation, where, noun)
