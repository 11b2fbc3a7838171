"""Stateful processors give what they give in Spark's own transformWithState, batch by batch."""

from __future__ import annotations

import ast
import datetime as dt
import decimal
import random
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

from statekit.checkpoint.repository import Repository
from statekit.maintenance.verify.verify import verify
from tests.support.instants import at
from tests.support.tws_engines import Case, Engines
from tests.support.tws_processors import (
    CALLS,
    TOLD,
    Alarms,
    Counts,
    Expiring,
    Frames,
    Keyed,
    Large,
    Largest,
    ReadsLate,
    Scripted,
    Sessions,
    Ticks,
    script,
)

SIZE = 120


@pytest.fixture
def engines(spark: SparkSession, tmp_path: Path) -> Engines:
    return Engines(spark, tmp_path)


def feed_calls(engines: Engines, seed: int, first: int, size: int) -> None:
    """Rows with calls from a script, for a few keys; a part of the key may be null."""
    chosen = random.Random(seed)
    rows = [
        (chosen.choice(["a", "b", None]), chosen.choice([1, 2**40, None]), first + number)
        for number in range(size)
    ]
    engines.feed(rows, CALLS)


def test_states_of_all_types_have_the_contents_that_they_have_in_spark(engines: Engines) -> None:
    """Also behind a restart, which for statekit is one with another parallelism."""
    case = Case(CALLS, ["shop", "number"], Scripted(script(1, 3 * SIZE)), TOLD)
    feed_calls(engines, 1, 0, SIZE)
    feed_calls(engines, 2, SIZE, SIZE)
    assert len(engines.assert_same(case)) == 2
    feed_calls(engines, 3, 2 * SIZE, SIZE)
    assert list(engines.assert_same(case, parallelism=3)) == [2]


ALARMS = "key string, at timestamp, does string, after int"


def feed_alarms(engines: Engines, seed: int, begin: int, suffix: str = "") -> None:
    chosen = random.Random(seed)
    rows: list[tuple[Any, ...]] = [
        (
            chosen.choice("abc") + suffix,
            at(begin + chosen.randrange(-10, 10)),
            chosen.choice(["set", "set", "delete", "none"]),
            chosen.randrange(0, 20),
        )
        for _ in range(12)
    ]
    rows.append(("d", None, "none", 0))  # no time is never late
    engines.feed(rows, ALARMS)


def alarms(**given: Any) -> Case:
    watermark = ("at", "2 seconds")
    return Case(ALARMS, ["key"], Alarms(), TOLD, mode="eventTime", watermark=watermark, **given)


def test_timers_and_late_rows_by_event_time_are_those_of_spark(engines: Engines) -> None:
    """Also the last batch, without rows, which fires what is due by then."""
    for number, begin in enumerate([20, 30, 31, 60]):
        feed_alarms(engines, number, begin)
    assert 4 in engines.assert_same(alarms())
    for number, begin in enumerate([50, 90]):
        feed_alarms(engines, 10 + number, begin)
    assert 7 in engines.assert_same(alarms(), parallelism=1)


def test_initial_state_is_handled_once_and_before_all_rows(engines: Engines) -> None:
    initial = (
        [("a", 1), ("d", 2), ("a", 3), ("e", 40), ("z", 5)],
        "who string, seen bigint",
        ["who"],
    )
    feed_alarms(engines, 1, 20)
    feed_alarms(engines, 2, 30)
    engines.assert_same(alarms(initial=initial))
    feed_alarms(engines, 3, 40)
    engines.assert_same(alarms(initial=initial), parallelism=3)


def test_processing_time_timers_ring_as_in_spark(engines: Engines) -> None:
    """Some in the batch in which they are set, others while nothing comes."""
    engines.feed([("a", 1, 0), ("a", 1, 5), ("b", 1, 300), ("a", 1, 1200)], CALLS)
    case = Case(CALLS, ["shop"], Ticks(), TOLD, mode="processingTime", rows_out=4 + 4 + 2)
    found, expected = engines.of_statekit(case), engines.of_spark(case)
    assert sorted(chain(*found.values())) == sorted(chain(*expected.values()))


def test_state_expires_as_in_spark(engines: Engines) -> None:
    for batch in range(3):
        engines.feed([("a", 7, batch), ("b", 7, batch), ("a", 7, batch + 1)], CALLS)
    engines.assert_same(Case(CALLS, ["shop"], Expiring(), TOLD, mode="processingTime"))


KEYS = (
    "at timestamp, tiny tinyint, real float, amount decimal(20,10), whole decimal(5,0), "
    "day date, zoneless timestamp_ntz, raw binary, flag boolean, of struct<x:int,y:string>"
)


def feed_keys(engines: Engines, batch: int) -> None:
    rows: list[tuple[Any, ...]] = [(at(10 * batch + 1), *[None] * 9)]
    for number in (0, 1):
        zoneless = dt.datetime(2020, 1, 1, 0, 0, number, 500 * number)
        day, of = dt.date(2020, 1, 1 + number), Row(x=number, y="ä")
        plain = (
            number,
            number / 3,
            decimal.Decimal("-0.1428571428") * number,
            decimal.Decimal(number),
        )
        rest = day, zoneless, bytes([number, 0]), number == 1, of
        rows += [(at(10 * batch + number), *plain, *rest)] * 2
    engines.feed(rows, KEYS)


def test_rows_are_grouped_by_columns_of_all_types(engines: Engines) -> None:
    """And their processor is told the same keys, with its rows and with its timers."""
    names = [
        "at",
        "tiny",
        "real",
        "amount",
        "whole",
        "day",
        "zoneless",
        "raw",
        "flag",
        "of",
        "of.x",
    ]
    case = Case(KEYS, names, Keyed(), TOLD, mode="eventTime", watermark=("at", "1 second"))
    for batch in (1, 2):
        feed_keys(engines, batch)
    engines.assert_same(case)
    found = verify(Repository(engines.home / "of-statekit", create=False))
    assert found.is_intact, found  # each row lies in the key group that follows from its key


def test_iterators_read_state_when_their_first_element_is_asked_for(engines: Engines) -> None:
    """What changed since they were made is in them, as on Spark."""
    for batch in range(2):
        engines.feed([("a", 1, 3 * batch + call) for call in range(3)] + [("b", 1, batch)], CALLS)
    engines.assert_same(Case(CALLS, ["shop"], ReadsLate(), TOLD, mode="processingTime"))


ZEROS = "d double, a array<double>, s struct<x:float,y:array<struct<z:double,t:string>>>"


def test_minus_zero_is_the_key_of_zero_in_each_batch_as_in_sql(engines: Engines) -> None:
    """On Spark that is so within a batch, by chance, and another key in the next."""
    rows = [
        (zero, [zero, 1.0, None], Row(x=zero, y=[Row(z=zero, t="t"), None]))
        for zero in (0.0, -0.0, float("nan"), None)
    ]
    for _ in range(2):
        engines.feed([*rows, (1.0, None, None)], ZEROS)
    case = Case(ZEROS, ["d", "a", "s"], Counts(), "shop double, bucket bigint, count bigint")
    found = engines.of_statekit(case)
    counts = [[count for *_, count in found[batch]] for batch in (0, 1)]
    grouped = engines.rows(case).schema
    static = engines.spark.read.schema(grouped).parquet(str(engines.home / "rows"))
    of_sql = [row["count"] for row in static.groupBy("d", "a", "s").count().collect()]
    assert sorted(counts[1]) == sorted(of_sql) == [2, 2, 2, 4]
    assert sorted(counts[0]) == [1, 1, 1, 2]
    verified = verify(Repository(engines.home / "of-statekit", create=False))
    assert verified.is_intact, verified


def test_values_of_half_a_megabyte(engines: Engines) -> None:
    for batch in range(2):
        engines.feed([("a", 1, 3 * batch), ("a", 1, 3 * batch + 1), ("b", 1, batch)], CALLS)
    engines.assert_same(Case(CALLS, ["shop"], Large(), TOLD))


def test_a_processor_after_another(engines: Engines) -> None:
    second = Case("", ["bucket"], Largest(), TOLD)
    for batch in range(3):
        feed_calls(engines, batch, 0, 30)
    case = Case(CALLS, ["shop"], Counts(), "shop string, bucket bigint, count bigint", then=second)
    assert len(engines.assert_same(case)) == 3


class Late(Alarms):
    """Sessions that end, with a timer behind each."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self.seen.appendValue((row["count"],))
            self.handle.registerTimer(int(row.end.timestamp() * 1000) + 3000)
        yield from ()


def test_event_time_continues_after_a_processor(engines: Engines) -> None:
    """In statekit a batch later, so what comes out is the same in all."""
    for begin in (20, 50, 80):
        feed_alarms(engines, begin, begin, suffix=str(begin))
    second = Case("", ["key"], Late(), TOLD, mode="eventTime")
    outputs = "key string, end timestamp, count bigint"
    first = Case(ALARMS, ["key"], Sessions(), outputs, mode="eventTime", then=second)
    first.watermark, first.event_time_column = ("at", "2 seconds"), "end"
    found, expected = engines.of_statekit(first), engines.of_spark(first)
    assert len(_untimed(expected)) > 2
    assert _untimed(found) == _untimed(expected)


def _untimed(batches: Any) -> list[Any]:
    """What came out in all, without the watermark that it was told."""
    told = [(key, ast.literal_eval(text)) for rows in batches.values() for key, text in rows]
    return sorted((key, what, at, count) for key, (what, _, at, count, *_) in told)


def test_frames_of_pandas(engines: Engines) -> None:
    engines.spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "3")
    try:
        _test_frames(engines)
    finally:
        engines.spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


def _test_frames(engines: Engines) -> None:
    schema = "name string, id bigint, value double, at timestamp, small int"
    for batch in range(2):
        rows = [
            (None if n % 5 == 0 else f"n{n % 3}", n % 2, n / 2, at(10 * batch + n), n)
            for n in range(9)
        ]
        engines.feed(rows, schema)
    outputs = "key string, told string, count bigint, total double"
    initial = [(0, 1.5), (0, 2.5), (7, 3.0)], "id bigint, held double", ["id"]
    watermark = ("at", "1 second")
    case = Case(schema, ["id"], Frames(), outputs, mode="eventTime", watermark=watermark)
    case.pandas, case.initial = True, initial
    engines.assert_same(case)
