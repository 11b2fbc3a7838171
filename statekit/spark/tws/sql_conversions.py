"""Spark's conversion of values that a processor writes to state: one rule per simple SQL type.

Spark pickles a value in Python and reads it in the JVM (`EvaluatePython.makeFromJava`). A value of
a class that the type does not accept becomes null there, and an int loses the excess bits. Dates
and instants are converted in Python, which raises an error. The rules do the same, so a processor
reads the values from state that it would read on Spark. Each loss is logged.
"""

from __future__ import annotations

import array
import datetime as dt
import decimal
import logging
import math
import re
import struct
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

from pyspark.sql import types as sql

from statekit.shown import shown, type_name

_logger = logging.getLogger("statekit.spark.sql_conversions")

Loss = Callable[..., Any]
"""Logs that Spark stores another value than the one given. Takes the value and the stored one, by
default null, and returns the stored one.
"""


class MisfitError(Exception):
    """The value cannot be stored: Spark does not store it either, or not in a usable form."""


class Rule(NamedTuple):
    """The conversion of values of a field's type.

    Parameters:
        annotation: the stored type.
        put: converts a value of a processor to the stored one; never called with None, may return
            it. In `RULES` it is called with a value without classes of NumPy and pandas, and the
            `Loss` of the field.
        got: the inverse, for the processor; None for no change.
        kept: a test of values that `put` does not change, as source text; empty for none.
    """

    annotation: Any
    put: Callable[..., Any]
    got: Callable[[Any], Any] | None = None
    kept: str = ""


def wrong_type(value: Any, wanted: str) -> MisfitError:
    """Return the error for a value of a wrong type."""
    return MisfitError(f"{shown(value, 80)} ({type_name(value)}) is no {wanted}")


_LOGGED: set[tuple[str, str]] = set()
"""The fields and classes of logged values. Each pair is logged once per process."""


def loss(where: str, of: sql.DataType) -> Loss:
    """Return a function that logs the losses of one field.

    Parameters:
        where: the field, for messages.
        of: its type.
    """

    def lost(value: Any, stored: Any = None) -> Any:
        if not _is_read_by_spark(value):
            raise wrong_type(value, of.simpleString())
        logged = (where, type_name(value))
        if logged not in _LOGGED:
            _LOGGED.add(logged)
            _logger.warning(
                "%s of type %s is given %.80r (%s). As on Spark, %s is stored. Give it a value of "
                "its type. This is logged once for each class of values",
                where,
                of.simpleString(),
                value,
                logged[1],
                "null" if stored is None else f"{shown(stored, 80)}",
            )
        return stored

    return lost


def as_python(value: Any) -> Any:
    """Return a value without classes of NumPy and pandas, converted as in Spark."""
    if type(value) in _PYTHONS or isinstance(value, tuple | list | dict):
        return value
    for name in ("to_pytimedelta", "to_pydatetime"):
        if (convert := getattr(value, name, None)) is not None:
            return convert()
    return value.tolist() if getattr(value, "ndim", None) == 0 else value  # a NumPy scalar


_PYTHONS = frozenset((bool, int, float, str, bytes, dt.date, dt.datetime, decimal.Decimal))

_READ_BY_SPARK = frozenset(
    (
        *_PYTHONS,
        *(bytearray, complex, list, tuple, set, frozenset, dict, OrderedDict, array.array),
        *(dt.time, dt.timedelta),
    )
)


def is_empty(value: Any) -> bool:
    """Return whether a value is falsy. Spark passes such a value to the JVM without a
    conversion.
    """
    return type(value) in _READ_BY_SPARK and not value


def _is_read_by_spark(value: Any) -> bool:
    """Return whether the JVM can read the pickled value."""
    if type(value) in (dt.datetime, dt.time):
        return value.tzinfo is None
    if type(value) is decimal.Decimal:
        return value.is_finite() or value.is_qnan()
    return type(value) in _READ_BY_SPARK


# ---------------------------------------------------------------------------------------- numbers


def _boolean(value: Any, lost: Loss) -> Any:
    return value if type(value) is bool else lost(value)


def _integer(bits: int) -> Rule:
    half = 1 << bits - 1

    def put(value: Any, lost: Loss) -> Any:
        if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
            return lost(value)
        if -half <= value < half:
            return value
        return lost(value, (value + half) % (2 * half) - half)

    return Rule(int, put, kept=f"type({{0}}) is int and -{half} <= {{0}} < {half}")


def _double(value: Any, lost: Loss) -> Any:
    if type(value) is float:
        return value
    is_nan = type(value) is decimal.Decimal and value.is_qnan()  # for which Java has a double only
    return float("nan") if is_nan else lost(value)


def _float(value: Any, lost: Loss) -> Any:
    converted = _double(value, lost)
    return None if converted is None else as_float32(converted)


def as_float32(value: float) -> float:
    """Return the closest 32-bit float, as Java computes it."""
    try:
        rounded: float = struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)
    return rounded


def decimal_rule(of: sql.DecimalType) -> Rule:
    """Return the rule of decimals with this precision and scale."""

    def put(value: Any, lost: Loss) -> Any:
        if type(value) is not decimal.Decimal or not value.is_finite():
            return lost(value)
        with decimal.localcontext(prec=2 * of.precision + value.adjusted().bit_length() + 80):
            rounded = value.quantize(decimal.Decimal(1).scaleb(-of.scale), decimal.ROUND_HALF_UP)
        if not rounded:
            return rounded.copy_abs()  # Java has no -0
        if rounded.adjusted() >= of.precision - of.scale:
            raise MisfitError(f"{value} has more digits than {of.simpleString()}")
        return rounded

    return Rule(decimal.Decimal, put)


# ------------------------------------------------------------------------------- texts and bytes

_SURROGATE = re.compile("[\ud800-\udfff]")


def is_sound(text: str) -> bool:
    """Return whether a text can be encoded as UTF-8."""
    return _SURROGATE.search(text) is None


def _text(value: Any, lost: Loss) -> Any:
    if isinstance(value, str):
        value = str.__str__(value)
        return value if is_sound(value) else lost(value, _SURROGATE.sub("\ufffd", value))
    if type(value) is int:
        return str(value)
    if type(value) is bool:
        return str(value).lower()
    if type(value) is float:
        return java_double(value)
    if type(value) is decimal.Decimal and _is_read_by_spark(value):
        return str(value if value else value.copy_abs())
    raise wrong_type(value, "str, and Spark stores how Java shows its object")


def java_double(value: float) -> str:
    """Return a double as Java writes it (`Double.toString`, from Java 19 on the shortest text)."""
    if value != value or value in (float("inf"), float("-inf")):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    shortest = decimal.Decimal(repr(value)).normalize()
    if len(shortest.as_tuple().digits) == 1:  # Java takes the closest of those with two digits
        closest = decimal.Decimal(f"{value:.1e}")
        shortest = closest if float(closest) == value else shortest
    sign, digits, _ = shortest.as_tuple()
    text, power = "".join(map(str, digits)), shortest.adjusted() if value else 0
    if not -3 <= power < 7:
        mantissa = f"{text[0]}.{text[1:].rstrip('0') or '0'}E{power}"
    else:
        text = "0" * -power + text.ljust(power + 1, "0")
        point = max(power, 0) + 1
        mantissa = f"{text[:point]}.{text[point:].rstrip('0') or '0'}"
    return "-" * sign + mantissa


def _binary(value: Any, lost: Loss) -> Any:
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    if isinstance(value, str):
        return _text(value, lost).encode()
    if type(value) is array.array and value.typecode == "b":
        return value.tobytes()
    return lost(value)


# ------------------------------------------------------------------------------------------ times


def _date(value: Any, lost: Loss) -> dt.date:
    if not isinstance(value, dt.date) or value != value:  # as pandas' NaT
        raise wrong_type(value, "date")
    return dt.date(value.year, value.month, value.day)


def _timestamp(value: Any, lost: Loss) -> dt.datetime:
    """Return an instant in UTC. A datetime without a time zone is in the local time of the worker.

    When clocks are set back, `fold` chooses one of two instants. Spark leaves that to the C
    library.
    """
    if not isinstance(value, dt.datetime) or value != value:
        raise wrong_type(value, "datetime")
    try:
        return value.astimezone(dt.UTC)
    except (OverflowError, ValueError):
        raise wrong_type(value, "instant within the years 1 to 9999") from None


def as_local_time(at: dt.datetime) -> dt.datetime:
    """Return an instant in the local time of the worker, without its time zone."""
    return at.astimezone().replace(tzinfo=None)


def _without_zone(value: Any, lost: Loss) -> dt.datetime:
    """Return the local time of a datetime, which is stored like one in UTC, whatever its time
    zone.
    """
    if not isinstance(value, dt.datetime) or value != value:
        raise wrong_type(value, "datetime")
    return value.replace(tzinfo=dt.UTC, fold=0)


# ----------------------------------------------------------------------------------------- others


def _void(value: Any, lost: Loss) -> None:
    lost(value)


_PLAIN: tuple[tuple[Any, type], ...] = (
    (sql.BooleanType, bool),
    (sql.IntegralType, int),
    ((sql.StringType, sql.CharType, sql.VarcharType), str),
    (sql.BinaryType, bytes),
    (sql.DateType, dt.date),
    (sql.TimestampType, dt.datetime),
)


def plain_type(of: sql.DataType) -> type | None:
    """Return the Python type of a SQL type whose values can be keys unchanged; None for others."""
    return next((python_type for kinds, python_type in _PLAIN if isinstance(of, kinds)), None)


INTEGER_BITS: dict[type[sql.DataType], int] = {
    sql.ByteType: 8,
    sql.ShortType: 16,
    sql.IntegerType: 32,
    sql.LongType: 64,
}

# A surrogate is neither ASCII nor printable: that is quick to ask, and the answer for most texts.
_SOUND = "({0}.isascii() or {0}.isprintable() or is_sound({0}))"
_TEXT = Rule(str, _text, kept=f"type({{0}}) is str and {_SOUND}")

RULES: dict[type[sql.DataType], Rule] = {
    sql.BooleanType: Rule(bool, _boolean, kept="type({0}) is bool"),
    **{kind: _integer(bits) for kind, bits in INTEGER_BITS.items()},
    sql.FloatType: Rule(float, _float),
    sql.DoubleType: Rule(float, _double, kept="type({0}) is float"),
    sql.StringType: _TEXT,
    sql.CharType: _TEXT,
    sql.VarcharType: _TEXT,
    sql.BinaryType: Rule(bytes, _binary, kept="type({0}) is bytes"),
    sql.DateType: Rule(dt.date, _date, kept="type({0}) is dt.date"),
    sql.TimestampType: Rule(
        dt.datetime, _timestamp, as_local_time, "type({0}) is dt.datetime and {0}.tzinfo is dt.UTC"
    ),
    sql.TimestampNTZType: Rule(dt.datetime, _without_zone, lambda at: at.replace(tzinfo=None)),
    sql.NullType: Rule(type(None), _void),
}
"""The conversion rule by the type of the field; for decimals see `decimal_rule`."""
