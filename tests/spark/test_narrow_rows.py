"""Jobs of narrow rows give Python workers batches that end by their number of rows alone."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import statekit as sk
from statekit.spark import epoch as epochs
from statekit.spark.frames.narrow_rows import are_narrow, set_no_byte_limit
from tests.support.spark_runs import Runs

LIMIT = "spark.sql.execution.arrow.maxBytesPerBatch"
ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"


class Place(NamedTuple):
    x: float
    y: float


class Reading(NamedTuple):
    sensor: int
    cents: decimal.Decimal
    place: Place
    at: dt.datetime
    known: bool | None


class Named(NamedTuple):
    sensor: int
    name: str


class Several(NamedTuple):
    sensor: int
    values: list[int]


def text_of(reading: Reading) -> Iterator[Named]:
    yield Named(reading.sensor, "some text")


def job_of(record: Any) -> sk.Job:
    job = sk.Job("numbers")
    job.source("readings", record).aggregate(key="sensor", number=sk.Count()).sink("out")
    return job


def test_rows_of_numbers_instants_and_structs_of_them_are_narrow() -> None:
    assert are_narrow(job_of(Reading).plan)


def test_first_records_of_each_key_are_narrow_though_combined_rows_have_lists_of_them() -> None:
    job = sk.Job("numbers")
    job.source("readings", Reading).last(on="sensor", by="at").sink("out")
    assert are_narrow(job.plan)


@pytest.mark.parametrize("record", [Named, Several])
def test_rows_with_a_text_or_a_list_are_not_narrow(record: Any) -> None:
    assert not are_narrow(job_of(record).plan)


@sk.process(key="sensor")
def counted(record: dict[str, Any], count: sk.ValueState[int]) -> Iterator[int]:
    count.update((count.get() or 0) + 1)
    yield count.get() or 0


def test_rows_of_any_columns_are_not_narrow() -> None:
    job = sk.Job("numbers")
    job.source("readings", dict).process(counted).sink("out")
    assert not are_narrow(job.plan)


def test_outputs_with_a_text_are_not_narrow() -> None:
    job = sk.Job("numbers")
    job.source("readings", Reading).flat_map(text_of).sink("out")
    assert not are_narrow(job.plan)


def test_batches_of_narrow_rows_end_by_their_number_of_rows(spark: SparkSession) -> None:
    def sizes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.record_batch({"rows": [batch.num_rows]})

    session = spark.newSession()
    session.conf.set(LIMIT, "1k")
    rows = session.range(0, 2_000, 1, 1)
    assert len(rows.mapInArrow(sizes, "rows long").collect()) > 5
    set_no_byte_limit(session)
    (one,) = session.range(0, 2_000, 1, 1).mapInArrow(sizes, "rows long").collect()
    assert one.rows == 2_000


@pytest.mark.parametrize("rows", ["0", "1000000"])
def test_the_limit_of_bytes_stays_if_there_is_none_of_rows(spark: SparkSession, rows: str) -> None:
    session = spark.newSession()
    session.conf.set(LIMIT, "1k")
    session.conf.set(ROWS, rows)
    set_no_byte_limit(session)
    assert session.conf.get(LIMIT) == "1k"


class Event(NamedTuple):
    key: int
    value: int


@pytest.mark.parametrize("calls_back", [False, True])
def test_the_limit_is_changed_in_the_session_of_the_stream_alone(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, calls_back: bool
) -> None:
    changed: list[SparkSession] = []

    def noted(session: SparkSession) -> None:
        set_no_byte_limit(session)
        changed.append(session)

    monkeypatch.setattr(epochs, "set_no_byte_limit", noted)
    job = sk.Job("numbers")
    job.source("events", Event).aggregate(key="key", sum=sk.Sum("value")).sink("out")
    before = runs.spark.conf.get(LIMIT)
    runs.feed("events", [{"key": number % 7, "value": number} for number in range(100)])
    events = runs.stream("events", "key long, value long")
    sink = sk.sinks.callback(lambda df, _: df.collect()) if calls_back else sk.sinks.writer("noop")
    runs.finish(job, {"events": events}, outputs={"out": sink})
    limits = [session.conf.get(LIMIT) for session in changed]
    assert limits == ([] if calls_back else ["2147483647"])
    assert runs.spark.conf.get(LIMIT) == before
