"""Jobs on Spark that write to PostgreSQL: drivers, workers and the server are killed."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable

import psutil
import pytest

from tests.support.effort import SOAK
from tests.support.postgres import PostgresSchema
from tests.support.postgres_driver import target
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
from tests.support.spark_runs import Runs, pieces

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("class_archive")]

KILLS = 30 if SOAK else 1
"""Kills of each kind."""

SIZE = 12
AHEAD = 8
"""Epochs of input that a driver has, at least."""


def _kill_driver(driver: KillableProcess, postgres: PostgresSchema, chosen: random.Random) -> None:
    time.sleep(chosen.uniform(0.0, 1.0))


def _kill_workers(driver: KillableProcess, postgres: PostgresSchema, chosen: random.Random) -> None:
    """Kill Python workers, perhaps while they write: Spark runs their tasks again."""
    for _ in range(3):
        time.sleep(chosen.uniform(0.0, 0.3))
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in psutil.Process(driver.pid).children(recursive=True):
                words = process.cmdline()
                if "pyspark.daemon" in words and process.parent().name().startswith("python"):
                    process.kill()
    time.sleep(chosen.uniform(0.0, 0.5))


def _kill_server(driver: KillableProcess, postgres: PostgresSchema, chosen: random.Random) -> None:
    time.sleep(chosen.uniform(0.0, 1.0))
    postgres.server.kill()
    postgres.server.start()
    time.sleep(chosen.uniform(0.0, 0.5))


@pytest.mark.parametrize(
    "kill", [_kill_driver, _kill_workers, _kill_server], ids=lambda kill: kill.__name__
)
def test_each_record_is_written_once_whatever_is_killed(
    runs: Runs,
    postgres: PostgresSchema,
    monkeypatch: pytest.MonkeyPatch,
    kill: Callable[[KillableProcess, PostgresSchema, random.Random], None],
) -> None:
    waiting = iter(pieces(events(seed=1, size=SIZE * AHEAD * (KILLS + 1)), SIZE))
    given: list[Event] = []

    def feed_ahead() -> None:
        while len(given) < SIZE * (len(runs.epochs()) + AHEAD):
            piece = next(waiting)
            runs.feed("events", [event._asdict() for event in piece])
            given.extend(piece)

    for seed in range(KILLS):
        feed_ahead()
        log = runs.home / "log"
        with KillableProcess("postgres_driver.py", runs.home, postgres.url, log=log) as driver:
            driver.wait_for("ready")
            kill(driver, postgres, random.Random(seed))
            driver.kill()
            driver.wait()
    monkeypatch.setattr("statekit.spark.epoch._FEW_RECORDS", 0)
    runs.finish(
        counting_job(),
        {"events": runs.stream("events", EVENT_SCHEMA)},
        outputs={"counted": target(postgres.url)},
        parallelism=3,
    )
    rows = postgres.rows("SELECT word, number, seen, before FROM counted ORDER BY _epoch, seen")
    written = [Counted(*row) for row in rows]
    assert sorted((row.word, row.number) for row in written) == sorted(given), "each record once"
    # A kill may let Spark read two files at once, not in their order: the outputs say in which.
    expected, states = counted([Event(row.word, row.number) for row in written])
    assert by_word(written) == by_word(expected)
    for name in ("seen", "numbers", "most"):
        assert runs.state("count", name) == states[name], name
    assert postgres.tables() == ["_statekit_sinks", "counted"], "no staged rows are left"
