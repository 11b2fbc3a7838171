"""`statekit server`, and the commands for its jobs, in processes of their own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from statekit.server.admission.token_file import add_token
from tests.support.command_line import statekit
from tests.support.places import ROOT
from tests.support.submitted_jobs import MODULE, document, order, totals
from tests.support.waiting import until


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    tokens = tmp_path / "tokens.json"
    monkeypatch.setenv("STATEKIT_TOKEN", add_token(tokens, "deploy", [], ["*"]))
    words = ["server", tmp_path / "registry", "--tokens", tokens, "--allow", MODULE, "--port", 0]
    words += ["--checkpoints-below", tmp_path / "state", "--data-below", tmp_path]
    command = [sys.executable, "-m", "statekit.cli", *map(str, words)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, text=True) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        assert "serving submitted jobs on http://" in said
        yield said.split()[-1]
        process.terminate()
        assert process.wait(60) in (0, -signal.SIGTERM)


def test_a_job_is_submitted_watched_changed_and_stopped(url: str, tmp_path: Path) -> None:
    (tmp_path / "shop.json").write_text(document(tmp_path))
    done = statekit("submit", url, tmp_path / "shop.json", "--name", "shop")
    assert (done.returncode, done.stderr) == (0, "")
    place = f"{url}/submitted/shop"
    assert done.stdout.splitlines()[-1] == place
    order(tmp_path, "a", ("ada", 1))
    until(lambda: totals(tmp_path) == [("ada", 1)])

    def job() -> dict[str, object]:
        found: dict[str, object] = json.loads(statekit("jobs", url, "--json").stdout)
        return found

    until(lambda: job()["epoch"] == 0)
    assert statekit("jobs", url).stdout.count("running") == 1
    assert '"epoch": 0' in statekit("logs", url, "shop").stdout
    assert statekit("rescale", place, "--to", 2).returncode == 0
    assert statekit("savepoint", place, "first").returncode == 0
    until(lambda: job()["done"] is not None)
    assert statekit("rollback", place, "--to", 0).returncode == 0
    until(lambda: job()["operation"] is None)
    assert statekit("rollback", place, "--to", 99).returncode == 0
    until(lambda: job()["operation"] is None)
    assert "rollback of shop failed at" in statekit("jobs", url).stdout
    assert statekit("stop", url, "shop").returncode == 0
    until(lambda: job()["status"] == "stopped")
    assert statekit("start", url, "shop").returncode == 0
    assert statekit("restart", url, "shop").returncode == 0
    until(lambda: job()["status"] == "running")
    assert statekit("stop", url, "shop").returncode == 0
    assert "to be deleted" in statekit("delete", url, "shop").stdout
    until(lambda: statekit("jobs", url, "--json").stdout == "")


def test_what_is_refused_has_its_reason(url: str, tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("{}")
    refused = statekit("submit", url, tmp_path / "other.json", "--name", "shop")
    assert refused.returncode == 1
    assert "the document of the job is not valid" in refused.stderr
    absent = statekit("stop", url, "shop")
    assert (absent.returncode, "no job shop was submitted" in absent.stderr) == (1, True)
    both = statekit("rollback", f"{url}/submitted/shop", "--to", 0, "--dry-run")
    assert (both.returncode, "--dry-run is for checkpoints" in both.stderr) == (1, True)
    missing = statekit("server", tmp_path / "jobs", "--port", 0)
    assert (missing.returncode, "--allow" in missing.stderr) == (1, True)
