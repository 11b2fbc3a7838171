"""Interval joins: what an epoch costs with an hour of history, and with 30 days of it.

Both have the same rows in the interval. History is kept because records may be 30 days late.
"""

from __future__ import annotations

import datetime as dt
import statistics
import time
from typing import NamedTuple

import statekit as sk
from statekit.testing import JobHarness
from tests.bench.report import Row

KEYS, DAYS = 1_000, 30
EPOCHS, LEFTS = 15, 4_000

_START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
_NOW = _START + dt.timedelta(days=DAYS)


class Left(NamedTuple):
    key: int
    number: int
    at: dt.datetime


class Right(NamedTuple):
    key: int
    number: int
    at: dt.datetime


def _job() -> sk.Job:
    job = sk.Job("history")
    left, right = job.source("left", Left), job.source("right", Right)
    numbers = {"left": "left.number", "right": "right.number"}
    joined = left.join(
        right, on="key", within="1 hour", event_time="at", lateness=f"{DAYS} days", fields=numbers
    )
    joined.sink("out")
    return job


def _loaded(hours: int) -> JobHarness:
    """A job with one right row of each key in each hour before now."""
    harness = JobHarness(_job(), 1, backend="rocksdb")
    for hour in range(hours, 0, -1):
        at = _NOW - dt.timedelta(hours=hour - 0.5)
        harness.send(right=[Right(key, hour, at) for key in range(KEYS)])
    return harness


def _epoch(harness: JobHarness, number: int) -> float:
    """CPU seconds of an epoch of left records, each of which has one match."""
    at = _NOW + dt.timedelta(microseconds=number)
    records = [Left(n % KEYS, n, at) for n in range(LEFTS)]
    begun = time.process_time()
    found = harness.send(left=records)["out"]
    assert len(found) == LEFTS
    return time.process_time() - begun


def history() -> list[Row]:
    """Epochs of both in turn."""
    short, long = _loaded(1), _loaded(24 * DAYS)
    pairs = [(_epoch(short, n), _epoch(long, n)) for n in range(EPOCHS + 2)][2:]
    ratio = statistics.median(with_days / with_hour for with_hour, with_days in pairs)
    hour = statistics.median(with_hour for with_hour, _ in pairs) / LEFTS * 1e6
    days = statistics.median(with_days for _, with_days in pairs) / LEFTS * 1e6
    return [
        Row(
            f"interval join of an hour, {KEYS:,} keys: {DAYS} days of history against an hour",
            f"{ratio:.2f} times the CPU: {days:.1f} µs per record against {hour:.1f}",
            "≤ 1.2",
        )
    ]
