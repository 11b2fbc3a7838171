"""A client of Spark Connect, or a classic driver, that tests kill. It reads `HOME/events`.

    python connect_driver.py sc://HOST:PORT|MASTER HOME [--die POINT EPOCH] [--parallelism N]
        [--size RECORDS] [--stop EPOCH] [--frames | --stream] [--fail]

With a POINT it kills its process group when EPOCH gets there; a server of Spark Connect lives on.
With `--stop` it stops itself (SIGSTOP) before the commit of EPOCH. It prints `slow` when the
first action begins. `--frames` reads the records as a static frame, `--stream` as a stream of
Spark. With `--fail` a slow record fails.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import SparkSession

import statekit as sk
from statekit.runtime.coordinator import Coordinator
from statekit.spark import epoch
from statekit.spark.concurrent_actions import run_all
from statekit.spark.session import SETTINGS
from tests.support.spark_driver import arm
from tests.support.spark_job import Event, count
from tests.support.timeouts import PATIENCE_S

EPOCH_SIZE = 40
PAUSE = dt.timedelta(seconds=9)
FAILS = False


class Seen(NamedTuple):
    word: str
    number: int
    at: dt.datetime


class Quiet(NamedTuple):
    """Numbers of a word before a pause."""

    word: str
    numbers: list[int]


@sk.process(key="word", event_time="at")
def quiet(seen: Seen, ctx: sk.Context[str], numbers: sk.ListState[int]) -> Iterator[Quiet]:
    if seen.word == "slow":
        if FAILS:
            raise ValueError("a slow record")
        time.sleep(2)
    numbers.append(seen.number)
    ctx.timers.replace(seen.at + PAUSE)
    yield from ()


@quiet.on_timer
def over(timer: sk.Timer, ctx: sk.Context[str], numbers: sk.ListState[int]) -> Iterator[Quiet]:
    yield Quiet(ctx.key, list(numbers))
    numbers.clear()


def without_time(seen: Seen) -> Event:
    return Event(seen.word, seen.number)


def connect_job(home: Path, outputs: Path, *, frames: bool = False) -> sk.Job:
    """Return a job with two operators and two sinks."""
    job = sk.Job("connected")
    source = None if frames else sk.sources.json_lines(home / "events")
    seen = job.source("events", Seen, source)
    seen.map(without_time).process(count).sink("counted", sk.sinks.parquet(outputs / "counted"))
    seen.process(quiet).sink("quiet", sk.sinks.json_lines(outputs / "quiet"))
    return job


def session_of(url: str, home: Path) -> SparkSession:
    if url.startswith("sc:"):
        return SparkSession.builder.remote(url).getOrCreate()
    from tests.support.spark_runs import new_session

    (home / "tmp").mkdir(exist_ok=True)
    return new_session(home / "tmp", url, {**SETTINGS, "spark.executor.memory": "512m"})


def stop_before_commit(number: int) -> None:
    commit = Coordinator.commit

    def stopped(self: Coordinator, *args: Any, **kwargs: Any) -> Any:
        if self.epoch == number:
            print("stopped", flush=True)
            os.kill(os.getpid(), signal.SIGSTOP)
        return commit(self, *args, **kwargs)

    Coordinator.commit = stopped  # type: ignore[method-assign]


def announce_actions() -> None:
    def announced(actions: Any) -> None:
        print("slow", flush=True)
        run_all(actions)

    vars(epoch)["run_all"] = announced


def main() -> None:
    global FAILS
    parser = argparse.ArgumentParser()
    parser.add_argument("spark")
    parser.add_argument("home", type=Path)
    parser.add_argument("--die", nargs=2)
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--size", type=int, default=EPOCH_SIZE)
    parser.add_argument("--stop", type=int)
    parser.add_argument("--frames", action="store_true")
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--fail", action="store_true")
    given = parser.parse_args()
    if given.die is not None:
        arm(given.die[0], int(given.die[1]))
    if given.stop is not None:
        stop_before_commit(given.stop)
    announce_actions()
    FAILS = given.fail
    home: Path = given.home
    spark = session_of(given.spark, home)
    job = connect_job(home, home, frames=given.frames or given.stream)
    options: dict[str, Any] = {
        "checkpoint": home / "checkpoint",
        "parallelism": given.parallelism,
        "drain": True,
        "retention": None,
    }
    inputs = {}
    if given.stream:
        options["trigger"] = {"availableNow": True}
    if given.frames or given.stream:
        reader: Any = spark.readStream if given.stream else spark.read
        schema = "word string, number bigint, at timestamp"
        inputs["events"] = reader.schema(schema).json(str(home / "events"))
    else:
        options |= {"epoch_size": given.size, "trigger": {"availableNow": True}}
    query = job.start(spark, inputs, **options)
    assert query.await_termination(PATIENCE_S)
    names = ("seconds", "restored_bytes", "caught_up_bytes", "changed_bytes")
    epochs = [{name: getattr(each, name) for name in names} for each in query.progress]
    (home / "progress.json").write_text(json.dumps(epochs))
    spark.stop()


if __name__ == "__main__":
    main()
