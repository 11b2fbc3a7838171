"""Where shards run on a cluster of four executors, of which one is killed and replaced."""

from __future__ import annotations

import json
import os
import random
import signal
import tempfile
from pathlib import Path
from typing import Any

from tests.bench.report import STATEKIT_DURABLE, Arm, Row
from tests.support.spark_clusters import Cluster
from tests.support.spark_drivers import KillableProcess
from tests.support.spark_runs import write_batch

HOSTS = tuple(f"127.0.0.{number}" for number in range(1, 5))
SHARDS, EPOCHS, KILLED_AFTER = 8, 100, 30
EVENTS, PAGES = 2_000, 20_000


def placement() -> list[Row]:
    """How many shards run where their working copies are, and what moving costs."""
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        _write(home, range(KILLED_AFTER + 1))
        with Cluster(home / "cluster", HOSTS) as cluster:
            seen, copies = _run(home, cluster)
    ran = sum(sum(facts["executors"].values()) for facts in seen)
    moved = sum(facts["moved_shards"] for facts in seen)
    read = sum(facts["caught_up_bytes"] for facts in seen)
    written = sum(facts["changed_bytes"] for facts in seen)
    even = [SHARDS // len(HOSTS)] * len(HOSTS)
    uneven = [facts["epoch"] for facts in seen if sorted(facts["executors"].values()) != even]
    seconds = sorted(facts["seconds"] for facts in seen)[len(seen) // 2]
    return [
        Row(
            f"placement: {len(HOSTS)} executors, {SHARDS} shards, {EPOCHS} epochs, one killed",
            f"{1 - moved / ran:.1%} of shards stay from epoch to epoch; {copies} working copies; "
            f"{read / written:.2%} of the written changes are read again; uneven in epochs "
            f"{', '.join(map(str, uneven)) or 'none'} (killed after {KILLED_AFTER})",
            f"98%, {SHARDS} copies, 2%, 5 epochs",
            (Arm("statekit", seconds, STATEKIT_DURABLE, EVENTS),),
            without="Others have clusters of their own.",
        )
    ]


def _write(home: Path, epochs: range) -> None:
    for epoch in epochs:
        chosen = random.Random(epoch)
        rows = [{"page": chosen.randrange(PAGES), "number": n} for n in range(EVENTS)]
        write_batch(home / "events", epoch, rows)


def _run(home: Path, cluster: Cluster) -> tuple[list[dict[str, Any]], int]:
    """What the driver prints of each epoch, and the working copies before the last one."""
    seen: list[dict[str, Any]] = []
    copies = 0
    arguments = (home, cluster.url, len(HOSTS), SHARDS, EPOCHS - 1)
    with KillableProcess("placement_driver.py", *arguments, log=home / "log") as driver:
        output = driver._process.stdout
        assert output is not None
        for line in output:
            if not line.startswith(b"{"):
                continue
            seen.append(json.loads(line))
            if seen[-1]["epoch"] == KILLED_AFTER:
                os.kill(cluster.executors()[0], signal.SIGKILL)  # the worker starts another one
                _write(home, range(KILLED_AFTER + 1, EPOCHS))
            if seen[-1]["epoch"] == EPOCHS - 10:
                copies = sum(map(len, cluster.working_copies().values()))
        if len(seen) != EPOCHS:
            raise RuntimeError(driver.log() + cluster.logs())
    return seen, copies


BENCHMARKS = {"placement": placement}
