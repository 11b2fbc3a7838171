"""Aggregates of fields and records. The built-in ones call no Python function per record."""

from __future__ import annotations

import dataclasses
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from types import GenericAlias
from typing import Annotated, Any, ClassVar, Optional

from statekit.codec.annotations import peel
from statekit.declared_call import declarable
from statekit.errors import StateTypeError
from statekit.functions.field_names import Renaming
from statekit.job.windows.accumulation import (
    Accumulation,
    adding_pairs,
    combining,
    itself,
    no_value,
    quotient,
    reducer,
    skipping_none,
)
from statekit.number_faults import int_fault
from statekit.records.output_copy import copier
from statekit.records.partial_aggregate import PartialAggregate, Verb, without_none
from statekit.records.preaggregate import Combiner
from statekit.records.record_order import RecordOrder
from statekit.records.record_type import RecordType
from statekit.records.result_type import ORDERED, SUMMABLE, ResultRecords
from statekit.shown import shown
from statekit.state.list_state import ListState
from statekit.state.options import Aggregate, Reduce
from statekit.state.single_row_states import AggregatingState, ReducingState

_TUPLE: Any = tuple  # as values, to be subscripted with types that are known at run time
_REDUCING: Any = ReducingState
_AGGREGATING: Any = AggregatingState


class FieldAggregate(ABC):
    """An aggregate of a field or of records: `Count`, `Sum`, `Min`, `Max`, `Mean`, `Top`, `Last`,
    `Collect` or `OwnAggregate`.

    A built-in one can be computed from parts of the records in any number of steps: records are
    combined batch by batch, and the combined rows are added to the state, many keys at a time.
    If no partial aggregate fits, as for `OwnAggregate`, the part is the list of the records, and
    `combines` is False: an operator with windows then gets its records one by one.

    Every aggregate also has a model in plain Python, in `testing/oracles/aggregate_model`.

    Attributes:
        verb: what it does, for messages.
        field: the field of the records; None for the records themselves.
        combines: whether records may be combined before they are added to a window.
    """

    verb: ClassVar[str]
    field: str | None
    combines: ClassVar[bool] = True

    @property
    @abstractmethod
    def parts(self) -> tuple[PartialAggregate, ...]:
        """The partial aggregates that the result is computed from."""

    @abstractmethod
    def accumulation(self, results: ResultRecords) -> Accumulation:
        """Return the accumulator and the functions for the records of an operator.

        Raises:
            StateTypeError: there is no such aggregate of them.
        """

    def added_each(self, kept: Accumulation) -> Callable[[Sequence[Any]], list[Any]]:
        """Return a function from records to the value that each of them adds to a state by key."""
        value_of = kept.value_of
        return lambda records: list(map(value_of, records))

    def named(self, names: Renaming) -> FieldAggregate:
        """Return the same aggregate with renamed fields."""
        if self.field is None:
            return self
        of: Any = self
        renamed: FieldAggregate = dataclasses.replace(of, field=names(self.field))
        return renamed

    def text(self, names: Renaming) -> str:
        """Return the definition of a state by key, with renamed fields."""
        return repr(self.named(names))

    def definition(self, name: str, names: Renaming) -> Mapping[str, str]:
        """Return the definition of the value of a window, with renamed fields.

        Parameters:
            name: the name of the result.
        """
        return {"result": self.verb if self.field is None else f"{self.verb}_{names(self.field)}"}


@declarable("Count")
@dataclass(frozen=True)
class Count(FieldAggregate):
    """The number of records; of a field, the number of values other than None.

    Parameters:
        field: the field; None for the records.
    """

    field: str | None = None
    verb = "count"

    @property
    def parts(self) -> tuple[PartialAggregate, ...]:
        return (PartialAggregate("count", self.field),)

    def accumulation(self, results: ResultRecords) -> Accumulation:
        state = Annotated[ReducingState[int], Reduce("sum")]
        counted: Aggregate[int, int, int] = Aggregate(int, operator.add, itself, operator.add)
        if self.field is None:
            return Accumulation(state, int, int, counted, lambda _: 1)
        get = results.getter(self.field)
        return Accumulation(state, int, int, counted, lambda record: int(get(record) is not None))


@dataclass(frozen=True)
class _OfField(FieldAggregate):
    field: str
    verb: ClassVar[Verb]
    accepted: ClassVar[Sequence[type]] = ORDERED

    @property
    def parts(self) -> tuple[PartialAggregate, ...]:
        return (PartialAggregate(self.verb, self.field),)

    def accumulation(self, results: ResultRecords) -> Accumulation:
        kind = results.check_type(self.verb, self.field, self.accepted)
        annotation = results.annotation(self.field)
        add = skipping_none(combining(self.verb, kind))
        return Accumulation(
            state=Annotated[_REDUCING[kind], reducer(self.verb, kind)],
            accumulator=Optional[annotation],  # noqa: UP045
            result=annotation,
            functions=Aggregate(no_value, add, itself, add),
            value_of=results.getter(self.field),
        )


@declarable("Sum")
@dataclass(frozen=True)
class Sum(_OfField):
    """The sum of a field. None is skipped; the sum of only None is None.

    Floats are added batch by batch, so the last digits depend on how records were batched.

    Parameters:
        field: the name of the field.
    """

    verb = "sum"
    accepted = SUMMABLE


@declarable("Min")
@dataclass(frozen=True)
class Min(_OfField):
    """The smallest value of a field. None is skipped, and so is NaN if there are numbers.

    Parameters:
        field: the name of the field.
    """

    verb = "min"


@declarable("Max")
@dataclass(frozen=True)
class Max(_OfField):
    """The largest value of a field. None is skipped, and so is NaN if there are numbers.

    Parameters:
        field: the name of the field.
    """

    verb = "max"


@declarable("Mean")
@dataclass(frozen=True)
class Mean(FieldAggregate):
    """The mean of a field: a float for numbers. None is skipped; the mean of only None is None.

    Parameters:
        field: the name of the field.
    """

    field: str
    verb = "mean"

    @property
    def parts(self) -> tuple[PartialAggregate, ...]:
        return PartialAggregate("sum", self.field), PartialAggregate("count", self.field)

    def accumulation(self, results: ResultRecords) -> Accumulation:
        kind, get = (
            results.check_type(self.verb, self.field, SUMMABLE),
            results.getter(self.field),
        )
        pair = _TUPLE[kind, int]
        mean = float if kind in (int, float) else kind
        _, is_optional, _ = peel(results.annotation(self.field))
        add = skipping_none(adding_pairs(combining("sum", kind)))
        functions: Aggregate[Any, Any, Any] = Aggregate(no_value, add, quotient, add)

        def value_of(record: Any) -> Any:
            value = get(record)
            return None if value is None else (value, 1)

        return Accumulation(
            state=Annotated[_AGGREGATING[pair, pair, mean], functions],
            accumulator=Optional[pair],  # noqa: UP045
            result=Optional[mean] if is_optional else mean,  # noqa: UP045
            functions=functions,
            value_of=value_of,
            added=_pairs,
        )


def _pairs(sums: Sequence[Any], counts: Sequence[int]) -> list[Any]:
    """Return a pair of sum and count per row; None for no values."""
    return [None if pair[0] is None else pair for pair in zip(sums, counts, strict=True)]


class _OfWholeRecords(Aggregate[Any, Any, Any]):
    """The functions of a state that keeps some of the records that are added."""

    keeps_parts = True


class _OfRecords(FieldAggregate):
    """An aggregate that keeps the first records in an order."""

    @property
    @abstractmethod
    def order(self) -> RecordOrder:
        """The order, with the number of records to keep."""

    @property
    def parts(self) -> tuple[PartialAggregate, ...]:
        return (PartialAggregate("first", None, self.order),)

    def accumulation(self, results: ResultRecords) -> Accumulation:
        for name in self.order.names:
            results.check_type(self.verb, name, ORDERED)
        record = results.record
        merged, result = self.order.completed(record).merged, self.result(record)
        functions = _OfWholeRecords(tuple, merged, self.finish(record), merged)
        held, taken = (GenericAlias(tuple, (record.cls, ...)), GenericAlias(list, (record.cls,)))
        return Accumulation(
            state=Annotated[_AGGREGATING[taken, held, result], functions],
            accumulator=held,
            result=result,
            functions=functions,
            value_of=lambda record: (record,),
        )

    @abstractmethod
    def result(self, record: RecordType) -> Any:
        """Return the annotation of the result."""

    @abstractmethod
    def finish(self, record: RecordType) -> Any:
        """Return a function from the first records to the result."""

    def definition(self, name: str, names: Renaming) -> Mapping[str, str]:
        return {"result": self.text(names)}


@declarable("Top")
@dataclass(frozen=True)
class Top(_OfRecords):
    """The first records in an order, as a list: `Top(10, by=("-price", "at"))`.

    Records that are equal in these fields are in the order of their other ones. None comes last.

    Parameters:
        count: how many.
        by: fields that are compared one after the other; "-price" from the largest to the smallest.
        ties: also those that are equal to the last of these in all of these fields.
    """

    count: int
    by: str | tuple[str, ...]
    ties: bool = False
    field = None
    verb = "top"

    def __post_init__(self) -> None:
        if fault := int_fault(self.count, "say how many records, at least 1", least=1):
            raise StateTypeError(f"Top({shown(self.count)}){fault}")
        fields = (self.by,) if isinstance(self.by, str) else tuple(self.by)
        if not fields:
            raise StateTypeError('Top(by=()): name at least one field, as in by="-price"')
        object.__setattr__(self, "by", fields)

    @property
    def order(self) -> RecordOrder:
        return RecordOrder(tuple(self.by), self.count, self.ties)

    def named(self, names: Renaming) -> Top:
        by = ((name.removeprefix("-"), name.startswith("-")) for name in self.by)
        return dataclasses.replace(
            self, by=tuple(f"-{names(name)}" if falls else names(name) for name, falls in by)
        )

    def result(self, record: RecordType) -> Any:
        return GenericAlias(list, (record.cls,))

    def finish(self, record: RecordType) -> Any:
        return list


@declarable("Last")
@dataclass(frozen=True)
class Last(_OfRecords):
    """The record with the largest value of a field, or one field of it: `Last("price", by="at")`.

    Of records with equal values it is the first by their other fields. None is before all values.

    Parameters:
        field: None for the record.
        by: whose largest value is last.
    """

    field: str | None = None
    by: str = dataclasses.field(kw_only=True)
    verb = "last"

    @property
    def order(self) -> RecordOrder:
        return RecordOrder((f"-{self.by}",), 1)

    def named(self, names: Renaming) -> FieldAggregate:
        return dataclasses.replace(super().named(names), by=names(self.by))  # type: ignore[type-var]

    def accumulation(self, results: ResultRecords) -> Accumulation:
        if self.field is not None:
            results.annotation(self.field)
        return super().accumulation(results)

    def result(self, record: RecordType) -> Any:
        if self.field is None:
            return record.cls
        return record.column_annotation((record.fields or {})[self.field])

    def finish(self, record: RecordType) -> Any:
        get = itself if self.field is None else record.getter((self.field,))
        return lambda held: get(held[0])


@dataclass(frozen=True)
class First(Last):
    """The record with the smallest value of a field, or one field of it. None is after all values.

    Of records with equal values it is the first by their other fields.
    """

    verb = "first"

    @property
    def order(self) -> RecordOrder:
        return RecordOrder((self.by,), 1)


@declarable("Collect")
@dataclass(frozen=True)
class Collect(FieldAggregate):
    """All records, or all values of a field, as a list in the order of arrival. None is skipped.

    Without windows the state is a `ListState`: an epoch writes the new elements. A result is the
    whole list, which is read for it. The list of a window of time is in the order of time.

    Parameters:
        field: the field; None for the records.
    """

    field: str | None = None
    verb = "collect"

    @property
    def parts(self) -> tuple[PartialAggregate, ...]:
        return (PartialAggregate("list", self.field),)

    def accumulation(self, results: ResultRecords) -> Accumulation:
        element, get = results.annotated(self.field)
        if self.field is not None:
            element = without_none(element)
        ended: Aggregate[Any, None, None] = Aggregate(no_value, no_value, itself, no_value)
        listed = GenericAlias(list, (element,))
        return Accumulation(ListState[element], None, listed, ended, get, element=element)  # type: ignore[valid-type]


@declarable("OwnAggregate")
@dataclass(frozen=True)
class OwnAggregate(FieldAggregate):
    """An aggregate of your own, of the records or of a field: None is added like any value.

    Records are added one by one, in the order of arrival, so they are shuffled as they are.

    Parameters:
        aggregate: its functions; sessions need its `merge`.
        accumulator, result: the types of its accumulator and of its result.
        field: the added field; None adds whole records.

    Raises:
        StateTypeError: the first argument is not an `Aggregate`.
    """

    aggregate: Aggregate[Any, Any, Any]
    accumulator: Any = dataclasses.field(kw_only=True)
    result: Any = dataclasses.field(kw_only=True)
    field: str | None = dataclasses.field(default=None, kw_only=True)
    verb = "aggregate"
    combines = False

    def __post_init__(self) -> None:
        if not isinstance(self.aggregate, Aggregate):
            raise StateTypeError(
                "OwnAggregate() takes an Aggregate(create, add, result), not "
                f"{shown(self.aggregate)}"
            )

    @property
    def parts(self) -> tuple[PartialAggregate, ...]:
        return (PartialAggregate("list", None),)

    def accumulation(self, results: ResultRecords) -> Accumulation:
        added, get = results.annotated(self.field)
        copy_added = copier(added)
        value_of = get if copy_added is None else lambda record: copy_added(get(record))
        given = self.aggregate

        def add_all(accumulator: Any, values: Sequence[Any]) -> Any:
            return reduce(given.add, values, accumulator)

        by_key = dataclasses.replace(given, add=add_all)
        listed = GenericAlias(list, (added,))
        return Accumulation(
            state=Annotated[_AGGREGATING[listed, self.accumulator, self.result], by_key],
            accumulator=self.accumulator,
            result=self.result,
            functions=given,
            value_of=get,
            # Several aggregates of an operator share the records of a list.
            added=lambda lists: [list(map(value_of, records)) for records in lists],
            copy_added=copy_added,
        )

    def added_each(self, kept: Accumulation) -> Callable[[Sequence[Any]], list[Any]]:
        # The state adds lists of values.
        return lambda records: [added for record in records for added in kept.added([[record]])]

    def text(self, names: Renaming) -> str:
        return ", ".join(self.definition("aggregate", names).values())

    def definition(self, name: str, names: Renaming) -> Mapping[str, str]:
        """Return the definition: the name of the result, the field, and the name of the `add`
        function if that has one.
        """
        added = "the whole record" if self.field is None else names(self.field)
        known = self.aggregate.stored_name
        return {"result": name, "field": added} | ({} if known is None else {"add": known})


Added = Callable[[Sequence[Sequence[Any]]], Sequence[Any]]
"""A function from the columns of combined rows to the values that they add to an aggregate."""


def added_by(combiner: Combiner, of: FieldAggregate, kept: Accumulation) -> Added:
    """Return the function from columns of combined rows to the values that an aggregate gets."""
    places = [combiner.place_of(part) for part in of.parts]
    return lambda columns: kept.added(*(columns[place] for place in places))
