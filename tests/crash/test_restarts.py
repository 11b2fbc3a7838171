"""Restarts of `statekit run` after failures of what is outside: a broker, a disk, another run. The
reason is in the checkpoint, where `inspect`, the metrics and the dashboard show it.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from html import unescape
from pathlib import Path

import httpx
import pytest

from statekit.checkpoint.last_failure import LastFailure, last_failure
from statekit.checkpoint.repository import Repository
from statekit.errors import StatekitError
from tests.support.command_line import statekit
from tests.support.kafka_broker import KafkaBroker
from tests.support.places import ROOT
from tests.support.served import server
from tests.support.small_disk import SmallDisk, small_disk
from tests.support.timeouts import PATIENCE_S
from tests.support.waiting import until
from tests.unit.cli.test_run import totals, write

FILES = "tests.support.shop_command_job:job"
BROKER = "tests.support.broker_command_job:job"
RESTART = ("--restart", "50 in 10 minutes")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "orders").mkdir()
    (tmp_path / "failures").write_text("0")
    return tmp_path


@contextlib.contextmanager
def following(home: Path, job: str, *words: object) -> Iterator[subprocess.Popen[str]]:
    """A run that follows its input, with its log in a file. It is killed at the end."""
    command = [sys.executable, "-m", "statekit.cli", "run", job, "--follow", *map(str, words)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    number = len(list(home.glob("log*")))
    with (home / f"log{number}").open("w") as log:
        process = subprocess.Popen(
            command, cwd=home, env=env, stdout=subprocess.DEVNULL, stderr=log, text=True
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait(PATIENCE_S)


def log_of(home: Path, number: int = 0) -> str:
    return (home / f"log{number}").read_text()


def failure_in(checkpoint: Path) -> LastFailure | None:
    try:
        return last_failure(Repository(checkpoint, create=False))
    except StatekitError:
        return None


def check_three_places(checkpoint: Path, error: str, reason: str) -> None:
    """Check that the reason of the last failure is shown wherever people look for it."""
    inspected = " ".join(statekit("inspect", checkpoint, columns=400).stdout.split())
    assert f"{error}: " in inspected
    assert reason in inspected
    with server({"shop": checkpoint}) as address:
        metrics = httpx.get(f"{address}/metrics").text
        page = unescape(httpx.get(f"{address}/-/shop").text)
    assert f'statekit_last_failure_timestamp_seconds{{error="{error}",job="shop"}}' in metrics
    assert f"{error}: " in page
    assert reason in page


@pytest.mark.slow
def test_a_run_waits_for_a_broker_that_is_gone_and_continues_when_it_is_back(
    home: Path, killable_kafka: KafkaBroker, topic: str
) -> None:
    kafka = killable_kafka
    kafka.create_topic(topic)
    kafka.produce(topic, [json.dumps({"customer": "ada", "cents": 5})])
    servers = f"source.orders.servers={kafka.servers}"
    settings = ("--set", servers, "--set", f"source.orders.topics={topic}")
    with following(home, BROKER, "--checkpoint", "state", *settings, *RESTART) as process:
        until(lambda: totals(home) == [("ada", 5)])
        kafka.kill()
        until(lambda: log_of(home).count("It is started again in") >= 2)
        assert process.poll() is None
        failure = failure_in(home / "state")
        assert failure is not None
        assert (failure.error, failure.kind) == ("ConnectorError", "connector")
        check_three_places(home / "state", "ConnectorError", f"of Kafka at {kafka.servers}")
        kafka.start()
        kafka.produce(topic, [json.dumps({"customer": "ada", "cents": 1})])
        until(lambda: totals(home) == [("ada", 5), ("ada", 6)])
        until(lambda: Repository(home / "state").latest_epoch() == 1)
    inspected = " ".join(statekit("inspect", home / "state", columns=400).stdout.split())
    assert "; 1 committed since: ConnectorError: " in inspected


def test_without_restarts_a_broker_that_is_gone_ends_the_run_with_exit_code_1(
    home: Path, killable_kafka: KafkaBroker, topic: str
) -> None:
    killable_kafka.create_topic(topic)
    servers = f"source.orders.servers={killable_kafka.servers}"
    settings = ("--set", servers, "--set", f"source.orders.topics={topic}")
    killable_kafka.kill()
    with following(home, BROKER, "--checkpoint", "state", *settings) as process:
        assert process.wait(PATIENCE_S) == 1
    assert "check that the brokers are reachable" in " ".join(log_of(home).split())


@pytest.mark.slow
def test_a_run_whose_checkpoint_was_taken_over_ends_with_exit_code_3_and_is_not_started_again(
    home: Path,
) -> None:
    write(home, "first", [("ada", 5)])
    words = ("--checkpoint", "state", *RESTART)
    with following(home, FILES, *words) as one:
        until(lambda: totals(home) == [("ada", 5)])
        with following(home, FILES, *words) as other:
            number = 0
            while one.poll() is None and other.poll() is None:
                write(home, f"more-{number:04d}", [("bob", 1)])
                number += 1
                until(partial(has_gone_on, home, 1 + number, one, other))
            (fenced,) = (log for log, run in enumerate((one, other)) if run.poll() is not None)
            assert (one, other)[fenced].wait(PATIENCE_S) == 3
            assert "FencedError" in log_of(home, fenced)
            assert "It is started again in" not in log_of(home, fenced)
            check_three_places(home / "state", "FencedError", "another run of")
            write(home, "z-last", [("cleo", 9)])
            until(lambda: ("cleo", 9) in totals(home))
            bobs = [("bob", cents) for cents in range(1, number + 1)]
            assert totals(home) == [("ada", 5), *bobs, ("cleo", 9)]


def has_gone_on(home: Path, count: int, *runs: subprocess.Popen[str]) -> bool:
    """Whether there are so many outputs, or one of the runs has ended."""
    return len(totals(home)) == count or any(run.poll() is not None for run in runs)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk") as found:
        yield found


@pytest.mark.slow
def test_a_run_waits_for_space_on_a_full_disk_and_continues(home: Path, disk: SmallDisk) -> None:
    checkpoint = disk.path / "state"
    write(home, "first", [("ada", 5)])
    with following(home, FILES, "--checkpoint", checkpoint, *RESTART) as process:
        until(lambda: totals(home) == [("ada", 5)])
        disk.fill()
        write(home, "second", [("ada", 1)])
        until(lambda: log_of(home).count("It is started again in") >= 2)
        assert process.poll() is None
        assert "the reason of the failure is not in the checkpoint" in log_of(home)
        assert failure_in(checkpoint) is None
        disk.make_space()
        until(lambda: totals(home) == [("ada", 5), ("ada", 6)])
        until(lambda: failure_in(checkpoint) is not None)
    check_three_places(checkpoint, "StorageError", "No space left on device")
