"""Narrow rows: rows of a few numbers, of which a batch for a Python worker never gets too large.

Spark adds up the bytes of a batch before each row that it adds, to end the batch below
`spark.sql.execution.arrow.maxBytesPerBatch`. That takes as long as writing the row, if the row has
a few columns of fixed width. Batches of such rows end by their number of rows long before.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession

from statekit.errors import StateTypeError
from statekit.job.chaining import passes
from statekit.job.plan import Plan
from statekit.records.output_type import OutputType
from statekit.spark.worker.rows import ColumnRecords
from statekit.spark.worker.shards import pass_schema

_MOST_COLUMNS, _MOST_ROWS = 100, 20_000

_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_BYTES, _NO_LIMIT = "spark.sql.execution.arrow.maxBytesPerBatch", str(2**31 - 1)


def set_no_byte_limit(session: SparkSession) -> None:
    """Have Spark end all batches for Python workers by their number of rows alone, unless it is set
    to a large one.
    """
    if 0 < int(session.conf.get(_ROWS) or 0) <= _MOST_ROWS:
        session.conf.set(_BYTES, _NO_LIMIT)


def are_narrow(job: Plan) -> bool:
    """Return whether all rows of a job that Python workers may get have few columns of fixed width.

    Combined rows may have lists of records. They do not count, as Spark cannot divide a row. Rows
    for Spark's processors are not narrow: a processor sees how they are cut.

    >>> from typing import NamedTuple
    >>> import statekit as sk
    >>> class Reading(NamedTuple):
    ...     sensor: int
    ...     value: float
    >>> job = sk.Job("numbers")
    >>> _ = job.source("readings", Reading).aggregate(key="sensor", sum=sk.Sum("value")).sink("out")
    >>> are_narrow(job.plan)
    True
    """
    try:
        return all(map(_is_narrow, _schemas(job)))
    except StateTypeError:  # records without declared fields may have any columns
        return False


def _schemas(job: Plan) -> Iterator[pa.Schema]:
    """Yield the schemas of all rows that workers may get: those of sources, and of what the workers
    themselves return. No operator counts as chained to another, as it may not stay so.
    """
    apart = passes(job, {operator.name for operator in job.operators})
    chains = [chain for each in apart for chain in each.chains]
    after = {transform.name for chain in chains for transform in chain.after}
    for source in job.sources:
        for record in source.record_type.members:
            if isinstance(record, ColumnRecords):
                raise StateTypeError(f"{record.name} has no declared fields")
            yield OutputType(record.cls, record.where).arrow_schema
    for transform in job.transforms:
        if transform.name not in after:
            output_type = job.output_of(transform.name)
            assert output_type is not None, "a transform emits something"
            yield output_type.arrow_schema
    for each in apart:
        yield pass_schema(each.chains)


def _is_narrow(schema: pa.Schema) -> bool:
    return len(schema) <= _MOST_COLUMNS and all(map(_has_fixed_width, schema.types))


def _has_fixed_width(type_: pa.DataType) -> bool:
    if pa.types.is_struct(type_):
        return all(_has_fixed_width(field.type) for field in type_)
    return bool(
        pa.types.is_null(type_) or pa.types.is_primitive(type_) or pa.types.is_decimal(type_)
    )
