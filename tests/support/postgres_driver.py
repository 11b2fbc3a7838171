"""A Spark driver that tests kill: streams `HOME/events` through the counting job to PostgreSQL.

    python postgres_driver.py HOME URL

It prints `ready` when it first writes outputs. A task gets four attempts.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import DataFrame

import statekit as sk
from statekit.sinks import Attempt, Postgres, Receipt, Sink
from statekit.spark.epoch import EpochRunner
from tests.support.spark_job import counting_job
from tests.support.spark_runs import drive


def target(url: str) -> Postgres:
    return sk.sinks.postgres(url, "counted", retry_s=60)


def write_in_parts() -> None:
    """Let also epochs of a few records have a task per shard."""
    import statekit.spark.epoch

    statekit.spark.epoch._FEW_RECORDS = 0


def _announce() -> None:
    inner = EpochRunner._staged

    def wrapped(
        self: EpochRunner, df: DataFrame, name: str, sink: Sink, attempt: Attempt
    ) -> list[Receipt]:
        print("ready", flush=True)
        return inner(self, df, name, sink, attempt)

    EpochRunner._staged = wrapped  # type: ignore[method-assign]


def main() -> None:
    home, url = Path(sys.argv[1]), sys.argv[2]
    write_in_parts()
    _announce()
    drive([home], "local[2,4]", counting_job(), "counted", output=lambda _: target(url))


if __name__ == "__main__":
    main()
