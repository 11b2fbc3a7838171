"""Sink for a topic of Kafka. What an earlier attempt at an epoch has written is not written again.

Records are visible as soon as a producer has sent them, or has committed its transaction: they
cannot be replaced. So an epoch that runs again looks first for records that earlier attempts have
left in the topic, by their header, and leaves out as many equal ones.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, ClassVar, Literal

import msgspec
import pyarrow as pa

from statekit.clock import stopwatch_s
from statekit.connectors.kafka import KafkaServers, Option, TopicReader
from statekit.connectors.kafka_delivery import Delivery, Header, TopicRecord, delivery_of_process
from statekit.connectors.kafka_headers import ORIGIN, Origin, origin_prefix, record_digest
from statekit.declared_call import declarable
from statekit.errors import ConnectorError, StateTypeError
from statekit.number_faults import int_fault
from statekit.records.json_rows import json_documents, json_values
from statekit.shown import shown
from statekit.sinks.protocol.sink import Attempt, Guarantee, Outputs, Part, Receipt, Sink

Partitioner = Literal["murmur2_random", "consistent_random", "fnv1a_random", "random"]
"""How a partition follows from a key: `murmur2_random` is that of Java's clients."""

_NOTED_S = 10.0
"""How often the ends of the topic are noted, in seconds. A restart reads what came after."""


@dataclass(eq=False)
class KafkaSink(Sink):
    """Records of a topic. See `kafka`.

    Parameters:
        cluster: where the topic is.
        topic: its name.
        key: the field of the key.
        value: the field of the value; None for the record as JSON.
        headers: the fields of headers, by the names of the headers.
        partitioner: how a partition follows from a key.
        partitions: of the topic, if the sink is to create it.
    """

    cluster: KafkaServers
    topic: str
    key: str | None = None
    value: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    partitioner: Partitioner = "murmur2_random"
    partitions: int | None = None

    guarantee: ClassVar[Guarantee] = "at least once"
    _isolation: ClassVar[str] = "read_uncommitted"

    def __post_init__(self) -> None:
        if self.partitions is not None:
            fault = int_fault(self.partitions, "give a number of partitions, from 1", least=1)
            if fault:
                raise StateTypeError(f"partitions={shown(self.partitions)}{fault}")
        self._notes: TopicReader | None = None  # in the driver
        self._delivery: Delivery | None = None
        self._is_open = False  # a transaction
        self._noted_s = 0.0

    def __getstate__(self) -> dict[str, Any]:
        connections = {"_notes": None, "_delivery": None}
        return self.__dict__ | connections  # each process connects

    def begin(self, outputs: Outputs) -> None:
        self._check_fields(outputs)
        self._check_topic(outputs.sink)
        self._notes = self._reader(outputs)
        if not self._notes.committed():
            self._note_ends()  # records before the first epoch are of others

    def probe(self, declared: Outputs, limit_s: float) -> Iterator[str]:
        self._check_fields(declared)
        cluster = self.cluster.within(limit_s)
        count = cluster.partitions(self.topic)
        if count is not None:
            cluster.check_allowed([self.topic], "WRITE")
        elif self.partitions is None:
            raise self._missing_topic(declared.sink)
        state = f"has {count:,} partitions" if count is not None else "does not exist and is made"
        yield f"topic {self.topic} at {cluster.servers} {state}"

    def open(self, attempt: Attempt) -> None:
        # The epoch before is committed, and this one has no record yet unless it runs again.
        if not attempt.is_first and stopwatch_s() - self._noted_s > _NOTED_S:
            self._note_ends()

    def wants_one_part(self, attempt: Attempt) -> bool:
        return any(True for _ in self._left(attempt.outputs, attempt.epoch))

    def write(self, part: Part, batches: Iterator[pa.RecordBatch]) -> Receipt:
        with self._delivering(part) as delivery:
            records: Iterator[TopicRecord] = chain.from_iterable(self._records(part, batches))
            if part.earlier != "none":
                records = self._without_earlier(part, records)
            delivery.send(records)
        return {}

    def publish(self, attempt: Attempt, receipts: Sequence[Receipt]) -> None:
        """Do nothing: the records are in the topic."""

    def close(self) -> None:
        if self._notes is not None:
            self._notes.close()
        self._notes = self._delivery = None

    @contextmanager
    def _delivering(self, part: Part) -> Iterator[Delivery]:
        """Give a producer for a part. After an error, it is not used again."""
        if self._notes is None:  # in a task of Spark
            with delivery_of_process(self.cluster, self.topic, self._settings()) as delivery:
                yield delivery
            return
        delivery = self._delivery or Delivery(self.cluster, self.topic, self._settings())
        self._delivery = None
        with delivery.discarded_on_error():
            yield delivery
        self._delivery = delivery

    def _settings(self) -> dict[str, Option]:
        return {"partitioner": self.partitioner}

    def _records(
        self, part: Part, batches: Iterable[pa.RecordBatch]
    ) -> Iterator[Iterable[TopicRecord]]:
        """Yield the records of each batch of a part, each with its origin."""
        origin = _sink_of(part.outputs), part.epoch, part.writer, part.number
        prefix, first = origin_prefix(*origin), 0
        for batch in batches:
            numbers = range(first, first + batch.num_rows)
            origins: list[list[Header]] = [[(ORIGIN, f"{prefix}{one}".encode())] for one in numbers]
            for name, column in self.headers.items():
                for header, value in zip(origins, _as_bytes(batch, column), strict=True):
                    header.append((name, value))
            yield zip(self._values(batch), self._keys(batch), origins, strict=True)
            first += batch.num_rows

    def _values(self, batch: pa.RecordBatch) -> Sequence[bytes | None]:
        if self.value is not None:
            return _as_bytes(batch, self.value)
        return json_documents(batch)

    def _keys(self, batch: pa.RecordBatch) -> list[bytes | None]:
        return [None] * batch.num_rows if self.key is None else _as_bytes(batch, self.key)

    def _without_earlier(self, part: Part, records: Iterable[TopicRecord]) -> Iterator[TopicRecord]:
        """Yield records, and leave out those that earlier attempts have left in the topic.

        Of a part among several, only records of the same part count: another part may have an
        equal one that is still missing. Of equal records, one may be left out for another one. Then
        they exchange their origins, so that none is in the topic with the origin of another.
        """
        is_whole = part.earlier == "epoch"
        left: Counter[bytes] = Counter()
        written: set[bytes] = set()
        for origin, earlier in self._left(part.outputs, part.epoch):
            if is_whole or (origin.writer, origin.part) == (part.writer, part.number):
                left[_digest(earlier)] += 1
                written.add(record_digest(*earlier))
        if not left:
            yield from records
            return
        unused: defaultdict[bytes, list[list[Header]]] = defaultdict(list)
        for value, key, headers in records:
            record = value, key, headers
            digest, is_written = _digest(record), record_digest(*record) in written
            if left[digest] > 0:
                left[digest] -= 1
                if not is_written:
                    unused[digest].append(headers)
            else:
                yield (value, key, unused[digest].pop()) if is_written else record

    def _left(self, outputs: Outputs, epoch: int) -> Iterator[tuple[Origin, TopicRecord]]:
        """Yield the records of an epoch that are in the topic."""
        sink = _sink_of(outputs)
        with self._reader(outputs) as reader:
            noted = reader.committed()
            starts = {number: noted.get(number, 0) for number in reader.partitions()}
            for message in reader.records(starts):
                headers: Any = message.headers() or []
                origin = Origin.of(headers)
                if origin is not None and (origin.sink, origin.epoch) == (sink, epoch):
                    yield origin, (_raw(message.value()), _raw(message.key()), headers)

    def _reader(self, outputs: Outputs, isolation: str | None = None) -> TopicReader:
        group = f"statekit-{outputs.checkpoint}-{outputs.sink}"
        return TopicReader(self.cluster, self.topic, group, isolation or self._isolation)

    def _note_ends(self) -> None:
        """Note the ends of the topic: records of the next epoch come after them."""
        assert self._notes is not None, "begin() connects"
        self._notes.commit(self._notes.ends())
        self._noted_s = stopwatch_s()

    def _check_fields(self, outputs: Outputs) -> None:
        names = outputs.schema.names
        for name in (self.key, self.value, *self.headers.values()):
            if name is not None and name not in names:
                raise StateTypeError(
                    f"sink {outputs.sink!r} takes {name!r} for topic {self.topic!r}, but its "
                    f"records have no such field: choose among {', '.join(names)}"
                )

    def _check_topic(self, sink: str) -> None:
        if self.cluster.partitions(self.topic) is not None:
            return
        if self.partitions is None:
            raise self._missing_topic(sink)
        self.cluster.create_topic(self.topic, self.partitions)

    def _missing_topic(self, sink: str) -> ConnectorError:
        return ConnectorError(
            f"sink {sink!r}: Kafka at {self.cluster.servers} has no topic {self.topic!r}. "
            "Nothing was written: create the topic, or pass partitions= so that statekit "
            "creates it"
        )


class TransactionalKafkaSink(KafkaSink):
    """Records of a topic, written in transactions. See `kafka`.

    In one process a transaction is an epoch, which `publish` commits. A transaction of a task of
    Spark cannot outlast the task: it is a part, committed at its end.
    """

    guarantee: ClassVar[Guarantee] = "exactly once"
    guarantee_on_spark: ClassVar[Guarantee | None] = "at least once"
    _isolation: ClassVar[str] = "read_committed"

    def open(self, attempt: Attempt) -> None:
        super().open(attempt)
        if attempt.is_first:
            self._end_open_transactions(attempt.outputs)

    def _end_open_transactions(self, outputs: Outputs) -> None:
        """Abort the transactions that killed tasks of this sink have left open.

        Readers of committed records see nothing after the first record of an open transaction. So
        this sink would not find what other tasks have committed, and would write it again. The
        parts of the next attempt may be fewer, and so do not fence all transactions.
        """
        assert self._notes is not None, "begin() connects"
        ends = self._notes.ends()  # of committed records: before the first open transaction
        with self._reader(outputs, "read_uncommitted") as reader:
            if reader.ends() == ends:
                return
            origins = [Origin.of(message.headers()) for message in reader.records(ends)]
        sink = _sink_of(outputs)
        for number in sorted({one.part for one in origins if one and one.sink == sink}):
            self._fencing_delivery(outputs, number)

    @contextmanager
    def _delivering(self, part: Part) -> Iterator[Delivery]:
        """Give a producer in a transaction. A task of Spark commits it, and `publish` otherwise."""
        if self._notes is None:  # in a task of Spark. The next one for this part may run elsewhere
            delivery = self._fencing_delivery(part.outputs, part.number)
            with delivery.discarded_on_error():
                delivery.begin()
                yield delivery
                delivery.commit()
            return
        if self._is_open:  # of an attempt that was not published
            self._delivery, self._is_open = None, False
        delivery = self._delivery or self._fencing_delivery(part.outputs, part.number)
        self._delivery = None
        with delivery.discarded_on_error():
            delivery.begin()
            yield delivery
        self._delivery, self._is_open = delivery, True

    def _fencing_delivery(self, outputs: Outputs, number: int) -> Delivery:
        """Return a producer of a part. It fences the one of an earlier attempt at this part, and
        aborts its open transaction.
        """
        of_part = f"statekit-{_sink_of(outputs)}-{number}"
        return Delivery(self.cluster, self.topic, self._settings(), of_part)

    def _settings(self) -> dict[str, Option]:
        return {**super()._settings(), **self.cluster.transactions()}

    def publish(self, attempt: Attempt, receipts: Sequence[Receipt]) -> None:
        """Commit the transaction of the epoch. The parts of tasks are committed."""
        if self._is_open and self._delivery is not None:
            self._is_open = False
            self._delivery.commit()


@declarable("sinks.kafka")
def kafka(
    servers: str,
    topic: str,
    *,
    key: str | None = None,
    value: str | None = None,
    headers: Mapping[str, str] | None = None,
    partitioner: Partitioner = "murmur2_random",
    partitions: int | None = None,
    transactional: bool = False,
    options: Mapping[str, Option] | None = None,
    retry_seconds: float = 60.0,
) -> KafkaSink:
    """Return a sink that writes records to a topic of Kafka, in any runtime.

    Parameters:
        servers: addresses of brokers, such as `"kafka-1:9092,kafka-2:9092"`.
        topic: the name of the topic.
        key: the field whose text or bytes is the key; None for records without keys. Other types
            have the JSON form of answers and exports.
        value: the field that is the value, as for `key`; None for the whole record as JSON. A
            record with None in this field has no value: a tombstone.
        headers: headers of each record: the name of each, and the field that is its value.
        partitioner: how a partition follows from a key.
        partitions: create the topic with so many partitions if it does not exist; None to refuse
            a topic that does not exist.
        transactional: write in transactions, for readers with `isolation.level=read_committed`.
        options: properties of librdkafka, such as `{"security.protocol": "SASL_SSL"}`.
        retry_seconds: how long requests and deliveries are retried while no broker answers.

    Raises:
        StatekitError: confluent-kafka is not installed.
        StateTypeError: an option is not valid.

    >>> kafka("localhost:9092", "totals", key="customer", options={"compression.type": "lz4"})
    KafkaSink(cluster=KafkaServers('localhost:9092', options of compression.type), topic='totals', \
key='customer', value=None, headers={}, partitioner='murmur2_random', partitions=None)
    """
    kind = TransactionalKafkaSink if transactional else KafkaSink
    cluster = KafkaServers(servers, dict(options or {}), retry_seconds)
    return kind(cluster, topic, key, value, dict(headers or {}), partitioner, partitions)


def _sink_of(outputs: Outputs) -> str:
    return f"{outputs.checkpoint}/{outputs.sink}"


def _as_bytes(batch: pa.RecordBatch, name: str) -> list[bytes | None]:
    """Return a column as bytes: texts in UTF-8, and JSON of other types."""
    column = batch.column(name)
    types = pa.types
    if types.is_binary(column.type) or types.is_large_binary(column.type):
        return list(column.to_pylist())
    if types.is_string(column.type):
        return list(column.cast(pa.binary()).to_pylist())
    encode = msgspec.json.Encoder().encode
    shown = (value for (value,) in json_values(batch.select([name])))
    return [
        None if value is None else value.encode() if isinstance(value, str) else encode(value)
        for value in shown
    ]


def _raw(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _digest(record: TopicRecord) -> bytes:
    """Return what two records have in common that are equal but for their origin."""
    value, key, headers = record
    own = [header for header in headers if header[0] != ORIGIN]
    return record_digest(value, key, own)
