"""The rows of a schema as a class of dicts. Its annotations describe the values that a test may
create.
"""

from __future__ import annotations

import datetime as dt
import decimal
from functools import lru_cache
from typing import Annotated, Any, TypedDict

import pydantic
from pyspark.sql import types as sql

from statekit.records.arrow_scalars import Decimals

_ANNOTATIONS: dict[type[sql.DataType], Any] = {
    sql.BooleanType: bool,
    sql.ByteType: Annotated[int, pydantic.Field(ge=-(2**7), lt=2**7)],
    sql.ShortType: Annotated[int, pydantic.Field(ge=-(2**15), lt=2**15)],
    sql.IntegerType: Annotated[int, pydantic.Field(ge=-(2**31), lt=2**31)],
    sql.LongType: int,
    sql.FloatType: float,
    sql.DoubleType: float,
    sql.StringType: str,
    sql.BinaryType: bytes,
    sql.DateType: dt.date,
    sql.TimestampType: dt.datetime,
    sql.DayTimeIntervalType: dt.timedelta,
    sql.NullType: None,
}


@lru_cache
def dict_class(schema: sql.StructType) -> Any:
    """Return a class of dicts with the columns of a schema, and their Python types without nulls.

    The annotation of a column whose values cannot be made is its SQL type.

    >>> dict_class(sql.StructType().add("n", "long").add("at", "date")).__annotations__
    {'n': <class 'int'>, 'at': <class 'datetime.date'>}
    """
    columns = {of.name: _annotation(of.dataType) for of in schema}
    for of in schema:
        if isinstance(of.dataType, sql.TimestampNTZType):  # rows lose the time zone
            columns[of.name] = dt.datetime
    return _class(columns)


def _class(columns: dict[str, Any]) -> Any:
    make: Any = TypedDict  # mypy accepts only literals here
    return make("Row", columns)


def _annotation(of: sql.DataType) -> Any:
    if isinstance(of, sql.ArrayType):
        return list[_annotation(of.elementType)]  # type: ignore[misc]
    if isinstance(of, sql.MapType):
        return dict[_annotation(of.keyType), _annotation(of.valueType)]  # type: ignore[misc]
    if isinstance(of, sql.StructType):
        return _class({field.name: _annotation(field.dataType) for field in of})
    if isinstance(of, sql.DecimalType):
        return Annotated[decimal.Decimal, Decimals(of.precision, of.scale)]
    return _ANNOTATIONS.get(type(of), type(of))
