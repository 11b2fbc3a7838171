"""Tables of lakes, written by the workers of Spark and committed by its driver."""

from __future__ import annotations

from pathlib import Path

import pytest

import statekit as sk
from tests.support.lake_tables import LAKES, lake
from tests.support.spark_job import EVENT_SCHEMA, Event, by_word, count, counted, events
from tests.support.spark_runs import Runs, pieces

SIZE = 12


def _lake_job(home: Path) -> sk.Job:
    """The counting job, whose outputs go to a table of each kind."""
    job = sk.Job("counting")
    counts = job.source("events", Event).process(count)
    for kind in LAKES:
        counts.sink(kind, lake(kind, home / kind).sink())
    return job


def _feed(runs: Runs, given: list[Event]) -> None:
    for piece in pieces(given, SIZE):
        runs.feed("events", [event._asdict() for event in piece])


def _finish(runs: Runs, parallelism: int) -> None:
    stream = runs.stream("events", EVENT_SCHEMA)
    runs.finish(_lake_job(runs.home), {"events": stream}, parallelism=parallelism)


def _check(runs: Runs, given: list[Event]) -> None:
    for kind in LAKES:
        rows = lake(kind, runs.home / kind).read().to_pylist()
        handled = [Event(row["word"], row["number"]) for row in rows]
        assert sorted(handled) == sorted(given), f"each record once in {kind}"
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
