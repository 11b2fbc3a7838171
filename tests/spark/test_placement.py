"""On a cluster, shards stay on the executors that have their working copies."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.effort import SOAK
from tests.support.spark_clusters import Cluster
from tests.support.spark_drivers import KillableProcess
from tests.support.spark_runs import state_of, write_batch

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="needs several loopback addresses"),
]

SHARDS = 6
HOSTS = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
EPOCHS = 40 if SOAK else 16
KILLED_AFTER = 6
PAGES = 500


def given(epoch: int) -> list[dict[str, int]]:
    chosen = random.Random(epoch)
    return [{"page": chosen.randrange(PAGES), "number": n} for n in range(300)]


def write(home: Path, epochs: range) -> None:
    for epoch in epochs:
        write_batch(home / "events", epoch, given(epoch))


def run(home: Path, cluster: Cluster, *options: object) -> Iterator[dict[str, Any]]:
    """What the driver prints of each epoch."""
    log = home / "log"
    arguments = (home, cluster.url, len(HOSTS), SHARDS, *options)
    with KillableProcess("placement_driver.py", *arguments, log=log) as driver:
        output = driver._process.stdout
        assert output is not None
        for line in output:
            if line.startswith(b"{"):
                yield json.loads(line)
        assert driver.wait() == 0, driver.log() + cluster.logs()


@pytest.mark.soak
def test_shards_stay_where_they_are_and_few_move_after_an_executor_died(tmp_path: Path) -> None:
    write(tmp_path, range(KILLED_AFTER + 1))
    seen = []
    with Cluster(tmp_path / "cluster", HOSTS) as cluster:
        for facts in run(tmp_path, cluster, EPOCHS - 1):
            seen.append(facts)
            if facts["epoch"] == KILLED_AFTER:
                os.kill(cluster.executors()[0], signal.SIGKILL)  # the worker starts another one
                write(tmp_path, range(KILLED_AFTER + 1, EPOCHS))
    assert [facts["epoch"] for facts in seen] == list(range(EPOCHS))
    even = [SHARDS // len(HOSTS)] * len(HOSTS)
    undisturbed = [*seen[: KILLED_AFTER + 1], *seen[KILLED_AFTER + 6 :]]
    for facts in undisturbed:
        assert list(facts["executors"].values()) == even, facts
        assert facts["moved_shards"] == 0, facts
        assert facts["restored_bytes"] == facts["caught_up_bytes"] == 0, facts
    after = seen[KILLED_AFTER + 1 : KILLED_AFTER + 6]
    assert 0 < sum(facts["moved_shards"] for facts in after) <= 2 * even[0]
    assert sum(facts["restored_bytes"] for facts in after) > 0
    written = sum(facts["changed_bytes"] for facts in seen)
    assert sum(facts["caught_up_bytes"] for facts in seen) < 0.02 * written * EPOCHS
    counts = state_of(tmp_path / "checkpoint", "hits", "count", tmp_path / "unpacked")
    assert sum(counts.values()) == 300 * EPOCHS


@pytest.mark.soak
def test_a_run_uses_the_copies_that_hosts_have_from_the_one_before(tmp_path: Path) -> None:
    with Cluster(tmp_path / "cluster", HOSTS) as cluster:
        for epochs in (range(3), range(3, 5)):
            write(tmp_path, epochs)
            seen = list(run(tmp_path, cluster, epochs[-1], tmp_path / "working"))
            assert [facts["epoch"] for facts in seen] == list(epochs)
            for facts in seen:
                assert set(facts["executors"].values()) == {SHARDS // len(HOSTS)}
                assert facts["restored_bytes"] == facts["caught_up_bytes"] == 0
                assert facts["moved_shards"] == 0
