"""Stateful processors of Spark's give what they give in Spark's own tester."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.streaming.tws_tester import TwsTester
from pyspark.sql.types import LongType, StringType, StructField, StructType

from statekit.spark.processor_keys import GroupingKey
from statekit.spark.processors import process_of
from statekit.testing import Harness


def schema(**types: Any) -> StructType:
    return StructType([StructField(name, of()) for name, of in types.items()])


ROWS = schema(key=StringType, call=LongType)
KEY = GroupingKey(ROWS, ["key"])
OUTPUTS = schema(key=StringType, told=StringType)
PAIR = schema(n=LongType, text=StringType)
ENTRY = schema(name=StringType)

NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 3) | st.none()
TEXTS = st.sampled_from(["", "a", "ä", "x" * 40]) | st.none()
PAIRS = st.tuples(NUMBERS, TEXTS)
NAMES = st.sampled_from([("a",), ("b",), ("",)])

# What a processor may do with its states: the state, the method, and what it is given.
CALLS = st.one_of(
    st.tuples(st.just("value"), st.sampled_from(["get", "exists", "clear"]), st.just(())),
    st.tuples(st.just("value"), st.just("update"), st.tuples(PAIRS)),
    st.tuples(st.just("list"), st.sampled_from(["get", "exists", "clear"]), st.just(())),
    st.tuples(st.just("list"), st.just("appendValue"), st.tuples(PAIRS)),
    st.tuples(
        st.just("list"),
        st.sampled_from(["put", "appendList"]),
        st.tuples(st.lists(PAIRS, min_size=1, max_size=3)),
    ),
    st.tuples(
        st.just("map"), st.sampled_from(["iterator", "keys", "values", "clear"]), st.just(())
    ),
    st.tuples(st.just("map"), st.just("updateValue"), st.tuples(NAMES, PAIRS)),
    st.tuples(
        st.just("map"), st.sampled_from(["getValue", "containsKey", "removeKey"]), st.tuples(NAMES)
    ),
)


class Does(StatefulProcessor):
    """Does what its rows say, and tells what came of it."""

    def __init__(self, script: list[Any]) -> None:
        self.script = script

    def init(self, handle: Any) -> None:
        self.states = {
            "value": handle.getValueState("value", PAIR),
            "list": handle.getListState("list", PAIR),
            "map": handle.getMapState("map", ENTRY, PAIR),
        }

    def handleInputRows(self, key: Any, rows: Iterator[Row], timers: Any) -> Iterator[Row]:
        for row in rows:
            state, method, given = self.script[row.call]
            found = getattr(self.states[state], method)(*given)
            if isinstance(found, Iterator):
                found = list(found)
            if state == "map" and isinstance(found, list):
                found = sorted(found, key=repr)  # in Spark by their bytes, in the tester as put
            yield Row(key=key[0], told=repr(found))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(st.tuples(st.sampled_from("abc"), CALLS), max_size=12), max_size=4))
def test_states_hold_what_they_hold_in_the_tester(batches: list[list[tuple[str, Any]]]) -> None:
    script = [call for batch in batches for _, call in batch]
    tester = TwsTester(Does(script))
    declared = process_of(Does(script), key=KEY, rows=ROWS, outputs=OUTPUTS, time_mode="none")
    harness = Harness(declared, parallelism=2, key_groups=4)
    numbers = iter(range(len(script)))
    for batch in batches:
        rows = [Row(key=key, call=next(numbers)) for key, _ in batch]
        expected = []
        for key in sorted({row.key for row in rows}):
            expected += tester.test(key, [row for row in rows if row.key == key])
        found = harness.send(*rows)
        assert sorted(found, key=lambda row: row.key) == expected


# -------------------------------------------------------------------------------------- timers


class Sets(StatefulProcessor):
    """Sets and deletes timers as its rows say, and tells what it sees."""

    def __init__(self, script: list[tuple[str, int]]) -> None:
        self.script = script

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.rung = handle.getValueState("rung", schema(times=LongType))

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self._change(row.call, timerValues)
            yield self._told(key, timerValues, list(self.handle.listTimers()))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        (times,) = self.rung.get() or (0,)
        self.rung.update((times + 1,))
        at = expiredTimerInfo.getExpiryTimeInMs()
        self._change((at + times) % len(self.script), timerValues)
        yield self._told(key, timerValues, (at, times, list(self.handle.listTimers())))

    def _change(self, call: int, timers: Any) -> None:
        what, at = self.script[call]
        if what == "delete":
            self.handle.deleteTimer(at)
        elif at > timers.getCurrentProcessingTimeInMs():  # else Spark and its tester differ
            self.handle.registerTimer(at)

    def _told(self, key: Any, timers: Any, what: Any) -> Row:
        # The tester says that the watermark is -1 where there is none, and Spark that it is 0.
        return Row(key=key[0], told=repr((timers.getCurrentProcessingTimeInMs(), what)))


CHANGES = st.tuples(st.sampled_from(["set", "set", "set", "delete"]), st.integers(1, 60))
STEPS = st.lists(st.tuples(st.sampled_from("abc"), CHANGES), max_size=8) | st.integers(1, 20)


@settings(max_examples=200, deadline=None)
@given(st.lists(STEPS, max_size=8))
def test_timers_ring_as_in_the_tester(steps: list[Any]) -> None:
    """A step is some rows, or so many milliseconds that pass."""
    script = [change for step in steps if isinstance(step, list) for _, change in step]
    tester = TwsTester(Sets(script), timeMode="ProcessingTime")
    declared = process_of(
        Sets(script),
        key=KEY,
        rows=ROWS,
        outputs=OUTPUTS,
        time_mode="processingtime",
    )
    harness = Harness(declared, parallelism=2, key_groups=4)
    numbers, now = iter(range(len(script))), 0
    for step in steps:
        expected: list[Row] = []
        if isinstance(step, int):
            now += step
            expected = sorted(tester.setProcessingTime(now), key=lambda row: row.key)
            at = dt.datetime.fromtimestamp(now / 1000, dt.UTC)
            found = harness.advance_processing_time(at)
        else:
            rows = [Row(key=key, call=next(numbers)) for key, _ in step]
            for key in sorted({row.key for row in rows}):
                expected += tester.test(key, [row for row in rows if row.key == key])
            found = harness.send(*rows)
        assert sorted(found, key=lambda row: row.key) == expected
