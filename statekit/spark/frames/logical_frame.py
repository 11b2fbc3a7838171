"""Frames over an RDD of Spark's internal rows.

PySpark has no call for this. `LogicalRDD` is the plan of rows that exist as an RDD; Spark uses it
for its own checkpoints of frames.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, SparkSession


def logical_frame(
    session: SparkSession, attributes: Any, rows: Any, partitioning: Any
) -> DataFrame:
    """Return a frame of rows.

    Parameters:
        attributes: the columns of the rows, as those of one of Spark's plans.
        rows: an RDD of internal rows.
        partitioning: how the rows are partitioned.

    Raises:
        Py4JError, TypeError: this version of Spark has no such class.
    """
    own: Any = session
    java, jvm_session = own._jvm, own._jsparkSession
    none = java.scala.Option.empty()
    logical = java.org.apache.spark.sql.execution.LogicalRDD(
        attributes,
        rows,
        partitioning,
        java.org.apache.spark.api.python.PythonUtils.toSeq([]),  # it is in no order
        False,
        none,
        jvm_session,
        none,
        none,
        False,
    )
    frame = java.org.apache.spark.sql.classic.Dataset.ofRows(jvm_session, logical)
    return DataFrame(frame, session)
