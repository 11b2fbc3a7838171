"""Values of Spark's SQL types, as a stateful processor puts them into state and gets them back.

What lives here: `SqlValues`, what a struct type means for state: the type that is stored, and the
way there and back. What does not: the states (`processor_states`).

What a processor gets back is what Spark would give it: plain tuples with nested `Row`s, naive
timestamps in the local time of the worker, 32-bit floats. What it may put is what Spark takes
without loss: Spark stores null where a value is of another type, such as an int for a double, and
cuts off the upper bits of an int that is too large. Here an int becomes a double, and everything
else is refused.
"""

from __future__ import annotations

import datetime as dt
import decimal
import keyword
import re
import struct
from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from pyspark.sql import Row
from pyspark.sql import types as sql

from statekit.errors import StateTypeError
from statekit.spark.processor_rows import row_class

__all__ = ["SqlValues", "parsed_schema", "plain_name", "widths"]

_Convert = Callable[[Any], Any]


class _MisfitError(Exception):
    """A value that is not of its type."""


class _Type(NamedTuple):
    """What a Spark type means for state.

    Parameters:
        annotation: what is stored.
        put: from what a processor gives to what is stored; never given None.
        got: the other way; None for no change.
        kept: a test of values that `put` leaves as they are, as source text; none if it is empty.
    """

    annotation: Any
    put: _Convert
    got: _Convert | None = None
    kept: str = ""


class SqlValues:
    """What a struct type means for state.

    Parameters:
        schema: of the values.
        where: what they are, for errors.
        name: of the type that is stored.
        as_key: for the keys of a map, which are stored as bytes that sort.

    Attributes:
        annotation: the type that is stored, a named tuple.
        schema: as given.

    Raises:
        StateTypeError: a type cannot be stored.

    >>> schema = sql.StructType().add("count", "long").add("mean", "double")
    >>> values = SqlValues(schema, "state 'held'", "held")
    >>> values.stored((3, 2))
    held(count=3, mean=2.0)
    >>> values.given(values.stored((3, 2)))
    (3, 2.0)
    """

    def __init__(
        self, schema: sql.StructType, where: str, name: str, *, as_key: bool = False
    ) -> None:
        self.schema = schema
        self._where = where
        self._fields = _typed_fields(schema, name, where, as_key)
        self.annotation: Any = _named_tuple(name, schema, self._fields)
        self._make = partial(tuple.__new__, self.annotation)  # `_make` takes three times as long
        self._is_kept = _kept(self._fields)
        self._given = [field.got for field in self._fields]
        self._row: Callable[[Sequence[Any]], Row] = partial(tuple.__new__, row_class(schema.names))
        self._is_given_as_stored = not any(self._given)

    def stored(self, value: Any) -> Any:
        """What is stored of a value.

        Raises:
            StateTypeError: it does not fit the schema.
        """
        if self._is_kept(value):
            return self._make(value)
        try:
            return self._make(_struct_put(self.schema, self._fields, self._parts(value)))
        except _MisfitError as error:
            raise StateTypeError(
                f"{self._where} cannot hold {value!r:.200}: {error}. Its schema is "
                f"{self.schema.simpleString()}; nothing of this epoch is committed"
            ) from None

    def _parts(self, value: Any) -> Any:
        """Whatever has as many parts as there are fields, as Spark takes it: arrays, iterators."""
        if isinstance(value, Mapping) or not isinstance(value, Iterable):
            return value
        parts = tuple(value)
        return value if isinstance(value, str) and len(parts) != len(self._fields) else parts

    def given(self, stored: Any) -> tuple[Any, ...]:
        """What a processor is given of what is stored."""
        if self._is_given_as_stored:
            return tuple(stored)
        return tuple(_given(self._given, stored))

    def given_row(self, stored: Any) -> Row:
        """The same as a `Row`, which is what `MapState.getValue` gives."""
        return self._row(_given(self._given, stored))


def parsed_schema(schema: object, where: str) -> sql.StructType:
    """A schema that was given as such or as DDL.

    Raises:
        StateTypeError: it is neither.
    """
    if isinstance(schema, str):
        schema = sql.StructType.fromDDL(schema)
    if not isinstance(schema, sql.StructType):
        raise StateTypeError(f"{where}: give its schema as a StructType or a text like 'n int'")
    return schema


def widths(of: sql.DataType, path: str) -> Iterator[tuple[str, int]]:
    """How many bits the numbers in a type have, by the way to them.

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


_INTEGER_BITS: dict[type[sql.DataType], int] = {
    sql.ByteType: 8,
    sql.ShortType: 16,
    sql.IntegerType: 32,
    sql.LongType: 64,
}

_BITS = _INTEGER_BITS | {sql.FloatType: 32, sql.DoubleType: 64}


def _given(converts: Sequence[_Convert | None], stored: Sequence[Any]) -> list[Any]:
    return [
        value if value is None or convert is None else convert(value)
        for convert, value in zip(converts, stored, strict=True)
    ]


def _named_tuple(name: str, schema: sql.StructType, fields: Sequence[_Type]) -> Any:
    """A class of the stored type. A field that a schema gets later is None in what was stored."""
    names = [plain_name(field) for field in schema.names]
    if len(set(names)) != len(names):  # the same one twice
        names = [f"{field}_{number}" for number, field in enumerate(names)]
    annotations = [found.annotation | None for found in fields]
    make: Any = namedtuple  # of which mypy takes nothing but literals
    made = make(plain_name(name), names, defaults=[None] * len(names))
    made.__annotations__ = dict(zip(names, annotations, strict=True))
    return made


def plain_name(name: str) -> str:
    """A name in letters that Python takes, another one for each other name.

    >>> plain_name("count"), plain_name("my count"), plain_name("class")
    ('count', 's_my_20_count', 's_class')
    """
    if _is_name(name) and name.isascii():
        return name
    return "s_" + re.sub(r"[^A-Za-z0-9_]", lambda found: f"_{ord(found[0]):x}_", name)


def _is_name(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name) and not name.startswith("_")


# ---------------------------------------------------------------------------------------- types


def _typed_fields(schema: sql.StructType, name: str, where: str, as_key: bool) -> list[_Type]:
    """What the fields of a struct mean; classes of nested structs are named by the way to them."""
    return [
        _typed(field.dataType, f"{name}_{field.name}", f"{where}, field {field.name!r}", as_key)
        for field in schema
    ]


def _typed(of: sql.DataType, name: str, where: str, as_key: bool) -> _Type:
    """What a type means.

    Raises:
        StateTypeError: values of it cannot be stored.
    """
    if isinstance(of, sql.ArrayType):
        element = _typed(of.elementType, name, where, as_key)
        return _array_in_key(element) if as_key else _array(element)
    if isinstance(of, sql.MapType) and not as_key:
        key = _typed(of.keyType, f"{name}_key", where, as_key)
        return _map(key, _typed(of.valueType, f"{name}_value", where, as_key))
    if isinstance(of, sql.StructType):
        return _nested(of, name, _typed_fields(of, name, where, as_key))
    if isinstance(of, sql.DecimalType):
        put = partial(_decimal, of)
        if as_key:  # all values of a type have as many digits behind the point
            return _Type(str, lambda value: f"{put(value):f}", decimal.Decimal)
        return _Type(decimal.Decimal, put)
    for kinds, found in _SIMPLE:
        if isinstance(of, kinds):
            return found
    raise StateTypeError(
        f"{where}: state of type {of.simpleString()} is not supported"
        + (" as the key of a map" if as_key else "")
        + ": store it as a string, a number or a struct"
    )


def _whole(bits: int) -> _Type:
    kept = f"type({{0}}) is int and -(1 << {bits - 1}) <= {{0}} < 1 << {bits - 1}"
    return _Type(int, partial(_integer, bits), kept=kept)


def _integer(bits: int, value: Any) -> int:
    value = _as_python(value)
    if type(value) not in (int, bool):
        raise _MisfitError(f"{value!r:.80} ({type(value).__name__}) is no int")
    if not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise _MisfitError(f"{value} has more than {bits} bits")
    return int(value)


def _double(value: Any) -> float:
    value = _as_python(value)
    if type(value) not in (float, int, bool):
        raise _MisfitError(f"{value!r:.80} ({type(value).__name__}) is no float")
    try:
        return float(value)
    except OverflowError:
        raise _MisfitError(f"{value:.80} is too large for a double") from None


def _float(value: Any) -> float:
    found = _double(value)
    try:
        rounded: float = struct.unpack("f", struct.pack("f", found))[0]
    except OverflowError:  # Java makes an infinity of it
        return float("inf") if found > 0 else float("-inf")
    return rounded


def _boolean(value: Any) -> bool:
    value = _as_python(value)
    if type(value) is not bool:
        raise _MisfitError(f"{value!r:.80} ({type(value).__name__}) is no bool")
    return value


def _text(value: Any) -> str:
    value = _as_python(value)
    if isinstance(value, str):
        return str(value)
    if type(value) is int:
        return str(value)
    if type(value) is bool:
        return str(value).lower()
    raise _MisfitError(f"{value!r:.80} ({type(value).__name__}) is no str")


def _binary(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    raise _MisfitError(f"{value!r:.80} ({type(value).__name__}) is no bytes")


def _date(value: Any) -> dt.date:
    value = _as_python(value)
    if isinstance(value, dt.datetime):
        return value.date()
    if not isinstance(value, dt.date):
        raise _MisfitError(f"{value!r:.80} ({type(value).__name__}) is no date")
    return value


def _instant(value: Any) -> dt.datetime:
    """An instant in UTC; what has no time zone is in the local time of the worker, as in Spark."""
    value = _as_python(value)
    if not isinstance(value, dt.datetime):
        raise _MisfitError(f"{value!r:.80} ({type(value).__name__}) is no datetime")
    return value.astimezone(dt.UTC)


def _local(instant: dt.datetime) -> dt.datetime:
    return instant.astimezone().replace(tzinfo=None)


def _without_zone(value: Any) -> dt.datetime:
    value = _as_python(value)
    if not isinstance(value, dt.datetime) or value.tzinfo is not None:
        raise _MisfitError(
            f"{value!r:.80} ({type(value).__name__}) is no datetime without a time zone"
        )
    return value.replace(tzinfo=dt.UTC)


def _decimal(of: sql.DecimalType, value: Any) -> decimal.Decimal:
    value = _as_python(value)
    if isinstance(value, int):
        value = decimal.Decimal(value)
    if not isinstance(value, decimal.Decimal) or not value.is_finite():
        raise _MisfitError(f"{value!r:.80} ({type(value).__name__}) is no finite Decimal")
    with decimal.localcontext(prec=2 * of.precision + value.adjusted().bit_length() + 80):
        rounded = value.quantize(decimal.Decimal(1).scaleb(-of.scale), decimal.ROUND_HALF_UP)
    if rounded and rounded.adjusted() >= of.precision - of.scale:
        raise _MisfitError(f"{value} has more digits than {of.simpleString()}")
    return rounded


def _array(element: _Type) -> _Type:
    def put(value: Any) -> list[Any]:
        value = _as_python(value)
        if not isinstance(value, list | tuple):
            raise _MisfitError(f"{value!r:.80} ({type(value).__name__}) is no list")
        return [None if one is None else element.put(one) for one in value]

    def got(stored: list[Any]) -> list[Any]:
        return _given([element.got] * len(stored), stored)

    return _Type(list[element.annotation | None], put, got if element.got else None)  # type: ignore[name-defined]


def _array_in_key(element: _Type) -> _Type:
    items = _array(element)

    def got(stored: tuple[Any, ...]) -> list[Any]:
        return _given([element.got] * len(stored), stored)

    return _Type(tuple[element.annotation | None, ...], lambda value: tuple(items.put(value)), got)  # type: ignore[name-defined]


def _map(key: _Type, held: _Type) -> _Type:
    def put(value: Any) -> dict[Any, Any]:
        if not isinstance(value, Mapping):
            raise _MisfitError(f"{value!r:.80} ({type(value).__name__}) is no dict")
        if None in value:
            raise _MisfitError("a map has no key None")
        return {key.put(k): None if v is None else held.put(v) for k, v in value.items()}

    def got(stored: dict[Any, Any]) -> dict[Any, Any]:
        keys, values = _given([key.got] * len(stored), [*stored]), stored.values()
        return dict(zip(keys, _given([held.got] * len(stored), [*values]), strict=True))

    changes = got if key.got or held.got else None
    return _Type(dict[key.annotation, held.annotation | None], put, changes)  # type: ignore[name-defined]


def _nested(schema: sql.StructType, name: str, fields: Sequence[_Type]) -> _Type:
    made = _named_tuple(name, schema, fields)
    row, converts = Row(*schema.names), [field.got for field in fields]

    def put(value: Any) -> Any:
        return made._make(_struct_put(schema, fields, value))

    def got(stored: Any) -> Row:
        return row(*_given(converts, stored))

    return _Type(made, put, got)


def _struct_put(schema: sql.StructType, fields: Sequence[_Type], value: Any) -> list[Any]:
    """The values of a struct, by position, or by name if it is a dict."""
    if isinstance(value, Mapping):
        value = [value.get(name) for name in schema.names]
    if not isinstance(value, list | tuple):
        raise _MisfitError(f"{value!r:.80} ({type(value).__name__}) is no tuple")
    if len(value) != len(fields):
        raise _MisfitError(f"it has {len(value)} values, and there are {len(fields)} fields")
    return [
        None if one is None else field.put(one) for field, one in zip(fields, value, strict=True)
    ]


def _as_python(value: Any) -> Any:
    """Without NumPy's and pandas' classes, as Spark takes values."""
    if type(value) in _PYTHONS:
        return value
    for name in ("to_pytimedelta", "to_pydatetime", "tolist"):
        convert = getattr(value, name, None)
        if convert is not None:
            return convert()
    return value


_PYTHONS = frozenset((bool, int, float, str, bytes, dt.date, dt.datetime, decimal.Decimal))

_SIMPLE: tuple[tuple[type[sql.DataType] | tuple[type[sql.DataType], ...], _Type], ...] = (
    (sql.BooleanType, _Type(bool, _boolean, kept="type({0}) is bool")),
    *((kind, _whole(bits)) for kind, bits in _INTEGER_BITS.items()),
    (sql.FloatType, _Type(float, _float)),
    (sql.DoubleType, _Type(float, _double, kept="type({0}) is float")),
    (
        (sql.StringType, sql.CharType, sql.VarcharType),
        _Type(str, _text, kept="type({0}) is str"),
    ),
    (sql.BinaryType, _Type(bytes, _binary, kept="type({0}) is bytes")),
    (sql.DateType, _Type(dt.date, _date, kept="type({0}) is dt.date")),
    (sql.TimestampNTZType, _Type(dt.datetime, _without_zone, lambda at: at.replace(tzinfo=None))),
    (
        sql.TimestampType,
        _Type(
            dt.datetime,
            _instant,
            _local,
            kept="type({0}) is dt.datetime and {0}.tzinfo is dt.UTC",
        ),
    ),
)


def _kept(fields: Sequence[_Type]) -> Callable[[Any], bool]:
    """Whether a value is a tuple whose parts are all stored as they are, compiled for a struct."""
    if not all(field.kept for field in fields):
        return lambda value: False
    terms = ["type(value) is tuple", f"len(value) == {len(fields)}"]
    for at, field in enumerate(fields):
        part = f"value[{at}]"
        terms.append(f"({part} is None or {field.kept.format(part)})")
    names: dict[str, Any] = {"dt": dt}
    exec(f"def kept(value):\n return {' and '.join(terms)}", names)
    kept: Callable[[Any], bool] = names["kept"]
    return kept
