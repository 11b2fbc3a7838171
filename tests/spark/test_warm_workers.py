"""Local Python workers are forked from a process that has imported statekit."""

from __future__ import annotations

import os
import sys
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import statekit as sk
from statekit.spark.session import _finds_statekit
from tests.support.spark_job import EVENT_SCHEMA, counting_job, events
from tests.support.spark_runs import Runs


def parent(batches: Iterator[Any]) -> Iterator[Any]:
    """The command of the process that this worker was forked from."""
    for _ in batches:
        command = Path(f"/proc/{os.getppid()}/cmdline").read_bytes().replace(b"\0", b" ")
        yield pa.record_batch({"command": [command.decode()]})


def parents(spark: SparkSession) -> list[str]:
    return [row.command for row in spark.range(1).mapInArrow(parent, "command string").collect()]


@pytest.mark.skipif(not Path("/proc").exists(), reason="this system has no /proc")
def test_workers_of_a_job_are_forked_with_statekit_imported(runs: Runs) -> None:
    runs.feed("events", [event._asdict() for event in events(seed=1, size=3)])
    stream, outputs = runs.stream("events", EVENT_SCHEMA), {"counted": sk.sinks.writer("noop")}
    runs.finish(counting_job(), {"events": stream}, outputs=outputs)
    assert all("statekit.spark.worker_daemon" in command for command in parents(runs.spark))


def test_an_interpreter_that_may_not_find_statekit_keeps_the_process_of_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _finds_statekit(sys.executable)
    venv.create(tmp_path / "other", symlinks=True)
    assert not _finds_statekit(str(tmp_path / "other" / "bin" / "python"))
    assert not _finds_statekit(None)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setattr("site.getsitepackages", lambda: [str(tmp_path)])
    monkeypatch.setattr("site.getusersitepackages", lambda: str(tmp_path))
    assert not _finds_statekit(sys.executable)
