"""Reading partitions of topics from offsets, without a consumer group."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import msgspec

from statekit.clock import stopwatch_s
from statekit.connectors.kafka import (
    KafkaPartition,
    KafkaServers,
    LastError,
    is_about_group,
    is_mended_by_retry,
    is_out_of_range,
    is_partition_end,
    timed_out,
)
from statekit.errors import ConnectorError

if TYPE_CHECKING:
    from confluent_kafka import Message

_GROUP = "statekit"
"""librdkafka needs the name of a group. No offset is committed in it."""

_SETTINGS = {
    "auto.offset.reset": "error",
    "enable.auto.offset.store": False,
    # The end of a partition is known after a fetch without records.
    "fetch.wait.max.ms": 100,
    # How long a partition is not fetched after its queue was full.
    "fetch.queue.backoff.ms": 10,
    # A partition that is new is found by its first fetch.
    "topic.metadata.refresh.fast.interval.ms": 50,
}

_WAIT_S = 0.1
"""How long one call waits for records, in seconds."""

_MESSAGES_MAX = 10_000
"""Records that a reader of a range takes at once."""

Removed = Literal["error", "earliest"]
"""The result for an offset that was removed: an error, or the first record that is left."""


class PartitionConsumer:
    """Reads partitions from offsets, and notes where they end.

    Parameters:
        cluster: where the topics are.
        isolation: `read_committed` or `read_uncommitted`.
        settings: properties of the consumer.
    """

    def __init__(
        self, cluster: KafkaServers, isolation: str, settings: Mapping[str, Any] | None = None
    ) -> None:
        self._cluster, self._isolation = cluster, isolation
        self._noted = LastError()
        config = {**_SETTINGS, **(settings or {}), "isolation.level": isolation}
        self._consumer = cluster.consumer(_GROUP, {**config, "error_cb": self._noted})
        self._next: dict[KafkaPartition, int | None] = {}
        self._ends: dict[KafkaPartition, int] = {}
        self._heard_s = stopwatch_s()

    def close(self) -> None:
        """Leave the cluster."""
        self._consumer.close()

    def assign(self, starts: Mapping[KafkaPartition, int | None]) -> None:
        """Read these partitions, and no others.

        Parameters:
            starts: the next offset of each; None for its first record.
        """
        self._next, self._ends = dict(starts), {}
        self._consumer.assign([self._cluster.position(*start) for start in starts.items()])
        self._heard_s = stopwatch_s()

    def add(self, starts: Mapping[KafkaPartition, int | None]) -> None:
        """Read these partitions, too."""
        self._next.update(starts)
        added = [self._cluster.position(*start) for start in starts.items()]
        self._consumer.incremental_assign(added)

    @property
    def is_at_end(self) -> bool:
        """True if all records that the partitions had at their last fetch were taken."""
        return len(self._ends) == len(self._next)

    @property
    def left(self) -> int:
        """The number of records that were not taken, as far as is known. Asks no broker."""
        return self.lag({partition: at or 0 for partition, at in self._next.items()})

    def lag(self, offsets: Mapping[KafkaPartition, int]) -> int:
        """Return how many records are after offsets, as far as is known. Asks no broker."""
        return sum(
            max(0, self._known_end(partition) - at)
            for partition, at in offsets.items()
            if partition in self._next and self._ends.get(partition) != at
        )

    def _known_end(self, partition: KafkaPartition) -> int:
        at = self._cluster.position(partition)
        return int(self._consumer.get_watermark_offsets(at, cached=True)[1])

    def take(self, limit: int, wait_s: float) -> dict[KafkaPartition, list[Message]]:
        """Return records of each partition, in order.

        Parameters:
            limit: records at most.
            wait_s: how long to wait for the first one, in seconds. Others are not waited for.

        Raises:
            ConnectorError: an offset is out of range, or the broker refuses the request.
        """
        # With a time limit, the library waits for as many messages as it may return.
        messages = self._consumer.consume(1, timeout=wait_s)
        if messages and limit > 1:
            messages += self._consumer.consume(min(limit - 1, 1_000_000), timeout=0)
        return self._sorted(messages)

    def fill(self, limit: int, wait_s: float) -> dict[KafkaPartition, list[Message]]:
        """Return up to `limit` records, for which it waits `wait_s` seconds at most."""
        return self._sorted(self._consumer.consume(min(limit, 1_000_000), timeout=wait_s))

    def _sorted(self, messages: list[Message]) -> dict[KafkaPartition, list[Message]]:
        """Return messages by their partition, without those that are no records."""
        if not messages:
            return {}
        if any(map(_error_of, messages)):
            messages = [message for message in messages if self._is_record(message)]
        if not messages:
            return {}
        self._heard_s = stopwatch_s()
        if len(self._next) == 1:
            found = {next(iter(self._next)): messages}
        else:
            found = _by_partition(messages)
        for partition, own in found.items():
            self._next[partition] = at = _offset_of(own[-1]) + 1
            if self._ends.get(partition, at) < at:
                del self._ends[partition]
        return found

    def _is_record(self, message: Message) -> bool:
        error = message.error()
        if error is None:
            return True
        if is_partition_end(error):
            self._ends[_partition_of(message)] = _offset_of(message)
            self._heard_s = stopwatch_s()
        elif is_out_of_range(error):
            partition = _partition_of(message)
            self.fail_out_of_range(partition, self._next.get(partition))
        elif not is_mended_by_retry(error) and not is_about_group(error):
            self._cluster.fail(f"read topic {message.topic()!r}", self._noted.cause_of(error))
        return False

    def check_silence(self) -> None:
        """Find out why neither records nor the end of a partition have arrived for long.

        Raises:
            ConnectorError: an offset is out of range, or no broker answers.
        """
        silent_s = stopwatch_s() - self._heard_s
        if silent_s < self._cluster.request_s:
            return
        waiting = [partition for partition in self._next if partition not in self._ends]
        ends = self._cluster.offsets(waiting, "latest", self._isolation)
        for partition in waiting:
            at = self._next[partition]
            if at is not None and at > ends.get(partition, 0):
                self.fail_out_of_range(partition, at)
        if silent_s > self._cluster.retry_seconds:
            partitions = ", ".join(map(str, waiting))
            self._cluster.fail(f"read partitions {partitions}", self._noted.cause_of(timed_out()))

    def ended_at(self, partition: KafkaPartition) -> int | None:
        """Return the offset at which a partition ends; None if records may follow."""
        return self._ends.get(partition)

    def fail_out_of_range(self, partition: KafkaPartition, offset: int | None) -> NoReturn:
        """Raise the error for an offset that a partition does not have."""
        first = self._cluster.offsets([partition], "earliest", self._isolation).get(partition)
        end = self._cluster.offsets([partition], "latest", self._isolation).get(partition)
        raise ConnectorError(
            f"partition {partition} of Kafka at {self._cluster.servers} has no offset {offset}, "
            f"where this job continues: it has those from {first} to {end}. Records were removed "
            "by retention, or the topic was created again. Nothing was skipped, and nothing of "
            "this epoch is committed: start with a new checkpoint or from a savepoint, and raise "
            "retention.ms of the topic if the job was down for longer"
        )


_error_of = methodcaller("error")


def _by_partition(messages: Sequence[Message]) -> dict[KafkaPartition, list[Message]]:
    found: defaultdict[tuple[Any, Any], list[Message]] = defaultdict(list)
    for message in messages:  # a KafkaPartition for each takes as long as all else here
        found[message.topic(), message.partition()].append(message)
    return {KafkaPartition(*partition): own for partition, own in found.items()}


def _partition_of(message: Message) -> KafkaPartition:
    topic, number = message.topic(), message.partition()
    assert topic is not None
    assert number is not None
    return KafkaPartition(topic, number)


def _offset_of(message: Message) -> int:
    offset = message.offset()
    assert offset is not None
    return offset


# ------------------------------------------------------------------ ranges of a partition


class RangeReader:
    """Reads ranges of partitions, one after the other, with one consumer.

    Parameters:
        cluster: where the topics are.
        isolation: `read_committed` or `read_uncommitted`.
        removed: whether records at the start of a range that were removed are an error, or left
            out.
    """

    def __init__(self, cluster: KafkaServers, isolation: str, removed: Removed) -> None:
        settings = {
            "queued.max.messages.kbytes": 16_384,
            "auto.offset.reset": removed,
            # The records of a range are there. A fetch of what follows holds up the next range.
            "fetch.wait.max.ms": 10,
        }
        self._consumer = PartitionConsumer(cluster, isolation, settings)

    def read(
        self, partition: KafkaPartition, start: int | None, end: int
    ) -> Iterator[list[Message]]:
        """Yield the messages of a partition from an offset up to another one, which is not read.

        There may be fewer than offsets: compaction and transactions leave gaps.

        Raises:
            ConnectorError: a record of the range is no longer there, or no broker answers.
        """
        consumer = self._consumer
        consumer.assign({partition: start})
        try:
            while True:
                messages = consumer.take(_MESSAGES_MAX, _WAIT_S).get(partition, [])
                within = messages
                if messages and _offset_of(messages[-1]) >= end:
                    within = [message for message in messages if _offset_of(message) < end]
                if within:
                    yield within
                if messages and _offset_of(messages[-1]) >= end - 1:
                    return
                if (ended_at := consumer.ended_at(partition)) is not None:
                    if ended_at < end:
                        consumer.fail_out_of_range(partition, end - 1)
                    return
                if not messages:
                    consumer.check_silence()
        finally:
            consumer.assign({})  # nothing is fetched until the next range

    def close(self) -> None:
        """Leave the cluster."""
        self._consumer.close()


_of_process: dict[bytes, RangeReader] = {}
"""The readers of this process, by thread. Connecting takes longer than to read a small range."""


def reader_of_process(
    cluster: KafkaServers, isolation: str, removed: Removed = "error"
) -> RangeReader:
    """Return the reader that this thread has for a cluster. It reads one range at a time."""
    settings = cluster.servers, sorted(cluster.options.items()), isolation, removed
    key = msgspec.json.encode((*settings, threading.get_ident()))
    if key not in _of_process:
        _of_process[key] = RangeReader(cluster, isolation, removed)
    return _of_process[key]
