"""Random kills of the job with all connectors, and of what it is connected to."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from statekit.checkpoint.repository import Repository
from tests.support.all_connectors import Connected, Feed
from tests.support.kafka_broker import KafkaBroker
from tests.support.postgres import PostgresSchema
from tests.support.spark_drivers import KillableProcess
from tests.support.timeouts import PATIENCE_S
from tests.support.waiting import until

Runtime = Literal["process", "spark"]

_WITHIN_S = {"process": 1.0, "spark": 2.5}
"""Kills follow within so many seconds of the moment that they wait for: about an epoch."""

_REPEATS = 10_000
"""More records than a topic has."""


@dataclass
class KilledRuns:
    """Runs of the job that are killed, one after the other.

    The broker is suspended, and not killed: Tansu loses acknowledged records if it is killed.

    Parameters:
        runtime: of the runs.
        home: an empty directory.

    Attributes:
        kills: what was killed, and how often. A broker that was suspended is in it, too.
    """

    runtime: Runtime
    home: Path
    kafka: KafkaBroker
    postgres: PostgresSchema
    topics: str
    kills: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.places = Connected(self.home, self.kafka.servers, self.postgres.url, self.topics)
        self.feed = Feed(self.places, self.kafka)
        self._within_s = _WITHIN_S[self.runtime]
        self._others = {"database": self._kill_database, "broker": self._suspend_broker}
        if self.runtime == "spark":
            self._others["workers"] = self._kill_workers

    def run(self, seed: int) -> None:
        """Start a run, kill a few others while it works, and then the run."""
        chosen = random.Random(seed)
        self.feed.write(chosen.randint(1, 30))
        with self._started(self.runtime, seed) as run:
            self._wait_for_a_moment(run, chosen)
            for name in chosen.sample(sorted(self._others), chosen.choice([0, 1, 1, 2])):
                time.sleep(chosen.uniform(0.0, self._within_s))
                self._others[name](run, chosen)
                self.kills[name] += 1
                self.feed.write(chosen.randint(1, 15))
            time.sleep(chosen.uniform(0.0, self._within_s))
            run.kill()
            assert run.wait() == -signal.SIGKILL, f"seed {seed}: it ended by itself: {run.log()}"
        self.kills["runs"] += 1

    def finish(self) -> None:
        """Read the rest in one process, and check what all sinks and the state have."""
        epochs, records = self.epochs(), len(self.feed.given)
        print(f"killed or suspended: {dict(self.kills)}; {epochs} epochs, {records:,} records")
        with self._started("end", seed=0) as run:
            assert run.wait() == 0, run.log()
        # A task of Spark that runs again may write its part of a topic again.
        self.places.check(self.feed.given, _REPEATS if self.runtime == "spark" else None)

    def epochs(self) -> int:
        """The number of epochs that are committed."""
        epoch = Repository(self.places.checkpoint).latest_epoch()
        return 0 if epoch is None else epoch + 1

    def _started(self, runtime: str, seed: int) -> KillableProcess:
        at = (self.home, self.kafka.servers, self.postgres.url, self.topics)
        script = "all_connectors_driver.py"
        return KillableProcess(script, runtime, *at, seed, log=self.home / "log")

    def _wait_for_a_moment(self, run: KillableProcess, chosen: random.Random) -> None:
        """Wait until the run begins, or until it has committed an epoch."""
        before = self.epochs()
        run.wait_for("ready")
        if chosen.random() < 0.7:
            until(lambda: self.epochs() > before or not run.is_alive, PATIENCE_S)

    def _kill_workers(self, run: KillableProcess, chosen: random.Random) -> None:
        """Kill the Python workers of Spark, which runs their tasks again."""
        until(lambda: run.kill_workers() > 0 or not run.is_alive, PATIENCE_S)

    def _kill_database(self, run: KillableProcess, chosen: random.Random) -> None:
        self.postgres.server.kill()
        time.sleep(chosen.uniform(0.0, 1.0))
        self.postgres.server.start()

    def _suspend_broker(self, run: KillableProcess, chosen: random.Random) -> None:
        with self.kafka.suspended():
            time.sleep(chosen.uniform(0.0, 1.0))
        until(self.kafka.answers, PATIENCE_S)  # it serves this run before the next one begins
