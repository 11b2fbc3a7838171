"""The operator of `Stream.aggregate`: one state per aggregate, and one result per key and epoch."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, NamedTuple

from statekit.functions.process import NOTHING_RENAMED, Process, Traits
from statekit.functions.signature import declare
from statekit.job.windows.accumulation import EXACT_DIGITS
from statekit.job.windows.field_aggregates import Added, FieldAggregate, added_by
from statekit.job.windows.window_kind import Window
from statekit.records.keyed_batch import KeyColumns
from statekit.records.partial_aggregate import absent_or_none
from statekit.records.preaggregate import Combiner
from statekit.records.record_type import RecordType
from statekit.records.result_type import Make, ResultRecords, made_of_columns
from statekit.shown import shown
from statekit.state.options import TTL

_KEYS = "_keys"  # the parameter that takes keys: no state is called so


class AggregatedResult(NamedTuple):
    """The description of an operator of aggregates as data, from which a model of it can be built.

    Parameters:
        of: the aggregates by name.
        make: creates a result from the key fields, the start and end of a window, and the values.
        window: the kind of windows; None without windows.
        allowed_lateness: how long a window is kept for late records after it has fired.
        at_change: whether a window fires at each record.
    """

    of: Mapping[str, FieldAggregate]
    make: Make
    window: Window | None = None
    allowed_lateness: dt.timedelta = dt.timedelta(0)
    at_change: bool = False


def check_aggregates(results: ResultRecords, aggregates: Mapping[str, Any]) -> None:
    """Check the aggregates that a user gave by name.

    Raises:
        StateTypeError: there are none, or one is none.
    """
    if not aggregates:
        raise results.error("name an aggregate, such as orders=Count() or cents=Sum('cents')")
    for name, of in aggregates.items():
        if not isinstance(of, FieldAggregate):
            raise results.error(
                f"{name}={shown(of)}: give Count(), or Sum, Min, Max, Mean or Collect of a field, "
                "or Top, Last or Collect of the records, or an OwnAggregate"
            )


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
    check_aggregates(results, aggregates)
    types = {name: results.annotation(name) for name in fields}
    if twice := next((name for name in aggregates if name in fields), None):
        raise results.error(f"{twice!r} would be two fields of the results: give another name")
    kept = {name: of.accumulation(results) for name, of in aggregates.items()}
    combiner = _combiner(results, fields, aggregates)
    name = "_".join(("aggregate", "by", *fields))
    types |= {name: of.result for name, of in kept.items()}
    output, make = results.result_class(name, types, into)
    hints: dict[str, Any] = {_KEYS: record.cls}
    for state, of in kept.items():
        hints[state] = of.state if ttl is None else Annotated[of.state, ttl]
    hints["return"] = Iterator[output]  # type: ignore[valid-type]
    added = [added_by(combiner, of, kept[name]) for name, of in aggregates.items()]
    fold = _fold(len(fields), added, partial(made_of_columns, make))
    traits = Traits(
        combiner=combiner,
        definition=lambda names: {name: of.text(names) for name, of in aggregates.items()},
        takes_columns=True,  # so each batch has one row per key
        made_of=AggregatedResult(dict(aggregates), make),
    )
    declared = declare(fold, name, hints)
    return Process(declared, fields, hints, renamed=renamed, traits=traits)


def _combiner(
    results: ResultRecords, key: tuple[str, ...], aggregates: Mapping[str, FieldAggregate]
) -> Combiner:
    record = results.record
    parts = [part for of in aggregates.values() for part in of.parts]
    unclear = absent_or_none(record)
    if unclear is not None and any(part.takes_records for part in parts):
        raise results.error(
            f"{record.name}.{unclear} may be absent or None, and the columns of records have one "
            "null for both: declare it without None, or without NotRequired"
        )
    return Combiner(record, key, parts)


def _fold(
    key_size: int, added: Sequence[Added], results: Callable[..., list[Any]]
) -> Callable[..., list[Any]]:
    """Return a function that adds the combined rows of many keys to their states and returns the
    results.

    Parameters:
        key_size: number of key fields.
        added: for each state, from the columns of rows to the values to add.
        results: creates results from columns of keys and values.
    """

    def fold(keys: KeyColumns, *states: Any) -> list[Any]:
        with decimal.localcontext(prec=EXACT_DIGITS):
            values = [
                state.add_all(keys.prefixes, added_to(keys.columns))
                for state, added_to in zip(states, added, strict=True)
            ]
        return results(*keys.columns[:key_size], *values)

    return fold
