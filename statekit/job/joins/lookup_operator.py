"""The operator of a lookup, and its description as data."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple, Required, TypedDict

from statekit.errors import StateTypeError
from statekit.functions.context import Context
from statekit.functions.process import Process, Traits, process
from statekit.functions.signature import declare
from statekit.job.joins.join_declaration import (
    DeclaredJoin,
    JoinDeclaration,
    On,
    check_join_options,
    default_name,
    deletion,
)
from statekit.job.joins.lookup import Lookup, LookupByArrival, LookupByTime
from statekit.job.joins.side_rows import Place
from statekit.records.record_type import RecordType
from statekit.shown import shown
from statekit.state.map_state import MapState
from statekit.state.single_row_states import ValueState

LookupHow = Literal["inner", "left", "semi", "anti"]

_HOWS = ("inner", "left", "semi", "anti")
_ZERO = dt.timedelta(0)
_MAP: Any = MapState
_VALUE: Any = ValueState
_ITERATOR: Any = Iterator


class LookedUp(NamedTuple):
    """The description of a lookup as data, from which a model of it can be built.

    Parameters:
        lookup: the classes of the rows, and how results are created.
        as_of: whether the table is that of the record's event time.
    """

    lookup: Lookup
    as_of: bool


class LookupArguments(TypedDict, total=False):
    """The options of a lookup.

    Parameters:
        on: the fields that are equal, as for `join`. Those of the table are its key.
        deletes: a field of the table's records: a record deletes the row of its key if the field is
            true, for a bool, or None, for any other type.
        as_of: look at the table as it was at the event time of the record.
        event_time: the field with the event time, or a pair with that of each side; for `as_of`.
        lateness: as for `@process`.
        fields: as for `join`.
        name: of the operator; by default `lookup_` and the names of both streams.
    """

    on: Required[On]
    deletes: str | None
    as_of: bool
    event_time: str | tuple[str, str] | None
    lateness: dt.timedelta | str
    fields: Mapping[str, str] | None
    name: str | None


def declared_lookup(
    records: tuple[RecordType, RecordType],
    streams: tuple[str, str],
    how: LookupHow,
    into: Any,
    options: LookupArguments,
) -> DeclaredJoin:
    """Declare a lookup: see `Stream.lookup`.

    Parameters:
        records: the types of the records, and of the table's rows.
        streams: the names of both.
    """
    check_join_options("lookup", options, LookupArguments.__annotations__)
    chosen = options.get("name") or default_name("lookup", streams)
    if how not in _HOWS:
        raise StateTypeError(f"lookup {chosen!r}: how={shown(how)}: use one of {', '.join(_HOWS)}")
    as_of, deletes = options.get("as_of", False), options.get("deletes")
    declaration = JoinDeclaration(
        *records,
        on=options["on"],
        how=how,
        event_time=options.get("event_time") if as_of else None,
        into=into,
        fields=options.get("fields"),
        kept=((), () if deletes is None else (deletes,)),
        name=chosen,
    )
    if as_of and declaration.time is None:
        raise declaration.error("as_of=True needs event_time=, the field with the time of a record")
    if not as_of and {"event_time", "lateness"} & options.keys():
        raise declaration.error(
            "event_time= and lateness= are for as_of=True; without it the order of arrival counts"
        )
    operator = _operator(declaration, as_of, deletes, options.get("lateness", _ZERO), chosen)
    return DeclaredJoin(chosen, operator, declaration.left, declaration.right)


def _operator(
    declaration: JoinDeclaration,
    as_of: bool,
    deletes: str | None,
    lateness: dt.timedelta | str,
    name: str,
) -> Process[Any, ..., Any]:
    """Return the process function of a lookup."""
    left, right = declaration.left.cls, declaration.right.cls
    made = LookupByTime if as_of else LookupByArrival
    is_deleted = deletion(declaration, declaration.right, deletes)
    lookup = made(left, right, declaration.how, is_deleted, declaration.results(None))
    states = {"table": _VALUE[right]}
    if as_of:
        states = {"versions": _MAP[Place, right], "waiting": _MAP[Place, left]}
    hints = {
        "records": right | left,
        "ctx": Context,
        **states,
        "return": _ITERATOR[declaration.into],
    }
    definition = {
        "on": declaration.shown_on(),
        "how": declaration.how,
        "as_of": str(as_of),
        "deletes": str(deletes),
    }
    traits = Traits(
        definition=lambda _: definition,
        takes_many=True,
        has_timers=as_of,
        fires=lookup.fire if isinstance(lookup, LookupByTime) else None,
        made_of=LookedUp(lookup, as_of),
    )
    decorate = process(key=declaration.key, event_time=declaration.time, lateness=lateness)
    declared: Process[Any, ..., Any] = decorate(declare(lookup.look, name, hints))
    return declared.with_traits(traits)
