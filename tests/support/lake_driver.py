"""A Spark driver that tests kill: streams `HOME/events` through the counting job into two tables.

    python lake_driver.py HOME

It prints `ready` when the first micro-batch begins, and `ready 2` at the second one.
"""

from __future__ import annotations

import sys
from pathlib import Path

import statekit as sk
from tests.support.lake_tables import lake
from tests.support.spark_driver import announce
from tests.support.spark_job import EVENT_SCHEMA, Event, count
from tests.support.spark_runs import ONCE, new_session, stream_of
from tests.support.timeouts import PATIENCE_S

KINDS = ("delta", "iceberg")


def lake_job(home: Path) -> sk.Job:
    """The counting job, whose outputs go to a table of each kind."""
    job = sk.Job("counting")
    counts = job.source("events", Event).process(count)
    for kind in KINDS:
        counts.sink(kind, lake(kind, home / kind).sink())
    return job


def main() -> None:
    home = Path(sys.argv[1])
    announce()
    (home / "tmp").mkdir(exist_ok=True)
    spark = new_session(home / "tmp")
    query = lake_job(home).start(
        spark,
        {"events": stream_of(spark, home / "events", EVENT_SCHEMA)},
        checkpoint=home / "checkpoint",
        working_directory=home / "working",
        parallelism=2,
        trigger=ONCE,
        retention=None,
    )
    assert query.await_termination(PATIENCE_S)


if __name__ == "__main__":
    main()
