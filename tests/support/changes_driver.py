"""A Spark driver that tests kill: streams the changes of `HOME/c` of each home to `HOME/out`.

    python changes_driver.py HOME...

It prints `ready` when the first micro-batch of any query has ended. It does not end by itself.
"""

from __future__ import annotations

import sys
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


class _Announcing(StreamingQueryListener):
    def onQueryStarted(self, event: Any) -> None:
        pass

    def onQueryProgress(self, event: Any) -> None:
        print("ready", flush=True)

    def onQueryIdle(self, event: Any) -> None:
        pass

    def onQueryTerminated(self, event: Any) -> None:
        if event.exception is not None:
            print(event.exception, file=sys.stderr, flush=True)


def main() -> None:
    homes = [Path(name) for name in sys.argv[1:]]
    (homes[0] / "tmp").mkdir(exist_ok=True)
    spark = new_session(homes[0] / "tmp")
    register(spark)
    spark.streams.addListener(_Announcing())
    for home in homes:
        follow(spark, home)
    spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    main()
