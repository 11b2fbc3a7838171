"""Windowed results as process functions with states and timers."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from statekit.checkpoint.job_file import Clock
from statekit.functions.context import Context
from statekit.functions.process import NOTHING_RENAMED, Process, Traits
from statekit.functions.signature import declare
from statekit.job.windows.aggregated_result import AggregatedResult, check_aggregates
from statekit.job.windows.early_results import IS_FINAL, EarlyTimes, EarlyWindows
from statekit.job.windows.elements import element_hints
from statekit.job.windows.field_aggregates import FieldAggregate
from statekit.job.windows.instants import window_duration
from statekit.job.windows.key_windows import KeyWindows
from statekit.job.windows.open_windows import Deadlines, WindowRows
from statekit.job.windows.window_columns import WindowColumns
from statekit.job.windows.window_kind import Window
from statekit.job.windows.window_values import WindowValues
from statekit.records.partial_aggregate import absent_or_none
from statekit.records.preaggregate import Combiner, has_columns
from statekit.records.record_type import RecordType
from statekit.records.result_type import Make, ResultRecords, WithoutKey, WithoutTimes
from statekit.shown import shown
from statekit.state.map_state import MapState
from statekit.state.timers import Timer
from statekit.timestamp import LATENESS_MAX, lateness_to_micros, timedelta_to_micros

_ZERO = dt.timedelta(0)
_MAP: Any = MapState  # as values, to be subscripted with types that are known at run time
_ITERATOR: Any = Iterator


def _check_options(results: ResultRecords, window: Any, emit: Any) -> None:
    if not isinstance(window, Window):
        raise results.error(
            f'{shown(window)} is no window: give tumbling("1 hour"), '
            'sliding("1 hour", "5 minutes"), session("30 minutes") or count_windows(100)'
        )
    if emit not in ("close", "change"):
        raise results.error(f'emit={shown(emit)}: use "close" or "change"')


def _check_clock(
    results: ResultRecords, window: Window, clock: Any, event_time: str | None, **others: bool
) -> None:
    """Check the clock of windows.

    Parameters:
        others: whether options are given that belong to event time, by name.
    """
    if clock not in ("event", "processing"):
        raise results.error(f'clock={shown(clock)}: use "event" or "processing"')
    if clock == "event":
        return
    if not window.has_times:
        raise results.error(f"clock= is for windows of time, and {window} have none: leave it out")
    if given := [name for name, is_given in others.items() if is_given]:
        raise results.error(
            f'{given[0]}= is about event time, and clock="processing" has none: leave it out'
        )
    if event_time is not None:
        raise results.error(
            'event_time= has no effect with clock="processing", where a record has the time at '
            "which it is processed: leave one of them out"
        )


def _check_times(
    results: ResultRecords, window: Window, event_time: str | None, late: Any, **others: bool
) -> None:
    """Check the options of event time.

    Parameters:
        late: the lateness.
        others: whether options are given that need event time, or windows of time, by name.
    """
    if event_time is None and window.has_times:
        raise results.error(f"{window}: say which field has the event_time")
    given = [name for name, is_given in others.items() if is_given]
    if not window.has_times and (refused := [n for n in given if n != "ordered"]):
        raise results.error(
            f"{refused[0]}= is for windows of time, and a window of {window} fires with its last "
            "record: leave it out"
        )
    if event_time is None and (given or late != _ZERO):
        raise results.error(
            f"{given[0] if given else 'lateness'}= needs event time: say which field has the "
            "event_time"
        )


def _latenesses(
    results: ResultRecords,
    lateness: dt.timedelta | str,
    allowed_lateness: dt.timedelta | str,
    *,
    ordered: bool,
) -> tuple[dt.timedelta, dt.timedelta]:
    """Return the lateness and the allowed lateness after checking both."""
    allowed_us = lateness_to_micros(allowed_lateness, "allowed_lateness")
    lateness_us = lateness_to_micros(lateness, "lateness")
    if allowed_us + lateness_us > LATENESS_MAX:
        raise results.error(
            f"lateness={shown(lateness)} and allowed_lateness={shown(allowed_lateness)}: give "
            "durations of at most 285 years together"
        )
    if ordered and allowed_us:
        raise results.error(
            "with ordered=True, or at_most= of sessions, no record arrives after the end of its "
            "window, so allowed_lateness= has no effect: add it to lateness="
        )
    return dt.timedelta(microseconds=lateness_us), dt.timedelta(microseconds=allowed_us)


def _early_times(
    results: ResultRecords, early: dt.timedelta | str | None, clock: Any, *, at_change: bool
) -> EarlyTimes | None:
    """Return the instants of early results after checking the options; None without early ones."""
    if clock not in ("event", "processing"):
        raise results.error(f'early_clock={shown(clock)}: use "event" or "processing"')
    if early is None:
        return None
    if at_change:
        raise results.error('early= has no effect with emit="change", which fires at each record')
    return EarlyTimes(window_duration(early, "early"), clock)


class Windowing:
    """Makes process functions of windows over records of one type.

    Parameters:
        record: the type of the records.
        window: the kind of windows.
        key, event_time, lateness, ordered, renamed: as for `@process`. Without key fields, windows
            have all records.
        allowed_lateness: how long a window is kept for late records after it has fired.
        emit: let a window fire when it is complete ("close") or at each record ("change").
        early: the time between early results of windows that have changed; None without.
        early_clock: the clock of early results; None for that of windows.
        clock: the clock of windows.
        combines: whether records may be combined before they are routed: those of one stream.

    Attributes:
        event_time: the field with the time of a record; None without event time.

    Raises:
        StateTypeError: an option is not valid; the message names it.
    """

    def __init__(
        self,
        record: RecordType,
        window: Window,
        *,
        key: str | tuple[str, ...] | list[str],
        event_time: str | None = None,
        lateness: dt.timedelta | str = _ZERO,
        allowed_lateness: dt.timedelta | str = _ZERO,
        emit: Literal["close", "change"] = "close",
        ordered: bool = False,
        early: dt.timedelta | str | None = None,
        early_clock: Clock | None = None,
        clock: Clock = "event",
        combines: bool = True,
        renamed: Mapping[str, str] = NOTHING_RENAMED,
    ) -> None:
        self._record = record
        self._results = results = ResultRecords(record, "window")
        self._window = window
        self._key = (key,) if isinstance(key, str) else tuple(key)
        self.event_time = event_time
        _check_options(results, window, emit)
        is_processing = clock == "processing"
        others = {"ordered": ordered, "early_clock": is_processing and early_clock == "event"}
        ordered = ordered or (window.in_order and not is_processing)
        late, allowed = _latenesses(results, lateness, allowed_lateness, ordered=ordered)
        self._at_change = emit == "change"
        others |= {"lateness": bool(late), "allowed_lateness": bool(allowed)}
        _check_clock(results, window, clock, event_time, **others)
        self._clock = clock
        early_by = clock if early_clock is None else early_clock
        self._early = _early_times(results, early, early_by, at_change=self._at_change)
        options = {"allowed_lateness": bool(allowed), "emit": self._at_change, "ordered": ordered}
        options["early"] = self._early is not None
        if not is_processing:
            _check_times(results, window, event_time, late, **options)
        for name in (*self._key, *filter(None, (event_time,))):
            results.annotation(name)
        if len(set(self._key)) < len(self._key):
            raise results.error(f"key={self._key} must name different fields")
        self._lateness_us = timedelta_to_micros(late + allowed)
        self._ordered, self._renamed = ordered, renamed
        self._definition = {
            "window": str(window),
            "allowed_lateness": str(allowed),
            "emit": emit,
            "ordered": str(ordered),
        }
        if self._early is not None:  # its times may change
            self._definition["early"] = "True"
        if is_processing:
            self._definition["clock"] = clock
        self._allowed_lateness = allowed
        self._takes_all = not self._at_change and not ordered
        self._combines = combines and self._takes_all
        # A combined row of a session has two times, and only columns read both.
        if window.merges and not is_processing:
            self._combines = self._combines and not (allowed or self._early)
        leads = {"close": allowed, "forget": _ZERO} if allowed else {"close": _ZERO}
        leads = {"forget": _ZERO} if self._at_change else leads
        leads = {} if event_time is None and not is_processing else leads
        fires_once = not (self._at_change or ordered or allowed or self._early or is_processing)
        self._fires_many = fires_once and window.opens_few
        has_timers = not self._fires_many
        self._deadlines = Deadlines(leads, ordered, has_timers=has_timers, clock=clock)

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
        if self.event_time is None:
            raise self._results.error("last() without event time: say by= which field it is last")
        return self.event_time

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
            made_of=AggregatedResult(
                dict(aggregates),
                make,
                window,
                self._allowed_lateness,
                self._at_change,
                self._early,
                self._clock,
            ),
        )
        states = {"windows": _MAP[rows.row_type, rows.stored(values.accumulator)]}
        if self._early is not None:
            states["changed"] = _MAP[rows.row_type, bool]
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
    ) -> WindowColumns | None:
        """Return the windows of many keys. None if windows have timers: they may fire again, or
        many windows of a key are open at a time.
        """
        if not self._fires_many:
            return None
        return self._window.columns(values, make, self._deadlines, combiner)

    def _combiner(self, values: WindowValues) -> Combiner | None:
        """Return the combiner that runs before the shuffle; None if records are added one by
        one.
        """
        of_all = values.aggregates.values()
        panes = None if self.event_time is None else self._window.panes(self.event_time)
        # By processing time, all records of an epoch have one time.
        if panes is None and self._clock == "event":
            return None
        if not (self._combines and all(of.combines for of in of_all)):
            return None
        if values.element_types and not self._fires_many:
            return None  # the rows would be taken apart again
        parts = [part for of in of_all for part in of.parts]
        fields = {*self._key, self.event_time, *(part.field for part in parts)}
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
        columns: WindowColumns | None,
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
            fires = self._at_change or not self._window.has_times
            add = of_key.add_and_fire if fires else of_key.adding()
            declared = declare(add, name, {"record": cls, **hints})
        process: Process[Any, ..., Any] = Process(
            declared,
            self._key if combiner is None else combiner.key,
            declared.__annotations__,
            self.event_time,
            self._lateness_us,
            self._ordered,
            renamed=self._renamed,
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
