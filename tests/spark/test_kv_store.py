"""The key-value store on Spark: the answers of one process, whatever is chained, merged and cut."""

from __future__ import annotations

import datetime as dt
import random
from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from pyspark.sql import DataFrame, Row

import statekit as sk
from tests.support.command_line import statekit
from tests.support.instants import at
from tests.support.spark_runs import Runs

PER_BATCH = 40
SCHEMAS = {
    "changes": "key string, amount long, at timestamp",
    "questions": "key string, keys array<string>, at timestamp, as_of timestamp",
}


class Change(NamedTuple):
    key: str
    amount: int
    at: dt.datetime


class Question(NamedTuple):
    key: str
    keys: list[str]
    at: dt.datetime
    as_of: dt.datetime


def added(held: int | None, change: Change) -> int | None:
    total = (held or 0) + change.amount
    return total if total % 5 else None


def one_more(change: Change) -> int:
    return change.amount + 1


def job_of(**options: Any) -> sk.Job:
    """Every operation, on two sources, which several operations read."""
    job = sk.Job("store")
    store = job.add(sk.KVStore("store", key=str, value=int, **options))
    changes, questions = job.source("changes", Change), job.source("questions", Question)
    past: dict[str, Any] = {"as_of": "as_of"} if "history" in options else {}
    answers: dict[str, sk.Stream[Any]] = {
        "got_before": store.get_with(questions, key="key", name="got_before"),
        "updated": store.update(changes, added, key="key"),
        "many": store.multi_get(questions, keys="keys"),
        "won": store.put_if_absent(changes, key="key", value="amount"),
        "set": store.compare_and_set(changes, key="key", expected="amount", value=one_more),
        "got": store.get(questions, key=lambda question: question.key.lower(), **past),
        "removed": store.remove(changes.filter(is_seventh, name="sevenths"), key="key"),
        "put": store.put(changes, key="key", value="amount"),
    }
    for name, stream in answers.items():
        stream.sink(name)
    if "event_time" in options:
        store.late(answers["many"]).sink("late_many")
        store.late(answers["put"]).sink("late_put")
    return job


def is_seventh(change: Change) -> bool:
    return change.amount % 7 == 0


def batch(number: int) -> dict[str, list[Any]]:
    draw = random.Random(number)

    def instant() -> dt.datetime:
        return at(100 * number + draw.randrange(160))

    changes = [
        Change(draw.choice("abcdef"), draw.randrange(9), instant()) for _ in range(PER_BATCH)
    ]
    questions = [
        Question(
            draw.choice("abcdefXYZ"),
            [draw.choice("abcdefxyz") for _ in range(draw.randrange(5))],
            instant(),
            at(100 * number + draw.randrange(160)),
        )
        for _ in range(PER_BATCH - 2)
    ]
    return {"changes": changes, "questions": [*questions, *questions[:2]]}


def plain(value: Any) -> Any:
    """A value without its class: rows of Spark and records of Python alike."""
    if isinstance(value, tuple | list):
        return tuple(map(plain, value))
    if isinstance(value, dt.datetime):
        return value.astimezone(dt.UTC) if value.tzinfo else value.replace(tzinfo=dt.UTC)
    return value


Rows = dict[str, list[str]]


def shown(rows: list[Any]) -> list[str]:
    return sorted(map(repr, map(plain, rows)))


BATCHES = 2


def on_spark(runs: Runs, made: Callable[[], sk.Job], parallelisms: tuple[int, ...]) -> Rows:
    """The rows of each sink, of a run per parallelism, with one batch each."""
    rows: dict[tuple[str, int], list[Row]] = defaultdict(list)

    def collect(name: str) -> Callable[[DataFrame, int], None]:
        def sink(df: DataFrame, epoch: int) -> None:
            rows[name, epoch] = df.collect()

        return sink

    for number, parallelism in enumerate(parallelisms):
        job = made()
        for source, records in batch(number).items():
            runs.feed(source, [record._asdict() for record in records])
        streams = {name: runs.stream(name, schema) for name, schema in SCHEMAS.items()}
        outputs = {sink.name: collect(sink.name) for sink in job.sinks}
        runs.finish(job, streams, outputs=outputs, parallelism=parallelism, drain=False)
    found: dict[str, list[Any]] = {sink.name: [] for sink in made().sinks}
    for (name, _), some in rows.items():
        found[name] += some
    return {name: shown(some) for name, some in found.items()}


def in_process(made: Callable[[], sk.Job], batches: int) -> Rows:
    given: dict[str, list[Any]] = {"changes": [], "questions": []}
    for number in range(batches):
        for source, records in batch(number).items():
            given[source] += records
    done = made().run(given, epoch_size=PER_BATCH, drain=False)
    return {sink.name: shown(done[sink.name]) for sink in made().sinks}


@pytest.mark.soak
@pytest.mark.parametrize(
    "options",
    [{}, {"event_time": "at", "lateness": "20 seconds", "history": "1 minute"}],
    ids=["eager", "ordered, with a history"],
)
def test_answers_are_those_of_one_process(runs: Runs, options: dict[str, Any]) -> None:
    found = on_spark(runs, lambda: job_of(**options), (2, 3))
    assert found == in_process(lambda: job_of(**options), BATCHES)
    assert all(found.values()), "every operation answers, and every late stream has records"
    held = runs.state("store", "value")
    key = min(held)
    shown_value = statekit("get", runs.checkpoint, "store", "value", key).stdout
    assert str(held[key]) in shown_value
    assert "value" in statekit("inspect", runs.checkpoint, "--operator", "store").stdout


class Cell(NamedTuple):
    room: str
    floor: int
    second: int
    until: int
    degrees: float


def rooms() -> sk.Job:
    job = sk.Job("rooms")
    store = job.add(sk.KVStore("store", key=tuple[str, int], sort=int, value=float))
    cells = job.source("cells", Cell)
    store.put(cells, key=("room", "floor"), sort="second", value="degrees")
    store.scan(
        cells, key=("room", "floor"), start="second", end="until", reverse=True, limit=3
    ).sink("entries")
    store.get(cells, key=("room", "floor"), sort="until").sink("got")
    return job


def test_scans_are_those_of_one_process(runs: Runs) -> None:
    draw = random.Random(1)
    cells = []
    for _ in range(60):
        second = draw.randrange(20)
        room, floor = draw.choice("ab"), draw.randrange(2)
        cells.append(Cell(room, floor, second, second + draw.randrange(10), draw.random()))
    rows: dict[str, list[Row]] = {}

    def collect(name: str) -> Callable[[DataFrame, int], None]:
        return lambda df, epoch: rows.update({name: df.collect()})

    frame = runs.spark.createDataFrame(
        cells, "room string, floor int, second long, until long, degrees double"
    ).coalesce(1)
    outputs = {name: collect(name) for name in ("entries", "got")}
    runs.finish(rooms(), {"cells": frame}, outputs=outputs, parallelism=2)
    done = rooms().run({"cells": cells}, epoch_size=60)
    assert {name: shown(found) for name, found in rows.items()} == {
        name: shown(done[name]) for name in ("entries", "got")
    }
