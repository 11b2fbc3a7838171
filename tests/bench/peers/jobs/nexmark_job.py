"""A query of Nexmark as a job of statekit on Spark, which reads its files as a stream in batches.

Arguments: the events, as `tests.bench.nexmark.streams` writes them, the number of the query, a
scratch directory, and `nowhere` or `files` for the results, which are Parquet in `out`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

import statekit as sk
from tests.bench.nexmark.queries import QUERIES
from tests.bench.nexmark.streams import PARTITIONS, TIMES, file_schema
from tests.bench.on_spark import SHARDS, session
from tests.bench.peers.jobs.handshake import bytes_in, done, ready


def stream(spark: SparkSession, events: Path, kind: str) -> DataFrame:
    """Events of a kind, a batch of files at a time."""
    reader = spark.readStream.schema(from_arrow_schema(file_schema(kind)))
    reader = reader.option("maxFilesPerTrigger", PARTITIONS)
    frame = reader.json(str(events / "batches" / kind))
    return frame.withColumns(
        {name: F.timestamp_millis(name) for name in TIMES if name in frame.columns}
    )


def main(events: Path, number: int, home: Path, into: str) -> None:
    spark, query = session(), QUERIES[number]
    frames = {
        name: front.of_kind(stream(spark, events, f"{front.kind}s"))
        for name, front in query.fronts.items()
    }
    out = sk.sinks.parquet(home / "out") if into == "files" else sk.sinks.writer("noop")
    ready()
    query.job().start(
        spark,
        frames,
        outputs={"out": out},
        checkpoint=home / "checkpoint",
        working_directory=home / "working",
        parallelism=SHARDS,
        trigger={"availableNow": True},
        drain=True,
    ).await_termination()
    done(check=0, of="nothing", written=bytes_in(home / "checkpoint", home / "working"))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
