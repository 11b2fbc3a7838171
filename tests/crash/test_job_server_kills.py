"""Jobs of a server are killed at random points, and so are their servers; meanwhile users stop,
start, rescale and roll back. No job is lost, none runs twice at a time, and each continues its
checkpoint: every order is counted once.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import statekit as sk
from statekit.checkpoint.repository import Repository
from statekit.clock import sleep_s, stopwatch_s
from statekit.query.client import Client
from statekit.server.admission.token_file import add_token
from tests.support.effort import SOAK
from tests.support.places import ROOT
from tests.support.ports import free_port
from tests.support.submitted_jobs import MODULE, document, order, totals
from tests.support.waiting import until

pytestmark = pytest.mark.slow

JOBS, ACTIONS, JOBS_OF_ACTION = (100, 40, 5) if SOAK else (4, 9, 1)
FOLLOWING = JOBS // 4
"""The first jobs follow their input. The others read it once, and are started again: 100 processes
at a time take more than the cores of a small machine.
"""
SERVERS = 2
"""Only one of them runs the jobs."""

PATIENCE_S = 600.0 if SOAK else 120.0


class Servers:
    """Servers with the same registry, in processes of their own that are started again.

    Parameters:
        home: of the registry, checkpoints and data.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self.token = add_token(home / "tokens.json", "deploy", [], ["*"])
        self.ports = [free_port() for _ in range(SERVERS)]
        self.processes = [self._started(port) for port in self.ports]

    def _started(self, port: int) -> subprocess.Popen[bytes]:
        words = ["server", self.home / "registry", "--tokens", self.home / "tokens.json"]
        words += ["--allow", MODULE, "--checkpoints-below", self.home / "state"]
        words += ["--data-below", self.home / "data", "--port", port]
        with (self.home / f"server-{port}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "statekit.cli", *map(str, words)],
                cwd=ROOT,
                stdout=log,
                stderr=log,
            )

    def client(self, number: int) -> Client:
        url = f"http://127.0.0.1:{self.ports[number]}"
        return Client(url, token=self.token, timeout="120 seconds", retries=14)

    def answers(self, number: int) -> bool:
        """Return whether a server answers."""
        with contextlib.suppress(httpx.TransportError):
            url = f"http://127.0.0.1:{self.ports[number]}/healthz"
            return httpx.get(url).status_code == 200
        return False

    def kill(self, number: int) -> None:
        """Kill a server, and start it again."""
        self.processes[number].kill()
        self.processes[number].wait()
        self.processes[number] = self._started(self.ports[number])

    def end(self) -> None:
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            assert process.wait(60) in (0, -signal.SIGTERM)


class Watch:
    """Looks all the time whether a checkpoint has two processes."""

    def __init__(self, home: Path) -> None:
        self._mark = f"--checkpoint={home / 'state'}/".encode()
        self.twice: list[str] = []
        self.looks = 0
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def processes(self) -> dict[str, list[int]]:
        """Return the ids of the processes of each job."""
        found: dict[str, list[int]] = {}
        for entry in os.listdir("/proc"):
            with contextlib.suppress(OSError):
                words = Path("/proc", entry, "cmdline").read_bytes().split(b"\0")
                if b"run" in words:
                    for word in words:
                        if word.startswith(self._mark):
                            name = word.removeprefix(self._mark).decode()
                            found.setdefault(name, []).append(int(entry))
        return found

    def _run(self) -> None:
        while not self._ends.wait(0.05):
            self.looks += 1
            for name, ids in self.processes().items():
                # A process that is between its fork and its program has the words of another one.
                if len(ids) > 1 and len(self.processes().get(name, [])) > 1:
                    self.twice.append(f"{name}: {ids}")

    def close(self) -> None:
        self._ends.set()
        self._thread.join()


class Users:
    """What users do with the jobs, and what they expect of them.

    Parameters:
        servers: that they ask.
        seed: of their choices.
    """

    def __init__(self, servers: Servers, watch: Watch, seed: int) -> None:
        self.servers, self.watch, self.chosen = servers, watch, random.Random(seed)
        self.orders: dict[str, Counter[str]] = {}
        self.files = 0
        self.done = Counter[str]()

    @property
    def data(self) -> Path:
        return self.servers.home / "data"

    @contextlib.contextmanager
    def asking(self) -> Iterator[Client]:
        """Yield the client of a random server that answers: one that was killed takes a while."""
        numbers = self.chosen.sample(range(SERVERS), SERVERS)
        until(lambda: any(map(self.servers.answers, numbers)), PATIENCE_S)
        with self.servers.client(next(filter(self.servers.answers, numbers), 0)) as client:
            yield client

    def submit(self, name: str) -> None:
        self.orders[name] = Counter()
        text = document(self.data / name)
        self.order(name)
        with self.asking() as client:
            follow = len(self.orders) <= FOLLOWING
            client.submit(text, name, restart="1000 in 2 seconds", follow=follow)

    def order(self, name: str) -> None:
        customers = [f"c{self.chosen.randrange(5)}" for _ in range(self.chosen.randrange(1, 9))]
        self.files += 1
        order(self.data / name, f"{self.files:06d}", *((each, 1) for each in customers))
        self.orders[name].update(customers)

    def act(self) -> None:
        """Do something with random jobs or a server."""
        names = self.chosen.sample(sorted(self.orders), JOBS_OF_ACTION)
        kinds = ["kill job", "kill job", "kill server", "kill both", "stop", "start", "rescale"]
        kind = self.chosen.choice([*kinds, "roll back", "restart", "save"])
        self.done[kind] += 1
        for name in names:
            self.order(name)
            self._ask("start" if kind.startswith("kill") else kind, name)
        sleep_s(self.chosen.uniform(0, 2))
        if kind in ("kill job", "kill both"):
            running = self.watch.processes()
            for process in (each for name in names for each in running.get(name, [])):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
                    self.done["killed processes"] += 1
        if kind in ("kill server", "kill both"):
            self.servers.kill(self.chosen.randrange(SERVERS))

    def _ask(self, kind: str, name: str) -> None:
        with self.asking() as client:
            if kind == "stop":
                client.stop_job(name)
            elif kind == "start":
                client.start_job(name)
            elif kind == "rescale":
                client.rescale_job(name, self.chosen.randrange(1, 5))
            elif kind == "restart":
                client.restart_job(name)
            else:
                with contextlib.suppress(sk.StateTypeError):  # another operation is not done
                    self._operate(client, kind, name)

    def _operate(self, client: Client, kind: str, name: str) -> None:
        if kind == "save":
            client.save_job(name, f"s{self.chosen.randrange(10**9)}")
        else:
            last = Repository(self.servers.home / "state" / name).latest_epoch() or 0
            client.roll_back_job(name, self.chosen.randrange(max(0, last - 3), last + 1))

    def is_done(self) -> bool:
        """Start the jobs that are behind, and return whether there are none."""
        behind = self.behind()
        for name in behind:
            self._ask("start", name)  # one that runs already goes on
        sleep_s(0.5)
        return not behind

    def behind(self) -> list[str]:
        """Return the jobs whose outputs are not yet those of all orders, each counted once."""
        return [name for name, own in self.orders.items() if totals(self.data / name) != sums(own)]


def sums(orders: Counter[str]) -> list[tuple[str, int]]:
    """Return what a job emits for orders of one cent: the sum after each of them."""
    return sorted((name, sum) for name, most in orders.items() for sum in range(1, most + 1))


@pytest.mark.timeout(3_000)
def test_no_job_is_lost_or_run_twice_and_each_order_is_counted_once(tmp_path: Path) -> None:
    servers, watch = Servers(tmp_path), Watch(tmp_path)
    users = Users(servers, watch, seed=5)
    began_s = stopwatch_s()
    try:
        for number in range(JOBS):
            users.submit(f"job{number:03d}")
        for _ in range(ACTIONS):
            users.act()
        until(users.is_done, PATIENCE_S)
        (jobs,) = [shown(servers)]
        assert [job["name"] for job in jobs] == sorted(users.orders)
        assert [job["last_failure"] for job in jobs if job["status"] == "failed"] == []
        servers.end()
        assert watch.processes() == {}
    finally:
        watch.close()
        for process in servers.processes:
            process.kill()
    seconds = stopwatch_s() - began_s
    print(f"{JOBS} jobs, {dict(users.done)}, {watch.looks} looks in {seconds:.0f} s")
    assert watch.twice == []


def shown(servers: Servers) -> list[dict[str, Any]]:
    until(lambda: servers.answers(0), PATIENCE_S)
    with servers.client(0) as client:
        return client.submitted_jobs()
