"""Frames of the sources that Spark reads."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from statekit.checkpoint.object_store import without_credentials
from statekit.errors import ConnectorError, StatekitError, StateTypeError
from statekit.job.plan import Input, Plan
from statekit.runtime.stream_forms import SourceForm
from statekit.secret_options import without_secrets
from statekit.sources.spark import SparkSource
from statekit.spark.frames.plan import check_one_type

_UNTYPED = frozenset({"csv", "json", "xml"})
"""Formats whose files have no types: without a schema, Spark guesses them."""

_STREAMED_BY_SCHEMA = _UNTYPED | {"avro", "orc", "parquet"}
"""Formats of which Spark reads streams only with a schema."""

_STREAM_FAILED = "terminated with exception: "
"""The text in errors of a stream before that of the cause."""

_NO_FORMAT = re.compile(r"DATA_SOURCE_NOT_(FOUND|ENABLED)|ClassNotFound|NoClassDefFound")


def with_frames(job: Plan, spark: SparkSession, origins: Mapping[str, object]) -> dict[str, object]:
    """Return the origins of inputs, with a frame in place of each source that Spark reads.

    Raises:
        StateTypeError: Spark has no such format, or its records are of several types.
        ConnectorError: Spark refuses to open it.
    """
    declared = {each.name: each for each in job.sources}
    return {
        name: _frame_of(declared[name], spark, of) if isinstance(of, SparkSource) else of
        for name, of in origins.items()
    }


def _frame_of(declared: Input, spark: SparkSession, source: SparkSource) -> DataFrame:
    check_one_type(declared)
    options: dict[str, Any] = dict(source.options)
    schema = source.schema
    if schema is None:
        schema = _schema_of_records(declared, source)
        if schema is not None and source.format.lower() == "csv":
            options = {"enforceSchema": False, **options}  # so that Spark compares the header
    try:
        reader = spark.readStream if source.streaming else spark.read
        if schema is not None:
            reader = reader.schema(schema)
        return reader.format(source.format).options(**options).load()
    except (PySparkException, Py4JJavaError) as error:
        raise _refusal(declared.name, source, error) from None  # its text may have a secret


def _schema_of_records(declared: Input, source: SparkSource) -> StructType | None:
    """Return the columns of the records, for formats that need them; None for other formats."""
    needing = _STREAMED_BY_SCHEMA if source.streaming else _UNTYPED
    (record_type,) = declared.record_type.members
    if source.format.lower() not in needing or record_type.fields is None:
        return None
    return from_arrow_schema(SourceForm(declared.record_type).output_type.arrow_schema)


def _refusal(name: str, source: SparkSource, error: Exception) -> StatekitError:
    """Return the error for a source that Spark refuses to open."""
    reason = _reason(error, [source])
    if _NO_FORMAT.search(str(error)):
        return StateTypeError(
            f"source {name!r}: Spark does not find the format {source.format!r}, or a class that "
            f"it needs: {reason}. Nothing was read: correct the name, or give Spark the package of "
            "the format, as with spark.jars.packages, then start the job again"
        )
    return ConnectorError(
        f"source {name!r}: Spark cannot open {source}: {reason}. Nothing was read: correct its "
        "format, options=, schema= or streaming=, then start the job again"
    )


def reading_error(sources: Mapping[str, SparkSource], error: Exception) -> ConnectorError:
    """Return the error for a stream of Spark that failed outside of an epoch: where it finds what
    to read.

    Parameters:
        sources: all that Spark reads, by input.
    """
    named = " or ".join(f"source {name!r}, {source}" for name, source in sources.items())
    return ConnectorError(
        f"Spark cannot read {named}: {_reason(error, sources.values())}. Nothing of this epoch is "
        "committed: correct options= or what the source reads, then start the job again"
    )


def _reason(error: Exception, sources: Iterable[SparkSource]) -> str:
    """Return the first line of an error of Spark, without the values of secret options."""
    text = str(error)
    if isinstance(error, Py4JJavaError):
        text = str(error.java_exception.getMessage() or error.java_exception)
    text = text.rpartition(_STREAM_FAILED)[2]
    line = next(filter(None, map(str.strip, text.splitlines())), type(error).__name__)
    for source in sources:
        line = without_secrets(line, source.options)
    return without_credentials(line)
