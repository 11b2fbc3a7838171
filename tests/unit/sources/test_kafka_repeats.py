"""The source of Kafka drops records of a topic that the sink of statekit has written twice."""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import statekit as sk
from statekit.clock import unique_id
from statekit.connectors.kafka_headers import ORIGIN, RepeatFilter, origin_prefix
from statekit.sinks.protocol.sink import Outputs, Part
from statekit.sources import KafkaSource
from tests.support.kafka_broker import KafkaBroker
from tests.support.sinks import ORDERS, Order, spending, sums
from tests.support.timeouts import PATIENCE_S

PREFIX = origin_prefix("5f3a/spent", 3, "9d1c", 0)


class Written(NamedTuple):
    """A record of a topic: its number in the part of a sink, None if it is of another producer."""

    value: bytes
    sequence: int | None

    @property
    def headers(self) -> dict[str, bytes]:
        return {} if self.sequence is None else {ORIGIN: f"{PREFIX}{self.sequence}".encode()}


def write(servers: str, topic: str, records: list[Written]) -> None:
    producer = Producer({"bootstrap.servers": servers, "log_level": 0})
    for value, sequence in records:
        headers: Any = Written(value, sequence).headers
        producer.produce(topic, value, partition=0, headers=headers)
    assert producer.flush(PATIENCE_S) == 0


def source(servers: str, topic: str, within: int | None) -> KafkaSource:
    return sk.sources.kafka(servers, topic, drop_repeats=within)


def offsets(reader: KafkaSource, topic: str, start: int | None, end: int) -> list[int]:
    batches = reader.read(f"{topic}/0", start, end)
    return [offset for batch in batches for offset in batch.column("__offset").to_pylist()]


def kept(records: list[Written], within: int) -> list[int]:
    """The offsets of records that are no repeats, by the definition."""
    return [
        at
        for at, record in enumerate(records)
        if record.sequence is None or record not in records[max(0, at - within) : at]
    ]


WRITTEN = st.builds(Written, st.sampled_from([b"a", b"b"]), st.one_of(st.none(), st.integers(0, 3)))

READER = st.sampled_from(["the same run", "a run after a crash", "a task of Spark"])


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(WRITTEN, min_size=1, max_size=30),
    st.integers(1, 8),
    st.lists(st.tuples(READER, st.integers(1, 12)), min_size=1, max_size=8),
)
@pytest.mark.slow
def test_a_record_is_dropped_wherever_epochs_end_and_whoever_reads_them(
    kafka: KafkaBroker, records: list[Written], within: int, epochs: list[tuple[str, int]]
) -> None:
    topic = kafka.create_topic(f"t-{unique_id()}")
    write(kafka.servers, topic, records)
    run, at, found = source(kafka.servers, topic, within), 0, []
    run.open(reads_here=True)
    for reader, size in [*epochs, ("the same run", len(records))]:
        if reader == "a run after a crash":
            run.close()
            run = source(kafka.servers, topic, within)
            run.open(reads_here=True)
        end = run.latest({f"{topic}/0": at}, size, 0.0)[f"{topic}/0"]
        if end == at:
            break
        by = pickle.loads(pickle.dumps(run)) if reader == "a task of Spark" else run
        found += offsets(by, topic, at, end)
        at = end
    again = offsets(run, topic, 0, len(records))
    run.close()
    expected = kept(records, within)
    assert found == [offset for offset in expected if offset < at]
    assert again == expected


def test_a_part_that_a_task_of_spark_wrote_twice_is_read_once(
    kafka: KafkaBroker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As when its stage runs again after an executor was lost."""
    kafka.create_topic(topic)
    batch = pa.record_batch(
        {"customer": [each.customer for each in ORDERS], "cents": [each.cents for each in ORDERS]}
    )
    part = Part(Outputs("5f" * 16, "orders", batch.schema), 0, "9d1c", 1)
    for _ in range(2):
        sink = sk.sinks.kafka(kafka.servers, topic, key="customer")
        pickle.loads(pickle.dumps(sink)).write(part, iter([batch]))
    with caplog.at_level(logging.INFO, "statekit.sources"):
        assert spent(source(kafka.servers, topic, 100)) == sums(ORDERS)
    dropped = "dropped 3 repeats between the offsets 10 and 15 of partition 0"
    assert f"source of topic {topic}: {dropped}" in caplog.text
    assert spent(source(kafka.servers, topic, None)) == sums([*ORDERS, *ORDERS])


def test_equal_records_of_a_part_that_is_written_again_are_read_as_often_as_they_were_emitted(
    kafka: KafkaBroker, topic: str
) -> None:
    """The first attempt has left the second of three in the topic."""
    first = kafka.create_topic(f"{topic}-first")
    kafka.create_topic(topic)
    batch = pa.record_batch({"customer": ["ada"] * 3, "cents": [1] * 3})
    part = Part(Outputs("5f" * 16, "orders", batch.schema), 0, "9d1c", 1)
    sk.sinks.kafka(kafka.servers, first).write(part, iter([batch]))
    _, left, _ = kafka.records(first)
    kafka.produce(topic, [left.value], headers=dict(left.headers))
    again = replace(part, earlier="part")
    sk.sinks.kafka(kafka.servers, topic).write(again, iter([batch]))
    assert offsets(source(kafka.servers, topic, 10), topic, None, 3) == [0, 1, 2]


def spent(orders: KafkaSource) -> list[Any]:
    job = sk.Job("shop")
    job.source("orders", Order, orders).process(spending).sink("spent")
    return sorted(job.run(epoch_size=5)["spent"])


def test_an_epoch_that_has_only_repeats_is_committed(kafka: KafkaBroker, topic: str) -> None:
    kafka.create_topic(topic)
    values = [json.dumps(order._asdict()).encode() for order in ORDERS[:5]]
    records = [Written(value, sequence) for sequence, value in enumerate(values)]
    write(kafka.servers, topic, 3 * records)
    assert spent(source(kafka.servers, topic, 5)) == sums(ORDERS[:5])


def test_another_record_under_the_number_of_one_is_kept(kafka: KafkaBroker, topic: str) -> None:
    """An epoch that a run writes again may be divided otherwise."""
    kafka.create_topic(topic)
    write(kafka.servers, topic, [Written(b"a", 0), Written(b"b", 0), Written(b"a", 0)])
    assert offsets(source(kafka.servers, topic, 10), topic, None, 3) == [0, 1]


def test_equal_records_of_other_programs_are_kept_also_if_they_use_the_header(
    kafka: KafkaBroker, topic: str
) -> None:
    kafka.create_topic(topic)
    for headers in ({}, {ORIGIN: b"of another program"}, {"trace": b"7"}):
        kafka.produce(topic, ["{}", "{}"], headers=headers)
    assert offsets(source(kafka.servers, topic, 10), topic, None, 6) == [0, 1, 2, 3, 4, 5]


@contextmanager
def broker_with_retention() -> Iterator[str]:
    """Give the address of the broker of librdkafka, which keeps 5 MB of a partition.

    Tansu keeps all records.
    """
    cluster = Producer({"bootstrap.servers": "-", "test.mock.num.brokers": 1, "log_level": 0})
    (broker,) = cluster.list_topics(timeout=PATIENCE_S).brokers.values()
    yield f"{broker.host}:{broker.port}"
    del cluster


def test_records_that_retention_has_removed_are_not_looked_at(topic: str) -> None:
    with broker_with_retention() as servers:
        first, other = Written(bytes(900_000), 0), Written(b"1" * 900_000, 1)
        write(servers, topic, [first, *([other] * 6), first, other])
        reader = source(servers, topic, 100)
        assert offsets(reader, topic, 7, 9) == [7], "of the first record there was no equal one"


def test_a_filter_forgets_the_records_that_nothing_can_repeat() -> None:
    repeats = RepeatFilter(within=3)
    for number in range(5_000):
        headers = list(Written(b"a", number).headers.items())
        assert not repeats.is_repeat(number, b"a", None, headers)
    assert len(pickle.dumps(repeats)) < 1_000
