"""A process that is killed while it asks a service goes on, with each record in the sinks once."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from statekit.checkpoint.repository import Repository
from tests.support.http_service import Service, service
from tests.support.killable_processes import pipe, start
from tests.support.service_job import EPOCH_SIZE, EPOCHS, records, run
from tests.support.spark_runs import parquet_rows
from tests.support.timeouts import PATIENCE_S

pytestmark = pytest.mark.slow


def _committed(home: Path) -> int:
    """Return the number of records of committed epochs."""
    checkpoint = home / "checkpoint"
    if not checkpoint.exists():
        return 0
    epochs = Repository(checkpoint, create=False).epochs()
    return (max(epochs) + 1) * EPOCH_SIZE if epochs else 0


def _killed(home: Path, served: Service, name: str) -> None:
    """Kill a process while the request for this name is open, and others are or were."""
    served.hangs = {name}
    ready, sent = pipe()
    process = start(run, home, served.url, sent)
    assert ready.poll(PATIENCE_S)
    deadline = time.monotonic() + PATIENCE_S
    while not served.asked[name]:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    process.kill()
    process.join(PATIENCE_S)
    assert process.exitcode == -signal.SIGKILL
    served.hangs = set()


def test_a_process_killed_amid_calls_answers_each_record_once(tmp_path: Path) -> None:
    asked, names = records(), [record.name for record in records()]
    with service() as served:
        for name in ("n3", "n49", "n60", "n199", "n299"):
            _killed(tmp_path, served, name)
            committed = names[: _committed(tmp_path)]
            before = {name: served.asked[name] for name in committed}
        ready, sent = pipe()
        process = start(run, tmp_path, served.url, sent)
        process.join(PATIENCE_S)
        assert process.exitcode == 0
        assert ready.poll(0)
        assert {name: served.asked[name] for name in committed} == before
    assert _committed(tmp_path) == EPOCHS * EPOCH_SIZE
    answered = parquet_rows(tmp_path / "answered")
    assert sorted((row["name"], row["answer"]) for row in answered) == sorted(
        (name, name.upper()) for name in names
    )
    counts = {(row["key"], row["number"]) for row in parquet_rows(tmp_path / "counted")}
    assert len(counts) == len(asked)
