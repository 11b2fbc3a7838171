"""Built-in aggregates of fields, and their operator. It calls no Python function per record."""

from __future__ import annotations

import dataclasses
import decimal
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from types import GenericAlias
from typing import Annotated, Any, ClassVar, Optional

from statekit.codec.annotations import peel
from statekit.errors import StateTypeError
from statekit.functions.field_names import Renaming
from statekit.functions.process import NOTHING_RENAMED, Process, Traits
from statekit.functions.signature import declare
from statekit.job.windows.made_of import AggregatedFields
from statekit.number_faults import int_fault
from statekit.records.keyed_batch import KeyColumns
from statekit.records.preaggregate import (
    Combiner,
    PartialAggregate,
    Verb,
    absent_or_none,
    without_none,
)
from statekit.records.record_order import RecordOrder
from statekit.records.record_type import RecordType
from statekit.records.result_type import ResultRecords, made_of_columns
from statekit.shown import shown
from statekit.state.list_state import ListState
from statekit.state.options import TTL, Aggregate, Reduce
from statekit.state.single_row_states import AggregatingState, ReducingState

EXACT_DIGITS = 76
"""Digits for exact sums of decimals. Columns have half as many."""

_KEYS = "_keys"  # the parameter that takes keys: no state is called so
_PLACES = 18  # of a mean of decimals, as a column of Spark has


class FieldAggregate(ABC):
    """An aggregate of a field or of records: `Count`, `Sum`, `Min`, `Max`, `Mean`, `Top`, `Last` or
    `Collect`.

    Its state can be computed from parts of the records in any number of steps: records are combined
    batch by batch, and the combined rows are added to the state, many keys at a time.

    Attributes:
        verb: what it does, for messages.
        field: the field of the records; None for the records themselves.
    """

    verb: ClassVar[str]
    field: str | None

    @property
    @abstractmethod
    def parts(self) -> tuple[PartialAggregate, ...]:
        """The partial aggregates that the result is computed from."""

    def types(self, results: ResultRecords) -> tuple[Any, Any]:
        """Return the arguments of `state` and `result` for the records of an operator.

        Raises:
            StateTypeError: there is no such aggregate of them.
        """
        assert self.field is not None
        return results.check_combines(self.verb, self.field), results.annotation(self.field)

    @abstractmethod
    def state(self, value_type: Any) -> Any:
        """Return the annotation of the state, for a field with values of this type."""

    @abstractmethod
    def result(self, annotation: Any) -> Any:
        """Return the annotation of the result, for a field with this annotation."""

    def named(self, names: Renaming) -> FieldAggregate:
        """Return the same aggregate with renamed fields."""
        if self.field is None:
            return self
        of: Any = self
        renamed: FieldAggregate = dataclasses.replace(of, field=names(self.field))
        return renamed

    def added(self, place: int) -> Callable[[Sequence[Sequence[Any]]], Sequence[Any]]:
        """Return a function from columns of combined rows to the values to add to the state. None
        adds nothing.

        Parameters:
            place: of the first column of the parts.
        """
        return itemgetter(place)


@dataclass(frozen=True)
class Count(FieldAggregate):
    """The number of records; of a field, the number of values other than None."""

    field: str | None = None
    verb = "count"

    @property
    def parts(self) -> tuple[PartialAggregate, ...]:
        return (PartialAggregate("count", self.field),)

    def types(self, results: ResultRecords) -> tuple[Any, Any]:
        return None, None if self.field is None else results.annotation(self.field)

    def state(self, value_type: Any) -> Any:
        return Annotated[ReducingState[int], Reduce("sum")]

    def result(self, annotation: Any) -> Any:
        return int


@dataclass(frozen=True)
class _OfField(FieldAggregate):
    field: str
    verb: ClassVar[Verb]

    @property
    def parts(self) -> tuple[PartialAggregate, ...]:
        return (PartialAggregate(self.verb, self.field),)

    def state(self, value_type: Any) -> Any:
        return Annotated[ReducingState[value_type], reducer(self.verb, value_type)]

    def result(self, annotation: Any) -> Any:
        return annotation


@dataclass(frozen=True)
class Sum(_OfField):
    """The sum of a field. None is skipped; the sum of only None is None.

    Floats are added batch by batch, so the last digits depend on how records were batched.
    """

    verb = "sum"


@dataclass(frozen=True)
class Min(_OfField):
    """The smallest value of a field. None is skipped, and so is NaN if there are numbers."""

    verb = "min"


@dataclass(frozen=True)
class Max(_OfField):
    """The largest value of a field. None is skipped, and so is NaN if there are numbers."""

    verb = "max"


@dataclass(frozen=True)
class Mean(FieldAggregate):
    """The mean of a field: a float for numbers. None is skipped; the mean of only None is None."""

    field: str
    verb = "mean"

    @property
    def parts(self) -> tuple[PartialAggregate, ...]:
        return PartialAggregate("sum", self.field), PartialAggregate("count", self.field)

    def state(self, value_type: Any) -> Any:
        pair = tuple[value_type, int]
        mean = Aggregate(_Nothing(value_type), _both, quotient, _both)
        state: Any = AggregatingState
        return Annotated[state[pair, pair, self.result(value_type)], mean]

    def result(self, annotation: Any) -> Any:
        (value_type,), is_optional, _ = peel(annotation)
        mean = float if value_type in (int, float) else value_type
        return Optional[mean] if is_optional else mean  # noqa: UP045

    def added(self, place: int) -> Callable[[Sequence[Sequence[Any]]], Sequence[Any]]:
        def pairs(columns: Sequence[Sequence[Any]]) -> Sequence[Any]:
            sums_and_counts = zip(*columns[place : place + 2], strict=True)
            return [None if pair[0] is None else pair for pair in sums_and_counts]

        return pairs


class _OfRecords(FieldAggregate):
    """An aggregate that keeps the first records in an order."""

    @property
    @abstractmethod
    def order(self) -> RecordOrder:
        """The order, with the number of records to keep."""

    @property
    def parts(self) -> tuple[PartialAggregate, ...]:
        return (PartialAggregate("first", None, self.order),)

    def types(self, results: ResultRecords) -> tuple[Any, Any]:
        for name in self.order.names:
            results.check_combines(self.verb, name)
        return results.record, results.record

    def state(self, value_type: Any) -> Any:
        record: RecordType = value_type
        kept = self.kept(record)
        taken: Any = GenericAlias(list, (record.cls,))
        state: Any = AggregatingState
        return Annotated[state[taken, held_first(record), self.result(record)], kept]

    @abstractmethod
    def kept(self, record: RecordType) -> Aggregate[Any, Any, Any]:
        """Return the `Aggregate` that keeps and merges first records, and computes the result."""


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

    def result(self, annotation: Any) -> Any:
        return GenericAlias(list, (annotation.cls,))

    def kept(self, record: RecordType) -> Aggregate[Any, Any, Any]:
        merged = self.order.completed(record).merged
        return Aggregate(tuple, merged, list, merged)


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

    def types(self, results: ResultRecords) -> tuple[Any, Any]:
        if self.field is not None:
            results.annotation(self.field)
        return super().types(results)

    def result(self, annotation: Any) -> Any:
        record: RecordType = annotation
        if self.field is None:
            return record.cls
        return record.column_annotation((record.fields or {})[self.field])

    def kept(self, record: RecordType) -> Aggregate[Any, Any, Any]:
        merged = self.order.completed(record).merged
        get = None if self.field is None else record.getter((self.field,))
        return Aggregate(
            tuple, merged, lambda held: held[0] if get is None else get(held[0]), merged
        )


@dataclass(frozen=True)
class Collect(FieldAggregate):
    """All records, or all values of a field, as a list in the order of arrival. None is skipped.

    The state is a `ListState`: an epoch writes the new elements. A result is the whole list, which
    is read for it.
    """

    field: str | None = None
    verb = "collect"

    @property
    def parts(self) -> tuple[PartialAggregate, ...]:
        return (PartialAggregate("list", self.field),)

    def types(self, results: ResultRecords) -> tuple[Any, Any]:
        if self.field is None:
            return results.record.cls, results.record.cls
        element = without_none(results.annotation(self.field))
        return element, element

    def state(self, value_type: Any) -> Any:
        return ListState[value_type]

    def result(self, annotation: Any) -> Any:
        return GenericAlias(list, (annotation,))


def held_first(record: RecordType) -> Any:
    """Return the annotation of stored first records of a type."""
    return GenericAlias(tuple, (record.cls, ...))


def _least(current: float, value: float) -> float:
    return value if current != current or value < current else current


def _largest(current: float, value: float) -> float:
    return value if current != current or value > current else current


def reducer(verb: Verb, kind: Any) -> Reduce:
    """Return the reducer of two values of a type. The order of values matters only for sums of
    floats.

    NaN is neither the smallest nor the largest float if there is a number.
    """
    if kind is float and verb in ("min", "max"):
        return Reduce(_least if verb == "min" else _largest)
    return Reduce(verb)


@dataclass(frozen=True)
class _Nothing:
    """Factory of the sum and count of no values."""

    kind: type

    def __call__(self) -> tuple[Any, int]:
        return self.kind(), 0


def _both(current: tuple[Any, int], more: tuple[Any, int]) -> tuple[Any, int]:
    return current[0] + more[0], current[1] + more[1]


def quotient(sum_and_count: tuple[Any, int]) -> Any:
    """Return the mean of values, from their sum and number."""
    total, number = sum_and_count
    if not isinstance(total, decimal.Decimal):
        return total / number
    with decimal.localcontext(prec=EXACT_DIGITS):
        return round(total / number, _PLACES)


# ---------------------------------------------------------------------------------- the operator


def _fold(
    key_size: int,
    aggregates: Mapping[str, tuple[FieldAggregate, int]],
    results: Callable[..., list[Any]],
) -> Callable[..., list[Any]]:
    """Return a function that adds the combined rows of many keys to their states and returns the
    results.

    Parameters:
        key_size: number of key fields.
        aggregates: with the position of the first of their parts in a row.
        results: creates results from columns of keys and values.
    """
    added = [of.added(place) for of, place in aggregates.values()]

    def fold(keys: KeyColumns, *states: Any) -> list[Any]:
        with decimal.localcontext(prec=EXACT_DIGITS):
            values = [
                state.add_all(keys.prefixes, added_to(keys.columns))
                for state, added_to in zip(states, added, strict=True)
            ]
        return results(*keys.columns[:key_size], *values)

    return fold


def aggregation(
    record: RecordType,
    *,
    key: str | tuple[str, ...] | list[str],
    aggregates: Mapping[str, FieldAggregate],
    ttl: TTL | None = None,
    into: Any = None,
    renamed: Mapping[str, str] = NOTHING_RENAMED,
) -> Process[Any, Any, Any]:
    """Return a process function that keeps aggregates of the records of each key.

    Parameters:
        record: the type of the records.
        key: the fields that they are grouped by.
        aggregates: by name, which is that of the state and of the field in a result.
        ttl: how long they are kept.
        into: a record class for the results; None for NamedTuples.
        renamed: as for `process`.

    Raises:
        StateTypeError: there is no such field, or no such aggregate of it; the message names it.
    """
    fields = (key,) if isinstance(key, str) else tuple(key)
    results = ResultRecords(record, "aggregate")
    if not aggregates:
        raise results.error("name an aggregate, such as orders=Count() or cents=Sum('cents')")
    parts: list[PartialAggregate] = []
    places: dict[str, tuple[FieldAggregate, int]] = {}
    first = len(fields) + 1  # after the key and the number of records
    types = {name: results.annotation(name) for name in fields}
    hints: dict[str, Any] = {_KEYS: record.cls}
    for name, of in aggregates.items():
        if not isinstance(of, FieldAggregate):
            raise results.error(
                f"{name}={shown(of)}: give Count(), or Sum, Min, Max, Mean or Collect of a field, "
                "or Top, Last or Collect of the records"
            )
        if name in types:
            raise results.error(f"{name!r} would be two fields of the results: give another name")
        value_type, annotation = of.types(results)
        places[name] = of, first + len(parts)
        parts += of.parts
        types[name] = of.result(annotation)
        hints[name] = of.state(value_type) if ttl is None else Annotated[of.state(value_type), ttl]
    unclear = absent_or_none(record)
    if unclear is not None and any(part.takes_records for part in parts):
        raise results.error(
            f"{record.name}.{unclear} may be absent or None, and the columns of records have one "
            "null for both: declare it without None, or without NotRequired"
        )
    name = "_".join(("aggregate", "by", *fields))
    output, make = results.result_class(name, types, into)
    hints["return"] = Iterator[output]  # type: ignore[valid-type]
    fold = declare(_fold(len(fields), places, partial(made_of_columns, make)), name, hints)
    traits = Traits(
        combiner=Combiner(record, fields, parts),
        definition=partial(_definition, dict(aggregates)),
        takes_columns=True,  # so each batch has one row per key
        made_of=AggregatedFields(dict(aggregates), make),
    )
    return Process(fold, fields, hints, renamed=renamed, traits=traits)


def _definition(aggregates: Mapping[str, FieldAggregate], names: Renaming) -> Mapping[str, str]:
    """Return the definition of each aggregate by state, with renamed fields."""
    return {name: repr(of.named(names)) for name, of in aggregates.items()}
