"""Records of a sink in a topic, written by tasks of Spark: a replay writes what is missing."""

from __future__ import annotations

import json

import pytest

import statekit as sk
from tests.support.kafka_broker import KafkaBroker
from tests.support.spark_job import EVENT_SCHEMA, Counted, by_word, counted, counting_job, events
from tests.support.spark_runs import Runs, pieces

SIZE = 20


def _forget(runs: Runs, epoch: int) -> None:
    """As if the driver had been killed between the sink and the manifest of an epoch."""
    (runs.checkpoint / "epochs" / f"{epoch:020d}.json").unlink()
    for path in (runs.checkpoint / "spark" / "commits").glob(f"*{epoch}*"):
        path.unlink()


@pytest.mark.slow
@pytest.mark.parametrize("transactional", [False, True])
def test_a_replayed_epoch_is_in_the_topic_once_at_another_parallelism(
    runs: Runs, kafka: KafkaBroker, topic: str, transactional: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("statekit.spark.epoch._FEW_RECORDS", 0)  # a task, and a part, per shard
    given = events(seed=1, size=3 * SIZE)
    for piece in pieces(given, SIZE):
        runs.feed("events", [event._asdict() for event in piece])
    stream = runs.stream("events", EVENT_SCHEMA)
    sink = sk.sinks.kafka(
        kafka.servers, topic, key="word", partitions=2, transactional=transactional
    )
    outputs = {"counted": sink}
    runs.finish(counting_job(), {"events": stream}, outputs=outputs, parallelism=3)
    before = kafka.records(topic)
    _forget(runs, 2)
    query = runs.finish(counting_job(), {"events": stream}, outputs=outputs, parallelism=2)
    assert [progress.epoch for progress in query.progress] == [2]
    assert kafka.records(topic) == before
    emitted = [Counted(**json.loads(value or b"")) for value in kafka.values(topic)]
    assert by_word(emitted) == by_word(counted(given)[0])


@pytest.mark.slow
def test_the_driver_prints_the_outputs_of_all_tasks(
    runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    given = events(seed=2, size=SIZE)
    runs.feed("events", [event._asdict() for event in given])
    stream = runs.stream("events", EVENT_SCHEMA)
    outputs = {"counted": sk.sinks.console(limit=3)}
    runs.finish(counting_job(), {"events": stream}, outputs=outputs, parallelism=2)
    printed = capsys.readouterr().out
    assert f"counted, epoch 0: {SIZE} rows" in printed
    assert f"and {SIZE - 3} more" in printed
