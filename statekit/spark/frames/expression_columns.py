"""Expressions as columns of Spark, so that the JVM filters and computes before rows are shuffled.

Results and errors do not depend on the settings of the session, such as its time zone and ANSI
mode: times are computed from microseconds in UTC, and whatever may fail is tried, and raises an
error of its own.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DecimalType, StructType

from statekit.errors import ProcessError
from statekit.expressions.compiled import CompiledExpression
from statekit.expressions.failures import INT_MIN
from statekit.expressions.python_code import FLOAT_TEXT, INT_TEXT
from statekit.expressions.tree import MICROSECOND
from statekit.expressions.typed import TAKES_NULL, Typed
from statekit.expressions.value_types import ValueType
from statekit.timestamp import MAX_MICROS, MIN_MICROS

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_FIRST_DAY = dt.date(1970, 1, 1)
_DAY, _HOUR, _MINUTE, _SECOND = 86_400_000_000, 3_600_000_000, 60_000_000, 1_000_000
_UNITS = {"day": _DAY, "hour": _HOUR, "minute": _MINUTE, "second": _SECOND}
_FLOATS_WITHOUT_FRACTIONS = 2.0**52
_TWO_63 = 2.0**63
_INT_DIGITS = 19

_TYPES = {
    "null": "void",
    "bool": "boolean",
    "int": "bigint",
    "float": "double",
    "text": "string",
    "date": "date",
    "timestamp": "timestamp",
    "interval": "interval day to second",
}


def expression_column(expression: CompiledExpression, df: DataFrame) -> Column:
    """Return the values of an expression as a column of a frame with the fields of its records.

    A row for which it fails ends the job with a ProcessError.

    Raises:
        ProcessError: a column is missing, or has decimals that do not fit the declared field.
    """
    return _column(expression.typed, _declared_columns(expression.typed, df))


Columns = dict[tuple[str, ...], Column]


def _declared_columns(typed: Typed, df: DataFrame) -> Columns:
    """Return the columns of all fields that an expression reads, in the types of their fields."""
    if typed.operation == "column":
        return {typed.value: _declared_column(typed, df)}
    columns: Columns = {}
    for operand in typed.operands:
        columns |= _declared_columns(operand, df)
    return columns


def _declared_column(typed: Typed, df: DataFrame) -> Column:
    path: list[str] = []
    column = F.lit(None)
    found: DataType = df.schema
    for name in typed.value:
        if not isinstance(found, StructType) or name not in found.names:
            has = ", ".join(getattr(found, "names", ())) or "no fields"
            raise ProcessError(
                f"an expression reads the field {'.'.join(typed.value)!r}, and "
                f"{'.'.join(path) or 'the input'} has no column {name!r} (it has {has}): add it"
            )
        column = column.getField(name) if path else F.col(f"`{name.replace('`', '``')}`")
        found = found[name].dataType
        path.append(name)
    return _as_declared(typed, column, found)


def _as_declared(typed: Typed, column: Column, found: DataType) -> Column:
    """Return a column in the type of its field, which may be wider.

    Raises:
        ProcessError: a decimal of the column may have more digits or places than the field.
    """
    name = type_name_of(typed.type) if typed.type.kind != "other" else found.simpleString()
    if found.simpleString() == name:
        return column
    if typed.type.kind == "decimal" and not typed.type.holds(_decimal_of(found)):
        field = ".".join(typed.value)
        raise ProcessError(
            f"an expression reads the field {field!r}, declared as {typed.type}, from a column of "
            f"{found.simpleString()}, which has other values: cast the column to {name}, or "
            "declare the field with sk.Decimals of its size"
        )
    return column.cast(name)


def _decimal_of(found: DataType) -> ValueType:
    """Return the decimal type for the values of a column of decimals or ints."""
    if isinstance(found, DecimalType):
        return ValueType("decimal", False, found.precision, found.scale)
    return ValueType("decimal", False, _INT_DIGITS, 0)


def type_name_of(type_: ValueType) -> str:
    """Return the name of a type in Spark."""
    if type_.kind == "decimal":
        return f"decimal({type_.digits},{type_.places})"
    return _TYPES[type_.kind]


def _column(typed: Typed, columns: Columns) -> Column:
    if typed.operation == "column":
        return columns[typed.value]
    if typed.operation == "literal":
        return _literal(typed)
    operands = [_column(operand, columns) for operand in typed.operands]
    make = _MAKERS.get(f"{typed.operation} {typed.kind}") or _MAKERS[typed.operation]
    made = make(typed, *operands)
    if typed.operation in TAKES_NULL:
        return made
    return _behind_nulls(typed, operands, made)


def _behind_nulls(typed: Typed, operands: list[Column], made: Column) -> Column:
    """Return an operation whose right operand is computed only where the left one is not NULL.

    Spark skips it as well, unless it is part of another expression of the job: then it may be
    computed once for both, before. Only CASE has an order.
    """
    if len(operands) < 2 or not (typed.operands[0].type.nullable and typed.operands[1].can_fail):
        return made
    return F.when(operands[0].isNotNull(), made)


def _literal(typed: Typed) -> Column:
    value, kind = typed.value, typed.type.kind
    if value is None:
        return F.lit(None).cast(type_name_of(typed.type))
    if kind == "float" and not math.isfinite(value):
        return F.lit(str(value)).cast("double")
    if kind == "timestamp":
        return F.timestamp_micros(F.lit((value - _EPOCH) // MICROSECOND).cast("bigint"))
    if kind == "date":
        return F.date_from_unix_date(F.lit((value - _FIRST_DAY).days))
    if kind == "interval":
        return _interval_of(F.lit(value // MICROSECOND).cast("bigint"))
    return F.lit(value).cast(type_name_of(typed.type))


# ----------------------------------------------------------------------------------- failures


def _failure(typed: Typed, why: str) -> Column:
    """Return a column that raises the error of a row. Workers raise the same class."""
    text = F.lit(f"statekit.errors.ProcessError: {typed.node} {why}")
    return F.raise_error(text).cast(type_name_of(typed.type))


def _tried(typed: Typed, tried: Column, why: str, *operands: Column) -> Column:
    """Return what was tried. Where it has no result for operands that are not null, raise an
    error.
    """
    are_given = operands[0].isNotNull()
    for operand in operands[1:]:
        are_given = are_given & operand.isNotNull()
    return F.coalesce(tried, F.when(are_given, _failure(typed, why)))


_TOO_LARGE = "has a result that its type cannot hold"
_BY_ZERO = "divides by zero: use NULLIF(divisor, 0) for NULL instead"
_NO_NUMBER = "cannot convert a value exactly"

Maker = Callable[..., Column]


def _arithmetic(tried: Callable[[Column, Column], Column], why: str) -> Maker:
    return lambda typed, left, right: _tried(typed, tried(left, right), why, left, right)


def _plain(make: Callable[..., Column]) -> Maker:
    """Return a maker that has no use for the typed expression."""
    return lambda typed, *operands: make(*operands)


# ---------------------------------------------------------------------------------- conditions


def _all_of(typed: Typed, first: Column, *others: Column) -> Column:
    """Return AND. A condition that may fail is computed only where those before it are not
    false, which Spark guarantees for CASE alone.
    """
    for operand, other in zip(typed.operands[1:], others, strict=True):
        if operand.can_fail:
            first = F.when(~first, F.lit(False)).otherwise(first & other)
        else:
            first = first & other
    return first


def _any_of(typed: Typed, first: Column, *others: Column) -> Column:
    for operand, other in zip(typed.operands[1:], others, strict=True):
        if operand.can_fail:
            first = F.when(first, F.lit(True)).otherwise(first | other)
        else:
            first = first | other
    return first


def _among(typed: Typed, operand: Column) -> Column:
    of = typed.operands[0]
    return operand.isin([_literal(Typed("literal", (), of.type, of.node, v)) for v in typed.value])


def _case(typed: Typed, *operands: Column) -> Column:
    *branches, value = operands
    for place in range(len(branches) - 2, -1, -2):
        value = F.when(branches[place], branches[place + 1]).otherwise(value)
    return value


# ------------------------------------------------------------------------------------- numbers


def _negate_int(typed: Typed, number: Column) -> Column:
    return F.when(number == INT_MIN, _failure(typed, _TOO_LARGE)).otherwise(-number)


def _abs_int(typed: Typed, number: Column) -> Column:
    return F.when(number == INT_MIN, _failure(typed, _TOO_LARGE)).otherwise(F.abs(number))


def _rounded(make: Callable[[Column], Column]) -> Maker:
    def rounded(typed: Typed, number: Column) -> Column:
        has_fraction = F.abs(number) < _FLOATS_WITHOUT_FRACTIONS
        return F.when(has_fraction, make(number).cast("double")).otherwise(number)

    return rounded


def _int_of_float(typed: Typed, number: Column) -> Column:
    is_whole = (number >= -_TWO_63) & (number < _TWO_63) & (F.rint(number) == number)
    return _tried(typed, F.when(is_whole, number.cast("bigint")), _NO_NUMBER, number)


def _of_text(pattern: str, target: str) -> Maker:
    def converted(typed: Typed, text: Column) -> Column:
        is_number = text.rlike(rf"\A(?:{pattern})\z")
        return _tried(typed, F.when(is_number, text.try_cast(target)), _NO_NUMBER, text)

    return converted


# --------------------------------------------------------------------------------------- times


def _interval_of(micros: Column) -> Column:
    return F.expr("INTERVAL '0 00:00:00.000001' DAY TO SECOND") * micros


def _micros_of(interval: Column) -> Column:
    """Return the length of an interval. Spark adds its days to a time in the session's zone."""
    parts = {"DAY": _DAY, "HOUR": _HOUR, "MINUTE": _MINUTE}
    seconds = F.extract(F.lit("SECOND"), interval).cast("decimal(8,6)")
    micros = (seconds * F.lit(_SECOND).cast("decimal(7,0)")).cast("bigint")
    for unit, size in parts.items():
        number = F.extract(F.lit(unit), interval).cast("bigint")
        micros = micros + number * F.lit(size).cast("bigint")
    return micros


def _moved(sign: int) -> Maker:
    def moved(typed: Typed, time: Column, by: Column) -> Column:
        micros = F.try_add(F.unix_micros(time), _micros_of(by) * sign)
        is_time = micros.between(MIN_MICROS, MAX_MICROS)
        found = F.when(is_time, F.timestamp_micros(micros))
        return _tried(typed, found, "is outside of the years 1 to 9999", time, by)

    return moved


def _between_times(left: Column, right: Column) -> Column:
    return _interval_of(F.unix_micros(left) - F.unix_micros(right))


def _truncated(typed: Typed, time: Column) -> Column:
    size = F.lit(_UNITS[typed.value]).cast("bigint")
    micros = F.unix_micros(time)
    return F.timestamp_micros(micros - F.pmod(micros, size))


def _date(time: Column) -> Column:
    """Return the date in UTC."""
    size, micros = F.lit(_DAY).cast("bigint"), F.unix_micros(time)
    days = (micros - F.pmod(micros, size)) / size
    return F.date_from_unix_date(days.cast("int"))


def _extracted(typed: Typed, time: Column) -> Column:
    if typed.value in ("HOUR", "MINUTE"):
        of_day = F.pmod(F.unix_micros(time), F.lit(_DAY).cast("bigint"))
        hours = F.floor(of_day / _HOUR)
        minutes = F.floor((of_day - hours * F.lit(_HOUR).cast("bigint")) / _MINUTE)
        return hours if typed.value == "HOUR" else minutes
    day = time if typed.kind == "date" else _date(time)
    parts = {"YEAR": F.year, "MONTH": F.month, "DAY": F.dayofmonth}
    return parts[typed.value](day).cast("bigint")


def _decimal(typed: Typed, number: Column) -> Column:
    return number.cast(type_name_of(typed.type))


_LETTERS = "abcdefghijklmnopqrstuvwxyz"

_MAKERS: dict[str, Maker] = {
    "and": _all_of,
    "or": _any_of,
    "not": _plain(Column.__invert__),
    "is_null": _plain(Column.isNull),
    "equal": _plain(Column.__eq__),
    "less": _plain(Column.__lt__),
    "less_equal": _plain(Column.__le__),
    "distinct": _plain(lambda left, right: ~left.eqNullSafe(right)),
    "in": _among,
    "like": lambda typed, text: text.like(typed.value),
    "add int": _arithmetic(F.try_add, _TOO_LARGE),
    "subtract int": _arithmetic(F.try_subtract, _TOO_LARGE),
    "multiply int": _arithmetic(F.try_multiply, _TOO_LARGE),
    "add": _plain(Column.__add__),
    "subtract": _plain(Column.__sub__),
    "multiply": _plain(Column.__mul__),
    "divide": _arithmetic(F.try_divide, _BY_ZERO),
    "modulo": _arithmetic(F.try_mod, _BY_ZERO),
    "negate": _plain(Column.__neg__),
    "negate int": _negate_int,
    "abs": _plain(F.abs),
    "abs int": _abs_int,
    "floor": _rounded(F.floor),
    "ceil": _rounded(F.ceil),
    "concat": _plain(F.concat),
    "length": _plain(lambda text: F.length(text).cast("bigint")),
    "lower": _plain(lambda text: F.translate(text, _LETTERS.upper(), _LETTERS)),
    "upper": _plain(lambda text: F.translate(text, _LETTERS, _LETTERS.upper())),
    "case": _case,
    "coalesce": _plain(F.coalesce),
    "to_float": _plain(lambda number: number.cast("double")),
    "to_float text": _of_text(FLOAT_TEXT, "double"),
    "to_int float": _int_of_float,
    "to_int text": _of_text(INT_TEXT, "bigint"),
    "to_text": _plain(lambda number: number.cast("string")),
    "to_decimal": _decimal,
    "to_date": _plain(_date),
    "trunc": _truncated,
    "extract": _extracted,
    "later": _moved(1),
    "earlier": _moved(-1),
    "between_times": _plain(_between_times),
}
"""The column of each operation, by its name alone or with the kind of its first operand."""
