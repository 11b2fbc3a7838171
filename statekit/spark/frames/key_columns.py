"""The key fields of an operator as columns of a frame, in the form that Spark hashes and sorts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import types as spark_types

from statekit.codec.schema import Schema
from statekit.errors import ProcessError
from statekit.job.plan import Operator
from statekit.spark.frames.columns import quoted

_PLAIN_TYPES = (
    spark_types.BooleanType,
    spark_types.IntegralType,
    spark_types.StringType,
    spark_types.BinaryType,
    spark_types.DateType,
    spark_types.TimestampType,
)
_TYPES: dict[str, tuple[type[spark_types.DataType], ...]] = {
    "uuid": (spark_types.StringType,),
    "timedelta": (spark_types.DayTimeIntervalType,),
}


@dataclass(frozen=True)
class KeyField:
    """A key field.

    Parameters:
        name: of the field.
        expression: its value in SQL, by which rows are sorted.
        hashed: expressions whose chained hash is that of the field.
    """

    name: str
    expression: str
    hashed: tuple[str, ...]


def key_columns(df: DataFrame, operator: Operator) -> list[KeyField]:
    """Return the key fields of an operator.

    Integers are hashed as bigint, an interval as its microseconds, a UUID as its bytes, and a
    struct as its fields. Everything else is hashed as it is.

    Raises:
        ProcessError: a column is missing, or its type is not that of the field.
    """
    declared, columns = operator.declared, []
    key = declared.key_codec.schema
    is_tuple = len(declared.key) > 1 and key.kind == "tuple"
    schemas = key.items if is_tuple else (key,) * len(declared.key)
    for name, schema in zip(declared.key, schemas, strict=True):
        if name not in df.columns:
            raise ProcessError(
                f"operator {operator.name!r}: the input has no key column {name!r} (it has "
                f"{', '.join(df.columns)}): add it, or change key="
            )
        where = f"operator {operator.name!r}: key column {name!r}"
        hashed = list(_hashed(_unoptional(schema), df.schema[name].dataType, quoted(name), where))
        columns.append(KeyField(name, hashed[0] if len(hashed) == 1 else quoted(name), (*hashed,)))
    return columns


def _unoptional(schema: Schema) -> Schema:
    return schema.items[0] if schema.kind == "optional" else schema


def _hashed(
    schema: Schema, found: spark_types.DataType, expression: str, where: str
) -> Iterator[str]:
    """Yield the expressions whose chained hash is the hash of a field.

    Parameters:
        schema: of the field.
        found: the type of its column.
        expression: the column in SQL.
        where: names it in errors.
    """
    if schema.flavour == "namedtuple":
        yield from _parts(schema, found, expression, where)
        return
    if not isinstance(found, _TYPES.get(schema.kind, _PLAIN_TYPES)):
        advice = {"uuid": "a string", "timedelta": "an interval day to second"}
        wanted = advice.get(schema.kind, "a bigint, string, binary, boolean, date or timestamp")
        raise ProcessError(
            f"{where} is {found.simpleString()}, which cannot be a key of type {schema.brief}: "
            f"cast it to {wanted}"
        )
    if schema.kind == "uuid":  # which has several spellings
        digits = f"replace(replace({expression}, 'urn:', ''), 'uuid:', '')"
        yield f"unhex(translate({digits}, '{{}}-', ''))"
    elif isinstance(found, spark_types.IntegralType):
        yield f"cast({expression} as bigint)"
    else:
        yield expression


def _parts(
    schema: Schema, found: spark_types.DataType, expression: str, where: str
) -> Iterator[str]:
    """Yield the expressions of the fields of a struct, in the order of a NamedTuple."""
    names = {field.name for field in schema.fields}
    if not isinstance(found, spark_types.StructType) or not names <= {*found.names}:
        raise ProcessError(
            f"{where} is {found.simpleString()}, which cannot be a key of type {schema}: give it "
            "as a struct with these fields"
        )
    for field in schema.fields:
        inner, type_ = f"{expression}.{quoted(field.name)}", found[field.name].dataType
        yield from _hashed(_unoptional(field.schema), type_, inner, f"{where}.{field.name}")
