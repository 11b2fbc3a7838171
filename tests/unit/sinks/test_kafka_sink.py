"""Records of a sink in a topic of a real broker."""

from __future__ import annotations

import datetime as dt
import json
import pickle
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from confluent_kafka import Producer

import statekit as sk
from statekit.connectors.kafka_headers import ORIGIN, Origin, origin_prefix
from statekit.sinks.kafka import KafkaSink
from statekit.sinks.protocol.sink import Outputs, Part
from tests.support.kafka_broker import KafkaBroker, KafkaRecord
from tests.support.sinks import ORDERS, Order, Spent, spending_job, sums


def run(root: Path, sink: KafkaSink, orders: list[Order] = ORDERS, **options: Any) -> None:
    given: dict[str, Any] = {"checkpoint": root, "epoch_size": 5, "drain": False} | options
    spending_job(sink).run({"orders": orders}, **given)


def spent(kafka: KafkaBroker, topic: str) -> list[Spent]:
    """The records of a topic, sorted."""
    values = [json.loads(value or b"") for value in kafka.values(topic)]
    return sorted(Spent(**value) for value in values)


def origin(record: KafkaRecord) -> Origin:
    found = Origin.of(record.headers)
    assert found is not None
    return found


def uncommit(root: Path, epoch: int) -> None:
    """As if the process had been killed after `publish`, before the manifest."""
    (root / "epochs" / f"{epoch:020d}.json").unlink()


@pytest.fixture(params=[False, True], ids=["plain", "transactional"])
def sink(request: pytest.FixtureRequest, kafka: KafkaBroker, topic: str) -> KafkaSink:
    """A sink by key into a topic of three partitions that it creates."""
    return sk.sinks.kafka(
        kafka.servers, topic, key="customer", partitions=3, transactional=request.param
    )


def test_records_are_json_by_key_in_the_order_of_each_key(
    root: Path, kafka: KafkaBroker, topic: str, sink: KafkaSink
) -> None:
    run(root, sink)
    assert spent(kafka, topic) == sums(ORDERS)
    assert kafka.partitions(topic) == 3
    for customer in ("c0", "c1", "c2"):
        of_key = [each for each in kafka.records(topic) if each.key == customer.encode()]
        assert len({record.partition for record in of_key}) == 1
        totals = [json.loads(record.value or b"")["cents"] for record in of_key]
        assert totals == sorted(totals)


def test_each_record_says_where_it_is_from(
    root: Path, kafka: KafkaBroker, topic: str, sink: KafkaSink
) -> None:
    run(root, sink)
    origins = list(map(origin, kafka.records(topic)))
    numbers = sorted((each.epoch, each.part, each.sequence) for each in origins)
    assert numbers == [(number // 5, 0, number % 5) for number in range(12)]
    (name,) = {each.sink for each in origins}
    assert name.endswith("/spent")


def test_an_epoch_that_was_published_but_not_committed_is_not_written_again(
    root: Path, kafka: KafkaBroker, topic: str, sink: KafkaSink
) -> None:
    run(root, sink)
    before = kafka.records(topic)
    uncommit(root, 2)
    run(root, sink)
    assert kafka.records(topic) == before


@pytest.mark.slow
def test_only_the_missing_records_of_an_epoch_are_written_at_any_parallelism(
    root: Path, kafka: KafkaBroker, topic: str
) -> None:
    """An attempt has failed after two records of five."""
    sink = sk.sinks.kafka(kafka.servers, topic, key="customer", partitions=2)
    run(root, sink, ORDERS[:5], parallelism=2)
    shutil.copytree(root, root.with_name("before"))
    failing = sk.sinks.kafka(kafka.servers, topic, key="customer")

    def first_two(part: Any, batches: Any) -> Any:
        KafkaSink.write(failing, part, iter([next(batches).slice(0, 2)]))
        raise OSError("the network is down")

    failing.write = first_two  # type: ignore[method-assign]
    with pytest.raises(sk.ProcessError, match="the network is down"):
        run(root, failing, ORDERS[:10], parallelism=2)
    assert len(kafka.records(topic)) == 7
    run(root, sink, ORDERS[:10], parallelism=3)
    assert spent(kafka, topic) == sums(ORDERS[:10])


class Tick(NamedTuple):
    device: str
    number: int
    at: dt.datetime
    payload: bytes | None


@sk.process(key="device")
def echo(tick: Tick, seen: sk.ValueState[int]) -> Iterator[Tick]:
    yield tick


def ticks(sink: KafkaSink, records: list[Tick], **options: Any) -> None:
    job = sk.Job("ticks")
    job.source("ticks", Tick).process(echo).sink("echo", sink)
    job.run({"ticks": records}, **options)


AT = dt.datetime(2026, 1, 31, 6, tzinfo=dt.UTC)


def test_values_keys_and_headers_are_fields_as_bytes(kafka: KafkaBroker, topic: str) -> None:
    kafka.create_topic(topic)
    sink = sk.sinks.kafka(
        kafka.servers, topic, key="number", value="payload", headers={"at": "at", "by": "device"}
    )
    ticks(sink, [Tick("a", 7, AT, b"\xff"), Tick("a", 8, AT, None)])
    first, second = kafka.records(topic)
    assert (first.key, first.value) == (b"7", b"\xff")
    assert (second.key, second.value) == (b"8", None)
    own = [header for header in first.headers if header[0] != ORIGIN]
    assert own == [("at", b"2026-01-31T06:00:00Z"), ("by", b"a")]


@pytest.mark.slow
def test_equal_records_of_an_epoch_are_written_as_often_as_they_were_emitted(
    root: Path, kafka: KafkaBroker, topic: str
) -> None:
    kafka.create_topic(topic)
    sink = sk.sinks.kafka(kafka.servers, topic)
    records = [Tick("a", 1, AT, None)] * 3 + [Tick("b", 2, AT, None)]
    ticks(sink, records, checkpoint=root, drain=False)
    uncommit(root, 0)
    ticks(sink, records, checkpoint=root, drain=False)
    assert Counter(kafka.values(topic)).most_common(1)[0][1] == 3
    assert len(kafka.values(topic)) == 4


@pytest.mark.slow
def test_more_records_than_the_queue_has_room_for_are_written(
    root: Path, kafka: KafkaBroker, topic: str
) -> None:
    kafka.create_topic(topic)
    options = {"queue.buffering.max.messages": 100, "linger.ms": 1}
    sink = sk.sinks.kafka(kafka.servers, topic, options=options)
    orders = [Order("ada", 1)] * 5_000
    run(root, sink, orders, epoch_size=5_000)
    assert spent(kafka, topic) == sums(orders)


@pytest.mark.slow
def test_records_of_others_in_the_topic_are_left_alone(
    root: Path, kafka: KafkaBroker, topic: str
) -> None:
    kafka.create_topic(topic)
    value = '{"customer":"c0","cents":0}'
    kafka.produce(topic, [value], headers={ORIGIN: b"of another program"})
    run(root, sk.sinks.kafka(kafka.servers, topic))
    assert spent(kafka, topic) == sorted([Spent("c0", 0), *sums(ORDERS)])


def test_a_topic_that_does_not_exist_is_refused_before_the_first_record(
    root: Path, kafka: KafkaBroker, topic: str
) -> None:
    with pytest.raises(sk.ConnectorError, match=f"sink 'spent': .* has no topic '{topic}'"):
        run(root, sk.sinks.kafka(kafka.servers, topic))
    assert kafka.partitions(topic) == 0


def test_a_field_that_records_do_not_have_is_refused(kafka: KafkaBroker, topic: str) -> None:
    with pytest.raises(sk.StateTypeError, match="'spent' takes 'nobody' for topic"):
        spending_job(sk.sinks.kafka(kafka.servers, topic, key="nobody")).run({"orders": ORDERS})


def test_a_broker_that_does_not_answer_is_an_error_after_a_while(root: Path) -> None:
    sink = sk.sinks.kafka("127.0.0.1:1", "totals", retry_seconds=0.1)
    with pytest.raises(sk.ConnectorError, match=r"cannot find topic 'totals' of Kafka at 127"):
        run(root, sink)


@pytest.mark.slow
def test_a_record_that_is_too_large_is_an_error_that_commits_nothing(
    root: Path, kafka: KafkaBroker, topic: str
) -> None:
    kafka.create_topic(topic)
    sink = sk.sinks.kafka(kafka.servers, topic, options={"message.max.bytes": 1000})
    with pytest.raises(sk.ConnectorError, match=r"MSG_SIZE_TOO_LARGE.*raise message\.max\.bytes"):
        run(root, sink, [Order("a" * 2000, 1)])
    run(root, sk.sinks.kafka(kafka.servers, topic), [Order("a" * 2000, 1)])
    assert len(kafka.values(topic)) == 1


@pytest.mark.slow
def test_a_broker_that_is_gone_in_an_epoch_is_an_error_and_nothing_is_lost(
    root: Path, kafka: KafkaBroker, topic: str
) -> None:
    kafka.create_topic(topic)
    run(root, sk.sinks.kafka(kafka.servers, topic), ORDERS[:5])
    sink = sk.sinks.kafka(kafka.servers, topic, retry_seconds=0.5)
    inner = sink.write

    def write(part: Any, batches: Any) -> Any:
        with kafka.suspended():
            return inner(part, batches)

    sink.write = write  # type: ignore[method-assign]
    with pytest.raises(sk.ConnectorError, match="Nothing of this epoch is committed"):
        run(root, sink)
    run(root, sk.sinks.kafka(kafka.servers, topic))
    assert spent(kafka, topic) == sums(ORDERS)


def test_passwords_are_in_no_text_of_a_sink() -> None:
    options = {"sasl.username": "ada", "sasl.password": "sentinel", "ssl.key.pem": "sentinel"}
    sink = sk.sinks.kafka("localhost:9092", "totals", options=options)
    assert "sentinel" not in repr(sink)
    assert pickle.loads(pickle.dumps(sink)).cluster.options == options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"enable.idempotence": False}, "it is always on"),
        ({"bootstrap.servers": "a"}, "pass servers="),
        ({"no.such": "sentinel"}, "No such configuration property"),
        ({"security.protocol": "sentinel", "sasl.password": "sentinel"}, r"\*\*\*"),
    ],
)
def test_options_that_are_not_valid_are_refused(
    root: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(sk.StateTypeError, match=message) as refused:
        run(root, sk.sinks.kafka("127.0.0.1:1", "totals", options=options, retry_seconds=0.1))
    assert "sasl.password" not in options or "sentinel" not in str(refused.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [({"partitions": 0}, "give a number of partitions"), ({"retry_seconds": -1}, "give seconds")],
)
def test_numbers_that_make_no_sense_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(sk.StateTypeError, match=message):
        sk.sinks.kafka("localhost:9092", "totals", **given)


def native_threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def test_workers_take_any_part_in_any_order_and_keep_no_connection(
    kafka: KafkaBroker, topic: str
) -> None:
    """Spark gives the tasks of an epoch to any of its workers, each with a copy of the sink."""
    kafka.create_topic(topic)
    sink = pickle.dumps(sk.sinks.kafka(kafka.servers, topic, transactional=True))
    workers = [pickle.loads(sink), pickle.loads(sink)]
    batch = pa.record_batch({"customer": ["ada"], "cents": [1]})
    outputs = Outputs("5f" * 16, "spent", batch.schema)
    before = native_threads()
    turns = [(0, 0), (1, 0), (0, 0), (0, 1), (1, 1), (0, 0)]
    for epoch, (worker, number) in enumerate(turns):
        workers[worker].write(Part(outputs, epoch, "w", number), iter([batch]))
    found = sorted((origin(each).epoch, origin(each).part) for each in kafka.records(topic))
    assert found == [(epoch, number) for epoch, (_, number) in enumerate(turns)]
    assert native_threads() == before


def test_transactions_that_killed_tasks_have_left_open_are_ended(
    root: Path, kafka: KafkaBroker, topic: str
) -> None:
    """Two of three tasks have written their part of an epoch, and one of them has committed it. The
    epoch then runs in one part.
    """
    sink = sk.sinks.kafka(kafka.servers, topic, key="customer", partitions=1, transactional=True)
    run(root, sink, ORDERS[:5])
    name = origin(kafka.records(topic)[0]).sink
    first, second = [order for order in sums(ORDERS[:10]) if order not in sums(ORDERS[:5])][:2]
    producers = []
    for part, record in enumerate([first, second], 1):
        settings = {
            "bootstrap.servers": kafka.servers,
            "transactional.id": f"statekit-{name}-{part}",
        }
        producer = Producer(settings)
        producer.init_transactions()
        producer.begin_transaction()
        headers: Any = {ORIGIN: f"{origin_prefix(name, 1, 'killed', part)}0".encode()}
        value = json.dumps(record._asdict(), separators=(",", ":"))
        producer.produce(topic, value, record.customer, headers=headers)
        producer.flush()
        producers.append(producer)
    producers[1].commit_transaction()
    assert len(kafka.records(topic)) == 5, "committed records after an open transaction are hidden"
    run(root, sink, ORDERS[:10])
    assert spent(kafka, topic) == sums(ORDERS[:10])


@pytest.mark.slow
def test_a_second_run_fences_the_transactions_of_the_first(
    root: Path, kafka: KafkaBroker, topic: str
) -> None:
    """The other one runs while this one is about to write its second epoch."""
    kafka.create_topic(topic)
    sink = sk.sinks.kafka(kafka.servers, topic, transactional=True)
    inner = sink.write

    def write(part: Any, batches: Any) -> Any:
        if part.epoch == 1:
            run(root, sk.sinks.kafka(kafka.servers, topic, transactional=True), ORDERS[:10])
        return inner(part, batches)

    sink.write = write  # type: ignore[method-assign]
    with pytest.raises(sk.FencedError, match="has taken over its transactions"):
        run(root, sink)
    assert spent(kafka, topic) == sums(ORDERS[:10])
