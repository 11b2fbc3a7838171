"""The CPU time of this process and all others that it started, the JVM and servers included. And
the largest memory of this process.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import psutil

_IDLE_S = 0.5


class Spent(NamedTuple):
    """What a turn took.

    Parameters:
        seconds: by the clock.
        cpu: seconds of all processors, without what these processes take when idle.
    """

    seconds: float
    cpu: float


def spent_by(turn: Callable[[], float]) -> Spent:
    """Run a turn, which returns its seconds.

    Queries that wait for new files take a part of a processor all the time. That part is measured
    before the turn.
    """
    start = _cpu()
    time.sleep(_IDLE_S)
    before = _cpu()
    idle = (before - start) / _IDLE_S
    began = time.perf_counter()
    seconds = turn()
    return Spent(seconds, _cpu() - before - idle * (time.perf_counter() - began))


def largest_memory() -> int:
    """The most bytes of memory that this process has held. What `getrusage` returns begins with
    those of the process that started it.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


def _cpu() -> float:
    own, total = psutil.Process(), 0.0
    for process in [own, *own.children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:  # it has ended meanwhile
            continue
        total += times.user + times.system
    return total
