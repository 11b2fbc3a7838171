"""The operator of a join of two streams, and its description as data."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple, Required, TypedDict

from statekit.errors import StateTypeError
from statekit.functions.context import Context
from statekit.functions.process import Process, Traits, process
from statekit.functions.signature import declare
from statekit.job.joins.join_declaration import (
    DeclaredJoin,
    How,
    JoinDeclaration,
    On,
    check_join_options,
    default_name,
    stored_class,
)
from statekit.job.joins.join_points import (
    CalendarStarts,
    EventTimes,
    JoinPoints,
    OnePoint,
    WindowStarts,
)
from statekit.job.joins.join_results import NO_FIELDS, WINDOW_FIELDS, JoinResults
from statekit.job.joins.matching import Reach
from statekit.job.joins.own_intervals import OwnIntervals
from statekit.job.joins.side_rows import Place, Side
from statekit.job.joins.stream_join import StreamJoin
from statekit.job.joins.table_join_operator import (
    KeyFields,
    check_has_no_tables,
    declared_table_join,
)
from statekit.job.windows.calendar_windows import CalendarWindow
from statekit.job.windows.sliding import Sliding
from statekit.job.windows.window_kind import Window
from statekit.records.record_type import RecordType
from statekit.shown import shown
from statekit.state.map_state import MapState
from statekit.state.options import TTL, ttl_fault
from statekit.timestamp import DURATION_MAX, duration_to_micros, timedelta_to_micros

Within = dt.timedelta | str | tuple[dt.timedelta | str, dt.timedelta | str]

_ZERO = dt.timedelta(0)
_MAP: Any = MapState
_ITERATOR: Any = Iterator

_EVERYWHERE = Reach(DURATION_MAX, DURATION_MAX)
_HERE = Reach(0, 0)


class JoinedResult(NamedTuple):
    """The description of a join as data, from which a model of it can be built.

    Parameters:
        how: which rows are emitted.
        left, right: the classes of the rows of both sides.
        reach: where left rows match points of the right side.
        own: the intervals of left rows that have their own ends; None without.
        window: the kind of windows; None without windows.
        results: creates the results.
    """

    how: How
    left: type[Any]
    right: type[Any]
    reach: Reach
    own: OwnIntervals | None
    window: Window | None
    results: JoinResults


class JoinArguments(TypedDict, total=False):
    """The options of a join.

    Parameters:
        on: the fields that are equal: one that both sides have, a list of such fields, or a pair
            with those of the left and of the right side, as `("id", "seller")`. An expression may
            be in place of a field.
        within: how far the right record may be before or after the left one, in event time; or a
            pair of how far before and how far after. In place of the latter, a field of the left
            side may say until when.
        window: `tumbling` or `sliding`: both records are in the same window.
        ttl: in a join without an end, how long a record is kept after it arrived.
        event_time: the field with the event time, or a pair with that of each side.
        lateness: as for `@process`.
        emit: "matches", or "changes" for a join of two tables: its rows that are new, changed or
            deleted. A record of a side replaces the row of its key.
        key: with `emit="changes"`, the key of the rows of each table: in the form of `on`, but
            fields only. A row whose fields of `on` are not in its key may get other values of
            them.
        deletes: with `emit="changes"`, a field, or a pair with that of each side, or None: a record
            deletes the row of its key if the field is true, for a bool, or None, for any other
            type.
        fields: for fields of the results, the field that they get: its name, with "left." or
            "right." before it if both sides have it; "left.*" for the whole record.
        name: of the operator; by default `join_` and the names of both streams.
    """

    on: Required[On]
    within: Within | None
    window: Window | None
    ttl: TTL | None
    event_time: str | tuple[str, str] | None
    lateness: dt.timedelta | str
    emit: Literal["matches", "changes"]
    key: KeyFields
    deletes: str | tuple[str | None, str | None] | None
    fields: Mapping[str, str] | None
    name: str | None


def declared_join(
    records: tuple[RecordType, RecordType],
    streams: tuple[str, str],
    how: How,
    into: Any,
    options: JoinArguments,
) -> DeclaredJoin:
    """Declare a join: see `Stream.join`.

    Parameters:
        records: the types of the records of both sides.
        streams: the names of both sides.
    """
    check_join_options("join", options, JoinArguments.__annotations__)
    if options.get("emit", "matches") != "matches":
        return declared_table_join(records, streams, how, into, options)
    check_has_no_tables(options)
    chosen = options.get("name") or default_name("join", streams)
    window, within = options.get("window"), options.get("within")
    until = _own_end(within, records[0])
    declaration = JoinDeclaration(
        *records,
        on=options["on"],
        how=how,
        event_time=options.get("event_time"),
        into=into,
        fields=options.get("fields"),
        own=NO_FIELDS if window is None else WINDOW_FIELDS,
        kept=(() if until is None else (until,), ()),
        name=chosen,
    )
    points, reach = _points(declaration, within, until, window)
    _check_how(declaration, points)
    ttl = options.get("ttl")
    _check_ttl(declaration, points, ttl)
    lateness = options.get("lateness", _ZERO)
    own = None if until is None else OwnIntervals.of(declaration, until, reach.before)
    operator = _operator(declaration, points, reach, own, window, lateness, ttl, chosen)
    return DeclaredJoin(chosen, operator, declaration.left, declaration.right)


def _own_end(within: Any, left: RecordType) -> str | None:
    """Return the field of left records with the end of their interval, if it is one."""
    if isinstance(within, tuple) and len(within) == 2 and within[1] in (left.fields or ()):
        return str(within[1])
    return None


def _points(
    declaration: JoinDeclaration, within: Within | None, until: str | None, window: Any
) -> tuple[JoinPoints, Reach]:
    """Return where rows are in time, and where left rows match points of the right side."""
    if within is not None and window is not None:
        raise declaration.error("give within= or window=, not both")
    if within is None and window is None:
        if declaration.time is not None:
            raise declaration.error(
                "event_time= is for within= or window=; a join without an end has no late records"
            )
        return OnePoint(), _EVERYWHERE
    if declaration.time is None:
        raise declaration.error(
            "within= and window= are of event time: give event_time=, the field with the time of a "
            "record, or a pair of fields"
        )
    if window is None:
        reach = _reach(declaration, within, until)
        return EventTimes(reach), reach
    if isinstance(window, Sliding):
        size, every, offset = map(timedelta_to_micros, (window.size, window.every, window.offset))
        return WindowStarts(size, every, offset), _HERE
    if isinstance(window, CalendarWindow):
        return CalendarStarts(window.grid), _HERE
    raise declaration.error(
        f"window={shown(window)}: give tumbling(…) or sliding(…): the windows of both sides must "
        "be the same, and sessions follow from the records"
    )


def _reach(declaration: JoinDeclaration, within: Any, until: str | None) -> Reach:
    """Return the range of an interval that a user gave. An end that is a field counts as zero."""
    given = within if isinstance(within, tuple) else (within, within)
    if len(given) != 2:
        raise declaration.error(
            f"within={shown(within)}: give a duration, or a pair: how far before and how far after"
        )
    if until is not None:
        return Reach(_signed_micros(given[0]), 0)
    try:
        reach = Reach(*map(_signed_micros, given))
    except StateTypeError as error:
        raise declaration.error(
            f"within={shown(within)}: {error}. In a pair, the second one may also be a field of "
            f"the left side with the end of the interval (it has {declaration.left_fields})"
        ) from error
    if reach.before + reach.after < 0:
        raise declaration.error(
            f"within={shown(within)}: the interval ends before it begins: give (before, after) "
            "whose sum is not negative"
        )
    return reach


def _signed_micros(duration: Any) -> int:
    """Return a duration in microseconds. A timedelta may be negative."""
    if isinstance(duration, dt.timedelta) and duration < _ZERO:
        return -duration_to_micros(-duration, "within")
    return duration_to_micros(duration, "within")


def _check_how(declaration: JoinDeclaration, points: JoinPoints) -> None:
    """Check that rows without a match can be known."""
    if not points.ends and declaration.how not in ("inner", "semi"):
        raise declaration.error(
            f'how="{declaration.how}" emits rows without a match when no match can follow, and '
            "without within= or window= one always can: give one of them"
        )


def _check_ttl(declaration: JoinDeclaration, points: JoinPoints, ttl: Any) -> None:
    """Check that a TTL fits a join."""
    if ttl is None:
        return
    if fault := ttl_fault(ttl):
        raise declaration.error(fault)
    if points.ends:
        raise declaration.error(
            "ttl= has no effect with within= or window=: records are removed when no match can "
            "follow: leave it out"
        )
    if ttl.clock == "event":
        raise declaration.error(
            'ttl= with clock="event": a join without an end has no event time: give within= and '
            "event_time=, or a TTL in processing time"
        )
    if ttl.refresh == "read":
        raise declaration.error(
            'ttl= with refresh="read": a match does not restart the TTL of a record: use '
            'refresh="write"'
        )


def _operator(
    declaration: JoinDeclaration,
    points: JoinPoints,
    reach: Reach,
    own: OwnIntervals | None,
    window: Window | None,
    lateness: dt.timedelta | str,
    ttl: TTL | None,
    name: str,
) -> Process[Any, ..., Any]:
    """Return the process function of a join."""
    how = declaration.how
    of_left = how in ("left", "full", "anti")
    of_right = how in ("right", "full")
    ends = how in ("semi", "anti")
    stored = [
        stored_class(declaration.left, notes_matches=of_left and not ends),
        stored_class(declaration.right, notes_matches=of_right),
    ]
    back = reach.reverse if own is None else Reach(0, _EVERYWHERE.after)
    begins = None if own is None else own.begins
    sides = (
        Side(declaration.left.cls, stored[0], reach, reach.after, begins, of_left, ends),
        Side(declaration.right.cls, stored[1], back, reach.before, None, of_right),
    )
    results = declaration.results(getattr(points, "ends_of", None))
    emits: Any = {"semi": "left", "anti": "nothing"}.get(how, "pairs")
    join = StreamJoin(*sides, points, results, own and own.ends, emits)
    maps = [_MAP[Place, cls] for cls in stored]
    if ttl is not None:
        maps = [Annotated[each, ttl] for each in maps]
    hints = {
        "records": declaration.left.cls | declaration.right.cls,
        "ctx": Context,
        "left": maps[0],
        "right": maps[1],
        "return": _ITERATOR[declaration.into],
    }
    interval = str(window) if window is not None else f"{reach.before}, {reach.after}"
    if own is not None:
        interval = f"{reach.before}, until {own.until}"
    definition = {"on": declaration.shown_on(), "how": how, "within": interval}
    traits = Traits(
        definition=lambda _: definition,
        takes_many=True,
        has_timers=points.ends,
        holds_back_us=points.span_us,
        fires=join.fire if points.ends else None,
        made_of=JoinedResult(
            how, declaration.left.cls, declaration.right.cls, reach, own, window, results
        ),
    )
    decorate = process(key=declaration.key, event_time=declaration.time, lateness=lateness)
    declared: Process[Any, ..., Any] = decorate(declare(join.join, name, hints))
    return declared.with_traits(traits)
