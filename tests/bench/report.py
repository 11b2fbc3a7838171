"""What a benchmark says: a measurement, its result, what was wanted, and what ran side by side."""

from __future__ import annotations

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
    """

    name: str
    seconds: float
    durable: str
    events: int = 0
    p50: float | None = None
    p99: float | None = None
    written: int | None = None
    memory: int | None = None


class Row(NamedTuple):
    """A line of the report.

    Parameters:
        arms: what was measured, and then what it is held against, if anything.
        without: why there is nothing to hold it against, where there should be.
        ratio: how many times as fast it is; None for the quotient of the arms' seconds. The median
            of the ratios of pairs is another number.
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
        """How many times as fast it is as what it is held against."""
        if self.ratio is not None or len(self.arms) < 2:
            return self.ratio
        return self.arms[1].seconds / self.arms[0].seconds


STATEKIT_DURABLE = "change files and a manifest for each batch, on the local disk"
SPARK_DURABLE = "RocksDB state store with changelog checkpointing, on the local disk"
NOT_DURABLE = "nothing"
COPIED = "the copied files, which are not synced"


def statekit(seconds: float, events: int = 0, name: str = "statekit") -> Arm:
    return Arm(name, seconds, STATEKIT_DURABLE, events)


def faster(ours: Arm, theirs: Arm) -> str:
    """How two arms compare, in words."""
    times = theirs.seconds / ours.seconds
    digits = 1 if times >= 1.95 else 2
    return f"{times:.{digits}f} times as fast ({ours.seconds:.2f} s against {theirs.seconds:.2f} s)"
