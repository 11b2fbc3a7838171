"""Delivery of records to a topic, in order, with back-pressure and in transactions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from statekit.connectors.kafka import KafkaServers, LastError, Option, is_purged, kafka_errors
from statekit.shown import shown_error

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

_log = logging.getLogger("statekit.kafka")

_WAIT_S = 0.005
"""How long a full queue waits before the next try."""

_FLUSH_S = 0.5
"""How long a flush waits before it looks at errors, in seconds."""

Header = tuple[str, str | bytes | None]
"""The name and the value of a header."""


TopicRecord = tuple[bytes | None, bytes | None, list[Header]]
"""A record for a topic: value, key, headers. A plain tuple, since there are many."""


class Delivery:
    """An idempotent producer for one topic. The records of a partition arrive in order.

    Parameters:
        cluster: where the topic is.
        topic: its name.
        settings: properties of the producer.
        transactional_id: of its transactions; None for records that are visible at once. A
            producer that has this id already is fenced, and its open transaction aborted.

    Raises:
        ConnectorError: no broker answers, or it refuses the transactions.
    """

    def __init__(
        self,
        cluster: KafkaServers,
        topic: str,
        settings: Mapping[str, Option],
        transactional_id: str | None = None,
    ) -> None:
        self._cluster, self._topic = cluster, topic
        self._failed: list[KafkaError] = []
        self._noted = LastError()
        self._is_transactional = transactional_id is not None
        config: dict[str, Any] = {**settings, "error_cb": self._noted}
        failed = self._failed  # no cycle with this object, which would keep threads and connections
        self._producer = cluster.producer(
            config, lambda error, _message: failed.append(error), transactional_id
        )
        if self._is_transactional:
            self._asked(
                "begin transactions on",
                partial(self._producer.init_transactions, self._cluster.request_s),
            )

    def begin(self) -> None:
        """Begin a transaction, if records are written in transactions."""
        if self._is_transactional:
            self._asked("begin a transaction on", self._producer.begin_transaction)

    def commit(self) -> None:
        """Commit the transaction, if records are written in transactions."""
        if self._is_transactional:
            commit = partial(self._producer.commit_transaction, self._cluster.request_s)
            self._asked("commit a transaction on", commit)

    def send(self, records: Iterable[TopicRecord]) -> None:
        """Write records, and return when the brokers have all of them.

        Raises:
            ConnectorError: a record was not delivered. Others may have been.
            FencedError: another producer has taken over the transactions.
        """
        produce, topic, wait = self._producer.produce, self._topic, self._producer.poll
        error_of = kafka_errors()
        for value, key, headers in records:
            while True:
                try:
                    # By place, as its arguments by name take a microsecond.
                    produce(topic, value, key, -1, None, None, 0, headers)
                    break
                except BufferError:  # the queue is full: wait for deliveries
                    wait(_WAIT_S)
                    self._check()
                except error_of as error:
                    self._fail(error.args[0])
        while self._unsent():
            self._check()
        self._check()

    def _unsent(self) -> int:
        """Wait a moment for deliveries, and return how many records are not delivered."""
        try:
            return self._producer.flush(_FLUSH_S)
        except kafka_errors() as error:
            self._fail(error.args[0])
        except SystemError:  # confluent-kafka raises it if the client fails while it waits
            return 1  # the reason comes with each delivery

    @contextmanager
    def discarded_on_error(self) -> Iterator[None]:
        """Drop records that were not sent, and abort the transaction, if this block fails."""
        try:
            yield
        except BaseException:
            self._discard()
            raise

    def _discard(self) -> None:
        self._producer.purge()
        try:
            self._producer.flush(_FLUSH_S)
            if self._is_transactional:
                self._producer.abort_transaction(_FLUSH_S)
        except (SystemError, kafka_errors()) as error:
            _log.debug("a producer of topic %s ends with %s", self._topic, shown_error(error))

    def _check(self) -> None:
        if self._failed:
            self._fail(self._failed[0])

    def _fail(self, error: KafkaError) -> NoReturn:
        if is_purged(error) and self._is_transactional:
            try:  # the producer dropped its records for a reason that only this call returns
                self._producer.commit_transaction(self._cluster.request_s)
            except kafka_errors() as reason:
                error = reason.args[0]
        self._cluster.fail(f"write to topic {self._topic!r}", self._noted.cause_of(error))

    def _asked(self, doing: str, ask: Callable[[], object]) -> None:
        self._cluster.retried(f"{doing} topic {self._topic!r}", ask, self._noted)


_of_process: dict[tuple[str, str, bytes], Delivery] = {}
"""The producers of a Python worker of Spark. Getting the id of a producer takes half a second."""


@contextmanager
def delivery_of_process(
    cluster: KafkaServers, topic: str, settings: Mapping[str, Option]
) -> Iterator[Delivery]:
    """Give the producer without transactions that this process has for a topic.

    A worker of Spark runs one task at a time. Without an error, a producer has no records left
    after its task.
    """
    options = sorted({**cluster.options, **settings}.items())
    key = cluster.servers, topic, msgspec.json.encode(options)
    delivery = _of_process.pop(key, None) or Delivery(cluster, topic, settings)
    with delivery.discarded_on_error():
        yield delivery
    _of_process[key] = delivery
