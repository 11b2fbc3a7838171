"""Processes of their own that tests start, watch and kill.

Most are Spark drivers, and most of a short driver's life is spent on loading the JVM's classes. A
class archive, written once by a driver that ends in peace, halves that for all others.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from tests.support.places import ROOT, SUPPORT
from tests.support.spark_job import events
from tests.support.spark_runs import CLASS_ARCHIVE, pieces, write_batch
from tests.support.timeouts import PATIENCE_S


class KillableProcess:
    """A process in a group of its own. Whatever happens, it is gone in the end."""

    def __init__(self, script: str, *arguments: object, log: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"}
        environment.pop("PYSPARK_GATEWAY_PORT", None)
        self._log = log.open("ab")
        self._log_path = log
        self._process = subprocess.Popen(
            [sys.executable, str(SUPPORT / script), *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
            cwd=log.parent,
            start_new_session=True,
        )

    def __enter__(self) -> KillableProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._log.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return

    def kill_workers(self) -> int:
        """Kill the Python workers of a Spark driver, and not the daemon that starts them. Return
        how many there were.
        """
        killed = 0
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in psutil.Process(self.pid).children(recursive=True):
                parent = process.parent()  # a worker has the words of the daemon that it is from
                if parent is not None and "pyspark.worker" in parent.cmdline():
                    process.kill()
                    killed += 1
        return killed

    def wait_for(self, word: str) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.decode().strip() == word:
                return
        raise AssertionError(f"it ended without {word!r}: {self._log_path.read_text()[-4000:]}")

    def wait(self) -> int:
        try:
            return self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"it hung: {self._log_path.read_text()[-4000:]}") from None

    def log(self) -> str:
        return self._log_path.read_text()[-4000:]


def share_class_archive(directory: Path) -> None:
    """Let all drivers of these tests use one archive, written by who comes first."""
    archive = directory / "classes.jsa"
    os.environ[CLASS_ARCHIVE] = str(archive)
    with (directory / "classes.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # let go when it is closed
        if not archive.exists():
            _write_class_archive(directory / "classes")


def _write_class_archive(home: Path) -> None:
    """Let a driver run to its end and leave the classes it loaded."""
    home.mkdir()
    for number, piece in enumerate(pieces(events(seed=0, size=20), 10)):
        write_batch(home / "events", number, [event._asdict() for event in piece])
    with KillableProcess("spark_driver.py", "local[2]", home, log=home / "log") as driver:
        assert driver.wait() == 0, driver.log()
