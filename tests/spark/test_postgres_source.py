"""A table of PostgreSQL is read by tasks of Spark and by a process, from one checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

import statekit as sk
from tests.support.postgres import PostgresSchema
from tests.support.sinks import Order, rows_of, spending, sums
from tests.support.spark_runs import ONCE, Runs, state_of

ORDERS = [Order(f"c{number % 3}", number) for number in range(40)]


@pytest.mark.slow
def test_a_checkpoint_moves_between_a_process_and_spark(
    runs: Runs, postgres: PostgresSchema, tmp_path: Path
) -> None:
    postgres.rows("CREATE TABLE orders (id serial PRIMARY KEY, customer text, cents bigint)")
    out = tmp_path / "out"
    job = sk.Job("shop")
    orders = job.source("orders", Order, sk.sources.postgres(postgres.url, "orders"))
    orders.process(spending).sink("spent", sk.sinks.parquet(out))
    for turn in range(4):
        added = ORDERS[10 * turn : 10 * turn + 10]
        rows = ", ".join(f"('{order.customer}', {order.cents})" for order in added)
        postgres.rows(f"INSERT INTO orders (customer, cents) VALUES {rows}")
        if turn % 2 == 0:
            job.run(checkpoint=runs.checkpoint, epoch_size=4)
        else:
            query = job.start(
                runs.spark, checkpoint=runs.checkpoint, trigger=ONCE, parallelism=turn
            )
            query.await_termination()
            assert sum(progress.records_in for progress in query.progress) == 10
    expected = sums(ORDERS)
    assert rows_of(out) == expected
    totals = {spent.customer: spent.cents for spent in expected}
    assert state_of(runs.checkpoint, "spending", "total", tmp_path / "unpacked") == totals
