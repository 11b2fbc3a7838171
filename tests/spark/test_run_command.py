"""`statekit run --spark`: a document runs on Spark as it does in one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from statekit.checkpoint.last_failure import last_failure
from statekit.checkpoint.repository import Repository
from statekit.query.tables.read import read
from tests.support.places import ROOT
from tests.support.shop_command_job import job
from tests.unit.cli.test_run import run, totals, write

ORDERS = [("ada", 5), ("bob", 7), ("ada", 1), ("cleo", 9)]


def run_on_spark(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "statekit.cli", "run", "job.json", "--spark", "local[2]"]
    command += ["--conf", "spark.ui.enabled=false", "--conf", "spark.sql.shuffle.partitions=2"]
    command += ["--checkpoint", str(home / "spark"), "--set", f"sink.totals.path={home}/on-spark"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [*command, *words], cwd=home, env=env, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_a_document_has_the_same_outputs_and_state_on_spark_and_fails_alike(tmp_path: Path) -> None:
    (tmp_path / "orders").mkdir()
    (tmp_path / "failures").write_text("0")
    (tmp_path / "job.json").write_text(job.to_json())
    write(tmp_path, "first", ORDERS)
    assert run(tmp_path, "job.json").returncode == 0
    done = run_on_spark(tmp_path)
    assert done.returncode == 0, done.stderr
    (epoch,) = map(json.loads, done.stdout.splitlines())
    assert (epoch["records"], epoch["state_rows"]) == (4, 3)
    assert totals(tmp_path, "on-spark") == totals(tmp_path)
    states = [read(tmp_path / name, "total", "sum").read_all() for name in ("spark", "state")]
    assert states[0].sort_by("customer") == states[1].sort_by("customer")

    write(tmp_path, "second", [("unlucky", 1)])
    (tmp_path / "failures").write_text("1")
    done = run_on_spark(tmp_path, "--restart", "2 in 10 minutes")
    assert done.returncode == 0, done.stderr
    assert "It is started again in 1 s" in done.stderr
    assert ("unlucky", 1) in totals(tmp_path, "on-spark")
    failure = last_failure(Repository(tmp_path / "spark"))
    assert failure is not None
    assert "ValueError: an unlucky order" in failure.message
