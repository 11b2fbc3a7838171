"""An operator as a DataFrame.

What lives here: checking the input's columns, routing records to their shards and calling the
worker step, all as a plan for Spark. What does not: when it runs (`epoch`).
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as spark_types
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from statekit.errors import ProcessError
from statekit.job import Job, Operator, Source
from statekit.records import RecordType
from statekit.spark.worker import FIRST_MARK, ShardStep, output_schema

__all__ = ["check_input", "operator_frame"]

GROUP = "__statekit_group"
ARRIVAL = "__statekit_arrival"

_KEY_TYPES = (
    spark_types.BooleanType,
    spark_types.IntegralType,
    spark_types.StringType,
    spark_types.BinaryType,
    spark_types.DateType,
    spark_types.TimestampType,
)


def check_input(df: DataFrame, source: Source, job: Job) -> None:
    """Hold a frame's columns against the records and keys of a job, before anything runs.

    Raises:
        ProcessError: a column is missing, cannot be read as its field, or cannot be a key.
    """
    try:
        projected = _projected(df, source.record_type)
        source.record_type.reader(to_arrow_schema(projected.schema, timezone="UTC"))
        for operator in job.consumers_of(source.name):
            for name in operator.declared.key:
                _key_column(projected, name, operator.name)
    except ProcessError as error:
        error.add_note(f"while looking at the input {source.name!r}")
        raise


def operator_frame(
    df: DataFrame, operator: Operator, step: ShardStep, shards: int, groups: int
) -> DataFrame:
    """The outputs of an operator over `df`, with the commit records as one more column.

    The key group is computed in the JVM. `arrival` is taken before the shuffle: it keeps the order
    of the input, which neither the shuffle nor the sort does by itself, and makes a recomputed
    attempt see the same order.

    Each shard is sent a mark, a row that says which shard it is. So a shard knows itself from its
    data, and Spark, which leaves out whatever it can prove to be empty, runs those without records.
    """
    declared = operator.declared
    projected = _projected(df, declared.record_type)
    keys = [_key_column(projected, name, operator.name) for name in declared.key]
    group = F.pmod(F.xxhash64(*keys), F.lit(groups)).cast("int").alias(GROUP)
    columns = [projected[name] for name in projected.columns]
    arrival = F.monotonically_increasing_id().alias(ARRIVAL)
    grouped = projected.select(group, *columns, arrival)
    shard = F.expr(
        f"if({GROUP} < 0, {FIRST_MARK} - {GROUP}, cast(({GROUP} * {shards}) div {groups} as int))"
    )
    routed = grouped.unionAll(_marks(grouped, shards)).repartitionById(shards, shard)
    ordered = routed.sortWithinPartitions(GROUP, *declared.key, ARRIVAL).drop(ARRIVAL)
    return ordered.mapInArrow(step, from_arrow_schema(output_schema(declared.output_type)))


def _marks(like: DataFrame, shards: int) -> DataFrame:
    """A row per shard with nothing but a number below all key groups in the place of its own."""
    mark = (F.lit(FIRST_MARK) - F.col("id")).cast("int").alias(GROUP)
    nothing = [F.lit(None).cast(f.dataType).alias(f.name) for f in like.schema.fields[1:]]
    return like.sparkSession.range(0, shards, 1, 1).select(mark, *nothing)


def _projected(df: DataFrame, record_type: RecordType) -> DataFrame:
    """Only the columns that the record type reads; all of them for a plain dict."""
    if record_type.fields is None:
        return df
    present = set(df.columns)
    return df.select(*(name for name in record_type.field_names if name in present))


def _key_column(df: DataFrame, name: str, operator: str) -> Any:
    """A key field as it is hashed: integers as bigint, everything else as it is."""
    if name not in df.columns:
        raise ProcessError(
            f"operator {operator!r}: the input has no key column {name!r} (it has "
            f"{', '.join(df.columns)}): add it, or change key="
        )
    found = df.schema[name].dataType
    if not isinstance(found, _KEY_TYPES):
        raise ProcessError(
            f"operator {operator!r}: key column {name!r} is {found.simpleString()}, which cannot "
            "be a key: cast it to a bigint, string, binary, boolean, date or timestamp"
        )
    return df[name].cast("bigint") if isinstance(found, spark_types.IntegralType) else df[name]
