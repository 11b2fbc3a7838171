"""Placed frames: one row per task. Each partition prefers the executor that the driver chose.

Rows that are routed to tasks are joined with such a frame. Both have the same partitioning, so
Spark neither shuffles nor sorts for the join, and each task prefers the location of its row. A
PySpark plan has no call for locations. So the frame is built from Spark's own classes: an RDD whose
elements have preferred locations (`SparkContext.makeRDD`), as a plan that says how it is
partitioned (`LogicalRDD`, which Spark uses for its own checkpoints of frames).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession

from statekit.errors import StorageError

TASK = "__statekit_task"
"""The column with the number of the task."""

_ROW = "org.apache.spark.sql.catalyst.InternalRow"


class PlacedFrames:
    """Builds placed frames. Shared parts are built once, because each call into the JVM takes time.

    Parameters:
        session: whose frames.
    """

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._java: Any = session._jvm
        self._rows: list[Any] = []
        self._locations: dict[str, Any] = {}

    def frame(self, places: Sequence[str]) -> DataFrame:
        """Return a frame with a row per task.

        Parameters:
            places: the preferred location of each task.

        Raises:
            StorageError: this version of Spark has no such classes.
        """
        try:
            return self._frame(places)
        except (Py4JError, TypeError) as error:  # a class that is missing cannot be called
            raise StorageError(
                f"Spark {self._session.version} cannot place tasks ({error}): shards run on any "
                "executor"
            ) from error

    def _frame(self, places: Sequence[str]) -> DataFrame:
        java, session = self._java, self._session
        sequence = java.org.apache.spark.api.python.PythonUtils.toSeq
        row = java.org.apache.spark.sql.catalyst.InternalRow.fromSeq
        for task in range(len(self._rows), len(places)):
            self._rows.append(row(sequence([task])))
        for place in {*places} - self._locations.keys():
            self._locations[place] = sequence([place])
        pair, locations = java.scala.Tuple2, self._locations
        pairs = [
            pair(own, locations[place]) for own, place in zip(self._rows, places, strict=False)
        ]
        tag = java.scala.reflect.ClassTag.apply(java.java.lang.Class.forName(_ROW))
        rows = session.sparkContext._jsc.sc().makeRDD(sequence(pairs), tag)
        like = session.range(len(places)).selectExpr(f"cast(id as int) as {TASK}")
        plan = like.repartitionById(len(places), TASK)._jdf.queryExecution().sparkPlan()
        return logical_frame(session, plan.output(), rows, plan.outputPartitioning())


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
    no_order = java.org.apache.spark.api.python.PythonUtils.toSeq([])
    arguments = [attributes, rows, partitioning, no_order, False, none, jvm_session, none, none]
    if _spark_version(session) >= (4, 3):  # which takes one more
        arguments.append(False)
    logical = java.org.apache.spark.sql.execution.LogicalRDD(*arguments)
    frame = java.org.apache.spark.sql.classic.Dataset.ofRows(jvm_session, logical)
    return DataFrame(frame, session)


def _spark_version(session: SparkSession) -> tuple[int, int]:
    major, minor, *_ = session.version.split(".")
    return int(major), int(minor)
