"""Several inputs and broadcast input on Spark: joined, ordered, told to all shards, and killed."""

from __future__ import annotations

import datetime as dt
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pydantic
import pytest
from pyspark.sql import SparkSession

import statekit as sk
from statekit.checkpoint.repository import Repository
from statekit.maintenance.rescale.offline import rescale_offline
from statekit.spark.epoch import EpochRunner
from statekit.testing import Harness
from tests.support import spark_driver
from tests.support.billing_job import (
    SCHEMAS,
    Order,
    Payment,
    Rate,
    bill,
    billing_job,
    by_account,
    given,
)
from tests.support.instants import at
from tests.support.spark_drivers import KillableProcess
from tests.support.spark_runs import Runs, collector, pieces


class Joined(NamedTuple):
    account: int
    number: int
    cents: int


@sk.process(key="account")
def join(
    event: Order | Payment, orders: sk.ListState[int], payments: sk.ListState[int]
) -> Iterator[Joined]:
    if isinstance(event, Order):
        orders.append(event.number)
        yield from (Joined(event.account, event.number, cents) for cents in payments)
    else:
        payments.append(event.cents)
        yield from (Joined(event.account, number, event.cents) for number in orders)


def feed(runs: Runs, records: dict[str, list[Any]], size: int) -> None:
    for source, found in records.items():
        for piece in pieces(found, size):
            runs.feed(source, [record._asdict() for record in piece])


def streams(runs: Runs, *sources: str) -> dict[str, Any]:
    return {source: runs.stream(source, SCHEMAS[source]) for source in sources}


def tables(spark: SparkSession, records: dict[str, list[Any]]) -> dict[str, Any]:
    return {
        source: spark.createDataFrame(found, SCHEMAS[source]).coalesce(1)
        for source, found in records.items()
    }


def ways_taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which way the epochs to come are run."""
    ways: list[str] = []
    for name in ("_at_once", "_persisted"):
        inner = getattr(EpochRunner, name)

        def noted(self: Any, inputs: Any, *, name: str = name, inner: Any = inner) -> Any:
            ways.append(name)
            return inner(self, inputs)

        monkeypatch.setattr(EpochRunner, name, noted)
    return ways


def rows_read(query: Any) -> list[int]:
    """How many rows Spark's sources gave in each batch; those read again are counted again."""
    return [batch["numInputRows"] for batch in query.query.recentProgress if batch["numInputRows"]]


# ------------------------------------------------------------------------------------------ joins


def test_two_streams_are_joined_as_sql_joins_them(
    runs: Runs, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways = ways_taken(monkeypatch)
    job = sk.Job("shop")
    orders, payments = job.source("orders", Order), job.source("payments", Payment)
    orders.union(payments).process(join).sink("joined")
    records = {name: found for name, found in given(1, 60).items() if name != "rates"}
    feed(runs, records, 20)
    query = runs.finish(
        job,
        streams(runs, *records),
        outputs={"joined": sk.sinks.parquet(runs.home / "out")},
        parallelism=3,
    )
    for name, df in tables(spark, records).items():
        df.createOrReplaceTempView(name)
    rows = spark.sql(
        "SELECT account, number, cents FROM orders JOIN payments USING (account)"
    ).collect()
    assert sorted(tuple(row.values()) for row in runs.parquet("out")) == sorted(map(tuple, rows))
    assert set(ways) == {"_at_once"}, "one action per epoch"
    assert [told.records_in for told in query.progress] == [40, 40, 40]
    assert rows_read(query) == [40, 40, 40], "each source is read once"


@pytest.mark.parametrize("parallelism", [1, 4])
def test_order_and_broadcast_are_as_in_one_process(
    runs: Runs, spark: SparkSession, parallelism: int
) -> None:
    """In Arrow batches of three rows, so that everything is cut somewhere."""
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(name) or ""
    records = given(2, 75)
    feed(runs, records, 25)
    spark.conf.set(name, "3")
    try:
        query = runs.finish(
            billing_job(),
            streams(runs, *records),
            outputs={"bills": sk.sinks.parquet(runs.home / "out")},
            parallelism=parallelism,
        )
    finally:
        spark.conf.set(name, before)
    _check(runs, records, parallelism)
    assert rows_read(query) == [75, 75, 75], "each source is read once"


def test_broadcast_state_survives_a_change_of_parallelism(runs: Runs) -> None:
    """Each start reads one file of each input; one start rescales what nobody has run since."""
    records = given(3, 75)
    inputs = streams(runs, *records)
    for start, parallelism in zip((0, 25, 50), (2, 4, 3), strict=True):
        feed(runs, {name: found[start : start + 25] for name, found in records.items()}, 25)
        if parallelism == 4:
            rescale_offline(Repository(runs.checkpoint), 5, job=billing_job())
        runs.finish(
            billing_job(),
            inputs,
            outputs={"bills": sk.sinks.parquet(runs.home / "out")},
            parallelism=parallelism,
        )
    _check(runs, records, 3)


def _check(runs: Runs, records: dict[str, list[Any]], parallelism: int) -> None:
    """Outputs and all shards are what a run in one process makes of the same epochs."""
    local = billing_job().run(records, epoch_size=25)
    assert by_account(runs.parquet("out")) == by_account(local["bills"])
    held: dict[str, list[int]] = {}
    for currency, dollars in records["rates"]:
        held.setdefault(currency, []).append(dollars)
    expected = {currency: dollars[-3:] for currency, dollars in held.items()}
    harness = Harness(bill, checkpoint=runs.checkpoint)
    assert harness.operator_state("rates") == [expected] * parallelism


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.usefixtures("class_archive")
def test_joined_and_broadcast_state_survives_kills(runs: Runs) -> None:
    records = given(3, 75)
    feed(runs, records, 25)
    for epoch, point in ((0, spark_driver.POINTS[1]), (1, spark_driver.POINTS[3])):
        arguments = (runs.home, "local[2]", point, epoch)
        with KillableProcess("billing_driver.py", *arguments, log=runs.home / "log") as victim:
            assert victim.wait() == -signal.SIGKILL, (point, victim.log())
        assert runs.epochs() == list(range(epoch)), point
    runs.finish(
        billing_job(),
        streams(runs, *records),
        outputs={"bills": sk.sinks.parquet(runs.home / "out")},
        parallelism=2,
    )
    _check(runs, records, 2)
    assert runs.epochs() == [0, 1, 2]


def test_operators_that_feed_one_another_in_a_tree_run_in_one_action(
    runs: Runs, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An input, and what is broadcast, come from operators, and keys are of several widths."""

    @sk.process(key="account")
    def paid(payment: Payment) -> Iterator[Payment]:
        yield Payment(payment.account, payment.cents + 1000)

    @sk.process(key="currency")
    def doubled(rate: Rate) -> Iterator[Rate]:
        yield Rate(rate.currency, 2 * rate.dollars)

    def tree() -> sk.Job:
        job = sk.Job("bill")
        orders = job.source("orders", Order)
        payments = job.source("payments", Payment).process(paid)
        rates = job.source("rates", Rate).process(doubled)
        payments.union(orders).process(bill, broadcast=[rates]).sink("bills")
        return job

    ways = ways_taken(monkeypatch)
    records = given(4, 30)
    inputs = tables(spark, records)
    inputs["orders"] = inputs["orders"].selectExpr("cast(account as smallint) as account", "number")
    runs.finish(
        tree(), inputs, outputs={"bills": sk.sinks.parquet(runs.home / "out")}, parallelism=3
    )
    found = by_account(runs.parquet("out"))
    assert set(ways) == {"_at_once"}
    # Several rates come out of several shards: their order is that of the shards.
    local = by_account(tree().run(records, parallelism=3, epoch_size=30)["bills"])
    assert {a: [b.seen for b in bills] for a, bills in found.items()} == {
        a: [b.seen for b in bills] for a, bills in local.items()
    }
    told = {made.rates for bills in found.values() for made in bills}
    assert len(told) == 1, "all shards were told the same, before any record"
    harness = Harness(bill)
    harness.broadcast(*(Rate(rate.currency, 2 * rate.dollars) for rate in records["rates"]))
    (expected,) = harness.operator_state("rates")
    assert told == {" ".join(f"{name}{sum(of)}" for name, of in expected.items())}


def test_a_stream_that_is_read_twice_is_kept(
    runs: Runs, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways = ways_taken(monkeypatch)
    job = sk.Job("shop")
    orders, payments = job.source("orders", Order), job.source("payments", Payment)
    joined = orders.union(payments).process(join)

    @sk.process()
    def largest(joined: Joined, most: sk.BroadcastState[str, int]) -> Iterator[int]:
        yield most["cents"]

    @largest.on_broadcast
    def note(joined: Joined, most: sk.BroadcastState[str, int]) -> None:
        most["cents"] = max(joined.cents, most.get("cents", 0))

    joined.process(largest, broadcast=joined).sink("most")
    records = {name: found for name, found in given(5, 30).items() if name != "rates"}
    runs.finish(
        job,
        tables(spark, records),
        outputs={"most": sk.sinks.parquet(runs.home / "out")},
        parallelism=3,
    )
    found = job.run(records, parallelism=2)["most"]
    assert [row["value"] for row in runs.parquet("out")] == found
    assert set(ways) == {"_persisted"}


# ------------------------------------------------------------------------------------------- time


class Left(NamedTuple):
    key: str
    at: dt.datetime


class Right(NamedTuple):
    key: str
    at: dt.datetime


class Seen(NamedTuple):
    key: str
    side: str
    second: int


TIMED = "key string, at timestamp"


@sk.process(key="key", event_time="at", lateness="5 seconds")
def seen(record: Left | Right, ctx: sk.Context) -> Iterator[Seen]:
    yield Seen(record.key, type(record).__name__, int(record.at.timestamp()))


@sk.process(key="key", event_time="at", lateness="5 seconds")
def same(record: Left) -> Iterator[Seen]:
    yield Seen(record.key, "Left", int(record.at.timestamp()))


def test_the_input_that_is_behind_holds_event_time_back_on_spark_too(
    runs: Runs, spark: SparkSession
) -> None:
    job = sk.Job("timed")
    left, right = job.source("left", Left), job.source("right", Right)
    left.union(right).process(seen).sink("seen")
    batches = [
        ([Left("a", at(100))], [Right("b", at(20))]),
        ([Left("a", at(16))], [Right("a", at(15)), Right("b", at(80))]),
        ([Left("a", at(75)), Left("a", at(76))], [Right("c", at(200))]),
        ([Left("a", at(95)), Left("a", at(96))], [Right("c", at(94))]),
    ]
    for left_rows, right_rows in batches:
        runs.feed("left", [record._asdict() for record in left_rows])
        runs.feed("right", [record._asdict() for record in right_rows])
    found, collect = collector()
    query = runs.finish(
        job,
        {name: runs.stream(name, TIMED) for name in ("left", "right")},
        outputs={"seen": collect},
        parallelism=2,
    )
    assert sorted((epoch, *row) for epoch, row in found) == [
        (0, "a", "Left", 100),
        (0, "b", "Right", 20),
        (1, "a", "Left", 16),
        (1, "b", "Right", 80),
        (2, "a", "Left", 76),
        (2, "c", "Right", 200),
        (3, "a", "Left", 96),
    ]
    assert [told.watermarks["seen"] for told in query.progress][1:] == [at(15), at(75), at(95)]
    assert [told.late for told in query.progress] == [0, 1, 1, 2]


def test_late_records_of_several_inputs_of_one_type_are_one_stream(
    runs: Runs, spark: SparkSession
) -> None:
    job = sk.Job("timed")
    stream = job.source("web", Left).union(job.source("desk", Left)).process(same)
    stream.late.sink("late")
    for web, desk in (
        ([Left("a", at(100))], [Left("b", at(100))]),
        ([Left("a", at(95)), Left("a", at(96))], [Left("b", at(1))]),
    ):
        runs.feed("web", [record._asdict() for record in web])
        runs.feed("desk", [record._asdict() for record in desk])
    found, collect = collector()
    runs.finish(
        job,
        {name: runs.stream(name, TIMED) for name in ("web", "desk")},
        outputs={"late": collect},
        parallelism=2,
    )
    assert [(epoch, row.key) for epoch, row in found] == [(1, "a"), (1, "b")]


@sk.process(key="key", event_time="at", lateness="1 hour", ordered=True)
def in_order(record: Left | Right, seen: sk.ListState[str]) -> Iterator[list[str]]:
    seen.append(f"{type(record).__name__[0]}{record.at.timestamp():.0f}")
    yield list(seen)


def test_ordered_inputs_are_merged_by_time(runs: Runs, spark: SparkSession) -> None:
    job = sk.Job("timed")
    job.source("left", Left).union(job.source("right", Right)).process(in_order).sink("seen")
    left = spark.createDataFrame([("a", at(second)) for second in (5, 1, 9)], TIMED)
    right = spark.createDataFrame([("a", at(second)) for second in (2, 8)], TIMED)
    runs.finish(
        job,
        {"left": left, "right": right},
        outputs={"seen": sk.sinks.parquet(runs.home / "out")},
        parallelism=2,
    )
    assert runs.parquet("out")[-1]["value"] == ["L1", "R2", "L5", "R8", "L9"]


# --------------------------------------------------------------------------------- odd and refused


class Reset(NamedTuple):
    """A broadcast record that says all by coming."""


class Doubled(pydantic.BaseModel):
    account: int

    @pydantic.field_validator("account")
    @classmethod
    def other(cls, value: int) -> int:
        return 2 * value


class Odd(NamedTuple):
    a: int | None
    b: dt.date


class Even(NamedTuple):
    b: dt.date
    a: int | None
    struct: Odd | None = None


def test_keys_of_several_fields_with_nulls_and_records_without_fields(
    runs: Runs, spark: SparkSession
) -> None:
    @sk.process(key=("a", "b"))
    def count(record: Odd | Even, resets: sk.BroadcastState[int, bool]) -> Iterator[str]:
        yield f"{record.a} {record.b} {type(record).__name__} {len(resets)}"

    @count.on_broadcast
    def reset(reset: Reset, resets: sk.BroadcastState[int, bool]) -> None:
        resets[len(resets)] = True

    job = sk.Job("odd")
    odd, even = job.source("odd", Odd), job.source("even", Even)
    odd.union(even).process(count, broadcast=job.source("resets", Reset)).sink("out")
    day = dt.date(2026, 1, 1)
    inputs = {
        "odd": spark.createDataFrame([(None, day), (1, day)], "a smallint, b date"),
        "even": spark.createDataFrame(
            [(day, None, (7, day)), (day, 1, None)],
            "b date, a bigint, struct struct<a: int, b: date>",
        ),
        "resets": spark.range(2),
    }
    outputs = {"out": sk.sinks.parquet(runs.home / "out")}
    runs.finish(job, inputs, outputs=outputs, parallelism=3)
    assert sorted(row["value"] for row in runs.parquet("out")) == [
        "1 2026-01-01 Even 2",
        "1 2026-01-01 Odd 2",
        "None 2026-01-01 Even 2",
        "None 2026-01-01 Odd 2",
    ]


def test_a_record_that_changes_its_key_is_refused_among_several_types(
    runs: Runs, spark: SparkSession
) -> None:
    @sk.process(key="account")
    def kinds(record: Doubled | Order) -> None: ...

    job = sk.Job("kinds")
    job.source("doubled", Doubled).union(job.source("orders", Order)).process(kinds).sink("out")
    inputs = {
        "doubled": spark.createDataFrame([(5,)], "account int"),
        "orders": spark.createDataFrame([(5, 1)], SCHEMAS["orders"]),
    }
    _, collect = collector()
    with pytest.raises(sk.ProcessError, match="changes its key"):
        runs.finish(job, inputs, outputs={"out": collect}, parallelism=2)
    assert runs.epochs() == []


def test_a_frame_that_does_not_fit_is_refused_before_anything_runs(
    runs: Runs, spark: SparkSession
) -> None:
    frame = spark.createDataFrame([("a", at(1))], TIMED)
    _, collect = collector()
    mixed = sk.Job("mixed")
    mixed.source("events", Left, Right).process(seen).sink("seen")
    with pytest.raises(sk.StateTypeError, match=r"'events' has Left \| Right, .*union\(\)"):
        runs.start(mixed, {"events": frame}, outputs={"seen": collect})
    job = sk.Job("timed")
    job.source("left", Left).union(job.source("right", Right)).process(seen).sink("seen")
    inputs = {"left": frame, "right": frame.drop("at")}
    with pytest.raises(sk.ProcessError, match="Right needs a column 'at'") as refused:
        runs.start(job, inputs, outputs={"seen": collect})
    assert "while looking at the input 'right'" in refused.value.__notes__
    assert runs.epochs() == []


def test_a_broadcast_record_that_does_not_fit_fails_the_epoch(
    runs: Runs, spark: SparkSession, tmp_path: Path
) -> None:
    records = given(6, 4)
    inputs = tables(spark, records)
    inputs["rates"] = spark.createDataFrame([(None, 1)], SCHEMAS["rates"])
    _, collect = collector()
    with pytest.raises(sk.ProcessError, match=r"currency is null") as refused:
        runs.finish(billing_job(), inputs, outputs={"bills": collect}, parallelism=2)
    assert "Rate" in str(refused.value)
    assert runs.epochs() == []
