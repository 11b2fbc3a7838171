"""What a benchmark says: a measurement, its result, what was wanted, and what ran side by side."""

from __future__ import annotations

import statistics
from typing import NamedTuple


class Arm(NamedTuple):
    """One of the things that took turns.

    Parameters:
        name: what it is.
        seconds: how long it took, in the median.
        durable: what of its state would have outlived a crash.
        events: how many it handled in that time; 0 where nothing is counted.
        p50, p99: the seconds that half of its epochs, and 99 of 100, took at most.
        written: the bytes that it had left on the disk when it ended.
        memory: the most bytes that it held in memory, all its processes together.
        turns: the seconds of each of its turns, if each was next to one of the others.
    """

    name: str
    seconds: float
    durable: str
    events: int = 0
    p50: float | None = None
    p99: float | None = None
    written: int | None = None
    memory: int | None = None
    turns: tuple[float, ...] = ()


def times_as_fast(ours: Arm, theirs: Arm) -> float:
    """How many times as fast one is: in the median of turns, which met the same noise."""
    if not ours.turns or not theirs.turns:
        return theirs.seconds / ours.seconds
    return statistics.median(b / a for a, b in zip(ours.turns, theirs.turns, strict=True))


class Row(NamedTuple):
    """A line of the report.

    Parameters:
        arms: what was measured, and then what it is compared with, if anything.
        without: why there is nothing to hold it against, where there should be.
        ratio: how many times as fast it is, where the arms do not say it.
        note: what has to be known to read the ratio.
        keys: how many were held, in rows that show what it costs to hold more.
    """

    measured: str
    result: str
    wanted: str
    arms: tuple[Arm, ...] = ()
    without: str = ""
    ratio: float | None = None
    note: str = ""
    keys: int | None = None

    @property
    def times_as_fast(self) -> float | None:
        """How many times as fast it is as what it is compared with."""
        if self.ratio is not None or len(self.arms) < 2:
            return self.ratio
        return times_as_fast(*self.arms[:2])


STATEKIT_DURABLE = "change files and a manifest for each batch, on the local disk"
SPARK_DURABLE = "RocksDB state store with changelog checkpointing, on the local disk"
NOT_DURABLE = "nothing"
IN_THE_JVM = "Spark SQL runs in the JVM and calls no Python"
COPIED = "the copied files, which are not synced"


def statekit(seconds: float, events: int = 0, name: str = "statekit") -> Arm:
    return Arm(name, seconds, STATEKIT_DURABLE, events)


def faster(ours: Arm, theirs: Arm) -> str:
    """How two arms compare, in words."""
    times = times_as_fast(ours, theirs)
    digits = 1 if times >= 1.95 else 2
    return f"{times:.{digits}f} times as fast ({ours.seconds:.2f} s against {theirs.seconds:.2f} s)"
