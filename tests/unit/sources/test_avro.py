"""Values of Avro with a schema registry, from a topic of a real broker."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

import statekit as sk
from statekit.job.progress import Run
from tests.support.kafka_broker import KafkaBroker
from tests.support.schema_registry import Registry, schema_registry


class Order(NamedTuple):
    customer: str
    price: decimal.Decimal
    at: dt.datetime
    note: str | None = None
    key: bytes | None = None


class Refund(NamedTuple):
    customer: str


ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "customer", "type": "string"},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    ],
}
LATER = {**ORDER, "fields": [*ORDER["fields"], {"name": "note", "type": ["null", "string"]}]}
REFUND = {"type": "record", "name": "Refund", "fields": [{"name": "customer", "type": "string"}]}

AT = dt.datetime(2026, 1, 2, 3, 4, 5, 678, dt.UTC)
PRICE = decimal.Decimal("12.34")
ADA = {"customer": "ada", "price": PRICE, "at": AT}


@pytest.fixture
def registry() -> Iterator[Registry]:
    with schema_registry("ada:secret") as found:
        yield found


@sk.process(key="customer")
def echo(order: Order, seen: sk.ValueState[int]) -> Iterator[Order]:
    yield order


@sk.process(key="customer")
def echo_both(record: Order | Refund, seen: sk.ValueState[int]) -> Iterator[Order | Refund]:
    yield record


def run(kafka: KafkaBroker, topic: str, registry: Registry, **options: Any) -> Run:
    source = sk.sources.kafka(kafka.servers, topic, value="avro", registry=registry.url, **options)
    job = sk.Job("avro")
    read = job.source("orders", Order, source, on_error="collect")
    read.process(echo).sink("found")
    read.errors.sink("errors")
    return job.run()


def test_records_are_read_by_the_schemas_they_were_written_with(
    kafka: KafkaBroker, topic: str, registry: Registry
) -> None:
    kafka.create_topic(topic)
    values = [registry.encoded(ORDER, ADA) for _ in range(3)]
    values.append(registry.encoded(LATER, {**ADA, "note": "gift"}))
    kafka.produce(topic, values, key=b"k")
    found: list[Any] = run(kafka, topic, registry, fields={"key": "key"})["found"]
    order = Order("ada", PRICE, AT, None, b"k")
    assert sorted(found, key=repr) == [order._replace(note="gift"), *[order] * 3]
    assert registry.requests == ["/schemas/ids/0", "/schemas/ids/1"]


def test_the_name_of_the_schema_chooses_among_several_record_types(
    kafka: KafkaBroker, topic: str, registry: Registry
) -> None:
    kafka.create_topic(topic)
    kafka.produce(
        topic, [registry.encoded(ORDER, ADA), registry.encoded(REFUND, {"customer": "bob"})]
    )
    source = sk.sources.kafka(kafka.servers, topic, value="avro", registry=registry.url)
    job = sk.Job("avro")
    read: Any = job.source("records", Order | Refund, source)  # type: ignore[arg-type]
    read.process(echo_both).sink("found")
    found: list[Any] = job.run()["found"]
    assert sorted(found, key=repr) == [Order("ada", PRICE, AT), Refund("bob")]
    other = registry.encoded({**REFUND, "name": "Other"}, {"customer": "bob"})
    kafka.produce(topic, [other])
    with pytest.raises(sk.ProcessError, match="no record type has the name of its schema, 'Other'"):
        job.run()


def test_values_that_are_no_avro_are_bad_records(
    kafka: KafkaBroker, topic: str, registry: Registry
) -> None:
    kafka.create_topic(topic)
    good = registry.encoded(ORDER, ADA)
    kafka.produce(topic, [good, b"{}", good[:-1], good + b"x", b"\0\0\0\0\7x", None])
    done = run(kafka, topic, registry)
    assert len(done["found"]) == 1
    errors: list[Any] = done["errors"]
    assert [error.offset for error in errors] == ["1", "2", "3", "4", "5"]
    reasons = [error.error for error in errors]
    assert "does not begin with a zero" in reasons[0]
    assert "1 bytes follow" in reasons[2]
    assert "has no schema 7" in reasons[3]
    assert "its value is null" in reasons[4]


def test_a_registry_that_fails_for_a_moment_is_asked_again(
    kafka: KafkaBroker, topic: str, registry: Registry
) -> None:
    kafka.create_topic(topic)
    kafka.produce(topic, [registry.encoded(ORDER, ADA)])
    registry.failures = 2
    assert len(run(kafka, topic, registry)["found"]) == 1


def test_a_registry_that_refuses_ends_the_run_without_the_password(
    kafka: KafkaBroker, topic: str, registry: Registry
) -> None:
    kafka.create_topic(topic)
    kafka.produce(topic, [registry.encoded(ORDER, ADA)])
    wrong = Registry(registry.port, "ada:hunter2")
    with pytest.raises(sk.ConnectorError, match="status 401") as refused:
        run(kafka, topic, wrong, retry_seconds=0.1)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"value": "avro"}, "registry= together"),
        ({"registry": "http://registry:8081"}, "registry= together"),
        ({"value": "avro", "registry": "registry:8081"}, "is not valid, and not shown"),
    ],
)
def test_arguments_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(sk.StateTypeError, match=message):
        sk.sources.kafka("127.0.0.1:1", "orders", **options)
