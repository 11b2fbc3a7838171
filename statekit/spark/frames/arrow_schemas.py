"""Arrow schemas of Spark's schemas, in every supported version of Spark."""

from __future__ import annotations

import inspect
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

_IN_UTC: dict[str, Any] = (
    {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
)
"""What makes times those of UTC. Spark 4.1 takes no time zone: its times are always those."""


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of a schema of Spark, with times in UTC.

    >>> arrow_schema(StructType().add("at", "timestamp")).field("at").type
    TimestampType(timestamp[us, tz=UTC])
    """
    return to_arrow_schema(schema, **_IN_UTC)
