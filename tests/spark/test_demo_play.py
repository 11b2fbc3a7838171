"""`statekit demo --serve`, as a user starts and stops it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import psutil
import pytest

from tests.support.effort import SOAK

pytestmark = [pytest.mark.spark, pytest.mark.slow]

LIMIT_S = 120
ENDINGS = [signal.SIGTERM, signal.SIGINT] if SOAK else [signal.SIGTERM]


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_demo_serves_live_numbers_and_leaves_no_process(
    tmp_path: Path, ending: signal.Signals
) -> None:
    home, log = tmp_path / "demo", tmp_path / "log"
    command = [sys.executable, "-m", "statekit.cli", "demo", "--serve", "--port", "0"]
    with log.open("wb") as output:
        demo = subprocess.Popen([*command, "--directory", str(home)], stdout=output, stderr=output)
    try:
        address = _address(log, demo)
        epochs = {_epoch(address)}
        while len(epochs) < 3:
            time.sleep(0.2)  # a client that asks all the time slows down what it waits for
            epochs.add(_epoch(address))
            assert demo.poll() is None, log.read_text()
        assert httpx.get(f"{address}/fleet/aggregate_by_airport/turnarounds/JFK").json()["value"]
        assert "statekit" in httpx.get(address, follow_redirects=True).text
        started = psutil.Process(demo.pid).children(recursive=True)
        demo.send_signal(ending)
        demo.wait(LIMIT_S)
        _, left = psutil.wait_procs(started, timeout=30)
        assert left == []
    finally:
        demo.kill()
        demo.wait()


def _address(log: Path, demo: subprocess.Popen[bytes]) -> str:
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until:
        assert demo.poll() is None, log.read_text()
        found = re.search(r"serving fleet on (http://\S+)", log.read_text())
        if found is not None:
            return found.group(1)
        time.sleep(0.1)
    raise AssertionError(log.read_text())


def _epoch(address: str) -> int:
    epoch: int = httpx.get(f"{address}/fleet", timeout=30).json()["epoch"]
    return epoch
