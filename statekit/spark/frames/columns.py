"""Columns of frames: their names in SQL, and the columns that a record type reads."""

from __future__ import annotations

from pyspark.sql import DataFrame

from statekit.records.record_type import RecordType
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
