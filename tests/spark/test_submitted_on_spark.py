"""A submitted job that runs on Spark: each order is counted once across a stop, a kill of its
process and a kill of the server.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from statekit.errors import StatekitError, StateTypeError
from statekit.query.client import Client
from tests.support.places import ROOT
from tests.support.ports import free_port
from tests.support.submitted_jobs import MODULE, document, order, totals
from tests.support.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PATIENCE_S = 240.0


def started(home: Path, port: int) -> subprocess.Popen[bytes]:
    words = ["server", home / "registry", "--allow", MODULE, "--spark", "local[1]"]
    words += ["--checkpoints-below", home / "state", "--data-below", home / "data"]
    command = [sys.executable, "-m", "statekit.cli", *map(str, words), f"--port={port}"]
    with (home / "server.log").open("ab") as log:
        return subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)


def shown(client: Client, what: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Return the job as soon as something is true of it."""
    last: dict[str, Any] = {}

    def is_so() -> bool:
        nonlocal last
        try:
            last = client.submitted_job("counted")
        except StatekitError:
            return False  # the server is starting
        return what(last)

    until(is_so, PATIENCE_S)
    return last


def test_a_submitted_job_runs_on_spark_and_counts_each_order_once(tmp_path: Path) -> None:
    data, port = tmp_path / "data", free_port()
    text = document(data)
    server = started(tmp_path, port)
    try:
        with Client(f"http://127.0.0.1:{port}", timeout="60 seconds", retries=14) as client:
            order(data, "1", ("ann", 1), ("bob", 2))
            until(lambda: answers(client), PATIENCE_S)
            with pytest.raises(StateTypeError, match=r"allowed are local\[1\]"):
                client.submit(text, spark="local[7]")
            client.submit(text, spark="local[1]", parallelism=2)
            first = [("ann", 1), ("bob", 2)]
            until(lambda: totals(data) == first, PATIENCE_S)
            running = shown(client, lambda job: job["epoch"] is not None)
            os.kill(running["process"], signal.SIGKILL)
            order(data, "2", ("ann", 4))
            second = sorted([*first, ("ann", 5)])
            until(lambda: totals(data) == second, PATIENCE_S)
            server.kill()
            server.wait()
            order(data, "3", ("bob", 8))
            server = started(tmp_path, port)
            third = sorted([*second, ("bob", 10)])
            until(lambda: totals(data) == third, PATIENCE_S)
            assert shown(client, lambda job: job["status"] == "running")["spark"] == "local[1]"
            client.stop_job("counted")
            shown(client, lambda job: job["status"] == "stopped")
            assert totals(data) == third
    finally:
        server.terminate()
        assert server.wait(PATIENCE_S) in (0, -signal.SIGTERM)


def answers(client: Client) -> bool:
    try:
        return client.submitted_jobs() == []
    except StatekitError:
        return False
