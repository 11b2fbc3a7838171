"""Tables of lakes, written by the workers of Spark and committed by its driver."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import pytest

from tests.support.effort import SOAK
from tests.support.lake_driver import KINDS, lake_job
from tests.support.lake_tables import lake
from tests.support.spark_drivers import KillableProcess
from tests.support.spark_job import EVENT_SCHEMA, Event, by_word, counted, events
from tests.support.spark_runs import Runs, pieces

SIZE = 12
KILLS = 20 if SOAK else 1


def _feed(runs: Runs, given: list[Event]) -> None:
    for piece in pieces(given, SIZE):
        runs.feed("events", [event._asdict() for event in piece])


def _finish(runs: Runs, parallelism: int) -> None:
    stream = runs.stream("events", EVENT_SCHEMA)
    runs.finish(lake_job(runs.home), {"events": stream}, parallelism=parallelism)


def _check(runs: Runs, given: list[Event], *, reordered: bool = False) -> None:
    for kind in KINDS:
        rows = lake(kind, runs.home / kind).read().to_pylist()
        handled = [Event(row["word"], row["number"]) for row in rows]
        assert sorted(handled) == sorted(given), f"each record once in {kind}"
        if not reordered:
            found = {word: sorted(each) for word, each in by_word(rows).items()}
            expected = {word: sorted(each) for word, each in by_word(counted(given)[0]).items()}
            assert found == expected


def _forget(runs: Runs, epoch: int) -> None:
    """As if the driver had been killed between the sinks and the manifest of an epoch."""
    (runs.checkpoint / "epochs" / f"{epoch:020d}.json").unlink()
    for path in (runs.checkpoint / "spark" / "commits").glob(f"*{epoch}*"):
        path.unlink()


def test_a_replayed_epoch_leaves_each_record_once(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("statekit.spark.epoch._FEW_RECORDS", 0)  # a task, and a file, per shard
    given = events(seed=1, size=3 * SIZE)
    _feed(runs, given)
    _finish(runs, parallelism=3)
    _check(runs, given)
    _forget(runs, 2)
    _finish(runs, parallelism=1)
    _check(runs, given)


@pytest.mark.slow
@pytest.mark.usefixtures("class_archive")
def test_a_driver_that_is_killed_again_and_again_leaves_each_record_once(runs: Runs) -> None:
    given = events(seed=2, size=(KILLS + 1) * 20 * SIZE)
    _feed(runs, given)
    for seed in range(KILLS):
        _kill_at_random(runs.home, random.Random(seed))
    _finish(runs, parallelism=3)
    _check(runs, given, reordered=True)


def _kill_at_random(home: Path, chosen: random.Random) -> None:
    with KillableProcess("lake_driver.py", home, log=home / "log") as driver:
        driver.wait_for("ready" if chosen.random() < 0.3 else "ready 2")
        time.sleep(chosen.uniform(0.0, 4.0))
        driver.kill()
        assert driver.wait() == -signal.SIGKILL, f"it had come to its end before: {driver.log()}"
