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
    """

    name: str
    seconds: float
    durable: str
    events: int = 0


class Row(NamedTuple):
    """A line of the report.

    Parameters:
        arms: what was measured, and then what it is held against, if anything.
        without: why there is nothing to hold it against, where there should be.
        ratio: how many times as fast it is; None for the quotient of the arms' seconds. The median
            of the ratios of pairs is another number.
    """

    measured: str
    result: str
    wanted: str
    arms: tuple[Arm, ...] = ()
    without: str = ""
    ratio: float | None = None

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
