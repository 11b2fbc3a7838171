"""Timers of one shard without Spark: how many per second, in how much memory, and at rest."""

from __future__ import annotations

import gc
import multiprocessing
import statistics
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pyarrow as pa

from statekit.runtime.rare_collection import RARE_COLLECTION
from tests.bench.report import Row, statekit
from tests.bench.shard_alone import Shard
from tests.bench.workload import INSTANT, SPAN_MS, Timed, reminders, sorted_batches

YEAR_S = 365 * 24 * 60 * 60


class Reminders:
    """A shard in which each record sets a timer of its key.

    Records of an epoch are later than all before, so what was due before them fires in the next.
    """

    def __init__(self, home: Path) -> None:
        home.mkdir()
        self._shard = Shard(reminders, Timed, home)
        self._minute = 0
        self._key = 0

    def set(self, count: int, *, seconds: int) -> tuple[float, float, int]:
        """Run an epoch that sets so many timers, each of a new key; as `Shard.epoch`."""
        start_us = self._minute * SPAN_MS * 1000
        keys = range(self._key, self._key + count)
        self._minute += 1
        self._key += count
        table = pa.table(
            {
                "key": pa.array(keys, pa.int64()),
                "value": pa.array([seconds] * count, pa.int64()),
                "at": pa.array(range(start_us, start_us + count), INSTANT),
            }
        )
        return self._shard.epoch(sorted_batches(table))

    def idle(self) -> tuple[float, float, int]:
        """Run an epoch without records."""
        return self._shard.epoch([])

    @property
    def fired(self) -> int:
        """How many timers the last epoch fired."""
        manifest = self._shard.coordinator.last
        assert manifest is not None
        return manifest.operators[reminders.name].records_out


def rate() -> list[Row]:
    """Timers set and fired per second and core: each epoch fires what the one before has set."""
    gc.set_threshold(*RARE_COLLECTION)  # as in a worker
    count = 100_000
    with tempfile.TemporaryDirectory() as home:
        shard = Reminders(Path(home) / "rate")
        spent = [shard.set(count, seconds=0)[0] for _ in range(9)][2:]
        assert shard.fired == count
    ours = statekit(statistics.median(spent), count)
    told = f"{count / ours.seconds:,.0f}/s per core"
    return [Row("timers alone, each set and fired, on RocksDB", told, "", (ours,))]


def memory() -> list[Row]:
    """By how much a process grows while timers fire, all in one epoch."""
    few, more, many = (_in_process_of_its_own(count) for count in (10_000, 100_000, 1_000_000))
    return [
        Row("peak memory while 10,000 timers fire in one epoch", f"+{few} MB", ""),
        Row("while 100,000 fire", f"+{more} MB", "bounded"),
        Row("while 1,000,000 fire", f"+{many} MB", "bounded"),
    ]


def _in_process_of_its_own(count: int) -> int:
    spawn = multiprocessing.get_context("spawn")  # starts small, whatever was run before
    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
        return pool.submit(_growth_mb, count).result()


def _growth_mb(count: int) -> int:
    """By how much the peak grows in an epoch in which so many timers fire."""
    with tempfile.TemporaryDirectory() as home:
        shard = Reminders(Path(home) / "memory")
        epochs = count // 10_000
        for left in range(epochs, 0, -1):  # all for the second before the last record
            shard.set(10_000, seconds=left * SPAN_MS // 1000 - 1)
        shard.set(1, seconds=YEAR_S)
        Path("/proc/self/clear_refs").write_text("5")  # Linux: the peak is what it holds now
        before = _peak_mb()
        shard.idle()
        assert shard.fired == count
        return _peak_mb() - before


def _peak_mb() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) // 1024


def pending() -> list[Row]:
    """What an epoch costs while a million timers wait, against few."""
    with tempfile.TemporaryDirectory() as home:
        few, many = Reminders(Path(home) / "few"), Reminders(Path(home) / "many")
        few.set(1, seconds=YEAR_S)
        for _ in range(10):
            many.set(100_000, seconds=YEAR_S)
        idle = [many.idle()[1] / few.idle()[1] for _ in range(25)]
        busy = [many.set(1_000, seconds=0)[1] / few.set(1_000, seconds=0)[1] for _ in range(25)]
        assert few.fired == many.fired == 1_000
    return [
        Row(
            "idle epoch, 1,000,000 timers pending against one: time",
            f"{statistics.median(idle):.2f} times",
            "about 1",
        ),
        Row(
            "epoch that sets 1,000 timers and fires 1,000, the same: time",
            f"{statistics.median(busy):.2f} times",
            "under 1.3",
        ),
    ]
