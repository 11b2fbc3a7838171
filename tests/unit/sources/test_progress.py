"""Metrics and the terminal show the progress of a run that follows streams."""

from __future__ import annotations

import logging
import os
import pty
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import statekit as sk
from statekit.checkpoint.repository import Repository
from statekit.sinks import Attempt, Receipt
from tests.support.log_source import LogSource
from tests.support.scraped import scraped
from tests.support.sinks import ORDERS, Noted, Order, spending


def log_in(home: Path) -> LogSource:
    (home / "log").mkdir()
    log = LogSource(home / "log")
    rows: list[Any] = [{"customer": "eve", "cents": None}, *ORDERS]
    log.append("a", rows)
    return log


class Scraping(Noted):
    """Reads the metrics of its run while an epoch is published, and ends the run at the third."""

    def __init__(self, caplog: pytest.LogCaptureFixture, stop: threading.Event) -> None:
        super().__init__()
        self.caplog, self.stop = caplog, stop
        self.scrapes: list[dict[str, float]] = []

    def publish(self, attempt: Attempt, receipts: Sequence[Receipt]) -> None:
        super().publish(attempt, receipts)
        logged = [each for each in self.caplog.records if each.name == "statekit.metrics"]
        self.scrapes.append(scraped(logged[-1].getMessage().rpartition(" ")[2]))
        if len(self.scrapes) == 3:
            self.stop.set()


def test_metrics_have_the_lag_of_sources_and_their_bad_records(
    root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stop = threading.Event()
    sink = Scraping(caplog, stop)
    job = sk.Job("shop")
    orders = job.source("orders", Order, log_in(tmp_path), on_error="drop")
    orders.process(spending).sink("spent", sink)
    with caplog.at_level(logging.INFO, "statekit.metrics"):
        job.run(checkpoint=root, epoch_size=5, follow=True, stop=stop, metrics=0)
    last = sink.scrapes[-1]
    assert last["statekit_bad_records_total{source=orders}"] == 1
    assert last["statekit_source_lag_records{source=orders}"] == 8, "asked after the first epoch"
    assert last["statekit_source_records_total{source=orders}"] == 9


DRIVER = """
import sys
from pathlib import Path
from tests.support.log_source import LogSource
from tests.support.sinks import Noted, spending_job

class Limited(LogSource):
    @property
    def lag_limit(self) -> int:
        return 2

home = Path(sys.argv[1])
options = {"follow": True, "trigger": "1 ms", "epoch_size": 1}
spending_job(Noted()).run(
    {"orders": Limited(home / "log")}, checkpoint=home / "checkpoint", **options
)
"""


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_terminal_shows_progress_and_a_signal_ends_the_run_after_the_epoch(
    tmp_path: Path, sent: signal.Signals
) -> None:
    (tmp_path / "log").mkdir()
    log = LogSource(tmp_path / "log")
    log.append("a", ORDERS)
    terminal, theirs = pty.openpty()
    with subprocess.Popen([sys.executable, "-c", DRIVER, str(tmp_path)], stderr=theirs) as child:
        os.close(theirs)
        shown = b""
        while not (b"or more behind" in shown and b"3 rows of state" in shown):
            log.append("a", ORDERS)
            is_written, _, _ = select.select([terminal], [], [], 0.02)
            shown += os.read(terminal, 4096) if is_written else b""
            child.send_signal(0)  # fails if it has ended
        child.send_signal(sent)
        assert child.wait(timeout=60) == 0
    os.close(terminal)
    assert b"records/s" in shown
    repository = Repository(tmp_path / "checkpoint")
    latest = repository.latest_epoch()
    assert latest is not None
    assert repository.read_note(latest + 1) is None, "an epoch was begun and not committed"
