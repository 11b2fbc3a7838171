"""The sink of Kafka beside a bare loop of confluent-kafka that encodes with msgspec, in pairs.

What is measured is the CPU of this process, which calls the sink as a run in one process does. The
broker is another process.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
import pyarrow as pa
from confluent_kafka import Producer

import statekit as sk
from statekit.connectors.kafka_headers import ORIGIN, origin_prefix
from statekit.sinks import Attempt, Outputs, Part
from tests.bench.lean_heap import lean_heap
from tests.bench.report import Arm, Row, times_as_fast
from tests.support.kafka_broker import KafkaBroker, memory_broker

RECORDS = 100_000
TURNS = 7
EPOCH = 10_000

_OURS = "statekit, sinks.kafka"
_DURABLE = "the records in the topic, flushed"
_SINK, _IN_TRANSACTIONS = "each epoch flushed", "each epoch a transaction"
_LOOP = "a loop that writes to Kafka"
_WITH_HEADER = f"{_LOOP}, with a header"


class Total(NamedTuple):
    """A record of three fields, some 60 bytes of JSON."""

    customer: str
    cents: int
    share: float


def records() -> list[Total]:
    """Return the records of a run."""
    return [Total(f"customer-{number % 5000}", number, number / 7) for number in range(RECORDS)]


def bare(kafka: KafkaBroker, topic: str, given: Sequence[Total], has_header: bool) -> None:
    """Write records as a program without statekit does: keys, JSON, an idempotent producer.

    Parameters:
        has_header: whether records have a header of the size of the sink's.
    """
    origin = origin_prefix(f"{'c' * 32}/{topic}", 12, "w" * 32, 0)
    producer = Producer({"bootstrap.servers": kafka.servers, "enable.idempotence": True})
    encode = msgspec.json.Encoder().encode
    for number, record in enumerate(given):
        value = encode({"customer": record[0], "cents": record[1], "share": record[2]})
        while True:
            try:
                if has_header:
                    header: list[tuple[str, str | bytes | None]] = [
                        (ORIGIN, f"{origin}{number}".encode())
                    ]
                    producer.produce(topic, value, record.customer, headers=header)
                else:
                    producer.produce(topic, value, record.customer)
                break
            except BufferError:
                producer.poll(0.01)
        if number % 1000 == 0:
            producer.poll(0)
    assert producer.flush(60) == 0


def sunk(
    kafka: KafkaBroker, topic: str, batches: Sequence[pa.RecordBatch], transactional: bool
) -> None:
    """Write epochs through the sink, as a run in one process does."""
    sink = sk.sinks.kafka(kafka.servers, topic, key="customer", transactional=transactional)
    outputs = Outputs("c" * 32, topic, batches[0].schema)
    sink.begin(outputs)
    for epoch, batch in enumerate(batches):
        attempt = Attempt(outputs, epoch, "w" * 32, False, (), lambda: None)
        sink.open(attempt)
        receipt = sink.write(Part(outputs, epoch, "w" * 32, 0), iter([batch]))
        sink.publish(attempt, [receipt or {}])
    sink.close()


def _cpu_s(run: Callable[[], None]) -> float:
    with lean_heap():
        begun = time.process_time()
        run()
        return time.process_time() - begun


def rates() -> list[Row]:
    """Records per CPU second of the sink, and of the loop."""
    given = records()
    columns = zip(*given, strict=True)
    whole = pa.record_batch(list(map(pa.array, columns)), names=list(Total._fields))
    batches = [whole.slice(start, EPOCH) for start in range(0, RECORDS, EPOCH)]
    runs: dict[str, Callable[[KafkaBroker, str], None]] = {
        _SINK: lambda kafka, topic: sunk(kafka, topic, batches, transactional=False),
        _IN_TRANSACTIONS: lambda kafka, topic: sunk(kafka, topic, batches, transactional=True),
        _LOOP: lambda kafka, topic: bare(kafka, topic, given, has_header=False),
        _WITH_HEADER: lambda kafka, topic: bare(kafka, topic, given, has_header=True),
    }
    spent: dict[str, list[float]] = {name: [] for name in runs}
    with tempfile.TemporaryDirectory() as home, memory_broker(Path(home)) as kafka:
        for turn in range(-1, TURNS):  # the first one warms up
            for number, (name, run) in enumerate(runs.items()):
                topic = kafka.create_topic(f"t{turn}-{number}", 4)
                taken_s = _cpu_s(partial(run, kafka, topic))
                spent[name] += [taken_s] if turn >= 0 else []
    return [
        _row(ours, _arm(_OURS, spent[ours]), _arm(loop, spent[loop]))
        for ours, loop in ((_SINK, _LOOP), (_SINK, _WITH_HEADER), (_IN_TRANSACTIONS, _LOOP))
    ]


def _row(name: str, ours: Arm, theirs: Arm) -> Row:
    rates = f"{RECORDS / ours.seconds:,.0f} against {RECORDS / theirs.seconds:,.0f}"
    return Row(
        f"{RECORDS:,} records into Kafka, {name}: against {theirs.name}",
        f"{times_as_fast(ours, theirs):.2f} times as many records per CPU second: {rates}",
        "",
        (ours, theirs),
        note="CPU seconds of the client, without the broker.",
    )


def _arm(name: str, turns: list[float]) -> Arm:
    return Arm(name, statistics.median(turns), _DURABLE, RECORDS, turns=tuple(turns))


BENCHMARKS = {"kafka-sink": rates}
