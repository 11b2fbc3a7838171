"""Processes that write tables of lakes are killed at random moments; each record is there once."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from statekit.sinks import Attempt, Outputs
from tests.support.effort import SOAK
from tests.support.killable_processes import pipe, start
from tests.support.lake_tables import LAKES, in_class, lake
from tests.support.sinks import Order, Spent, spending_job, sums
from tests.support.timeouts import PATIENCE_S

pytestmark = pytest.mark.slow

KILLS = 100 if SOAK else 5
_EPOCH_SIZE = 4
ORDERS = [Order(f"c{number % 7}", number % 11) for number in range(12_000)]


def _live(kind: str, home: Path, options: dict[str, Any], ready: Connection) -> None:
    """Write epochs of a few records until something kills this process."""
    import_module(f"statekit.sinks.lake.{kind}_log")  # takes seconds, in which nothing can go wrong
    sink: Any = lake(kind, home / "table").sink(**options)

    class Told(type(sink)):  # type: ignore[misc]
        def begin(self, outputs: Outputs) -> None:
            ready.send("begins")
            super().begin(outputs)

        def open(self, attempt: Attempt) -> None:
            super().open(attempt)
            ready.send("writes")

    _run(home, in_class(Told, sink), _EPOCH_SIZE)


def _run(home: Path, sink: Any, epoch_size: int) -> None:
    job, checkpoint = spending_job(sink), home / "checkpoint"
    job.run({"orders": ORDERS}, checkpoint=checkpoint, epoch_size=epoch_size, drain=False)


@pytest.mark.parametrize("options", [{}, {"mode": "upsert", "key": "customer"}], ids=str)
@pytest.mark.parametrize("kind", LAKES)
def test_a_process_that_is_killed_again_and_again_leaves_each_record_once(
    tmp_path: Path, kind: str, options: dict[str, Any]
) -> None:
    chosen = random.Random(kind)
    for _ in range(KILLS):
        ready, told = pipe()
        process = start(_live, kind, tmp_path, options, told)
        told.close()
        while ready.recv() != chosen.choice(["begins", "writes", "writes"]):
            continue  # until it is at this moment, or at a later one like it
        time.sleep(chosen.uniform(0.0, 1.0))
        process.kill()
        process.join(PATIENCE_S)
        ready.close()
        assert process.exitcode == -9, "it had come to its end before"
    committed = len(list((tmp_path / "checkpoint" / "epochs").glob("*.json")))
    assert committed > 0
    table = lake(kind, tmp_path / "table")
    _run(
        tmp_path, table.sink(**options), len(ORDERS)
    )  # the last epoch runs again with more records
    expected = sums_in_order(ORDERS)
    if options:
        last = {row.customer: row for row in expected}
        assert table.rows() == sorted(last.values())
    else:
        assert table.rows() == sums(ORDERS)


def sums_in_order(orders: list[Order]) -> Iterator[Spent]:
    """The results of the job in the order of its records."""
    totals: dict[str, int] = {}
    for order in orders:
        totals[order.customer] = totals.get(order.customer, 0) + order.cents
        yield Spent(order.customer, totals[order.customer])
