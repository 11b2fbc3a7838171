"""Windowed results as process functions with states and timers.

Aggregates have one accumulator per window. `collect` stores elements as rows of their own, by event
time and a number per key. So an element is stored once for any number of windows, merging windows
moves none, and no window is one large row.
"""

from __future__ import annotations

import datetime as dt
import decimal
import operator
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import Any, Literal, Optional

from statekit.functions.context import Context
from statekit.functions.field_names import Renaming
from statekit.functions.process import NOTHING_RENAMED, Process, Traits, process
from statekit.functions.signature import declare
from statekit.job.windows.definitions import (
    LAST,
    Deadlines,
    OpenWindow,
    Session,
    SessionRows,
    SlidingRows,
    Window,
)
from statekit.job.windows.field_aggregates import (
    EXACT_DIGITS,
    Collect,
    Count,
    Last,
    Max,
    Mean,
    Min,
    Sum,
    Top,
    held_first,
    quotient,
    reducer,
)
from statekit.job.windows.made_of import OwnAggregate, WindowedResult
from statekit.job.windows.window_columns import (
    OPEN_MAX,
    DueSessions,
    DueSliding,
    DueWindows,
    SessionColumns,
    WindowColumns,
    add_elements,
)
from statekit.keygroup import key_fields
from statekit.records.output_copy import Copy, copier
from statekit.records.preaggregate import (
    Combiner,
    PartialAggregate,
    Verb,
    absent_or_none,
    has_columns,
    without_none,
)
from statekit.records.record_type import RecordType
from statekit.records.result_type import Make, ResultRecords
from statekit.shown import shown
from statekit.state.map_state import MapState
from statekit.state.options import Aggregate
from statekit.state.single_row_states import ValueState
from statekit.state.timers import Timer
from statekit.timestamp import LATENESS_MAX, lateness_to_micros

_ZERO = dt.timedelta(0)
_MAP: Any = MapState  # as values, to be subscripted with types that are known at run time
_TUPLE: Any = tuple
_ITERATOR: Any = Iterator

_FOLDS = {"sum": Sum, "min": Min, "max": Max}

_Found = list[tuple[tuple[dt.datetime, int], Any]] | None
"""Pairs of event time and number, each with an element; None if the windows store no elements."""


# --------------------------------------------------------------------------------- aggregates


def _scans_little(window: Window) -> bool:
    """Return whether a scan for due windows reads few other open windows per key."""
    return isinstance(window, Session) or window.size <= OPEN_MAX * window.every


def _itself(value: Any) -> Any:
    return value


def _nothing(*_: object) -> None:
    return None


def _alone(record: Any) -> tuple[Any]:
    return (record,)


def _none_of(first_part: int) -> Callable[[Sequence[Any]], Any]:
    """Return a function from columns of rows to one None per row."""
    return lambda columns: [None] * len(columns[first_part])


def _one(_: object) -> int:
    return 1


def _folding(combine: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return `combine` for values that may be None. None is skipped."""

    def add(current: Any, value: Any) -> Any:
        if current is None:
            return value
        return current if value is None else combine(current, value)

    return add


def _adding_pairs(add: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return a function that adds two pairs of a sum and a count, with `add` for the sums."""
    return lambda current, more: (add(current[0], more[0]), current[1] + more[1])


def _mean(pair: tuple[Any, int] | None) -> Any:
    return None if pair is None else quotient(pair)


def _number_of(first_part: int) -> Callable[[Sequence[Any]], Any]:
    """Return a function from a row to its number of records, which precedes the parts."""
    return itemgetter(first_part - 1)


def _combining(verb: Verb, kind: Any) -> Callable[[Any, Any], Any]:
    """Return the function that combines two values of a type. Sums of decimals are exact."""
    if kind is decimal.Decimal and verb == "sum":
        return decimal.Context(prec=EXACT_DIGITS).add
    return reducer(verb, kind).combine


# ------------------------------------------------------------------------------- process functions


@dataclass(frozen=True)
class _Result:
    """The result of a window, and how it is computed.

    Parameters:
        operator: the default name.
        field: the name of the result.
        type: its annotation.
        accumulator: the annotation of the accumulator of a window.
        aggregate: computes the result.
        value_of: returns the value that a record adds.
        parts: partial aggregates of records that are combined first, beside their number; None if
            the aggregate takes the records themselves.
        added: returns the value that each combined row adds, from the columns of rows and the place
            of the first part.
        element: the annotation of elements, for results that are lists of them.
        definition: returns what the state means, by name, with other names of fields; None if the
            name of the operator says it.
        of: the aggregate of fields or records that it is, or the user's.
        copy_added: copies a value that a record adds, if functions of the user may change it.
    """

    operator: str
    field: str
    type: Any
    accumulator: Any
    aggregate: Aggregate[Any, Any, Any]
    value_of: Callable[[Any], Any]
    parts: tuple[PartialAggregate, ...] | None = None
    added: Callable[[int], Callable[[Sequence[Any]], Any]] = itemgetter
    element: Any = None
    definition: Callable[[Renaming], dict[str, str]] | None = None
    of: Any = None
    copy_added: Copy | None = None

    def defined(self, names: Renaming) -> dict[str, str]:
        """Return the definition of the result, with renamed fields."""
        return {"result": self.operator} if self.definition is None else self.definition(names)


def _of_field(verb: str, field: str | None) -> Callable[[Renaming], dict[str, str]]:
    """Return a function from renamed fields to the definition of a built-in aggregate."""
    return lambda names: {"result": verb if field is None else f"{verb}_{names(field)}"}


def _own(
    aggregate: Aggregate[Any, Any, Any], field: str | None, name: str | None, names: Renaming
) -> dict[str, str]:
    """Return the definition of a user's aggregate: its name, its field, and the name of its `add`
    function if that has one.
    """
    title = name or ("aggregate" if field is None else f"aggregate_{names(field)}")
    added = "the whole record" if field is None else names(field)
    combines = {} if (known := aggregate.stored_name) is None else {"add": known}
    return {"result": title, "field": added, **combines}


class Windowing:
    """Makes process functions of windows over records of one type.

    Parameters:
        record: the type of the records.
        window: the kind of windows.
        key, event_time, lateness, ordered, renamed: as for `@process`.
        allowed_lateness: how long a window is kept for late records after it has fired.
        emit: let a window fire when it is complete ("close") or at each record ("change").
        combines: whether records may be combined before they are routed: those of one stream.

    Raises:
        StateTypeError: an option is not valid; the message names it.
    """

    def __init__(
        self,
        record: RecordType,
        window: Window,
        *,
        key: str | tuple[str, ...] | list[str],
        event_time: str,
        lateness: dt.timedelta | str = _ZERO,
        allowed_lateness: dt.timedelta | str = _ZERO,
        emit: Literal["close", "change"] = "close",
        ordered: bool = False,
        combines: bool = True,
        renamed: Mapping[str, str] = NOTHING_RENAMED,
    ) -> None:
        self._record = record
        self._results = ResultRecords(record, "window")
        self._window = window
        self._key = (key,) if isinstance(key, str) else tuple(key)
        if not isinstance(window, Window):
            raise self._results.error(
                f'{shown(window)} is no window: give tumbling("1 hour"), '
                'sliding("1 hour", "5 minutes") or session("30 minutes")'
            )
        if emit not in ("close", "change"):
            raise self._results.error(f'emit={shown(emit)}: use "close" or "change"')
        allowed_us = lateness_to_micros(allowed_lateness, "allowed_lateness")
        lateness_us = lateness_to_micros(lateness, "lateness")
        if allowed_us + lateness_us > LATENESS_MAX:
            raise self._results.error(
                f"lateness={shown(lateness)} and allowed_lateness={shown(allowed_lateness)}: give "
                "durations of at most 285 years together"
            )
        if ordered and allowed_us:
            raise self._results.error(
                "with ordered=True no record arrives after the end of its window, so "
                "allowed_lateness= has no effect: add it to lateness="
            )
        for name in (*self._key, event_time):
            self._results.annotation(name)
        total_lateness = dt.timedelta(microseconds=lateness_us + allowed_us)
        self._decorate = process(
            key=self._key,
            event_time=event_time,
            lateness=total_lateness,
            ordered=ordered,
            renamed=renamed,
        )
        allowed = dt.timedelta(microseconds=allowed_us)
        leads = {"close": allowed, "forget": _ZERO} if allowed else {"close": _ZERO}
        self._definition = {
            "window": str(window),
            "allowed_lateness": str(allowed),
            "emit": emit,
            "ordered": str(ordered),
        }
        self._allowed_lateness = allowed
        self._at_change = emit == "change"
        self._event_time = event_time
        self._takes_all = not self._at_change and not ordered
        self._combines = combines and self._takes_all
        if isinstance(window, Session):  # one that has fired fires again whenever it grows
            self._combines = self._combines and not allowed
        leads = {"forget": _ZERO} if self._at_change else leads
        self._ordered = ordered
        fires_once = not (self._at_change or ordered or allowed)
        self._fires_many = fires_once and _scans_little(window)
        self._deadlines = Deadlines(leads, ordered)

    def __str__(self) -> str:
        return f"{self._window} by {', '.join(self._key)}"

    def count(self, into: Any) -> Process[Any, ..., Any]:
        """Return the function that counts records."""
        counted: Aggregate[int, int, int] = Aggregate(int, operator.add, _itself, operator.add)
        result = _Result(
            "count", "count", int, int, counted, _one, parts=(), added=_number_of, of=Count()
        )
        return self._made(result, into)

    def fold(
        self, verb: Literal["sum", "min", "max"], field: str, into: Any
    ) -> Process[Any, ..., Any]:
        """Return the function that sums a field, or finds its smallest or largest value. None is
        skipped.
        """
        annotation = self._results.annotation(field)
        add = _folding(_combining(verb, self._results.check_combines(verb, field)))
        aggregate: Aggregate[Any, Any, Any] = Aggregate(_nothing, add, _itself, add)
        accumulator, get = Optional[annotation], self._results.getter(field)  # noqa: UP045
        parts = (PartialAggregate(verb, field),)
        folded = _Result(
            f"{verb}_{field}",
            field,
            annotation,
            accumulator,
            aggregate,
            get,
            parts,
            definition=_of_field(verb, field),
        )
        return self._made(replace(folded, of=_FOLDS[verb](field)), into)

    def mean(self, field: str, into: Any) -> Process[Any, ..., Any]:
        """Return the function that computes the mean of a field. None is skipped."""
        of, get = Mean(field), self._results.getter(field)
        kind = self._results.check_combines("mean", field)
        add = _folding(_adding_pairs(_combining("sum", kind)))
        aggregate: Aggregate[Any, Any, Any] = Aggregate(_nothing, add, _mean, add)

        def value_of(record: Any) -> Any:
            value = get(record)
            return None if value is None else (value, 1)

        result = of.result(self._results.annotation(field))
        pair = Optional[_TUPLE[kind, int]]  # noqa: UP045
        meant = _Result(
            f"mean_{field}",
            field,
            result,
            pair,
            aggregate,
            value_of,
            of.parts,
            of.added,
            definition=_of_field("mean", field),
        )
        return self._made(replace(meant, of=of), into)

    def top(self, of: Top, into: Any) -> Process[Any, ..., Any]:
        """Return the function that keeps the first records in an order."""
        return self._first(of, f"top_{of.count}", "records", into)

    def last(self, field: str | None, by: str | None, into: Any) -> Process[Any, ..., Any]:
        """Return the function that keeps the last record, or a field of it."""
        of = Last(field, by=self._event_time if by is None else by)
        title = "last" if field is None else f"last_{field}"
        return self._first(of, title, field or "record", into)

    def _first(self, of: Top | Last, title: str, name: str, into: Any) -> Process[Any, ..., Any]:
        of.types(self._results)
        held, type_ = held_first(self._record), of.result(self._record)
        first = _Result(
            title,
            name,
            type_,
            held,
            of.kept(self._record),
            _alone,
            of.parts,
            definition=lambda names: {"result": repr(of.named(names))},
        )
        return self._made(replace(first, of=of), into)

    def collect(self, field: str | None, into: Any) -> Process[Any, ..., Any]:
        """Return the function that collects records or a field, in order of time. None is
        skipped.
        """
        element = self._record.cls
        if field is not None:
            element = without_none(self._results.annotation(field))
        ended: Aggregate[Any, None, None] = Aggregate(_nothing, _nothing, _itself, _nothing)
        name, operator_ = field or "records", "collect" if field is None else f"collect_{field}"
        get = _itself if field is None else self._results.getter(field)
        listed: Any = list[element]  # type: ignore[valid-type]
        parts = (PartialAggregate("list", field),)
        of_all = _Result(
            operator_,
            name,
            listed,
            None,
            ended,
            get,
            parts=parts,
            added=_none_of,
            element=element,
            definition=_of_field("collect", field),
        )
        return self._made(replace(of_all, of=Collect(field)), into)

    def aggregate(
        self,
        aggregate: Aggregate[Any, Any, Any],
        accumulator: Any,
        result: Any,
        field: str | None,
        name: str | None,
        into: Any,
    ) -> Process[Any, ..., Any]:
        """Return the function that applies the user's aggregate to the records, or to a field."""
        if not isinstance(aggregate, Aggregate):
            raise self._results.error(
                f"aggregate() takes an Aggregate(create, add, result), not {shown(aggregate)}"
            )
        if isinstance(self._window, Session) and aggregate.merge is None:
            raise self._results.error(
                "sessions merge when a record comes between them: give Aggregate(..., merge=...)"
            )
        get = _itself if field is None else self._results.getter(field)
        title = name or ("aggregate" if field is None else f"aggregate_{field}")
        copy_added = copier(self._record.cls if field is None else self._results.annotation(field))
        of_it = _Result(
            title,
            name or "result",
            result,
            accumulator,
            aggregate,
            get,
            definition=partial(_own, aggregate, field, name),
            copy_added=copy_added,
        )
        return self._made(replace(of_it, of=OwnAggregate(aggregate, field)), into)

    def _made(self, result: _Result, into: Any) -> Process[Any, ..., Any]:
        name = "_".join((result.operator, "by", *self._key))
        types = {key: self._results.annotation(key) for key in self._key}
        types |= {"start": dt.datetime, "end": dt.datetime, result.field: result.type}
        if len(types) < len(self._key) + 3:
            raise self._results.error(
                f"{name} would have the fields {', '.join((*self._key, 'start', 'end'))} and "
                f"{result.field}, two of them with one name: rename the field of "
                f"{self._record.name}"
            )
        output, make = self._results.result_class(name, types, into)
        deadlines = Deadlines(self._deadlines.leads, self._ordered, has_timers=not self._fires_many)
        rows: SlidingRows | SessionRows
        stored = result.accumulator
        if isinstance(self._window, Session):
            rows = SessionRows(self._window, result.aggregate, deadlines)
            stored = _TUPLE[dt.datetime, dt.datetime, stored]
        else:
            rows = SlidingRows(self._window, result.aggregate, deadlines, result.copy_added)
        due = self._due(result, make, rows)
        states = {"windows": _MAP[dt.datetime, stored]}
        if result.element is not None:
            states["elements"] = _MAP[tuple[dt.datetime, int], result.element]
            states["number"] = ValueState[int]
        combiner = self._combiner(result)
        traits = Traits(
            combiner=combiner,
            definition=lambda names: self._definition | result.defined(names),
            takes_parts=combiner is None and self._takes_all,
            fires=None if due is None else due.fire,
            made_of=WindowedResult(
                self._window, self._allowed_lateness, self._at_change, result.of, make
            ),
        )
        columns: WindowColumns | SessionColumns | None = None
        if combiner is not None and due is not None:
            traits = replace(traits, takes_columns=True)
            added = result.added(combiner.number_at + 1)
            if isinstance(rows, SessionRows):
                columns = SessionColumns(due, rows, added, combiner.key_size)
            elif isinstance(due, DueSliding):
                columns = WindowColumns(due, result.aggregate, added)
        hints = {"ctx": Context, **states, "return": _ITERATOR[output]}
        ending = _Ending(make, result.aggregate.result, rows)
        return self._process(name, result, ending, hints, traits, columns)

    def _due(
        self, result: _Result, make: Make, rows: SlidingRows | SessionRows
    ) -> DueWindows | None:
        """Return the object that fires the windows of many keys at a time. None if windows have
        timers: they may fire again, or many windows of a key are open at a time.
        """
        if not self._fires_many:
            return None
        finish = result.aggregate.result
        if isinstance(self._window, Session):
            return DueSessions(finish, make, self._deadlines, rows.alone)
        return DueSliding(self._window, finish, make, self._deadlines, rows.alone)

    def _combiner(self, result: _Result) -> Combiner | None:
        """Return the combiner that runs before the shuffle; None if records are added one by
        one.
        """
        if result.parts is None or not self._combines:
            return None
        if result.element is not None and not self._fires_many:
            return None  # the rows would be taken apart again
        fields = {*self._key, self._event_time, *(part.field for part in result.parts)}
        if any(part.takes_records for part in result.parts):
            if absent_or_none(self._record) is not None:
                return None
            fields.update(self._record.fields or ())
        if not has_columns(self._record, {name for name in fields if name is not None}):
            return None
        panes = self._window.panes(self._event_time)
        return Combiner(self._record, self._key, result.parts, panes)

    def _process(
        self,
        name: str,
        result: _Result,
        ending: _Ending,
        hints: dict[str, Any],
        traits: Traits,
        columns: WindowColumns | SessionColumns | None,
    ) -> Process[Any, ..., Any]:
        """Create the process function. Only `collect` declares `elements` and `number`, which its
        functions take as `collected`.

        Parameters:
            hints: the types of all parameters but the first, and of the outputs.
            traits: with `takes_parts`, records of a key are added together.
            columns: keeps the windows of many keys at a time. They have no timers, except those
                that were set by versions without columns.
        """
        rows = ending.rows
        value_of, at_change = result.value_of, self._at_change
        if (combiner := traits.combiner) is not None:
            value_of = _of_row(result.added(combiner.number_at + 1))
        forgets_closed = "forget" not in self._deadlines.leads

        def add(record: Any, ctx: Any, windows: Any, *collected: Any) -> Any:
            value = value_of(record)
            if collected:
                deque(_elements((value,), ctx, *collected), maxlen=0)
            touched = rows.put(ctx, windows, value)
            if not at_change:
                return None
            return [ending.shown(ctx, of, _between(collected, of.start, of.end)) for of in touched]

        def add_all(records: Any, ctx: Any, windows: Any, *collected: Any) -> None:
            values = records if value_of is _itself else map(value_of, records)
            if collected:
                values = _elements(values, ctx, *collected)
            rows.put_all(ctx, windows, values)

        def close(timer: Any, ctx: Any, windows: Any, *collected: Any) -> Any:
            for window in rows.ending(timer, ctx, windows):
                elements_found = _between(collected, window.start, window.end)
                yield ending.shown(ctx, window, elements_found)
                if forgets_closed:
                    ending.forgotten(window, elements_found, windows, *collected)

        def forget(timer: Any, ctx: Any, windows: Any, *collected: Any) -> Any:
            for window in rows.ending(timer, ctx, windows):
                elements_found = _between(collected, *rows.alone(window.start, window.end))
                ending.forgotten(window, elements_found, windows, *collected)

        def fold(keys: Any, ctx: Any, windows: Any, *collected: Any) -> list[Any]:
            assert columns is not None
            assert combiner is not None
            if collected:
                add_elements(keys.prefixes, keys.columns[combiner.number_at + 1], *collected)
            return columns.fold(keys, ctx, windows)

        cls = self._record.cls
        if columns is not None:
            declared = declare(fold, name, {"keys": cls, **hints})
        elif traits.takes_parts:
            declared = declare(add_all, name, {"records": _ITERATOR[cls], **hints})
        else:
            declared = declare(add, name, {"record": cls, **hints})
        process = self._decorate(declared).with_traits(traits)
        callbacks = {
            "close": declare(close, "close", {"timer": Timer, **hints}),
            "forget": declare(forget, "forget", {"timer": Timer, **hints, "return": None}),
        }
        for title in self._deadlines.leads:
            process.on_timer(title)(callbacks[title])
        return process


@dataclass(frozen=True)
class _Ending:
    """Computes the result of a window, and deletes the window.

    Parameters:
        make: creates a result from the key fields, start, end and value of a window.
        finish: computes the value of an accumulator.
        rows: the open windows.
    """

    make: Callable[..., Any]
    finish: Callable[[Any], Any]
    rows: SlidingRows | SessionRows

    def shown(self, ctx: Any, window: OpenWindow, elements_found: _Found) -> Any:
        """Return the result of a window.

        Parameters:
            elements_found: its elements.
        """
        if elements_found is None:
            value = self.finish(window.held)
        else:
            value = [element for _, element in elements_found]
        return self.make(*key_fields(ctx.key), window.start, window.end, value)

    def forgotten(
        self, window: OpenWindow, elements_found: _Found, windows: Any, *collected: Any
    ) -> None:
        """Delete a window, and its elements that no window needs that is deleted later.

        Parameters:
            elements_found: the elements of the window.
        """
        del windows[window.row]
        if elements_found is not None:
            elements, number = collected
            start, end = self.rows.alone(window.start, window.end)
            for place, _ in elements_found:
                if start <= place[0] and (place[0] < end or end == LAST):
                    del elements[place]
            if not windows:
                number.clear()


def _of_row(added: Callable[[Sequence[Any]], Any]) -> Callable[[Any], Any]:
    """Return a function from a combined row to the value to add, given a function on columns."""
    if isinstance(added, itemgetter):
        return added
    return lambda row: added([(part,) for part in row])[0]


def _elements(values: Iterable[Any], ctx: Context, elements: Any, number: Any) -> Iterator[Any]:
    """Yield values. Each value except None is stored as an element at the time of its record."""
    before = count = number.get() or 0
    for value in values:
        if value is not None:
            elements[ctx.event_time, count] = value
            count += 1
        yield value
    if count > before:
        number.update(count)


def _between(collected: tuple[Any, ...], start: dt.datetime, end: dt.datetime) -> _Found:
    """Return the elements from `start` on and before `end`, in order of time and arrival."""
    if not collected:
        return None
    elements, _ = collected
    return list(elements.scan((start, 0), None if end == LAST else (end, 0)))
