"""The order of records by some of their fields, equal in Python and in Arrow, and the first records
of groups in that order.

Fields that are not named break ties, in the order of their declaration, as far as their types have
an order. So the first records do not depend on how records arrive.
"""

from __future__ import annotations

import datetime as dt
import decimal
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from statekit.codec.annotations import peel
from statekit.records.arrow_sort import comparable, row_numbers
from statekit.records.group_lists import GroupLists
from statekit.records.record_type import RecordType
from statekit.records.result_type import ORDERED

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_Key = Callable[[Any], Any]

_ALWAYS_ORDERED = (int, bool, str, bytes, dt.date, dt.datetime, dt.timedelta)
"""Types whose values are all comparable: they have no NaN."""


@dataclass(frozen=True)
class RecordOrder:
    """An order of records. None sorts last, NaN before it, in both directions.

    Parameters:
        fields: that are compared one after the other; "-price" from the largest to the smallest.
        count: how many first records are wanted.
        with_ties: also those that are equal to the last of these in all of the fields.
    """

    fields: tuple[str, ...]
    count: int
    with_ties: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the fields."""
        return tuple(field.removeprefix("-") for field in self.fields)

    def completed(self, record: RecordType) -> CompleteOrder:
        """Return the order for records of a type, extended by fields that break ties.

        >>> from typing import NamedTuple
        >>> class Bid(NamedTuple):
        ...     bidder: str
        ...     price: int | None
        >>> order = RecordOrder(("-price",), 2).completed(RecordType.of(Bid, where="example"))
        >>> order.first([Bid("bob", 5), Bid("eve", 7), Bid("ada", 5), Bid("joe", None)])
        (Bid(bidder='eve', price=7), Bid(bidder='ada', price=5))
        """
        fields = record.fields or {}
        placed = [
            (name, field.startswith("-"))
            for name, field in zip(self.names, self.fields, strict=True)
        ]
        for name, field in fields.items():
            members, _, _ = peel(record.column_annotation(field))
            if name not in self.names and len(members) == 1 and members[0] in ORDERED:
                placed.append((name, False))
        ties = len(self.fields) if self.with_ties else None
        return CompleteOrder(record, tuple(placed), self.count, ties)


@dataclass(frozen=True)
class CompleteOrder(GroupLists):
    """An order of records of one type.

    Parameters:
        record: their type.
        placed: the fields, and whether each goes from the largest to the smallest.
        count: how many first records are wanted.
        ties: also those that are equal to the last of these in so many fields; None for no others.
    """

    record: RecordType
    placed: tuple[tuple[str, bool], ...]
    count: int
    ties: int | None = None

    @cached_property
    def key(self) -> _Key:
        """A function from a record to its sort key."""
        parts = [self._part(name, falls) for name, falls in self.placed]
        return lambda record: tuple([part(record) for part in parts])

    def _part(self, name: str, falls: bool) -> _Key:
        """Return a function from a record to one part of its sort key."""
        get = self.record.getter((name,))
        if self.record.flavour == "typeddict":
            get = operator.methodcaller("get", name)  # a key may be absent
        if not self._is_always_ordered(name):
            key = _falling if falls else _rising
            return lambda record: key(get(record))
        return (lambda record: _negated(get(record))) if falls else get

    def _is_always_ordered(self, name: str) -> bool:
        """Return whether all values of a field are comparable: none is None or NaN."""
        field = (self.record.fields or {})[name]
        members, is_optional, _ = peel(self.record.column_annotation(field))
        return field.required and not is_optional and members[0] in _ALWAYS_ORDERED

    @cached_property
    def _sorts(self) -> list[tuple[_Key, bool]]:
        """Stable sorts, each with its key and whether it is reversed, that put records in order one
        after the other. Their keys call no Python function, if the fields allow it.
        """
        is_plain = all(self._is_always_ordered(name) for name, _ in self.placed)
        if not is_plain or self.record.flavour == "typeddict":
            return [(self.key, False)]
        runs = groupby(self.placed, key=operator.itemgetter(1))
        names = [(tuple(name for name, _ in run), falls) for falls, run in runs]
        return [(self.record.getter(run), falls) for run, falls in reversed(names)]

    def first(self, records: Iterable[Any]) -> tuple[Any, ...]:
        """Return the first records in sorted order."""
        ordered = list(records)
        for key, falls in self._sorts:
            ordered.sort(key=key, reverse=falls)
        end = self.count
        if self.ties is not None and len(ordered) > end:
            last = self.key(ordered[end - 1])[: self.ties]
            while end < len(ordered) and self.key(ordered[end])[: self.ties] == last:
                end += 1
        return tuple(ordered[:end])

    def merged(self, held: tuple[Any, ...], more: Sequence[Any]) -> tuple[Any, ...]:
        """Merge two sequences of first records. Return the first sequence itself if the second adds
        none.

        Parameters:
            held, more: each as `first` returns it.
        """
        if not held:
            return tuple(more)
        if len(held) >= self.count:
            soonest, last = self.key(more[0]), self.key(held[-1])
            comes_after = not soonest < last
            if comes_after and (self.ties is None or soonest[: self.ties] != last[: self.ties]):
                return held
        return self.first([*held, *more])

    def of_groups(self, rows: pa.ListArray, column: pa.ChunkedArray) -> pa.ListArray:
        """Return the first records of each group, as structs.

        Parameters:
            rows: the numbers of the rows of each group. Each row is in one group.
            column: of each row a struct, or several in a list.
        """
        group_of_row = pc.list_parent_indices(rows).take(pc.sort_indices(rows.flatten()))
        structs = column.combine_chunks()
        groups = group_of_row
        if pa.types.is_list(structs.type):
            groups = group_of_row.take(pc.list_parent_indices(structs))
            structs = structs.flatten()
        keys = {"": groups}
        for name, _ in self.placed:
            keys[f"field {name}"] = comparable(pa.chunked_array([structs.field(name)]))
        names = [f"field {name}" for name, _ in self.placed]
        directions = ["descending" if falls else "ascending" for _, falls in self.placed]
        by = [("", "ascending"), *zip(names, directions, strict=True)]
        order = pc.sort_indices(pa.table(keys), sort_keys=by)
        groups = groups.take(order)
        begins = _differs_from_before(groups)
        starts = pc.indices_nonzero(begins).cast(pa.int64())
        place = pc.subtract(row_numbers(len(groups)), starts.take(groups))
        if self.ties is not None:
            for name in names[: self.ties]:
                begins = pc.or_(begins, _differs_from_before(keys[name].take(order)))
            run = pc.subtract(pc.cumulative_sum(begins.cast(pa.int64())), 1)
            place = place.filter(begins).take(run)
        is_first = pc.less(place, self.count)
        chosen = order.filter(is_first)
        starts = pc.indices_nonzero(_differs_from_before(groups.filter(is_first)))
        offsets = [*starts.cast(pa.int32()).to_pylist(), len(chosen)]
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), structs.take(chosen))


def _differs_from_before(values: pa.Array) -> pa.Array:
    """Return whether each value differs from the previous one. True for the first value. None
    equals None, NaN equals NaN, and -0.0 equals 0.0.
    """
    if pa.types.is_floating(values.type):
        values = pc.add(values, 0.0)
    encoded = values
    if values.null_count or not pa.types.is_integer(values.type):
        encoded = values.dictionary_encode(null_encoding="encode").indices
    differs = pc.not_equal(encoded.slice(1), encoded.slice(0, max(len(encoded) - 1, 0)))
    return pa.concat_arrays([pa.array([True][: len(values)], pa.bool_()), differs])


def _rising(value: Any) -> tuple[Any, ...]:
    if value is None:
        return (2,)
    return (1,) if value != value else (0, value)


def _falling(value: Any) -> tuple[Any, ...]:
    if value is None:
        return (2,)
    return (1,) if value != value else (0, _negated(value))


def _negated(value: Any) -> Any:
    """Return a value that sorts in the opposite order."""
    if isinstance(value, decimal.Decimal):
        return value.copy_negate()
    if isinstance(value, int | float | dt.timedelta):
        return -value
    if isinstance(value, dt.datetime):
        return _EPOCH - value
    if isinstance(value, dt.date):
        return -value.toordinal()
    return _Negated(value)


@dataclass(frozen=True)
class _Negated:
    """A text or bytes that sorts in the opposite order."""

    value: Any

    def __lt__(self, other: _Negated) -> bool:
        return bool(other.value < self.value)
