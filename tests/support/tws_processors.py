"""Processors for Spark's transformWithState, which both engines are given unchanged."""

from __future__ import annotations

import datetime as dt
import decimal
import random
from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import DataType, StructType

ALL_TYPES = (
    "b boolean, y tinyint, s smallint, i int, l bigint, f float, d double, c decimal(10,2), "
    "t string, x binary, dd date, ts timestamp, tn timestamp_ntz, a array<int>, "
    "m map<string,bigint>, st struct<p:int,q:array<struct<w:double>>>"
)
MAP_KEY = "k string, n bigint, c decimal(20,3), f double, a array<int>, st struct<p:int,q:date>"
CALLS = "shop string, number bigint, call bigint"
TOLD = "key string, told string"


def columns(before: StructType | None = None, /, **types: str | DataType) -> StructType:
    """A schema with the columns of another one and these, which needs no JVM."""
    schema = StructType(list(before or ()))
    for name, of in types.items():
        schema.add(name, of)
    return schema


Call = tuple[str, str, tuple[Any, ...]]
"""Which state, which method, and what it is given."""


def values(chosen: random.Random) -> tuple[Any, ...]:
    """A row of all types."""
    at = dt.datetime(2020, 1, 2, 3, 4, 5, 678901) + dt.timedelta(hours=chosen.randrange(9999))
    made = (
        chosen.random() < 0.5,
        chosen.randrange(-128, 128),
        chosen.randrange(-(2**15), 2**15),
        chosen.randrange(-(2**31), 2**31),
        chosen.randrange(-(2**63), 2**63),
        chosen.random() * 1e10,
        chosen.choice([0.0, -1.5, float("inf"), 1e300, chosen.random()]),
        decimal.Decimal(chosen.randrange(-9999, 9999)).scaleb(-2),
        chosen.choice(["", "ä☃", "x" * 50]),
        bytes(chosen.randrange(256) for _ in range(chosen.randrange(4))),
        at.date(),
        at,
        at,
        [chosen.randrange(9), None],
        chosen.choice([{"k": chosen.randrange(9)}, {"none": None}, {}]),
        Row(p=chosen.randrange(9), q=[Row(w=chosen.random())]),
    )
    return tuple(None if chosen.random() < 0.1 else value for value in made)


def map_key(chosen: random.Random) -> tuple[Any, ...]:
    number = chosen.randrange(3)
    made = (
        f"k{number}",
        number,
        decimal.Decimal(number) / 8,
        number / 2,
        [number, None],
        Row(p=number, q=dt.date(2020, 1, 1 + number)),
    )
    return tuple(None if chosen.random() < 0.2 else value for value in made)


def script(seed: int, size: int) -> list[Call]:
    """Calls of states."""
    chosen = random.Random(seed)
    calls: list[Call] = []
    for _ in range(size):
        state = chosen.choice(["value", "list", "map"])
        if state == "value":
            calls.append((state, chosen.choice(["get", "exists", "clear", "get"]), ()))
            if chosen.random() < 0.6:
                calls[-1] = (state, "update", (values(chosen),))
        elif state == "list":
            method = chosen.choice(["get", "exists", "put", "appendValue", "appendList", "clear"])
            some = [values(chosen) for _ in range(chosen.randrange(1, 4))]
            listed: dict[str, tuple[Any, ...]] = {"appendValue": (some[0],), "put": (some,)}
            listed["appendList"] = (some,)
            calls.append((state, method, listed.get(method, ())))
        else:
            method = chosen.choice(
                ["updateValue", "updateValue", "getValue", "containsKey", "removeKey"]
                + ["iterator", "keys", "values", "exists"]
                + ["clear"] * (chosen.random() < 0.2)
            )
            key = map_key(chosen)
            given: tuple[Any, ...] = (key, values(chosen)) if method == "updateValue" else ()
            if method in ("getValue", "containsKey", "removeKey"):
                given = (key,)
            calls.append((state, method, given))
    return calls


class Scripted(StatefulProcessor):
    """Does to its states what its rows say, and tells what came of it."""

    def __init__(self, calls: list[Call]) -> None:
        self.calls = calls

    def init(self, handle: Any) -> None:
        self.states = {
            "value": handle.getValueState("value", ALL_TYPES),
            "list": handle.getListState("list of values", ALL_TYPES),
            "map": handle.getMapState("map", MAP_KEY, ALL_TYPES),
        }

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            state, method, given = self.calls[row.call]
            found = getattr(self.states[state], method)(*given)
            if isinstance(found, Iterator):
                found = list(found)
                if state == "map":
                    found.sort(key=repr)
            yield Row(told=repr((method, found)), key=repr(key))


class Alarms(StatefulProcessor):
    """Sets and deletes timers as its rows say; tells what it sees when they come and ring.

    Rows have a time in seconds, `at`, and what to do: to set a timer so many seconds after it, or
    to delete that one.
    """

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.count = handle.getValueState("count", "n int")
        self.seen = handle.getListState("seen", "at bigint")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            at = 0 if row.at is None else int(row.at.timestamp() * 1000)
            self.seen.appendValue((at,))
            if row.does == "set":
                self.handle.registerTimer(at + row.after * 1000)
            elif row.does == "delete":
                self.handle.deleteTimer(at + row.after * 1000)
        told = (timerValues.getCurrentWatermarkInMs(), sorted(self.handle.listTimers()))
        yield Row(key=repr(key), told=repr(("rows", list(self.seen.get()), *told)))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        (count,) = self.count.get() or (0,)
        self.count.update((count + 1,))
        at = expiredTimerInfo.getExpiryTimeInMs()
        if count < 3 and at % 3000 == 0:
            self.handle.registerTimer(at + 4000)
        if at % 5000 == 0:
            self.seen.clear()
        told = (timerValues.getCurrentWatermarkInMs(), at, count, sorted(self.handle.listTimers()))
        yield Row(key=repr(tuple(key)), told=repr(("timer", *told)))

    def handleInitialState(self, key: Any, initialState: Row, timerValues: Any) -> None:
        self.seen.appendValue((initialState.seen,))
        self.count.update((-initialState.seen,))
        if timerValues.getCurrentWatermarkInMs() >= 0:
            self.handle.registerTimer(initialState.seen * 1000)


class Keyed(StatefulProcessor):
    """Tells what its key is, where it is told it."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.rows = handle.getValueState("rows", "n int")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            (count,) = self.rows.get() or (0,)
            self.rows.update((count + 1,))
            self.handle.registerTimer(int(row.at.timestamp() * 1000))
            yield Row(key=repr(key), told=repr((count, row)))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        yield Row(key=repr(key), told=repr(("timer", self.rows.get())))


class Expiring(StatefulProcessor):
    """States with a TTL that is over by the next batch, and with one that is not."""

    def init(self, handle: Any) -> None:
        self.states = [
            (
                handle.getValueState(f"value{ttl}", "n bigint", ttl),
                handle.getListState(f"list{ttl}", "n bigint", ttl),
                handle.getMapState(f"map{ttl}", "n bigint", "n bigint", ttl),
            )
            for ttl in (1, 3_600_000)
        ]

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            told = []
            for value, items, entries in self.states:
                before = (value.get(), list(items.get()), sorted(entries.iterator()))
                there = (value.exists(), items.exists(), entries.exists())
                told.append((before, there, entries.containsKey((row.call,))))
                value.update((row.call,))
                items.appendValue((row.call,))
                entries.updateValue((row.call,), (row.number,))
            yield Row(key=repr(key), told=repr(told))


class ReadsLate(StatefulProcessor):
    """Takes iterators of its states and timers, changes those, and then reads the iterators."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.items = handle.getListState("items", "n bigint")
        self.entries = handle.getMapState("entries", "n bigint", "n bigint")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            taken = [
                *(self.items.get(), self.entries.keys(), self.entries.values()),
                *(self.entries.iterator(), self.handle.listTimers()),
            ]
            if row.call % 3 == 2:
                self.items.clear()
                self.entries.clear()
            self.items.appendValue((row.call,))
            self.entries.updateValue((row.call,), (-row.call,))
            self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 10**9)
            *states, timers = (sorted(one) for one in taken)
            yield Row(key=repr(key), told=repr((states, len(timers))))


class Large(StatefulProcessor):
    """Values of half a megabyte."""

    def init(self, handle: Any) -> None:
        self.value = handle.getValueState("value", "t string, x binary")
        self.items = handle.getListState("items", "t string")
        self.entries = handle.getMapState("entries", "k string", "t string")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            held = self.value.get()
            lengths = [len(text) for (text,) in self.items.get()]
            entries = sorted((name, len(text)) for (name,), (text,) in self.entries.iterator())
            told = (held and (len(held[0]), held[1][:3]), lengths, entries)
            large = chr(97 + row.call) * 512 * 1024
            self.value.update((large, large.encode()))
            self.items.appendValue((large,))
            self.entries.updateValue((f"e{row.call % 2}",), (large,))
            yield Row(key=repr(key), told=repr(told))


class Counts(StatefulProcessor):
    """A running count, to be chained."""

    def init(self, handle: Any) -> None:
        self.held = handle.getValueState("held", "count bigint")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        (count,) = self.held.get() or (0,)
        count += sum(1 for _ in rows)
        self.held.update((count,))
        yield Row(shop=key[0], bucket=count % 3, count=count)


class Largest(StatefulProcessor):
    """What the largest count of a bucket is, behind a count."""

    def init(self, handle: Any) -> None:
        self.held = handle.getValueState("held", "count bigint, shop string")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        found = [(row["count"], str(row.shop)) for row in rows]
        held = self.held.get()
        best = max([*found, held] if held else found)
        self.held.update(best)
        yield Row(key=repr(key), told=repr((sorted(found), best)))


class Frames(StatefulProcessor):
    """Counts rows in frames of pandas, by initial state and with timers."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.held = handle.getValueState("held", columns(count="long", total="double"))
        self.names = handle.getMapState("names", columns(name="string"), columns(count="integer"))

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        count, total = self.held.get() or (0, 0.0)
        sizes = []
        for frame in rows:
            sizes.append(len(frame))
            count += len(frame)
            total += float(frame["value"].sum())
            for name in frame["name"].dropna():
                (seen,) = self.names.getValue((name,)) or (0,)
                self.names.updateValue((name,), (seen + 1,))
            for at in frame["at"]:
                self.handle.registerTimer(int(at.tz_localize("UTC").timestamp() * 1000) + 5000)
            types = sorted(str(frame[name].dtype) for name in frame.columns)
        self.held.update((count, total))
        told = [repr((sizes, list(frame.columns), types)), repr(sorted(self.names.iterator()))]
        yield pd.DataFrame({"total": total, "told": told, "key": repr(key), "count": count})

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        at = expiredTimerInfo.getExpiryTimeInMs()
        told = [repr(("timer", at, self.held.get()))]
        yield pd.DataFrame({"key": [repr(key)], "told": told, "count": [0], "total": [None]})

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        count, total = self.held.get() or (0, 0.0)
        self.held.update((count + 100 * len(initialState), total + initialState["held"].sum()))


class Sessions(StatefulProcessor):
    """Tells the rows of a key five seconds after the last of them, with that time."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.seen = handle.getListState("seen", "at bigint")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            if row.at is None:
                continue
            at = int(row.at.timestamp() * 1000)
            self.seen.appendValue((at,))
            for other in list(self.handle.listTimers()):
                self.handle.deleteTimer(other)
            self.handle.registerTimer(max(at for (at,) in self.seen.get()) + 5000)
        yield from ()

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        end = dt.datetime.fromtimestamp(expiredTimerInfo.getExpiryTimeInMs() / 1000, dt.UTC)
        count = sum(1 for _ in self.seen.get())
        self.seen.clear()
        yield Row(key=key.key, end=end, count=count)


class Ticks(StatefulProcessor):
    """A timer for each row, milliseconds from now; the first that rings of a key sets another."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.rung = handle.getValueState("rung", "times int")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + row.call)
            yield Row(key=repr(key), told=f"row {row.call}")

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        (times,) = self.rung.get() or (0,)
        self.rung.update((times + 1,))
        now = timerValues.getCurrentProcessingTimeInMs()
        if not times:
            self.handle.registerTimer(now + 50)
        is_due = expiredTimerInfo.getExpiryTimeInMs() <= now
        yield Row(key=repr(tuple(key)), told=f"timer {times}, due {is_due}")
