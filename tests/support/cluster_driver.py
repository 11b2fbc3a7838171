"""A Spark driver on a cluster: streams `HOME/events` through two operators to its end.

    python cluster_driver.py HOME MASTER

What the functions do beside counting depends on the number of a record, and on files in HOME:
there they note who handled what, and there they are told to go on.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from pyspark import TaskContext

import statekit as sk
from tests.support.spark_job import Digit, Event
from tests.support.spark_runs import SHORT_LIVED, drive
from tests.support.timeouts import PATIENCE_S

SHARDS = 4
EPOCH = 1000
"""The number of a record is that of its epoch times this, and something below it."""

STRAGGLES, DIES, LOSES, ENDS = 1, 2, 3, 4
"""Epochs in which a task is slow, an executor dies in the midst of the first operator, one dies in
the midst of the second with what the first has put out, and working copies may be looked at."""


class Handled(NamedTuple):
    """What a task attempt notes when it comes to the records of a key in an epoch."""

    operator: str
    epoch: int
    partition: int
    attempt: int
    executor: int


def relay_job(home: Path) -> sk.Job:
    """Two operators in a row, keyed differently, into one sink: Spark runs them in two stages."""

    @sk.process(key="word")
    def spell(
        event: Event,
        seen: sk.ValueState[int],
        numbers: sk.ListState[int],
        digits: sk.MapState[int, int],
    ) -> Iterator[Digit]:
        epoch = event.number // EPOCH
        note(home, "spell", epoch)
        if epoch == DIES or (epoch == STRAGGLES and first_of_all(home)):
            wait_for(home / f"go-{epoch}")
        seen.update((seen.get() or 0) + 1)
        numbers.append(event.number)
        digits[event.number % 10] = digits.get(event.number % 10, 0) + 1
        yield Digit(event.number % 10, event.number)

    @sk.process(key="digit")
    def add(digit: Digit, total: sk.ValueState[int]) -> Iterator[Digit]:
        epoch = digit.number // EPOCH
        note(home, "add", epoch)
        if epoch in (LOSES, ENDS):
            wait_for(home / f"go-{epoch}")
        total.update((total.get() or 0) + digit.number)
        yield digit

    job = sk.Job("relay")
    job.source("events", Event).process(spell).process(add).sink("out")
    return job


def note(home: Path, operator: str, epoch: int) -> None:
    task: Any = TaskContext.get()
    executor = psutil.Process(os.getppid()).ppid()  # it started what forks Python workers
    handled = Handled(operator, epoch, task.partitionId(), task.attemptNumber(), executor)
    path = home / "handled" / f"{operator}-{epoch}-{task.taskAttemptId()}"
    if not path.exists():
        draft = path.with_name(f".{path.name}")
        draft.write_text(json.dumps(handled))
        draft.rename(path)


def first_of_all(home: Path) -> bool:
    """Whether nobody has asked before."""
    try:
        (home / "first").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def wait_for(path: Path) -> None:
    until = time.monotonic() + PATIENCE_S
    while not path.exists():
        assert time.monotonic() < until, f"nobody made {path}"
        time.sleep(0.02)


OPTIONS = {
    "spark.pyspark.python": sys.executable,
    "spark.python.daemon.module": "statekit.spark.worker_daemon",  # imports once per executor
    "spark.executorEnv.PYTHONPATH": os.environ.get("PYTHONPATH", ""),
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": " ".join(SHORT_LIVED),
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.multiplier": "1.01",
    "spark.speculation.minTaskRuntime": "0ms",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.eventLog.rolling.enabled": "false",
    "spark.python.task.killTimeout": "100ms",
}


def main() -> None:
    home, master = Path(sys.argv[1]), sys.argv[2]
    options = {**OPTIONS, "spark.eventLog.dir": (home / "log-of-events").as_uri()}
    drive([home], master, relay_job(home), "out", SHARDS, options=options)


if __name__ == "__main__":
    main()
