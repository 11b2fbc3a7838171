"""Connections to Kafka: the settings of a cluster, its clients, its topics, and its errors."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, TypeVar

from statekit.clock import stopwatch_s
from statekit.connectors.growing_pauses import GrowingPauses
from statekit.errors import ConnectorError, FencedError, StateTypeError
from statekit.number_faults import number_fault
from statekit.optional_packages import imported
from statekit.secret_options import without_secrets
from statekit.shown import shown

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
    from confluent_kafka.admin import AdminClient

T = TypeVar("T")

Option = str | int | float | bool
"""A value of a property of librdkafka."""

OffsetAt = Literal["earliest", "latest"] | int
"""A place in a partition: its first record, its end, or a time in milliseconds since 1970 UTC."""

_log = logging.getLogger("statekit.kafka")
"""Messages of librdkafka, which would be on stderr without it."""

_OWNED = {
    "bootstrap.servers": "pass servers=",
    "enable.idempotence": "it is always on",
    "transactional.id": "pass transactional=True",
    "group.id": "statekit notes offsets in a group of its own",
    "enable.auto.commit": "statekit commits offsets with the state",
    "enable.partition.eof": "statekit needs it",
    "auto.offset.reset": "pass start= to the source",
    "isolation.level": "pass isolation= to the source",
}
"""Properties that statekit sets itself, and what to do instead."""

_REQUEST_S_MAX = 10.0
"""The longest time limit of one request, in seconds."""

_BATCH = 10_000
"""Records that a reader takes at once."""


class KafkaPartition(NamedTuple):
    """A partition of a topic. Its text is `topic/number`."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.number}"

    @classmethod
    def of(cls, text: str) -> KafkaPartition:
        """Return the partition of a text.

        >>> KafkaPartition.of("shop.orders/3")
        KafkaPartition(topic='shop.orders', number=3)
        """
        topic, _, number = text.rpartition("/")
        return cls(topic, int(number))


@dataclass
class KafkaServers:
    """A Kafka cluster, with the settings of its clients.

    Its text contains the names of the options, and no value of them: a password is never shown.

    Parameters:
        servers: addresses of brokers, such as `"kafka-1:9092,kafka-2:9092"`.
        options: properties of librdkafka for all clients, such as `sasl.username`.
        retry_seconds: how long requests and deliveries are retried while no broker answers.

    Raises:
        StateTypeError: an argument is not valid, or an option is one that statekit sets itself.

    >>> KafkaServers("localhost:9092", {"sasl.username": "ada", "sasl.password": "secret"})
    KafkaServers('localhost:9092', options of sasl.username, sasl.password)
    """

    servers: str
    options: Mapping[str, Option] = field(default_factory=dict)
    retry_seconds: float = 60.0

    def __post_init__(self) -> None:
        if not self.servers:
            raise StateTypeError(
                f"servers is {shown(self.servers)}: pass addresses of brokers, such as "
                '"kafka-1:9092,kafka-2:9092"'
            )
        if fault := number_fault(self.retry_seconds, "give seconds, from 0"):
            raise StateTypeError(f"retry_seconds={shown(self.retry_seconds)}{fault}")
        for name in self.options:
            if name in _OWNED:
                raise StateTypeError(f"options= must not have {name!r}: {_OWNED[name]}")

    def __repr__(self) -> str:
        named = f", options of {', '.join(self.options)}" if self.options else ""
        return f"{type(self).__name__}({self.servers!r}{named})"

    def __getstate__(self) -> dict[str, Any]:
        fields = ("servers", "options", "retry_seconds")
        return {name: getattr(self, name) for name in fields}  # each process connects

    @property
    def request_s(self) -> float:
        """The time limit of one request, in seconds."""
        return min(_REQUEST_S_MAX, self.retry_seconds)

    def producer(
        self,
        settings: Mapping[str, Any],
        on_failure: Callable[[KafkaError, Message], object],
        transactional_id: str | None = None,
    ) -> Producer:
        """Return an idempotent producer. It reports the deliveries that fail, and no others.

        Parameters:
            settings: properties, which come before those of the user.
            on_failure: called with the error of each record that was not delivered.
            transactional_id: of its transactions; None for a producer without transactions.
        """
        own = {
            "enable.idempotence": True,
            "delivery.report.only.error": True,
            "on_delivery": on_failure,
        }
        if transactional_id is not None:
            own["transactional.id"] = transactional_id
        timeout = {"message.timeout.ms": round(self.retry_seconds * 1000)}
        producer: Producer = self._client(_library().Producer, timeout | dict(settings), own)
        return producer

    def consumer(self, group: str, settings: Mapping[str, Any]) -> Consumer:
        """Return a consumer that reads assigned partitions, and commits nothing by itself.

        Parameters:
            group: the group in which it may commit offsets.
            settings: properties, which come before those of the user.
        """
        own = {"group.id": group, "enable.auto.commit": False, "enable.partition.eof": True}
        consumer: Consumer = self._client(_library().Consumer, settings, own)
        return consumer

    def _client(
        self, make: Callable[..., T], settings: Mapping[str, Any], own: Mapping[str, Any]
    ) -> T:
        config = {**settings, **self.options, **own, "bootstrap.servers": self.servers}
        try:
            return make(config, logger=_log)
        except _library().KafkaException as error:
            raise StateTypeError(
                f"options= are not valid: {without_secrets(_code(error).str(), self.options)}. "
                "Nothing was sent to Kafka: see the properties of librdkafka"
            ) from None

    def partitions(self, topic: str) -> int | None:
        """Return the number of partitions of a topic; None if there is no such topic.

        Raises:
            ConnectorError: no broker answers, or it refuses the request.
        """
        return self.partition_counts([topic]).get(topic)

    def partition_counts(self, topics: Sequence[str]) -> dict[str, int]:
        """Return the number of partitions of each of some topics, without those that do not exist.

        Raises:
            ConnectorError: no broker answers, or it refuses the request.
        """
        from confluent_kafka import TopicCollection

        def described(admin: AdminClient) -> dict[str, int]:
            found = {}
            timeout_s = self.request_s
            asked = admin.describe_topics(TopicCollection(list(topics)), request_timeout=timeout_s)
            for topic, future in asked.items():
                try:
                    found[topic] = len(future.result().partitions)
                except _library().KafkaException as error:
                    if _code(error).code() != _library().KafkaError.UNKNOWN_TOPIC_OR_PART:
                        raise
            return found

        named = "topic" if len(topics) == 1 else "topics"
        doing = f"find {named} {', '.join(map(repr, topics))}"
        return self._asked(doing, described, unless={}) or {}

    def within(self, limit_s: float) -> KafkaServers:
        """Return the same cluster with a time limit for requests and their retries, in seconds."""
        return KafkaServers(self.servers, self.options, limit_s / 2)

    def check_allowed(self, topics: Sequence[str], operation: Literal["READ", "WRITE"]) -> None:
        """Check that the user may read or write topics, which exist. Brokers without permissions
        allow both.

        Raises:
            ConnectorError: it may not, no broker answers, or it refuses the request.
        """
        from confluent_kafka import TopicCollection

        def described(admin: AdminClient) -> dict[str, set[str]]:
            asked = admin.describe_topics(
                TopicCollection(list(topics)),
                request_timeout=self.request_s,
                include_authorized_operations=True,
            )
            found = {
                topic: future.result().authorized_operations for topic, future in asked.items()
            }
            return {topic: {each.name for each in of or ()} for topic, of in found.items()}

        allowed = self._asked("ask for the permissions", described, unless={}) or {}
        for topic, operations in allowed.items():
            if operations and not operations & {operation, "ALL"}:
                raise ConnectorError(
                    f"Kafka at {self.servers} does not allow this user to {operation.lower()} "
                    f"topic {topic!r}, only {', '.join(sorted(operations))}. Nothing was sent: "
                    f"allow {operation} by an ACL, or use another user in options="
                )

    def all_partition_counts(self) -> dict[str, int]:
        """Return the number of partitions of each topic that the user may see.

        Raises:
            ConnectorError: no broker answers, or it refuses the request.
        """

        def listed(admin: AdminClient) -> dict[str, int]:
            topics = admin.list_topics(timeout=self.request_s).topics
            return {topic: len(of.partitions) for topic, of in topics.items() if of.error is None}

        return self._asked("list the topics", listed, unless={}) or {}

    def offsets(
        self, partitions: Sequence[KafkaPartition], at: OffsetAt, isolation: str
    ) -> dict[KafkaPartition, int]:
        """Return an offset of each partition, by one request.

        Parameters:
            at: the first record that is left, the one after the last record, or the first one at a
                time in milliseconds since 1970 UTC. Partitions without such a record are absent.
            isolation: `read_committed` for the end of committed records.

        Raises:
            ConnectorError: no broker answers, or it refuses the request.
        """
        if not partitions:
            return {}
        from confluent_kafka import IsolationLevel
        from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

        spec: Any = OffsetSpec
        spec = spec.for_timestamp(at) if isinstance(at, int) else getattr(spec, at)()
        level = getattr(IsolationLevel, isolation.upper())

        def listed(admin: AdminClient) -> dict[KafkaPartition, int]:
            wanted = {self.position(each): spec for each in partitions}
            asked = admin.list_offsets(
                wanted, isolation_level=level, request_timeout=self.request_s
            )
            return {
                KafkaPartition(of.topic, of.partition): found
                for of, future in asked.items()
                if (found := future.result().offset) >= 0
            }

        return self._asked("list the offsets", listed, unless={}) or {}

    def position(self, partition: KafkaPartition, offset: int | None = None) -> TopicPartition:
        """Return a partition and an offset, None for its first record, as the library takes it."""
        library = _library()
        at = library.OFFSET_BEGINNING if offset is None else offset
        position: TopicPartition = library.TopicPartition(partition.topic, partition.number, at)
        return position

    def create_topic(self, topic: str, partitions: int) -> None:
        """Create a topic with the default settings of the cluster, if there is no such topic.

        Raises:
            ConnectorError: no broker answers, or it refuses the request.
        """
        from confluent_kafka.cimpl import NewTopic

        def created(admin: AdminClient) -> None:
            new = NewTopic(topic, num_partitions=partitions)
            admin.create_topics([new], request_timeout=self.request_s)[topic].result()

        exists = _library().KafkaError.TOPIC_ALREADY_EXISTS
        self._asked(f"create topic {topic!r}", created, unless={exists: None})

    def _asked(
        self, doing: str, ask: Callable[[AdminClient], T], unless: Mapping[int, T | None]
    ) -> T | None:
        """Return the response to a request of an administrator.

        Parameters:
            unless: the response for an error of this code.
        """
        admin, noted = self._administrator

        def answer() -> T | None:
            try:
                return ask(admin)
            except _library().KafkaException as error:
                if _code(error).code() in unless:
                    return unless[_code(error).code()]
                raise

        return self.retried(doing, answer, noted)

    @cached_property
    def _administrator(self) -> tuple[AdminClient, LastError]:
        from confluent_kafka.admin import AdminClient

        noted = LastError()
        return self._client(AdminClient, {"error_cb": noted}, {}), noted

    def retried(self, doing: str, ask: Callable[[], T], noted: LastError | None = None) -> T:
        """Call a function, and return its result. Call it again while that may mend its error.

        Parameters:
            doing: what it does, for the message.
            noted: the last error of its client.

        Raises:
            ConnectorError: it failed for good, or for `retry_seconds`.
            FencedError: another producer has taken over the transactions.
        """
        pauses = GrowingPauses()
        while True:
            try:
                return ask()
            except _library().KafkaException as error:
                failed = _code(error)
            cause = failed if noted is None else noted.cause_of(failed)
            if not is_mended_by_retry(cause) or pauses.elapsed_s > self.retry_seconds:
                self.fail(doing, cause)
            pauses.sleep(self._failed(doing, cause))

    def fail(self, doing: str, error: KafkaError) -> NoReturn:
        """Raise the error of statekit for one of librdkafka.

        Parameters:
            doing: what failed, such as "write to topic 'totals'".
        """
        failed = self._failed(doing, error)
        if error.code() in _fenced():
            raise FencedError(
                f"{failed}. Another run of this job has taken over its transactions, and nothing "
                "of this epoch is committed: let only one of them run"
            ) from None
        raise ConnectorError(
            f"{failed}. Nothing of this epoch is committed, and it runs again under the same "
            f"number: {_advice(error)}, then start the job again"
        ) from None

    def _failed(self, doing: str, error: KafkaError) -> str:
        reason = without_secrets(f"{error.str()} ({error.name()})", self.options)
        return f"cannot {doing} of Kafka at {self.servers}: {reason}"

    def transactions(self) -> dict[str, Option]:
        """Return the time limit of transactions as properties: one outlasts its deliveries."""
        limit_ms = max(60_000, round(self.retry_seconds * 1000))
        return {"transaction.timeout.ms": limit_ms}


class TopicReader:
    """Reads a topic from offsets to its present end, and keeps offsets in a consumer group.

    Parameters:
        cluster: where the topic is. It exists.
        topic: its name.
        group: the consumer group of the offsets.
        isolation: `read_committed` or `read_uncommitted`.
    """

    def __init__(self, cluster: KafkaServers, topic: str, group: str, isolation: str) -> None:
        self._cluster, self._topic = cluster, topic
        self._noted = LastError()
        settings = {
            "auto.offset.reset": "earliest",
            "isolation.level": isolation,
            "fetch.wait.max.ms": 200,
            "error_cb": self._noted,
        }
        self._consumer = cluster.consumer(group, settings)

    def __enter__(self) -> TopicReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the cluster."""
        self._consumer.close()

    def partitions(self) -> list[int]:
        """Return the numbers of the partitions."""
        topics = self._asked(
            "find",
            lambda: self._consumer.list_topics(self._topic, timeout=self._cluster.request_s).topics,
        )
        return sorted(topics[self._topic].partitions)

    def ends(self) -> dict[int, int]:
        """Return the offset after the last record by partition."""

        def ends() -> dict[int, int]:
            at = map(self._partition, self.partitions())
            marks = [
                self._consumer.get_watermark_offsets(one, self._cluster.request_s) for one in at
            ]
            return {number: mark[1] for number, mark in enumerate(marks)}

        return self._asked("find the end of", ends)

    def committed(self) -> dict[int, int]:
        """Return the offset that the group has committed by partition, where there is one."""
        wanted = list(map(self._partition, self.partitions()))
        found = self._asked(
            "read the offsets of the group of",
            lambda: self._consumer.committed(wanted, timeout=self._cluster.request_s),
        )
        return {one.partition: one.offset for one in found if one.offset >= 0}

    def commit(self, offsets: Mapping[int, int]) -> None:
        """Commit offsets of the group."""
        kept = [self._partition(number, offset) for number, offset in offsets.items()]
        self._asked(
            "commit offsets of the group of",
            lambda: self._consumer.commit(offsets=kept, asynchronous=False),
        )

    def records(self, starts: Mapping[int, int]) -> Iterator[Message]:
        """Yield the records of some partitions from an offset to the present end.

        Parameters:
            starts: the first offset by partition. If it was deleted, the oldest record is first.

        Raises:
            ConnectorError: no broker answers, or it refuses the request.
        """
        library = _library()
        self._consumer.assign([self._partition(*start) for start in starts.items()])
        unread, heard_s = set(starts), stopwatch_s()
        while unread:
            messages = self._consumer.consume(_BATCH, timeout=0.02)
            if messages:
                heard_s = stopwatch_s()
            elif stopwatch_s() - heard_s > self._cluster.retry_seconds:
                timed_out = library.KafkaError(library.KafkaError._TIMED_OUT)
                self._cluster.fail(f"read topic {self._topic!r}", self._noted.cause_of(timed_out))
            for message in messages:
                if (error := message.error()) is None:
                    yield message
                elif error.code() == library.KafkaError._PARTITION_EOF:
                    unread.discard(message.partition())
                elif not is_mended_by_retry(error):
                    self._cluster.fail(f"read topic {self._topic!r}", error)

    def _partition(self, number: int, offset: int = -1) -> TopicPartition:
        partition: TopicPartition = _library().TopicPartition(self._topic, number, offset)
        return partition

    def _asked(self, doing: str, ask: Callable[[], T]) -> T:
        return self._cluster.retried(f"{doing} topic {self._topic!r}", ask, self._noted)


class LastError:
    """Notes the last error that a client reports for no request in particular.

    A request to a broker that refuses the password only times out: the client reports the reason
    beside it.
    """

    def __init__(self) -> None:
        self.error: KafkaError | None = None

    def __call__(self, error: KafkaError) -> None:
        if self.error is None or self.error.code() not in _refusals():
            self.error = error

    def cause_of(self, failed: KafkaError) -> KafkaError:
        """Return the reason of a request that failed."""
        is_unclear = failed.code() in _unclear()
        return self.error if is_unclear and self.error is not None else failed


def kafka_errors() -> type[Exception]:
    """Return the class of exceptions of confluent-kafka. Their first argument is a KafkaError."""
    errors: type[Exception] = _library().KafkaException
    return errors


def is_partition_end(error: KafkaError) -> bool:
    """Return whether an error says only that the end of a partition was read."""
    return bool(error.code() == _library().KafkaError._PARTITION_EOF)


def is_out_of_range(error: KafkaError) -> bool:
    """Return whether an error says that a partition has no longer, or not yet, an offset."""
    of = _library().KafkaError
    return error.code() in (of._AUTO_OFFSET_RESET, of.OFFSET_OUT_OF_RANGE)


def is_about_group(error: KafkaError) -> bool:
    """Return whether an error is about the consumer group, which readers of offsets do not use."""
    of = _library().KafkaError
    return error.code() in (of.GROUP_AUTHORIZATION_FAILED, of._WAIT_COORD)


def timed_out() -> KafkaError:
    """Return the error for records that did not arrive in time."""
    of = _library().KafkaError
    error: KafkaError = of(of._TIMED_OUT)
    return error


def is_purged(error: KafkaError) -> bool:
    """Return whether a producer dropped a record because of another error."""
    of = _library().KafkaError
    return error.code() in (of._PURGE_QUEUE, of._PURGE_INFLIGHT)


def is_mended_by_retry(error: KafkaError) -> bool:
    """Return whether the same request may succeed later: no broker answers, or it has to wait."""
    return not error.fatal() and (error.retriable() or error.code() in _passing())


def _library() -> Any:
    """Return the module confluent_kafka.

    Raises:
        StatekitError: it is not installed.
    """
    return imported("confluent_kafka", "Kafka", "confluent-kafka", "kafka")


def _code(error: Exception) -> KafkaError:
    """Return the error of librdkafka within an exception."""
    (code,) = error.args[:1]
    return code  # type: ignore[no-any-return] # args are of any type


def _unclear() -> frozenset[int]:
    """Return the codes of errors that say no more than that no answer came."""
    of = _library().KafkaError
    return frozenset((of._TIMED_OUT, of._TRANSPORT, of._ALL_BROKERS_DOWN, of._MSG_TIMED_OUT))


def _passing() -> frozenset[int]:
    """Return the codes of errors that pass, and that librdkafka does not always call retriable."""
    of = _library().KafkaError
    return _unclear() | {
        of._RESOLVE,
        of._NOENT,  # no leader of a partition is known
        of._QUEUE_FULL,
        of._WAIT_COORD,
        of.LEADER_NOT_AVAILABLE,
        of.NOT_LEADER_FOR_PARTITION,
        of.COORDINATOR_LOAD_IN_PROGRESS,
        of.COORDINATOR_NOT_AVAILABLE,
        of.NOT_COORDINATOR,
        of.REQUEST_TIMED_OUT,
        of.NETWORK_EXCEPTION,
        of.CONCURRENT_TRANSACTIONS,
    }


def _refusals() -> frozenset[int]:
    """Return the codes of errors about the user, the password, or a certificate."""
    of = _library().KafkaError
    return frozenset(
        (
            of._AUTHENTICATION,
            of._SSL,
            of.SASL_AUTHENTICATION_FAILED,
            of.UNSUPPORTED_SASL_MECHANISM,
            of.TOPIC_AUTHORIZATION_FAILED,
            of.GROUP_AUTHORIZATION_FAILED,
            of.CLUSTER_AUTHORIZATION_FAILED,
            of.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        )
    )


def _fenced() -> frozenset[int]:
    """Return the codes of errors after another producer has taken over the transactions."""
    of = _library().KafkaError
    return frozenset((of._FENCED, of.INVALID_PRODUCER_EPOCH))


def _advice(error: KafkaError) -> str:
    """Return what to do about an error."""
    of = _library().KafkaError
    code = error.code()
    if code in _refusals():
        return "check user, password, certificates and permissions in options="
    if code in (of.UNKNOWN_TOPIC_OR_PART, of._UNKNOWN_TOPIC, of._UNKNOWN_PARTITION):
        return "create the topic, or pass partitions= so that statekit creates it"
    if code in (of.MSG_SIZE_TOO_LARGE, of.RECORD_LIST_TOO_LARGE):
        return "raise message.max.bytes in options= and max.message.bytes of the topic"
    return "check that the brokers are reachable and have space"
