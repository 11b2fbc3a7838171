"""A job from Kafka to Kafka: beside a loop without state, Bytewax and Quix Streams, and how long
records take.

The broker is another process. CPU seconds are those of the process that reads, counts and writes.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from confluent_kafka import Consumer, Producer, TopicPartition

import statekit as sk
from statekit.clock import now_us
from statekit.sources import KafkaSource, Offsets
from tests.bench.lean_heap import lean_heap
from tests.bench.peers.environments import Environment, NotAvailable
from tests.bench.peers.processes import run
from tests.bench.peers.versus import START_EVENTS, Contender
from tests.bench.report import NOT_DURABLE, STATEKIT_DURABLE, Arm, Row, statekit, times_as_fast
from tests.support.kafka_broker import KafkaBroker, memory_broker
from tests.support.waiting import until

RECORDS = 500_000
KEYS = 1_000
TURNS = 5

RATE = 1_000
SECONDS = 8
WARM_S = 2


class Order(msgspec.Struct, frozen=True, gc=False):
    customer: str
    cents: int
    item: str


class Count(msgspec.Struct, frozen=True, gc=False):
    customer: str
    orders: int


@sk.process(key="customer")
def counting(order: Order, seen: sk.ValueState[int]) -> Iterator[Count]:
    count = (seen.get() or 0) + 1
    seen.update(count)
    yield Count(order.customer, count)


def _customer(number: int) -> str:
    return f"c{number % KEYS}"


def _create(kafka: KafkaBroker, topic: str) -> str:
    """Create a topic, and return its name.

    Quix Streams asks for these settings. The broker returns no defaults, which Kafka does.
    """
    settings = {"cleanup.policy": "delete", "retention.ms": "604800000", "retention.bytes": "-1"}
    return kafka.create_topic(topic, 1, **settings)


def _filled(kafka: KafkaBroker, topic: str, records: int) -> str:
    _create(kafka, topic)
    encode = msgspec.json.encode
    orders = (Order(_customer(number), number, "thing") for number in range(records))
    kafka.produce(topic, map(encode, orders))
    return topic


def check(kafka: KafkaBroker, out: str, records: int) -> None:
    """Compare the counts in a topic with the right ones.

    Raises:
        NotAvailable: a record has no answer, or the last answer of a key is wrong.
    """
    counts = [msgspec.json.decode(value or b"") for value in kafka.values(out)]
    last = {count["customer"]: count["orders"] for count in counts}
    if len(counts) != records or last != Counter(map(_customer, range(records))):
        raise NotAvailable(f"it gave wrong results: {len(counts)} answers to {records} records")


def _loop(kafka: KafkaBroker, topic: str, out: str, records: int) -> None:
    """Count as a program without statekit does, in memory."""
    own = {"bootstrap.servers": kafka.servers, "log_level": 0}
    consumer = Consumer({**own, "group.id": "loop", "enable.auto.commit": False})
    producer = Producer({**own, "enable.idempotence": True})
    consumer.assign([TopicPartition(topic, 0, 0)])
    decode, encode = msgspec.json.Decoder(Order).decode, msgspec.json.encode
    counts: dict[str, int] = {}
    left = records
    while left:
        for message in consumer.consume(min(left, 10_000), timeout=0.1):
            if message.error() is not None:
                continue
            order = decode(message.value() or b"")
            counts[order.customer] = count = counts.get(order.customer, 0) + 1
            value = encode(Count(order.customer, count))
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


def _job(kafka: KafkaBroker, topic: str, out: str, _: int) -> None:
    job = sk.Job("counts")
    orders = job.source("orders", Order, sk.sources.kafka(kafka.servers, topic))
    orders.process(counting).sink("counts", sk.sinks.kafka(kafka.servers, out, key="customer"))
    with tempfile.TemporaryDirectory() as home:
        job.run(checkpoint=Path(home) / "checkpoint")


class Side(NamedTuple):
    """One that takes turns.

    Parameters:
        durable: what of its state would outlive a crash.
        cpu_s: returns the CPU seconds of a turn; of the broker, the topics to read, which have all
            records and as few as it takes to start, the topic to write, and the number of records.
        note: what has to be known to read the ratio.
    """

    name: str
    durable: str
    cpu_s: Callable[[KafkaBroker, tuple[str, str], str, int], float]
    note: str = ""


def _here(run_once: Callable[[KafkaBroker, str, str, int], None]) -> Callable[..., float]:
    """Return the turn of a job that runs in this process, where a first turn has warmed up."""

    def cpu_s(kafka: KafkaBroker, topics: tuple[str, str], out: str, records: int) -> float:
        _create(kafka, out)
        with lean_heap():
            begun = time.process_time()
            run_once(kafka, topics[0], out, records)
            spent_s = time.process_time() - begun
        check(kafka, out, records)
        return spent_s

    return cpu_s


def peer(contender: Contender, note: str) -> Side:
    """Return another system as a side. It runs in a process; its start is measured and deducted."""

    def cpu_s(kafka: KafkaBroker, topics: tuple[str, str], out: str, records: int) -> float:
        python = contender.python()
        with contender.named():
            spent = []
            for topic, count in zip(topics, (records, START_EVENTS), strict=True):
                into = _create(kafka, f"{out}-{count}")
                with tempfile.TemporaryDirectory() as home:
                    given = (kafka.servers, topic, into, f"{count}", home, *contender.arguments)
                    spent.append(run(python, f"tests.bench.peers.jobs.{contender.job}", given))
                check(kafka, into, count)
        whole, start = spent
        return (whole.cpu_s - start.cpu_s) * records / (records - START_EVENTS)

    return Side(contender.name, contender.durable, cpu_s, note)


LOOP = Side(
    "a loop of confluent-kafka",
    NOT_DURABLE,
    _here(_loop),
    "The loop has its counts in a dict, and stores no offsets.",
)
BYTEWAX = peer(
    Contender(
        "Bytewax",
        "kafka_bytewax_job",
        "a snapshot of the keys that changed, in SQLite, every 10 s",
        ("10",),
        Environment("bytewax-kafka", ("bytewax[kafka]==0.21.1", "msgspec==0.23.0")),
    ),
    "Bytewax has all state in memory. Its outputs are written again after a crash.",
)
QUIX = peer(
    Contender(
        "Quix Streams",
        "kafka_quix_job",
        "RocksDB and a changelog topic, a checkpoint every 5 s",
        environment=Environment("quix", ("quixstreams==3.28.1",)),
    ),
    "Quix Streams processes at least once, which is its default.",
)


def throughput(
    records: int = RECORDS, turns: int = TURNS, against: Sequence[Side] = (LOOP, BYTEWAX, QUIX)
) -> list[Row]:
    """Count records of a topic into another one, in turns."""
    ours = Side("statekit", STATEKIT_DURABLE, _here(_job))
    spent: dict[str, list[float]] = {side.name: [] for side in (ours, *against)}
    failed: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as home, memory_broker(Path(home)) as kafka:
        topics = _filled(kafka, "orders", records), _filled(kafka, "few", START_EVENTS)
        for turn in range(-1, turns):  # the first one warms up
            for number, side in enumerate((ours, *against)):
                if side.name in failed:
                    continue
                try:
                    spent_s = side.cpu_s(kafka, topics, f"out-{turn}-{number}", records)
                except NotAvailable as why:
                    failed[side.name] = str(why)
                else:
                    spent[side.name] += [spent_s] if turn >= 0 else []
    return [_row(side, records, spent, failed) for side in against]


def _row(side: Side, records: int, spent: dict[str, list[float]], failed: dict[str, str]) -> Row:
    what = f"{records:,} records of JSON from Kafka, counted by {KEYS:,} keys, to Kafka"
    what, wanted = f"{what}: against {side.name}", "0.5" if side is LOOP else "more than 1"
    if reason := failed.get("statekit") or failed.get(side.name):
        return Row(what, f"no number: {reason}", wanted, without=reason, note=side.note)
    ours, theirs = (
        Arm(name, statistics.median(turns), durable, records, turns=tuple(turns))
        for name, durable, turns in (
            ("statekit", STATEKIT_DURABLE, spent["statekit"]),
            (side.name, side.durable, spent[side.name]),
        )
    )
    rates = f"{records / ours.seconds:,.0f} against {records / theirs.seconds:,.0f}"
    return Row(
        what,
        f"{times_as_fast(ours, theirs):.2f} times as many records per CPU second: {rates}",
        wanted,
        (ours, theirs),
        note=f"CPU seconds of the client, without the broker. {side.note}",
    )


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
            without="one system alone.",
            note=(
                "The broker is asked for records every 10 ms, as it does not wake up for new ones."
            ),
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
