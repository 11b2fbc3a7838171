"""What an epoch costs with 10,000 shards of which few have records: the driver's part.

Working copies are in memory, so that only the driver's work is timed: planning, the reports, pages
and the manifest. The checkpoint is on the local disk. On Spark, a whole epoch is timed.
"""

from __future__ import annotations

import pickle
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import statekit as sk
from statekit.checkpoint.paths import epoch_path
from statekit.checkpoint.repository import Repository
from statekit.job.options import RunOptions, StartOptions
from statekit.keygroup import MAX_GROUPS, key_group, shard_of_group
from statekit.runtime.coordinator import Coordinator
from statekit.runtime.local import LocalRunner
from statekit.spark.epoch import EpochRunner
from statekit.spark.worker.pickling import PickledBases
from statekit.working_copy.copies import MemoryCopies
from tests.bench.on_spark import session
from tests.bench.report import Row

SHARDS, ACTIVE, EPOCHS, EPOCHS_ON_SPARK = 10_000, 20, 300, 20

WANTED_S, WANTED_BYTES = 1.5, 64 * 1024
"""For planning and commit together, and for the pages and the manifest of an epoch."""

_WARM = 5


@dataclass
class Seen:
    key: int
    payload: bytes


@sk.process(key="key")
def keep(record: Seen, last: sk.ValueState[bytes]) -> Iterator[Seen]:
    last.update(record.payload)
    yield record


def job() -> sk.Job:
    made = sk.Job("keep", key_groups=MAX_GROUPS)
    made.source("seen", Seen).process(keep).sink("kept")
    return made


@dataclass(frozen=True)
class _Timed:
    """Measures calls of a coordinator's functions.

    Parameters:
        coordinator: whose functions.
    """

    coordinator: Coordinator

    def seconds(self, *names: str) -> Callable[[], float]:
        """Return what gives the seconds of all calls since it was asked the last time."""
        spent = [0.0]
        for name in names:
            vars(self.coordinator)[name] = self._measured(getattr(self.coordinator, name), spent)

        def taken() -> float:
            total, spent[0] = spent[0], 0.0
            return total

        return taken

    @staticmethod
    def _measured(inner: Callable[..., Any], spent: list[float]) -> Callable[..., Any]:
        @wraps(inner)
        def call(*given: Any, **options: Any) -> Any:
            begun = time.perf_counter()
            try:
                return inner(*given, **options)
            finally:
                spent[0] += time.perf_counter() - begun

        return call


def key_of_each_shard(shards: int) -> list[int]:
    keys: dict[int, int] = {}
    key = 0
    while len(keys) < shards:
        keys.setdefault(shard_of_group(key_group(key, MAX_GROUPS), shards, MAX_GROUPS), key)
        key += 1
    return list(keys.values())


def filled(home: Path, keys: list[int]) -> LocalRunner:
    """Return a runner after an epoch with a record for each shard."""
    runner = LocalRunner(
        job().plan, Repository(home / "c"), MemoryCopies(), RunOptions(parallelism=len(keys))
    )
    runner.epoch({"seen": [Seen(key, b"x") for key in keys]})
    return runner


def _written(repository: Repository, epoch: int) -> int:
    """Return the bytes of the manifest of an epoch, and of the pages that it does not share."""
    manifest = repository.stored(epoch_path(epoch))
    assert manifest is not None
    before = {page.path for page in repository.pages(epoch - 1)}
    pages = (page for page in repository.pages(epoch) if page.path not in before)
    return manifest.size + sum(page.size for page in pages)


def few_of_many() -> list[Row]:
    """Epochs with records for few shards of many, in this process and on Spark."""
    keys = key_of_each_shard(SHARDS)
    with tempfile.TemporaryDirectory(prefix="statekit-bench-") as scratch:
        home = Path(scratch)
        return [*without_spark(filled(home, keys), keys, EPOCHS), *_on_spark(home, keys)]


def _what(keys: list[int]) -> str:
    return f"epoch of {len(keys):,} shards, {ACTIVE} with records"


def without_spark(runner: LocalRunner, keys: list[int], epochs: int) -> list[Row]:
    """Measure epochs in this process."""
    drawn, what, coordinator = random.Random(1), _what(keys), runner.coordinator
    timed = _Timed(coordinator)
    planning, commit = timed.seconds("begin", "plans"), timed.seconds("commit")
    spent: list[tuple[float, float, float]] = []
    for number in range(epochs):
        records = [Seen(key, b"%d" % number) for key in drawn.sample(keys, ACTIVE)]
        begun = time.perf_counter()
        runner.epoch({"seen": records})
        spent.append((planning(), commit(), time.perf_counter() - begun))
    last, repository = coordinator.epoch - 1, coordinator.repository
    sizes = [_written(repository, last - back) for back in range(epochs)]
    begun = time.perf_counter()
    Repository(repository.url).manifest(last)
    opened = time.perf_counter() - begun
    planned, committed, whole = (sorted(part) for part in zip(*spent, strict=True))
    driver = sorted(plan + commit for plan, commit, _ in spent)
    return [
        Row(f"{what}: planning", _seconds(planned), ""),
        Row(f"{what}: commit, with reports, pages and manifest", _seconds(committed), ""),
        Row(f"{what}: planning and commit", _seconds(driver), f"≤ {WANTED_S} s"),
        Row(f"{what}: all of it, without Spark", _seconds(whole), ""),
        Row(
            f"{what}: bytes of manifest and pages, of {epochs} epochs",
            f"{statistics.median(sizes):,.0f} in the median, {max(sizes):,} at most",
            f"≤ {WANTED_BYTES:,}",
        ),
        Row(f"{what}: its manifest, read by a new process", f"{opened:.2f} s", ""),
    ]


def _on_spark(home: Path, keys: list[int]) -> list[Row]:
    """Run epochs on Spark, from the checkpoint that epochs without Spark have made."""
    spark = session()
    options = StartOptions(parallelism=len(keys), working_directory=home / "working")
    coordinator = Coordinator.open(job().plan, Repository(home / "c"), options)
    runner = EpochRunner(coordinator, {"kept": sk.sinks.writer("noop")}, options, {}, spark)
    timed = _Timed(coordinator)
    driver = timed.seconds("begin", "plans", "commit")
    drawn, what, spent = random.Random(2), _what(keys), []
    for number in range(_WARM + EPOCHS_ON_SPARK):
        rows = [(key, b"%d" % number) for key in drawn.sample(keys, ACTIVE)]
        records = spark.createDataFrame(rows, "key long, payload binary")
        begun = time.perf_counter()
        runner.run({"seen": records}, what="records", batch=number)
        spent.append((driver(), time.perf_counter() - begun))
    of_driver, whole = (sorted(part) for part in zip(*spent[_WARM:], strict=True))
    coordinator.close()
    sent = len(pickle.dumps(PickledBases(coordinator.plans(keep.name).bases)))
    return [
        Row(f"{what}, on Spark on 2 cores: all of it", _seconds(whole), ""),
        Row(f"{what}, on Spark: planning and commit", _seconds(of_driver), f"≤ {WANTED_S} s"),
        Row(f"{what}, on Spark: shards that a task gets", f"{sent / 1e6:.2f} MB", ""),
    ]


def _seconds(ordered: list[float]) -> str:
    return f"{statistics.median(ordered):.3f} s in the median, {ordered[-1]:.2f} s at most"


BENCHMARKS: dict[str, Callable[[], list[Row]]] = {"shards-10000": few_of_many}
