"""The sink of Kafka beside a bare loop of confluent-kafka that encodes with msgspec, in pairs.

`python -m tests.bench.kafka_sink` prints records per CPU second of this process, for the sink as it
is called in one process, and for the loop. The broker is another process.
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
from tests.support.kafka_broker import KafkaBroker, memory_broker

RECORDS = 100_000
TURNS = 7
EPOCH = 10_000


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
                        (ORIGIN, b"%b%d" % (origin, number))
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


def rate(run: Callable[[], None]) -> float:
    """Return records per CPU second of this process."""
    begun = time.process_time()
    run()
    return RECORDS / (time.process_time() - begun)


def main() -> None:
    """Print the median rates, and the medians of the ratios of each turn."""
    given = records()
    columns = zip(*given, strict=True)
    whole = pa.record_batch(list(map(pa.array, columns)), names=list(Total._fields))
    batches = [whole.slice(start, EPOCH) for start in range(0, RECORDS, EPOCH)]
    runs: dict[str, Callable[[KafkaBroker, str], None]] = {
        "bare loop": lambda kafka, topic: bare(kafka, topic, given, has_header=False),
        "bare loop with a header": lambda kafka, topic: bare(kafka, topic, given, has_header=True),
        "sink": lambda kafka, topic: sunk(kafka, topic, batches, transactional=False),
        "sink in transactions": lambda kafka, topic: sunk(
            kafka, topic, batches, transactional=True
        ),
    }
    rates: dict[str, list[float]] = {name: [] for name in runs}
    with tempfile.TemporaryDirectory() as home, memory_broker(Path(home)) as kafka:
        for turn in range(-1, TURNS):  # the first one warms up
            for number, (name, run) in enumerate(runs.items()):
                topic = kafka.create_topic(f"t{turn}-{number}", 4)
                found = rate(partial(run, kafka, topic))
                if turn >= 0:
                    rates[name].append(found)
    for name, found_rates in rates.items():
        ratios = (own / loop for own, loop in zip(found_rates, rates["bare loop"], strict=True))
        median, ratio = statistics.median(found_rates), statistics.median(ratios)
        print(f"{name}: {median:,.0f} records per CPU second, {ratio:.2f} of the bare loop")


if __name__ == "__main__":
    main()
