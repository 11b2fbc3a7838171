"""Source of topics of Kafka. Its offsets are those of Kafka, one per partition."""

from __future__ import annotations

import datetime as dt
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from statekit.clock import sleep_s, stopwatch_s
from statekit.connectors.kafka import KafkaPartition, KafkaServers, Option
from statekit.connectors.kafka_headers import RepeatFilter
from statekit.connectors.kafka_partitions import PartitionConsumer, reader_of_process
from statekit.connectors.schema_registry import SchemaRegistry
from statekit.declared_call import declarable
from statekit.errors import ConnectorError, StateTypeError
from statekit.number_faults import int_fault
from statekit.records.union import Records
from statekit.shown import shown
from statekit.sources.decoding.avro_decoding import AvroDecoder, check_avro_is_installed
from statekit.sources.decoding.decoder import ColumnDecoder, Decoder
from statekit.sources.decoding.json_decoding import JsonDecoder
from statekit.sources.kafka_columns import (
    VALUE,
    RenamedColumns,
    check_column,
    message_columns,
    with_texts,
)
from statekit.sources.source import Offset, Offsets, Source
from statekit.timestamp import datetime_to_micros

if TYPE_CHECKING:
    from confluent_kafka import Message

_log = logging.getLogger("statekit.sources")

Format = Literal["json", "avro", "bytes"]
"""The format of the values of records."""

Start = Literal["earliest", "latest"] | dt.datetime
"""Where a new checkpoint starts."""

_ROWS_MAX = 10_000
"""Records of a batch."""

_FILL_S = 0.05
_FILL_FROM = 5_000
"""How long an epoch waits for more records if it is known that there are so many, in seconds."""

_POLL_S = 0.1
"""How often the driver of Spark asks for new records while it waits, in seconds."""


@dataclass(eq=False)
class KafkaSource(Source):
    """Records of topics. See `kafka`.

    Parameters:
        cluster: where the topics are.
        topics: their names, or a regular expression for them.
        value: the format of values.
        fields: what of a record each field contains beside the value.
        start: where a new checkpoint starts.
        isolation: whether records of open and aborted transactions are read.
        find_new_seconds: how often new topics and partitions are looked for.
        registry: of the schemas of Avro.
        drop_repeats: how many offsets a repeat may be behind its record; None to keep repeats.
    """

    cluster: KafkaServers
    topics: tuple[str, ...] | re.Pattern[str]
    value: Format = "json"
    fields: Mapping[str, str] = field(default_factory=dict)
    start: Start = "earliest"
    isolation: Literal["read_committed", "read_uncommitted"] = "read_committed"
    find_new_seconds: float = 30.0
    registry: SchemaRegistry | None = None
    drop_repeats: int | None = None

    def __post_init__(self) -> None:
        fault = int_fault(self.drop_repeats, "give a number of offsets, from 1, or None", least=1)
        if self.drop_repeats is not None and fault:
            raise StateTypeError(f"drop_repeats={shown(self.drop_repeats)}{fault}")
        for column in self.fields.values():
            check_column(column)
        self._partitions: dict[KafkaPartition, None] = {}
        self._found_s: float | None = None
        self._ends: dict[KafkaPartition, int] = {}
        self._prefetched: _Prefetched | None = None
        self._repeats: dict[KafkaPartition, tuple[int, RepeatFilter]] = {}  # with what they follow

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_prefetched": None, "_repeats": {}}  # each process connects

    def open(self, *, reads_here: bool) -> None:
        self.close()
        self._find_partitions()
        if reads_here:
            consumer = PartitionConsumer(self.cluster, self.isolation)
            self._prefetched = _Prefetched(consumer, self._packed)

    def probe(self, declared: Records, limit_s: float) -> Iterator[str]:
        source = replace(self, cluster=self.cluster.within(limit_s))
        source.decoder(declared, "probe")  # compares the fields
        counts = source._topics_found()
        if counts:
            source.cluster.check_allowed(list(counts), "READ")
        found = (f"topic {topic} with {n:,} partitions" for topic, n in sorted(counts.items()))
        yield f"{', '.join(found) or 'no topic yet'} at {self.cluster.servers}"
        if self.registry is not None:
            self.registry.within(limit_s).check_answers()
            yield f"the schema registry at {self.registry.place} answers"

    def close(self) -> None:
        if self._prefetched is not None:
            self._prefetched.close()
            self._prefetched = None
        self._repeats.clear()

    def earliest(self) -> Offsets:
        self._find_partitions()
        partitions = list(self._partitions)
        if not isinstance(self.start, dt.datetime):
            return self._named(self.cluster.offsets(partitions, self.start, self.isolation))
        at_ms = datetime_to_micros(self.start) // 1000
        found = self.cluster.offsets(partitions, at_ms, self.isolation)
        later = [partition for partition in partitions if partition not in found]
        return self._named(found | self.cluster.offsets(later, "latest", self.isolation))

    def latest(self, start: Offsets, limit: int, wait_s: float) -> Offsets:
        self._find_partitions()
        known = self._known(start)
        if self._prefetched is not None:
            taken = self._prefetched.take(known, limit, wait_s)
        else:
            taken = self._counted(known, limit, wait_s)
        return {**start, **self._named(taken)}

    def read(self, partition: str, start: Offset | None, end: Offset) -> Iterator[pa.RecordBatch]:
        of = KafkaPartition.of(partition)
        if self.drop_repeats is None:
            yield from self._packs(of, start, end)
            return
        for messages in self._without_repeats(of, start, end, self.drop_repeats):
            yield message_columns(self._columns(), messages)

    def decoder(self, records: Records, name: str) -> Decoder:
        columns = self._value_field() | dict(self.fields)
        _check_fields(columns, records, name)
        decode: Decoder
        if self.value == "bytes":
            decode = RenamedColumns(ColumnDecoder(records, name), columns)
        elif self.registry is not None:
            decode = AvroDecoder(records, name, self.registry, columns)
        else:
            decode = JsonDecoder(records, name, columns)
        return with_texts(decode, records, columns, name)

    def lag(self, offsets: Offsets) -> int | None:
        at: dict[KafkaPartition, int] = {
            KafkaPartition.of(name): offset for name, offset in offsets.items()
        }
        if self._prefetched is not None:
            return self._prefetched.lag(at)
        return sum(max(0, self._ends.get(of, 0) - offset) for of, offset in at.items())

    def _packed(self, messages: list[Message]) -> Any:
        """Return the form in which messages are kept until they are read: their columns, or the
        messages themselves for the filter of repeats.
        """
        return messages if self.drop_repeats else message_columns(self._columns(), messages)

    def _packs(self, partition: KafkaPartition, start: int | None, end: int) -> Iterable[Any]:
        """Return the messages of a range, packed."""
        packs = None
        if self._prefetched is not None:
            packs = self._prefetched.packs(partition, start, end)
        if packs is None:
            reader = reader_of_process(self.cluster, self.isolation)
            return map(self._packed, reader.read(partition, start, end))
        return packs

    def _without_repeats(
        self, partition: KafkaPartition, start: int | None, end: int, within: int
    ) -> Iterator[Sequence[Message]]:
        """Yield the messages of a range without repeats, in parts."""
        repeats = self._repeats_before(partition, start, within)
        count = 0
        for messages in self._packs(partition, start, end):
            kept = [message for message in messages if not _is_repeat(repeats, message)]
            count += len(messages) - len(kept)
            if kept:
                yield kept
        self._repeats[partition] = end, repeats
        if count:
            _log.info(
                "source of topic %s: dropped %s repeats between the offsets %s and %s of partition "
                "%s",
                partition.topic,
                f"{count:,}",
                start or 0,
                end,
                partition.number,
            )

    def _repeats_before(
        self, partition: KafkaPartition, start: int | None, within: int
    ) -> RepeatFilter:
        """Return the filter for records from an offset on, which knows the records before it.

        The filter after the last range continues. Otherwise the records before are read again, so
        that a range has the same records whoever reads it.
        """
        at, repeats = self._repeats.pop(partition, (None, None))
        if repeats is not None and at == start:
            return repeats
        repeats = RepeatFilter(within)
        if start:
            reader = reader_of_process(self.cluster, self.isolation, "earliest")
            for messages in reader.read(partition, max(0, start - within), start):
                for message in messages:
                    _is_repeat(repeats, message)
        return repeats

    def _columns(self) -> list[str]:
        return list(dict.fromkeys((VALUE, *self.fields.values())))

    def _value_field(self) -> dict[str, str]:
        """Return the field that takes values without a format."""
        is_named = VALUE in self.fields.values()
        return {VALUE: VALUE} if self.value == "bytes" and not is_named else {}

    @staticmethod
    def _named(offsets: Mapping[KafkaPartition, int]) -> dict[str, int]:
        return {str(partition): offset for partition, offset in offsets.items()}

    def _known(self, start: Offsets) -> dict[KafkaPartition, int | None]:
        """Return the next offset of each partition that is read; None for new ones."""
        return {partition: start.get(str(partition)) for partition in self._partitions}

    def _counted(
        self, start: Mapping[KafkaPartition, int | None], limit: int, wait_s: float
    ) -> dict[KafkaPartition, int]:
        """Return where an epoch ends that tasks read, by the ends of the partitions."""
        until_s = stopwatch_s() + wait_s
        while True:
            firsts = {partition: at for partition, at in start.items() if at is not None}
            new = [partition for partition in start if partition not in firsts]
            firsts |= self.cluster.offsets(new, "earliest", self.isolation)
            self._ends = self.cluster.offsets(list(start), "latest", self.isolation)
            counts = {
                partition: self._ends[partition] - first
                for partition, first in firsts.items()
                if self._ends.get(partition, first) > first
            }
            if counts or stopwatch_s() >= until_s:
                return {
                    partition: firsts[partition] + count
                    for partition, count in shares(counts, limit).items()
                }
            sleep_s(min(_POLL_S, wait_s))

    def _find_partitions(self) -> None:
        """Look for topics and partitions, unless that was done a moment ago."""
        now_s = stopwatch_s()
        if self._found_s is not None and now_s - self._found_s < self.find_new_seconds:
            return
        found = self._topics_found()
        for topic, count in sorted(found.items()):
            for number in range(count):
                self._partitions.setdefault(KafkaPartition(topic, number))
        self._found_s = stopwatch_s()

    def _topics_found(self) -> dict[str, int]:
        """Return the number of partitions of each topic.

        Raises:
            ConnectorError: a topic does not exist.
        """
        if isinstance(self.topics, re.Pattern):
            counts = self.cluster.all_partition_counts()
            return {topic: counts[topic] for topic in counts if self.topics.fullmatch(topic)}
        counts = self.cluster.partition_counts(self.topics)
        missing = [topic for topic in self.topics if topic not in counts]
        if missing:
            raise ConnectorError(
                f"Kafka at {self.cluster.servers} has no topic {missing[0]!r}. Nothing of it was "
                "read: create the topic, or correct its name, then start the job again"
            )
        return counts


def _is_repeat(repeats: RepeatFilter, message: Message) -> bool:
    offset = message.offset()
    assert offset is not None
    return repeats.is_repeat(offset, message.value(), message.key(), message.headers())


def shares(counts: Mapping[KafkaPartition, int], limit: int) -> dict[KafkaPartition, int]:
    """Return how many records an epoch reads of each partition, in proportion to what is there.

    >>> big, small = KafkaPartition("orders", 0), KafkaPartition("orders", 1)
    >>> list(shares({big: 900, small: 100}, 50).values())
    [45, 5]
    """
    total = sum(counts.values())
    if total <= limit:
        return dict(counts)
    return {each: max(1, count * limit // total) for each, count in counts.items()}


class _Prefetched:
    """The records of the next epoch, which are taken from the consumer before the epoch runs.

    Messages are packed as soon as there are enough. They take several times the memory of their
    columns.

    Parameters:
        consumer: of all partitions.
        pack: a function from messages to the form in which they are kept.
    """

    def __init__(self, consumer: PartitionConsumer, pack: Callable[[list[Message]], Any]) -> None:
        self._consumer, self._pack = consumer, pack
        self._starts: dict[KafkaPartition, int | None] = {}
        self._ends: dict[KafkaPartition, int | None] = {}
        self._packs: dict[KafkaPartition, list[Any]] = {}
        self._loose: dict[KafkaPartition, list[Message]] = {}
        self._count = 0
        self._handed_over: set[KafkaPartition] = set()

    def close(self) -> None:
        self._consumer.close()

    def lag(self, offsets: Mapping[KafkaPartition, int]) -> int:
        return self._consumer.lag(offsets)

    def take(
        self, start: Mapping[KafkaPartition, int | None], limit: int, wait_s: float
    ) -> dict[KafkaPartition, int]:
        """Return where the next epoch ends, after its records have been taken."""
        self._continue_at(start)
        until_s, consumer = stopwatch_s() + wait_s, self._consumer
        self._take(limit, 0.0)
        while self._is_empty():
            left_s = until_s - stopwatch_s()
            # Without a time to wait, it is certain only at the end that there is no record.
            if left_s <= 0 and (wait_s > 0 or consumer.is_at_end):
                break
            self._take(limit, max(left_s, 0.0) or _POLL_S)
            if self._is_empty() and not consumer.is_at_end:
                consumer.check_silence()
        if not self._is_empty() and consumer.left > _FILL_FROM:
            self._fill(limit, stopwatch_s() + _FILL_S)
        return {partition: end for partition, end in self._ends.items() if end is not None}

    def _is_empty(self) -> bool:
        return self._count == 0

    def _take(self, limit: int, wait_s: float) -> None:
        """Take records until there are as many as the limit, or none is left for now."""
        while (left := limit - self._count) > 0:
            found = self._consumer.take(min(left, _ROWS_MAX), wait_s)
            if not found:
                return
            self._add(found)
            wait_s = 0.0

    def _fill(self, limit: int, until_s: float) -> None:
        """Take records until there are as many as the limit, or some time has come."""
        while (left := limit - self._count) > 0 and (left_s := until_s - stopwatch_s()) > 0:
            self._add(self._consumer.fill(min(left, _ROWS_MAX), left_s))

    def packs(self, partition: KafkaPartition, start: int | None, end: int) -> Sequence[Any] | None:
        """Hand over the records of a range; None if other ones were taken, or it was done before.

        They are not kept: they would take memory, and time in collections of garbage, while the
        epoch runs.
        """
        is_taken = self._starts.get(partition) == start and self._ends.get(partition) == end
        if not is_taken or partition in self._handed_over:
            return None
        self._handed_over.add(partition)
        loose = self._loose.pop(partition, [])
        return [*self._packs.pop(partition, ()), *([self._pack(loose)] if loose else ())]

    def _continue_at(self, start: Mapping[KafkaPartition, int | None]) -> None:
        """Take what follows these offsets."""
        known = self._starts.keys()
        if new := {partition: at for partition, at in start.items() if partition not in known}:
            if self._starts and all(at is None for at in new.values()):
                self._consumer.add(new)
                self._starts |= new
                self._ends |= new
            else:
                self._begin(start)
                return
        if all(start[partition] == end for partition, end in self._ends.items()):
            self._starts = dict(self._ends)
            self._forget()
        elif start != self._starts or self._handed_over:
            self._begin(start)

    def _begin(self, start: Mapping[KafkaPartition, int | None]) -> None:
        self._consumer.assign(start)
        self._starts, self._ends = dict(start), dict(start)
        self._forget()

    def _forget(self) -> None:
        self._packs, self._loose, self._count = {}, {}, 0
        self._handed_over.clear()

    def _add(self, taken: Mapping[KafkaPartition, list[Message]]) -> None:
        for partition, messages in taken.items():
            loose = self._loose.setdefault(partition, [])
            loose += messages
            if len(loose) >= _ROWS_MAX:
                self._packs.setdefault(partition, []).append(self._pack(loose))
                self._loose[partition] = []
            last = messages[-1].offset()
            assert last is not None
            self._ends[partition] = last + 1
            self._count += len(messages)


@declarable("sources.kafka")
def kafka(
    servers: str,
    topics: str | Sequence[str] | re.Pattern[str],
    *,
    value: Format = "json",
    fields: Mapping[str, str] | None = None,
    start: Start = "earliest",
    isolation: Literal["read_committed", "read_uncommitted"] = "read_committed",
    drop_repeats: int | None = None,
    find_new_seconds: float = 30.0,
    registry: str | None = None,
    options: Mapping[str, Option] | None = None,
    retry_seconds: float = 60.0,
) -> KafkaSource:
    """Return a source of topics of Kafka, in any runtime.

    The offsets are committed with the state, and not in a consumer group. New partitions, and new
    topics that a regular expression matches, are read from their first record.

    Parameters:
        servers: addresses of brokers, such as `"kafka-1:9092,kafka-2:9092"`.
        topics: the name of a topic, several names, or a regular expression that matches whole
            names.
        value: the format of values: `"json"` for one JSON object per record, `"avro"` for Avro with
            a schema registry, or `"bytes"` for the value as it is, in the field `value`.
        fields: fields that are not in the value: for the name of each, `"key"`, `"timestamp"`,
            `"topic"`, `"partition"`, `"offset"`, `"headers"`, `"header:NAME"` or `"value"`. Keys
            and headers are bytes, or text in UTF-8 if the field is.
        start: where a new checkpoint starts: `"earliest"`, `"latest"`, or the first records of a
            time with a zone.
        isolation: `"read_uncommitted"` also reads records of open and aborted transactions.
        drop_repeats: drop records that `sinks.kafka` has written twice, if both are within so many
            offsets of their partition, such as 10,000; None to read all records. A run reads as
            many records before its first one.
        find_new_seconds: how often new topics and partitions are looked for.
        registry: the URL of the schema registry, such as `"http://registry:8081"`, for `"avro"`.
        options: properties of librdkafka, such as `{"security.protocol": "SASL_SSL"}`.
        retry_seconds: how long requests are retried while no broker answers.

    Raises:
        StateTypeError: an argument is not valid, or an option is one that statekit sets.

    >>> kafka("localhost:9092", "orders", fields={"customer": "key"}).topics
    ('orders',)
    >>> kafka("localhost:9092", "totals", drop_repeats=10_000).drop_repeats
    10000
    """
    _check_choice("value", value, ("json", "avro", "bytes"))
    _check_choice("isolation", isolation, ("read_committed", "read_uncommitted"))
    if not isinstance(start, dt.datetime):
        _check_choice("start", start, ("earliest", "latest"))
    elif start.tzinfo is None:
        raise StateTypeError(f"start={start} has no time zone: give one, such as datetime.UTC")
    if (value == "avro") != (registry is not None):
        raise StateTypeError(
            'pass value="avro" and registry= together: schemas of Avro are in a schema registry'
        )
    cluster = KafkaServers(servers, dict(options or {}), retry_seconds)
    named = _names(topics)
    schemas = None if registry is None else SchemaRegistry(registry, retry_seconds)
    if schemas is not None:
        check_avro_is_installed()
    return KafkaSource(
        cluster,
        named,
        value,
        dict(fields or {}),
        start,
        isolation,
        find_new_seconds,
        schemas,
        drop_repeats,
    )


def _names(topics: Any) -> tuple[str, ...] | re.Pattern[str]:
    if isinstance(topics, re.Pattern):
        return topics
    names = (topics,) if isinstance(topics, str) else topics
    if isinstance(names, Sequence) and names and all(isinstance(n, str) and n for n in names):
        return tuple(dict.fromkeys(names))
    raise StateTypeError(
        f"topics={shown(topics)}: give the name of a topic, a list of names, or a regular "
        "expression such as re.compile('orders-.*')"
    )


def _check_fields(columns: Mapping[str, str], records: Records, name: str) -> None:
    known = [field for member in records.members for field in member.fields or ()]
    if all(member.fields is not None for member in records.members):
        for field, column in columns.items():
            if field not in known:
                raise StateTypeError(
                    f"source {name!r} has {column!r} of Kafka in the field {field!r}, and its "
                    f"records have {', '.join(known)}: name one of them in fields="
                )


def _check_choice(name: str, given: object, choices: Sequence[str]) -> None:
    if given not in choices:
        raise StateTypeError(f"{name}={shown(given)}: choose among {', '.join(map(repr, choices))}")
