"""Aggregates by key as states, to which the records of each key are added.

One state per aggregate. `KeptAggregates` makes the process function of a fold, which adds the
combined rows of many keys to these states and returns results.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

from statekit.functions.context import Context
from statekit.functions.process import Process, Traits
from statekit.functions.signature import declare
from statekit.job.windows.accumulation import EXACT_DIGITS, Accumulation
from statekit.job.windows.aggregated_result import AggregatedResult
from statekit.job.windows.field_aggregates import Added, FieldAggregate, added_by
from statekit.records.panes import OnePane
from statekit.records.partial_aggregate import ALL_RECORDS, absent_or_none
from statekit.records.preaggregate import Combiner
from statekit.records.result_type import ResultRecords
from statekit.state.options import TTL, ttl_fault
from statekit.state.timers import Timer
from statekit.timestamp import LATENESS_MAX

# Parameters that are no states: no aggregate has such a name.
_KEYS, _CONTEXT = "_keys", "_ctx"

_ITERATOR: Any = Iterator


def exact_sums() -> AbstractContextManager[Any]:
    """Return the context in which sums of decimals are exact."""
    return decimal.localcontext(prec=EXACT_DIGITS)


@dataclass(frozen=True)
class KeptAggregates:
    """Aggregates of the records of each key.

    Parameters:
        results: the type of the records.
        key: the fields that they are grouped by; none for all records together.
        aggregates: by name, which is that of the state.
        ttl: how long they are kept.
        renamed: as for `process`.
        one_by_one: whether records are added one by one, so that none may be combined.
        event_time: the field with the event time; None without event time.

    Raises:
        StateTypeError: there is no such field, or no such aggregate of it; the message names it.
    """

    results: ResultRecords
    key: tuple[str, ...]
    aggregates: Mapping[str, FieldAggregate]
    ttl: TTL | None
    renamed: Mapping[str, str]
    one_by_one: bool = False
    event_time: str | None = None

    def __post_init__(self) -> None:
        if fault := ttl_fault(self.ttl):
            raise self.results.error(fault)

    @cached_property
    def accumulations(self) -> Mapping[str, Accumulation]:
        """The accumulation of each aggregate, by name."""
        return {name: of.accumulation(self.results) for name, of in self.aggregates.items()}

    @cached_property
    def combiner(self) -> Combiner:
        """The combiner of the records."""
        record = self.results.record
        parts = [part for of in self.aggregates.values() for part in of.parts]
        if self.one_by_one:
            parts = [ALL_RECORDS]
        unclear = absent_or_none(record)
        if unclear is not None and any(part.takes_records for part in parts):
            raise self.results.error(
                f"{record.name}.{unclear} may be absent or None, and the columns of records have "
                "one null for both: declare it without None, or without NotRequired"
            )
        panes = None if self.event_time is None else OnePane(self.event_time)
        return Combiner(record, self.key, parts, panes)

    @cached_property
    def added(self) -> list[Added]:
        """For each state, the function from the columns of rows to the values to add."""
        kept = self.accumulations
        added = [added_by(self.combiner, of, kept[n]) for n, of in self.aggregates.items()]
        if self.event_time is None:
            return added
        timed = [
            self.combiner.place_of(part) for part in self.combiner.parts if part.verb == "list"
        ]
        return [_of_timed(of, timed) for of in added] if timed else added

    @cached_property
    def added_each(self) -> list[Callable[[Sequence[Any]], list[Any]]]:
        """For each state, the function from records of a key to the values to add one by one."""
        kept = self.accumulations
        return [of.added_each(kept[name]) for name, of in self.aggregates.items()]

    def process(
        self, name: str, fold: Callable[..., list[Any]], output: Any, made_of: AggregatedResult
    ) -> Process[Any, ..., Any]:
        """Return the process function of a fold.

        Parameters:
            name: of the function.
            fold: adds the rows of many keys to the states, and returns results.
            output: the class of the results.
            made_of: the description of the operator.
        """
        hints = {_KEYS: self.results.record.cls, **self._states, "return": _ITERATOR[output]}
        declared = declare(fold, name, hints)
        traits = self._traits(made_of)
        return Process(declared, self.combiner.key, hints, renamed=self.renamed, traits=traits)

    def process_with_end(
        self,
        name: str,
        fold: Callable[..., list[Any]],
        fires: Callable[..., Iterator[list[Any]]],
        output: Any,
        made_of: AggregatedResult,
    ) -> Process[Any, ..., Any]:
        """Return the process function of a fold that notes when it fires. No record is late for it.

        Parameters:
            fires: yields results when what the fold has noted is due.
        """
        context = {_CONTEXT: Context}
        returned = {"return": _ITERATOR[output]}
        hints = {_KEYS: self.results.record.cls, **context, **self._states, **returned}
        declared: Process[Any, ..., Any] = Process(
            declare(fold, name, hints),
            self.combiner.key,
            hints,
            self.event_time,
            LATENESS_MAX,
            renamed=self.renamed,
            traits=self._traits(made_of, fires),
        )
        no_timer = declare(lambda timer: None, "forget", {"timer": Timer, "return": None})
        declared.on_timer("forget")(no_timer)  # only an operator with timers notes when it wakes
        return declared

    @property
    def _states(self) -> dict[str, Any]:
        """The annotations of the states, by name."""
        states = {name: of.state for name, of in self.accumulations.items()}
        if self.ttl is None:
            return states
        return {name: Annotated[state, self.ttl] for name, state in states.items()}

    def _traits(
        self, made_of: AggregatedResult, fires: Callable[..., Iterator[list[Any]]] | None = None
    ) -> Traits:
        aggregates = self.aggregates
        # Whoever emits at the end has noted it at each record.
        emits = {"emit": "with records" if self.event_time is None else "final"}
        return Traits(
            combiner=self.combiner,
            definition=lambda names: (
                emits | {name: of.text(names) for name, of in aggregates.items()}
            ),
            takes_columns=True,  # so each batch has one row per key
            fires=fires,
            made_of=made_of,
        )


def _of_timed(added: Added, places: Sequence[int]) -> Added:
    """Return the same function for columns with lists whose elements have an event time each.

    Parameters:
        places: the indexes of these columns.
    """

    def untimed(columns: Sequence[Sequence[Any]]) -> Sequence[Any]:
        columns = list(columns)
        for place in places:
            columns[place] = [[element for _, element in of] for of in columns[place]]
        return added(columns)

    return untimed
