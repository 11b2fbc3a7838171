"""Grouping keys: the grouping columns of a frame, as a key of statekit.

A key of statekit has whole numbers, texts, bytes, dates and instants. Spark writes a column of any
other type as text before it routes rows. So a query or a rescale computes the same key group from
the stored key as Spark computes from the row.
"""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from pyspark.sql import Row
from pyspark.sql import types as sql

from statekit.errors import StateTypeError
from statekit.functions.field_names import FieldNames, checked_names
from statekit.keygroup import key_fields
from statekit.records.union import Records
from statekit.spark.frames.columns import quoted
from statekit.spark.tws.sql_conversions import as_float32, as_local_time, java_double, plain_type

_JSON = (
    "map('timeZone', 'UTC', 'timestampFormat', \"yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX\", "
    "'timestampNTZFormat', \"yyyy-MM-dd'T'HH:mm:ss.SSSSSS\")"
)

_COMPUTED = " as key"
"""The suffix of columns with key fields whose stored form differs from the rows."""

Getter = Callable[[Any], tuple[Any, ...]]


class _Part(NamedTuple):
    """One column of a grouping key.

    Parameters:
        path: the column of a row, and the names of the fields within it.
        type: its SQL type.
        name: its name in the key that a processor receives.
        column: the column with the stored value.
        expression: the SQL expression of that column; None if rows contain it.
        annotation: the type of the stored value.
        from_stored: converts a stored value to the value that a timer's handler receives.
        to_stored: converts a value of a row to the stored value; None if only Spark does.
    """

    path: tuple[str, ...]
    type: sql.DataType
    name: str
    column: str
    expression: str | None
    annotation: Any
    from_stored: Callable[[Any], Any]
    to_stored: Callable[[Any], Any] | None


class GroupingKey:
    """The columns that rows are grouped by.

    Parameters:
        schema: the schema of the rows.
        names: names of columns, or of fields within them, as in `groupBy`.

    Attributes:
        rows: the schema of the rows.
        columns: the columns with the stored key.
        types: the SQL type of each of them.
        annotations: the stored type of each of them.
        schema: the types by the names that a processor receives.
        derived: SQL expressions of the columns that rows do not contain, by column name.
        in_front: names of key fields within columns. Spark puts these fields before the row's own.
        has_floats: whether a key has floats, so that -0.0 and 0.0 are the same key.

    Raises:
        StateTypeError: there is no such column, or it cannot be grouped by.

    >>> rows = sql.StructType().add("shop", "string").add("price", "decimal(5,2)")
    >>> key = GroupingKey(rows, ["shop", "price"])
    >>> key.columns, key.of_timer(("a", "0.50"))
    (('shop', 'price as key'), Row(shop='a', price=Decimal('0.50')))
    """

    def __init__(self, schema: sql.StructType, names: Sequence[str]) -> None:
        self.rows = schema
        self._parts = parts = [_part(schema, name) for name in names]
        self.columns = tuple(part.column for part in parts)
        if not names or len(set(self.columns)) != len(names):
            raise StateTypeError(f"keys={list(names)}: give one column to group by, or several")
        self.types = tuple(part.type for part in parts)
        self.annotations = tuple(part.annotation for part in parts)
        self.schema = sql.StructType([sql.StructField(part.name, part.type) for part in parts])
        self._row = Row(*self.schema.names)
        self.derived = {part.column: part.expression for part in parts if part.expression}
        self.in_front = [part.name for part in parts if len(part.path) > 1]
        self.has_floats = any(_without_minus_zero(of, "value") != "value" for of in self.types)

    def getter(self, skip: int = 0) -> Getter:
        """Return a function that reads the processor's key from a row.

        Parameters:
            skip: number of fields before the columns of a row.
        """
        return self._reader(self._parts, skip)

    def stored_key(self, skip: int = 0) -> Callable[[Any], Any]:
        """Return a function from a row to its stored key, a scalar or a tuple, computed without
        Spark.

        Parameters:
            skip: number of fields before the columns of a row.

        Raises:
            StateTypeError: only Spark computes it.
        """
        for part in self._parts:
            if part.to_stored is None:
                raise StateTypeError(
                    f"rows are grouped by {'.'.join(part.path)} of type "
                    f"{part.type.simpleString()}, and only Spark computes such a key: run it on "
                    "Spark, or group by a column of another type"
                )
        converts: list[Any] = [part.to_stored for part in self._parts]
        get = self.getter(skip)

        def stored(row: Any) -> Any:
            values = zip(converts, get(row), strict=True)
            key = tuple([None if value is None else convert(value) for convert, value in values])
            return key if len(key) > 1 else key[0]

        return stored

    def put_in_front(self) -> Getter:
        """Return a function that prepends the key fields that are nested in columns to the values
        of a row.
        """
        in_front = self._reader([part for part in self._parts if len(part.path) > 1])
        return lambda row: (*in_front(row), *row)

    def _reader(self, parts: Iterable[_Part], skip: int = 0) -> Getter:
        names = self.rows.names
        places = [(skip + names.index(part.path[0]), part.path[1:]) for part in parts]
        return lambda row: tuple([_field_at(row[place], path) for place, path in places])

    def of_timer(self, key: Any) -> Row:
        """Return the key that a timer's handler receives, from a stored key."""
        return self._row(
            *(
                None if value is None else part.from_stored(value)
                for part, value in zip(self._parts, key_fields(key), strict=True)
            )
        )

    def as_of(self, other: GroupingKey) -> dict[str, str]:
        """Return SQL expressions of another key's columns, for rows with this key.

        Raises:
            StateTypeError: the other key has other types, or a column has the name of a key column.
        """
        if self.types != other.types:
            key_types = [[type_.simpleString() for type_ in key.types] for key in (self, other)]
            raise StateTypeError(
                f"initial_state= is grouped by {key_types[0]}, and rows by {key_types[1]}: "
                "group both by columns of the same types"
            )
        expressions = {}
        for part, column in zip(self._parts, other.columns, strict=True):
            if part.expression is None and part.column == column:
                continue
            if column in self.rows.names:
                raise StateTypeError(
                    f"initial_state= has a column {column!r} that it is not grouped by, and rows "
                    "are grouped by one of that name: rename it"
                )
            expressions[column] = part.expression or _path_expression(part.path)
        return expressions


class ColumnNames(FieldNames):
    """The columns of rows, by present and former names. Like Spark, it ignores case.

    Parameters:
        key: the grouping key of the rows.
        records: the type of the rows.
        renamed: the present names of stored columns by their former ones.
    """

    def __init__(self, key: GroupingKey, records: Records, renamed: Mapping[str, str]) -> None:
        super().__init__(records, renamed)
        self._paths = {" ".join(path).lower() for path in _paths(key.rows)}
        self._columns = {name.lower(): name for name in (*key.columns, *key.rows.names)}

    def is_field(self, name: str) -> bool:
        return name.lower().removesuffix(_COMPUTED) in self._paths

    def present(self, stored: str) -> str | None:
        if super().is_field(stored):
            return stored
        return self._columns.get(stored.lower()) or super().present(stored)


def renamed_columns(key: GroupingKey, renamed: Mapping[str, str]) -> dict[str, str]:
    """Return the present names of stored columns by their former ones.

    Parameters:
        key: the grouping key of the rows.
        renamed: present names by former ones, as in `groupBy`.

    Raises:
        StateTypeError: it is not a dict of names, or rows have no such column.
    """
    columns: dict[str, str] = {}
    for former, now in checked_names("transform_with_state", renamed).items():
        path, _ = _found(key.rows, now, "renamed")
        computed = " ".join(path) + _COMPUTED
        column = computed if computed in key.columns else " ".join(path)
        before = " ".join(_split(former))
        columns |= {before: column, before + _COMPUTED: column}
    return columns


def _paths(type_: sql.DataType, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the paths of columns and of the fields within them."""
    for of in type_ if isinstance(type_, sql.StructType) else ():
        yield (*above, of.name)
        yield from _paths(of.dataType, (*above, of.name))


def _field_at(value: Any, path: Sequence[str]) -> Any:
    for name in path:
        value = None if value is None else value[name]
    return value


# ------------------------------------------------------------------------------------- columns


def _part(schema: sql.StructType, name: str) -> _Part:
    path, type_ = _found(schema, name, "keys")
    of_value, expression = plain_type(type_), _path_expression(path)
    field_name, column = _split(name)[-1], " ".join(path) + _COMPUTED
    if of_value is None:
        text, to_text = _as_text(type_, expression, name), _TO_TEXT.get(type(type_))
        from_text = partial(_from_text, type_)
        return _Part(path, type_, field_name, column, text, str, from_text, to_text)
    from_stored = as_local_time if of_value is dt.datetime else _same
    if len(path) == 1:
        return _Part(path, type_, field_name, path[0], None, of_value, from_stored, _same)
    return _Part(path, type_, field_name, column, expression, of_value, from_stored, _same)


def _found(
    schema: sql.StructType, name: object, option: str
) -> tuple[tuple[str, ...], sql.DataType]:
    """Return the path of a column or of a nested field, in the spelling of the schema, and its
    type.

    Parameters:
        option: which names it, for messages.
    """
    if not isinstance(name, str):
        raise StateTypeError(f"{option}= has {name!r}: give names of columns")
    path: list[str] = []
    type_: Any = schema
    for wanted in _split(name):
        names = type_.names if isinstance(type_, sql.StructType) else []
        similar = [name_found for name_found in names if name_found.lower() == wanted.lower()]
        if wanted not in names and len(similar) != 1:
            raise StateTypeError(
                f"{option}= has {name!r}, and rows have no such column: they have "
                f"{', '.join(schema.names)}"
            )
        path.append(wanted if wanted in names else similar[0])
        type_ = type_[path[-1]].dataType
    return tuple(path), type_


_NAME = r"(?:`(?:[^`]|``)+`|[^.`]+)"


def _split(name: str) -> list[str]:
    """Return the parts of a name such as a.b, or `a.b`.c if a part contains a dot."""
    if not re.fullmatch(rf"{_NAME}(?:\.{_NAME})*", name):
        return [name]
    parts = re.findall(_NAME, name)
    return [part[1:-1].replace("``", "`") if part[0] == "`" else part for part in parts]


def _path_expression(path: Sequence[str]) -> str:
    return ".".join(map(quoted, path))


def _as_text(type_: sql.DataType, column: str, name: str) -> str:
    """Return the expression of a column as text. Values that are equal in SQL have the same
    text.
    """
    if isinstance(type_, sql.FloatType | sql.DoubleType):
        return f"cast({_without_minus_zero(type_, column)} as string)"
    if isinstance(type_, sql.DecimalType):
        return _decimal_as_text(type_, column)
    if isinstance(type_, sql.TimestampNTZType):
        return f"cast({column} as string)"
    if isinstance(type_, sql.ArrayType | sql.StructType) and _is_json(type_):
        value = _without_minus_zero(type_, column)
        return f"if({column} is null, null, to_json(struct({value} as v), {_JSON}))"
    raise StateTypeError(
        f"keys= has {name!r} of type {type_.simpleString()}, which rows cannot be grouped by: "
        "cast it to a string"
    )


def _without_minus_zero(type_: sql.DataType, value: str, depth: int = 0) -> str:
    """Return the expression of a value with 0.0 for each -0.0, like Spark's `groupBy`.

    Parameters:
        value: its expression.
        depth: the number of arrays around it; each needs a name for its elements.
    """
    if isinstance(type_, sql.FloatType | sql.DoubleType):
        return f"if({value} = 0, cast(0 as {type_.simpleString()}), {value})"
    if isinstance(type_, sql.ArrayType):
        element = f"element_{depth}"
        converted = _without_minus_zero(type_.elementType, element, depth + 1)
        return value if converted == element else f"transform({value}, {element} -> {converted})"
    if isinstance(type_, sql.StructType):
        parts = {field.name: f"{value}.{quoted(field.name)}" for field in type_}
        expressions = [_without_minus_zero(f.dataType, parts[f.name], depth) for f in type_]
        if expressions == list(parts.values()):
            return value
        fields = zip(expressions, map(quoted, parts), strict=True)
        converted = ", ".join(f"{part} as {name}" for part, name in fields)
        return f"if({value} is null, null, struct({converted}))"
    return value


def _decimal_as_text(type_: sql.DecimalType, column: str) -> str:
    """Return a number with all of its digits. A cast writes some as 1E-8, depending on the SQL
    mode.
    """
    if not type_.scale:
        return f"cast({column} as string)"
    digits = "9" * (type_.precision - type_.scale) + "D" + "9" * type_.scale
    return f"replace(to_char({column}, 'MI{digits}'), ' ', '')"


_TO_TEXT: dict[type[sql.DataType], Callable[[Any], str]] = {
    sql.DoubleType: lambda value: java_double(value or 0.0),
    sql.DecimalType: "{:f}".format,
    sql.TimestampNTZType: lambda at: re.sub(r"(\.\d*?)0+$", r"\1", str(at)),
}
"""The text of a value as Spark writes it, of types for which that is simple."""


def _is_json(type_: sql.DataType) -> bool:
    """Return whether values can be written as JSON and read again."""
    if isinstance(type_, sql.ArrayType):
        return _is_json(type_.elementType)
    if isinstance(type_, sql.StructType):
        return all(_is_json(field.dataType) for field in type_)
    is_text = isinstance(type_, sql.FractionalType | sql.TimestampNTZType)
    return is_text or plain_type(type_) is not None


# ------------------------------------------------------------------------------------ and back


def _same(value: Any) -> Any:
    return value


def _from_text(type_: sql.DataType, text: str) -> Any:
    if isinstance(type_, sql.ArrayType | sql.StructType):
        return _from_json(type_, json.loads(text, parse_float=str)["v"])
    return _from_json(type_, text)


def _from_json(type_: sql.DataType, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(type_, sql.ArrayType):
        return [_from_json(type_.elementType, one) for one in value]
    if isinstance(type_, sql.StructType):
        return Row(*type_.names)(
            *(_from_json(field.dataType, value.get(field.name)) for field in type_)
        )
    for sql_types, convert in _FROM_JSON:
        if isinstance(type_, sql_types):
            return convert(value)
    return value


_FROM_JSON: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    (sql.DecimalType, lambda text: decimal.Decimal(str(text))),
    (sql.FloatType, lambda text: as_float32(float(text))),
    (sql.DoubleType, float),
    (sql.BinaryType, base64.b64decode),
    (sql.DateType, dt.date.fromisoformat),
    (sql.TimestampNTZType, dt.datetime.fromisoformat),
    (sql.TimestampType, lambda text: as_local_time(dt.datetime.fromisoformat(text))),
)
