"""Stateful processors of Spark's give what they give in Spark's own tester."""

from __future__ import annotations

import copy
import datetime as dt
import decimal
import itertools
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy
import pandas
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import Row
from pyspark.sql import types as sql
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.streaming.tws_tester import TwsTester
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

import statekit as sk
from statekit.codec.key_codec import key_codec
from statekit.spark.tws.grouping_key import GroupingKey
from statekit.spark.tws.pandas_frames import FrameOptions, frames_of, takes_frames
from statekit.spark.tws.process import ProcessorCalls, ProcessorProcess, process_calling
from statekit.spark.tws.sql_values import SqlValues
from statekit.testing import Harness
from tests.support.effort import SOAK


def schema(**types: Any) -> StructType:
    return StructType([StructField(name, of()) for name, of in types.items()])


ROWS = schema(key=StringType, call=LongType, at=TimestampType)
KEY = GroupingKey(ROWS, ["key"])
OUTPUTS = schema(key=StringType, told=StringType)
PAIR = schema(n=LongType, text=StringType)
ENTRY = schema(name=StringType)

FUTURE = dt.datetime(2100, 1, 1, tzinfo=dt.UTC)

NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 3) | st.none()
TEXTS = st.sampled_from(["", "a", "ä", "x" * 40]) | st.none()
NUMBERS_ONLY = st.integers(0, 9)
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
            yield Row(key=key[0], told=repr(self.found(*self.script[row.call])))

    def found(self, state: str, method: str, given: tuple[Any, ...]) -> Any:
        """What a method of a state gives, as both tell it."""
        found = getattr(self.states[state], method)(*given)
        if isinstance(found, Iterator):  # entries by their bytes in Spark, in its tester as put
            return sorted(found, key=repr) if "map" in state else list(found)
        return tuple(found) if isinstance(found, Row) else found  # the tester gives a tuple


def declared(processor: StatefulProcessor, mode: Any = "none", **timed: Any) -> ProcessorProcess:
    """A processor as a process function of rows by `key`."""
    return process_calling(ProcessorCalls(processor, OUTPUTS, mode, KEY, **timed))


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("a`b", "a`b"),
        ("`a``b`", "a`b"),
        ("`a.b`", "a.b"),
        ("a.n", "a n as key"),
        ("`a`.n", "a n as key"),
    ],
)
def test_a_key_may_be_named_in_quotes_as_in_sql(name: str, column: str) -> None:
    rows = schema(**{"a`b": LongType, "a.b": LongType})
    rows.add("a", schema(n=LongType))
    assert GroupingKey(rows, [name]).columns == (column,)


class Both:
    """A processor in the harness, and one that does the same in Spark's tester.

    Parameters:
        made: makes either.
        mode: the time mode.
        key: the columns that rows are grouped by.
        rows: what they are given; the field `at` is the event time, and far ahead.
    """

    def __init__(
        self, made: Callable[[], Any], mode: Any, key: Sequence[str], rows: StructType
    ) -> None:
        calls = ProcessorCalls(
            made(),
            OUTPUTS,
            mode,
            GroupingKey(rows, key),
            event_time="at" if mode == "eventtime" else None,
            lateness_us=200 * 366 * 86_400_000_000,  # so that rows do not move event time
        )
        self.harness = Harness(process_calling(calls), parallelism=3, key_groups=16)
        self._tester = TwsTester(made(), timeMode=mode, eventTimeExtractor=lambda row: 1 << 62)
        self._key, self._mode, self._now = key, mode, 0

    def send(self, given: Iterable[Row]) -> None:
        """Handle rows in both; the same is put out for each key."""
        rows, expected = list(given), []
        of_keys: dict[tuple[Any, ...], list[Row]] = {}
        for row in rows:
            of_keys.setdefault(tuple(row[name] for name in self._key), []).append(row)
        for key, own in of_keys.items():
            expected += self._tester.test(key if len(key) > 1 else key[0], own)
        assert _by_key(self.harness.send(*rows)) == _by_key(expected)

    def advance(self, milliseconds: int) -> None:
        """Let time pass in both; the same timers ring."""
        self._now += milliseconds
        now = dt.datetime.fromtimestamp(self._now / 1000, dt.UTC)
        ours: Any = self.harness.advance_processing_time
        theirs: Any = self._tester.setProcessingTime
        if self._mode == "eventtime":
            ours, theirs = self.harness.advance_watermark, self._tester.setWatermark
        assert _by_key(ours(now)) == _by_key(theirs(self._now))


def _by_key(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: row.key)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(st.tuples(st.sampled_from("abc"), CALLS), max_size=12), max_size=4))
def test_states_have_the_contents_that_they_have_in_the_tester(
    batches: list[list[tuple[str, Any]]],
) -> None:
    script = [call for batch in batches for _, call in batch]
    both = Both(lambda: Does(script), "none", key=["key"], rows=ROWS)
    numbers = iter(range(len(script)))
    for batch in batches:
        both.send(Row(key=key, call=next(numbers), at=FUTURE) for key, _ in batch)


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
        elif at > _now(timers):  # else Spark and its tester differ
            self.handle.registerTimer(at)

    def _told(self, key: Any, timers: Any, what: Any) -> Row:
        return Row(key=key[0], told=repr((_now(timers), what)))


def _now(timers: Any) -> int:
    """What the clock of timers shows: the other one stands still.

    Where there is no watermark, the tester says that it is -1, and Spark that it is 0.
    """
    times = timers.getCurrentProcessingTimeInMs(), timers.getCurrentWatermarkInMs()
    return int(max(times))


CHANGES = st.tuples(st.sampled_from(["set", "set", "set", "delete"]), st.integers(1, 60))
STEPS = st.lists(st.tuples(st.sampled_from("abc"), CHANGES), max_size=8) | st.integers(1, 20)


@pytest.mark.parametrize("mode", ["processingtime", "eventtime"])
@settings(max_examples=150, deadline=None)
@example(steps=[[("a", ("set", 2)), ("a", ("set", 3)), ("a", ("delete", 3))], 1, 5])
@example(steps=[[("a", ("set", 4)), ("a", ("set", 5)), *[("a", ("delete", 5))] * 5], 20])
@given(steps=st.lists(STEPS, max_size=8))
def test_timers_ring_as_in_the_tester(mode: Any, steps: list[Any]) -> None:
    """A step is some rows, or so many milliseconds that pass."""
    script = [change for step in steps if isinstance(step, list) for _, change in step]
    both = Both(lambda: Sets(script), mode, key=["key"], rows=ROWS)
    numbers = iter(range(len(script)))
    for step in steps:
        if isinstance(step, int):
            both.advance(step)
        else:
            both.send(Row(key=key, call=next(numbers), at=FUTURE) for key, _ in step)


# ----------------------------------------------------------------------- states of all kinds

OF = sql.StructType().add("p", "integer").add("q", sql.ArrayType(schema(w=sql.DoubleType)))
NAMED = {"c": sql.DecimalType(8, 2), "b": sql.BooleanType(), "x": sql.BinaryType()}
DEEP_FIELDS = {
    **NAMED,
    "d": sql.DoubleType(),
    "day": sql.DateType(),
    "at": sql.TimestampNTZType(),
    "a": sql.ArrayType(StringType()),
    "m": sql.MapType(StringType(), LongType()),
    "of": OF,
}
ENTRY_FIELDS = {**NAMED, "name": StringType(), "n": LongType(), "day": sql.DateType()}
DEEP = StructType([StructField(name, of) for name, of in DEEP_FIELDS.items()])
ENTRIES = StructType([StructField(name, of) for name, of in ENTRY_FIELDS.items()]).add(
    "f", "double"
)
KEYS = schema(shop=StringType, n=LongType, day=sql.DateType, raw=sql.BinaryType)
KEYS = KEYS.add("flag", "boolean").add("call", "long").add("at", "timestamp")
GROUPED_BY = KEYS.names[:-2]
MANY = 2_000_000 if SOAK else 6_000
CALLS_OF_A_RUN = 2_000


def deep(chosen: random.Random) -> tuple[Any, ...]:
    number = chosen.randrange(100)
    at = dt.datetime(2020, 1, 1) + dt.timedelta(microseconds=chosen.randrange(10**15))
    made = (
        decimal.Decimal(25 * number).scaleb(-2),
        number > 50,
        bytes([number, 0]),
        chosen.choice([chosen.random(), float("inf"), 0.0, -1.5]),
        at.date(),
        at,
        ["ä" * number, None],
        {"k": number, "none": None},
        Row(p=number, q=[Row(w=number / 3), None]),
    )
    return tuple(None if chosen.random() < 0.1 else value for value in made)


def entry(chosen: random.Random) -> tuple[Any, ...]:
    number = chosen.randrange(4)
    day, amount = dt.date(1960, 1, 1 + number), decimal.Decimal(25 * (number - 2)).scaleb(-2)
    made = amount, number > 1, bytes([number]), f"k{number}", number, day, number / 3 - 1
    return tuple(None if chosen.random() < 0.1 else value for value in made)


class DoesAll(Does):
    """The same with several states of each kind, and timers, in whose callbacks it goes on."""

    def init(self, handle: Any) -> None:
        self.states = {
            "timers": handle,
            "value": handle.getValueState("value", PAIR),
            "deep value": handle.getValueState("deep value", DEEP),
            "list": handle.getListState("list", PAIR),
            "deep list": handle.getListState("deep list", DEEP),
            "map": handle.getMapState("map", ENTRY, DEEP),
            "deep map": handle.getMapState("deep map", ENTRIES, PAIR),
        }

    def handleInputRows(self, key: Any, rows: Iterator[Row], timers: Any) -> Iterator[Row]:
        for row in rows:
            yield self._done(key, row.call, timers)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        at = expiredTimerInfo.getExpiryTimeInMs()
        yield self._done(key, at * 31 % len(self.script), timerValues)

    def _done(self, key: Any, call: int, timers: Any) -> Row:
        state, method, given = self.script[call]
        now = _now(timers)
        if method in ("registerTimer", "deleteTimer"):
            given = (now + 1 + given[0],)  # where one is due, Spark and its tester differ
        given = copy.deepcopy(given)  # the tester appends to a list that it was given
        found = self.found(state, method, given)
        key = key[0] if isinstance(key[0], tuple) else tuple(key)  # the tester wraps it once more
        return Row(key=repr(key), told=repr((now, method, found)))


def random_call(chosen: random.Random, *, timed: bool) -> tuple[str, str, tuple[Any, ...]]:
    if timed and chosen.random() < 0.2:
        method = chosen.choice(["registerTimer", "registerTimer", "deleteTimer", "listTimers"])
        return "timers", method, () if method == "listTimers" else (chosen.randrange(60),)
    kind, is_deep = chosen.choice(["value", "list", "map"]), chosen.random() < 0.5
    state = f"deep {kind}" if is_deep else kind
    pair = chosen.randrange(9), chosen.choice(["", "a", None])
    is_pair = is_deep if kind == "map" else not is_deep
    some = [pair if is_pair else deep(chosen) for _ in range(chosen.randrange(1, 4))]
    key = entry(chosen) if is_deep else (chosen.choice("ab"),)
    given: dict[str, dict[str, tuple[Any, ...]]] = {
        "value": {"update": (some[0],), "get": (), "exists": (), "clear": ()},
        "list": {"put": (some,), "appendValue": (some[0],), "appendList": (some,), "get": ()},
        "map": {"updateValue": (key, some[0]), "getValue": (key,), "containsKey": (key,)},
    }
    given["list"] |= {"exists": ()} | ({"clear": ()} if chosen.random() < 0.3 else {})
    given["map"] |= {"removeKey": (key,), "iterator": (), "keys": (), "values": ()}
    given["map"] |= {"clear": ()} if chosen.random() < 0.1 else {}
    method = chosen.choice([*given[kind]])
    return state, method, given[kind][method]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(MANY // CALLS_OF_A_RUN))
def test_random_calls_have_the_results_that_they_have_in_the_tester(seed: int) -> None:
    chosen = random.Random(seed)
    mode: Any = ["none", "processingtime", "eventtime"][seed % 3]
    script = [random_call(chosen, timed=mode != "none") for _ in range(CALLS_OF_A_RUN)]
    days, raws = [dt.date(1969, 12, 31), None], [b"", bytes(1), None]
    keys = [
        (chosen.choice(["a", None]), chosen.choice([1, -(2**40), None]), *rest)
        for rest in itertools.product(days, raws, [True, None])
    ]
    both = Both(lambda: DoesAll(script), mode, key=GROUPED_BY, rows=KEYS)
    numbers, row = iter(range(CALLS_OF_A_RUN)), Row(*KEYS.names)
    while rows := [row(*chosen.choice(keys), n, FUTURE) for n in itertools.islice(numbers, 200)]:
        both.send(rows)
        if mode != "none":
            both.advance(chosen.randrange(1, 20))
        if chosen.random() < 0.2:
            both.harness.rescale(chosen.randrange(1, 6))


# ------------------------------------------------------------------------------------- expiry


class Ages(StatefulProcessor):
    """Writes to states with a TTL of ten milliseconds as its rows say, and tells what they hold."""

    def __init__(self, script: list[tuple[str, int]]) -> None:
        self.script = script

    def init(self, handle: Any) -> None:
        one = schema(n=LongType)
        self.value = handle.getValueState("value", one, 10)
        self.items = handle.getListState("items", one, 10)
        self.entries = handle.getMapState("entries", one, one, 10)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            what, n = self.script[row.call]
            if what == "value":
                self.value.update((n,))
            elif what == "items":
                self.items.appendValue((n,))
            elif what == "entries":
                self.entries.updateValue((n % 3,), (n,))
            elif what == "clear":
                self.items.clear()
        value, items = self.value.get(), [n for (n,) in self.items.get()]
        entries = {k: n for (k,), (n,) in self.entries.iterator()}
        there = self.value.exists(), self.items.exists(), self.entries.exists()
        yield Row(key=key[0], told=repr((value and value[0], items, entries, there)))


class Model:
    """What is held for a key, with the times at which it was written."""

    def __init__(self) -> None:
        self.value: tuple[int, int] | None = None
        self.items: list[tuple[int, int]] = []
        self.entries: dict[int, tuple[int, int]] = {}

    def do(self, what: str, n: int, now: int) -> None:
        if what == "value":
            self.value = (n, now)
        elif what == "items":
            self.items.append((n, now))
        elif what == "entries":
            self.entries[n % 3] = (n, now)
        elif what == "clear":
            self.items = []

    def told(self, now: int) -> str:
        value = self.value[0] if self.value and self.value[1] + 10 > now else None
        items = [n for n, at in self.items if at + 10 > now]
        entries = {k: n for k, (n, at) in sorted(self.entries.items()) if at + 10 > now}
        return repr((value, items, entries, (value is not None, bool(items), bool(entries))))


WRITES = st.tuples(st.sampled_from(["value", "items", "entries", "clear", "look"]), NUMBERS_ONLY)
AGING = st.lists(st.tuples(st.sampled_from("ab"), WRITES), max_size=6) | st.integers(1, 8)


@settings(max_examples=150, deadline=None)
@given(steps=st.lists(AGING, max_size=10))
def test_a_value_with_a_ttl_is_gone_when_the_ttl_has_passed(steps: list[Any]) -> None:
    """Each element and each entry by itself, counted from when it was written last."""
    script = [write for step in steps if isinstance(step, list) for _, write in step]
    made = declared(Ages(script), "processingtime")
    harness = Harness(made, parallelism=2, key_groups=4)
    models, numbers, now = {key: Model() for key in "ab"}, iter(range(len(script))), 0
    for step in steps:
        if isinstance(step, int):
            now += step
            harness.advance_processing_time(dt.datetime.fromtimestamp(now / 1000, dt.UTC))
            continue
        rows = [Row(key=key, call=next(numbers), at=FUTURE) for key, _ in step]
        for key, (what, n) in step:
            models[key].do(what, n, now)
        expected = {key: models[key].told(now) for key, _ in step}
        assert {row.key: row.told for row in harness.send(*rows)} == expected


# ----------------------------------------------------------- what is deleted, and what is added


class Deletes(StatefulProcessor):
    """Asks for states and deletes them at once, and tells how each call of them fails."""

    def init(self, handle: Any) -> None:
        self.kept = handle.getValueState("kept", PAIR)
        self.deleted = [
            handle.getValueState("value", PAIR),
            handle.getListState("list", PAIR),
            handle.getMapState("map", ENTRY, PAIR),
        ]
        for name in ("value", "list", "map", "never there"):
            handle.deleteIfExists(name)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        self.kept.update((len(list(rows)), "rows"))
        for state in self.deleted:
            for use in (state.exists, state.clear, lambda state=state: state.update((1, ""))):
                try:
                    use()
                except PySparkRuntimeError as error:
                    yield Row(key=key[0], told=str(error))


def test_a_state_that_init_asks_for_and_deletes_fails_when_it_is_used_as_in_spark() -> None:
    made = declared(Deletes())
    harness = Harness(made)
    told = [row.told for row in harness.send(Row(key="a", call=0, at=FUTURE))]
    kinds = ["value"] * 3 + ["value"] * 3 + ["map"] * 3
    names = ["value"] * 3 + ["list"] * 3 + ["map"] * 3
    doing = ["checking {} state exists", "clearing {} state", "updating {} state"] * 3
    assert told == [
        f"Error {what.format(kind)}: init() deletes {name!r}"
        for what, kind, name in zip(doing, kinds, names, strict=True)
    ]
    assert harness.state("kept", "a") == (1, "rows")


class Grown(StatefulProcessor):
    """Keeps the number of its row in as many fields as its schema has, and tells what it held."""

    def __init__(self, *fields: str) -> None:
        self.fields = fields

    def init(self, handle: Any) -> None:
        values = schema(**dict.fromkeys(self.fields, LongType))
        self.states = handle.getValueState("value", values), handle.getListState("list", values)
        self.entries = handle.getMapState("map", ENTRY, values)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        value, items = self.states
        held = value.get(), list(items.get()), self.entries.getValue(("a",))
        yield Row(key=key[0], told=repr(held))
        numbers = [(row.call,) * len(self.fields) for row in rows]
        value.update(numbers[-1])
        items.appendList(numbers)
        self.entries.updateValue(("a",), numbers[-1])


def test_a_field_that_a_schema_gets_later_is_none_in_stored_values(tmp_path: Path) -> None:
    def told(call: int, *fields: str) -> str:
        made = declared(Grown(*fields))
        (row,) = Harness(made, checkpoint=tmp_path).send(Row(key="k", call=call, at=FUTURE))
        return str(row.told)

    assert told(1, "n") == "(None, [], None)"
    assert told(2, "n", "m") == "((1, None), [(1, None)], Row(n=1, m=None))"
    assert told(3, "m", "n") == "((2, 2), [(None, 1), (2, 2)], Row(m=2, n=2))"
    assert told(4, "n") == "((3,), [(1,), (2,), (3,)], Row(n=3))"


class Wide(Grown):
    """The same with fields of any types."""

    def __init__(self, **fields: sql.DataType) -> None:
        super().__init__(*fields)
        self.types = fields

    def init(self, handle: Any) -> None:
        fields = [StructField(name, of) for name, of in self.types.items()]
        self.held = handle.getValueState("held", StructType(fields))

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        yield Row(key=key[0], told=repr((self.held.get(), len(list(rows)))))


def test_numbers_of_a_state_may_get_more_bits_and_not_fewer(tmp_path: Path) -> None:
    def run(**fields: sql.DataType) -> None:
        made = declared(Wide(**fields))
        Harness(made, checkpoint=tmp_path).send(Row(key="k", call=1, at=FUTURE))

    run(n=sql.ShortType(), few=sql.ArrayType(sql.FloatType()), kept=sql.StringType())
    run(n=sql.LongType(), few=sql.ArrayType(sql.DoubleType()), kept=sql.StringType())
    for narrow in ({"n": sql.IntegerType()}, {"few": sql.ArrayType(sql.FloatType())}):
        wide = {"n": sql.LongType(), "few": sql.ArrayType(sql.DoubleType())}
        with pytest.raises(sk.StateSchemaError, match=r"numbers of 64 bits .* type has 32 now"):
            run(**{**wide, **narrow}, kept=sql.StringType())
    run(kept=sql.StringType())
    with pytest.raises(sk.StateSchemaError, match=r"64 bits are stored as held\.n"):
        run(n=sql.ByteType(), kept=sql.StringType())
    run(n=sql.LongType(), kept=sql.StringType())


def test_a_value_is_whatever_has_as_many_parts_as_the_schema_has_fields() -> None:
    pair = SqlValues(PAIR, "state 'pair'", "pair")
    for value in ([7, "x"], iter((7, "x")), pandas.Series([7, "x"]), {"text": "x", "n": 7}):
        assert pair.stored(value) == (7, "x")
    name = SqlValues(ENTRY, "state 'map', key", "entry", as_key=True)
    assert name.stored("a") == ("a",)  # a text is its letters
    assert name.stored(numpy.array(["abc"])) == ("abc",)
    for wrong in ("abc", "", 7, None):
        with pytest.raises(sk.StateTypeError, match="is no tuple"):
            name.stored(wrong)
    with pytest.raises(sk.StateTypeError, match="it has 3 values, and there are 1 fields"):
        name.stored(iter("abc"))


ODD = "😀 \ud800"


@pytest.mark.parametrize(
    ("of", "value", "stored"),
    [
        (sql.IntegerType(), True, None),
        (sql.IntegerType(), 2**31 + 1, -(2**31) + 1),
        (sql.ByteType(), 200, -56),
        (sql.LongType(), 2**63, None),
        (sql.DoubleType(), 7, None),
        (sql.DoubleType(), True, None),
        (sql.FloatType(), decimal.Decimal(7), None),
        (sql.DecimalType(10, 2), 7, None),
        (sql.DecimalType(10, 2), True, None),
        (sql.DecimalType(10, 2), decimal.Decimal("-0.004"), decimal.Decimal("0.00")),
        (sql.DecimalType(10, 2), decimal.Decimal("NaN"), None),
        (sql.StringType(), 7.0, "7.0"),
        (sql.StringType(), decimal.Decimal("1E+5"), "1E+5"),
        (sql.StringType(), ODD, "😀 \ufffd"),
        (sql.BinaryType(), 7, None),
        (sql.NullType(), 7, None),
        (sql.DateType(), dt.datetime(2020, 1, 2, 3), dt.date(2020, 1, 2)),
        (
            sql.TimestampNTZType(),
            dt.datetime(2020, 1, 2, 3, tzinfo=dt.UTC),
            dt.datetime(2020, 1, 2, 3),
        ),
        (sql.ArrayType(sql.DoubleType()), [1, 1.5], [None, 1.5]),
        (sql.ArrayType(sql.IntegerType()), 7, None),
        (sql.MapType(sql.StringType(), sql.DoubleType()), {1: 1, "b": 1.5}, {"1": None, "b": 1.5}),
    ],
)
def test_a_value_of_another_type_is_stored_as_spark_stores_it(
    of: sql.DataType, value: Any, stored: Any
) -> None:
    """The tests on Spark compare all of them with Spark's own conversion."""
    values = SqlValues(StructType([StructField("v", of)]), "state 'odd'", "odd")
    (found,) = values.given(values.stored((value,)))
    assert repr(found) == repr(stored)


@pytest.mark.parametrize(
    ("of", "value", "told"),
    [
        (sql.DecimalType(4, 2), decimal.Decimal("99.995"), "has more digits than decimal"),
        (sql.DoubleType(), decimal.Decimal("Infinity"), "is no double"),
        (sql.IntegerType(), dt.datetime(2020, 1, 1, tzinfo=dt.UTC), "is no int"),
        (sql.DateType(), "2020-01-01", "is no date"),
        (sql.DateType(), pandas.NaT, "is no date"),
        (sql.TimestampType(), dt.date(2020, 1, 1), "is no datetime"),
        (
            sql.TimestampType(),
            dt.datetime(1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=2))),
            "is no instant within the years 1 to 9999",
        ),
        (sql.StringType(), [1], "is no str, and Spark stores how Java shows its object"),
        (sql.IntegerType(), object(), "is no int"),
        (sql.ArrayType(sql.DateType()), 7, "is no list"),
        (sql.MapType(sql.IntegerType(), sql.LongType()), {"a": 1}, "'a' is no key of the map"),
        (sql.MapType(sql.DateType(), sql.LongType()), [7], "is no dict"),
        (PAIR, 7, "is no tuple"),
        (PAIR, (7,), "it has 1 values, and there are 2 fields"),
    ],
)
def test_a_value_that_makes_a_batch_of_spark_fail_is_refused(
    of: sql.DataType, value: Any, told: str
) -> None:
    values = SqlValues(StructType([StructField("v", of)]), "state 'odd'", "odd")
    with pytest.raises(sk.StateTypeError, match=f"state 'odd' cannot hold .*{told}"):
        values.stored((value,))


def test_a_value_of_which_spark_stores_null_is_logged_once_for_its_class(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("statekit.spark.tws.sql_conversions._LOGGED", set())
    values = SqlValues(schema(logged=sql.DoubleType), "state 'mean'", "mean")
    with caplog.at_level("WARNING", logger="statekit.spark"):
        for value in (7, 8, "x", 7):
            assert values.stored((value,)) == (None,)
        assert values.stored((7.5,)) == (7.5,)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    assert told[0].startswith("state 'mean', field 'logged' of type double is given 7 (int). As on")


class Point:
    def __init__(self) -> None:
        self.n, self.text = 7, "x"


def test_a_struct_is_a_row_a_tuple_a_dict_or_an_object() -> None:
    values = SqlValues(StructType([StructField("v", PAIR)]), "state 'odd'", "odd")
    for value in (Row(n=7, text="x"), (7, "x"), [7, "x"], {"text": "x", "n": 7}, Point()):
        assert values.given(values.stored((value,))) == (Row(n=7, text="x"),)


class RingsAtOnce(StatefulProcessor):
    """Sets a timer at the watermark that it sees."""

    def init(self, handle: Any) -> None:
        self.handle = handle

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        self.handle.registerTimer(timerValues.getCurrentWatermarkInMs())
        yield Row(key=key[0], told=f"{len(list(rows))} rows")

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        yield Row(key=key[0], told=f"rang at {expiredTimerInfo.getExpiryTimeInMs()}")


def test_the_first_watermark_is_that_of_1970_and_fires_timers_due_then() -> None:
    made = declared(RingsAtOnce(), "eventtime", event_time="at", lateness_us=10_000_000)
    harness = Harness(made, parallelism=2)

    def told(*seconds: int) -> list[str]:
        at = (dt.datetime.fromtimestamp(second, dt.UTC) for second in seconds)
        return [row.told for row in harness.send(*(Row(key="a", call=0, at=time) for time in at))]

    assert told(20) == ["1 rows", "rang at 0"]
    assert told(4) == ["1 rows", "rang at 10000"]  # in time: the batch before had no watermark
    assert told(2, 11, 13, 15) == ["3 rows", "rang at 10000"]


def test_a_ttl_of_zero_is_none() -> None:
    class Kept(Sets):
        def init(self, handle: Any) -> None:
            handle.getValueState("kept", PAIR, 0)

    for mode in ("none", "processingtime"):
        assert [spec.ttl for spec in declared(Kept([]), mode).states] == [None]


class Uses(Sets):
    """Does with its handle what it is made to, when there are rows."""

    def __init__(self, use: Callable[[Any], object]) -> None:
        super().__init__([])
        self.use = use

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        self.use(self.handle)
        yield from ()


def send_one_to(processor: StatefulProcessor) -> None:
    Harness(declared(processor)).send(Row(key="a", call=0, at=FUTURE))


@pytest.mark.parametrize("call", ["registerTimer", "deleteTimer", "listTimers"])
def test_timers_without_a_time_mode_are_an_error_that_says_so(call: str) -> None:
    given = () if call == "listTimers" else (1,)
    with pytest.raises(sk.ProcessError, match=r"PySparkValueError: .*Timers with TimeMode.None"):
        send_one_to(Uses(lambda handle: getattr(handle, call)(*given)))


def test_a_state_that_init_did_not_ask_for_is_refused_when_it_is_asked_for_later() -> None:
    with pytest.raises(sk.StateTypeError, match="declares a value state 'late', and did not when"):
        send_one_to(Uses(lambda handle: handle.getValueState("late", PAIR)))


def test_a_state_that_init_does_not_delete_is_not_deleted_later_without_a_word() -> None:
    with pytest.raises(sk.StateTypeError, match=r"deletes state 'rung'.* and clear\(\) to remove"):
        send_one_to(Uses(lambda handle: handle.deleteIfExists("rung")))


def test_a_processor_of_rows_that_is_declared_for_frames_gets_an_error_with_advice() -> None:
    class TakesFrames(Bare):
        def handleInputRows(self, key, rows, timers):  # type: ignore[no-untyped-def]
            for frame in rows:
                yield from frame.iterrows()

    with pytest.raises(sk.ProcessError, match=r"iterrows.* of pandas, say pandas=True\. Nothing"):
        send_one_to(TakesFrames([]))


# ----------------------------------------------------------------------------- keys and frames


def test_a_map_has_no_key_that_equals_nothing() -> None:
    values = SqlValues(schema(f=sql.DoubleType), "state 'm', key", "entry", as_key=True)
    codec = key_codec(values.annotation)
    assert codec.encode(values.stored((-0.0,))) == codec.encode(values.stored((0.0,)))
    with pytest.raises(sk.StateTypeError, match="NaN equals nothing"):
        codec.encode(values.stored((float("nan"),)))


class Framed(Does):
    def handleInputRows(
        self, key: Any, rows: Iterator[pandas.DataFrame], timers: Any
    ) -> Iterator[pandas.DataFrame]:
        yield from rows


class Either(Does):
    def handleInputRows(
        self, key: Any, rows: Iterator[pandas.DataFrame] | Iterator[Row], timers: Any
    ) -> Any:
        yield from rows


class Bare(Does):
    def handleInputRows(self, key, rows, timers):  # type: ignore[no-untyped-def]
        yield from rows


def test_annotations_decide_which_processors_take_frames() -> None:
    assert takes_frames(Framed([]))
    assert not any(map(takes_frames, [Does([]), Either([]), Bare([])]))


def test_a_frame_gets_rows_until_there_are_as_many_or_as_many_bytes_as_the_session_allows() -> None:
    options = FrameOptions("UTC", 4, 1000, False, True, True, False)

    def sizes(*lengths: int) -> list[int]:
        return [len(frame) for frame in frames_of(iter([("x" * n,) for n in lengths]), options)]

    assert sizes(*[1] * 9) == [4, 4, 1]
    assert sizes(1, 2000, 1, 600, 600, 1, 1, 1, 1) == [2, 3, 4]
    assert sizes() == []


def test_frames_without_pandas_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(sk.StateTypeError, match="install pandas and PySpark"):
        FrameOptions.of_session(None)  # type: ignore[arg-type]
