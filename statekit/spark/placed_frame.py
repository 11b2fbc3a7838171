"""Placed frames: a row per task, whose partitions prefer the executors that the driver chose.

Rows that are routed to tasks are joined with such a frame. Both have the same partitioning, so
Spark neither shuffles nor sorts for the join, and each task prefers the location of its row. A
PySpark plan has no call for locations. So the frame is built from Spark's own classes: an RDD whose
elements have preferred locations (`SparkContext.makeRDD`), as a plan that says how it is
partitioned (`LogicalRDD`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession

TASK = "__statekit_task"
"""The column with the number of the task."""

_ROW = "org.apache.spark.sql.catalyst.InternalRow"


def placed_frame(session: SparkSession, places: Sequence[str]) -> DataFrame:
    """Return a frame with a row per task.

    Parameters:
        places: the preferred location of each task.
    """
    java: Any = session._jvm
    sequence = java.org.apache.spark.api.python.PythonUtils.toSeq
    row = java.org.apache.spark.sql.catalyst.InternalRow.fromSeq
    pairs = [
        java.scala.Tuple2(row(sequence([task])), sequence([place]))
        for task, place in enumerate(places)
    ]
    tag = java.scala.reflect.ClassTag.apply(java.java.lang.Class.forName(_ROW))
    rows = session.sparkContext._jsc.sc().makeRDD(sequence(pairs), tag)
    like = session.range(len(places)).selectExpr(f"cast(id as int) as {TASK}")
    plan = like.repartitionById(len(places), TASK)._jdf.queryExecution().sparkPlan()
    none = java.scala.Option.empty()
    logical = java.org.apache.spark.sql.execution.LogicalRDD(
        plan.output(),
        rows,
        plan.outputPartitioning(),
        sequence([]),
        False,
        none,
        session._jsparkSession,
        none,
        none,
        False,
    )
    frame = java.org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, logical)
    return DataFrame(frame, session)
