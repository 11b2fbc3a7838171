"""Values of windows: the accumulators of all aggregates of an operator, in one row.

The row of a window has a value of the aggregates that have an accumulator, in order of their names:
None if there are none, the accumulator of a single one, or a tuple. `Collect` has none. It stores
elements in states of its own, see `elements`; but windows by count have their elements in the row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

from statekit.functions.field_names import Renaming
from statekit.job.windows.accumulation import (
    Accumulation,
    first_column,
    itself,
    kept_in_row,
    no_value,
)
from statekit.job.windows.field_aggregates import Added, FieldAggregate, added_by
from statekit.records.preaggregate import Combiner
from statekit.records.result_type import ResultRecords
from statekit.state.options import Aggregate

_TUPLE: Any = tuple


class WindowValues:
    """The aggregates of a window operator.

    Parameters:
        aggregates: by the names of their results.
        results: the type of the records.
        overlap: whether a record may be in several windows.
        lists_in_rows: whether the row of a window also has the elements of `Collect`.

    Attributes:
        types: the annotations of the results, by name.
        accumulator: the annotation of the value of a row.
        functions: add values to the value of a row.
        element_types: the annotation of the elements of each `Collect`.
        elements_of: for each `Collect`, the function that returns the element of a record.

    Raises:
        StateTypeError: there is no such aggregate of the records.
    """

    def __init__(
        self,
        aggregates: Mapping[str, FieldAggregate],
        results: ResultRecords,
        *,
        overlap: bool,
        lists_in_rows: bool = False,
    ) -> None:
        self.aggregates = aggregates
        of_all = {name: of.accumulation(results) for name, of in aggregates.items()}
        if lists_in_rows:
            of_all = {name: kept_in_row(of) for name, of in of_all.items()}
        self.types = {name: of.result for name, of in of_all.items()}
        listed = {name: of for name, of in sorted(of_all.items()) if of.element is not None}
        held = {name: of for name, of in sorted(of_all.items()) if name not in listed}
        # In the order of rows: the accumulators of `_held`, and the elements of `_listed`.
        self._held, self._listed = held, listed
        self.element_types = [of.element for of in listed.values()]
        self.elements_of = [of.value_of for of in listed.values()]
        self._shares = overlap or len(of_all) > 1
        of_each = list(map(self._functions, held.values()))
        self._finish = [of.result for of in of_each]
        types = tuple(of.accumulator for of in held.values())
        if len(held) == 1:
            (self.accumulator,), (self.functions,) = types, of_each
        else:
            self.accumulator = _TUPLE[types] if held else None
            self.functions = _of_tuples(of_each)

    def _functions(self, of: Accumulation) -> Aggregate[Any, Any, Any]:
        """Return the functions of an aggregate. They copy values that the user's may change, if
        others get the same value.
        """
        if of.copy_added is None or not self._shares:
            return of.functions
        add, copy_added = of.functions.add, of.copy_added
        copying = lambda accumulator, value: add(accumulator, copy_added(value))  # noqa: E731
        return dataclasses.replace(of.functions, add=copying)

    @property
    def value_of(self) -> Callable[[Any], Any]:
        """A function from a record to the value that it adds."""
        return _together([of.value_of for of in self._held.values()])

    def value_of_row(self, combiner: Combiner) -> Callable[[Any], Any]:
        """Return a function from a combined row to the value that it adds."""
        return _together(
            [_of_row(combiner, self.aggregates[n], of) for n, of in self._held.items()]
        )

    def added(self, combiner: Combiner) -> Added:
        """Return a function from the columns of combined rows to the values that they add."""
        of_each = [added_by(combiner, self.aggregates[n], of) for n, of in self._held.items()]
        if len(of_each) == 1:
            return of_each[0]
        if not of_each:
            return lambda columns: [None] * len(columns[combiner.number_at])
        return lambda columns: list(zip(*(added(columns) for added in of_each), strict=True))

    def lists_at(self, combiner: Combiner) -> list[int]:
        """Return the index of the elements of each `Collect` in a combined row."""
        return [combiner.place_of(*self.aggregates[name].parts) for name in self._listed]

    def results(self, held: Sequence[Any], lists: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
        """Return the columns of the results of windows, in the order of the declaration.

        Parameters:
            held: the value of each window's row.
            lists: for each `Collect`, the elements of each window.
        """
        columns: dict[str, Sequence[Any]] = dict(zip(self._listed, lists, strict=True))
        if len(self._held) == 1:
            of_each: Sequence[Sequence[Any]] = [held]
        else:
            of_each = list(zip(*held, strict=True)) if self._held else []
        for name, finish, values in zip(self._held, self._finish, of_each, strict=True):
            columns[name] = list(map(finish, values))
        return [columns[name] for name in self.aggregates]

    def definition(self, names: Renaming) -> Mapping[str, str]:
        """Return the definition of the value of a row, with renamed fields."""
        found = {name: of.definition(name, names) for name, of in self.aggregates.items()}
        if len(found) == 1:
            return next(iter(found.values()))
        return {f"{part} {name}": text for name, of in found.items() for part, text in of.items()}


def _of_row(combiner: Combiner, of: FieldAggregate, kept: Accumulation) -> Callable[[Any], Any]:
    """Return a function from a combined row to the value that it adds to an aggregate."""
    places = [combiner.place_of(part) for part in of.parts]
    if kept.added is first_column:
        return itemgetter(places[0])
    return lambda row: kept.added(*([row[place]] for place in places))[0]


def _together(functions: Sequence[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    """Return a function to the results of several functions, as the value of a row has them."""
    match functions:
        case []:
            return itself  # nothing is added: any value will do
        case [function]:
            return function
    return lambda record: tuple([function(record) for function in functions])


def _of_tuples(of_each: Sequence[Aggregate[Any, Any, Any]]) -> Aggregate[Any, Any, Any]:
    """Return the functions of aggregates on tuples of accumulators; on None if there are none."""
    if not of_each:
        return Aggregate(no_value, no_value, itself, no_value)
    creates, adds = [of.create for of in of_each], [of.add for of in of_each]
    merges = [of.merge for of in of_each]

    def create() -> Any:
        return tuple([create() for create in creates])

    merge = None if None in merges else partial(_each, merges)
    return Aggregate(create, partial(_each, adds), itself, merge)


def _each(functions: Sequence[Any], held: Any, values: Any) -> Any:
    return tuple([of(one, value) for of, one, value in zip(functions, held, values, strict=True)])
