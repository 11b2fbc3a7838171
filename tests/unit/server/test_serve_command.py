"""`statekit serve` as a process: its address, its end, and what it refuses."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.support.served import Sale, sell

COMMAND = [sys.executable, "-m", "statekit.cli", "serve"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("served") / "sales"
    sell(home, [Sale("rome", "tea", 400)])
    return home


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT])
def test_it_says_its_address_and_ends_when_it_is_told_to(home: Path, end: signal.Signals) -> None:
    given = [*COMMAND, str(home), "--port", "0"]
    with subprocess.Popen(given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as it:
        try:
            assert it.stdout is not None
            said = it.stdout.readline()
            address = said.split()[-1]
            assert said.startswith("serving sales on http://127.0.0.1:")
            assert httpx.get(f"{address}/sales/sales/total/rome").json()["value"] == 400
            it.send_signal(end)
            rest = it.communicate(timeout=30)[0]
            assert rest == ""
        finally:
            it.kill()


def test_a_port_that_is_used_is_an_error_that_says_what_to_do(home: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        ended = subprocess.run(
            [*COMMAND, str(home), "--port", port], capture_output=True, text=True, check=False
        )
    assert ended.returncode == 1
    assert "give another --port" in " ".join(ended.stderr.split())
    assert "Traceback" not in ended.stderr


def test_a_server_for_everyone_needs_tokens(home: Path) -> None:
    ended = subprocess.run(
        [*COMMAND, str(home), "--host", "0.0.0.0"], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    assert "give --tokens FILE" in " ".join(ended.stderr.split())
