"""Epochs over a server of Spark Connect, beside those of a classic driver."""

from __future__ import annotations

import datetime as dt
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.bench.report import Row
from tests.support.connect_server import ConnectServer
from tests.support.places import ROOT, SUPPORT
from tests.support.spark_clusters import Cluster

EPOCHS, EPOCH_SIZE, WORDS, PAIRS, SHARDS = 12, 2_000, 5_000, 3, 8
_WARM = 5
_BEGAN = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def connect() -> list[Row]:
    """What an epoch costs over a server, and what shards cost that run anywhere."""
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        _write(home / "events")
        with ConnectServer(home / "server", "local[2]") as server:
            kinds = {"classic": "local[2]", "connect": server.url}
            pairs = [
                [_seconds(_run(home, f"{kind}-{pair}", url)) for kind, url in kinds.items()]
                for pair in range(PAIRS)
            ]
        with Cluster(home / "cluster") as cluster:
            classic = _run(home, "placed", cluster.url)
        with Cluster(home / "other") as cluster, ConnectServer(home / "far", cluster.url) as server:
            remote = _run(home, "anywhere", server.url)
            copies = sum(map(len, cluster.working_copies().values()))
    classic_s, remote_s = (statistics.median(of) for of in zip(*pairs, strict=True))
    ratio = statistics.median(there / here for here, there in pairs)
    return [
        Row(
            f"Spark Connect: an epoch of {EPOCH_SIZE:,} records, two operators and sinks, local[2]",
            f"{remote_s:.2f} s, {classic_s:.2f} s with a classic driver ({ratio:.2f} times)",
            "",
        ),
        Row(
            f"Spark Connect: two executors, {SHARDS} shards of two operators, {EPOCHS} epochs",
            f"{_read_again(remote):.0%} of the written changes are read again, "
            f"{_read_again(classic):.0%} with a classic driver; {copies} working copies",
            "",
        ),
    ]


def _write(events: Path) -> None:
    events.mkdir()
    chosen = random.Random(0)
    with (events / "0.jsonl").open("w") as file:
        for number in range(EPOCHS * EPOCH_SIZE):
            word, at = f"w{chosen.randrange(WORDS)}", _BEGAN + dt.timedelta(milliseconds=number)
            line = {"word": word, "number": number, "at": at.isoformat()}
            file.write(json.dumps(line) + "\n")


def _run(home: Path, name: str, url: str) -> list[dict[str, Any]]:
    """Run the job to its end. Return facts of its epochs, without the first ones."""
    own = home / name
    own.mkdir()
    (own / "events").symlink_to(home / "events")
    words = [sys.executable, str(SUPPORT / "connect_driver.py"), url, str(own)]
    sizes = ["--size", str(EPOCH_SIZE), "--parallelism", str(SHARDS)]
    done = subprocess.run(
        [*words, *sizes], env=_environment(), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-4000:])
    found: list[dict[str, Any]] = json.loads((own / "progress.json").read_text())
    return found[_WARM:EPOCHS]


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"}


def _seconds(epochs: list[dict[str, Any]]) -> float:
    return float(statistics.median(each["seconds"] for each in epochs))


def _read_again(epochs: list[dict[str, Any]]) -> float:
    read: int = sum(each["caught_up_bytes"] + each["restored_bytes"] for each in epochs)
    written: int = sum(each["changed_bytes"] for each in epochs)
    return read / written


BENCHMARKS = {"connect": connect}
