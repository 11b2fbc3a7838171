"""A Spark driver that tests kill: streams the changes of `HOME/c` of each home to `HOME/out`.

    python changes_driver.py HOME...

It prints `ready` when the first micro-batch of any query has ended. It does not end by itself.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener
from pyspark.sql.streaming.query import StreamingQuery

from statekit.spark import register
from tests.support.spark_runs import new_session

STATE: dict[str, Any] = {
    "operator": "tally",
    "state": "parity",
    "reader": "mirror",
    "maxEpochsPerTrigger": 3,
}


def follow(spark: SparkSession, home: Path, **trigger: Any) -> StreamingQuery:
    """Start a query that writes the changes of the checkpoint of a home to Parquet files."""
    changes = spark.readStream.format("statekit-changes").options(**STATE).load(str(home / "c"))
    writer = changes.writeStream.format("parquet")
    writer = writer.option("checkpointLocation", str(home / "spark"))
    return (writer.trigger(**trigger) if trigger else writer).start(str(home / "out"))


def started(spark: SparkSession, home: Path) -> StreamingQuery:
    """Start a query, and wait until its Python process runs.

    Spark gives up on a Python process that has not connected after 10 seconds. On a busy machine
    several processes that start at once take longer.
    """
    while True:
        query = follow(spark, home)
        while query.isActive and query.status["message"] == "Initializing sources":
            time.sleep(0.05)
        if query.isActive or "failed to connect back" not in str(query.exception()):
            return query


class _Announcing(StreamingQueryListener):
    def onQueryStarted(self, event: Any) -> None:
        pass

    def onQueryProgress(self, event: Any) -> None:
        print("ready", flush=True)

    def onQueryIdle(self, event: Any) -> None:
        pass

    def onQueryTerminated(self, event: Any) -> None:
        pass


def main() -> None:
    homes = [Path(name) for name in sys.argv[1:]]
    (homes[0] / "tmp").mkdir(exist_ok=True)
    spark = new_session(homes[0] / "tmp")
    register(spark)
    spark.streams.addListener(_Announcing())
    queries = [started(spark, home) for home in homes]
    while all(query.isActive for query in queries):
        time.sleep(0.1)
    raise AssertionError(next(query.exception() for query in queries if not query.isActive))


if __name__ == "__main__":
    main()
