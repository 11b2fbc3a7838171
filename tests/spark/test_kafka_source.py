"""A topic is read by tasks of Spark and by a process, in turns, from one checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import statekit as sk
from statekit.connectors.kafka_headers import ORIGIN, origin_prefix
from tests.support.kafka_broker import KafkaBroker
from tests.support.sinks import Order, rows_of, spending, sums
from tests.support.spark_runs import Runs, state_of

ORDERS = [Order(f"c{number % 3}", number) for number in range(42)]


@pytest.mark.slow
def test_a_checkpoint_moves_from_a_process_to_spark_and_back_three_times(
    runs: Runs, kafka: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    kafka.create_topic(topic, 2)
    out = tmp_path / "out"
    job = sk.Job("shop")
    orders = job.source("orders", Order, sk.sources.kafka(kafka.servers, topic))
    orders.process(spending).sink("spent", sk.sinks.parquet(out))
    for turn in range(7):
        for order in ORDERS[6 * turn : 6 * turn + 6]:  # one by one: the broker knows their ends
            value, partition = json.dumps(order._asdict()), int(order.customer == "c1")
            kafka.produce(topic, [value], partition=partition)
        if turn % 2 == 0:
            job.run(checkpoint=runs.checkpoint, epoch_size=4)
        else:
            query = job.start(
                runs.spark,
                checkpoint=runs.checkpoint,
                trigger={"availableNow": True},
                parallelism=turn,
            )
            query.await_termination()
            assert sum(progress.records_in for progress in query.progress) == 6
    expected = sums(ORDERS)
    assert rows_of(out) == expected
    totals = {spent.customer: spent.cents for spent in expected}
    assert state_of(runs.checkpoint, "spending", "total", tmp_path / "unpacked") == totals


@pytest.mark.slow
def test_repeats_of_a_sink_are_dropped_by_tasks_and_by_a_process_alike(
    runs: Runs, kafka: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    """Each turn first has the last records of the turn before it once more."""
    kafka.create_topic(topic)
    out, prefix = tmp_path / "out", origin_prefix("5f3a/orders", 3, "9d1c", 0)
    job = sk.Job("shop")
    orders = job.source("orders", Order, sk.sources.kafka(kafka.servers, topic, drop_repeats=6))
    orders.process(spending).sink("spent", sk.sinks.parquet(out))
    for turn in range(4):
        for number in range(max(0, 6 * turn - 3), 6 * turn + 6):
            headers = {ORIGIN: f"{prefix}{number}".encode()}
            kafka.produce(topic, [json.dumps(ORDERS[number]._asdict())], headers=headers)
        if turn % 2 == 0:
            job.run(checkpoint=runs.checkpoint, epoch_size=4)
        else:
            query = job.start(
                runs.spark, checkpoint=runs.checkpoint, trigger={"availableNow": True}
            )
            query.await_termination()
    assert rows_of(out) == sums(ORDERS[:24])
