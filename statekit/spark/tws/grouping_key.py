"""The columns that a frame is grouped by for a processor, as a key of statekit.

A key of statekit has whole numbers, texts, bytes, dates and instants. A column of another type is
written as text by Spark, before rows are routed: so whoever computes the key group of a stored key,
a query or a rescale, computes that of the row.
"""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import json
import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from pyspark.sql import Row
from pyspark.sql import types as sql

from statekit.errors import StateTypeError
from statekit.keygroup import key_fields

_PLAIN: tuple[tuple[Any, type], ...] = (
    (sql.BooleanType, bool),
    (sql.IntegralType, int),
    ((sql.StringType, sql.CharType, sql.VarcharType), str),
    (sql.BinaryType, bytes),
    (sql.DateType, dt.date),
    (sql.TimestampType, dt.datetime),
)

_JSON = (
    "map('timeZone', 'UTC', 'timestampFormat', \"yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX\", "
    "'timestampNTZFormat', \"yyyy-MM-dd'T'HH:mm:ss.SSSSSS\")"
)


Getter = Callable[[Any], tuple[Any, ...]]


class _Part(NamedTuple):
    """One of the columns.

    Parameters:
        path: where it is in a row: a column, and fields within it.
        name: what the processor knows it by.
        column: the column that has it as it is stored.
        expression: what makes that column; None for one that is there.
        annotation: what is stored.
        given: from what is stored to what a timer's handler is given.
    """

    path: tuple[str, ...]
    name: str
    column: str
    expression: str | None
    annotation: Any
    given: Callable[[Any], Any]


class GroupingKey:
    """What rows are grouped by.

    Parameters:
        schema: of the rows.
        names: of columns, and of fields within them, as in `groupBy`.

    Raises:
        StateTypeError: there is no such column, or it cannot be grouped by.

    >>> rows = sql.StructType().add("shop", "string").add("price", "decimal(5,2)")
    >>> key = GroupingKey(rows, ["shop", "price"])
    >>> key.columns, key.of_timer(("a", "0.50"))
    (('shop', 'price as key'), Row(shop='a', price=Decimal('0.50')))
    """

    def __init__(self, schema: sql.StructType, names: Sequence[str]) -> None:
        self._parts = [_part(schema, name) for name in names]
        self.columns = tuple(part.column for part in self._parts)
        if not names or len(set(self.columns)) != len(names):
            raise StateTypeError(f"keys={list(names)}: give one column to group by, or several")
        self.types = tuple(_found(schema, part.path) for part in self._parts)
        self._row = Row(*(part.name for part in self._parts))

    @property
    def is_plain(self) -> bool:
        """Whether the key is stored as it is in rows."""
        return not any(part.expression for part in self._parts)

    @property
    def schema(self) -> sql.StructType:
        """The key as Spark has it."""
        made = sql.StructType()
        for part, of in zip(self._parts, self.types, strict=True):
            made.add(part.name, of)
        return made

    @property
    def derived(self) -> dict[str, str]:
        """Columns that rows do not have, and what makes them."""
        return {part.column: part.expression for part in self._parts if part.expression}

    @property
    def has_floats(self) -> bool:
        """Whether keys that differ in the bits of -0.0 and 0.0 are one key here."""
        return any(_has_floats(of) for of in self.types)

    @property
    def annotations(self) -> tuple[Any, ...]:
        """What is stored of each column."""
        return tuple(part.annotation for part in self._parts)

    def getter(self, names: Sequence[str], skip: int = 0) -> Getter:
        """A function from a row with these columns to the key that a processor is given.

        Parameters:
            skip: how many fields are in front of them.
        """
        paths = [(skip + names.index(part.path[0]), part.path[1:]) for part in self._parts]

        def key(row: Any) -> tuple[Any, ...]:
            return tuple(_within(row[place], inner) for place, inner in paths)

        return key

    @property
    def in_front(self) -> list[str]:
        """What fields within columns are called, which Spark puts in front of rows."""
        return [part.name for part in self._parts if len(part.path) > 1]

    def put_in_front(self, names: Sequence[str]) -> Getter:
        """A function from the values of a row, with these columns, to the same behind those."""
        inner = [part.path for part in self._parts if len(part.path) > 1]
        paths = [(names.index(path[0]), path[1:]) for path in inner]
        return lambda row: (*(_within(row[place], path) for place, path in paths), *row)

    def of_timer(self, key: Any) -> Row:
        """The key that a timer's handler is given, of what is stored."""
        return self._row(
            *(
                None if value is None else part.given(value)
                for part, value in zip(self._parts, key_fields(key), strict=True)
            )
        )

    def as_of(self, other: GroupingKey, names: Sequence[str]) -> dict[str, str]:
        """What makes the columns of another key of the rows of this one.

        Parameters:
            names: of the columns that these rows have.

        Raises:
            StateTypeError: it has other types, or a name is taken.
        """
        if self.types != other.types:
            told = [[of.simpleString() for of in key.types] for key in (self, other)]
            raise StateTypeError(
                f"initial_state= is grouped by {told[0]}, and rows by {told[1]}: group both by "
                "columns of the same types"
            )
        made = {}
        for part, column in zip(self._parts, other.columns, strict=True):
            if part.expression is None and part.column == column:
                continue
            if column in names:
                raise StateTypeError(
                    f"initial_state= has a column {column!r} that it is not grouped by, and rows "
                    "are grouped by one of that name: rename it"
                )
            made[column] = part.expression or _quoted(part.path)
        return made


def _within(value: Any, path: Sequence[str]) -> Any:
    for name in path:
        value = None if value is None else value[name]
    return value


# ------------------------------------------------------------------------------------- columns


def _part(schema: sql.StructType, name: str) -> _Part:
    path = _path(schema, name)
    of, known = _found(schema, path), _split(name)[-1]
    column = f"{' '.join(path)} as key"
    for kinds, annotation in _PLAIN:
        if isinstance(of, kinds):
            given = _local if annotation is dt.datetime else _same
            if len(path) == 1:
                return _Part(path, known, path[0], None, annotation, given)
            return _Part(path, known, column, _quoted(path), annotation, given)
    expression = _as_text(of, _quoted(path), name)
    return _Part(path, known, column, expression, str, partial(_of_text, of))


def _path(schema: sql.StructType, name: object) -> tuple[str, ...]:
    """Where a column is, or a field within one: with the names that the schema has for them."""
    if not isinstance(name, str):
        raise StateTypeError(f"keys= has {name!r}: give names of columns")
    path: list[str] = []
    of: sql.DataType = schema
    for wanted in _split(name):
        names = of.names if isinstance(of, sql.StructType) else []
        alike = [found for found in names if found.lower() == wanted.lower()]
        if wanted not in names and len(alike) != 1:
            raise StateTypeError(
                f"keys= has {name!r}, and rows have no such column: they have "
                f"{', '.join(schema.names)}"
            )
        path.append(wanted if wanted in names else alike[0])
        assert isinstance(of, sql.StructType)
        of = of[path[-1]].dataType
    return tuple(path)


def _split(name: str) -> list[str]:
    """The parts of a name such as a.b, or `a.b`.c where a part has a dot itself."""
    parts, quotes = [""], False
    for letter in name:
        if letter == "`":
            quotes = not quotes
        elif letter == "." and not quotes:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def _found(schema: sql.StructType, path: Sequence[str]) -> sql.DataType:
    of: Any = schema
    for name in path:
        of = of[name].dataType
    found: sql.DataType = of
    return found


def _quoted(path: Sequence[str]) -> str:
    return ".".join("`" + name.replace("`", "``") + "`" for name in path)


def _as_text(of: sql.DataType, column: str, name: str) -> str:
    """The expression of a column as text: the same for all values that are equal in SQL."""
    if isinstance(of, sql.FloatType | sql.DoubleType):
        return f"cast({_without_minus_zero(of, column)} as string)"
    if isinstance(of, sql.DecimalType):
        return _decimal_as_text(of, column)
    if isinstance(of, sql.TimestampNTZType):
        return f"cast({column} as string)"
    if isinstance(of, sql.ArrayType | sql.StructType) and _is_json(of):
        value = _without_minus_zero(of, column)
        return f"if({column} is null, null, to_json(struct({value} as v), {_JSON}))"
    raise StateTypeError(
        f"keys= has {name!r} of type {of.simpleString()}, which rows cannot be grouped by: cast it "
        "to a string"
    )


def _without_minus_zero(of: sql.DataType, value: str, depth: int = 0) -> str:
    """The expression of a value with 0.0 in the place of each -0.0, as Spark's `groupBy` has it.

    Parameters:
        value: its expression.
        depth: in how many arrays it is; each needs a name for its elements.
    """
    if isinstance(of, sql.FloatType | sql.DoubleType):
        return f"if({value} = 0, cast(0 as {of.simpleString()}), {value})"
    if isinstance(of, sql.ArrayType):
        element = f"element_{depth}"
        made = _without_minus_zero(of.elementType, element, depth + 1)
        return value if made == element else f"transform({value}, {element} -> {made})"
    if isinstance(of, sql.StructType):
        parts = {field.name: f"{value}.{_quoted([field.name])}" for field in of}
        made_of = [_without_minus_zero(f.dataType, parts[f.name], depth) for f in of]
        if made_of == list(parts.values()):
            return value
        fields = zip(made_of, map(_quoted, zip(parts)), strict=True)
        made = ", ".join(f"{part} as {name}" for part, name in fields)
        return f"if({value} is null, null, struct({made}))"
    return value


def _has_floats(of: sql.DataType) -> bool:
    return _without_minus_zero(of, "value") != "value"


def _decimal_as_text(of: sql.DecimalType, column: str) -> str:
    """A number with all of its digits: a cast writes some as 1E-8, and not in each mode of SQL."""
    if not of.scale:
        return f"cast({column} as string)"
    digits = "9" * (of.precision - of.scale) + "D" + "9" * of.scale
    return f"replace(to_char({column}, 'MI{digits}'), ' ', '')"


def _is_json(of: sql.DataType) -> bool:
    """Whether values can be written as JSON and read again."""
    if isinstance(of, sql.ArrayType):
        return _is_json(of.elementType)
    if isinstance(of, sql.StructType):
        return all(_is_json(field.dataType) for field in of)
    simple = (*(kinds for kinds, _ in _PLAIN), sql.FractionalType, sql.TimestampNTZType)
    return any(isinstance(of, kinds) for kinds in simple)


# ------------------------------------------------------------------------------------ and back


def _same(value: Any) -> Any:
    return value


def _local(at: dt.datetime) -> dt.datetime:
    return at.astimezone().replace(tzinfo=None)


def _of_text(of: sql.DataType, text: str) -> Any:
    if isinstance(of, sql.ArrayType | sql.StructType):
        return _of_json(of, json.loads(text, parse_float=str)["v"])
    return _of_json(of, text)


def _of_json(of: sql.DataType, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(of, sql.ArrayType):
        return [_of_json(of.elementType, one) for one in value]
    if isinstance(of, sql.StructType):
        return Row(*of.names)(*(_of_json(field.dataType, value.get(field.name)) for field in of))
    for kinds, convert in _OF_JSON:
        if isinstance(of, kinds):
            return convert(value)
    return value


def _float32(text: str) -> float:
    found: float = struct.unpack("f", struct.pack("f", float(text)))[0]
    return found


_OF_JSON: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    (sql.DecimalType, lambda text: decimal.Decimal(str(text))),
    (sql.FloatType, _float32),
    (sql.DoubleType, float),
    (sql.BinaryType, base64.b64decode),
    (sql.DateType, dt.date.fromisoformat),
    (sql.TimestampNTZType, dt.datetime.fromisoformat),
    (sql.TimestampType, lambda text: _local(dt.datetime.fromisoformat(text))),
)
