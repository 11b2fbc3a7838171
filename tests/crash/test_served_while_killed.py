"""Answers over HTTP are of one epoch, and watchers have its state, while the job and the server are
killed, and the job is rescaled and rolled back.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.effort import SOAK
from tests.support.events import watching
from tests.support.killed_bank import kill, roll_back, started, wait_for_an_epoch
from tests.support.ports import free_port
from tests.support.timeouts import PATIENCE_S
from tests.support.transfers import ACCOUNTS, TRANSFERS_PER_EPOCH, transfer

pytestmark = pytest.mark.slow

SECONDS = 120 if SOAK else 4
CHECKED_MIN = 20 if SOAK else 2
WATCHERS = 3 if SOAK else 2
ALL_CENTS = [cents for cents in range(-19, 20) if cents]


def serve_bank(home: Path, port: int, ready: Connection) -> None:
    """Serve the bank until the process is killed."""
    from statekit.server.admission.options import ServerOptions
    from statekit.server.serve import serve

    options = ServerOptions(port=port, directory=home / "copies-of-server", epochs=8)
    serve({"bank": str(home / "checkpoint")}, options, lambda _: ready.send(None))


def read_all(client: httpx.Client) -> int | None:
    """Read everything in one request, check what has to agree, and return the epoch."""
    accounts = list(range(ACCOUNTS))
    reads = [
        {"operator": "book", "state": "balance", "keys": accounts},
        {"operator": "book", "state": "entries", "keys": accounts},
        {"operator": "audit", "state": "seen", "keys": ALL_CENTS},
    ]
    answer = client.post("/bank/query", json={"reads": reads})
    if answer.status_code == 503:  # it begins
        return None
    assert answer.status_code == 200, answer.text
    balances, counts, seen = (sum(value or 0 for value in own) for own in answer.json()["value"])
    assert balances == 0
    assert counts == seen
    assert counts % (2 * TRANSFERS_PER_EPOCH) == 0
    epoch: int = answer.json()["epoch"]
    return epoch


class BankWatcher:
    """Watches all balances, and connects again whenever it loses the server."""

    def __init__(self, address: str, chosen: random.Random) -> None:
        self.wrong: list[str] = []
        self.epochs_checked = 0
        self.ends = threading.Event()
        self._address, self._chosen = address, chosen
        self._rows: dict[int, int] = {}
        self._last: str | None = None
        self._is_complete = False
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while not self.ends.is_set():
            with contextlib.suppress(httpx.HTTPError, AssertionError):
                leaves_after = self._chosen.randrange(1, 200)
                with watching(self._address, "/bank/book/balance", self._last) as events:
                    for count, event in enumerate(events):
                        self._apply(event)
                        if count > leaves_after or self.ends.is_set():
                            break
            time.sleep(0.02)

    def _apply(self, event: Any) -> None:
        self._last = event.id or self._last
        if event.name == "reset":
            self._rows.clear()
        elif event.name in ("row", "change"):
            if event.data.get("op") == "delete":
                del self._rows[event.data["key"]]
            else:
                self._rows[event.data["key"]] = event.data["value"]
        elif event.name == "epoch":
            self._check(event.data["epoch"])

    def _check(self, epoch: int) -> None:
        """Compare with the state of the epoch, if the server still has it."""
        if sum(self._rows.values()) != 0:
            self.wrong.append(f"epoch {epoch}: the balances are {self._rows}")
        params = {"epoch": epoch, "limit": 1_000}
        answer = httpx.get(f"{self._address}/bank/book/balance", params=params)
        if answer.status_code == 200:
            expected = dict(answer.json()["value"]["items"])
            if expected != self._rows:
                self.wrong.append(f"epoch {epoch}: {self._rows}, and not {expected}")
            self.epochs_checked += 1


def test_every_answer_and_every_watcher_is_right_whatever_is_killed(tmp_path: Path) -> None:
    chosen = random.Random(7)
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    job = started(transfer, tmp_path, 2)
    wait_for_an_epoch(tmp_path)
    server = started(serve_bank, tmp_path, port)
    watchers = [BankWatcher(address, random.Random(seed)) for seed in range(WATCHERS)]
    read: set[int] = set()
    began = time.monotonic()
    next_kill = began + 1
    with httpx.Client(base_url=address, timeout=PATIENCE_S) as client:
        while time.monotonic() < began + SECONDS or not _is_enough(read, watchers):
            assert time.monotonic() < began + SECONDS + PATIENCE_S, (read, watchers)
            with contextlib.suppress(httpx.TransportError):
                epoch = read_all(client)
                read |= set() if epoch is None else {epoch}
            if time.monotonic() < next_kill:
                continue
            next_kill = time.monotonic() + chosen.uniform(0.3, 2.5)
            if chosen.random() < 0.6:
                kill(job)
                if chosen.random() < 0.4:
                    roll_back(tmp_path, chosen)
                job = started(transfer, tmp_path, chosen.choice([1, 2, 3]))
            if chosen.random() < 0.3 or not server.is_alive():
                kill(server)
                server = started(serve_bank, tmp_path, port)
    for watcher in watchers:
        watcher.ends.set()
    kill(job)
    kill(server)
    assert [watcher.wrong for watcher in watchers] == [[]] * WATCHERS


def _is_enough(read: set[int], watchers: list[BankWatcher]) -> bool:
    return len(read) >= CHECKED_MIN and all(each.epochs_checked >= CHECKED_MIN for each in watchers)
