"""The declaration of a join: its options, checked, and the rows and results that follow from them.

The streams of both sides are projected to rows first: to the key, the event time, and the fields
that a result needs. So nothing else is shuffled or kept.
"""

from __future__ import annotations

import inspect
import keyword
import typing
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Literal, NamedTuple, Optional, cast

from statekit.codec.annotations import peel, plain_defaults, show
from statekit.errors import StateTypeError
from statekit.expressions.compiled import compiled
from statekit.expressions.expression import Expression
from statekit.functions.process import Process
from statekit.functions.projection import WHOLE
from statekit.functions.signature import hints_of
from statekit.functions.state_parameters import annotation_text
from statekit.job.joins.join_results import NO_FIELDS, From, JoinResults, OwnFields, ResultField
from statekit.records.record_type import RecordType
from statekit.records.result_type import ResultRecords
from statekit.shown import shown

How = Literal["inner", "left", "right", "full", "semi", "anti"]

HOWS: Sequence[How] = ("inner", "left", "right", "full", "semi", "anti")

KeyPart = str | Expression
"""A field, or an expression over the fields of a record."""

On = KeyPart | Sequence[KeyPart] | tuple[KeyPart | Sequence[KeyPart], KeyPart | Sequence[KeyPart]]
"""What is equal: of both sides; a list of such; or a pair: of the left and of the right side."""

_OPTIONAL: Any = Optional


class FieldOrigin(NamedTuple):
    """Where a field of a result comes from.

    Parameters:
        side: "left" or "right", "key" for a key that either side has, or a field of the join
            itself.
        field: of the records of that side; "*" for the record.
        annotation: its type in a result.
    """

    side: From
    field: str
    annotation: Any


@dataclass(frozen=True)
class Row:
    """The row of a side, and how it is made of a record.

    Parameters:
        cls: the class, a NamedTuple.
        fields: for each field of the row, the field of the record, "*" for the record, or an
            expression.
    """

    cls: type[Any]
    fields: Mapping[str, KeyPart]


class DeclaredJoin(NamedTuple):
    """A join or a lookup as an operator, and the rows that it takes.

    Parameters:
        name: of the operator.
        process: its function.
        left, right: how the rows of both sides are made of records.
        before: for each side, the operator that its rows pass first, if there is one.
        after: the operator that the results pass, if there is one.
    """

    name: str
    process: Process[Any, ..., Any]
    left: Row
    right: Row
    before: tuple[Process[Any, ..., Any] | None, Process[Any, ..., Any] | None] = (None, None)
    after: Process[Any, ..., Any] | None = None


class JoinDeclaration:
    """The rows and results of a join.

    Parameters:
        left, right: the types of the records of both sides.
        on: the fields that are equal.
        how: which rows are emitted.
        event_time: the field with the event time of each side; None without event time.
        into: the class of the results, a function that makes them, or None.
        fields: for fields of a result, the field that they get.
        own: the fields that a result may have of the join itself.
        kept: fields of each side, or expressions, that its rows have in any case.
        left_out: fields of each side that results have only if they are named with their side.
        name: of the operator.

    Attributes:
        key: the names of the key fields in rows.
        time: the name of the field with the event time in rows; None without event time.

    Raises:
        StateTypeError: an option is not valid; the message names it.
    """

    def __init__(
        self,
        left: RecordType,
        right: RecordType,
        *,
        on: On,
        how: How,
        event_time: str | tuple[str, str] | None,
        into: Any,
        fields: Mapping[str, str] | None,
        own: OwnFields = NO_FIELDS,
        kept: tuple[Sequence[KeyPart], Sequence[KeyPart]] = ((), ()),
        left_out: tuple[Sequence[str], Sequence[str]] = ((), ()),
        name: str,
    ) -> None:
        self._name = name
        self._where = f"join {name!r}"
        self._left = ResultRecords(left, "join")
        self._right = ResultRecords(right, "join")
        if how not in HOWS:
            raise self.error(f"how={shown(how)}: use one of {', '.join(HOWS)}")
        self.how = how
        self._own = own
        self._left_out = left_out
        self.on = self._checked_on(on)
        self._times = self._checked_times(event_time)
        self.into, self.fn = self._output(into)
        if fields is not None and not isinstance(fields, Mapping):
            raise self.error(
                f"fields={shown(fields)}: give a mapping, from fields of a result to what they get"
            )
        self._sources = self._chosen(fields or {})
        self._check_has_no_right()
        self.key = self._key_names()
        self.time = None if self._times is None else _column(self._times[0], {*self.key})
        self.left, self.right = self._row("left", kept[0]), self._row("right", kept[1])

    def error(self, reason: str) -> StateTypeError:
        """Return an error about the join."""
        return StateTypeError(f"{self._where}: {reason}")

    @property
    def left_fields(self) -> str:
        """The names of the fields of left records, for messages."""
        return ", ".join(self._left.record.fields or ())

    def results(self, ends_of: Callable[..., Any] | None) -> JoinResults:
        """Return the object that creates the results.

        Parameters:
            ends_of: returns the ends of windows by their starts; None without windows.
        """
        made = []
        for name, source in self._sources.items():
            side = source.side
            if side == "key":
                place = self._shared(source.field)
            elif side in self._own.types:
                place = 0
            else:
                row = self.left if side == "left" else self.right
                place = place_in(row, source.field)
            assert place is not None, "rows have what results need"
            made.append(ResultField(name, side, place))
        return JoinResults(made, self.into if self.fn is None else None, self.fn, ends_of)

    def shown_on(self) -> str:
        """Return the equal parts of both sides as text."""
        return " and ".join(f"{ours} = {theirs}" for ours, theirs in zip(*self.on, strict=True))

    # ------------------------------------------------------------------------------------ options

    def _checked_on(self, on: On) -> tuple[tuple[KeyPart, ...], tuple[KeyPart, ...]]:
        """Return the parts of the key of the left and of the right side."""
        sides: tuple[Any, Any] = (on, on)
        if isinstance(on, tuple):
            if len(on) != 2:
                raise self.error(
                    f"on={shown(on)}: give a field of both sides, a list of fields of both, or a "
                    "pair: those of the left side and those of the right side"
                )
            sides = on
        single = (str, Expression)
        if not all(isinstance(of, (*single, list, tuple)) for of in sides):
            raise self.error(f"on={shown(on)}: give the name of a field, or a list of names")
        left, right = ((of,) if isinstance(of, single) else tuple(of) for of in sides)
        if not left or len(left) != len(right):
            raise self.error(f"on={shown(on)}: give as many fields of one side as of the other")
        for ours, theirs in zip(left, right, strict=True):
            of_left, of_right = self._type_of(ours, self._left), self._type_of(theirs, self._right)
            if set(peel(of_left)[0]) != set(peel(of_right)[0]):
                raise self.error(
                    f"on={shown(on)}: {ours} of {self._left.record.name} is {show(of_left)}, and "
                    f"{theirs} of {self._right.record.name} is {show(of_right)}: join fields of "
                    "one type"
                )
        return left, right

    def _type_of(self, part: KeyPart, side: ResultRecords) -> Any:
        """Return the type of a part of the key of a side."""
        if isinstance(part, str):
            return side.annotation(part)
        found = compiled(part, side.record, self._where).type
        if found.annotation is None:
            raise self.error(f"on=: {part} is {found}: join fields of another type, or CAST it")
        return found.annotation

    def _checked_times(self, event_time: Any) -> tuple[str, str] | None:
        if event_time is None:
            return None
        times = (event_time, event_time) if isinstance(event_time, str) else tuple(event_time)
        if len(times) != 2:
            raise self.error(
                f"event_time={shown(event_time)}: give a field of both sides, or a pair: that of "
                "the left side and that of the right side"
            )
        self._left.annotation(times[0])
        self._right.annotation(times[1])
        return times[0], times[1]

    def _output(self, into: Any) -> tuple[Any, Callable[..., Any] | None]:
        """Return the class of the results, and the function that makes them, if there is one."""
        if self.how in ("semi", "anti") and into is None:
            return self._left.record.cls, _itself
        if into is None or isinstance(into, type):
            return into, None
        if not inspect.isfunction(into):
            raise self.error(
                f"into={shown(into)}: give a record class, or a function of two records"
            )
        returned = hints_of(into).get("return")
        if returned in (None, type(None)):
            raise self.error(
                f"into={into.__name__}: the type of its results is not known: annotate what the "
                "function returns"
            )
        if typing.get_origin(returned) in (Iterator, Iterable, Generator):
            raise self.error(
                f"into={into.__name__}: it returns {annotation_text(returned)}, and a pair has one "
                "result: return a list, and use flat_map after the join"
            )
        taken = 1 if self.how in ("semi", "anti") else 2
        parameters = inspect.signature(into).parameters.values()
        if sum(one.default is one.empty for one in parameters) != taken:
            which = "the record of the left side" if taken == 1 else "the records of both sides"
            raise self.error(f"into={into.__name__}: the function must take {which}")
        return returned, into

    # ------------------------------------------------------------------------------------- fields

    def _chosen(self, fields: Mapping[str, str]) -> dict[str, FieldOrigin]:
        """Return the source of each field of a result, in order."""
        if self.fn is not None:
            if fields:
                raise self.error("fields= is for results that are records: the function takes all")
            record = {"left_record": FieldOrigin("left", WHOLE, self._left.record.cls)}
            if self.how in ("semi", "anti"):
                return record
            return record | {"right_record": FieldOrigin("right", WHOLE, self._right.record.cls)}
        names: Sequence[str]
        if self.into is not None:
            record_type = RecordType.of(self.into, where=f"{self._where}, into")
            if record_type.fields is None:
                raise self.error(
                    "into=dict has no fields: give a NamedTuple, a dataclass or the like"
                )
            declared = record_type.fields
            if unknown := [name for name in fields if name not in declared]:
                raise self.error(
                    f"fields=: {record_type.name} has no field {', '.join(map(repr, unknown))}"
                )
            known = self._known()
            names = [
                name
                for name, field in declared.items()
                if field.init and (name in fields or name in known or field.required)
            ]
        else:
            names = list(fields) or list(self._known())
        sources = {name: self._source(name, fields.get(name, name)) for name in names}
        types = {name: self._nullable(source) for name, source in sources.items()}
        title = "".join(c if c.isalnum() else "_" for c in self._name)
        cls, _ = self._left.result_class(title, types, self.into)
        self.into = cls
        return sources

    def _check_has_no_right(self) -> None:
        """Check that results of left rows alone have no field of the right side."""
        right = [name for name, source in self._sources.items() if source.side == "right"]
        if self.how in ("semi", "anti") and right:
            raise self.error(
                f'how="{self.how}" emits rows of the left side alone, and {", ".join(right)} would '
                f"be of {self._right.record.name}: leave it out of into="
            )

    def _known(self) -> list[str]:
        """Return the fields of both sides, each name once."""
        left, right = self._fields_of_sides()
        return list(dict.fromkeys([*left, *right, *self._own.types]))

    def _fields_of_sides(self) -> list[list[str]]:
        """Return the fields of each side that are known by their names alone."""
        return [
            [name for name in side.record.fields or () if name not in left_out]
            for side, left_out in zip((self._left, self._right), self._left_out, strict=True)
        ]

    def _source(self, name: str, given: str) -> FieldOrigin:
        """Return the source of a field of a result.

        Parameters:
            given: the name of a field, with "left.", "right." or the title of the join's own
                fields before it if several have it.
        """
        side, _, field = given.rpartition(".")
        left, right = self._fields_of_sides()
        title, own_types = self._own
        if side == title and field in own_types:
            return FieldOrigin(field, field, own_types[field])  # type: ignore[arg-type]
        if side in ("left", "right"):
            own = self._left if side == "left" else self._right
            if field == WHOLE:
                return FieldOrigin(side, field, own.record.cls)  # type: ignore[arg-type]
            return FieldOrigin(side, field, own.annotation(field))  # type: ignore[arg-type]
        if (place := self._shared(given)) is not None:
            of_how = {"right": self._right.annotation(given), "full": self._key_annotation(place)}
            return FieldOrigin("key", given, of_how.get(self.how, self._left.annotation(given)))
        if given in own_types and given in {*left, *right}:
            raise self.error(
                f"{given!r} is a field of a side and of the {title}: say which one with "
                f"fields={{{name!r}: '{title}.{given}'}}, or 'left.{given}', or 'right.{given}'"
            )
        if given in left and given in right:
            raise self.error(
                f"{given!r} is a field of {self._left.record.name} and of "
                f"{self._right.record.name}: say which one with fields={{{name!r}: "
                f"'left.{given}'}} or 'right.{given}'"
            )
        if given in left:
            return FieldOrigin("left", given, self._left.annotation(given))
        if given in right:
            return FieldOrigin("right", given, self._right.annotation(given))
        if given in own_types:
            return FieldOrigin(given, given, own_types[given])  # type: ignore[arg-type]
        raise self.error(
            f"there is nothing for the field {name!r} of a result: neither "
            f"{self._left.record.name} ({', '.join(left)}) nor {self._right.record.name} "
            f"({', '.join(right)}) has {given!r}. Name the field that it gets, as in "
            f"fields={{{name!r}: 'left.…'}}"
        )

    def _nullable(self, source: FieldOrigin) -> Any:
        """Return the type of a field of a result, with None if its side may be absent."""
        absent = {"left": ("right", "full"), "right": ("left", "full")}.get(source.side, ())
        return _OPTIONAL[source.annotation] if self.how in absent else source.annotation

    def _row(self, side: Literal["left", "right"], kept: Sequence[KeyPart]) -> Row:
        """Return the row of a side.

        Parameters:
            kept: fields of the records, or expressions, that the row has in any case.
        """
        number = 0 if side == "left" else 1
        results = (self._left, self._right)[number]
        fields: dict[str, KeyPart] = dict(zip(self.key, self.on[number], strict=True))
        types = {name: self._key_annotation(place) for place, name in enumerate(self.key)}
        if self._times is not None and self.time is not None:
            fields[self.time] = self._times[number]
            types[self.time] = results.annotation(self._times[number])
        for source in self._sources.values():
            if source.side == side and _place_in(fields, source.field) is None:
                name = _column("record" if source.field == WHOLE else source.field, set(fields))
                fields[name], types[name] = source.field, source.annotation
        for part in kept:
            if _place_in(fields, part) is None:
                name = _column(part if isinstance(part, str) else "deleted", set(fields))
                fields[name], types[name] = part, self._type_of(part, results)
        of_record = plain_defaults(results.record.cls)
        defaults = {
            name: of_record[part]
            for name, part in fields.items()
            if isinstance(part, str) and part in of_record and name not in self.key
        }
        return Row(_row_class(f"{side.title()}{results.record.name}", types, defaults), fields)

    def _shared(self, field: str) -> int | None:
        """Return the place in the key of a field that both sides have there; None if it is not."""
        for place, parts in enumerate(zip(*self.on, strict=True)):
            if all(isinstance(part, str) and part == field for part in parts):
                return place
        return None

    def _key_names(self) -> tuple[str, ...]:
        """Return the names of the key fields in rows: those of the left side, where it has one."""
        names = list[str]()
        for parts in zip(*self.on, strict=True):
            name = next((part for part in parts if isinstance(part, str)), "key")
            names.append(_column(name, set(names)))
        return tuple(names)

    def _key_annotation(self, place: int) -> Any:
        """Return the type of a key field, which is that of both sides."""
        ours = self._type_of(self.on[0][place], self._left)
        theirs = self._type_of(self.on[1][place], self._right)
        return theirs if peel(theirs)[1] else ours


def check_join_options(
    operation: str, options: Mapping[str, Any], known: Mapping[str, Any]
) -> None:
    """Check the names of the options of a join or lookup.

    Parameters:
        known: those that it has, by name.

    Raises:
        StateTypeError: one is not known, or `on` is not there.
    """
    if unknown := sorted(options.keys() - known.keys()):
        raise StateTypeError(
            f"{operation}() has no option {', '.join(unknown)}: it has how, into, "
            f"{', '.join(known)}"
        )
    if "on" not in options:
        raise StateTypeError(
            f'{operation}() needs on=, the fields that are equal, such as on="customer"'
        )


def default_name(operation: str, streams: tuple[str, str]) -> str:
    """Return the name of the operator of two streams."""
    text = "_".join((operation, *streams))
    return "".join(c if c.isalnum() else "_" for c in text)


def stored_class(row: Row, *, notes_matches: bool) -> type[Any]:
    """Return the class of the kept rows of a side."""
    return with_flag(row, "matched") if notes_matches else row.cls


def with_flag(row: Row, name: str) -> type[Any]:
    """Return the class of the rows of a side, with a flag as the last field."""
    types = dict(row.cls.__annotations__)
    types[_column(name, set(types))] = bool
    return _row_class(row.cls.__name__, types, plain_defaults(row.cls))


def _row_class(name: str, types: Mapping[str, Any], defaults: Mapping[str, Any]) -> type[Any]:
    """Return the class of the rows of a side.

    Parameters:
        types: of the fields.
        defaults: the values of fields in kept rows that lack them, as results took fewer fields
            when these rows came. New rows have all fields, so a default may be before a field
            without.
    """
    cls = cast("Any", NamedTuple)(name, list(types.items()))
    cls._field_defaults = dict(defaults)
    return cls  # type: ignore[no-any-return]


def place_in(row: Row, source: KeyPart) -> int:
    """Return the place of the field of a row that is copied from a field, or is an expression."""
    place = _place_in(row.fields, source)
    assert place is not None, "rows have what results need"
    return place


def _place_in(fields: Mapping[str, KeyPart], source: KeyPart) -> int | None:
    """Return the place of the field of a row that has a source; None if none has."""
    for place, of in enumerate(fields.values()):
        # Expressions have an == of their own.
        if of is source or (isinstance(of, str) and isinstance(source, str) and of == source):
            return place
    return None


def deletion(declaration: JoinDeclaration, row: Row, part: KeyPart | None) -> Callable[[Any], bool]:
    """Return whether a row of a table deletes that of its key.

    Parameters:
        row: the row of the table.
        part: the field that says it, or an expression; None if no row does.

    Raises:
        StateTypeError: the field is not a bool, and may not be None.
    """
    if part is None:
        return _never
    place = place_in(row, part)
    members, may_be_none, _ = peel(list(row.cls.__annotations__.values())[place])
    value_of = itemgetter(place)
    if set(members) == {bool}:
        return value_of
    if not may_be_none:
        raise declaration.error(
            f"deletes={shown(part)}: give a field that is a bool, or that may be None"
        )
    return lambda row: value_of(row) is None


def _never(_: Any) -> bool:
    return False


def _column(name: str, taken: set[str]) -> str:
    """Return a name for a field of a row that is not taken, and that a NamedTuple may have."""
    if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
        name = "field_" + "".join(c if c.isalnum() else "_" for c in name).strip("_")
    while name in taken:
        name += "_"
    return name


def _itself(record: Any) -> Any:
    """Return a record of the left side as a result."""
    return record
