"""A job with sinks in one process, and a sink that notes what it is asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

import statekit as sk
from statekit.sinks import Attempt, Outputs, Part, Receipt, Sink


class Order(NamedTuple):
    customer: str
    cents: int


class Spent(NamedTuple):
    customer: str
    cents: int


@sk.process(key="customer")
def spending(order: Order, total: sk.ValueState[int]) -> Iterator[Spent]:
    total.update((total.get() or 0) + order.cents)
    yield Spent(order.customer, total.get() or 0)


def spending_job(target: Any = None) -> sk.Job:
    """A job whose sums go to the sink `spent`."""
    job = sk.Job("shop")
    job.source("orders", Order).process(spending).sink("spent", target)
    return job


ORDERS = [Order(f"c{number % 3}", number) for number in range(12)]


def sums(orders: Sequence[Order]) -> list[Spent]:
    """What the job has for results, sorted."""
    totals: dict[str, int] = {}
    found = []
    for order in orders:
        totals[order.customer] = totals.get(order.customer, 0) + order.cents
        found.append(Spent(order.customer, totals[order.customer]))
    return sorted(found)


def rows_of(directory: Path) -> list[Spent]:
    """The rows of published files, sorted."""
    files = directory.glob("*.parquet")
    return sorted(Spent(**row) for file in files for row in pq.read_table(file).to_pylist())


class Noted(Sink):
    """Keeps the rows of each epoch, and notes each call."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.rows: dict[int, list[Any]] = {}
        self.schemas: list[pa.Schema] = []

    def begin(self, outputs: Outputs) -> None:
        self.calls.append(f"begin {outputs.sink} {', '.join(outputs.schema.names)}")

    def open(self, attempt: Attempt) -> None:
        self.calls.append(f"open {attempt.epoch}{' first' if attempt.is_first else ''}")

    def write(self, part: Part, batches: Iterator[pa.RecordBatch]) -> Receipt:
        taken = list(batches)
        self.calls.append(f"write {part.epoch} part {part.number}")
        self.schemas += [batch.schema for batch in taken]
        return {"rows": [row for batch in taken for row in batch.to_pylist()]}

    def publish(self, attempt: Attempt, receipts: Sequence[Receipt]) -> None:
        self.calls.append(f"publish {attempt.epoch}")
        self.rows[attempt.epoch] = [row for receipt in receipts for row in receipt["rows"]]

    def abandon(self, epochs: tuple[tuple[int, int], ...]) -> None:
        self.calls.append(f"abandon {epochs}")
        for first, last in epochs:
            for epoch in range(first, last + 1):
                self.rows.pop(epoch, None)

    def close(self) -> None:
        self.calls.append("close")
