"""A run of the job with all connectors, which tests kill.

    python all_connectors_driver.py process|spark|end HOME SERVERS URL TOPICS SEED

It prints `ready` when all is imported, before it opens the checkpoint. It goes on until it is
killed; `end` reads in one process what is there, and ends. On Spark, a task gets four attempts.
"""

from __future__ import annotations

import random
import sys
from importlib import import_module
from pathlib import Path

from statekit.job.progress import RunningJob
from tests.support.all_connectors import Connected
from tests.support.spark_runs import new_session
from tests.support.timeouts import PATIENCE_S

_SLOW_IMPORTS = (
    "statekit.runtime.local",
    "statekit.sinks.lake.delta_log",
    "statekit.sinks.lake.iceberg_log",
)


def run_here(places: Connected, chosen: random.Random, *, follow: bool) -> None:
    for module in _SLOW_IMPORTS:
        import_module(module)
    print("ready", flush=True)
    places.job().run(
        checkpoint=places.checkpoint,
        working_directory=places.home / "working",
        backend=chosen.choice(["memory", "rocksdb"]),
        parallelism=chosen.choice([1, 2, 3]),
        epoch_size=chosen.randint(3, 30) if follow else None,  # one that was begun keeps its size
        follow=follow,
    )


def start_on_spark(places: Connected, chosen: random.Random) -> RunningJob:
    import statekit.spark.epoch

    statekit.spark.epoch._FEW_RECORDS = 0  # also epochs of a few records have a task per shard
    (places.home / "tmp").mkdir(exist_ok=True)
    spark = new_session(places.home / "tmp", "local[2,4]")
    print("ready", flush=True)
    return places.job().start(
        spark,
        checkpoint=places.checkpoint,
        working_directory=places.home / "working",
        parallelism=chosen.choice([1, 2, 3]),
        epoch_size=chosen.randint(3, 30),
    )


def main() -> None:
    runtime, home, servers, url, topics, seed = sys.argv[1:]
    places, chosen = Connected(Path(home), servers, url, topics), random.Random(seed)
    if runtime == "spark":
        assert start_on_spark(places, chosen).await_termination(PATIENCE_S)
    else:
        run_here(places, chosen, follow=runtime == "process")


if __name__ == "__main__":
    main()
