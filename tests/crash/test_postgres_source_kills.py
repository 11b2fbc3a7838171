"""Kills of processes that read a table of PostgreSQL while its writers commit out of order."""

from __future__ import annotations

import random
import signal
import threading
import time
from pathlib import Path

import psycopg
import pytest

import statekit as sk
from statekit.checkpoint.repository import Repository
from statekit.sources.postgres_horizon import WaitFor
from tests.support.effort import SOAK
from tests.support.killable_processes import start
from tests.support.postgres import PostgresSchema
from tests.support.sinks import Order, rows_of, spending, sums
from tests.support.spark_runs import state_of
from tests.support.timeouts import PATIENCE_S
from tests.support.waiting import until

pytestmark = pytest.mark.slow

KILLS = 100 if SOAK else 10
WITHIN_S = 0.2
WRITERS = 4
PAUSE_S = 0.05


def read(home: Path, url: str, wait_for: WaitFor, seed: int) -> None:
    """Add the orders of a table to the sums of their customers."""
    chosen = random.Random(seed)
    job = sk.Job("shop")
    source = sk.sources.postgres(url, "orders", wait_for=wait_for)
    job.source("orders", Order, source).process(spending).sink(
        "spent", sk.sinks.parquet(home / "spent")
    )
    job.run(
        checkpoint=home / "checkpoint",
        working_directory=home / "working",
        parallelism=chosen.choice([1, 2, 3]),
        epoch_size=chosen.randint(20, 200),
    )


def write(url: str, seed: int, stop: threading.Event) -> None:
    """Insert orders in transactions of some milliseconds, until told to stop."""
    chosen = random.Random(seed)
    insert = "INSERT INTO orders (customer, cents) VALUES (%s, %s)"
    with psycopg.connect(url) as connection:
        while not stop.is_set():
            for _ in range(chosen.randint(1, 3)):
                connection.execute(insert, (f"c{chosen.randrange(7)}", chosen.randrange(1000)))
            stop.wait(chosen.uniform(0.0, PAUSE_S))  # others commit larger values meanwhile
            if chosen.random() < 0.1:
                connection.rollback()
            else:
                connection.commit()


@pytest.mark.parametrize("wait_for", ["transactions", "writers"])
def test_each_row_changes_state_once_wherever_the_process_is_killed(
    tmp_path: Path, postgres: PostgresSchema, wait_for: WaitFor
) -> None:
    postgres.rows("CREATE TABLE orders (id serial PRIMARY KEY, customer text, cents bigint)")
    stop = threading.Event()
    writers = [
        threading.Thread(target=write, args=(postgres.url, seed, stop)) for seed in range(WRITERS)
    ]
    for writer in writers:
        writer.start()
    try:
        ends = [_killed_at(tmp_path, postgres, wait_for, seed) for seed in range(KILLS)]
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    assert set(ends) <= {0, -signal.SIGKILL}
    process = start(read, tmp_path, postgres.url, wait_for, 0)
    process.join(PATIENCE_S)
    assert process.exitcode == 0
    expected = sums(
        [Order(*row) for row in postgres.rows("SELECT customer, cents FROM orders ORDER BY id")]
    )
    assert rows_of(tmp_path / "spent") == expected
    last = {spent.customer: spent.cents for spent in expected}
    assert state_of(tmp_path / "checkpoint", "spending", "total", tmp_path / "unpacked") == last


def _killed_at(home: Path, postgres: PostgresSchema, wait_for: WaitFor, seed: int) -> int | None:
    """Start a process, kill it soon after it has committed an epoch, and return its exit code."""
    before = committed(home)
    process = start(read, home, postgres.url, wait_for, seed)
    until(lambda: committed(home) > before or not process.is_alive())
    time.sleep(random.Random(seed).uniform(0.0, WITHIN_S))
    process.kill()
    process.join(PATIENCE_S)
    assert committed(home) > before
    return process.exitcode


def committed(home: Path) -> int:
    """The last epoch that is committed; -1 if there is none."""
    epoch = Repository(home / "checkpoint").latest_epoch()
    return -1 if epoch is None else epoch
