"""`OwnAggregate`: an aggregate with functions of the user."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from types import GenericAlias
from typing import Annotated, Any

from statekit.errors import StateTypeError
from statekit.functions.field_names import Renaming
from statekit.job.windows.accumulation import Accumulation
from statekit.job.windows.field_aggregates import FieldAggregate
from statekit.records.output_copy import copier
from statekit.records.partial_aggregate import PartialAggregate
from statekit.records.result_type import ResultRecords
from statekit.shown import shown
from statekit.state.options import Aggregate
from statekit.state.single_row_states import AggregatingState

_AGGREGATING: Any = AggregatingState


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

    def text(self, names: Renaming) -> str:
        return ", ".join(self.definition("aggregate", names).values())

    def definition(self, name: str, names: Renaming) -> Mapping[str, str]:
        """Return the definition: the name of the result, the field, and the name of the `add`
        function if that has one.
        """
        added = "the whole record" if self.field is None else names(self.field)
        known = self.aggregate.stored_name
        return {"result": name, "field": added} | ({} if known is None else {"add": known})
