"""Aggregates over plain Python: the results for lists of records, and an operator of aggregates."""

from __future__ import annotations

import decimal
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from statekit.checkpoint.job_file import TtlRecord
from statekit.codec.annotations import peel
from statekit.functions.process import Process
from statekit.job.windows.aggregated_result import AggregatedResult
from statekit.job.windows.field_aggregates import (
    Collect,
    Count,
    Last,
    Max,
    Mean,
    Min,
    OwnAggregate,
    Sum,
    Top,
)
from statekit.keygroup import key_fields
from statekit.records.record_type import RecordType
from statekit.records.result_type import ORDERED
from statekit.shown import shown
from statekit.testing.runs.comparison import is_same

Result = Callable[[Sequence[Any]], Any]
"""A function that returns the result for the records of a key or window, in order."""

_DIGITS, _PLACES = 200, 18


def result_of(aggregate: Any, record: RecordType) -> Result:
    """Return a function that returns the result of an aggregate for records.

    Parameters:
        aggregate: of fields or records, or one of the user's.
        record: the type of the records.
    """
    get = _itself if aggregate.field is None else record.getter((aggregate.field,))
    match aggregate:
        case OwnAggregate():
            own = aggregate.aggregate
            return lambda some: own.result(functools.reduce(own.add, map(get, some), own.create()))
        case Top() | Last():
            return _first(aggregate, record, get)
        case Count(field=None):
            return len
        case Count():
            return lambda some: len(_values(get, some))
        case Collect():
            return lambda some: _values(get, some)
        case Sum() | Min() | Max() | Mean():
            fold = _FOLDS[type(aggregate)]
            return lambda some: fold(values) if (values := _values(get, some)) else None
    raise TypeError(f"{shown(aggregate)} has no model: add one to {__name__}")


def _itself(record: Any) -> Any:
    return record


def _values(get: Callable[[Any], Any], records: Sequence[Any]) -> list[Any]:
    """Return the values of a field, without None."""
    return [value for value in map(get, records) if value is not None]


def _sum(values: Sequence[Any]) -> Any:
    with decimal.localcontext(prec=_DIGITS):
        return functools.reduce(lambda one, other: one + other, values)


def _numbers(values: Sequence[Any]) -> Sequence[Any]:
    """Return the values without NaN, if there are others."""
    return [value for value in values if value == value] or values


def _mean(values: Sequence[Any]) -> Any:
    with decimal.localcontext(prec=_DIGITS):
        mean = _sum(values) / len(values)
        return round(mean, _PLACES) if isinstance(mean, decimal.Decimal) else mean


_FOLDS: dict[type, Callable[[Sequence[Any]], Any]] = {
    Sum: _sum,
    Min: lambda values: min(_numbers(values)),
    Max: lambda values: max(_numbers(values)),
    Mean: _mean,
}


# ----------------------------------------------------------------------------------- first records


def _first(aggregate: Top | Last, record: RecordType, get: Callable[[Any], Any]) -> Result:
    """Return a function that returns the first records in an order, or the last record or a field
    of it.
    """
    if isinstance(aggregate, Last):
        in_order = _comparison(aggregate.order.fields, record)
        return lambda some: get(min(some, key=functools.cmp_to_key(in_order)))
    by, count = tuple(aggregate.by), aggregate.count
    in_order, equal = _comparison(by, record), _comparison(by, record, breaks_ties=False)

    def first(some: Sequence[Any]) -> list[Any]:
        ordered = sorted(some, key=functools.cmp_to_key(in_order))
        taken = ordered[:count]
        if aggregate.ties:
            taken += [each for each in ordered[count:] if equal(each, taken[-1]) == 0]
        return taken

    return first


def _comparison(
    by: Sequence[str], record: RecordType, *, breaks_ties: bool = True
) -> Callable[[Any, Any], int]:
    """Return a function that compares two records field by field.

    Parameters:
        by: fields; "-price" from the largest to the smallest.
        breaks_ties: whether the other fields follow, in the order of their declaration.
    """
    named = [(name.removeprefix("-"), name.startswith("-")) for name in by]
    if breaks_ties:
        for name, field in (record.fields or {}).items():
            members, _, _ = peel(record.column_annotation(field))
            if all(name != other for other, _ in named) and members in [(of,) for of in ORDERED]:
                named.append((name, False))
    parts = [(record.getter((name,)), falls) for name, falls in named]

    def compare(one: Any, other: Any) -> int:
        for get, falls in parts:
            if found := _compared(get(one), get(other), falls=falls):
                return found
        return 0

    return compare


def _compared(one: Any, other: Any, *, falls: bool) -> int:
    """Compare two values. None is last, and NaN right before it."""
    rank, behind = _rank(one), _rank(other)
    if rank or behind:
        return rank - behind
    if one == other:
        return 0
    return 1 if (one > other) != falls else -1


def _rank(value: Any) -> int:
    if value is None:
        return 2
    return 1 if value != value else 0


# ------------------------------------------------------------------------------------ the operator


class AggregateModel:
    """Model of an operator of aggregates without windows.

    Parameters:
        process: the operator.
    """

    def __init__(self, process: Process[Any, Any, Any]) -> None:
        made_of: AggregatedResult = process.traits.made_of
        record = process.record_type.members[0]
        self._make = made_of.make
        self._key_of = process.key_of_record()
        ttls = {spec.name: spec.ttl for spec in process.states}
        self._of = {
            name: (of, result_of(of, record), ttls[name]) for name, of in made_of.of.items()
        }
        self._get = {
            name: _itself if of.field is None else record.getter((of.field,))
            for name, of in made_of.of.items()
        }
        self._emit, self._record = made_of.emit, record
        self._kept: dict[tuple[Any, str], list[tuple[Any, int]]] = {}
        self._has_ended = False

    def run(self, records: Sequence[Any], now_us: int, *, ends: bool = False) -> list[Any]:
        """Run one epoch, and return the results.

        Parameters:
            now_us: the processing time.
            ends: whether event time has ended.
        """
        of_keys: dict[Any, list[Any]] = {}
        for record in records:
            of_keys.setdefault(self._key_of(record), []).append(record)
        found = [
            result for key, some in of_keys.items() for result in self._emitted(key, some, now_us)
        ]
        if self._emit == "final" and ends and not self._has_ended:
            self._has_ended = True
            for key in dict.fromkeys(key for key, _ in self._kept):
                values = self._present(key, now_us)
                if any(value is not None for value in values):
                    found.append(self._make(*key_fields(key), *values))
        return found

    def _emitted(self, key: Any, records: list[Any], now_us: int) -> Iterator[Any]:
        """Add the records of a key in an epoch, and yield its results."""
        before = self._present(key, now_us)
        parts = [[record] for record in records] if self._emit == "always" else [records]
        for some in parts:
            values = [self._result(key, name, some, now_us) for name in self._of]
            match self._emit:
                case "final":
                    continue
                case "ranks":
                    yield from self._ranks(before[0] or [], values[0])
                    continue
                case "change" if is_same(before, values):
                    continue
            yield self._make(*key_fields(key), *values)

    def _ranks(self, before: list[Any], now: list[Any]) -> Iterator[Any]:
        """Yield the results of the places whose record has changed."""
        get = self._record.getter(tuple(self._record.fields or ()))
        for place, record in enumerate(now):
            if place >= len(before) or before[place] != record:
                fields = get(record)
                if len(self._record.fields or ()) == 1:
                    fields = (fields,)
                yield self._make(*fields, place + 1)

    def _present(self, key: Any, now_us: int) -> list[Any]:
        """Return the present result of each aggregate of a key; None for no value."""
        found = []
        for name, (_, result, ttl) in self._of.items():
            kept = [record for record, _ in unexpired(self._kept.get((key, name), []), ttl, now_us)]
            found.append(result(kept) if kept else None)
        return found

    def _result(self, key: Any, name: str, records: Sequence[Any], now_us: int) -> Any:
        """Add records of a key to an aggregate, and return its result."""
        of, result, ttl = self._of[name]
        added = [(record, now_us) for record in records]
        kept = unexpired(self._kept.get((key, name), []), ttl, now_us)
        takes_all = isinstance(of, Count | Top | Last | OwnAggregate)
        counts = takes_all or _values(self._get[name], records)
        if counts and not isinstance(of, Collect):  # the whole value is written
            kept = [(record, now_us) for record, _ in kept]
        if ttl is not None and ttl.refresh == "read":
            kept = [(record, now_us) for record, _ in kept]
        kept = self._kept[key, name] = [*kept, *added]
        return result([record for record, _ in kept])


def unexpired(
    kept: list[tuple[Any, int]], ttl: TtlRecord | None, now_us: int
) -> list[tuple[Any, int]]:
    """Return the records that have not expired: lists expire element by element."""
    if ttl is None:
        return kept
    return [(record, at) for record, at in kept if now_us - at < ttl.duration_us]
