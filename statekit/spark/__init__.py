"""Running jobs on Spark: the only package that imports pyspark.

What lives here: `start`, which `Job.start` calls, and what it returns; `transform_with_state`,
which runs what was written for Spark's own operator. What does not: anything about state that a
run without Spark would need too.
"""

from statekit.job.progress import Progress
from statekit.spark.query import Query
from statekit.spark.start import start
from statekit.spark.tws.transform import Transformed, transform_with_state

__all__ = ["Progress", "Query", "Transformed", "start", "transform_with_state"]
