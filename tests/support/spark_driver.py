"""A Spark driver that tests kill: streams `HOME/events` through the counting job to its end.

    python spark_driver.py HOME MASTER [POINT EPOCH [PARALLELISM]]

With a POINT it kills its own process group, the JVM with it, when EPOCH gets there. Without one it
prints `ready` when a micro-batch comes, and waits to be killed from outside.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from statekit.runtime.coordinator import Coordinator
from statekit.spark import query as query_module
from statekit.spark import sink_writer as writing
from statekit.spark.epoch import EpochRunner
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
            here = epoch_of(self) == epoch
            if here and before:
                die()
            result = inner(self, *args, **kwargs)
            if here:
                die()
            return result

        setattr(cls, name, wrapped)

    def of_sink(sink: Any) -> int:
        return int(sink._prefix.split("-")[1])

    if number == 0:
        at(EpochRunner, "_write", lambda runner: runner._coordinator.epoch, before=True)
    elif number == 1:
        at(writing._ParquetEpoch, "_publish", of_sink, before=True)
    elif number == 2:

        def publish_one(self: Any, parts: list[Any]) -> None:
            if of_sink(self) != epoch:
                publish(self, parts)
                return
            home = self._path_of(self._home, f"{self._prefix}00000.parquet")
            assert self._files.rename(parts[0], home)
            die()

        publish = writing._ParquetEpoch._publish
        writing._ParquetEpoch._publish = publish_one  # type: ignore[method-assign]
    elif number == 3:
        at(Coordinator, "commit", lambda coordinator: coordinator.epoch, before=True)
    else:
        at(Coordinator, "commit", lambda coordinator: coordinator.epoch, before=False)


def announce() -> None:
    inner = query_module.Run._on_batch

    def wrapped(self: Any, df: Any, batch: int) -> None:
        print("ready", flush=True)
        inner(self, df, batch)

    query_module.Run._on_batch = wrapped  # type: ignore[method-assign]


def main() -> None:
    home, master, *rest = sys.argv[1:]
    if rest:
        arm(rest[0], int(rest[1]))
    else:
        announce()
    drive(Path(home), master, counting_job(), "counted", int(rest[2]) if rest[2:] else 2)


if __name__ == "__main__":
    main()
