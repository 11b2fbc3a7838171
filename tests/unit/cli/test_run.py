"""`statekit run`: a job without a script, in processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

import statekit as sk
from statekit.checkpoint.last_failure import last_failure
from statekit.checkpoint.repository import Repository
from tests.support.command_line import statekit
from tests.support.places import ROOT
from tests.support.served import server
from tests.support.shop_command_job import job
from tests.support.timeouts import PATIENCE_S
from tests.unit.server.test_access import token_file

JOB = "tests.support.shop_command_job:job"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "orders").mkdir()
    (tmp_path / "failures").write_text("0")
    write(tmp_path, "first", [("ada", 5), ("bob", 7), ("ada", 1)])
    return tmp_path


def write(home: Path, name: str, orders: list[tuple[str, int]]) -> None:
    lines = [json.dumps({"customer": customer, "cents": cents}) for customer, cents in orders]
    draft = home / f".{name}"
    draft.write_text("".join(f"{line}\n" for line in lines))
    draft.rename(home / "orders" / f"{name}.jsonl")


def run(home: Path, *words: object) -> subprocess.CompletedProcess[str]:
    env = {"PYTHONPATH": str(ROOT)}
    return statekit("run", *words, "--checkpoint", home / "state", cwd=home, env=env)


def totals(home: Path, folder: str = "totals") -> list[tuple[str, int]]:
    found = [
        json.loads(line)
        for path in sorted((home / folder).glob("*.json*"))
        for line in path.read_text().splitlines()
    ]
    return sorted((row["customer"], row["cents"]) for row in found)


def test_a_job_is_run_and_prints_a_line_of_json_for_each_epoch(home: Path) -> None:
    done = run(home, JOB, "--epoch-size", 2)
    assert (done.returncode, done.stderr) == (0, "")
    epochs: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(each["epoch"], each["records"]) for each in epochs] == [(0, 2), (1, 1)]
    assert epochs[-1]["state_rows"] == 2
    assert epochs[-1].keys() >= {"records_per_second", "lag", "state_bytes", "written_bytes"}
    assert totals(home) == [("ada", 5), ("ada", 6), ("bob", 7)]
    write(home, "second", [("bob", 1)])
    assert run(home, JOB).returncode == 0
    assert totals(home) == [("ada", 5), ("ada", 6), ("bob", 7), ("bob", 8)]


def test_a_document_is_run_with_other_settings(home: Path) -> None:
    (home / "job.json").write_text(job.to_json())
    done = run(home, "job.json", "--set", f"sink.totals.path={home}/other", "--module", "tests")
    assert done.returncode == 0, done.stderr
    assert totals(home, "other") == [("ada", 5), ("ada", 6), ("bob", 7)]
    assert not (home / "totals").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["none.json"], "the document none.json cannot be read"),
        (["no_such_module:job"], "no_such_module cannot be imported"),
        (["tests.support.shop_command_job:open_job"], "sink 'totals' has no target"),
    ],
)
def test_what_a_restart_cannot_mend_has_exit_code_3(
    home: Path, words: list[str], message: str
) -> None:
    done = run(home, *words)
    assert done.returncode == 3, done.stderr
    assert message in " ".join(done.stderr.split())
    assert not (home / "totals").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "colour=red"], "settings begin with source. or sink."),
        (["--set", "source.orders.path"], "sets nothing: write source.NAME.PARAMETER=VALUE"),
        (["--set", "source.bids.path=/a"], "no such source; it has orders"),
        (["--set", "source.orders.colour=red"], "it has no parameter 'colour'"),
        (["--restart", "often"], "say how often within which time"),
        (["--parallelism", "0"], "parallelism"),
        (["--epoch-size", "0"], "epoch-size"),
        (["--trigger", "soon"], "soon"),
        (["--heartbeat", "1 minute"], "add follow=True"),
        (["--conf", "a=b"], "this run has no Spark: add --spark MASTER"),
        (["--spark", "local[1]", "--conf", "spark.ui.enabled"], "write NAME=VALUE"),
        (["--spark", "local[1]", "--follow", "--drain"], "--follow never does"),
    ],
)
def test_wrong_usage_has_exit_code_2(home: Path, words: list[str], message: str) -> None:
    done = run(home, JOB, *words)
    assert done.returncode == 2, done.stderr
    assert message in " ".join(done.stderr.split())
    assert not (home / "totals").exists()
    assert not (home / "state").exists()


def test_a_command_without_a_checkpoint_is_wrong_usage(home: Path) -> None:
    assert statekit("run", JOB, cwd=home).returncode == 2


# ----------------------------------------------------------------------------------- failures


def test_a_function_that_fails_twice_is_started_again_and_works(home: Path) -> None:
    write(home, "second", [("unlucky", 3)])
    (home / "failures").write_text("2")
    done = run(home, JOB, "--restart", "2 in 10 minutes")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("It is started again in") == 2
    assert totals(home) == [("ada", 5), ("ada", 6), ("bob", 7), ("unlucky", 3)]
    failure = last_failure(Repository(home / "state"))
    assert failure is not None
    assert (failure.error, failure.kind, failure.epoch) == ("ProcessError", "process", 0)
    assert "ValueError: an unlucky order" in failure.message


def test_a_function_that_always_fails_ends_the_run_and_says_why_in_three_places(home: Path) -> None:
    assert run(home, JOB).returncode == 0
    write(home, "second", [("unlucky", 3)])
    (home / "failures").write_text("1000")
    done = run(home, JOB, "--restart", "1 in 10 minutes")
    assert done.returncode == 1
    assert done.stderr.count("It is started again in") == 1
    inspected = statekit("inspect", home / "state").stdout
    reason = "ProcessError: operator 'total' failed at key 'unlucky'"
    assert "UTC in epoch 1: " in inspected
    assert reason in " ".join(inspected.split())
    data = json.loads(statekit("inspect", home / "state", "--json").stdout)
    assert data["last_failure"]["epoch"] == 1
    own, all_ = ("own", "own", ["shop/total/sum"]), ("all", "all", ["shop"])
    tokens = token_file(home / "tokens.json", own, all_)
    with server({"shop": home / "state"}, tokens=tokens) as address:
        port = address.rpartition(":")[2]
        cookies = [{"Cookie": f"statekit-token-{port}={token}"} for token in ("own", "all")]
        pages = [httpx.get(f"{address}/-/shop", headers=cookie).text for cookie in cookies]
    assert ["last failure in epoch 1" in page for page in pages] == [True, True]
    assert ["an unlucky order" in page for page in pages] == [False, True]
    with server({"shop": home / "state"}) as address:
        metrics = httpx.get(f"{address}/metrics").text
    assert 'statekit_last_failure_timestamp_seconds{error="ProcessError",job="shop"}' in metrics


def test_a_failure_before_the_first_epoch_is_shown_too(home: Path) -> None:
    write(home, "second", [("unlucky", 3)])
    (home / "failures").write_text("1")
    assert run(home, JOB).returncode == 1
    inspected = statekit("inspect", home / "state")
    assert inspected.returncode == 0
    assert inspected.stdout.startswith("no epoch is committed yet; ")
    shown = json.loads(statekit("inspect", "--json", home / "state").stdout)
    assert (shown["epoch"], shown["last_failure"]["error"]) == (None, "ProcessError")
    assert "in epoch 0: ProcessError" in " ".join(inspected.stdout.split())
    assert run(home, JOB).returncode == 0
    assert "; 1 committed since: ProcessError" in " ".join(
        statekit("inspect", home / "state").stdout.split()
    )


def test_a_checkpoint_that_is_a_file_ends_the_run_when_restarts_are_used_up(home: Path) -> None:
    (home / "state").write_text("a file is where the checkpoint should be")
    done = run(home, JOB, "--restart", "1 in 10 minutes")
    assert done.returncode == 1
    assert done.stderr.count("It is started again in") == 1


# -------------------------------------------------------------------------------------- stops


def follow(home: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "statekit.cli", "run", JOB, "--follow", *words]
    command += ["--checkpoint", str(home / "state")]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        command, cwd=home, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_run_that_follows(home: Path, number: signal.Signals) -> None:
    with follow(home) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["records"] == 3
        write(home, "second", [("bob", 1)])
        assert json.loads(process.stdout.readline())["records"] == 1
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == 0
    assert totals(home) == [("ada", 5), ("ada", 6), ("bob", 7), ("bob", 8)]


def test_a_signal_ends_a_run_that_waits_for_its_restart(home: Path) -> None:
    write(home, "second", [("unlucky", 3)])
    (home / "failures").write_text("1000")
    with follow(home, "--restart", "100 in 10 minutes") as process:
        assert process.stderr is not None
        while "started again in 4 s" not in process.stderr.readline():
            assert process.poll() is None
        begun = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
        assert time.monotonic() - begun < 4


def test_a_killed_run_continues_with_each_record_once(home: Path) -> None:
    with follow(home) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.kill()
        process.wait(PATIENCE_S)
    write(home, "second", [("bob", 1)])
    assert run(home, JOB).returncode == 0
    assert totals(home) == [("ada", 5), ("ada", 6), ("bob", 7), ("bob", 8)]


# --------------------------------------------------------------------------------- in Python


def test_restarts_in_python_collect_each_record_once(home: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(home)
    (home / "failures").write_text("1")
    from tests.support.shop_command_job import Order, total

    restarted = sk.Job("restarted")
    restarted.source("orders", Order).process(total).sink("totals")
    orders = [Order("ada", 5), Order("bob", 7), Order("unlucky", 3), Order("ada", 1)]
    seen: list[int] = []
    done = restarted.run(
        {"orders": orders},
        checkpoint=home / "state",
        epoch_size=2,
        restart="3 in 1 minute",
        on_epoch=lambda progress: seen.append(progress.epoch),
    )
    emitted: list[Any] = done["totals"]
    assert sorted(emitted) == [("ada", 5), ("ada", 6), ("bob", 7), ("unlucky", 3)]
    assert (seen, done.epochs, done.last_epoch) == ([0, 1], 2, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"restart": "3 in 1 minute"}, "pass checkpoint="),
        ({"restart": "often", "checkpoint": "state"}, "say how often"),
        ({"restart": "0 in 1 minute", "checkpoint": "state"}, "say how often"),
        ({"restart": "1 in 0 minutes", "checkpoint": "state"}, "more time than nothing"),
        ({"restart": 3, "checkpoint": "state"}, "say how often"),
    ],
)
def test_restarts_that_are_not_valid_are_refused(
    home: Path, monkeypatch: Any, options: dict[str, Any], message: str
) -> None:
    monkeypatch.chdir(home)
    with pytest.raises(sk.StateTypeError, match=message):
        job.run(**options)


def test_an_iterator_is_no_input_of_a_run_that_may_be_started_again(home: Path) -> None:
    from tests.support.shop_command_job import Order

    with pytest.raises(sk.StateTypeError, match="is an iterator, which gives each record once"):
        job.run(
            {"orders": iter([Order("ada", 5)])}, checkpoint=home / "state", restart="1 in 1 minute"
        )
