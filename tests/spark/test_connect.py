"""Spark Connect: a client has the guarantees of a classic driver, without a driver of Spark."""

from __future__ import annotations

import datetime as dt
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import statekit as sk
from statekit.checkpoint.repository import Repository
from tests.support.connect_driver import EPOCH_SIZE, Seen, connect_job
from tests.support.connect_server import ConnectServer
from tests.support.places import ROOT
from tests.support.spark_driver import POINTS
from tests.support.spark_drivers import KillableProcess
from tests.support.spark_job import by_word, counted
from tests.support.spark_runs import parquet_rows, state_of
from tests.support.timeouts import PATIENCE_S

pytestmark = pytest.mark.slow

BEGAN = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
EPOCHS = 4


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    with ConnectServer(tmp_path_factory.mktemp("connect") / "server") as started:
        yield started


def written(home: Path, size: int = EPOCHS * EPOCH_SIZE, slow: int | None = None) -> list[Seen]:
    """Write records a second apart, and return them. The one with a number takes a while."""
    chosen = random.Random(0)
    seen = [
        Seen(
            "slow" if number == slow else f"w{int(30 * chosen.random() ** 2)}",
            number,
            BEGAN + dt.timedelta(seconds=number),
        )
        for number in range(size)
    ]
    (home / "events").mkdir(parents=True)
    lines = (json.dumps({**each._asdict(), "at": each.at.isoformat()}) for each in seen)
    (home / "events" / "0.jsonl").write_text("\n".join(lines) + "\n")
    return seen


def run(spark: str, home: Path, *words: object) -> str:
    """Run a driver to its end. Return its standard error."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests/support/connect_driver.py"), spark, str(home)]
        + [str(word) for word in words],
        env={**os.environ, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"},
        cwd=home,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    return done.stderr if done.returncode else ""


def quiet_rows(home: Path) -> list[Any]:
    files = sorted((home / "quiet").glob("*.jsonl"))
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return sorted([row["word"], row["numbers"]] for row in rows)


def check(home: Path, seen: list[Seen]) -> None:
    """Compare outputs and state with plain Python, and with a run in one process."""
    outputs, states = counted(each[:2] for each in seen)  # type: ignore[misc]
    assert by_word(parquet_rows(home / "counted")) == by_word(outputs)
    for name, state in states.items():
        assert state_of(home / "checkpoint", "count", name, home / "unpacked") == state
    other = home / "one-process"
    job = connect_job(home, other)
    options: dict[str, Any] = {"epoch_size": EPOCH_SIZE, "parallelism": 1, "drain": True}
    job.run(checkpoint=other / "checkpoint", **options)
    assert quiet_rows(home) == quiet_rows(other)
    assert quiet_rows(home), "timers have fired"


def test_a_client_gives_what_a_run_in_one_process_gives(
    server: ConnectServer, tmp_path: Path
) -> None:
    seen = written(tmp_path)
    assert run(server.url, tmp_path) == ""
    check(tmp_path, seen)
    repository = Repository(tmp_path / "checkpoint")
    assert len(repository.epochs()) >= EPOCHS
    assert [*repository.names("tmp")] == [], "reports of tasks are deleted"


def test_a_static_frame_is_read_once(server: ConnectServer, tmp_path: Path) -> None:
    seen = written(tmp_path)
    assert run(server.url, tmp_path, "--frames") == ""
    outputs, states = counted(each[:2] for each in seen)  # type: ignore[misc]
    assert by_word(parquet_rows(tmp_path / "counted")) == by_word(outputs)
    assert state_of(tmp_path / "checkpoint", "count", "seen", tmp_path / "x") == states["seen"]


def test_clients_that_are_killed_and_change_the_parallelism_leave_each_output_once(
    server: ConnectServer, tmp_path: Path
) -> None:
    seen = written(tmp_path)
    for epoch, (point, parallelism) in enumerate(
        zip((POINTS[0], POINTS[1], POINTS[3], POINTS[4]), (2, 3, 3, 1), strict=True)
    ):
        words = ["--die", point, epoch, "--parallelism", parallelism]
        with KillableProcess(
            "connect_driver.py", server.url, tmp_path, *words, log=tmp_path / "log"
        ) as client:
            assert client.wait() == -signal.SIGKILL, client.log()
    assert run(server.url, tmp_path, "--parallelism", 2) == ""
    check(tmp_path, seen)


def test_tasks_of_a_killed_client_that_still_run_change_nothing(
    server: ConnectServer, tmp_path: Path
) -> None:
    """The server goes on with the action of the client, beside that of the next one."""
    seen = written(tmp_path, slow=EPOCH_SIZE // 2)
    for _ in range(2):
        with KillableProcess(
            "connect_driver.py", server.url, tmp_path, log=tmp_path / "log"
        ) as client:
            client.wait_for("slow")
            time.sleep(1)
            client.kill()
    assert run(server.url, tmp_path) == ""
    time.sleep(1)
    check(tmp_path, seen)


@pytest.mark.parametrize("is_first_remote", [True, False])
def test_a_driver_of_one_kind_fences_one_of_the_other(
    server: ConnectServer, tmp_path: Path, is_first_remote: bool
) -> None:
    seen = written(tmp_path)
    kinds = [server.url, "local[2]"]
    first, second = kinds if is_first_remote else reversed(kinds)
    words = ["--stop", 1]
    with KillableProcess(
        "connect_driver.py", first, tmp_path, *words, log=tmp_path / "log"
    ) as driver:
        driver.wait_for("stopped")
        assert run(second, tmp_path) == ""
        os.kill(driver.pid, signal.SIGCONT)
        assert driver.wait() == 1
        assert "FencedError" in driver.log()
    check(tmp_path, seen)


def test_an_error_of_the_users_function_keeps_its_class_and_names_the_function(
    server: ConnectServer, tmp_path: Path
) -> None:
    written(tmp_path, slow=5)
    failed = run(server.url, tmp_path, "--fail")
    assert "statekit.errors.ProcessError: operator 'quiet'" in failed
    assert "ValueError: a slow record" in failed


def test_a_stream_that_spark_reads_is_refused(server: ConnectServer, tmp_path: Path) -> None:
    written(tmp_path)
    assert "StateTypeError: input 'events' is a stream that Spark reads" in run(
        server.url, tmp_path, "--stream"
    )
    assert not (tmp_path / "checkpoint").exists()


def test_the_command_line_runs_a_job_on_a_server(server: ConnectServer, tmp_path: Path) -> None:
    (tmp_path / "orders").mkdir()
    (tmp_path / "failures").write_text("0")
    (tmp_path / "orders" / "0.jsonl").write_text('{"customer": "ada", "cents": 5}\n')
    words = ["run", "tests.support.shop_command_job:job", "--spark", server.url]
    for each, name in (("source.orders", "orders"), ("sink.totals", "totals")):
        words += ["--set", f"{each}.path={tmp_path / name}"]  # the server is elsewhere
    done = subprocess.run(
        [sys.executable, "-m", "statekit.cli", *words, "--checkpoint", str(tmp_path / "state")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    table = sk.read(tmp_path / "state", "total", "sum").read_all()
    assert table.to_pylist() == [{"customer": "ada", "value": 5}]
