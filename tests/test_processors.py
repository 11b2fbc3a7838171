"""Stateful processors of Spark's give what they give in Spark's own tester."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.streaming.tws_tester import TwsTester
from pyspark.sql.types import LongType, StringType, StructField, StructType

from statekit.spark.processors import process_of
from statekit.testing import Harness


def schema(**types: Any) -> StructType:
    return StructType([StructField(name, of()) for name, of in types.items()])


ROWS = schema(key=StringType, call=LongType)
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
    declared = process_of(Does(script), key=("key",), rows=ROWS, outputs=OUTPUTS, time_mode="none")
    harness = Harness(declared, parallelism=2, key_groups=4)
    numbers = iter(range(len(script)))
    for batch in batches:
        rows = [Row(key=key, call=next(numbers)) for key, _ in batch]
        expected = []
        for key in sorted({row.key for row in rows}):
            expected += tester.test(key, [row for row in rows if row.key == key])
        found = harness.send(*rows)
        assert sorted(found, key=lambda row: row.key) == expected
