"""The only place that reads the wall clock and draws random identifiers."""

from __future__ import annotations

import time
import uuid


def now_us() -> int:
    """Return the wall clock time in microseconds since 1970-01-01 UTC."""
    return time.time_ns() // 1000


def stopwatch_s() -> float:
    """Return a monotonic reading in seconds, for measuring durations only."""
    return time.perf_counter()


def cpu_us() -> int:
    """Return the CPU time of this process in microseconds, for measuring only."""
    return time.process_time_ns() // 1000


def sleep_s(seconds: float) -> None:
    """Sleep for a number of seconds."""
    time.sleep(seconds)


def unique_id() -> str:
    """Return a name that no other attempt, on any machine, will choose: 32 hex digits."""
    return uuid.uuid4().hex
