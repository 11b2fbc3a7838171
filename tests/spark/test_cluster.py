"""On a cluster: executors die in the midst of epochs, shards move, tasks run twice at a time."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from statekit.checkpoint.repository import Repository
from tests.support.cluster_driver import DIES, ENDS, EPOCH, LOSES, SHARDS, STRAGGLES, Handled
from tests.support.effort import SOAK
from tests.support.spark_clusters import Cluster
from tests.support.spark_drivers import KillableProcess
from tests.support.spark_job import Event, counted
from tests.support.spark_runs import parquet_rows, state_of, write_batch
from tests.support.timeouts import PATIENCE_S

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="needs two loopback addresses"),
]

EPOCHS = ENDS + 1
KILLS = {DIES: "spell", LOSES: "add"} if SOAK else {LOSES: "add"}
"""In the midst of which operator an executor dies, by epoch."""

SIZE = 60


def given(epoch: int) -> list[Event]:
    chosen = random.Random(epoch)
    return [
        Event(f"w{chosen.randrange(20)}", epoch * EPOCH + chosen.randrange(EPOCH))
        for _ in range(SIZE)
    ]


@dataclass
class Done:
    """What a run on the cluster left, and what was seen of it from outside.

    Parameters:
        home: its directory.
        handled: who handled what.
        killed: the executors that were killed, by epoch.
        copies: what each executor had working copies of before the application ended, as operator
            and key groups, by the directory of the executor.
        left: those that are there when it has ended.
    """

    home: Path
    handled: list[Handled]
    killed: dict[int, int]
    copies: dict[Path, set[str]]
    left: dict[Path, set[str]]

    def tasks(self) -> list[dict[str, Any]]:
        """What Spark logged of the ends of tasks."""
        (log,) = (self.home / "log-of-events").iterdir()
        events = (json.loads(line) for line in log.read_text().splitlines())
        return [event for event in events if event["Event"] == "SparkListenerTaskEnd"]

    def state(self, operator: str, name: str) -> dict[Any, Any]:
        return state_of(self.home / "checkpoint", operator, name, self.home / "unpacked")


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """One run of five epochs, in which executors are killed."""
    home = tmp_path_factory.mktemp("cluster")
    for name in ("handled", "log-of-events"):
        (home / name).mkdir()
    for epoch in range(EPOCHS):
        write_batch(home / "events", epoch, [event._asdict() for event in given(epoch)])
    with (
        Cluster(home / "cluster") as cluster,
        KillableProcess("cluster_driver.py", home, cluster.url, log=home / "log") as driver,
    ):
        run = _Run(home, cluster, driver)
        if DIES not in KILLS:
            (home / f"go-{DIES}").touch()
        killed = {epoch: run.kill_one_of_two(operator, epoch) for epoch, operator in KILLS.items()}
        run.executors_at("add", ENDS)
        copies = cluster.working_copies()
        (home / f"go-{ENDS}").touch()
        assert driver.wait() == 0, run.said()
        return Done(home, run.handled(), killed, copies, run.left())


class _Run:
    """A driver on a cluster, as seen from outside."""

    def __init__(self, home: Path, cluster: Cluster, driver: KillableProcess) -> None:
        self._home = home
        self._cluster = cluster
        self._driver = driver

    def said(self) -> str:
        return self._driver.log() + self._cluster.logs()

    def handled(self) -> list[Handled]:
        paths = sorted((self._home / "handled").glob("[!.]*"))
        return [Handled(*json.loads(path.read_text())) for path in paths]

    def executors_at(self, operator: str, epoch: int) -> set[int]:
        """Two executors that are in the midst of an epoch, as soon as they are."""
        until = time.monotonic() + PATIENCE_S
        while True:
            found = {
                h.executor for h in self.handled() if (h.operator, h.epoch) == (operator, epoch)
            }
            if len(found) > 1:  # all processes of the machine are searched for executors
                found &= set(self._cluster.executors())
            if len(found) == 2:
                return found
            assert self._driver.is_alive, self.said()
            assert time.monotonic() < until, self.said()
            time.sleep(0.2)

    def left(self) -> dict[Path, set[str]]:
        """Working copies that Spark does not remove behind the application, which takes a while."""
        until = time.monotonic() + PATIENCE_S
        while (found := self._cluster.working_copies()) and time.monotonic() < until:
            time.sleep(0.2)
        return found

    def kill_one_of_two(self, operator: str, epoch: int) -> int:
        """Kill an executor in the midst of an epoch, then let the other one go on.

        It is one that the first operator ran on, so that what it put out is lost.
        """
        alive = self.executors_at(operator, epoch)
        had_output = {
            h.executor for h in self.handled() if (h.operator, h.epoch) == ("spell", epoch)
        }
        executor = min(alive & had_output)
        os.kill(executor, signal.SIGKILL)
        (self._home / f"go-{epoch}").touch()
        return executor


def test_state_and_outputs_are_those_of_plain_python(done: Done) -> None:
    events = [event for epoch in range(EPOCHS) for event in given(epoch)]
    states = counted(events)[1]
    for name in ("seen", "numbers", "digits"):
        assert done.state("spell", name) == states[name], name
    totals: dict[int, int] = defaultdict(int)
    for event in events:
        totals[event.number % 10] += event.number
    assert done.state("add", "total") == totals
    found = sorted((row["digit"], row["number"]) for row in parquet_rows(done.home / "out"))
    assert found == sorted((event.number % 10, event.number) for event in events)
    assert Repository(done.home / "checkpoint").epochs() == list(range(EPOCHS))


def test_of_two_attempts_at_a_time_one_counts(done: Done) -> None:
    slow = [h for h in done.handled if (h.operator, h.epoch) == ("spell", STRAGGLES)]
    executors: dict[int, set[int]] = defaultdict(set)
    for handled in slow:
        executors[handled.partition].add(handled.executor)
    assert max(map(len, executors.values())) == 2, "one shard, in two executors"
    ended = [(task["Task Info"]["Speculative"], task["Task End Reason"]) for task in done.tasks()]
    assert any(copy and reason["Reason"] == "Success" for copy, reason in ended)
    assert any(
        not copy and "another attempt succeeded" in reason.get("Kill Reason", "")
        for copy, reason in ended
    )


def test_an_epoch_outlives_the_executor_that_was_killed_in_its_midst(done: Done) -> None:
    lost = [t for t in done.tasks() if t["Task End Reason"]["Reason"] == "ExecutorLostFailure"]
    assert {task["Stage Attempt ID"] for task in lost}, "tasks were running there"
    for epoch, killed in done.killed.items():
        at = (KILLS[epoch], epoch)
        found = {h.executor for h in done.handled if (h.operator, h.epoch) == at}
        assert killed in found
        assert found - {killed}


def test_an_operator_runs_again_whose_output_was_lost_with_an_executor(done: Done) -> None:
    again = [h for h in done.handled if (h.operator, h.epoch) == ("spell", LOSES)]
    partitions = [handled.partition for handled in again]
    assert len(partitions) > len(set(partitions))
    assert any(task["Stage Attempt ID"] > 0 for task in done.tasks())


def test_a_shard_that_moves_to_another_executor_is_restored_there(done: Done) -> None:
    assert len(done.copies) >= 2
    assert len({directory.parents[2] for directory in done.copies}) == 2, "on the disks of both"
    held = [shard for shards in done.copies.values() for shard in shards]
    assert len(held) > len(set(held)), "a shard that two executors have"
    assert len(set(held)) == 2 * SHARDS
    executors: dict[tuple[str, int], set[int]] = defaultdict(set)
    for handled in done.handled:
        executors[handled.operator, handled.partition].add(handled.executor)
    assert max(map(len, executors.values())) > 1


def test_working_copies_go_with_the_application(done: Done) -> None:
    assert done.left == {}
