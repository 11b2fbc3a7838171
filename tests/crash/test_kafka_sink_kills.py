"""A job that writes to Kafka is killed, or its broker is silent: each record is there once."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import statekit as sk
from statekit.testing import check_sink
from tests.support.kafka_broker import KafkaBroker
from tests.support.sinks import Order, Spent, spending_job, sums
from tests.support.timeouts import PATIENCE_S
from tests.support.waiting import until

ORDERS = [Order(f"c{number % 7}", number) for number in range(400)]
_EPOCH = 10


def spent(kafka: KafkaBroker, topic: str) -> list[Spent]:
    """The records of a topic, sorted."""
    return sorted(Spent(**json.loads(value or b"")) for value in kafka.values(topic))


def sink_of(servers: str, topic: str, transactional: bool) -> Any:
    return sk.sinks.kafka(servers, topic, key="customer", partitions=3, transactional=transactional)


def main(servers: str, topic: str, kind: str, root: str) -> None:
    """Run the job to its end: the program of a process that is killed."""
    sink = sink_of(servers, topic, transactional=kind == "transactional")
    spending_job(sink).run({"orders": ORDERS}, checkpoint=root, epoch_size=_EPOCH, drain=False)


@contextmanager
def started(kafka: KafkaBroker, topic: str, kind: str, root: Path) -> Iterator[Any]:
    arguments = [kafka.servers, topic, kind, str(root)]
    process = subprocess.Popen([sys.executable, "-m", __name__, *arguments])
    try:
        yield process
    finally:
        process.kill()
        process.wait(PATIENCE_S)


def epochs(root: Path) -> int:
    """How many epochs are committed."""
    return max((int(path.stem) + 1 for path in (root / "epochs").glob("*.json")), default=0)


def has_epochs(root: Path, number: int, process: Any) -> bool:
    return epochs(root) >= number or process.poll() is not None


@pytest.mark.parametrize("kind", [pytest.param("plain", marks=pytest.mark.soak), "transactional"])
def test_each_record_is_there_once_wherever_the_sink_is_killed(
    kafka: KafkaBroker, kind: str
) -> None:
    """`check_sink` kills the process before lines of the sink, after it, and after commits."""
    servers, port = kafka.servers, kafka.port

    def make(place: Path) -> tuple[Any, Any]:
        def read() -> list[Order]:
            broker = KafkaBroker(place)
            broker.port = port
            return [Order(**json.loads(value or b"")) for value in broker.values(place.name)]

        return sink_of(servers, place.name, kind == "transactional"), read

    check_sink(make, Order, depth="quick")


# The broker is not killed: Tansu then loses records that it has acknowledged to idempotent
# producers, those of a bare producer, too.
@pytest.mark.parametrize("kind", ["plain", "transactional"])
def test_each_record_is_there_once_if_the_broker_does_not_answer_for_a_while(
    root: Path, kafka: KafkaBroker, topic: str, kind: str
) -> None:
    """The job goes on by itself: the sink retries while no broker answers."""
    chosen = random.Random(7)
    with started(kafka, topic, kind, root) as process:
        for _ in range(5):
            wanted = epochs(root) + chosen.randrange(1, 5)
            until(partial(has_epochs, root, wanted, process), PATIENCE_S)
            with kafka.suspended():
                time.sleep(chosen.uniform(0.0, 1.0))
        assert process.wait(PATIENCE_S) == 0
    assert spent(kafka, topic) == sums(ORDERS)


if __name__ == "__main__":
    main(*sys.argv[1:])
