"""Windowed results as process functions with states and timers."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from typing import Any

from statekit.checkpoint.job_file import Clock
from statekit.functions.context import Context
from statekit.functions.process import Process, Traits
from statekit.functions.signature import declare
from statekit.job.windows.aggregated_result import AggregatedResult, check_aggregates
from statekit.job.windows.early_results import IS_FINAL, EarlyColumns, EarlyWindows
from statekit.job.windows.elements import element_hints
from statekit.job.windows.field_aggregates import FieldAggregate
from statekit.job.windows.key_windows import KeyWindows
from statekit.job.windows.open_windows import Deadlines, WindowRows
from statekit.job.windows.window_columns import WindowColumns
from statekit.job.windows.window_kind import Window
from statekit.job.windows.window_options import WindowOptions
from statekit.job.windows.window_values import WindowValues
from statekit.records.partial_aggregate import absent_or_none
from statekit.records.preaggregate import Combiner, has_columns
from statekit.records.record_type import RecordType
from statekit.records.result_type import Make, ResultRecords, WithoutKey, WithoutTimes
from statekit.state.map_state import MapState
from statekit.state.timers import Timer
from statekit.timestamp import timedelta_to_micros

_ZERO = dt.timedelta(0)
_MAP: Any = MapState  # as values, to be subscripted with types that are known at run time
_ITERATOR: Any = Iterator


class Windowing:
    """Makes process functions of windows over records of one type.

    Parameters:
        record: the type of the records.
        window: the kind of windows.
        options: of the windows.

    Raises:
        StateTypeError: an option is not valid; the message names it.
    """

    def __init__(self, record: RecordType, window: Window, options: WindowOptions) -> None:
        self._record, self._window, self._options = record, window, options
        self._results = ResultRecords(record, "window")
        options.check(self._results, window)
        self._key = options.key_names
        self._ordered = ordered = options.is_ordered(window)
        self._early = options.early_times
        self._definition = {"window": str(window), "ordered": str(ordered), **options.definition}
        self._takes_all = not options.at_change and not ordered
        self._combines = options.combines and self._takes_all
        fires_once = not (options.at_change or ordered or options.allowed)
        self._fires_many = fires_once and window.opens_few
        # A combined row of a session has two times, and only columns read both.
        if window.merges and not options.is_processing:
            self._combines = self._combines and self._fires_many
        self._deadlines = Deadlines(
            self._leads(), ordered, has_timers=not self._fires_many, clock=options.clock
        )

    def _leads(self) -> dict[str, dt.timedelta]:
        """Return the names of the timers of a window, as for `Deadlines`."""
        options = self._options
        if options.event_time is None and not options.is_processing:
            return {}
        if options.at_change:
            return {"forget": _ZERO}
        return {"close": options.allowed, "forget": _ZERO} if options.allowed else {"close": _ZERO}

    @property
    def _clocks(self) -> tuple[Clock, ...]:
        """The clocks by which windows fire, that of the last results first."""
        of_early = () if self._early is None else (self._early.clock,)
        return tuple(dict.fromkeys((self._options.clock, *of_early)))

    def __str__(self) -> str:
        return (
            f"{self._window} by {', '.join(self._key)}" if self._key else f"{self._window} of all"
        )

    @property
    def time_field(self) -> str:
        """The field with the time of a record.

        Raises:
            StateTypeError: there is none.
        """
        if self._options.event_time is None:
            raise self._results.error("last() without event time: say by= which field it is last")
        return self._options.event_time

    def operator(
        self, aggregates: Mapping[str, FieldAggregate], into: Any, title: str = "aggregate"
    ) -> Process[Any, ..., Any]:
        """Return the function that keeps aggregates of each window.

        Parameters:
            aggregates: by the names of the fields in a result.
            into: a record class for the results; None for NamedTuples.
            title: the first part of the name of the function; the key follows.

        Raises:
            StateTypeError: there is no such field, or no such aggregate of it.
        """
        check_aggregates(self._results, aggregates)
        name = "_".join((title, "by", *self._key) if self._key else (title, "all"))
        window = self._window
        in_rows = not window.has_times
        values = WindowValues(
            aggregates, self._results, overlap=window.overlaps, lists_in_rows=in_rows
        )
        output, make = self._results.result_class(name, self._types(name, values), into)
        rows, combiner = self._rows(values), self._combiner(values)
        if not window.has_times:
            make = WithoutTimes(make, len(self._key))
        if not self._key:
            make = WithoutKey(make)
            if combiner is None:
                raise self._results.error(
                    "windows over all records are combined before they are merged, which is not "
                    'possible with ordered=True, emit="change", at_most= of sessions, windows by '
                    "count, an OwnAggregate, or the type of a field: give key= a field"
                )
        columns = self._columns(values, make, combiner)
        traits = Traits(
            combiner=combiner,
            definition=lambda names: {**self._definition, **values.definition(names)},
            takes_columns=combiner is not None and columns is not None,
            takes_parts=combiner is None and self._takes_all and self._early is None,
            fires=None if columns is None else columns.fire,
            fires_by=self._clocks,
            made_of=AggregatedResult(
                dict(aggregates),
                make,
                window,
                self._options.allowed,
                self._options.at_change,
                self._early,
                self._options.clock,
            ),
        )
        states = {"windows": _MAP[rows.row_type, rows.stored(values.accumulator)]}
        if self._early is not None:
            states["changed"] = _MAP[rows.row_type, int]
        states |= element_hints(values.element_types)
        hints = {"ctx": Context, **states, "return": _ITERATOR[output]}
        value_of = values.value_of if combiner is None else values.value_of_row(combiner)
        forgets_closed = "forget" not in self._deadlines.leads
        parts = (make, values, rows, value_of, forgets_closed)
        of_key = KeyWindows(*parts) if self._early is None else EarlyWindows(*parts, self._early)
        return self._process(name, of_key, hints, traits, columns, combiner)

    def _rows(self, values: WindowValues) -> WindowRows:
        """Return the open windows of a key as rows."""
        if self._window.merges and values.functions.merge is None:
            raise self._results.error(
                "sessions merge when a record comes between them: give Aggregate(..., merge=...)"
            )
        return self._window.rows(values.functions, self._deadlines)

    def _types(self, name: str, values: WindowValues) -> dict[str, Any]:
        """Return the annotations of the fields of a result."""
        times = {"start": dt.datetime, "end": dt.datetime} if self._window.has_times else {}
        marks = {} if self._early is None else {IS_FINAL: bool}
        names = [*self._key, *times, *values.types, *marks]
        if len(set(names)) < len(names):
            raise self._results.error(
                f"{name} would have the fields {', '.join(names)}, two of them with one name: "
                f"give the aggregate another name, or rename the field of {self._record.name}"
            )
        types = {key: self._results.annotation(key) for key in self._key}
        return types | times | values.types | marks

    def _columns(
        self, values: WindowValues, make: Make, combiner: Combiner | None
    ) -> WindowColumns | EarlyColumns | None:
        """Return the windows of many keys. None if windows have timers: they may fire after their
        end, or many windows of a key are open at a time.
        """
        if not self._fires_many:
            return None
        columns = self._window.columns(values, make, self._deadlines, combiner)
        if self._early is None:
            return columns
        return EarlyColumns(columns, self._deadlines, self._early)

    def _combiner(self, values: WindowValues) -> Combiner | None:
        """Return the combiner that runs before the shuffle; None if records are added one by
        one.
        """
        of_all = values.aggregates.values()
        event_time = self._options.event_time
        panes = None if event_time is None else self._window.panes(event_time)
        # By processing time, all records of an epoch have one time.
        if panes is None and not self._options.is_processing:
            return None
        if not (self._combines and all(of.combines for of in of_all)):
            return None
        if values.element_types and (panes is None or not self._fires_many):
            return None  # elements have times; or the rows would be taken apart again
        parts = [part for of in of_all for part in of.parts]
        fields = {*self._key, event_time, *(part.field for part in parts)}
        if any(part.takes_records for part in parts):
            if absent_or_none(self._record) is not None:
                return None
            fields.update(self._record.fields or ())
        if not has_columns(self._record, {name for name in fields if name is not None}):
            return None
        return Combiner(self._record, self._key, parts, panes)

    def _process(
        self,
        name: str,
        of_key: KeyWindows,
        hints: dict[str, Any],
        traits: Traits,
        columns: WindowColumns | EarlyColumns | None,
        combiner: Combiner | None,
    ) -> Process[Any, ..., Any]:
        """Create the process function.

        Parameters:
            of_key: the functions for a key at a time.
            hints: the types of all parameters but the first, and of the outputs.
            columns: the windows of many keys. They have no timers, except those that were set by
                versions without columns.
        """
        cls = self._record.cls
        if columns is not None and traits.takes_columns:
            declared = declare(columns.fold, name, {"keys": cls, **hints})
        elif traits.takes_parts:
            declared = declare(of_key.add_all, name, {"records": _ITERATOR[cls], **hints})
        else:
            fires = self._options.at_change or not self._window.has_times
            add = of_key.add_and_fire if fires else of_key.adding()
            declared = declare(add, name, {"record": cls, **hints})
        process: Process[Any, ..., Any] = Process(
            declared,
            self._key if combiner is None else combiner.key,
            declared.__annotations__,
            self._options.event_time,
            timedelta_to_micros(self._options.late + self._options.allowed),
            self._ordered,
            renamed=self._options.renamed,
            traits=traits,
        )
        callbacks = {
            "close": declare(of_key.close, "close", {"timer": Timer, **hints}),
            "forget": declare(of_key.forget, "forget", {"timer": Timer, **hints, "return": None}),
        }
        for title in self._deadlines.leads:
            process.on_timer(title)(callbacks[title])
        if isinstance(of_key, EarlyWindows):
            process.on_timer("early")(declare(of_key.early, "early", {"timer": Timer, **hints}))
        return process
