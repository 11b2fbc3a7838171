"""A Spark driver that tests kill: streams each `HOME/events` through the counting job to its end.

    python spark_driver.py MASTER HOME... [--die POINT EPOCH] [--parallelism N]

With a POINT it kills its own process group, the JVM with it, when EPOCH gets there. It prints
`ready` when the first micro-batch of any stream begins, and `ready 2` at the second of one.
"""

from __future__ import annotations

import argparse
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

from statekit.checkpoint.store import Store
from statekit.runtime.coordinator import Coordinator
from statekit.sinks.files import Files
from statekit.sinks.protocol.sink import Attempt
from statekit.spark.epoch import EpochRunner
from statekit.spark.query import Query
from tests.support.spark_job import counting_job
from tests.support.spark_runs import drive

POINTS = (
    "before the change files",
    "between the change files and the sink",
    "while the sink's files are moved",
    "between the sink and the manifest",
    "between the manifest and Spark's own commit",
)


def die(*_: Any) -> None:
    os.killpg(0, signal.SIGKILL)


def arm(point: str, epoch: int) -> None:
    """Let this process die when the epoch reaches the point."""
    number = POINTS.index(point)

    def at(cls: Any, name: str, epoch_of: Any, *, before: bool) -> None:
        inner = getattr(cls, name)

        def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
            here = epoch_of(self, *args, **kwargs) == epoch
            if here and before:
                die()
            result = inner(self, *args, **kwargs)
            if here:
                die()
            return result

        setattr(cls, name, wrapped)

    def of_attempt(_: Any, attempt: Attempt, *__: Any) -> int:
        return attempt.epoch

    if number == 0:
        at(EpochRunner, "_write", lambda runner, *_: runner._coordinator.epoch, before=True)
    elif number == 1:
        at(Files, "publish", of_attempt, before=True)
    elif number == 2:
        moved = Store.move

        def move_one(self: Store, path: str, target: str) -> None:
            moved(self, path, target)
            if target.startswith(f"epoch-{epoch:020d}-"):
                die()

        Store.move = move_one  # type: ignore[method-assign]
    elif number == 3:
        at(Coordinator, "commit", lambda coordinator, *_, **__: coordinator.epoch, before=True)
    else:
        at(Coordinator, "commit", lambda coordinator, *_, **__: coordinator.epoch, before=False)


def announce() -> None:
    inner = Query._on_batch
    batches: Counter[int] = Counter()

    def wrapped(self: Any, df: Any, batch: int) -> None:
        batches[id(self)] += 1
        if batches.total() == 1:
            print("ready", flush=True)
        if batches[id(self)] == 2:
            print("ready 2", flush=True)
        inner(self, df, batch)

    Query._on_batch = wrapped  # type: ignore[method-assign]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("master")
    parser.add_argument("homes", nargs="+", type=Path)
    parser.add_argument("--die", nargs=2)
    parser.add_argument("--parallelism", type=int, default=2)
    given = parser.parse_args()
    if given.die is not None:
        arm(given.die[0], int(given.die[1]))
    announce()
    drive(given.homes, given.master, counting_job(), "counted", given.parallelism)


if __name__ == "__main__":
    main()
