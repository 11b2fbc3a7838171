"""A Spark standalone cluster on this machine: a master and workers, each a process of its own.

The JVMs are started from the jars of the installed PySpark. To Spark the workers are two hosts,
since it never runs a task and its speculative copy on one; each has disks of its own.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyspark

from tests.support.ports import free_port
from tests.support.spark_runs import SHORT_LIVED

HOSTS = ("127.0.0.1", "127.0.0.2")  # on Linux, all of 127.0.0.0/8 is this machine
START_S = 60.0

_SPARK_HOME = Path(pyspark.__file__).parent
_SCALA = "2.13"  # workers without it look for a build of Spark to learn it


@dataclass(frozen=True)
class _Daemon:
    process: subprocess.Popen[bytes]
    log: Path


class Cluster:
    """A cluster below one directory. Whatever happens, its processes are gone in the end.

    Parameters:
        home: the directory.
        hosts: the address of each worker.

    Attributes:
        url: for `SparkSession.builder.master`.
    """

    def __init__(self, home: Path, hosts: Sequence[str] = HOSTS) -> None:
        self.home = home
        self._hosts = hosts
        self._daemons: list[_Daemon] = []
        self._workers: list[_Daemon] = []
        self.url = f"spark://{HOSTS[0]}:{free_port(HOSTS[0])}"

    def __enter__(self) -> Cluster:
        try:
            port = self.url.rpartition(":")[2]
            place = ("--host", HOSTS[0], "--port", port, "--webui-port", "0")
            master = self._start(
                "master", HOSTS[0], "org.apache.spark.deploy.master.Master", *place
            )
            _wait_for(master, "I have been elected leader")
            for number, host in enumerate(self._hosts):
                offered = ("--cores", "1", "--memory", "1g", "--webui-port", "0")
                worker = "org.apache.spark.deploy.worker.Worker"
                self._workers.append(
                    self._start(
                        f"worker-{number}", host, worker, "--host", host, *offered, self.url
                    )
                )
            for daemon in self._workers:
                _wait_for(daemon, "Successfully registered with master")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for executor in self.executors():
            _kill(executor)
        for daemon in self._daemons:
            _kill(daemon.process.pid)
            daemon.process.wait()

    def executors(self) -> list[int]:
        """The processes of all executors."""
        found = []
        for daemon in self._workers:
            if daemon.process.poll() is None:
                found += [child.pid for child in psutil.Process(daemon.process.pid).children()]
        return found

    def working_copies(self) -> dict[Path, set[str]]:
        """What each executor has working copies of: operator and key groups."""
        found = {}
        for directory in self.home.glob("worker-*/local/*/*/statekit"):
            locks = directory.glob("*/*/*/lock")
            found[directory] = {"/".join(lock.parts[-3:-1]) for lock in locks}
        return found

    def logs(self) -> str:
        """The ends of what all processes of the cluster had to say."""
        paths = sorted(self.home.glob("*/log")) + sorted(self.home.glob("*/work/*/*/stderr"))
        return "\n".join(f"{path}:\n{path.read_text()[-2000:]}" for path in paths)

    def _start(self, name: str, host: str, main: str, *arguments: str) -> _Daemon:
        home = self.home / name
        home.mkdir(parents=True)
        environment = {
            **os.environ,
            "SPARK_HOME": str(_SPARK_HOME),
            "SPARK_SCALA_VERSION": _SCALA,
            "SPARK_LOCAL_IP": host,
            "SPARK_LOCAL_DIRS": str(home / "local"),
            "SPARK_WORKER_DIR": str(home / "work"),
        }
        options = ("-Xmx256m", *SHORT_LIVED, "-cp", f"{_SPARK_HOME}/jars/*")
        command = ["java", *options, main, *arguments]
        with (home / "log").open("wb") as log:
            process = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=home,
                start_new_session=True,
            )
        daemon = _Daemon(process, home / "log")
        self._daemons.append(daemon)
        return daemon


def _wait_for(daemon: _Daemon, words: str) -> None:
    until = time.monotonic() + START_S
    while words not in (said := daemon.log.read_text()):
        assert daemon.process.poll() is None, said
        assert time.monotonic() < until, said
        time.sleep(0.05)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
