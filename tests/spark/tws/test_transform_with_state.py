"""The drop-in for Spark's transformWithState: what it takes and refuses, and how it goes on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import statekit as sk
from statekit.spark import transform_with_state
from statekit.spark.tws.pandas_frames import FrameOptions
from tests.support.instants import at
from tests.support.spark_runs import ONCE, Runs, collector
from tests.support.timeouts import PATIENCE_S

ROWS = "key string, at timestamp, n bigint"
TOLD = "key string, told bigint"
OPTIONS = ("trigger", "parallelism", "allow_dropped_state")


class Sums(StatefulProcessor):
    """A sum per key, and a timer five seconds after each row, by whichever clock there is."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.held = handle.getValueState("held", "total bigint")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        (total,) = self.held.get() or (0,)
        for row in rows:
            total += row.n
            if timerValues.getCurrentWatermarkInMs() >= 0:
                self.handle.registerTimer(int(row.at.timestamp() * 1000) + 5000)
        self.held.update((total,))
        yield Row(key=key[0], told=total)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        yield Row(key=key[0], told=-expiredTimerInfo.getExpiryTimeInMs())


class Renamed(Sums):
    """The same in a later version: its state has another name, and the old one goes."""

    def init(self, handle: Any) -> None:
        handle.deleteIfExists("held")
        handle.deleteIfExists("never there")
        self.handle = handle
        self.held = handle.getValueState("sum", "total bigint")


def feed(runs: Runs, *rows: tuple[str, int, int]) -> None:
    runs.feed("rows", [{"key": key, "at": at(when), "n": n} for key, when, n in rows])


def started(runs: Runs, processor: StatefulProcessor, **given: Any) -> tuple[Any, list[Any]]:
    """Start it on what was fed; returns the query, and what comes out."""
    options = {name: given.pop(name) for name in OPTIONS if name in given}
    found, collect = collector()
    df = runs.stream("rows", ROWS).withWatermark("at", "1 second")
    made = transform_with_state(df, "key", processor, TOLD, name="sums", **given)
    query = made.sink(collect).start(
        runs.spark,
        checkpoint=runs.checkpoint,
        working_directory=runs.working,
        **{"trigger": ONCE, **options},
    )
    return query, found


def finished(runs: Runs, processor: StatefulProcessor, **given: Any) -> list[tuple[int, Any]]:
    query, found = started(runs, processor, **given)
    assert query.await_termination(PATIENCE_S)
    assert query.query is not None
    return [(epoch, tuple(row)) for epoch, row in found]


def test_state_that_a_later_version_deletes_is_dropped(runs: Runs) -> None:
    feed(runs, ("a", 1, 5))
    assert finished(runs, Sums()) == [(0, ("a", 5))]
    assert runs.state("sums", "held") == {"a": {"total": 5}}
    feed(runs, ("a", 2, 7))
    assert finished(runs, Renamed()) == [(1, ("a", 7))]
    feed(runs, ("a", 2, 1))
    with pytest.raises(sk.StateSchemaError, match=r"'sum'.* no longer declared"):
        finished(runs, Sums())
    with pytest.raises(sk.StateSchemaError, match="dropped states"):
        finished(runs, Sums(), allow_dropped_state=True)


def test_timers_fire_in_a_continuing_stream(runs: Runs) -> None:
    """By event time as soon as nothing more comes, and by processing time each second."""
    feed(runs, ("a", 1, 5), ("b", 60, 1))
    query, found = started(runs, Sums(), time_mode="eventTime", trigger=None)
    _wait_for(lambda: ("a", -6000) in [tuple(row) for _, row in found], query)
    feed(runs, ("c", 90, 1))
    query.query.processAllAvailable()  # waits for what becomes due, too
    assert ("b", -65000) in [tuple(row) for _, row in found]
    query.stop()
    told = [tuple(row) for _, row in found if row.told < 0]
    assert told == [("a", -6000), ("b", -65000)]
    assert not query.query.isActive


class Breaks(Sums):
    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        raise ValueError("it rang")


def test_waiting_for_the_query_raises_the_error_of_its_last_epoch(runs: Runs) -> None:
    feed(runs, ("a", 1, 5), ("b", 60, 1))
    query, _ = started(runs, Breaks(), time_mode="eventTime")
    with pytest.raises(sk.ProcessError, match="it rang"):
        query.query.awaitTermination(int(PATIENCE_S))
    with pytest.raises(sk.ProcessError, match="it rang"):
        query.await_termination(PATIENCE_S)


def test_processing_time_timers_ring_while_nothing_comes(runs: Runs) -> None:
    feed(runs, ("a", 1, 5))
    query, found = started(runs, Sums(), time_mode="processingTime", trigger=None)
    _wait_for(lambda: ("a", -6000) in [tuple(row) for _, row in found], query)
    query.stop()


def _wait_for(is_so: Any, query: Any) -> None:
    end = time.monotonic() + PATIENCE_S
    while not is_so():
        assert query.is_active
        assert time.monotonic() < end
        time.sleep(0.1)


class Begun(Sums):
    """A sum that begins with initial state."""

    def handleInitialState(self, key: Any, initialState: Row, timerValues: Any) -> None:
        (total,) = self.held.get() or (0,)
        self.held.update((total + initialState["my start"],))


def test_initial_state_is_handled_once_also_if_the_first_epoch_fails(runs: Runs) -> None:
    """Of which nothing is seen: the next attempt handles it all again, and no epoch after it."""
    initial = runs.spark.createDataFrame([("a", 100), ("z", 7)], "`my key` string, `my start` int")

    def run(sink: Any) -> None:
        df = runs.stream("rows", ROWS)
        grouped = initial.groupBy("my key")
        made = transform_with_state(df, "key", Begun(), TOLD, initial_state=grouped, name="sums")
        places = {"checkpoint": runs.checkpoint, "working_directory": runs.working}
        query = made.sink(sink).start(runs.spark, parallelism=2, trigger=ONCE, **places)
        assert query.await_termination(PATIENCE_S)

    feed(runs, ("a", 1, 5))
    with pytest.raises(sk.ProcessError, match="full"):
        run(_fails)
    assert runs.epochs() == []
    found, collect = collector()
    run(collect)
    feed(runs, ("a", 2, 1), ("z", 2, 1))
    run(collect)
    assert sorted((epoch, *row) for epoch, row in found) == [
        (0, "a", 105),
        (1, "a", 106),
        (1, "z", 8),
    ]


def test_initial_state_is_grouped_by_columns_of_its_own(runs: Runs) -> None:
    """Of the same types as those of the rows, whatever these are and wherever."""
    rows = [(Row(price=Decimal("0.10")), 5), (Row(price=Decimal("7.00")), 6)]
    df = runs.spark.createDataFrame(rows, "item struct<price:decimal(9,2)>, n bigint")
    initial = runs.spark.createDataFrame(
        [(100, Decimal("0.10"), 1), (200, Decimal("3.00"), 2)],
        "`my start` int, cost decimal(9,2), n int",
    )
    found, collect = collector()
    outputs = "key decimal(9,2), told bigint"
    made = transform_with_state(
        df, "item.price", Begun(), outputs, initial_state=initial.groupBy("cost")
    )
    made.sink(collect).start(runs.spark, checkpoint=runs.checkpoint, parallelism=2)
    assert sorted(tuple(row) for _, row in found) == [(Decimal("0.10"), 105), (Decimal("7.00"), 6)]
    held = runs.state("Begun", "held")
    assert held == {"0.10": {"total": 105}, "7.00": {"total": 6}, "3.00": {"total": 200}}


def _fails(df: DataFrame, epoch: int) -> None:
    df.count()
    raise OSError("the disk is full")


class Odd(StatefulProcessor):
    """States and columns with names that Python, or Spark's own operator, does not take."""

    def init(self, handle: Any) -> None:
        self.held = handle.getValueState("class", "`my n` bigint, `_x` string")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            found = self.held.get() or (0, "")
            self.held.update((found[0] + row["from"], "x"))
        yield Row(**{"my key": key[0], "class": self.held.get()[0]})


def test_names_are_free(runs: Runs) -> None:
    runs.feed("rows", [{"a key": "a", "from": 2}, {"a key": "a", "from": 3}])
    df = runs.stream("rows", "`a key` string, `from` bigint")
    found, collect = collector()
    made = transform_with_state(df, "a key", Odd(), "`my key` string, `class` bigint").sink(collect)
    places = {"checkpoint": runs.checkpoint, "working_directory": runs.working}
    assert made.start(runs.spark, parallelism=2, trigger=ONCE, **places).await_termination(60)
    assert [tuple(row) for _, row in found] == [("a", 5)]
    assert runs.state("Odd", "s_class") == {"a": {"s_my_20_n": 5, "s__x": "x"}}


def test_static_frames_are_one_epoch(runs: Runs) -> None:
    """In which no timer rings, as in Spark."""
    df = runs.spark.createDataFrame([("a", at(1), 5), ("a", at(2), 6)], ROWS)
    found, collect = collector()
    made = transform_with_state(df, ["key"], Sums(), TOLD, "Update", "eventTime")
    made.sink(collect).start(runs.spark, checkpoint=runs.checkpoint, parallelism=2)
    assert [tuple(row) for _, row in found] == [("a", 11)]


@pytest.mark.parametrize("sink", ["noop", sk.sinks.writer("noop")])
def test_outputs_go_to_formats(runs: Runs, sink: Any) -> None:
    feed(runs, ("a", 1, 5))
    df = runs.stream("rows", ROWS)
    made = transform_with_state(df, "key", Sums(), TOLD).sink(sink)
    query = made.start(
        runs.spark, checkpoint=runs.checkpoint, parallelism=2, trigger={"availableNow": True}
    )
    assert query.query is not None
    assert query.query.awaitTermination(int(PATIENCE_S))
    assert query.epoch == 0


def test_a_frame_of_spark_connect_is_refused_by_name(spark: SparkSession) -> None:
    """It need not be installed here: a class of such a module stands in for its own."""
    module = {"__module__": "pyspark.sql.connect.dataframe"}
    remote = type(
        "Remote", (DataFrame,), {**module, "__new__": object.__new__, "sparkSession": spark}
    )
    with pytest.raises(sk.StateTypeError, match=r"Remote of Spark Connect.*SparkSession.builder"):
        transform_with_state(remote(), "key", Sums(), TOLD)


def test_invalid_arguments_are_refused(spark: SparkSession) -> None:
    df = spark.createDataFrame([], f"{ROWS}, of struct<x:int>, pairs map<string,int>")

    def refused(match: str, *given: Any, **options: Any) -> None:
        wanted = {"keys": "key", "processor": Sums(), "output_schema": TOLD, **options}
        with pytest.raises(sk.StateTypeError, match=match):
            transform_with_state(*(given or (df,)), **wanted)

    refused("no such column: they have key, at", keys="nope")
    refused("no such column", keys=["key", "of.y"])
    refused("one column to group by", keys=[])
    refused("one column to group by", keys=["key", "KEY"])
    refused("names of columns", keys=[5])
    refused("map<string,int>, which rows cannot be grouped by", keys="pairs")
    refused("an instance of a subclass", processor=Sums)
    refused("there are append, update and complete", output_mode="other")
    refused("choose none, processingTime or eventTime", time_mode="Some")
    refused("is no schema: give a StructType", output_schema=5)
    refused("grouped frame", initial_state=df)
    refused("is grouped by .'bigint'., and rows by .'string'.", initial_state=df.groupBy("n"))
    refused("the outputs have no such column", event_time_column="nope")
    refused("DataFrame, not grouped", df.groupBy("key"))
    with pytest.raises(sk.StateTypeError, match="nothing takes the outputs"):
        transform_with_state(df, "key", Sums(), TOLD).start(spark, checkpoint="unused")


class Halves(StatefulProcessor):
    """Yields numbers that are cut off where whole ones are asked for."""

    def init(self, handle: Any) -> None:
        pass

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        for frame in rows:
            yield pd.DataFrame({"key": frame["key"], "told": frame["n"] / 2})


def test_frames_are_converted_by_the_sessions_options_and_sparks_defaults(runs: Runs) -> None:
    feed(runs, ("a", 1, 4), ("a", 2, 5))
    with pytest.raises(sk.ProcessError, match=r"column 'told'.* unsafe conversions"):
        finished(runs, Halves())
    runs.spark.conf.set("spark.sql.execution.pandas.convertToArrowArraySafely", "false")
    runs.spark.conf.set("spark.sql.execution.arrow.maxBytesPerBatch", "3k")
    try:
        options = FrameOptions.of_session(runs.spark)
        assert (options.safely, options.bytes_max) == (False, 3072)
        assert options.timezone == runs.spark.conf.get("spark.sql.session.timeZone")
        assert finished(runs, Halves()) == [(0, ("a", 2)), (0, ("a", 2))]
    finally:
        runs.spark.conf.unset("spark.sql.execution.pandas.convertToArrowArraySafely")
        runs.spark.conf.unset("spark.sql.execution.arrow.maxBytesPerBatch")


class Asks(StatefulProcessor):
    """Does in `init` what it is made to."""

    def __init__(self, does: Any) -> None:
        self.does = does

    def init(self, handle: Any) -> None:
        self.does(handle)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        yield from ()


@pytest.mark.parametrize(
    ("does", "match"),
    [
        (lambda handle: handle.getValueState("a", "n int").get(), "there is no key then"),
        (lambda handle: handle.registerTimer(5), "there is no key then"),
        (lambda handle: handle.getValueState("a", "n int", 5), "processingTime"),
        (lambda handle: handle.getValueState("a", "n int", -5), "processingTime"),
        (
            lambda handle: (handle.getValueState("a", "n int"), handle.getListState("a", "n int")),
            "asks for state 'a' twice",
        ),
        (lambda handle: handle.getMapState("a", "m map<int,int>", "n int"), "key of a map"),
        (lambda handle: handle.getValueState("a", "i interval day"), "not supported"),
        (
            lambda handle: (handle.deleteIfExists("a"), handle.getValueState("a", "n int")),
            "deletes state 'a' and asks for it again",
        ),
    ],
)
def test_invalid_calls_in_init_are_refused(spark: SparkSession, does: Any, match: str) -> None:
    df = spark.createDataFrame([], ROWS)
    with pytest.raises(sk.StateTypeError, match=match):
        transform_with_state(df, "key", Asks(does), TOLD)
