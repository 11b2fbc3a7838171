"""`statekit run --spark`: a document runs on Spark as it does in one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import statekit as sk
from statekit.checkpoint.last_failure import last_failure
from statekit.checkpoint.repository import Repository
from statekit.query.tables.read import read
from tests.support.places import ROOT
from tests.support.shop_command_job import Order, job
from tests.support.spark_runs import Runs
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


@pytest.mark.slow
def test_a_job_that_was_started_in_python_is_started_again(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = runs.home
    monkeypatch.chdir(home)
    (home / "orders").mkdir()
    (home / "failures").write_text("1")
    write(home, "first", [*ORDERS, ("unlucky", 1)])
    outputs = {"totals": sk.sinks.parquet(home / "out")}
    options: dict[str, Any] = {"checkpoint": home / "state", "outputs": outputs}
    fails_twice = copy_of_failing_job(home)
    running = fails_twice.start(runs.spark, restart="2 in 10 minutes", **options)
    while running.epoch is None:
        assert not running.await_termination(0.2)
    running.stop()
    assert running.await_termination()
    assert [row["customer"] for row in runs.parquet("out")].count("unlucky") == 1
    (home / "failures").write_text("1000")
    write(home, "second", [("unlucky", 1)])
    running = fails_twice.start(runs.spark, restart="1 in 10 minutes", **options)
    with pytest.raises(sk.ProcessError, match="an unlucky order"):
        running.await_termination()


def copy_of_failing_job(home: Path) -> sk.Job:
    """The job, with paths that workers of Spark find."""
    made = sk.Job("shop")
    failures = str(home / "failures")

    @sk.process(key="customer")
    def total(order: Order, sum: sk.ValueState[int]) -> Iterator[Order]:
        left = int(Path(failures).read_text())
        if order.customer == "unlucky" and left:
            Path(failures).write_text(str(left - 1))
            raise ValueError("an unlucky order")
        sum.update((sum.get() or 0) + order.cents)
        yield Order(order.customer, sum.get() or 0)

    orders = made.source("orders", Order, sk.sources.json_lines(home / "orders"))
    orders.process(total).sink("totals")
    return made


def test_static_frames_alone_are_not_read_again(runs: Runs) -> None:
    schema = pa.schema({"customer": pa.string(), "cents": pa.int64()})
    frame = runs.frame([Order("ada", 1)], schema)
    made = copy_of_failing_job(runs.home)
    with pytest.raises(sk.StateTypeError, match="static frames alone are"):
        made.start(
            runs.spark,
            {"orders": frame},
            {"totals": sk.sinks.parquet(runs.home / "out")},
            checkpoint=runs.home / "state",
            restart="1 in 1 minute",
        )
