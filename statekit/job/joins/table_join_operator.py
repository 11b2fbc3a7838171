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
from statekit.job.joins.moves import moves_operator
from statekit.job.joins.net_changes import ChangeKey, KeyedChanges, SideKey, fields_at
from statekit.job.joins.table_join import Alone, TableJoin, TableSide
from statekit.records.record_type import RecordType
from statekit.records.result_type import ResultRecords
from statekit.shown import shown
from statekit.state.map_state import MapState

KeyFields = str | Sequence[str] | tuple[str | Sequence[str], str | Sequence[str]]
"""Fields of a key: of both sides; a list of such; or a pair: of the left and of the right side."""

_ALONE_OF_LEFT: Mapping[How, Alone] = {
    "left": "unmatched",
    "full": "unmatched",
    "anti": "unmatched",
    "semi": "matched",
}
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
    results = declaration.results(None)
    if not any(field.side == "deleted" for field in results.fields):
        raise declaration.error(
            "no field of the results is true for deleted rows: give into= a field deleted: bool, "
            'or name one with fields={"gone": "change.deleted"}'
        )
    definition = {
        "on": declaration.shown_on(),
        "how": how,
        "emit": "changes",
        "key": " and ".join(", ".join(key) for key in keys),
        "deletes": " and ".join(map(str, deletes)),
    }
    sides = zip(declaration.on, keys, deletes, strict=True)
    of_left, of_right = (_TableOptions(*side) for side in sides)
    left = _Table(declaration, declaration.left, of_left, definition, f"{name}_left")
    right = _Table(declaration, declaration.right, of_right, definition, f"{name}_right")
    keyed = after = None
    if (by := _key_of_changes(how, left, right)) is not None:
        on_types = left.types[: left.on_count]
        keyed = KeyedChanges.declared(left.key, right.key, on_types, declaration.into)
        after = keyed.operator(by, declaration.into, f"{name}_changes")
    join = TableJoin(
        left.side(_ALONE_OF_LEFT.get(how, "none")),
        right.side("unmatched" if how in ("right", "full") else "none"),
        how not in ("semi", "anti"),
        results,
        keyed,
    )
    operator = _operator(declaration, join, (left, right), definition, name)
    rows, before = (declaration.left, declaration.right), (left.moves, right.moves)
    return DeclaredJoin(name, operator, *rows, before, after)


class _TableOptions(NamedTuple):
    """The options of one side of a join of tables.

    Parameters:
        on: its fields of `on`.
        key: the fields of its key.
        deletes: the field that says that a row is deleted.
    """

    on: Sequence[KeyPart]
    key: Sequence[str]
    deletes: str | None


class _Table:
    """One side of a join of tables.

    Parameters:
        declaration: of the join.
        row: its rows.
        options: of the side.
        definition: of the join.
        name: of the operator that emits moves of its rows.

    Attributes:
        types: of the fields of its rows.
        on_count: the number of fields of `on`, which are the first ones.
        key: the key of its rows.
        has_one: whether a value of `on` has one row at most.
        moves: the operator that emits moves of its rows; None if their key has all fields of `on`,
            so that an update cannot change these.
    """

    def __init__(
        self,
        declaration: JoinDeclaration,
        row: Row,
        options: _TableOptions,
        definition: Mapping[str, str],
        name: str,
    ) -> None:
        on, key, deletes = options
        self.types = list(row.cls.__annotations__.values())
        self.on_count = len(on)
        self._places = [place_in(row, field) for field in key]
        self.key = SideKey([self.types[place] for place in self._places], fields_at(self._places))
        named = {part for part in on if isinstance(part, str)}
        self.has_one = named.issuperset(key)
        self._is_deleted = deletion(declaration, row, deletes)
        self._row = row.cls
        self.moves: Process[Any, ..., Any] | None = None
        if not all(isinstance(part, str) and part in key for part in on):
            names = list(row.cls.__annotations__)
            own = [names[place] for place in self._places]
            self.moves = moves_operator(row, own, self.on_count, self._is_deleted, definition, name)
            self._row = self.moves.traits.made_of.row
            self._is_deleted = itemgetter(-1)

    def side(self, alone: Alone) -> TableSide:
        """Return the side. Its rows alone may be rows of the join."""
        return TableSide(self._row, itemgetter(*self._places), self._is_deleted, alone)

    @property
    def key_type(self) -> Any:
        """The type of the key of its rows."""
        of_key = self.key.types
        return of_key[0] if len(of_key) == 1 else _TUPLE[tuple(of_key)]


def _key_of_changes(how: How, left: _Table, right: _Table) -> ChangeKey | None:
    """Return by which key changes of the join are made net; None if each row of the join, and of
    a sink, has its changes from one shard.
    """
    of_left = how in ("semi", "anti") or (right.has_one and how in ("inner", "left"))
    of_right = left.has_one and how in ("inner", "right")
    if left.moves and (of_left or how in ("left", "full")):
        return "left" if of_left else "both"
    if right.moves and (of_right or how in ("right", "full")):
        return "right" if of_right else "both"
    return "both" if left.moves and right.moves and how not in ("semi", "anti") else None


def _operator(
    declaration: JoinDeclaration,
    join: TableJoin,
    tables: tuple[_Table, _Table],
    definition: Mapping[str, str],
    name: str,
) -> Process[Any, ..., Any]:
    """Return the process function of a join of tables."""
    left, right = join.left.row, join.right.row
    hints = {
        "records": left | right,
        "ctx": Context,
        "left": _MAP[tables[0].key_type, left],
        "right": _MAP[tables[1].key_type, right],
        "return": _ITERATOR[declaration.into if join.keyed is None else join.keyed.row],
    }
    traits = Traits(definition=lambda _: definition, takes_many=True, made_of=JoinedTables(join))
    declared: Process[Any, ..., Any] = process(key=declaration.key)(declare(join.join, name, hints))
    return declared.with_traits(traits)


# ---------------------------------------------------------------------------------------- options


def _check_options(where: str, how: str, into: Any, options: Mapping[str, Any]) -> None:
    """Check that the options fit a join of tables."""
    if options["emit"] != "changes":
        raise StateTypeError(f'{where}: emit={shown(options["emit"])}: use "matches" or "changes"')
    if found := [name for name in _OF_TIME if options.get(name) is not None]:
        raise StateTypeError(
            f'{where}: {" and ".join(f"{name}=" for name in found)} with emit="changes": rows of a '
            "table stay until they are deleted: leave it out"
        )
    if into is None and how in ("semi", "anti"):
        raise StateTypeError(
            f'{where}: how="{how}" with emit="changes": give into= a record class with fields of '
            "the left side, and one that says whether a row is deleted"
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
