"""The process that forks local Python workers. It imports everything that shards need once.

Spark's own one imports nothing, so that each worker imports everything in the first epoch.
"""

from __future__ import annotations

import gc

import pyarrow as pa
from pyspark.daemon import manager

from statekit.spark.worker import shards

__all__ = ["manager", "shards"]

if __name__ == "__main__":
    pa.scalar(1)  # imports pandas, if it is there, which takes a worker half a second
    gc.freeze()  # workers share these objects as long as nothing writes to them
    manager()
