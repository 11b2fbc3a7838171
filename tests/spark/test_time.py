"""Event time, late records, timers and idle epochs as Spark runs them."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import time
from collections.abc import Callable, Iterator
from typing import Annotated, Any, NamedTuple

import pydantic
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import statekit as sk
from statekit.checkpoint.repository import Repository
from statekit.job.progress import RunningJob
from tests.support.effort import SOAK
from tests.support.instants import at
from tests.support.spark_runs import ONCE, Runs, collector, pieces
from tests.support.timeouts import PATIENCE_S

SCHEMA = "key string, at timestamp, value bigint"


class Event(NamedTuple):
    key: str
    at: dt.datetime
    value: int


class Closed(NamedTuple):
    key: str
    at: dt.datetime
    total: int


@sk.process(key="key", event_time="at", lateness="20 seconds")
def totals(event: Event, ctx: sk.Context, total: sk.ValueState[int]) -> Iterator[Closed]:
    """Closes a key ten seconds after its last record."""
    total.update((total.get() or 0) + event.value)
    ctx.timers.replace(event.at + dt.timedelta(seconds=10))
    yield from ()


@totals.on_timer
def close(timer: sk.Timer, ctx: sk.Context[str], total: sk.ValueState[int]) -> Iterator[Closed]:
    yield Closed(ctx.key, timer.at, total.get() or 0)
    total.clear()


@sk.process(key="total", event_time="at")
def equals(closed: Closed, ctx: sk.Context, keys: sk.ListState[str]) -> Iterator[tuple[int, str]]:
    """Gathers keys of the same total, and tells them when the watermark has passed them."""
    keys.append(closed.key)
    ctx.timers.set(closed.at)
    yield from ()


@equals.on_timer
def report(
    timer: sk.Timer, ctx: sk.Context[int], keys: sk.ListState[str]
) -> Iterator[tuple[int, str]]:
    if keys:
        yield ctx.key, " ".join(sorted(keys))
        keys.clear()


def timed_job() -> sk.Job:
    job = sk.Job("timed")
    closed = job.source("events", Event).process(totals)
    closed.sink("closed")
    closed.late.sink("late")
    closed.process(equals).sink("equal")
    return job


GIVEN = [
    Event(key, at(seconds), value)
    for seconds, key, value in [
        (100, "a", 1),
        (105, "b", 2),
        (90, "c", 3),
        (150, "a", 4),
        (126, "b", 1),
        (119, "d", 9),
        (200, "e", 5),
        (180, "b", 7),
        (131, "f", 8),
        (300, "a", 6),
        (279, "g", 8),
        (281, "c", 2),
    ]
]


def rows(records: list[Event]) -> list[dict[str, Any]]:
    return [record._asdict() for record in records]


def outputs_of(runs: Runs) -> dict[str, sk.sinks.Files]:
    return {name: sk.sinks.parquet(runs.home / name) for name in ("closed", "late", "equal")}


def found_in(runs: Runs) -> dict[str, list[tuple[Any, ...]]]:
    return {
        name: sorted(tuple(row.values()) for row in runs.parquet(name))
        for name in ("closed", "late", "equal")
    }


def expected(*, size: int, drain: bool) -> dict[str, list[tuple[Any, ...]]]:
    """The same in one process, without Spark."""
    run = timed_job().run({"events": GIVEN}, epoch_size=size, drain=drain)
    return {name: sorted(map(tuple, run.outputs[name])) for name in ("closed", "late", "equal")}


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"] if SOAK else ["America/New_York"])
def test_a_stream_closes_windows_behind_its_watermark_and_drains_at_its_end(
    runs: Runs, spark: SparkSession, zone: str
) -> None:
    """The session's time zone, and its days of 23 and 25 hours, play no part."""
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        for piece in pieces(GIVEN, 3):
            runs.feed("events", rows(list(piece)))
        inputs = {"events": runs.stream("events", SCHEMA)}
        query = runs.finish(timed_job(), inputs, outputs=outputs_of(runs), parallelism=3)
        assert found_in(runs) == expected(size=3, drain=False)
        last = query.last_progress
        assert last is not None
        assert last.watermarks == {"totals": at(180), "equals": at(130)}
        assert (last.late, last.state_rows["totals._timers"]) == (0, 5)

        query = runs.finish(timed_job(), inputs, outputs=outputs_of(runs), drain=True)
        assert found_in(runs) == expected(size=3, drain=True)
        end = dt.datetime.max.replace(tzinfo=dt.UTC)
        assert query.last_progress is not None
        assert query.last_progress.watermarks == {"totals": end, "equals": end}
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")

    runs.feed("events", rows(GIVEN[:1]))
    with pytest.raises(sk.RestoreError, match="was drained in epoch"):
        runs.finish(timed_job(), inputs, outputs=outputs_of(runs))


def test_static_frames_end_with_all_timers_fired(runs: Runs, spark: SparkSession) -> None:
    df = spark.createDataFrame([tuple(event) for event in GIVEN], SCHEMA)
    runs.finish(timed_job(), {"events": df}, outputs=outputs_of(runs), parallelism=2)
    assert found_in(runs) == expected(size=100, drain=True)
    with pytest.raises(sk.RestoreError, match="was drained"):
        runs.finish(timed_job(), {"events": df}, outputs=outputs_of(runs))


class Corrected(pydantic.BaseModel):
    """An event whose clock is wrong by as many seconds as it says."""

    key: str
    at: dt.datetime
    value: int

    @pydantic.model_validator(mode="before")
    @classmethod
    def correct(cls, given: dict[str, Any]) -> dict[str, Any]:
        return {**given, "at": given["at"] + dt.timedelta(seconds=given["value"])}


@dataclasses.dataclass
class Corrects:
    key: str
    at: dt.datetime
    value: int

    def __post_init__(self) -> None:
        self.at += dt.timedelta(seconds=self.value)


@pytest.mark.parametrize("record_type", [Corrected, Corrects])
def test_a_record_that_changes_its_event_time_is_either_handled_or_late(
    runs: Runs, record_type: Any
) -> None:
    """Its own event time says which it is, and not the one in the column."""

    def heard(event: Any, ctx: sk.Context) -> Iterator[tuple[str, float]]:
        yield event.key, ctx.event_time.timestamp()

    heard.__annotations__["event"] = record_type
    job = sk.Job("corrected")
    stream = job.source("events", record_type).process(
        sk.process(key="key", event_time="at")(heard)
    )
    stream.sink("heard")
    stream.late.sink("late")
    runs.feed("events", rows([Event("first", at(90), 10)]))
    runs.feed("events", rows([Event("late by itself", at(105), -10), Event("at", at(101), -1)]))
    runs.feed("events", rows([Event("in time by itself", at(95), 10), Event("on", at(101), 0)]))
    outputs = {name: sk.sinks.parquet(runs.home / name) for name in ("heard", "late")}
    runs.finish(job, {"events": runs.stream("events", SCHEMA)}, outputs=outputs, parallelism=2)
    assert sorted(tuple(row.values()) for row in runs.parquet("heard")) == [
        ("first", 100),
        ("in time by itself", 105),
        ("on", 101),
    ]
    late = sorted(tuple(row.values()) for row in runs.parquet("late"))
    assert late == [("at", at(101), -1), ("late by itself", at(105), -10)], "as they came in"


def test_a_chain_into_one_sink_drains_too(runs: Runs, spark: SparkSession) -> None:
    """One sink at the end of the chain: everything runs in its action."""
    job = sk.Job("chain")
    job.source("events", Event).process(totals).process(equals).sink("equal")
    df = spark.createDataFrame([tuple(event) for event in GIVEN], SCHEMA)
    out = {"equal": sk.sinks.parquet(runs.home / "equal")}
    runs.finish(job, {"events": df}, outputs=out, parallelism=2)
    found = sorted(tuple(row.values()) for row in runs.parquet("equal"))
    assert found == expected(size=100, drain=True)["equal"]


@sk.process(key="key", event_time="at", lateness="300 seconds", ordered=True)
def diary(event: Event, ctx: sk.Context, written: sk.ValueState[str]) -> Iterator[tuple[str, str]]:
    """Tells all that a key has seen, so any other order shows."""
    written.update(f"{written.get() or ''} {event.at.timestamp():g}={event.value}")
    ctx.timers.set(event.at + dt.timedelta(seconds=event.value))
    yield event.key, written.get() or ""


@diary.on_timer
def turn(
    timer: sk.Timer, ctx: sk.Context[str], written: sk.ValueState[str]
) -> Iterator[tuple[str, str]]:
    written.update(f"{written.get() or ''} !{timer.at.timestamp():g}")
    yield ctx.key, written.get() or ""


@pytest.mark.parametrize(("size", "parallelism"), [(12, 1), (5, 3), (2, 2)])
def test_ordered_results_are_the_same_for_every_arrival(
    runs: Runs, size: int, parallelism: int
) -> None:
    job = sk.Job("diary")
    job.source("events", Event).process(diary).sink("out")
    for piece in pieces(GIVEN[::-1] if size == 5 else GIVEN, size):
        runs.feed("events", rows(list(piece)))
    out = {"out": sk.sinks.parquet(runs.home / "out")}
    inputs = {"events": runs.stream("events", SCHEMA)}
    runs.finish(job, inputs, outputs=out, parallelism=parallelism, drain=True)
    found = sorted(tuple(row.values()) for row in runs.parquet("out"))
    assert found == sorted(job.run({"events": sorted(GIVEN, key=lambda e: e.at)}).outputs["out"])


# ---------------------------------------------------------------------------------- idle epochs


class Ping(NamedTuple):
    key: str


@sk.process(key="key")
def watched(ping: Ping, ctx: sk.Context, pings: sk.ValueState[int]) -> Iterator[str]:
    pings.update((pings.get() or 0) + 1)
    ctx.timers.replace(ctx.processing_time + dt.timedelta(seconds=1), clock="processing")
    yield f"{ping.key} is here"


@watched.on_timer
def missed(timer: sk.Timer, ctx: sk.Context, pings: sk.ValueState[int]) -> Iterator[str]:
    assert ctx.processing_time >= timer.at
    yield f"{ctx.key} is gone after {pings.get()}"


def watching_job() -> sk.Job:
    job = sk.Job("watching")
    job.source("pings", Ping).process(watched).sink("out")
    return job


def wait_until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def test_heartbeats_fire_processing_time_timers_while_no_input_comes(runs: Runs) -> None:
    found, sink = collector()
    inputs = {"pings": runs.stream("pings", "key string")}
    runs.feed("pings", [{"key": "a"}, {"key": "b"}])
    query = runs.start(watching_job(), inputs, outputs={"out": sink}, heartbeat="200 ms")
    try:
        wait_until(lambda: len(found) == 4)
        runs.feed("pings", [{"key": "a"}])
        wait_until(lambda: len(found) == 6)
    finally:
        query.stop()
    assert sorted(row.value for _, row in found[:4]) == [
        "a is gone after 1",
        "a is here",
        "b is gone after 1",
        "b is here",
    ]
    assert [row.value for _, row in found[4:]] == ["a is here", "a is gone after 2"]
    assert not query.is_active
    times = [progress.processing_time for progress in query.progress]
    assert times == sorted(times)
    assert len(times) > 4, "epochs without input"
    assert [p.batch for p in query.progress if p.records_in] == [0, 1]

    # A later run without heartbeats goes on from Spark's offsets, which knew nothing of them.
    runs.feed("pings", [{"key": "c"}])
    runs.finish(watching_job(), inputs, outputs={"out": sink})
    assert [row.value for _, row in found[6:]] == ["c is here"]


def test_heartbeats_do_not_start_the_first_epoch_without_records(runs: Runs) -> None:
    found, sink = collector()
    inputs = {"pings": runs.stream("pings", "key string")}
    query = runs.start(watching_job(), inputs, outputs={"out": sink}, heartbeat="50 ms")
    try:
        time.sleep(1.0)
        assert runs.epochs() == []
        runs.feed("pings", [{"key": "a"}])
        wait_until(lambda: len(found) == 2)
    finally:
        query.stop()
    assert [(epoch, row.value) for epoch, row in found[:1]] == [(0, "a is here")]


def test_a_heartbeat_never_takes_the_epoch_of_a_batch_that_failed(runs: Runs) -> None:
    """The sink saw the batch under a number, and sees it again under no other."""
    told: list[tuple[int, list[str]]] = []

    def sink(df: DataFrame, epoch: int) -> None:
        found = [row.value for row in df.collect()]
        if not found:
            return
        told.append((epoch, found))
        if len(told) == 1:
            time.sleep(1.0)  # heartbeats are due by now, and wait for their turn
            raise OSError("the sink is out of order")

    runs.feed("pings", [{"key": "a"}])
    inputs = {"pings": runs.stream("pings", "key string")}
    query = runs.start(watching_job(), inputs, outputs={"out": sink}, heartbeat="100 ms")
    with pytest.raises(sk.ProcessError, match="OSError: the sink is out of order"):
        query.await_termination(PATIENCE_S)
    query.stop()
    failed = told[0][0]
    assert runs.epochs() == list(range(failed)), "heartbeats came before it, and none after"
    query = runs.start(watching_job(), inputs, outputs={"out": sink}, heartbeat="100 ms")
    try:
        wait_until(lambda: len(told) == 3)
    finally:
        query.stop()
    assert told[:2] == [(failed, ["a is here"]), (failed, ["a is here"])]
    assert told[2][1] == ["a is gone after 1"]


@pytest.mark.parametrize("through", ["statekit", "spark"])
def test_a_stream_that_is_stopped_does_not_drain(runs: Runs, through: str) -> None:
    def slow(df: DataFrame, epoch: int) -> None:
        df.collect()
        time.sleep(0.5)

    for piece in pieces(GIVEN, 1):
        runs.feed("events", rows(list(piece)))
    job = sk.Job("stopped")
    job.source("events", Event).process(totals).sink("closed")
    inputs = {"events": runs.stream("events", SCHEMA)}
    outputs = {"closed": sk.sinks.parquet(runs.home / "closed")}
    query = runs.start(job, inputs, outputs={"closed": slow}, trigger=ONCE, drain=True)
    wait_until(lambda: query.epoch is not None)
    if through == "statekit":
        query.stop()
    else:
        (running,) = runs.spark.streams.active
        running.stop()
        with contextlib.suppress(Exception):  # of the micro-batch that was abandoned
            query.await_termination(PATIENCE_S)
    assert not query.is_active
    assert len(runs.epochs()) < len(GIVEN)
    assert query.last_progress is not None
    assert query.last_progress.batch is not None, "no epoch but those of micro-batches"
    runs.finish(job, inputs, outputs=outputs, drain=True)
    assert len(runs.epochs()) == len(GIVEN) + 1, "all of the input, and then the drain"


def test_a_heartbeat_that_fails_ends_the_query_with_its_error(runs: Runs) -> None:
    @sk.process(key="key")
    def ticking(ping: Ping, ctx: sk.Context) -> Iterator[str]:
        ctx.timers.set(ctx.processing_time + dt.timedelta(seconds=1), clock="processing")
        yield "set"

    @ticking.on_timer
    def explode(timer: sk.Timer) -> Iterator[str]:
        raise ValueError("boom")

    job = sk.Job("exploding")
    job.source("pings", Ping).process(ticking).sink("out")
    runs.feed("pings", [{"key": "a"}])
    _, sink = collector()
    inputs = {"pings": runs.stream("pings", "key string")}
    query = runs.start(job, inputs, outputs={"out": sink}, heartbeat="200 ms")
    with pytest.raises(sk.ProcessError, match=r"'ticking' failed at key 'a'.*boom.*the timer was"):
        query.await_termination(PATIENCE_S)
    assert not query.is_active


def test_processing_time_comes_from_the_given_clock(runs: Runs, spark: SparkSession) -> None:
    @sk.process(key="key")
    def when(ping: Ping, ctx: sk.Context) -> Iterator[dt.datetime]:
        yield ctx.processing_time

    job = sk.Job("when")
    job.source("pings", Ping).process(when).sink("out")
    df = spark.createDataFrame([(f"k{n}",) for n in range(20)], "key string")
    out = {"out": sk.sinks.parquet(runs.home / "out")}
    runs.finish(job, {"pings": df}, outputs=out, parallelism=4, clock=lambda: 5_000_000)
    assert {row["value"] for row in runs.parquet("out")} == {at(5)}


def test_state_of_an_idle_job_expires_and_is_removed_by_heartbeats(runs: Runs) -> None:
    @sk.process(key="key")
    def remember(
        ping: Ping, seen: Annotated[sk.ValueState[int], sk.TTL("1 hour")]
    ) -> Iterator[str]:
        seen.update((seen.get() or 0) + 1)
        yield f"{ping.key} {seen.get()}"

    job = sk.Job("remembering")
    job.source("pings", Ping).process(remember).sink("out")
    now = [0]
    found, sink = collector()
    inputs = {"pings": runs.stream("pings", "key string")}
    runs.feed("pings", [{"key": f"k{number}"} for number in range(20)])
    query = runs.start(job, inputs, outputs={"out": sink}, heartbeat="100 ms", clock=lambda: now[0])
    try:
        wait_until(lambda: len(found) == 20)
        wait_until(lambda: rows_held(query) == 20)
        now[0] = 2 * 3600 * 1_000_000
        wait_until(lambda: rows_held(query) == 0)
        runs.feed("pings", [{"key": "k3"}])
        wait_until(lambda: len(found) == 21)
    finally:
        query.stop()
    assert found[20][1].value == "k3 1", "it begins anew"


def remembering(ttl: sk.TTL | None) -> sk.Job:
    """Counts pings, with a TTL or without."""

    def remember(ping: Ping, seen: Annotated[sk.ValueState[int], ttl]) -> Iterator[str]:
        seen.update((seen.get() or 0) + 1)
        yield f"{ping.key} {seen.get()}"

    job = sk.Job("remembering")
    job.source("pings", Ping).process(sk.process(key="key")(remember)).sink("out")
    return job


@pytest.mark.slow
def test_a_ttl_that_is_turned_on_removes_rows_that_were_there_from_idle_shards_too(
    runs: Runs,
) -> None:
    stream = runs.stream("pings", "key string")
    runs.feed("pings", [{"key": f"k{number}"} for number in range(20)])
    now = [0]

    def run(ttl: sk.TTL | None, minutes: int, key: str) -> list[str]:
        now[0] = minutes * 60_000_000
        if key:
            runs.feed("pings", [{"key": key}])
        found, sink = collector()
        runs.finish(
            remembering(ttl),
            {"pings": stream},
            outputs={"out": sink},
            parallelism=4,
            clock=lambda: now[0],
        )
        return [row.value for _, row in found]

    hour = sk.TTL("1 hour")
    assert len(run(None, 0, "")) == 20
    assert run(hour, 600, "k3") == ["k3 2"]
    assert run(hour, 659, "k4") == ["k4 2"]
    assert run(hour, 660, "k5") == ["k5 1"], "one hour after the TTL began"
    run(hour, 661, "k5")
    assert set(runs.state("remember", "seen")) == {"k4", "k5"}
    last = Repository(runs.checkpoint).manifest(runs.epochs()[-1])
    assert last.operators["remember"].rows == {"seen": 2}, "k4 and k5"


def rows_held(query: RunningJob) -> int | None:
    last = query.last_progress
    return None if last is None else last.state_rows.get("remember.seen", 0)


# -------------------------------------------------------------------------------------- refusals


def _start(runs: Runs, df: DataFrame, **options: Any) -> None:
    runs.finish(timed_job(), {"events": df}, outputs=outputs_of(runs), **options)


def test_an_event_time_that_is_no_instant_is_refused_before_anything_runs(
    runs: Runs, spark: SparkSession
) -> None:
    df = spark.createDataFrame([tuple(GIVEN[0])], SCHEMA)
    for wrong in (
        df.withColumn("at", F.col("at").cast("timestamp_ntz")),
        df.withColumn("at", F.lit("2026-01-01")),
        df.drop("at"),
    ):
        with pytest.raises(sk.ProcessError, match=r"\bat\b"):
            _start(runs, wrong)
    assert runs.epochs() == []


def test_consumers_of_late_records_are_checked_before_anything_runs(
    runs: Runs, spark: SparkSession
) -> None:
    @sk.process(key="key", event_time="at")
    def first(record: dict[str, Any]) -> None: ...

    @sk.process(key="key", event_time="at")
    def again(record: dict[str, Any]) -> None: ...

    @sk.process(key="value", event_time="at")
    def by_value(record: dict[str, Any]) -> None: ...

    @sk.process(key="key", event_time="seen_at")
    def by_seen(record: dict[str, Any]) -> None: ...

    df = spark.createDataFrame([("a", at(1), 1.5)], "key string, at timestamp, value double")
    for last, problem in (
        (by_value, "operator 'by_value': key column 'value' is double"),
        (by_seen, "operator 'by_seen': the input has no column 'seen_at'"),
    ):
        job = sk.Job("late")
        job.source("events", dict).process(first).late.process(again).late.process(last)
        with pytest.raises(sk.ProcessError, match=problem) as caught:
            runs.start(job, {"events": df})
        assert "while looking at the input 'events'" in caught.value.__notes__
        assert not runs.checkpoint.exists()


def test_a_null_event_time_fails_the_epoch_with_the_record(runs: Runs, spark: SparkSession) -> None:
    @sk.process(key="key", event_time="at")
    def plain(record: dict[str, Any]) -> Iterator[str]:
        yield record["key"]

    job = sk.Job("nulls")
    job.source("events", dict).process(plain).sink("out")
    df = spark.createDataFrame([("a", None, 1)], SCHEMA)
    out = {"out": sk.sinks.parquet(runs.home / "out")}
    with pytest.raises(sk.ProcessError, match=r"event time 'at' of \{'key': 'a'.* is no instant"):
        runs.finish(job, {"events": df}, outputs=out)
    assert runs.epochs() == []


def test_options_that_cannot_be_are_refused(runs: Runs, spark: SparkSession) -> None:
    static = spark.createDataFrame([tuple(GIVEN[0])], SCHEMA)
    stream = runs.stream("events", SCHEMA)
    for df, options, problem in (
        (static, {"heartbeat": "1 second"}, "these frames are static"),
        (stream, {"heartbeat": "1 second", "trigger": ONCE}, "this trigger lets it end"),
        (stream, {"heartbeat": "often"}, "heartbeat='often'"),
        (stream, {"heartbeat": "0 seconds"}, "heartbeat='0 seconds'"),
        (stream, {"drain": True, "trigger": "1 second"}, "for streams that end"),
        (stream, {"drain": True, "trigger": {"once": True}}, "with their input"),
    ):
        with pytest.raises(sk.StateTypeError, match=problem):
            runs.start(timed_job(), {"events": df}, outputs=outputs_of(runs), **options)
