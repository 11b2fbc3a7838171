"""Built-in aggregates as an operator that calls no Python function per record."""

from __future__ import annotations

import decimal
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import Annotated, Any

from statekit.functions.process import Process, Traits
from statekit.functions.signature import declare
from statekit.job.windows.field_aggregates import EXACT_DIGITS, FieldAggregate
from statekit.records.keyed_batch import KeyColumns
from statekit.records.preaggregate import Combiner, PartialAggregate
from statekit.records.record_type import RecordType
from statekit.records.result_type import Make, ResultRecords
from statekit.state.options import TTL

_KEYS = "_keys"  # the parameter that takes keys: no state is called so


def _fold(
    key_size: int,
    aggregates: Mapping[str, tuple[FieldAggregate, int]],
    results: Callable[..., list[Any]],
) -> Callable[..., list[Any]]:
    """Return a function that adds the combined rows of many keys to their states, and returns the
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
                state._add_all(keys.prefixes, added_to(keys.columns))
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
) -> Process[Any, Any, Any]:
    """Return a process function that keeps aggregates of the records of each key.

    Parameters:
        record: the type of the records.
        key: the fields that they are grouped by.
        aggregates: by name, which is that of the state and of the field in a result.
        ttl: how long they are kept.
        into: a record class for the results; None for NamedTuples.

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
            raise results.error(f"{name}={of!r}: give Count(), or Sum, Min, Max or Mean of a field")
        if name in types:
            raise results.error(f"{name!r} would be two fields of the results: give another name")
        annotation: Any = None if of.field is None else results.annotation(of.field)
        value_type = None if of.verb == "count" else results.check_combines(of.verb, of.field or "")
        places[name] = of, first + len(parts)
        parts += of.parts
        types[name] = of.result(annotation)
        hints[name] = of.state(value_type) if ttl is None else Annotated[of.state(value_type), ttl]
    name = "_".join(("aggregate", "by", *fields))
    output, make = results.result_class(name, types, into)
    hints["return"] = Iterator[output]  # type: ignore[valid-type]
    fold = declare(_fold(len(fields), places, partial(_results_of, make)), name, hints)
    traits = Traits(
        combiner=Combiner(record, fields, parts),
        definition={name: repr(of) for name, of in aggregates.items()},
        takes_columns=True,  # so each batch has one row per key
    )
    return Process(fold, fields, hints, traits=traits)


def _results_of(make: Make, *columns: Sequence[Any]) -> list[Any]:
    """Create a result from each row of columns."""
    if isinstance(make, type) and issubclass(make, tuple):  # a NamedTuple's own takes twice as long
        return list(map(tuple.__new__, repeat(make), zip(*columns, strict=True)))
    return list(map(make, *columns))
