"""Killed with SIGKILL at any point, a job goes on as if nothing had happened."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import statekit as sk
from tests.support import spark_driver
from tests.support.effort import SOAK
from tests.support.spark_drivers import KillableProcess
from tests.support.spark_job import EVENT_SCHEMA, Event, by_word, counted, counting_job, events
from tests.support.spark_runs import Runs, pieces

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("class_archive")]


def _feed(runs: Runs, given: Sequence[Event], size: int) -> None:
    for piece in pieces(given, size):
        runs.feed("events", [event._asdict() for event in piece])


def _finish_and_check(runs: Runs, given: list[Event], *, reordered: bool = False) -> None:
    """Let the shared session read the rest, then hold everything against plain Python.

    Parameters:
        reordered: whether Spark may have handed on the records in another order than that of its
            files. The outputs say which, and outputs and state have to agree about it.
    """
    runs.finish(
        counting_job(),
        {"events": runs.stream("events", EVENT_SCHEMA)},
        outputs={"counted": sk.sinks.parquet(runs.home / "out")},
        parallelism=3,
    )
    handled = [Event(row["word"], row["number"]) for row in runs.parquet("out")]
    assert sorted(handled) == sorted(given), "each record once"
    expected, states = counted(handled if reordered else given)
    assert by_word(runs.parquet("out")) == by_word(expected)
    for name in ("seen", "numbers", "most"):
        assert runs.state("count", name) == states[name], name
    epochs = runs.epochs()
    assert epochs == list(range(len(epochs))), "one epoch per micro-batch, none left out"


# Processes without Spark are killed at all of them each time (test_crash_protocol).
POINTS = spark_driver.POINTS if SOAK else ("between the sink and the manifest",)

BATCHES = len(POINTS) + 3


def test_a_driver_killed_between_any_two_effects_of_an_epoch(runs: Runs) -> None:
    given = events(seed=1, size=BATCHES * 15)
    _feed(runs, given, 15)
    for epoch, point in enumerate(POINTS, 1):
        arguments = ("local[2]", runs.home, "--die", point, epoch)
        with KillableProcess("spark_driver.py", *arguments, log=runs.home / "log") as driver:
            assert driver.wait() == -signal.SIGKILL, (point, driver.log())
        committed = epoch + 1 if point == spark_driver.POINTS[-1] else epoch
        assert runs.epochs() == list(range(committed)), point
    _finish_and_check(runs, given)
    assert runs.epochs() == list(range(BATCHES)), "one epoch per micro-batch, none twice"


CHAINS = 5
"""Streams with a checkpoint each, which one driver runs and one kill ends at different points."""

KILLS = 70 if SOAK else 2
EPOCHS_AHEAD = 12


def test_a_driver_killed_at_random_points_has_the_results_of_one_that_was_not(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Each kill hits five streams, each in an epoch of its own, or between two.

    A cold JVM takes seconds for its first epoch and half a second for those that follow.
    """
    chains = [
        _Chain(Runs(spark, tmp_path / f"chain-{number}"), seed=number) for number in range(CHAINS)
    ]
    for seed in range(KILLS):
        for chain in chains:
            chain.feed_ahead()
        homes = [chain.runs.home for chain in chains]
        _kill_at_random(homes, tmp_path / "log", random.Random(seed))
        for chain in chains:
            chain.check(f"seed {seed}, {chain.runs.home.name}")
    for chain in chains:
        _finish_and_check(chain.runs, chain.given, reordered=True)


class _Chain:
    """A stream whose drivers are killed one after the other.

    Attributes:
        given: the records that the stream has, or had.
    """

    def __init__(self, runs: Runs, seed: int) -> None:
        runs.home.mkdir()
        self.runs = runs
        self.given: list[Event] = []
        self._waiting = pieces(events(seed, size=6 * EPOCHS_AHEAD * (KILLS + 1)), 6)

    def feed_ahead(self) -> None:
        """Write input for some epochs more than have been committed."""
        begin, end = len(self.given) // 6, len(self.runs.epochs()) + EPOCHS_AHEAD
        for piece in self._waiting[begin:end]:
            _feed(self.runs, piece, 6)
            self.given += piece

    def check(self, after: str) -> None:
        """Make sure that whole epochs are committed."""
        epochs = self.runs.epochs()
        count = sum(self.runs.state("count", "seen").values()) if epochs else 0
        # A kill between two logs of Spark's file source lets the next batch have two files, which
        # Spark does not read in their order.
        assert count % 6 == 0, f"half an epoch after {after}"
        assert count >= 6 * len(epochs), f"an epoch without records after {after}"


def _kill_at_random(homes: list[Path], log: Path, chosen: random.Random) -> None:
    with KillableProcess("spark_driver.py", "local[2]", *homes, log=log) as driver:
        driver.wait_for("ready")
        if chosen.random() < 0.5:
            time.sleep(chosen.uniform(0.0, 5.0))
        else:
            driver.wait_for("ready 2")
            time.sleep(chosen.uniform(0.0, 1.0))
        driver.kill()
        assert driver.wait() == -signal.SIGKILL, "it had come to its end before"


# ------------------------------------------------------------------------------------- workers


def _dies_once(marker: Path) -> sk.Process[Event, Any, int]:
    """The counting function; the first worker to see the marker's word dies in the midst of it."""

    @sk.process(key="word")
    def dying(event: Event, seen: sk.ValueState[int], numbers: sk.ListState[int]) -> Iterator[int]:
        if event.number == 13 and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        seen.update((seen.get() or 0) + 1)
        numbers.append(event.number)
        yield seen.get() or 0

    return dying


def _dying_job(marker: Path) -> sk.Job:
    job = sk.Job("dying")
    job.source("events", Event).process(_dies_once(marker), name="count").sink("out")
    return job


def _with_a_13(seed: int) -> list[Event]:
    given = [event for event in events(seed, 60) if event.number != 13]
    return [*given[:30], Event("w1", 13), *given[30:]]


def _check_dying(runs: Runs, given: list[Event]) -> None:
    states = counted(given)[1]
    assert runs.state("count", "seen") == states["seen"]
    assert runs.state("count", "numbers") == states["numbers"]
    expected = sorted(row.seen for row in counted(given)[0])
    assert sorted(row["value"] for row in runs.parquet("out")) == expected


def test_a_killed_worker_fails_the_query_and_a_restart_continues(runs: Runs) -> None:
    given = _with_a_13(seed=2)
    _feed(runs, given, 20)
    job, marker = _dying_job(runs.home / "marker"), runs.home / "marker"
    inputs = {"events": runs.stream("events", EVENT_SCHEMA)}
    outputs = {"out": sk.sinks.parquet(runs.home / "out")}
    with pytest.raises(Exception, match="worker"):
        runs.finish(job, inputs, outputs=outputs)
    assert marker.exists()
    assert runs.epochs() == [0]
    runs.finish(job, inputs, outputs=outputs)
    _check_dying(runs, given)


def test_a_killed_workers_task_is_retried_within_the_same_epoch(
    runs: Runs, spark: SparkSession
) -> None:
    """Four attempts per task: the query does not notice; so this needs a driver of its own."""
    given = _with_a_13(seed=3)
    _feed(runs, given, 20)
    arguments = (runs.home, "local[2,4]")
    with KillableProcess("retry_driver.py", *arguments, log=runs.home / "log") as victim:
        assert victim.wait() == 0, victim.log()
    assert (runs.home / "marker").exists()
    assert runs.epochs() == [0, 1, 2, 3]
    _check_dying(runs, given)
