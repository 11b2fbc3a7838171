"""Killed with SIGKILL at any point, a job goes on as if nothing had happened."""

from __future__ import annotations

import json
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
from statekit.reader import CheckpointReader
from tests.support import local_process, spark_driver, timed_process
from tests.support.spark_drivers import KillableProcess
from tests.support.spark_job import (
    EVENT_SCHEMA,
    Counted,
    Event,
    by_word,
    counted,
    counting_job,
    events,
)
from tests.support.spark_runs import Runs, pieces, state_of

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("class_archive")]

SOAK = 10 if os.environ.get("STATEKIT_SOAK") else 1


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


def test_a_driver_killed_between_any_two_effects_of_an_epoch(runs: Runs) -> None:
    given = events(seed=1, size=8 * 15)
    _feed(runs, given, 15)
    for epoch, point in enumerate(spark_driver.POINTS, 1):
        arguments = (runs.home, "local[2]", point, epoch)
        with KillableProcess("spark_driver.py", *arguments, log=runs.home / "log") as victim:
            assert victim.wait() == -signal.SIGKILL, (point, victim.log())
        committed = epoch + 1 if point == spark_driver.POINTS[-1] else epoch
        assert runs.epochs() == list(range(committed)), point
    _finish_and_check(runs, given)
    assert runs.epochs() == list(range(8)), "one epoch per micro-batch, none twice"


CHAINS = 5 * SOAK
KILLS_PER_CHAIN = 10
EPOCHS_AHEAD = 12


@pytest.mark.parametrize(
    "seeds",
    [range(KILLS_PER_CHAIN * n, KILLS_PER_CHAIN * (n + 1)) for n in range(CHAINS)],
    ids=str,
)
def test_a_driver_killed_at_random_points(runs: Runs, seeds: range) -> None:
    """Each seed is one kill: how many epochs the driver is let through, and how far into the next.

    A cold JVM takes seconds for its first epoch and half a second for those that follow.
    """
    waiting = pieces(events(seed=seeds[0], size=6 * EPOCHS_AHEAD * (len(seeds) + 1)), 6)
    given: list[Event] = []
    for seed in seeds:
        for piece in waiting[len(given) // 6 : len(runs.epochs()) + EPOCHS_AHEAD]:
            _feed(runs, piece, 6)
            given += piece
        _kill_at_random(runs.home, random.Random(seed))
        held = sum(runs.state("count", "seen").values()) if runs.epochs() else 0
        # A kill between two logs of Spark's file source lets the next batch have two files, which
        # Spark does not read in their order.
        assert held % 6 == 0, f"half an epoch after seed {seed}"
        assert held >= 6 * len(runs.epochs()), f"an epoch without records after seed {seed}"
    _finish_and_check(runs, given, reordered=True)


def _kill_at_random(home: Path, chosen: random.Random) -> None:
    with KillableProcess("spark_driver.py", home, "local[2]", log=home / "log") as victim:
        victim.wait_for("ready")
        if chosen.random() < 0.5:
            time.sleep(chosen.uniform(0.0, 3.0))
        else:
            victim.wait_for("ready")
            time.sleep(chosen.uniform(0.0, 0.6))
        victim.kill()
        assert victim.wait() == -signal.SIGKILL, "it had come to its end before"


def _killed(script: str, home: Path, seeds: range, *, within_s: float) -> Iterator[int]:
    """Kill a process once per seed, which is yielded, and let a last one come to its end."""
    for seed in seeds:
        chosen = random.Random(seed)
        shards = chosen.choice([1, 2, 3, 3, 3])
        with KillableProcess(script, home, seeds[0], shards, log=home / "log") as victim:
            victim.wait_for("ready")
            time.sleep(chosen.uniform(0.0, within_s))
        yield seed
    with KillableProcess(script, home, seeds[0], 3, log=home / "log") as victim:
        assert victim.wait() == 0, victim.log()


GROUPS = 7 * SOAK
POINTS_PER_GROUP = 7


@pytest.mark.parametrize(
    "seeds",
    [range(POINTS_PER_GROUP * n, POINTS_PER_GROUP * (n + 1)) for n in range(GROUPS)],
    ids=str,
)
def test_a_process_on_rocksdb_killed_at_random_points(tmp_path: Path, seeds: range) -> None:
    """Each seed is one kill: its delay, and how many shards the next process has."""
    given = events(seeds[0], local_process.EPOCHS * local_process.EPOCH_SIZE)
    out = tmp_path / "out"
    for seed in _killed("local_process.py", tmp_path, seeds, within_s=0.5):
        _check_prefix(tmp_path, given, seed)

    expected, states = counted(given)
    outputs = [Counted(*row) for path in sorted(out.glob("*.json")) for row in _rows(path)]
    assert by_word(outputs) == by_word(expected)
    uninterrupted = counting_job().run(
        {"events": given}, parallelism=3, epoch_size=local_process.EPOCH_SIZE
    )
    assert by_word(uninterrupted["counted"]) == by_word(outputs)
    for name in ("seen", "numbers", "most"):
        found = state_of(tmp_path / "checkpoint", "count", name, tmp_path / "unpacked")
        assert found == states[name], name


TIMED_GROUPS = 3 * SOAK


@pytest.mark.parametrize(
    "seeds",
    [range(POINTS_PER_GROUP * n, POINTS_PER_GROUP * (n + 1)) for n in range(TIMED_GROUPS)],
    ids=str,
)
def test_no_timer_is_called_twice_or_never_by_a_process_that_is_killed(
    tmp_path: Path, seeds: range
) -> None:
    """Each seed is one kill. By event time all is as if uninterrupted, whatever the parallelism."""
    for _ in _killed("timed_process.py", tmp_path, seeds, within_s=1.0):
        pass

    given = timed_process.given(seeds[0])
    calm = timed_process.timed_job().run(
        {"seen": given}, parallelism=2, epoch_size=timed_process.EPOCH_SIZE
    )
    found = {
        sink: sorted(
            row for path in sorted((tmp_path / sink).glob("*.json")) for row in _rows(path)
        )
        for sink in timed_process.SINKS
    }
    assert found["counted"] == sorted(map(list, calm["counted"]))
    closed = [row for row in found["rang"] if row[1] == "close"]
    assert closed == sorted(list(rang) for rang in calm["rang"] if rang.timer == "close")
    rung = sorted(number for row in found["rang"] if row[1] == "wall" for number in row[2])
    assert rung == sorted(n for rang in calm["rang"] if rang.timer == "wall" for n in rang.numbers)
    assert len(set(rung)) == len(rung), "none twice"
    _check_watermarks(tmp_path / "checkpoint")


def _check_watermarks(checkpoint: Path) -> None:
    reader = CheckpointReader(checkpoint)
    manifests = [reader.repository.manifest(epoch) for epoch in reader.epochs]
    for name in reader.manifest.operators:
        marks = [manifest.operators[name].watermark_us or 0 for manifest in manifests]
        assert marks == sorted(marks), f"the watermark of {name} went back"
    instants = [manifest.processing_time_us for manifest in manifests]
    assert instants == sorted(instants), "processing time went back"
    assert not any(
        shard.wake_us for op in reader.manifest.operators.values() for shard in op.shards
    )


def _rows(path: Path) -> list[Any]:
    return list(json.loads(path.read_text()))


def _check_prefix(home: Path, given: list[Event], seed: int) -> None:
    """What is committed after a kill is what plain Python holds after as many records."""
    if not list((home / "checkpoint" / "epochs").glob("*.json")):
        return
    offset = CheckpointReader(home / "checkpoint").manifest.offsets["events"]
    found = state_of(home / "checkpoint", "count", "numbers", home / "unpacked")
    assert found == counted(given[:offset])[1]["numbers"], f"after the kill of seed {seed}"


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


def test_a_killed_worker_fails_the_query_and_a_restart_goes_on(runs: Runs) -> None:
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
