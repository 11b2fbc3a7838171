"""One shard without Spark: Arrow batches in, RocksDB, a durable change file, Arrow batches out.

Exactly what a Spark worker does for a shard, on one core, commit included.
"""

from __future__ import annotations

import cProfile
import gc
import pstats
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

import statekit as sk
from statekit.checkpoint.manifest import IdleShards, ShardReport
from statekit.checkpoint.repository import Repository
from statekit.functions.process import Process
from statekit.job.options import RunOptions
from statekit.records.keyed_batch import KeyedBatch
from statekit.runtime.coordinator import Coordinator
from statekit.runtime.rare_collection import RARE_COLLECTION
from statekit.runtime.shard import run_shard
from statekit.runtime.shard_input import ShardInput
from statekit.spark.worker.rows import batches_of_rows
from statekit.working_copy.copies import DiskCopies
from tests.bench.report import Arm, Row, statekit
from tests.bench.workload import (
    KEYS,
    Entry,
    Event,
    as_sorted,
    expiring_count,
    map_entry,
    running_count,
)


class Shard:
    """A job of one operator and one shard in a directory."""

    def __init__(
        self,
        declared: Process[Any, Any, Any],
        record: Any,
        home: Path,
        clock: Callable[[], int] | None = None,
    ) -> None:
        job = sk.Job("bench")
        job.source("events", record).process(declared).sink("out")
        self.declared = declared
        repository = Repository(home / "checkpoint")
        self.coordinator = Coordinator.open(
            job.plan, repository, RunOptions(parallelism=1, clock=clock)
        )
        self.copies = DiskCopies(home / "working")

    def epoch(
        self,
        batches: list[pa.RecordBatch],
        put_out: Callable[[pa.RecordBatch], object] | None = None,
    ) -> tuple[float, float, int]:
        """Run and commit one epoch: CPU seconds, wall seconds, bytes of the change file.

        Parameters:
            put_out: is given what comes out.
        """
        cpu, wall = time.process_time(), time.perf_counter()
        self.coordinator.begin()
        plan = self.coordinator.plans(self.declared.name)[0]
        records = ShardInput((), self._chunks(batches))
        running = run_shard(self.declared, plan, records, self.coordinator.repository, self.copies)
        output_type = self.declared.output_type
        try:
            while True:
                outputs = next(running)
                assert output_type is not None
                batch = output_type.to_batch(outputs)
                if put_out is not None:
                    put_out(batch)
        except StopIteration as stop:
            report = stop.value
        if report is None:
            report = IdleShards.of(self.declared.name, [0])
        self.coordinator.commit([report])
        size = report.bytes_written if isinstance(report, ShardReport) else 0
        return time.process_time() - cpu, time.perf_counter() - wall, size

    def _chunks(self, batches: list[pa.RecordBatch]) -> Iterator[KeyedBatch]:
        # Behind all columns Spark has the arrival, which the worker leaves out.
        rows = (batch.append_column("arrival", pa.nulls(len(batch))) for batch in batches)
        return batches_of_rows(self.declared, rows, self.coordinator.key_groups)


def _count_batches(count: int, seed: int, keys: int = KEYS) -> list[pa.RecordBatch]:
    draw = random.Random(seed)
    key = [draw.randrange(keys) for _ in range(count)]
    return as_sorted({"key": key, "value": [draw.randrange(1000) for _ in range(count)]})


def state_that_expires() -> list[Row]:
    """The running count with a TTL of an hour against the one without, a minute per epoch.

    Of few keys each is written in most epochs. Of many, each is written three times in an hour, and
    one in twenty expires before it is written again.
    """
    gc.set_threshold(*RARE_COLLECTION)
    few = _with_a_ttl(100_000, keys=KEYS, warm=5)
    many = _with_a_ttl(50_000, keys=10 * KEYS, warm=80)
    title = "running count with a TTL of an hour against one without"
    return [
        _row_of_pairs(f"{title}: 100,000 keys", few, "under 1.25"),
        _row_of_pairs(f"{title}: 1,000,000 keys", many, ""),
    ]


def _row_of_pairs(title: str, arms: tuple[Arm, Arm], wanted: str) -> Row:
    return Row(title, f"{arms[0].seconds / arms[1].seconds:.2f} times", wanted, arms)


def _with_a_ttl(count: int, *, keys: int, warm: int) -> tuple[Arm, Arm]:
    """CPU time of an epoch, from sixteen of them, which are four steps of the index."""
    now = [0]
    with tempfile.TemporaryDirectory() as home:
        plain = Shard(running_count, Event, Path(home) / "plain", clock=lambda: now[0])
        expiring = Shard(expiring_count, Event, Path(home) / "expiring", clock=lambda: now[0])
        spent = []
        for number in range(warm + 16):
            now[0] += 60_000_000
            batches = _count_batches(count, seed=number, keys=keys)
            spent.append((plain.epoch(batches)[0], expiring.epoch(batches)[0]))
    steady = spent[warm:]
    without, having = (statistics.fmean(side) for side in zip(*steady, strict=True))
    return statekit(having, count, "statekit, TTL"), statekit(without, count, "statekit, no TTL")


def profile() -> str:
    """Where the time of the running count goes."""
    with tempfile.TemporaryDirectory() as home:
        shard = Shard(running_count, Event, Path(home))
        for seed in range(3):
            shard.epoch(_count_batches(100_000, seed))
        batches = _count_batches(100_000, 9)
        watch = cProfile.Profile()
        watch.runcall(shard.epoch, batches)
    pstats.Stats(watch).sort_stats("tottime").print_stats(20)
    return ""


def map_sizes() -> list[Row]:
    """One entry of a small and of a large map per event: the cost must not depend on the size."""
    count, rounds = 50_000, 7
    spent = []
    with tempfile.TemporaryDirectory() as home:
        small = _filled_map(Path(home) / "small", entries=100, keys=1_000)
        large = _filled_map(Path(home) / "large", entries=10_000, keys=10)
        for seed in range(rounds):
            a, _, _ = small(count, seed)
            b, _, _ = large(count, seed)
            spent.append((a, b))
    ratio = statistics.median(b / a for a, b in spent)
    of_small, of_large = (statistics.median(side) for side in zip(*spent, strict=True))
    arms = (
        statekit(of_large, count, "statekit, maps of 10,000"),
        statekit(of_small, count, "statekit, maps of 100"),
    )
    title = "one entry of a map of 10,000 against one of 100"
    return [Row(title, f"{ratio:.2f} times", "within 10 %", arms, ratio=1 / ratio)]


def _filled_map(
    home: Path, *, entries: int, keys: int
) -> Callable[[int, int], tuple[float, float, int]]:
    """A shard whose maps are full; returns what runs one epoch over it.

    Both shards hold the same number of rows and write the same number of entries, each once.
    """
    home.mkdir()
    shard = Shard(map_entry, Entry, home)
    pairs = [(key, entry) for key in range(keys) for entry in range(entries)]
    shard.epoch(_entry_batches(pairs))

    def epoch(count: int, seed: int) -> tuple[float, float, int]:
        return shard.epoch(_entry_batches(random.Random(seed).sample(pairs, count)))

    return epoch


def _entry_batches(pairs: list[tuple[int, int]]) -> list[pa.RecordBatch]:
    key, entry = (list(column) for column in zip(*pairs, strict=True))
    return as_sorted({"key": key, "entry": entry, "value": [1] * len(key)})


def commit_cost() -> list[Row]:
    """A commit with 1,000 changed keys, with few and with many keys held."""
    with tempfile.TemporaryDirectory() as home:
        few = _filled_count(Path(home) / "few", 10_000)
        many = _filled_count(Path(home) / "many", 1_000_000)
        times, sizes, walls = [], [], []
        for seed in range(25):
            a = few.epoch(_sampled(10_000, seed))
            b = many.epoch(_sampled(1_000_000, seed))
            times.append(b[1] / a[1])
            sizes.append(b[2] / a[2])
            walls.append((a[1], b[1]))
    few_s, many_s = (statistics.median(side) for side in zip(*walls, strict=True))
    return [
        Row(
            "commit of 1,000 changed keys, 1,000,000 keys, compared with 10,000: time",
            f"{statistics.median(times):.2f} times",
            "under 1.3",
            (
                statekit(many_s, 1_000, "statekit, 1,000,000 keys"),
                statekit(few_s, 1_000, "statekit, 10,000 keys"),
            ),
            ratio=1 / statistics.median(times),
        ),
        Row(
            "the same: bytes of the change file",
            f"{statistics.median(sizes):.2f} times",
            "under 1.3",
        ),
    ]


def _filled_count(home: Path, keys: int) -> Shard:
    home.mkdir()
    shard = Shard(running_count, Event, home)
    for start in range(0, keys, 100_000):
        part = range(start, min(start + 100_000, keys))
        shard.epoch(as_sorted({"key": list(part), "value": [1] * len(part)}))
    return shard


def _sampled(keys: int, seed: int) -> list[pa.RecordBatch]:
    chosen = random.Random(seed).sample(range(keys), 1_000)
    return as_sorted({"key": chosen, "value": [1] * 1_000})
