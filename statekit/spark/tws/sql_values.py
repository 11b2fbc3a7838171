"""Values of Spark's SQL types: their stored form, and their form for processors.

A processor reads the values that Spark would return: plain tuples with nested `Row`s, naive
timestamps in the local time of the worker, 32-bit floats. A written value is converted as on Spark,
also to null. A value that would make a batch of Spark fail is refused.
"""

from __future__ import annotations

import array
import datetime as dt
import decimal
import json
import keyword
import re
from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import Any, get_args

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import Row
from pyspark.sql import types as sql

from statekit.errors import StateTypeError
from statekit.shown import shown, shown_text
from statekit.spark.tws.row_records import row_class
from statekit.spark.tws.sql_conversions import (
    INTEGER_BITS,
    RULES,
    Loss,
    MisfitError,
    Rule,
    as_python,
    decimal_rule,
    is_empty,
    is_sound,
    loss,
    wrong_type,
)

_Convert = Callable[[Any], Any]


def parsed_schema(schema: object, where: str) -> sql.StructType:
    """Return a schema, parsed if it is JSON, or DDL and there is a session.

    Parameters:
        where: its description for errors.

    Raises:
        StateTypeError: it is no schema, or it is DDL and there is no session.

    >>> parsed_schema(sql.StructType().add("n", "integer").json(), "schema")
    StructType([StructField('n', IntegerType(), True)])
    """
    found: object = schema
    if isinstance(schema, str):
        found = _of_json(schema) if schema.lstrip().startswith("{") else _of_ddl(schema, where)
    if not isinstance(found, sql.StructType):
        raise StateTypeError(
            f"{where}: {shown(schema, 200)} is no schema: give a StructType, its JSON, or DDL such "
            "as 'n int, s string'"
        )
    return found


def _of_json(text: str) -> sql.DataType | None:
    try:
        return sql.StructType.fromJson(json.loads(text))
    except (ValueError, LookupError, TypeError, AttributeError):
        return None


def _of_ddl(text: str, where: str) -> sql.DataType:
    try:
        return sql.StructType.fromDDL(text)
    except PySparkRuntimeError as error:
        if error.getCondition() != "SESSION_OR_CONTEXT_NOT_EXISTS":
            raise
    raise StateTypeError(
        f"{where}: only Spark can read the DDL {shown(text, 200)}, and there is no session. Give a "
        "StructType, such as StructType().add('n', 'integer'), or its JSON, or create a "
        "SparkSession before"
    )


class SqlValues:
    """Values of a struct type in state.

    Parameters:
        schema: of the values.
        where: their description for errors.
        name: of the stored type.
        as_key: for the keys of a map, which are stored as bytes that sort.

    Attributes:
        annotation: the stored type, a named tuple.
        schema: as given.

    Raises:
        StateTypeError: a type cannot be stored.

    >>> schema = sql.StructType().add("count", "long").add("mean", "double")
    >>> values = SqlValues(schema, "state 'held'", "held")
    >>> values.stored((3, 2.5))
    held(count=3, mean=2.5)
    >>> values.given(values.stored((3, 2.5)))
    (3, 2.5)
    """

    def __init__(
        self, schema: sql.StructType, where: str, name: str, *, as_key: bool = False
    ) -> None:
        self.schema = schema
        self._where = where
        fields = _typed_fields(schema, name, where, as_key)
        self.annotation: Any = _named_tuple(name, schema, fields)
        self._make = partial(tuple.__new__, self.annotation)  # `_make` takes three times as long
        self._is_unchanged = _are_unchanged(fields)
        self._puts = [field.put for field in fields]
        self._given = [field.got for field in fields]
        self._row: Callable[[Sequence[Any]], Row] = partial(tuple.__new__, row_class(schema.names))
        self._is_given_as_stored = not any(self._given)

    def stored(self, value: Any) -> Any:
        """Return the stored form of a value.

        Raises:
            StateTypeError: Spark does not store it either, or not in a form that its reader could
                use.
        """
        if self._is_unchanged(value):
            return self._make(value)
        try:
            return self._make(_struct_put(self.schema, self._puts, self._parts(value)))
        except MisfitError as error:
            raise StateTypeError(
                f"{self._where} cannot hold {shown(value, 200)}: {shown_text(error)}. Its schema "
                f"is {self.schema.simpleString()}; nothing of this epoch is committed"
            ) from None

    def _parts(self, value: Any) -> Any:
        """Return the parts of a value, one per field, as on Spark: also of arrays and iterators."""
        if isinstance(value, Mapping) or not isinstance(value, Iterable):
            return value
        parts = tuple(value)
        return value if isinstance(value, str) and len(parts) != len(self._puts) else parts

    def given(self, stored: Any) -> tuple[Any, ...]:
        """Return the processor's form of a stored value."""
        if self._is_given_as_stored:
            return tuple(stored)
        return tuple(_each(self._given, stored))

    def given_row(self, stored: Any) -> Row:
        """Return the stored value as a `Row`, like `MapState.getValue`."""
        return self._row(_each(self._given, stored))


def widths(of: sql.DataType, path: str) -> Iterator[tuple[str, int]]:
    """Yield the bit widths of the numbers in a type, by their path.

    >>> schema = sql.StructType().add("n", "short").add("of", sql.ArrayType(sql.DoubleType()))
    >>> dict(widths(schema, "seen"))
    {'seen.n': 16, 'seen.of[]': 64}
    """
    if isinstance(of, sql.StructType):
        for field in of:
            yield from widths(field.dataType, f"{path}.{field.name}")
    elif isinstance(of, sql.ArrayType):
        yield from widths(of.elementType, f"{path}[]")
    elif isinstance(of, sql.MapType):
        yield from widths(of.keyType, f"{path}{{key}}")
        yield from widths(of.valueType, f"{path}{{value}}")
    elif (bits := _BITS.get(type(of))) is not None:
        yield path, bits


_BITS = INTEGER_BITS | {sql.FloatType: 32, sql.DoubleType: 64}


def _each(converts: Iterable[_Convert | None], values: Iterable[Any]) -> list[Any]:
    """Return each value after its conversion, if there is a conversion. None stays None."""
    return [
        value if value is None or convert is None else convert(value)
        for convert, value in zip(converts, values, strict=False)
    ]


def _named_tuple(name: str, schema: sql.StructType, fields: Sequence[Rule]) -> Any:
    """Return a class of the stored type. A field that was added later is None in older values."""
    names = [plain_name(field) for field in schema.names]
    if len(set(names)) != len(names):  # the same one twice
        names = [f"{field}_{number}" for number, field in enumerate(names)]
    annotations = [field_type.annotation | None for field_type in fields]
    make: Any = namedtuple  # mypy accepts only literals here
    cls = make(plain_name(name), names, defaults=[None] * len(names))
    cls.__annotations__ = dict(zip(names, annotations, strict=True))
    return cls


def plain_name(name: str) -> str:
    """Return a valid Python name, different for each name.

    >>> plain_name("count"), plain_name("my count"), plain_name("class")
    ('count', 's_my_20_count', 's_class')
    """
    is_valid = name.isidentifier() and name.isascii() and not keyword.iskeyword(name)
    if is_valid and not name.startswith("_"):
        return name
    return "s_" + re.sub(r"[^A-Za-z0-9_]", lambda match: f"_{ord(match[0]):x}_", name)


# ---------------------------------------------------------------------------------------- types


def _typed_fields(schema: sql.StructType, name: str, where: str, as_key: bool) -> list[Rule]:
    """Return the types of the fields of a struct. Classes of nested structs have the path as
    name.
    """
    return [
        _typed(field.dataType, f"{name}_{field.name}", f"{where}, field {field.name!r}", as_key)
        for field in schema
    ]


def _typed(of: sql.DataType, name: str, where: str, as_key: bool) -> Rule:
    """Return the stored form of values of a type.

    Raises:
        StateTypeError: values of the type cannot be stored.
    """
    lost = loss(where, of)
    if isinstance(of, sql.ArrayType):
        element = _typed(of.elementType, name, where, as_key)
        items = _array(element, lost, in_python=of.needConversion())
        return _array_in_key(items) if as_key else items
    if isinstance(of, sql.MapType) and not as_key:
        key = _typed(of.keyType, f"{name}_key", where, as_key)
        values_type = _typed(of.valueType, f"{name}_value", where, as_key)
        return _map(key, values_type, lost, in_python=of.needConversion())
    if isinstance(of, sql.StructType):
        return _nested(of, name, _typed_fields(of, name, where, as_key))
    rule = decimal_rule(of) if isinstance(of, sql.DecimalType) else RULES.get(type(of))
    if rule is None:
        raise StateTypeError(
            f"{where}: state of type {of.simpleString()} is not supported"
            + (" as the key of a map" if as_key else "")
            + ": store it as a string, a number or a struct"
        )

    condition = rule.kept.format("value") or "False"
    names = {"rule": rule.put, "as_python": as_python, "lost": lost}
    put = _compiled(f"value if {condition} else rule(as_python(value), lost)", names)
    if as_key and isinstance(of, sql.DecimalType):
        return Rule(str, partial(_decimal_in_key, put), decimal.Decimal)
    is_null_key = as_key and isinstance(of, sql.NullType)  # a key needs a type that has values
    return rule._replace(annotation=bool if is_null_key else rule.annotation, put=put)


def _decimal_in_key(put: _Convert, value: Any) -> str | None:
    """Return a decimal as text. All values of a type have the same number of digits after the
    point.
    """
    decimal = put(value)
    return None if decimal is None else f"{decimal:f}"


def _array(element: Rule, lost: Loss, *, in_python: bool) -> Rule:
    def put(value: Any) -> Any:
        value = _without_numpy(value)
        if isinstance(value, bytes | bytearray) and not in_python:  # Java's bytes have a sign
            value = memoryview(value).cast("b")
        elif type(value) not in (list, tuple, array.array):
            if not in_python or is_empty(value):
                return lost(value)
            if not isinstance(value, Iterable):
                raise wrong_type(value, "list")
        return _each(repeat(element.put), value)

    def got(stored: Sequence[Any]) -> list[Any]:
        return _each(repeat(element.got), stored)

    return Rule(list[element.annotation | None], put, got if element.got else None)  # type: ignore[name-defined]


def _without_numpy(values: Any) -> Any:
    """Return NumPy arrays and pandas series as lists. Spark itself fails on them."""
    value = as_python(values)
    if type(value) in (list, tuple, array.array, memoryview):
        return value
    convert = getattr(value, "tolist", None)
    return value if convert is None else convert()


def _array_in_key(items: Rule) -> Rule:
    (element,) = get_args(items.annotation)

    def put(value: Any) -> tuple[Any, ...] | None:
        converted = items.put(value)
        return None if converted is None else tuple(converted)

    return Rule(tuple[element, ...], put, items.got or list)  # type: ignore[valid-type]


def _map(key: Rule, values_type: Rule, lost: Loss, *, in_python: bool) -> Rule:
    """Return the type of a map; `in_python` as for an array."""

    def put(value: Any) -> Any:
        value = as_python(value)
        if not isinstance(value, Mapping):
            if in_python and not is_empty(value):
                raise wrong_type(value, "dict")
            return lost(value)
        keys = _each(repeat(key.put), value)
        values = _each(repeat(values_type.put), value.values())
        try:
            converted = dict(zip(keys, values, strict=True))
        except TypeError:
            raise MisfitError("keys of its type cannot be the keys of a dict") from None
        if None in converted:  # Spark fails, or reads 0 for it
            odd = next(given for given, stored in zip(value, keys, strict=True) if stored is None)
            raise MisfitError(f"{shown(odd, 80)} is no key of the map")
        return converted

    def got(stored: dict[Any, Any]) -> dict[Any, Any]:
        keys = _each(repeat(key.got), stored)
        return dict(zip(keys, _each(repeat(values_type.got), stored.values()), strict=True))

    changes = got if key.got or values_type.got else None
    return Rule(dict[key.annotation, values_type.annotation | None], put, changes)  # type: ignore[name-defined]


def _nested(schema: sql.StructType, name: str, fields: Sequence[Rule]) -> Rule:
    cls = _named_tuple(name, schema, fields)
    row = Row(*schema.names)
    puts, gots = [field.put for field in fields], [field.got for field in fields]

    def put(value: Any) -> Any:
        value = as_python(value)
        if not isinstance(value, _NO_OBJECTS) and hasattr(value, "__dict__"):
            value = vars(value)
        return cls._make(_struct_put(schema, puts, value))

    def got(stored: Any) -> Row:
        return row(*_each(gots, stored))

    return Rule(cls, put, got)


_NO_OBJECTS = (list, tuple, Mapping, str, bytes, int, float, type, sql.VariantVal)
"""Classes whose instances are never treated as structs by their attributes. Includes their
subclasses.
"""


def _struct_put(schema: sql.StructType, puts: Sequence[_Convert], value: Any) -> list[Any]:
    """Return the values of a struct: by name from a dict, otherwise by position."""
    if isinstance(value, Mapping):
        value = [value.get(name) for name in schema.names]
    if not isinstance(value, list | tuple):
        raise wrong_type(value, "tuple")
    if len(value) != len(puts):
        raise MisfitError(f"it has {len(value)} values, and there are {len(puts)} fields")
    return _each(puts, value)


def _are_unchanged(fields: Sequence[Rule]) -> Callable[[Any], bool]:
    """Return a compiled test that a value is a tuple whose parts are stored unchanged."""
    if not all(field.kept for field in fields):
        return lambda value: False
    terms = ["type(value) is tuple", f"len(value) == {len(fields)}"]
    for at, field in enumerate(fields):
        part = f"value[{at}]"
        terms.append(f"({part} is None or {field.kept.format(part)})")
    return _compiled(" and ".join(terms), {})


def _compiled(expression: str, names: dict[str, Any]) -> Callable[[Any], Any]:
    """Return a function of `value`."""
    namespace: dict[str, Any] = {"dt": dt, "is_sound": is_sound, **names}
    exec(f"def function(value):\n return {expression}", namespace)
    function: Callable[[Any], Any] = namespace["function"]
    return function
