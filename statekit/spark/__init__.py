"""Running jobs on Spark: the only package that imports pyspark.

What lives here: `start`, which `Job.start` calls, and what it returns. What does not: anything
about state that a run without Spark would need too.
"""

from statekit.running import Progress
from statekit.spark.query import Query
from statekit.spark.starting import start

__all__ = ["Progress", "Query", "start"]
