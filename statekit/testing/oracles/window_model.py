"""`WindowModel`: windows over plain Python, with all records of each key."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from statekit.functions.process import Process
from statekit.job.windows.aggregated_result import AggregatedResult
from statekit.job.windows.calendar_windows import CalendarWindow
from statekit.job.windows.count_windows import CountWindow
from statekit.job.windows.field_aggregates import Collect
from statekit.job.windows.sessions import Session
from statekit.job.windows.sliding import Sliding
from statekit.keygroup import key_fields
from statekit.records.value_order import order_of_value
from statekit.testing.oracles.aggregate_model import result_of
from statekit.timestamp import MAX_MICROS, MIN_MICROS, micros_to_datetime, timedelta_to_micros
from statekit.watermark import END


class _Timed(NamedTuple):
    """A record with its event time in microseconds, the number of its input, and its own number."""

    at: int
    input: int
    number: int
    record: Any


class _Window(NamedTuple):
    """The interval of a window, and its records in order of arrival."""

    start: int
    end: int
    records: list[_Timed]


@dataclass
class _OfKey:
    """The records of a key.

    Attributes:
        records: those whose windows may still get records.
        buffered: the records that are buffered until the watermark.
        counted: the number of records, for windows by count.
        changed_at: the time of the last change, by the clock of early results.
        due: the instants of early results after changes.
        shown_early: as `shown`, of early results.
        shown: numbers of records that were in a result, with the starts of their windows; None in
            place of the start of a session, which may change.
    """

    records: list[_Timed] = field(default_factory=list)
    buffered: list[_Timed] = field(default_factory=list)
    counted: int = 0
    changed_at: int = MIN_MICROS
    due: set[int] = field(default_factory=set)
    shown_early: set[tuple[int, int | None]] = field(default_factory=set)
    shown: set[tuple[int, int | None]] = field(default_factory=set)


class WindowModel:
    """Model of the operator of a window: it computes each result from all records of the window.

    Parameters:
        process: the operator.
    """

    def __init__(self, process: Process[Any, Any, Any]) -> None:
        made_of: AggregatedResult = process.traits.made_of
        assert made_of.window is not None, "it has windows"
        self._made_of, self._kind = made_of, made_of.window
        self._allowed = timedelta_to_micros(made_of.allowed_lateness)
        self._is_ordered = process.ordered is not None
        record = process.record_type.members[0]
        self._results = {name: (of, result_of(of, record)) for name, of in made_of.of.items()}
        # `key_of` is of the combined records.
        self._key_of = process.key_of_record()
        self._time_of = _no_time if process.event_time is None else process.time_of()
        self._keys: dict[Any, _OfKey] = {}
        self._count = 0

    def run(self, records: Sequence[tuple[Any, int]], watermark: int, now: int) -> list[Any]:
        """Run one epoch, and return the results of the windows that fire.

        Parameters:
            records: the records that are not late, each with the number of its input.
            watermark: of the epoch, in microseconds.
            now: the processing time.
        """
        if self._made_of.clock == "processing":
            watermark, self._time_of = now, lambda _: now
        by_event = self._made_of.early is not None and self._made_of.early.clock == "event"
        found: list[Any] = []
        for record, number in records:
            key = self._key_of(record)
            own = self._keys.setdefault(key, _OfKey())
            self._count += 1
            timed = _Timed(self._time_of(record), number, self._count, record)
            if self._is_ordered:
                own.buffered.append(timed)
            else:
                own.changed_at = watermark if by_event else now
                found += self._handled(key, own, timed)
        for key, own in self._keys.items():
            for timed in _due(own, watermark):
                if by_event:
                    found += self._early(key, own, timed.at, watermark)
                own.changed_at = timed.at if by_event else now
                found += self._handled(key, own, timed)
            found += self._early(key, own, watermark if by_event else now, watermark)
            if isinstance(self._kind, CountWindow):
                if watermark == END:
                    found += self._rest(self._kind, key, own)
                continue
            windows = list(self._windows(own.records))
            if not self._made_of.at_change:
                found += self._fired(key, own, windows, watermark)
            self._forget(own, windows, watermark)
        return found

    def _handled(self, key: Any, own: _OfKey, timed: _Timed) -> Iterator[Any]:
        """Add a record. If windows fire at each record, those with this one do."""
        own.records.append(timed)
        if self._made_of.early is not None:
            period = timedelta_to_micros(self._made_of.early.period)
            at = max(own.changed_at, MIN_MICROS)
            own.due.add(min(at - at % period + period, MAX_MICROS))
        if isinstance(self._kind, CountWindow):
            own.counted += 1
            if own.counted % self._kind.every == 0:
                yield self._shown(key, _Window(0, 0, own.records[-self._kind.size :]))
        if self._made_of.at_change:
            for window in self._windows(own.records):
                if timed in window.records:
                    yield self._shown(key, window)

    def _rest(self, kind: CountWindow, key: Any, own: _OfKey) -> Iterator[Any]:
        """Yield the result of the window of a key that would be full next, when time ends."""
        missing = -own.counted % kind.every
        if missing:
            own.counted = 0
            yield self._shown(key, _Window(0, 0, own.records[-kind.size + missing :]))

    def _early(self, key: Any, own: _OfKey, until: int, watermark: int) -> Iterator[Any]:
        """Fire the open windows with records that were in no result, early.

        Parameters:
            until: the instant up to which the instants of early results are past.
            watermark: of the epoch. If records are in order, time passes between them.
        """
        early = self._made_of.early
        in_order = self._is_ordered and early is not None and early.clock == "event"
        while own.due and (at := min(own.due)) <= until:
            own.due.clear()
            reached = at if in_order else watermark
            for window in self._windows(own.records):
                places = self._places(window)
                shown = own.shown | own.shown_early
                if not (self._is_over(window, self._allowed, reached) or places <= shown):
                    own.shown_early |= places
                    yield self._shown(key, window, False)

    def _places(self, window: _Window) -> set[tuple[int, int | None]]:
        """Return the numbers of the records of a window, with its start, for `_OfKey.shown`."""
        start = None if self._kind.merges else window.start
        return {(timed.number, start) for timed in window.records}

    def _fired(
        self, key: Any, own: _OfKey, windows: Sequence[_Window], watermark: int
    ) -> Iterator[Any]:
        """Fire the windows that are complete and have records that were in no result."""
        is_final = () if self._made_of.early is None else (True,)
        for window in windows:
            places = self._places(window)
            if self._is_over(window, self._allowed, watermark) and not places <= own.shown:
                own.shown |= places
                yield self._shown(key, window, *is_final)

    def _forget(self, own: _OfKey, windows: Sequence[_Window], watermark: int) -> None:
        """Forget the records all of whose windows are over."""
        needed = {
            timed.number
            for window in windows
            if not self._is_over(window, 0, watermark)
            for timed in window.records
        }
        own.records = [timed for timed in own.records if timed.number in needed]

    def _is_over(self, window: _Window, lead: int, watermark: int) -> bool:
        """Return whether a window gets no record after an instant.

        The first instant is over before there is a watermark. Nothing comes after the last one, so
        a window that ends with it contains it.

        Parameters:
            lead: the time from that instant to the end, in microseconds.
        """
        includes_end = self._is_ordered or self._made_of.clock == "processing"
        includes_end = includes_end or window.end == MAX_MICROS
        last = window.end if includes_end else window.end - 1
        return max(last - lead, MIN_MICROS + 1) <= watermark

    def _shown(self, key: Any, window: _Window, *more: Any) -> Any:
        """Return the result of a window."""
        in_time = window.records
        if self._kind.has_times:
            in_time = sorted(in_time, key=lambda timed: timed.at)
        values = []
        for of, result in self._results.values():
            some = in_time if isinstance(of, Collect) else window.records
            values.append(result([timed.record for timed in some]))
        start, end = micros_to_datetime(window.start), micros_to_datetime(window.end)
        return self._made_of.make(*key_fields(key), start, end, *values, *more)

    def _windows(self, records: Sequence[_Timed]) -> Iterator[_Window]:
        match self._kind:
            case Session(gap, at_most):
                most = None if at_most is None else timedelta_to_micros(at_most)
                return _sessions(records, timedelta_to_micros(gap), most)
            case Sliding() as kind:
                return _grouped(records, partial(window_bounds, kind))
            case CalendarWindow() as kind:
                return _grouped(records, lambda at: [calendar_bounds(kind, at)])
        raise TypeError(f"{self._kind} has no model: add one to {__name__}")


def _no_time(_: Any) -> int:
    return 0


def _grouped(
    records: Sequence[_Timed], bounds_of: Callable[[int], Iterable[tuple[int, int]]]
) -> Iterator[_Window]:
    """Yield the windows of records.

    Parameters:
        bounds_of: returns the start and end of each window that contains an instant.
    """
    of_bounds: dict[tuple[int, int], list[_Timed]] = {}
    for timed in records:
        for bounds in bounds_of(timed.at):
            of_bounds.setdefault(bounds, []).append(timed)
    for (start, end), some in sorted(of_bounds.items()):
        yield _Window(start, end, some)


def _due(own: _OfKey, watermark: int) -> Sequence[_Timed]:
    """Take the buffered records up to the watermark, in order of time."""
    due = [timed for timed in own.buffered if timed.at <= watermark]
    own.buffered = [timed for timed in own.buffered if timed.at > watermark]
    return sorted(due, key=lambda timed: (timed.at, timed.input, order_of_value(timed.record)))


def _sessions(records: Sequence[_Timed], gap: int, at_most: int | None) -> Iterator[_Window]:
    """Yield the sessions of records: less than the gap lies between two records of one session.

    Parameters:
        at_most: the maximum length of a session; None for no maximum.
    """
    found: list[_Window] = []
    for timed in sorted(records, key=lambda timed: timed.at):
        if not found or not _contains(found[-1], timed.at):
            found.append(_Window(timed.at, timed.at, []))
        start, _, some = found[-1]
        ends = [timed.at + gap, MAX_MICROS] + ([] if at_most is None else [start + at_most])
        found[-1] = _Window(start, min(ends), [*some, timed])
    for start, end, some in found:
        numbers = {timed.number for timed in some}
        yield _Window(start, end, [timed for timed in records if timed.number in numbers])


def _contains(window: _Window, at: int) -> bool:
    """Return whether an instant is before the end of a window. Nothing comes after the last one."""
    return at < window.end or window.end == MAX_MICROS


def window_bounds(window: Sliding, at: int) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each window that contains an instant.

    Of the windows that would begin before the first instant, only the latest one exists, cut off.
    """
    size, every, offset = map(timedelta_to_micros, (window.size, window.every, window.offset))
    start = at - (at - offset) % every
    while start + size > at:
        yield max(start, MIN_MICROS), min(start + size, MAX_MICROS)
        if start < MIN_MICROS:
            return
        start -= every


# ----------------------------------------------------------------------- windows of a calendar

_DAY = 86_400_000_000


@lru_cache(maxsize=10_000)  # a model looks at each record again in each epoch
def calendar_bounds(window: CalendarWindow, at: int) -> tuple[int, int]:
    """Return the start and end of the calendar window that contains an instant.

    All begins of windows near the instant are computed, each from its local time.
    """
    zone = ZoneInfo(window.zone)
    begins = {
        instant
        for local in _local_begins(window, at + _offset(zone, at))
        for instant in _instants(zone, local, is_day=window.months > 0 or window.size.days > 0)
    }
    start = max(begin for begin in begins if begin <= at)
    end = min(begin for begin in begins if begin > at)
    return max(start, MIN_MICROS), min(end, MAX_MICROS)


def _local_begins(window: CalendarWindow, local: int) -> Iterator[int]:
    """Yield the local times near another at which windows begin, in microseconds."""
    offset = timedelta_to_micros(window.offset)
    if window.months:
        current = _month_of((local - offset) // _DAY) // window.months
        for number in range(current - 1, current + 3):
            years, month = divmod(number * window.months, 12)
            yield _days_before_month(1970 + years, month) * _DAY + offset
        return
    size = timedelta_to_micros(window.size)
    origin = offset + (_days_before_first_monday() * _DAY if size % (7 * _DAY) == 0 else 0)
    first = (local - 2 * _DAY - origin) // size
    for number in range(first, (local + 2 * _DAY - origin) // size + 2):
        yield origin + number * size


def _days_before_month(year: int, month: int) -> int:
    """Return the days from 1970-01-01 to the first day of a month, which is counted from 0.

    400 years have always the same number of days, so the years before 1 and after 9999 have those
    of others.
    """
    cycles, year = divmod(year - 2000, 400)
    day = dt.date(2000 + year, month + 1, 1)
    return (day - dt.date(1970, 1, 1)).days + cycles * 146_097


def _month_of(day: int) -> int:
    """Return the months from 1970-01 to the month of a day, which is counted from 1970-01-01."""
    cycles, day = divmod(day, 146_097)
    date = dt.date(1970, 1, 1) + dt.timedelta(days=day)
    return (date.year + 400 * cycles - 1970) * 12 + date.month - 1


def _days_before_first_monday() -> int:
    """Return the days from 1970-01-01 to the Monday of its week."""
    return -dt.date(1970, 1, 1).weekday()


def _instants(zone: ZoneInfo, local: int, *, is_day: bool) -> Iterable[int]:
    """Return the instants at which a clock shows a local time, the first of them for days.

    If the clock skips the time, it is the instant at which it does.
    """
    offsets = [_local_offset(zone, local, fold) for fold in (0, 1)]
    shown = [local - offset for offset in offsets if _offset(zone, local - offset) == offset]
    if shown:
        return shown[:1] if is_day else shown
    before, after = local - offsets[1], local - offsets[0]
    while after - before > 1:
        middle = (before + after) // 2
        is_set = _offset(zone, middle) != offsets[0]
        before, after = (before, middle) if is_set else (middle, after)
    return [after]


def _offset(zone: ZoneInfo, at: int) -> int:
    """Return local time less UTC at an instant. The first and the last day have that of others."""
    inside = min(max(at, MIN_MICROS + _DAY), MAX_MICROS - _DAY)
    return _micros_of(micros_to_datetime(inside).astimezone(zone))


def _local_offset(zone: ZoneInfo, local: int, fold: int) -> int:
    """Return local time less UTC at a local time."""
    inside = min(max(local, MIN_MICROS), MAX_MICROS)
    return _micros_of(micros_to_datetime(inside).replace(tzinfo=zone, fold=fold))


def _micros_of(at: dt.datetime) -> int:
    offset = at.utcoffset()
    assert offset is not None, "it has a zone"
    return timedelta_to_micros(offset)
