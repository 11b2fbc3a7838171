"""Totals per shop: orders from Kafka, totals in PostgreSQL.

The environment names both. Records of the topic are such as `{"shop": "north", "cents": 250}`. The
table is `totals`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

import statekit as sk


class Order(NamedTuple):
    shop: str
    cents: int


class Total(NamedTuple):
    shop: str
    cents: int
    orders: int


@sk.process(key="shop")
def total(order: Order, cents: sk.ValueState[int], orders: sk.ValueState[int]) -> Iterator[Total]:
    cents.update((cents.get() or 0) + order.cents)
    orders.update((orders.get() or 0) + 1)
    yield Total(order.shop, cents.get() or 0, orders.get() or 0)


def job() -> sk.Job:
    """Return the job: `statekit run orders:job`."""
    totals = sk.Job("orders")
    topic = os.environ.get("KAFKA_TOPIC", "orders")
    kafka = sk.sources.kafka(os.environ["KAFKA_SERVERS"], topic)
    postgres = sk.sinks.postgres(os.environ["POSTGRES_URL"], "totals", mode="upsert", key="shop")
    totals.source("orders", Order, kafka).process(total).sink("totals", postgres)
    return totals
