"""A source that makes records at a rate, for trying things."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from statekit.clock import now_us, sleep_s
from statekit.declared_call import declarable
from statekit.errors import StateTypeError
from statekit.records.union import Records
from statekit.sources.source import Offset, Offsets, Source

_ROWS = 1 << 14
"""Rows of a batch."""


@dataclass
class RateSource(Source):
    """Numbers with times, a number of them per second. See `rate`.

    Parameters:
        per_second: how many.
    """

    per_second: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.per_second) and self.per_second > 0):
            raise StateTypeError(
                f"rate({self.per_second!r}): give a number of records per second above 0"
            )

    def earliest(self) -> Offsets:
        return {"all": {"begin": now_us(), "number": 0}}

    def latest(self, start: Offsets, limit: int, wait_s: float) -> Offsets:
        begin, number = start["all"]["begin"], start["all"]["number"]
        next_in_s = (begin + self._after_us(number) - now_us()) / 1e6
        if 0 < next_in_s <= wait_s:
            sleep_s(next_in_s)
        due = math.floor((now_us() - begin) * self.per_second / 1e6) + 1
        return {"all": {"begin": begin, "number": max(number, min(due, number + limit))}}

    def _after_us(self, number: int) -> int:
        """Return when a number is due, in microseconds after the first one."""
        return math.floor(number * 1e6 / self.per_second)

    def read(self, partition: str, start: Offset | None, end: Offset) -> Iterator[pa.RecordBatch]:
        first, last = 0 if start is None else start["number"], end["number"]
        for low in range(first, last, _ROWS):
            numbers = np.arange(low, min(low + _ROWS, last))
            micros = end["begin"] + np.floor(numbers * 1e6 / self.per_second).astype(np.int64)
            yield pa.record_batch(
                {
                    "number": pa.array(numbers),
                    "at": pa.array(micros, pa.timestamp("us", "UTC")),
                    "__offset": pa.array(numbers),
                }
            )

    def probe(self, declared: Records, limit_s: float) -> Iterator[str]:
        yield "it makes its records itself"

    def lag(self, offsets: Offsets) -> int | None:
        return self.latest(offsets, 1 << 62, 0.0)["all"]["number"] - offsets["all"]["number"]  # type: ignore[no-any-return]


@declarable("sources.rate")
def rate(per_second: float) -> RateSource:
    """Return a source of records with `number: int`, from 0 on, and `at: datetime`.

    Number n has the time of the first start of the job plus n / `per_second` seconds, and is read
    when this time has come. So a job that was down catches up, and reads the same records again
    after a crash. A run without `follow=True` ends when no record is due: at a rate that the job
    does not keep up with, it does not end.

    Parameters:
        per_second: records per second.

    Raises:
        StateTypeError: it is not a number above 0.

    >>> source = rate(1000)
    >>> begun = {"begin": 0, "number": 0}  # in 1970, so that many records are due
    >>> end = source.latest({"all": begun}, 3, 0.0)["all"]
    >>> [batch.column("number").to_pylist() for batch in source.read("all", begun, end)]
    [[0, 1, 2]]
    """
    return RateSource(per_second)
