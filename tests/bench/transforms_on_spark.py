"""What stateless functions and several outputs cost on Spark, beside one function that does it all.

All jobs run as streaming queries that stay open; files are fed to them in turn.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import statekit as sk
from tests.bench.on_spark import Engine, in_turn
from tests.bench.report import STATEKIT_DURABLE, Row, faster
from tests.bench.workload import Count, Event, events, running_count

PER_BATCH, WARM, ROUNDS = 100_000, 5, 15


class Large(NamedTuple):
    key: int
    total: int


class Found(NamedTuple):
    key: int
    events: int
    total: int
    is_large: bool


def is_wanted(event: Event) -> bool:
    return event.value >= 100


def doubled(event: Event) -> Event:
    return Event(event.key, 2 * event.value)


@sk.process(key="key")
def all_in_one(event: Event, held: sk.ValueState[tuple[int, int]]) -> Iterator[Count]:
    if not is_wanted(event):
        return
    event = doubled(event)
    events, total = held.get() or (0, 0)
    events, total = events + 1, total + event.value
    held.update((events, total))
    yield Count(event.key, events, total)


@sk.process(key="key")
def two_types(event: Event, held: sk.ValueState[tuple[int, int]]) -> Iterator[Count | Large]:
    events, total = held.get() or (0, 0)
    events, total = events + 1, total + event.value
    held.update((events, total))
    yield Count(event.key, events, total)
    if event.value >= 900:
        yield Large(event.key, total)


@sk.process(key="key")
def one_type(event: Event, held: sk.ValueState[tuple[int, int]]) -> Iterator[Found]:
    events, total = held.get() or (0, 0)
    events, total = events + 1, total + event.value
    held.update((events, total))
    yield Found(event.key, events, total, is_large=False)
    if event.value >= 900:
        yield Found(event.key, events, total, is_large=True)


class JobEngine(Engine):
    """Runs a job with one sink or two, which write nowhere."""

    def job(self) -> sk.Job:
        raise NotImplementedError

    def start(self, spark: SparkSession, df: DataFrame) -> StreamingQuery:
        return self.started_job(self.job(), spark, {"events": df})


class Separate(JobEngine):
    name = "filter, map and a process function"

    def job(self) -> sk.Job:
        job = sk.Job("bench")
        source = job.source("events", Event).filter(is_wanted).map(doubled)
        source.process(running_count).sink("out")
        return job


class Together(JobEngine):
    name = "one function"

    def job(self) -> sk.Job:
        job = sk.Job("bench")
        job.source("events", Event).process(all_in_one).sink("out")
        return job


class TwoTypes(JobEngine):
    name = "two outputs"

    def job(self) -> sk.Job:
        job = sk.Job("bench")
        counted = job.source("events", Event).process(two_types)
        counted.of(Count).sink("counts")
        counted.of(Large).sink("large")
        return job


class OneType(JobEngine):
    """What has to be written by hand for the same two outputs."""

    name = "one output, of which each sink writes its part"
    parts: ClassVar = {
        "counts": ("not is_large", ["key", "events", "total"]),
        "large": ("is_large", ["key", "total"]),
    }

    def job(self) -> sk.Job:
        job = sk.Job("bench")
        counted = job.source("events", Event).process(one_type)
        counted.sink("counts").sink("large")
        return job

    def output(self, name: str) -> Any:
        rows, columns = self.parts[name]

        def write(df: DataFrame, epoch: int) -> None:
            df.where(rows).select(*columns).write.format(self.writes).mode("append").save()

        return write


def transforms() -> list[Row]:
    """Stateless functions, and several outputs, beside one function."""
    return [_row(Separate, Together), _row(TwoTypes, OneType)]


def _row(ours: type[JobEngine], theirs: type[JobEngine]) -> Row:
    tables: Iterator[pa.Table] = (events(PER_BATCH, seed=n) for n in range(WARM + ROUNDS))
    taken: list[Any] = in_turn((ours, theirs), tables, WARM)
    arms = [
        of.arm(engine.name, STATEKIT_DURABLE, PER_BATCH)
        for engine, of in zip((ours, theirs), taken, strict=True)
    ]
    title = f"{ours.name} against {theirs.name}, {PER_BATCH:,} events per batch on Spark"
    return Row(title, faster(*arms), "at least 0.95", tuple(arms))
