"""The broker of the tests, and what tests of sources and sinks expect of it."""

from __future__ import annotations

import pytest

from tests.support.kafka_broker import KafkaBroker
from tests.support.waiting import until


def test_records_are_read_in_the_order_of_each_partition(kafka: KafkaBroker, topic: str) -> None:
    kafka.create_topic(topic, partitions=2)
    kafka.produce(topic, ["a", "b"], partition=1, key="k", headers={"h": b"\xff"})
    kafka.produce(topic, ["c", None])
    assert kafka.values(topic) == [b"c", None, b"a", b"b"]
    assert kafka.records(topic)[2] == (1, 0, b"k", b"a", (("h", b"\xff"),))
    assert kafka.end_offsets(topic) == [2, 2]


def test_a_suspended_broker_continues(kafka: KafkaBroker, topic: str) -> None:
    kafka.create_topic(topic)
    with kafka.suspended():
        assert not kafka.answers()
    until(kafka.answers)
    kafka.produce(topic, ["a"])
    assert kafka.values(topic) == [b"a"]


@pytest.mark.slow
def test_records_survive_kills_of_a_broker_with_storage(
    killable_kafka: KafkaBroker, topic: str
) -> None:
    killable_kafka.create_topic(topic, partitions=3)
    for number in range(3):
        killable_kafka.produce(topic, [str(number)], partition=number)
        killable_kafka.kill()
        killable_kafka.start()
    assert killable_kafka.values(topic) == [b"0", b"1", b"2"]
