"""A Spark driver one of whose workers dies: with four attempts per task, the query goes on.

python retry_victim.py HOME MASTER
"""

from __future__ import annotations

import sys
from pathlib import Path

import statekit as sk
from tests.spark.spark_jobs import EVENT_SCHEMA
from tests.spark.spark_runs import ONCE, TIMEOUT_S, new_session, stream_of
from tests.spark.test_kills import _dying_job


def main() -> None:
    home, master = Path(sys.argv[1]), sys.argv[2]
    (home / "tmp").mkdir(exist_ok=True)
    spark = new_session(home / "tmp", master)
    query = _dying_job(home / "marker").start(
        spark,
        {"events": stream_of(spark, home / "events", EVENT_SCHEMA)},
        outputs={"out": sk.sinks.parquet(home / "out")},
        checkpoint=home / "checkpoint",
        working_directory=home / "working",
        parallelism=2,
        trigger=ONCE,
    )
    assert query.await_termination(TIMEOUT_S)
    spark.stop()


if __name__ == "__main__":
    main()
