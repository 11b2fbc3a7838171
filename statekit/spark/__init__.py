"""Run jobs on Spark: the only folder that imports pyspark.

`start` checks the options and starts a job, `query` runs its epochs. `frames` has the DataFrames of
an epoch, and `worker` runs shards in Spark's Python workers. May import `spark/frames`, `sinks` and
whatever those may import.
"""

from statekit.job.progress import Progress
from statekit.spark.query import Query, progress_of
from statekit.spark.session import session
from statekit.spark.sources.register import register
from statekit.spark.start import start
from statekit.spark.tws.transform import Transformed, transform_with_state

__all__ = [
    "Progress",
    "Query",
    "Transformed",
    "progress_of",
    "register",
    "session",
    "start",
    "transform_with_state",
]


def __dir__() -> list[str]:
    """Return the public names: completion does not list the modules that are imported with them."""
    return sorted(__all__)
