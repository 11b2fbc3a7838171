"""The operators of `Stream.last`, `first` and `top`: the first records of each key in an order.

Each is an aggregate by key whose results are records, and not lists of records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from statekit.functions.process import NOTHING_RENAMED, Process
from statekit.job.per_key.kept_aggregates import KeptAggregates
from statekit.job.windows.aggregated_result import AggregatedResult
from statekit.job.windows.field_aggregates import Last, Top
from statekit.records.keyed_batch import KeyColumns
from statekit.records.record_type import RecordType
from statekit.records.result_type import ResultRecords, made_of_columns
from statekit.state.options import TTL

RANK = "rank"


def ends(
    record: RecordType,
    of: Last,
    title: str,
    on: str | tuple[str, ...] | list[str],
    *,
    ttl: TTL | None = None,
    renamed: Mapping[str, str] = NOTHING_RENAMED,
) -> Process[Any, ..., Any]:
    """Return a process function that emits the first or the last record of each key if it has
    changed.

    Parameters:
        record: the type of the records.
        of: the aggregate, which keeps one record.
        title: the name of the state, and the first part of the name of the function.
        on: the fields of the key; none for all records together.
        ttl, renamed: as for `Stream.aggregate`.

    Raises:
        StateTypeError: there is no such field; the message names it.
    """
    kept = _kept(record, of, title, on, ttl, renamed)
    (added,) = kept.added

    def fold(keys: KeyColumns, state: Any) -> list[Any]:
        before, after = state.change_all(keys.prefixes, added(keys.columns))
        changes = zip(before, after, strict=True)
        return [now[0] for was, now in changes if was is not now and was != now]

    made_of = AggregatedResult(kept.aggregates, _last_value, emit="change")
    return kept.process(_named(title, kept.key), fold, record.cls, made_of)


def ranks(
    record: RecordType,
    of: Top,
    on: str | tuple[str, ...] | list[str],
    *,
    into: Any = None,
    ttl: TTL | None = None,
    renamed: Mapping[str, str] = NOTHING_RENAMED,
) -> Process[Any, ..., Any]:
    """Return a process function that emits the places of each key whose record has changed.

    Parameters:
        record: the type of the records.
        of: how many records are kept, and in which order.
        on: the fields of the key; none for all records together.
        into: a class for the results; None for NamedTuples with the fields of a record, and `rank`.
        ttl, renamed: as for `Stream.aggregate`.

    Raises:
        StateTypeError: there is no such field; the message names it.
    """
    kept = _kept(record, of, "top", on, ttl, renamed)
    results, names = kept.results, list(record.fields or ())
    if RANK in names:
        raise results.error(
            f"{record.name} has a field {RANK!r}, and a result has the place under this name: "
            "rename the field, or use aggregate(…=Top(…))"
        )
    name = _named(f"top_{of.count}", kept.key)
    types = {field: results.annotation(field) for field in names} | {RANK: int}
    output, make = results.result_class(name, types, into)
    (added,) = kept.added
    fields_of = record.columns_of(names)

    def fold(keys: KeyColumns, state: Any) -> list[Any]:
        before, after = state.change_all(keys.prefixes, added(keys.columns))
        places: list[int] = []
        records: list[Any] = []
        for was, now in zip(before, after, strict=True):
            if was is not now:
                _add_changed(was or (), now, places, records)
        if not records:
            return []
        return made_of_columns(make, *fields_of(records), places)

    made_of = AggregatedResult(kept.aggregates, make, emit="ranks")
    return kept.process(name, fold, output, made_of)


def _add_changed(
    was: Sequence[Any], now: Sequence[Any], places: list[int], records: list[Any]
) -> None:
    """Add the records of `now` that `was` does not have at the same place, with their places."""
    if not was:
        places.extend(range(1, len(now) + 1))
        records.extend(now)
        return
    for place, (record, before) in enumerate(zip_longest(now, was), start=1):
        if record != before:
            places.append(place)
            records.append(record)


def _kept(
    record: RecordType,
    of: Last | Top,
    state: str,
    on: str | tuple[str, ...] | list[str],
    ttl: TTL | None,
    renamed: Mapping[str, str],
) -> KeptAggregates:
    """Return the aggregates of an operator that keeps one."""
    results = ResultRecords(record, state)
    key = (on,) if isinstance(on, str) else tuple(on)
    for name in key:
        results.annotation(name)
    kept = KeptAggregates(results, key, {state: of}, ttl, renamed)
    _ = kept.accumulations  # errors are those of the declaration
    return kept


def _named(title: str, key: tuple[str, ...]) -> str:
    """Return the name of a function."""
    return "_".join((title, "by", *key) if key else (title, "all"))


def _last_value(*values: Any) -> Any:
    """Return the last argument: a result without the key fields."""
    return values[-1]
