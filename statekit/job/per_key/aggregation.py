"""The operator of `Stream.aggregate`: one state per aggregate, and results when `emit` says so."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, get_args

from statekit.functions.process import NOTHING_RENAMED, Process
from statekit.job.per_key.emission import AtEnd, at_change, at_each_record, once_per_epoch
from statekit.job.per_key.kept_aggregates import KeptAggregates
from statekit.job.windows.aggregated_result import AggregatedResult, Emit, check_aggregates
from statekit.job.windows.field_aggregates import Collect, FieldAggregate
from statekit.records.record_type import RecordType
from statekit.records.result_type import ResultRecords, WithoutKey, made_of_columns
from statekit.shown import shown
from statekit.state.options import TTL


def aggregation(
    record: RecordType,
    *,
    key: str | tuple[str, ...] | list[str],
    aggregates: Mapping[str, FieldAggregate],
    emit: Emit = "epoch",
    event_time: str | None = None,
    ttl: TTL | None = None,
    into: Any = None,
    renamed: Mapping[str, str] = NOTHING_RENAMED,
    title: str = "aggregate",
) -> Process[Any, Any, Any]:
    """Return a process function that keeps aggregates of the records of each key.

    Parameters:
        record: the type of the records.
        key: the fields that they are grouped by; none for all records together.
        aggregates: by name, which is that of the state and of the field in a result.
        emit: when results are emitted.
        event_time: the field with the event time, for `emit="final"`.
        ttl: how long they are kept.
        into: a record class for the results; None for NamedTuples.
        renamed: as for `process`.
        title: the first part of the name of the function; the key follows.

    Raises:
        StateTypeError: there is no such field, or no such aggregate of it; the message names it.
    """
    fields = (key,) if isinstance(key, str) else tuple(key)
    results = ResultRecords(record, title)
    check_aggregates(results, aggregates)
    _check_emit(results, emit, event_time, aggregates)
    types = {name: results.annotation(name) for name in fields}
    if twice := next((name for name in aggregates if name in fields), None):
        raise results.error(f"{twice!r} would be two fields of the results: give another name")
    kept = KeptAggregates(results, fields, aggregates, ttl, renamed, emit == "always", event_time)
    types |= {name: of.result for name, of in kept.accumulations.items()}
    name = "_".join((title, "by", *fields) if fields else (title, "all"))
    output, make = results.result_class(name, types, into)
    if not fields:
        make = WithoutKey(make)
    made_of = AggregatedResult(dict(aggregates), make, emit=emit)
    made = partial(made_of_columns, make)
    if event_time is not None:
        end = AtEnd(kept.added, made)
        return kept.process_with_end(name, end.fold, end.fire, output, made_of)
    size = kept.combiner.key_size
    if emit == "always":
        fold = at_each_record(size, kept.combiner.number_at + 1, kept.added_each, made)
    else:
        fold = (at_change if emit == "change" else once_per_epoch)(size, kept.added, made)
    return kept.process(name, fold, output, made_of)


def _check_emit(
    results: ResultRecords, emit: Any, event_time: Any, aggregates: Mapping[str, FieldAggregate]
) -> None:
    if emit not in get_args(Emit):
        raise results.error(f'emit={shown(emit)}: use "epoch", "always", "change" or "final"')
    if emit == "final" and event_time is None:
        raise results.error(
            'emit="final" emits when event time has ended: say which field has the event_time'
        )
    if emit != "final" and event_time is not None:
        raise results.error(
            f'event_time={shown(event_time)} belongs to emit="final": leave it out, or aggregate '
            "windows"
        )
    lists = [name for name, of in aggregates.items() if isinstance(of, Collect)]
    if lists and emit != "epoch":
        raise results.error(
            f'{lists[0]}=Collect() grows with each record, and is emitted with emit="epoch" only: '
            "use Top or Last, or a ListState in a process function"
        )
