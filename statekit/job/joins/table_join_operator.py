"""The operator of a join of two tables, and its description as data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from statekit.codec.annotations import peel
from statekit.errors import StateTypeError
from statekit.functions.context import Context
from statekit.functions.process import Process, Traits, process
from statekit.functions.signature import declare
from statekit.job.joins.join_declaration import (
    DeclaredJoin,
    How,
    JoinDeclaration,
    KeyPart,
    Row,
    default_name,
    deletion,
    place_in,
)
from statekit.job.joins.join_results import CHANGE_FIELDS
from statekit.job.joins.table_join import TableJoin, TableSide
from statekit.records.record_type import RecordType
from statekit.records.result_type import ResultRecords
from statekit.shown import shown
from statekit.state.map_state import MapState

KeyFields = str | Sequence[str] | tuple[str | Sequence[str], str | Sequence[str]]
"""Fields of a key: of both sides; a list of such; or a pair: of the left and of the right side."""

_HOWS = ("inner", "left", "right", "full")
_OF_TABLES = ("key", "deletes")
_OF_TIME = ("within", "window", "ttl", "event_time", "lateness")

_MAP: Any = MapState
_ITERATOR: Any = Iterator
_TUPLE: Any = tuple


class JoinedTables(NamedTuple):
    """The description of a join of tables as data, from which a model of it can be built.

    Parameters:
        join: the tables, and how results are created.
    """

    join: TableJoin


def check_has_no_tables(options: Mapping[str, Any]) -> None:
    """Check that a join of records has no option of tables.

    Raises:
        StateTypeError: it has one.
    """
    if found := [name for name in _OF_TABLES if options.get(name) is not None]:
        raise StateTypeError(
            f"join(): {' and '.join(f'{name}=' for name in found)} is for tables: give "
            'emit="changes", too, or leave it out'
        )


def declared_table_join(
    records: tuple[RecordType, RecordType],
    streams: tuple[str, str],
    how: How,
    into: Any,
    options: Mapping[str, Any],
) -> DeclaredJoin:
    """Declare a join of tables: see `Stream.join` with `emit="changes"`.

    Parameters:
        records: the types of the records of both sides.
        streams: the names of both sides.
    """
    name = options.get("name") or default_name("join", streams)
    where = f"join {name!r}"
    _check_options(where, how, into, options)
    keys = _of_sides(where, options.get("key"))
    deletes = _deletes_of_sides(where, options.get("deletes"))
    declaration = JoinDeclaration(
        *records,
        on=options["on"],
        how=how,
        event_time=None,
        into=into,
        fields=options.get("fields"),
        own=CHANGE_FIELDS,
        kept=((*keys[0], *_some(deletes[0])), (*keys[1], *_some(deletes[1]))),
        left_out=(_flags(records[0], deletes[0]), _flags(records[1], deletes[1])),
        name=name,
    )
    for on, key in zip(declaration.on, keys, strict=True):
        _check_stays(declaration, on, key)
    results = declaration.results(None)
    if not any(field.side == "deleted" for field in results.fields):
        raise declaration.error(
            "no field of the results is true for deleted rows: give into= a field deleted: bool, "
            'or name one with fields={"gone": "change.deleted"}'
        )
    join = TableJoin(
        _table(declaration, declaration.left, keys[0], deletes[0], shown=how in ("left", "full")),
        _table(declaration, declaration.right, keys[1], deletes[1], shown=how in ("right", "full")),
        results,
    )
    key_types = [_key_type(declaration.left, keys[0]), _key_type(declaration.right, keys[1])]
    definition = {
        "on": declaration.shown_on(),
        "how": how,
        "emit": "changes",
        "key": " and ".join(", ".join(key) for key in keys),
        "deletes": " and ".join(map(str, deletes)),
    }
    operator = _operator(declaration, join, key_types, definition, name)
    return DeclaredJoin(name, operator, declaration.left, declaration.right)


def _operator(
    declaration: JoinDeclaration,
    join: TableJoin,
    key_types: Sequence[Any],
    definition: Mapping[str, str],
    name: str,
) -> Process[Any, ..., Any]:
    """Return the process function of a join of tables."""
    left, right = join.left.row, join.right.row
    hints = {
        "records": left | right,
        "ctx": Context,
        "left": _MAP[key_types[0], left],
        "right": _MAP[key_types[1], right],
        "return": _ITERATOR[declaration.into],
    }
    traits = Traits(definition=lambda _: definition, takes_many=True, made_of=JoinedTables(join))
    declared: Process[Any, ..., Any] = process(key=declaration.key)(declare(join.join, name, hints))
    return declared.with_traits(traits)


def _table(
    declaration: JoinDeclaration, row: Row, key: Sequence[str], deletes: str | None, *, shown: bool
) -> TableSide:
    """Return one side of the join.

    Parameters:
        shown: whether its rows without a match are rows of the join.
    """
    key_of = itemgetter(*(place_in(row, field) for field in key))
    return TableSide(row.cls, key_of, deletion(declaration, row, deletes), shown)


def _key_type(row: Row, key: Sequence[str]) -> Any:
    """Return the type of the key of the rows of a table."""
    types = list(row.cls.__annotations__.values())
    of_key = [types[place_in(row, field)] for field in key]
    return of_key[0] if len(of_key) == 1 else _TUPLE[tuple(of_key)]


# ---------------------------------------------------------------------------------------- options


def _check_stays(declaration: JoinDeclaration, on: Sequence[KeyPart], key: Sequence[str]) -> None:
    """Check that an update of a row cannot change what it matches."""
    outside = [part for part in on if not (isinstance(part, str) and part in key)]
    if outside:
        named = ", ".join(map(str, outside))
        raise declaration.error(
            f"{named} is in on= and not in key=, and an update that changes it would leave the "
            f"old row behind: add it to key=. A record with another {named} is then another row, "
            "and the old one has to be deleted by a record with its old values"
        )


def _check_options(where: str, how: str, into: Any, options: Mapping[str, Any]) -> None:
    """Check that the options fit a join of tables."""
    if options["emit"] != "changes":
        raise StateTypeError(f'{where}: emit={shown(options["emit"])}: use "matches" or "changes"')
    if how in ("semi", "anti"):
        raise StateTypeError(
            f'{where}: how="{how}" with emit="changes": use one of {", ".join(_HOWS)}'
        )
    if found := [name for name in _OF_TIME if options.get(name) is not None]:
        raise StateTypeError(
            f'{where}: {" and ".join(f"{name}=" for name in found)} with emit="changes": rows of a '
            "table stay until they are deleted: leave it out"
        )
    if into is not None and not isinstance(into, type):
        raise StateTypeError(
            f'{where}: into={shown(into)} with emit="changes": give a record class, in which a '
            "field says whether a row is deleted; call the function after the join"
        )


def _of_sides(where: str, given: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the fields of the key of each table."""
    sides = given if isinstance(given, tuple) else (given, given)
    keys = [(of,) if isinstance(of, str) else of for of in sides]
    if len(keys) != 2 or not all(
        isinstance(of, list | tuple) and of and all(isinstance(field, str) for field in of)
        for of in keys
    ):
        raise StateTypeError(
            f'{where}: key={shown(given)}: with emit="changes", give the key of the rows of each '
            'table: a field of both sides, a list of fields of both, or a pair, as in key=("id", '
            '["order", "line"])'
        )
    return tuple(keys[0]), tuple(keys[1])


def _deletes_of_sides(where: str, given: Any) -> tuple[str | None, str | None]:
    """Return the field of each table that says that a row is deleted."""
    sides = given if isinstance(given, tuple) else (given, given)
    if len(sides) != 2 or not all(of is None or isinstance(of, str) for of in sides):
        raise StateTypeError(
            f"{where}: deletes={shown(given)}: give a field of both sides, or a pair with that of "
            "each side, or None"
        )
    return sides


def _flags(record: RecordType, deletes: str | None) -> tuple[str, ...]:
    """Return the field that deletes rows, if it is a flag. Results have one of their own."""
    if deletes is None:
        return ()
    members, _, _ = peel(ResultRecords(record, "join").annotation(deletes))
    return _some(deletes) if set(members) == {bool} else ()


def _some(field: str | None) -> tuple[str, ...]:
    """Return a field, if there is one."""
    return () if field is None else (field,)
