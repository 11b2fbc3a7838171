"""Topics of a real broker as the input of jobs in this process."""

from __future__ import annotations

import datetime as dt
import json
import pickle
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import statekit as sk
from statekit.checkpoint.repository import Repository
from statekit.job.progress import Run
from statekit.sources import BadRecord, KafkaSource
from tests.support.kafka_broker import KafkaBroker
from tests.support.sinks import ORDERS, Order, Spent, spending, sums
from tests.support.waiting import until


def source(kafka: KafkaBroker, topics: Any, **options: Any) -> KafkaSource:
    return sk.sources.kafka(kafka.servers, topics, **options)


def put(kafka: KafkaBroker, topic: str, orders: Iterable[Order], partition: int = 0) -> None:
    kafka.produce(topic, [json.dumps(each._asdict()) for each in orders], partition=partition)


def job_of(source: Any, **options: Any) -> sk.Job:
    job = sk.Job("shop")
    job.source("orders", Order, source, **options).process(spending).sink("spent")
    return job


def spent(*runs: Run) -> list[Spent]:
    found: list[Any] = [record for run in runs for record in run["spent"]]
    return sorted(found)


def offsets(root: Path) -> Any:
    repository = Repository(root)
    latest = repository.latest_epoch()
    assert latest is not None
    return repository.manifest(latest).offsets["orders"]


def test_a_run_reads_all_partitions_and_the_next_one_continues(
    root: Path, kafka: KafkaBroker, topic: str
) -> None:
    kafka.create_topic(topic, 2)
    put(kafka, topic, ORDERS[:5])
    put(kafka, topic, ORDERS[5:7], partition=1)
    first = job_of(source(kafka, topic)).run(checkpoint=root)
    assert offsets(root) == {f"{topic}/0": 5, f"{topic}/1": 2}
    put(kafka, topic, ORDERS[7:], partition=1)
    second = job_of(source(kafka, topic)).run(checkpoint=root)
    assert spent(first, second) == sums(ORDERS)
    third = job_of(source(kafka, topic)).run(checkpoint=root)
    assert third.epochs == 0, "there was nothing to read"


def test_an_epoch_has_as_many_records_as_its_size(
    root: Path, kafka: KafkaBroker, topic: str
) -> None:
    kafka.create_topic(topic, 2)
    put(kafka, topic, ORDERS[:6])
    put(kafka, topic, ORDERS[6:], partition=1)
    run = job_of(source(kafka, topic)).run(checkpoint=root, epoch_size=5)
    assert run.epochs == 3
    assert spent(run) == sums(ORDERS)


def test_a_history_may_be_removed_after_it_has_ended(
    root: Path, kafka: KafkaBroker, topic: str
) -> None:
    kafka.create_topic(topic, 2)  # nothing is read of one of its partitions
    put(kafka, topic, ORDERS[3:6])
    history = sk.sources.json_lines(root.parent / "history.jsonl", static=True)
    lines = [json.dumps(each._asdict()) + "\n" for each in ORDERS[:3]]
    (root.parent / "history.jsonl").write_text("".join(lines))
    then = source(kafka, topic)
    first = job_of(None, history=history, then=then).run(checkpoint=root)
    put(kafka, topic, ORDERS[6:8])
    put(kafka, topic, ORDERS[8:], partition=1)
    second = job_of(source(kafka, topic)).run(checkpoint=root)
    assert spent(first, second) == sums(ORDERS)


class Tagged(NamedTuple):
    cents: int
    customer: str | None
    trace: bytes | None
    all: dict[str, str]
    at: dt.datetime
    topic: str
    partition: int
    offset: int


@sk.process(key="cents")
def echo(record: Tagged, seen: sk.ValueState[int]) -> Iterator[Tagged]:
    yield record


TAGS = {
    "customer": "key",
    "trace": "header:trace",
    "all": "headers",
    "at": "timestamp",
    "topic": "topic",
    "partition": "partition",
    "offset": "offset",
}


def tagged(source: KafkaSource) -> list[Any]:
    job = sk.Job("tagged")
    job.source("tagged", Tagged, source).process(echo).sink("found")
    return sorted(job.run()["found"], key=lambda record: record.cents)


def test_fields_take_what_kafka_knows_about_a_record(kafka: KafkaBroker, topic: str) -> None:
    begun = dt.datetime.now(dt.UTC) - dt.timedelta(milliseconds=1)
    kafka.create_topic(topic, 2)
    headers = {"trace": b"1", "other": "é".encode()}
    kafka.produce(topic, ['{"cents":1}'], partition=1, key="ada", headers=headers)
    kafka.produce(topic, ['{"cents":2}', '{"cents":3}'])
    first, second, third = tagged(source(kafka, topic, fields=TAGS))
    assert first[1:4] == ("ada", b"1", {"trace": "1", "other": "é"})
    assert second[1:4] == (None, None, {})
    assert begun <= first.at <= second.at <= dt.datetime.now(dt.UTC)
    assert [each[5:] for each in (first, second, third)] == [
        (topic, 1, 0),
        (topic, 0, 0),
        (topic, 0, 1),
    ]


def test_a_key_that_is_no_text_is_a_bad_record_where_the_field_is_text(
    kafka: KafkaBroker, topic: str
) -> None:
    kafka.create_topic(topic)
    kafka.produce(topic, ['{"cents":1}'], key=b"\xff")
    with pytest.raises(sk.ProcessError, match=r"the record at 0 of partition .* UTF8"):
        tagged(source(kafka, topic, fields=TAGS))


def test_a_field_that_the_records_lack_is_refused(kafka: KafkaBroker, topic: str) -> None:
    kafka.create_topic(topic)
    with pytest.raises(sk.StateTypeError, match=r"'header:id' of Kafka in the field 'id'"):
        tagged(source(kafka, topic, fields={"id": "header:id"}))


class Raw(NamedTuple):
    body: str
    key: bytes | None


@sk.process(key="body")
def echo_raw(record: Raw, seen: sk.ValueState[int]) -> Iterator[Raw]:
    yield record


def raw(source: KafkaSource, **options: Any) -> Run:
    job = sk.Job("raw")
    read = job.source("lines", Raw, source, **options)
    read.process(echo_raw).sink("found")
    if options.get("on_error") == "collect":
        read.errors.sink("errors")
    return job.run()


def test_values_without_a_format_are_bytes_or_text(kafka: KafkaBroker, topic: str) -> None:
    kafka.create_topic(topic)
    kafka.produce(topic, ["one", b"\xff", "two"], key=b"\x00")
    lines = source(kafka, topic, value="bytes", fields={"body": "value", "key": "key"})
    run = raw(lines, on_error="collect")
    found: list[Any] = run["found"]
    assert sorted(found) == [Raw("one", b"\x00"), Raw("two", b"\x00")]
    (error,) = run["errors"]
    assert isinstance(error, BadRecord)
    assert error[:4] == ("lines", f"{topic}/0", "1", b"\xff")


def test_a_record_that_is_no_json_is_bad_and_the_others_are_read(
    root: Path, kafka: KafkaBroker, topic: str
) -> None:
    kafka.create_topic(topic)
    put(kafka, topic, ORDERS[:5])
    kafka.produce(topic, ["{", None])
    put(kafka, topic, ORDERS[5:])
    with pytest.raises(sk.ProcessError, match=f"the record at 5 of partition '{topic}/0'"):
        job_of(source(kafka, topic)).run(checkpoint=root)
    run = job_of(source(kafka, topic), on_error="drop").run(checkpoint=root)
    assert spent(run) == sums(ORDERS)


def test_a_new_checkpoint_starts_at_the_end_if_it_is_told_to(
    root: Path, kafka: KafkaBroker, topic: str
) -> None:
    kafka.create_topic(topic)
    put(kafka, topic, ORDERS[:1])
    latest = source(kafka, topic, start="latest")
    assert job_of(latest).run(checkpoint=root).epochs == 0
    starts = latest.earliest()
    put(kafka, topic, ORDERS[1:])
    latest.open(reads_here=True)
    assert latest.latest(starts, 100, 0.0) == {f"{topic}/0": 12}
    latest.close()


def test_a_new_checkpoint_starts_at_the_first_record_of_a_time(
    kafka: KafkaBroker, topic: str
) -> None:
    kafka.create_topic(topic)
    put(kafka, topic, ORDERS[:3])
    before = time.time_ns() // 1_000_000
    until(lambda: time.time_ns() // 1_000_000 > before)
    at = dt.datetime.now(dt.UTC)
    put(kafka, topic, ORDERS[3:])
    assert spent(job_of(source(kafka, topic, start=at)).run()) == sums(ORDERS[3:])


def test_topics_are_named_or_match_an_expression(kafka: KafkaBroker, topic: str) -> None:
    for number in range(3):
        kafka.create_topic(f"{topic}-{number}")
        put(kafka, f"{topic}-{number}", ORDERS[number::3])
    every = source(kafka, re.compile(f"{topic}-[0-2]"))
    assert spent(job_of(every).run()) == sums(ORDERS)
    some = source(kafka, [f"{topic}-0", f"{topic}-1"])
    assert spent(job_of(some).run()) == sums(ORDERS[::3] + ORDERS[1::3])


def followed(
    job: sk.Job, count: int, between: Mapping[int, Callable[[], None]], **options: Any
) -> list[Spent]:
    """Follow the topics of a job until its sink has so many records.

    Parameters:
        between: what to do as soon as there are so many.
    """
    found: list[Any] = []
    stop, todo = threading.Event(), dict(between)

    def note(records: list[Any], epoch: int) -> None:
        found.extend(records)
        for many in [many for many in todo if many <= len(found)]:
            threading.Thread(target=todo.pop(many)).start()
        if len(found) >= count:
            stop.set()

    job.run(outputs={"spent": note}, follow=True, stop=stop, **options)
    return sorted(found)


def test_topics_that_are_new_are_read_from_their_first_record_while_a_job_runs(
    root: Path, kafka: KafkaBroker, topic: str
) -> None:
    kafka.create_topic(f"{topic}-0")
    put(kafka, f"{topic}-0", ORDERS[:6])

    def create() -> None:
        put(kafka, kafka.create_topic(f"{topic}-1", 2), ORDERS[6:], partition=1)

    every = source(kafka, re.compile(f"{topic}-.*"), find_new_seconds=0.05)
    found = followed(job_of(every), len(ORDERS), {6: create}, checkpoint=root)
    assert found == sums(ORDERS)
    assert offsets(root) == {f"{topic}-0/0": 6, f"{topic}-1/1": 6}
    put(kafka, f"{topic}-1", ORDERS[:1])
    assert len(spent(job_of(every).run(checkpoint=root))) == 1
    assert offsets(root) == {f"{topic}-0/0": 6, f"{topic}-1/0": 1, f"{topic}-1/1": 6}


def test_a_run_that_follows_waits_for_a_broker_that_does_not_answer(
    kafka: KafkaBroker, topic: str
) -> None:
    kafka.create_topic(topic)
    put(kafka, topic, ORDERS[:6])

    def suspend() -> None:
        with kafka.suspended():
            pass
        put(kafka, topic, ORDERS[6:])

    every = source(kafka, topic, find_new_seconds=0.05)
    assert followed(job_of(every), len(ORDERS), {6: suspend}) == sums(ORDERS)


def test_a_range_that_an_epoch_was_begun_with_is_read_again(kafka: KafkaBroker, topic: str) -> None:
    """In this process and in a task of Spark, which gets a pickled source."""
    kafka.create_topic(topic)
    put(kafka, topic, ORDERS)
    here = source(kafka, topic)
    here.open(reads_here=True)
    ends = here.latest({f"{topic}/0": 2}, 5, 0.0)
    assert ends == {f"{topic}/0": 7}
    (taken,) = here.read(f"{topic}/0", 2, 7)
    (once_more,) = here.read(f"{topic}/0", 2, 7)
    assert once_more.equals(taken)
    for reader in (here, pickle.loads(pickle.dumps(here))):
        (again,) = reader.read(f"{topic}/0", 3, 6)
        assert again.equals(taken.slice(1, 3))
    assert here.latest({f"{topic}/0": 2}, 6, 1.0) == {f"{topic}/0": 8}, "nothing was committed"
    (longer,) = here.read(f"{topic}/0", 2, 8)
    assert longer.slice(0, 5).equals(taken)
    assert here.latest({f"{topic}/0": 2}, 5, 1.0) == ends
    assert here.latest(ends, 50, 0.0) == {f"{topic}/0": 12}
    assert here.lag(ends) == 5
    here.close()


def test_the_driver_of_spark_counts_records_and_shares_a_limit_fairly(
    kafka: KafkaBroker, topic: str
) -> None:
    kafka.create_topic(topic, 3)
    for order in ORDERS[:8]:  # in batches of one record: the broker knows their ends
        put(kafka, topic, [order])
    for order in ORDERS[8:]:
        put(kafka, topic, [order], partition=1)
    driver = source(kafka, topic)
    driver.open(reads_here=False)
    starts = driver.earliest()
    assert starts == {f"{topic}/{number}": 0 for number in range(3)}
    assert driver.latest(starts, 6, 0.0) == {f"{topic}/0": 4, f"{topic}/1": 2, f"{topic}/2": 0}
    ends = driver.latest(starts, 100, 0.0)
    assert ends == {f"{topic}/0": 8, f"{topic}/1": 4, f"{topic}/2": 0}
    assert driver.latest(ends, 100, 0.01) == ends
    assert driver.lag(starts) == 12
    driver.close()


def test_records_that_were_removed_are_an_error_and_not_skipped(
    root: Path, kafka: KafkaBroker, topic: str
) -> None:
    kafka.create_topic(topic)
    put(kafka, topic, ORDERS)
    job_of(source(kafka, topic)).run(checkpoint=root)
    kafka.delete_topic(topic)
    kafka.create_topic(topic)
    put(kafka, topic, ORDERS[:1])
    again = source(kafka, topic, retry_seconds=0.5)
    message = f"partition {topic}/0 .* has no offset 12, .* from 0 to 1"
    with pytest.raises(sk.ConnectorError, match=message):
        job_of(again).run(checkpoint=root)
    with pytest.raises(sk.ConnectorError, match=message.replace("offset 12", "offset 11")):
        list(again.read(f"{topic}/0", 0, 12))
    assert offsets(root) == {f"{topic}/0": 12}


def test_a_topic_that_does_not_exist_is_an_error(kafka: KafkaBroker, topic: str) -> None:
    with pytest.raises(sk.ConnectorError, match=f"has no topic '{topic}'.* create the topic"):
        job_of(source(kafka, topic)).run()


def test_a_broker_that_does_not_answer_is_an_error_without_the_password() -> None:
    options = {"sasl.password": "hunter2", "sasl.username": "ada"}
    absent = sk.sources.kafka("127.0.0.1:1", "orders", options=options, retry_seconds=0.2)
    assert "hunter2" not in repr(absent)
    with pytest.raises(sk.ConnectorError, match=r"127\.0\.0\.1:1") as refused:
        job_of(absent).run()
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topics": []}, "give the name of a topic"),
        ({"value": "xml"}, "value='xml': choose among"),
        ({"start": "now"}, "start='now': choose among"),
        ({"start": dt.datetime(2026, 1, 1)}, "has no time zone"),
        ({"isolation": "none"}, "isolation='none': choose among"),
        ({"drop_repeats": 0}, "drop_repeats=0: give a number of offsets, from 1, or None"),
        ({"drop_repeats": True}, "drop_repeats=True: give a number of offsets"),
        ({"fields": {"at": "time"}}, "fields= names 'time'"),
        ({"options": {"group.id": "mine"}}, "must not have 'group.id'"),
        ({"options": {"isolation.level": "x"}}, "pass isolation="),
    ],
)
def test_arguments_are_checked(options: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"topics": "orders"} | options
    with pytest.raises(sk.StateTypeError, match=message):
        sk.sources.kafka("127.0.0.1:1", **given)
