"""A processor in a harness, without Spark, has the results that it has on Spark."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from statekit.spark.tws.pandas_frames import FrameOptions
from tests.spark.tws.test_processors_on_spark import (
    KEYS,
    SIZE,
    alarms,
    feed_alarms,
    feed_calls,
    feed_keys,
)
from tests.support.instants import at
from tests.support.tws_engines import Case, Engines
from tests.support.tws_processors import CALLS, TOLD, Frames, Keyed, Scripted, script


@pytest.fixture
def engines(spark: SparkSession, tmp_path: Path) -> Engines:
    return Engines(spark, tmp_path)


def assert_same(engines: Engines, case: Case) -> None:
    found, expected = engines.of_harness(case), engines.of_spark(case)
    assert expected
    assert found == expected


def test_states_of_all_types_have_the_same_contents(engines: Engines) -> None:
    feed_calls(engines, 1, 0, SIZE)
    feed_calls(engines, 2, SIZE, SIZE)
    assert_same(engines, Case(CALLS, ["shop", "number"], Scripted(script(1, 2 * SIZE)), TOLD))


def test_timers_late_rows_and_initial_state_are_the_same(engines: Engines) -> None:
    for number, begin in enumerate([20, 30, 31, 60]):
        feed_alarms(engines, number, begin)
    initial = [("a", 1), ("d", 2), ("a", 3), ("e", 40)], "who string, seen bigint", ["who"]
    assert_same(engines, alarms(initial=initial))


def test_keys_and_rows_are_the_same(engines: Engines) -> None:
    names = ["at", "tiny", "amount", "whole", "day", "zoneless", "raw", "flag", "of.x"]
    for batch in (1, 2):
        feed_keys(engines, batch)
    watermark = ("at", "1 second")
    assert_same(engines, Case(KEYS, names, Keyed(), TOLD, mode="eventTime", watermark=watermark))


def test_frames_of_pandas_are_the_same(engines: Engines) -> None:
    schema = "name string, id bigint, value double, at timestamp, small int"
    for batch in range(2):
        engines.feed([(f"n{n % 3}", n % 2, n / 2, at(10 * batch + n), n) for n in range(9)], schema)
    outputs = "key string, told string, count bigint, total double"
    initial = [(0, 1.5), (0, 2.5), (7, 3.0)], "id bigint, held double", ["id"]
    case = Case(schema, ["id"], Frames(), outputs, mode="eventTime", watermark=("at", "1 second"))
    case.pandas, case.initial = True, initial
    assert_same(engines, case)


def test_frames_have_the_options_of_a_new_session(spark: SparkSession) -> None:
    of_session = FrameOptions.of_session(spark)
    assert replace(of_session, timezone="UTC") == FrameOptions()
