"""Columns of frames: their names in SQL, and the columns that record types and selections read."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from statekit.errors import ProcessError
from statekit.expressions.compiled import CompiledExpression
from statekit.functions.projection import WHOLE, Projection
from statekit.job.plan import Transform
from statekit.records.record_type import RecordType
from statekit.spark.frames.expression_columns import expression_column
from statekit.spark.worker.rows import ColumnRecords


def projected_to(record_type: RecordType, df: DataFrame) -> DataFrame:
    """Select the columns that the record type reads; all columns for a plain dict."""
    if record_type.fields is None:
        return df
    present, expressions = set(df.columns), {}
    if isinstance(record_type, ColumnRecords):
        expressions = {name: f"{of} as {quoted(name)}" for name, of in record_type.derived.items()}
    names = [name for name in record_type.field_names if name in present or name in expressions]
    return df.selectExpr(*(expressions.get(name) or quoted(name) for name in names))


def with_derived(record_type: RecordType, df: DataFrame) -> DataFrame:
    """Add the derived columns of a record type."""
    if isinstance(record_type, ColumnRecords) and record_type.derived:
        return projected_to(record_type, df)
    return df


def quoted(name: str) -> str:
    """Return a column's name quoted for SQL."""
    escaped = name.replace("`", "``")
    return f"`{escaped}`"


def selected(transform: Transform, df: DataFrame) -> DataFrame:
    """Return the frame of a transform that selects columns.

    Raises:
        ProcessError: a column is missing.
    """
    if transform.function.kind == "select":
        return df.select(*selected_columns(transform, df))
    if isinstance(transform.function.fn, CompiledExpression):
        return df.where(expression_column(transform.function.fn, df))
    if not transform.function.selects_type:
        return df
    name = quoted(transform.function.output_type.name)
    return df.where(F.col(name).isNotNull()).select(f"{name}.*")


def selected_columns(transform: Transform, df: DataFrame) -> list[Column]:
    """Return the columns of a `select` over a frame.

    Raises:
        ProcessError: a column is missing.
    """
    projection = transform.function.fn
    assert isinstance(projection, Projection), "it is a select"
    own = projected_to(projection.taken, df)
    columns = []
    for name, field in projection.fields.items():
        if isinstance(field, CompiledExpression):
            columns.append(expression_column(field, df).alias(name))
            continue
        if field != WHOLE and field not in own.columns:
            raise ProcessError(
                f"stream {transform.name!r} selects {field!r}, and the input has no such column "
                f"(it has {', '.join(df.columns)}): add it"
            )
        whole = F.struct(*map(F.col, map(quoted, own.columns)))
        columns.append((whole if field == WHOLE else F.col(quoted(field))).alias(name))
    return columns
