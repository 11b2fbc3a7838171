"""A condition over the columns of a source drops rows before records are made of them."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import statekit as sk
from statekit.expressions.compiled import compiled
from statekit.records.union import records_of
from statekit.sources.decoding.condition_first import ConditionFirst
from statekit.sources.decoding.decoder import ColumnDecoder, Decoded


class Order(NamedTuple):
    customer: str
    cents: int
    at: dt.datetime | None = None


NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
CENTS = [100, 2_000, 3_000, 0]


def batch_of(at: Any = NOON, **columns: Any) -> pa.RecordBatch:
    given = {"customer": ["ada", "bob", "cy", "di"], "cents": CENTS, **columns}
    times = pa.array([at] * 4, pa.timestamp("us", "UTC"))
    return pa.record_batch({**given, "at": times})


class Counted(ColumnDecoder):
    """A decoder that counts the rows of which it makes records."""

    rows = 0

    def __call__(self, partition: str, batch: pa.RecordBatch) -> Decoded:
        self.rows += batch.num_rows
        return super().__call__(partition, batch)


def decoded(condition: str, batch: pa.RecordBatch) -> tuple[Decoded, int]:
    """What a batch is decoded to, and the number of rows of which records were made."""
    counted = Counted(records_of(Order, where="orders"), "orders")
    return ConditionFirst(counted, compiled(condition, Order))("all", batch), counted.rows


def test_only_the_rows_for_which_the_condition_is_true_become_records() -> None:
    found, rows = decoded("cents > 1000 AND at IS NOT NULL", batch_of())
    assert found.records == [Order("bob", 2_000, NOON), Order("cy", 3_000, NOON)]
    assert rows == 2


@pytest.mark.parametrize(
    ("batch", "bad"),
    [(batch_of(cents=[100, 2_000, None, 0]), 1), (batch_of(cents=pa.array(CENTS, pa.int32())), 0)],
    ids=["null", "smaller-ints"],
)
def test_all_rows_are_decoded_if_one_may_be_bad(batch: pa.RecordBatch, bad: int) -> None:
    found, rows = decoded("cents > 1000000", batch)
    assert len(found.bad) == bad
    assert len(found.records) == 4 - bad
    assert rows >= 4


def test_all_rows_are_decoded_if_the_condition_fails_for_one() -> None:
    found, rows = decoded("1000 / cents > 1", batch_of())
    assert (len(found.records), rows) == (4, 4)


@sk.process(key="customer")
def count(order: Order, orders: sk.ValueState[int]) -> None:
    orders.update((orders.get() or 0) + 1)


def test_a_run_in_one_process_has_the_records_of_a_filter_by_a_function(tmp_path: Path) -> None:
    path = tmp_path / "orders"
    path.mkdir()
    pq.write_table(pa.Table.from_batches([batch_of()]), path / "1.parquet")
    outputs = []
    for condition in ("cents > 1000", lambda order: order.cents > 1000):
        job = sk.Job("shop")
        orders = job.source("orders", Order, sk.sources.parquet(path))
        orders.filter(condition, name="large").sink("large").process(count)
        outputs.append(job.run()["large"])
    assert outputs[0] == outputs[1] == [Order("bob", 2_000, NOON), Order("cy", 3_000, NOON)]


def test_records_that_another_reader_needs_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "orders"
    path.mkdir()
    pq.write_table(pa.Table.from_batches([batch_of()]), path / "1.parquet")
    job = sk.Job("shop")
    orders = job.source("orders", Order, sk.sources.parquet(path)).sink("all")
    orders.filter("cents > 1000").sink("large").process(count)
    run = job.run()
    assert (len(run["all"]), len(run["large"])) == (4, 2)
