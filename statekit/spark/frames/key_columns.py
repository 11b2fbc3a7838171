"""The columns that route rows to shards and sort them: key fields, key group and order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as spark_types

from statekit.codec.schema import Schema
from statekit.errors import ProcessError
from statekit.job.chaining import Pass
from statekit.job.plan import Operator
from statekit.spark.frames.columns import quoted
from statekit.spark.worker.rows import ARRIVAL, FIRST_MARK, GROUP, INPUT

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
_NUMBER_BITS = 63  # bits without the sign of the number that rows are sorted by
# Of these, bits for the input and the partition of a row.
_ORIGIN_BITS = 10
_ROW_BITS = 33  # of a row's number within its partition, in monotonically_increasing_id()


@dataclass(frozen=True)
class PassOptions:
    """Options of the frames of a pass.

    Parameters:
        each: the pass.
        shards, groups: their numbers.
        by_number: whether Spark sorts rows by one number only, or completely.
    """

    each: Pass
    shards: int
    groups: int
    by_number: bool

    @property
    def operator(self) -> Operator:
        """The first operator, whose records are shuffled."""
        return self.each.first

    @property
    def key(self) -> tuple[str, ...]:
        return self.operator.declared.key


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


def group_expression(df: DataFrame, options: PassOptions) -> str:
    """Return the SQL expression of a record's key group. Without a key, records are distributed
    round robin; if a service is called for them, partition by partition, which keeps their order.
    """
    operator, shards, groups = options.operator, options.shards, options.groups
    keys = key_columns(df, operator)
    if keys:
        hashed = (expression for key in keys for expression in key.hashed)
        return f"pmod(xxhash64({', '.join(hashed)}), {groups})"
    turn = f"pmod(monotonically_increasing_id(), {shards})"
    if operator.declared.traits.calls is not None:
        turn = f"pmod(spark_partition_id() * {_stride(shards)}, {shards})"
    return f"({turn} * {groups} + {shards - 1}) div {shards}"  # the first key group of that shard


def _stride(shards: int) -> int:
    """Return the distance of the shards of neighbouring partitions: no two of them are in one task,
    as long as there are as many tasks.

    >>> [number * _stride(8) % 8 for number in range(8)]
    [0, 5, 2, 7, 4, 1, 6, 3]
    """
    golden = max(1, round(shards * 0.618))
    return next(stride for stride in range(golden, shards + golden) if gcd(stride, shards) == 1)


def order_of(df: DataFrame, options: PassOptions, inputs: int = 1) -> list[Column]:
    """Return the columns that sort routed rows by key group, key, input and arrival.

    Spark compares the first 8 bytes of the first column, and compares the rows themselves if those
    are equal, which is ten times as slow. The key group alone leaves most rows equal.
    """
    key, shards, groups = options.key, options.shards, options.groups
    if options.by_number:
        return [by_one_number(df, key, shards, groups, inputs=inputs)]
    first = _sorted_first(df, key[0] if key else None, shards, groups)
    # Texts by their bytes: in a collation, another text may sort between two equal ones.
    keys = [F.col(quoted(name)).cast(_sort_type(df, name)) for name in key]
    arrival = [F.col(ARRIVAL)] if inputs == 1 else [F.col(INPUT), F.col(ARRIVAL)]
    return [first, *keys, *arrival]


def by_one_number(
    df: DataFrame, key: tuple[str, ...], shards: int, groups: int, *, inputs: int = 1
) -> Column:
    """Return a column that sorts rows by key group and, if the key is one integer, by key, input
    and arrival.

    Spark sorts by one number in a few passes without comparing rows, which takes half the time.
    Rows with equal numbers keep their order: those of a key that were in one partition.

    This is the complete order unless the key has another type or does not fit, there are too many
    partitions, or Spark had to sort in several runs. Then the worker sorts the rest: see
    `worker/rows`.
    """
    name = key[0] if len(key) == 1 and _is_integral(df, key[0]) else None
    return _sorted_first(df, name, shards, groups, _ORIGIN_BITS, inputs)


def _sorted_first(
    df: DataFrame, key: str | None, shards: int, groups: int, origin_bits: int = 0, inputs: int = 1
) -> Column:
    """Return a number that sorts by key group and, as far as 64 bits allow, by key and partition.

    The mark of a shard sorts before its rows.

    Parameters:
        origin_bits: the bits for the input, if there are several, and the partition.
    """
    bits = _NUMBER_BITS - groups.bit_length()
    end = 1 << (bits - origin_bits - 1)
    first, last = 2 - end, end - 1  # keys from there on are cut; below them there is only null
    cut, is_intact = "0L", "true"
    if key is not None:
        is_intact = "false"
        if _is_integral(df, key):
            value = f"cast({quoted(key)} as bigint)"
            # By themselves, least() and greatest() pass a null over.
            within = f"greatest(least({value}, {last}L), {first}L)"
            cut = f"if({value} is null, {first - 1}L, {within})"
            is_intact = f"{cut} not in ({first}L, {last}L)"
    number = f"shiftleft(bigint({GROUP}), {bits}) + shiftleft({cut}, {origin_bits})"
    # A mark sorts before all rows of the first key group of its shard.
    first_group = f"(({FIRST_MARK} - {GROUP}) * {groups} + {shards - 1}) div {shards}"
    mark = f"shiftleft(bigint({first_group}), {bits}) - {end << origin_bits}L"
    if origin_bits:
        origin = _origin(inputs, origin_bits)
        number += f" + if({is_intact}, {origin}, 0L)"
        if inputs > 1:  # broadcast rows have the number of a mark and sort after it
            last_origin = (1 << origin_bits) - 1
            mark += f" + if({INPUT} is null, 0L, least(1L + {origin}, {last_origin}L))"
    return F.expr(f"if({GROUP} < 0, {mark}, {number})")


def _origin(inputs: int, bits: int) -> str:
    """Return the SQL expression of the origin of a row, its input and its partition there, in so
    many bits.
    """
    partition_bits = bits - (inputs - 1).bit_length()
    if partition_bits < 0:
        return "0L"
    partition = f"least(shiftright({ARRIVAL}, {_ROW_BITS}), {(1 << partition_bits) - 1}L)"
    if inputs == 1:
        return partition
    return f"shiftleft(bigint({INPUT}), {partition_bits}) + {partition}"


def _sort_type(df: DataFrame, name: str) -> spark_types.DataType:
    own = df.schema[name].dataType
    return spark_types.BinaryType() if isinstance(own, spark_types.StringType) else own


def _is_integral(df: DataFrame, name: str) -> bool:
    return isinstance(df.schema[name].dataType, spark_types.IntegralType)
