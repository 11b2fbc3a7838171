"""Kills of processes that write to PostgreSQL, and of PostgreSQL: every record is there once."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psycopg
import pytest

import statekit as sk
from statekit.testing import check_sink
from tests.support.effort import SOAK
from tests.support.killable_processes import pipe, start
from tests.support.postgres import PostgresSchema
from tests.support.sinks import Order, Spent, spending, sums
from tests.support.spark_runs import state_of
from tests.support.timeouts import PATIENCE_S

pytestmark = pytest.mark.slow

KILLS = 10
GROUPS = 10 if SOAK else 2
WITHIN_S = 0.6
ORDERS = [Order(f"c{number % 7}", number) for number in range(5_000)]


def write(home: Path, url: str, seed: int, ready: Connection) -> None:
    """Add each sum to one table, and keep the last one of each customer in another.

    Parameters:
        ready: is sent something when the first record is read.
    """
    chosen = random.Random(seed)

    def given() -> Iterator[Order]:
        ready.send("ready")
        yield from ORDERS

    job = sk.Job("shop")
    spent = job.source("orders", Order).process(spending)
    spent.sink("all", sk.sinks.postgres(url, "spent", retry_s=60))
    spent.sink("last", sk.sinks.postgres(url, "totals", key="customer", mode="upsert", retry_s=60))
    job.run(
        {"orders": given()},
        checkpoint=home / "checkpoint",
        working_directory=home / "working",
        parallelism=chosen.choice([1, 2, 3]),
        epoch_size=chosen.randint(5, 25),  # an epoch that runs again may have another size
    )


def _end_of(home: Path, postgres: PostgresSchema, seed: int) -> int | None:
    """Start a process, kill it or the server, and return the exit code of the process."""
    chosen = random.Random(seed)
    ready, sent = pipe()
    process = start(write, home, postgres.url, seed, sent)
    assert ready.poll(PATIENCE_S), "it never began"
    ready.recv()
    time.sleep(chosen.uniform(0.0, WITHIN_S))
    if chosen.random() < 0.3:
        postgres.server.kill()
        postgres.server.start()
        time.sleep(chosen.uniform(0.0, WITHIN_S))
    process.kill()
    process.join(PATIENCE_S)
    return process.exitcode


@pytest.mark.parametrize("group", range(GROUPS))
def test_each_record_is_written_once_whatever_is_killed(
    tmp_path: Path, postgres: PostgresSchema, group: int
) -> None:
    for seed in range(KILLS * group, KILLS * (group + 1)):
        assert _end_of(tmp_path, postgres, seed) in (0, -signal.SIGKILL), f"seed {seed}"
    _, sent = pipe()
    process = start(write, tmp_path, postgres.url, group, sent)
    process.join(PATIENCE_S)
    assert process.exitcode == 0
    written = [Spent(*row) for row in postgres.rows("SELECT customer, cents FROM spent")]
    expected = sums(ORDERS)
    assert sorted(written) == expected
    last = {spent.customer: spent.cents for spent in expected}
    assert dict(postgres.rows("SELECT customer, cents FROM totals")) == last
    found = state_of(tmp_path / "checkpoint", "spending", "total", tmp_path / "unpacked")
    assert found == last


def _made(url: str, **options: Any) -> Callable[[Path], tuple[Any, Callable[[], list[Spent]]]]:
    def make(place: Path) -> tuple[Any, Callable[[], list[Spent]]]:
        def read() -> list[Spent]:
            with psycopg.connect(url) as connection:
                rows = connection.execute(f"SELECT customer, cents FROM {place.name}".encode())
                return [Spent(*row) for row in rows]

        return sk.sinks.postgres(url, place.name, **options), read

    return make


@pytest.mark.parametrize(
    "options",
    [{}, {"epoch_column": None}, {"key": "customer", "mode": "upsert"}],
    ids=["append", "without epochs", "upsert"],
)
def test_the_sink_leaves_each_record_once_whenever_its_process_is_killed(
    postgres: PostgresSchema, options: dict[str, Any]
) -> None:
    records = [Spent(f"c{number}", number) for number in range(4)]
    check_sink(_made(postgres.url, **options), records, depth="quick")
