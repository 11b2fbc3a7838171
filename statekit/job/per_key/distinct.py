"""The operator of `Stream.distinct`: the first record of each value of some fields.

Without an interval, a key has one row from its first record on. With an interval, the row has the
event times of the records that were kept and that may still make a later record a duplicate. The
shard finds the rows that no record can need any more by a scan of each key group. It scans at most
four times per interval, so a row is scanned a few times and has no timer.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import compress, islice
from typing import Annotated, Any, NamedTuple

from statekit.functions.context import Context, Due
from statekit.functions.process import NOTHING_RENAMED, Process, Traits, process
from statekit.functions.signature import declare
from statekit.records.keyed_batch import KeyColumns
from statekit.records.panes import InstantPanes
from statekit.records.partial_aggregate import ARRIVED_FIRST, absent_or_none
from statekit.records.preaggregate import Combiner
from statekit.records.record_type import RecordType
from statekit.records.result_type import ResultRecords
from statekit.shown import shown
from statekit.state.base import row_sizes
from statekit.state.options import TTL, ttl_fault
from statekit.state.single_row_states import ValueState
from statekit.state.timers import Timer
from statekit.timestamp import (
    LATENESS_MAX,
    MAX_MICROS,
    datetime_to_micros,
    duration_to_micros,
    micros_to_datetime,
)

_ROWS_AT_ONCE = 8_192
_SCANS_PER_INTERVAL = 4

_VALUE: Any = ValueState  # as values, to be subscripted with types that are known at run time
_ITERATOR: Any = Iterator


class DistinctRecords(NamedTuple):
    """The description of an operator of `distinct` as data, from which a model of it can be built.

    Parameters:
        within_us: how far apart the kept records of a key are, in microseconds; None for one record
            per key.
    """

    within_us: int | None


def distinct(
    record: RecordType,
    on: str | tuple[str, ...] | list[str],
    *,
    within: dt.timedelta | str | None = None,
    event_time: str | None = None,
    lateness: dt.timedelta | str = dt.timedelta(0),
    ttl: TTL | None = None,
    renamed: Mapping[str, str] = NOTHING_RENAMED,
) -> Process[Any, ..., Any]:
    """Return a process function that emits the first record of each value of some fields.

    Parameters: as for `Stream.distinct`.

    Raises:
        StateTypeError: an option is not valid; the message names it.
    """
    results = ResultRecords(record, "distinct")
    key = (on,) if isinstance(on, str) else tuple(on)
    if not key:
        raise results.error('name at least one field, as in distinct("order_id")')
    for name in key:
        results.annotation(name)
    unclear = absent_or_none(record)
    if unclear is not None:
        raise results.error(
            f"{record.name}.{unclear} may be absent or None, and the columns of records have one "
            "null for both: declare it without None, or without NotRequired"
        )
    if fault := ttl_fault(ttl):
        raise results.error(fault)
    name = "_".join(("distinct", "by", *key))
    if within is None:
        _check_without_interval(results, event_time, lateness, ttl)
        return _for_ever(record, key, name, ttl, renamed)
    within_us = _interval(results, within, event_time, ttl)
    assert event_time is not None, "the interval needs it"
    results.annotation(event_time)
    decorate = process(key=key, event_time=event_time, lateness=lateness, renamed=renamed)
    return _within(record, key, name, event_time, within_us, decorate)


def _check_without_interval(
    results: ResultRecords, event_time: Any, lateness: Any, ttl: TTL | None
) -> None:
    if event_time is not None or lateness != dt.timedelta(0):
        raise results.error(
            'event_time= and lateness= belong to an interval: give within="1 hour", too, or leave '
            "them out"
        )
    if ttl is not None and ttl.clock == "event":
        raise results.error(
            'ttl= with clock="event" has no event time here: give within=… and event_time=…, or '
            "a TTL in processing time"
        )


def _interval(results: ResultRecords, within: Any, event_time: Any, ttl: TTL | None) -> int:
    """Return the interval in microseconds, after checking the options that belong to it."""
    within_us = duration_to_micros(within, "within", most=LATENESS_MAX)
    if not within_us:
        raise results.error(f"within={shown(within)}: give an interval above zero, or None")
    if event_time is None:
        raise results.error(
            f"within={shown(within)} is an interval of event time: say which field has the "
            "event_time"
        )
    if ttl is not None:
        raise results.error(
            "ttl= has no effect with within=…: rows are removed when no record can need them any "
            "more: leave it out"
        )
    return within_us


def _for_ever(
    record: RecordType, key: tuple[str, ...], name: str, ttl: TTL | None, renamed: Mapping[str, str]
) -> Process[Any, ..., Any]:
    """Return the function that emits one record per key."""
    combiner = Combiner(record, key, [ARRIVED_FIRST])
    place = combiner.place_of(ARRIVED_FIRST)

    def fold(keys: KeyColumns, seen: Any) -> list[Any]:
        is_new = seen.add_absent(keys.prefixes, True)
        return [record for (record,) in compress(keys.columns[place], is_new)]

    state = _VALUE[bool]
    hints = {
        "_keys": record.cls,
        "seen": state if ttl is None else Annotated[state, ttl],
        "return": _ITERATOR[record.cls],
    }
    traits = Traits(combiner=combiner, takes_columns=True, made_of=DistinctRecords(None))
    return Process(declare(fold, name, hints), key, hints, renamed=renamed, traits=traits)


def _within(
    record: RecordType,
    key: tuple[str, ...],
    name: str,
    event_time: str,
    within_us: int,
    decorate: Any,
) -> Process[Any, ..., Any]:
    """Return the function that emits records of a key that are further apart than an interval."""
    combiner = Combiner(record, key, [ARRIVED_FIRST], InstantPanes(event_time))
    kept = KeptTimes(within_us, combiner.place_of(ARRIVED_FIRST))
    states = {"ctx": Context, "kept": _VALUE[tuple[dt.datetime, ...]]}
    traits = Traits(
        combiner=combiner,
        definition=lambda _: {"within": str(dt.timedelta(microseconds=within_us))},
        takes_columns=True,
        fires=kept.forget,
        made_of=DistinctRecords(within_us),
    )
    hints = {"_keys": record.cls, **states, "return": _ITERATOR[record.cls]}
    declared: Process[Any, ..., Any] = decorate(declare(kept.fold, name, hints)).with_traits(traits)
    never = {"timer": Timer, **states, "return": None}
    declared.on_timer("forget")(declare(_never, "forget", never))
    return declared


def _never(*_: object) -> None:
    """Do nothing: no timer is set. An operator with a timer callback can note when it wakes."""


@dataclass(frozen=True)
class KeptTimes:
    """Keeps, for each key, the event times of the records that were emitted.

    Parameters:
        within_us: the interval, in microseconds.
        place: the index of the record in a combined row.
    """

    within_us: int
    place: int

    def fold(self, keys: KeyColumns, ctx: Context, kept: Any) -> list[Any]:
        """Return the records that are no duplicates, and keep their times.

        Parameters:
            keys: the keys, each with a row per event time, in order of arrival. The event times are
                the last column.
        """
        within_us, times = self.within_us, keys.columns[-1]
        row_keys = list(dict.fromkeys(keys.prefixes))
        rows = kept.read_rows(row_keys)
        values = kept.values_of_rows(rows)
        times_of = {
            row_key: [] if value is None else list(map(datetime_to_micros, value))
            for row_key, value in zip(row_keys, values, strict=True)
        }
        changed: set[bytes] = set()
        found: list[Any] = []
        for row_key, time, (record,) in zip(
            keys.prefixes, times, keys.columns[self.place], strict=True
        ):
            of_key = times_of[row_key]
            if self.is_new(time, of_key):
                of_key.append(time)
                changed.add(row_key)
                found.append(record)
        if not changed:
            return found
        needed_us = datetime_to_micros(ctx.watermark) - within_us
        sizes = row_sizes(row_keys, rows)
        is_changed = list(map(changed.__contains__, row_keys))
        new = [_needed(times_of[row_key], needed_us) for row_key in compress(row_keys, is_changed)]
        kept.replace_rows(
            list(compress(row_keys, is_changed)),
            [tuple(map(micros_to_datetime, of)) for of in new],
            list(compress(sizes, is_changed)),
            (),
        )
        ctx.timers.wakes_at(self._wakes_us(min(map(max, new))))
        return found

    def is_new(self, time_us: int, kept: list[int]) -> bool:
        """Return whether a record is further than the interval from all that were kept."""
        within_us = self.within_us
        return all(abs(time_us - at) > within_us for at in kept)

    def forget(self, due: Due, _: Context, kept: Any) -> Iterator[list[Any]]:
        """Remove the rows that no record can need: those whose times are all further than the
        interval before the watermark. Yield no results.
        """
        soonest = None
        rows = kept.rows_of_groups(due.groups)
        while some := list(islice(rows, _ROWS_AT_ONCE)):
            last = [datetime_to_micros(max(of)) for of in kept.values_of_rows([r for _, r in some])]
            is_over = [at + self.within_us <= due.now_us for at in last]
            left = [at for at, over in zip(last, is_over, strict=True) if not over]
            if left:
                soonest = min(left) if soonest is None else min(soonest, *left)
            kept.remove_rows(list(compress(some, is_over)))
        if soonest is not None:
            due.wakes_at(self._wakes_us(soonest))
        yield from ()

    def _wakes_us(self, last_us: int) -> int:
        """Return when to scan for rows of which the first has this last time."""
        slack_us = self.within_us // _SCANS_PER_INTERVAL
        return min(last_us + self.within_us + slack_us, MAX_MICROS)


def _needed(times: list[int], needed_us: int) -> list[int]:
    """Return the times that a record may be compared with: the newest one in any case."""
    return [time for time in times if time > needed_us] or [max(times)]
