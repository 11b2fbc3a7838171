"""A server of Spark Connect: a process of its own, which outlives the clients that tests kill."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyspark

from tests.support.places import ROOT
from tests.support.ports import free_port
from tests.support.spark_runs import SHORT_LIVED

START_S = 60.0
_SPARK_HOME = Path(pyspark.__file__).parent
_MAIN = "org.apache.spark.sql.connect.service.SparkConnectServer"


class ConnectServer:
    """A server below one directory. Whatever happens, its processes are gone in the end.

    Parameters:
        home: the directory.
        master: where its tasks run.

    Attributes:
        url: for `SparkSession.builder.remote`.
    """

    def __init__(self, home: Path, master: str = "local[2,4]") -> None:
        self.home = home
        port = free_port()
        self.url = f"sc://127.0.0.1:{port}"
        settings = {
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(port),
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.extraJavaOptions": " ".join(SHORT_LIVED),
            "spark.driver.memory": "1g",
            "spark.executor.memory": "512m",
            "spark.local.dir": str(home / "local"),
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(home / "warehouse"),
            "spark.ui.enabled": "false",
        }
        words = [str(_SPARK_HOME / "bin" / "spark-submit"), "--master", master, "--class", _MAIN]
        for name, value in settings.items():
            words += ["--conf", f"{name}={value}"]
        environment = {
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT),
            "SPARK_HOME": str(_SPARK_HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        home.mkdir(parents=True)
        self._log = home / "log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*words, "spark-internal"],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=home,
                start_new_session=True,
            )

    def __enter__(self) -> ConnectServer:
        until = time.monotonic() + START_S
        while "Spark Connect server started at" not in (said := self._log.read_text()):
            if self._process.poll() is not None or time.monotonic() > until:
                self.__exit__()
                raise AssertionError(f"the server did not start: {said[-4000:]}")
            time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
