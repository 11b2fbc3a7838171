"""Stateful processors of Spark's whose state tests import, and what they read."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKS = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

ROWS = "shop string, item int, n long, at timestamp"
KEYS = ["shop", "item"]
OUTPUTS = "shop string, item int, told string"
HOUR_MS = 3_600_000

# Types of values, apart: Spark's driver matches a schema with a regular expression that recurses.
NUMBERS = "flag boolean, tiny byte, small short, plain int, large long, narrow float, wide double"
OTHERS = (
    "text string, data binary, day date, at timestamp, local timestamp_ntz, price decimal(20,4)"
)
NESTED = (
    "numbers array<int>, parts map<string,struct<x:float,times:array<timestamp>>>, "
    "inner struct<a:int,deep:struct<at:timestamp,texts:array<string>>>"
)


def numbers(n: int) -> tuple[Any, ...]:
    """A value of each type of numbers."""
    half = n % 2 == 0
    return (half, n % 100 - 50, -n, None if half else n, n << 40, n / 3, -n / 3)


def others(n: int, at: dt.datetime) -> tuple[Any, ...]:
    """The same of other simple types."""
    return (
        None if n % 3 == 0 else f"text {n} ä",
        bytes([n % 256, 0, 255]),
        dt.date(1969, 12, 31) + dt.timedelta(days=n),
        at,
        dt.datetime(2021, 3, 28, 2, 30, 0, n),
        Decimal(n) / 8,
    )


def nested(n: int, at: dt.datetime) -> tuple[Any, ...]:
    """The same of nested types, with nulls within them."""
    return (
        [n, None, -1],
        {"": (n / 7, [at, None]), "ä": None} if n % 2 else {},
        (n, (at, ["x", None])) if n % 3 else None,
    )


STATES: dict[str, tuple[Any, ...]] = {
    "last": ("getValueState", NUMBERS),
    "other": ("getValueState", OTHERS),
    "nested": ("getValueState", NESTED),
    "seen": ("getListState", "n long, at timestamp"),
    "best": ("getMapState", "name string, code int", "n long, part struct<x:float,at:timestamp>"),
}


class Asks(StatefulProcessor):
    """Asks for states, and does nothing with them."""

    last: Any
    other: Any
    nested: Any
    seen: Any
    best: Any

    def __init__(self, states: dict[str, tuple[Any, ...]]) -> None:
        self.states = states

    def init(self, handle: Any) -> None:
        for name, (ask, *given) in self.states.items():
            setattr(self, name, getattr(handle, ask)(name, *given))

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        return iter(())


class Keeps(Asks):
    """Keeps something in every kind of state and tells all it has for each row."""

    def __init__(self) -> None:
        super().__init__(STATES)

    def init(self, handle: Any) -> None:
        super().init(handle)
        self.handle = handle

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            yield self._told(key, (row.n, timerValues.getCurrentWatermarkInMs()))
            self.last.update(numbers(row.n))
            self.other.update(others(row.n, row.at))
            self.nested.update(nested(row.n, row.at))
            if row.n % 5 == 4:
                self.seen.clear()
            self.seen.appendValue((row.n, row.at))
            self.best.updateValue((f"of {row.n % 3}", row.n % 2 or None), (row.n, (0.1, row.at)))
            self.handle.registerTimer(int(row.at.timestamp() * 1000) + 5000)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        at = expiredTimerInfo.getExpiryTimeInMs()
        yield self._told(key, (at, timerValues.getCurrentWatermarkInMs()))

    def _told(self, key: Any, what: Any) -> Row:
        values = [state.get() for state in (self.last, self.other, self.nested)]
        many = list(self.seen.get()), sorted(self.best.iterator(), key=repr)
        told = (*what, *values, *many, sorted(self.handle.listTimers()))
        return Row(shop=key[0], item=key[1], told=repr(told))


class Fades(Asks):
    """Keeps something in every kind of state for an hour, and sets a timer half as far away."""

    def __init__(self) -> None:
        super().__init__(
            {
                "last": ("getValueState", "n long", HOUR_MS),
                "seen": ("getListState", "n long", HOUR_MS),
                "best": ("getMapState", "name string", "n long", HOUR_MS),
            }
        )

    def init(self, handle: Any) -> None:
        super().init(handle)
        self.handle = handle

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            told = (row.n, self.last.get(), list(self.seen.get()), sorted(self.best.iterator()))
            yield Row(shop=key[0], item=None, told=repr(told))
            self.last.update((row.n,))
            self.seen.appendValue((row.n,))
            self.best.updateValue((f"of {row.n % 3}",), (row.n,))
        now = timerValues.getCurrentProcessingTimeInMs()
        self.handle.registerTimer(now + HOUR_MS // 2)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        yield Row(shop=key[0], item=None, told="rang")


class Counts(Asks):
    """Counts rows that it is given as frames of pandas."""

    def __init__(self) -> None:
        super().__init__({"last": ("getValueState", "n long")})

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        frames = list(rows)
        (count,) = self.last.get() or (0,)
        count += sum(map(len, frames))
        self.last.update((count,))
        told = {"shop": [key[0]], "item": [key[1]], "told": [str(count)]}
        yield type(frames[0])(told)
