"""Kills of processes that read from Kafka, and of the broker: every record changes state once."""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

import statekit as sk
from statekit.functions.failed_record import FailedRecord
from statekit.sources import BadRecord
from tests.support.effort import SOAK
from tests.support.kafka_broker import KafkaBroker
from tests.support.killable_processes import pipe, start
from tests.support.sinks import Order, Spent, rows_of, sums
from tests.support.spark_runs import parquet_rows, state_of
from tests.support.timeouts import PATIENCE_S

pytestmark = pytest.mark.slow

KILLS = 10
GROUPS = 10 if SOAK else 2
WITHIN_S = 0.5
PARTITIONS = 3
ORDERS = [Order(f"c{number % 7}", number) for number in range(4_000)]
POISON = 100


class Unlucky(Exception):
    pass


@sk.process(key="customer", on_error="collect")
def picky(order: Order, total: sk.ValueState[int]) -> Iterator[Spent]:
    """Add the orders of a customer, and fail for some of them after all is done."""
    total.update((total.get() or 0) + order.cents)
    yield Spent(order.customer, total.get() or 0)
    if is_unlucky(order):
        raise Unlucky(str(order.cents))


def is_unlucky(order: Order) -> bool:
    return order.cents % POISON == 50


def read(home: Path, servers: str, topic: str, seed: int, wait_ms: int, ready: Connection) -> None:
    """Add the orders of a topic to the sums of their customers. Values that are no orders, and
    orders for which the function fails, go to sinks of their own.

    Parameters:
        wait_ms: how long the broker may look for records. In S3 it finds none at once.
        ready: is sent something when the job begins.
    """
    chosen = random.Random(seed)
    job = sk.Job("shop")
    source = sk.sources.kafka(servers, topic, options={"fetch.wait.max.ms": wait_ms})
    orders = job.source("orders", Order, source, on_error="collect")
    spent = orders.process(picky)
    spent.sink("spent", sk.sinks.parquet(home / "spent"))
    spent.errors.sink("failed", sk.sinks.parquet(home / "failed"))
    orders.errors.sink("errors", sk.sinks.parquet(home / "errors"))
    ready.send("ready")
    job.run(
        checkpoint=home / "checkpoint",
        working_directory=home / "working",
        parallelism=chosen.choice([1, 2, 3]),
        epoch_size=chosen.randint(5, 40),  # an epoch that was begun keeps its offsets
    )


def _end_of(home: Path, kafka: KafkaBroker, topic: str, seed: int, *, durable: bool) -> int | None:
    """Start a process, kill it or the broker, and return the exit code of the process."""
    chosen = random.Random(seed)
    ready, sent = pipe()
    process = start(read, home, kafka.servers, topic, seed, 500 if durable else 5, sent)
    assert ready.poll(PATIENCE_S), "it never began"
    ready.recv()
    time.sleep(chosen.uniform(0.0, WITHIN_S))
    if durable and chosen.random() < 0.3:
        kafka.kill()
        kafka.start()
        time.sleep(chosen.uniform(0.0, WITHIN_S))
    process.kill()
    process.join(PATIENCE_S)
    return process.exitcode


def _filled(kafka: KafkaBroker, topic: str) -> list[Order]:
    """Write all orders to a topic, and something else now and then. Each customer has a partition.
    Return the orders.
    """
    kafka.create_topic(topic, PARTITIONS)
    for partition in range(PARTITIONS):
        own = [order for order in ORDERS if int(order.customer[1:]) % PARTITIONS == partition]
        values = [json.dumps(order._asdict()) for order in own]
        for place in range(0, len(values), POISON):
            values[place] = '{"customer": "no'
        kafka.produce(topic, values, partition=partition)
    return [Order(**json.loads(value)) for value in _good(kafka, topic)]


def _good(kafka: KafkaBroker, topic: str) -> list[bytes]:
    return [value for value in kafka.values(topic) if value is not None and value[-1:] == b"}"]


def _check(home: Path, kafka: KafkaBroker, topic: str, orders: list[Order]) -> None:
    """Run the job to its end, and compare what it left with what the topic has."""
    _, sent = pipe()
    process = start(read, home, kafka.servers, topic, 0, 500, sent)
    process.join(PATIENCE_S)
    assert process.exitcode == 0
    expected = sums([order for order in orders if not is_unlucky(order)])
    assert rows_of(home / "spent") == expected
    totals = {spent.customer: spent.cents for spent in expected}
    assert state_of(home / "checkpoint", "picky", "total", home / "unpacked") == totals
    failed = [FailedRecord(**row) for row in parquet_rows(home / "failed")]
    assert {each.error for each in failed} == {"Unlucky"}
    unlucky = [order.cents for order in orders if is_unlucky(order)]
    assert sorted(int(each.message) for each in failed) == sorted(unlucky)
    bad = sorted(BadRecord(**row)[1:3] for row in parquet_rows(home / "errors"))
    assert bad == sorted(
        (f"{topic}/{record.partition}", str(record.offset))
        for record in kafka.records(topic)
        if record.value is not None and record.value[-1:] != b"}"
    )


@pytest.mark.parametrize("group", range(GROUPS))
def test_each_record_changes_state_once_wherever_the_process_is_killed(
    tmp_path: Path, kafka: KafkaBroker, topic: str, group: int
) -> None:
    orders = _filled(kafka, topic)
    ends = [
        _end_of(tmp_path, kafka, topic, seed, durable=False)
        for seed in range(KILLS * group, KILLS * (group + 1))
    ]
    assert set(ends) <= {0, -signal.SIGKILL}
    _check(tmp_path, kafka, topic, orders)


def test_each_record_changes_state_once_wherever_the_broker_is_killed(
    tmp_path: Path, killable_kafka: KafkaBroker, topic: str
) -> None:
    orders = _filled(killable_kafka, topic)
    ends = [_end_of(tmp_path, killable_kafka, topic, seed, durable=True) for seed in range(6)]
    assert set(ends) <= {0, -signal.SIGKILL}
    _check(tmp_path, killable_kafka, topic, orders)
