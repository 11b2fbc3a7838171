"""A job from Kafka to Kafka: beside a loop of confluent-kafka without state, and how long records
take. The broker is another process; CPU seconds are those of this one.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from confluent_kafka import Consumer, Producer, TopicPartition

import statekit as sk
from statekit.clock import now_us
from statekit.sources import KafkaSource, Offsets
from tests.bench.report import NOT_DURABLE, Arm, Row, statekit
from tests.support.kafka_broker import KafkaBroker, memory_broker
from tests.support.waiting import until

RECORDS = 200_000
KEYS = 1_000
TURNS = 5

RATE = 1_000
SECONDS = 8
WARM_S = 2


class Order(NamedTuple):
    customer: str
    cents: int
    item: str


class Count(NamedTuple):
    customer: str
    orders: int


@sk.process(key="customer")
def counting(order: Order, seen: sk.ValueState[int]) -> Iterator[Count]:
    count = (seen.get() or 0) + 1
    seen.update(count)
    yield Count(order.customer, count)


def _filled(kafka: KafkaBroker, topic: str) -> None:
    kafka.create_topic(topic)
    encode = msgspec.json.encode
    orders = (Order(f"c{number % KEYS}", number, "thing") for number in range(RECORDS))
    kafka.produce(topic, (encode(order._asdict()) for order in orders))


class _Order(msgspec.Struct):
    customer: str
    cents: int
    item: str


def _loop(kafka: KafkaBroker, topic: str, out: str) -> None:
    """Count as a program without statekit does, in memory."""
    own = {"bootstrap.servers": kafka.servers, "log_level": 0}
    consumer = Consumer({**own, "group.id": "loop", "enable.auto.commit": False})
    producer = Producer({**own, "enable.idempotence": True})
    consumer.assign([TopicPartition(topic, 0, 0)])
    decode, encode = msgspec.json.Decoder(_Order).decode, msgspec.json.encode
    counts: dict[str, int] = {}
    left = RECORDS
    while left:
        for message in consumer.consume(min(left, 10_000), timeout=0.1):
            if message.error() is not None:
                continue
            order = decode(message.value() or b"")
            counts[order.customer] = count = counts.get(order.customer, 0) + 1
            value = encode({"customer": order.customer, "orders": count})
            while True:
                try:
                    producer.produce(out, value, order.customer)
                    break
                except BufferError:
                    producer.poll(0.01)
            left -= 1
        producer.poll(0)
    assert producer.flush(60) == 0
    consumer.close()


def _job(kafka: KafkaBroker, topic: str, out: str) -> None:
    job = sk.Job("counts")
    orders = job.source("orders", Order, sk.sources.kafka(kafka.servers, topic))
    orders.process(counting).sink("counts", sk.sinks.kafka(kafka.servers, out, key="customer"))
    with tempfile.TemporaryDirectory() as home:
        job.run(checkpoint=Path(home) / "checkpoint")


def _cpu_s(run: Callable[[], None]) -> float:
    begun = time.process_time()
    run()
    return time.process_time() - begun


def throughput() -> list[Row]:
    """Count records of a topic into another one, in turns."""
    ours, theirs = [], []
    with tempfile.TemporaryDirectory() as home, memory_broker(Path(home)) as kafka:
        _filled(kafka, "orders")
        for turn in range(-1, TURNS):  # the first one warms up
            own, other = (kafka.create_topic(f"{name}-{turn}") for name in ("job", "loop"))
            job_s = _cpu_s(lambda out=own: _job(kafka, "orders", out))  # type: ignore[misc]
            loop_s = _cpu_s(lambda out=other: _loop(kafka, "orders", out))  # type: ignore[misc]
            if turn >= 0:
                ours.append(job_s)
                theirs.append(loop_s)
    job = statekit(statistics.median(ours), RECORDS)._replace(turns=tuple(ours))
    median_s = statistics.median(theirs)
    loop = Arm("confluent-kafka", median_s, NOT_DURABLE, RECORDS, turns=tuple(theirs))
    share = statistics.median(b / a for a, b in zip(ours, theirs, strict=True))
    return [
        Row(
            f"{RECORDS:,} records of JSON from Kafka, counted by {KEYS:,} keys, to Kafka",
            f"{share:.2f} of the records per CPU second of a loop of confluent-kafka and msgspec: "
            f"{RECORDS / job.seconds:,.0f} against {RECORDS / loop.seconds:,.0f}",
            "0.5",
            (job, loop),
            note="CPU seconds of the client, without the broker",
        )
    ]


# ----------------------------------------------------------------------------------- latency


class Tick(NamedTuple):
    customer: str
    number: int


@sk.process(key="customer")
def echo(tick: Tick, seen: sk.ValueState[int]) -> Iterator[Tick]:
    seen.update((seen.get() or 0) + 1)
    yield tick


class _Watched(KafkaSource):
    """A source that notes when the loop asks for the next epoch: then the last one is committed."""

    def __init__(self, of: KafkaSource) -> None:
        super().__init__(of.cluster, of.topics)
        self.commits: list[tuple[int, int]] = []

    def latest(self, start: Offsets, limit: int, wait_s: float) -> Offsets:
        (offset,) = start.values()
        if not self.commits or self.commits[-1][1] < offset:
            self.commits.append((now_us(), offset))
        return super().latest(start, limit, wait_s)


def latency() -> list[Row]:
    """Measure the time from a record's arrival in the broker to the commit of its epoch."""
    stop = threading.Event()
    with tempfile.TemporaryDirectory() as home, memory_broker(Path(home)) as kafka:
        kafka.create_topic("ticks")
        options = {"fetch.wait.max.ms": 10}
        source = _Watched(sk.sources.kafka(kafka.servers, "ticks", options=options))
        job = sk.Job("ticks")
        job.source("ticks", Tick, source).process(echo).sink("ticks")
        command = [sys.executable, "-m", __name__, kafka.servers, "ticks"]
        arrivals: list[int] = []

        def produced() -> None:
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
            arrivals.extend(map(int, done.stdout.split()))
            until(lambda: source.commits[-1][1] == len(arrivals))
            stop.set()

        thread = threading.Thread(target=produced)
        thread.start()
        outputs = {"ticks": lambda ticks, epoch: None}
        job.run(checkpoint=Path(home) / "checkpoint", outputs=outputs, follow=True, stop=stop)
        thread.join()
    taken = _latencies_s(arrivals, source.commits)[RATE * WARM_S :]
    quantiles = statistics.quantiles(taken, n=100)
    p50, p99 = quantiles[49], quantiles[98]
    return [
        Row(
            f"from a record's arrival in Kafka to its committed output, at {RATE:,} records/s",
            f"{1000 * p50:.0f} ms in the median, {1000 * p99:.0f} ms for 99 of 100",
            "20 ms, 60 ms",
            (statekit(p50, len(taken))._replace(p50=p50, p99=p99),),
            without="one system alone",
            note="the broker is asked for records every 10 ms: it does not wake up for new ones",
        )
    ]


def _latencies_s(arrivals: list[int], commits: list[tuple[int, int]]) -> list[float]:
    """Return how long each record took, from its arrival to the first commit after it."""
    found, commit = [], iter(commits)
    at_us, end = next(commit)
    for offset, arrival_us in enumerate(arrivals):
        while end <= offset:
            at_us, end = next(commit)
        found.append((at_us - arrival_us) / 1_000_000)
    return found


def _produce(servers: str, topic: str) -> None:
    """Write records at a constant rate, and print when the broker had each.

    A batch has ten records: the broker is slow with many batches.
    """
    arrivals: dict[int, int] = {}

    def arrived(_: object, message: Any) -> None:
        arrivals[message.offset()] = now_us()

    producer = Producer({"bootstrap.servers": servers, "linger.ms": 10})
    begun = time.monotonic()
    for number in range(RATE * (SECONDS + WARM_S)):
        while time.monotonic() < begun + number / RATE:
            producer.poll(0.0005)
        tick = {"customer": f"c{number % KEYS}", "number": number}
        producer.produce(topic, msgspec.json.encode(tick), on_delivery=arrived)
    producer.flush()
    print(*(arrivals[offset] for offset in range(len(arrivals))))


BENCHMARKS: dict[str, Callable[[], list[Row]]] = {"kafka": throughput, "kafka-latency": latency}

if __name__ == "__main__":
    _produce(*sys.argv[1:])
