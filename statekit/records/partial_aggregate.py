"""Partial aggregates: results of some records of a key, which are merged later."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from statekit.codec.annotations import peel
from statekit.records.group_lists import AllValues, FirstArrived, GroupLists
from statekit.records.record_order import RecordOrder
from statekit.records.record_type import RecordType

Verb = Literal["count", "sum", "min", "max"]
"""Arrow's functions that combine values, and that merge the results of several batches."""


class PartialAggregate(NamedTuple):
    """An aggregate of some records of a key.

    Parameters:
        verb: the aggregate function. "list" keeps all values, each with its event time in
            microseconds if there are panes. "arrived" keeps the record that arrived first.
        field: whose values other than None are aggregated; None aggregates the records.
        order: of which the first records are kept, if that is the aggregate.
    """

    verb: Verb | Literal["first", "arrived", "list"]
    field: str | None
    order: RecordOrder | None = None

    @property
    def takes_records(self) -> bool:
        """True if it keeps complete records, and so reads all of their fields."""
        return self.field is None and self.verb != "count"

    def merge(self, record: RecordType) -> str | GroupLists:
        """Return the merger of partial results: the name of an Arrow function, or a
        `GroupLists`.
        """
        if self.verb == "list":
            return AllValues()
        if self.verb == "arrived":
            return FirstArrived()
        if self.verb == "first":
            assert self.order is not None
            return self.order.completed(record)
        return _MERGE_VERBS[self.verb]

    @property
    def description(self) -> str:
        """The aggregate as text."""
        if self.verb == "list":
            return f"all {'records' if self.field is None else f'values of {self.field}'}"
        if self.verb == "arrived":
            return "first record that arrived"
        if self.order is not None:
            return f"first {self.order.count} by {', '.join(self.order.fields)}"
        return self.verb + ("" if self.field is None else f" of {self.field}")


_MERGE_VERBS: dict[str, str] = {"count": "sum", "sum": "sum", "min": "min", "max": "max"}
"""The function that merges the results of each aggregate function."""

NUMBER = PartialAggregate("count", None)
"""The number of records, which each combined row has in any case."""

ALL_RECORDS = PartialAggregate("list", None)
"""All records, in order of arrival."""

ARRIVED_FIRST = PartialAggregate("arrived", None)
"""The record that arrived first, in a list."""


def absent_or_none(record: RecordType) -> str | None:
    """Return a TypedDict key that may be absent or None; None if there is none. Columns cannot
    distinguish the two cases.
    """
    if record.flavour != "typeddict":
        return None
    fields = (record.fields or {}).values()
    unclear = (of.name for of in fields if not of.required and peel(of.annotation)[1])
    return next(unclear, None)


def without_none(annotation: Any) -> Any:
    """Return an annotation without None, if exactly one type remains."""
    members, is_optional, _ = peel(annotation)
    return members[0] if is_optional and len(members) == 1 else annotation
