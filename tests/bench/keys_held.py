"""How many keys are held: events per second of one shard over 10 thousand to 10 million of them.

Each shard is in a process of its own, whose memory can so be told, and is filled by running it: its
epochs write change files and bases, as they do in a job. Then all take turns with small epochs of
keys drawn from all that are held.

Of few keys, an epoch meets many several times. So two more take turns: a shard that meets each of
its keys once, and the reads of the largest shard's rows without the rest of its epochs.
"""

from __future__ import annotations

import gc
import os
import statistics
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statekit.codec.key_codec import key_codec
from statekit.keygroup import pack_group
from statekit.runtime.rare_collection import RARE_COLLECTION
from statekit.working_copy.uploader import uploader
from tests.bench.built import groups_of
from tests.bench.cold_rows import ColdRows
from tests.bench.peers.jobs.handshake import bytes_in
from tests.bench.peers.processes import peak
from tests.bench.report import Arm, Row, statekit
from tests.bench.shard_alone import Shard
from tests.bench.workload import Event, running_count, sorted_batches

SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
PER_EPOCH, FILLING = 20_000, 200_000
WARM, ROUNDS = 2, 9


class _Held:
    """The shard of this process."""

    shard: Shard
    keys: int


class _Read:
    """The rows that are read in this process."""

    rows: ColdRows
    keys: int


def _sorted(keys: npt.NDArray[np.int64]) -> list[pa.RecordBatch]:
    """Events of these keys as a shard gets them."""
    return sorted_batches(pa.table({"key": keys, "value": np.ones(len(keys), np.int64)}))


def _fill(home: Path, keys: int) -> None:
    gc.set_threshold(*RARE_COLLECTION)  # as in a worker
    _Held.shard, _Held.keys = Shard(running_count, Event, home), keys
    for start in range(0, keys, FILLING):
        part = np.arange(start, min(start + FILLING, keys), dtype=np.int64)
        _Held.shard.epoch(_sorted(part))
    uploader().drain()


def _epoch(seed: int, count: int) -> float:
    """The CPU seconds of an epoch over some of the keys held."""
    return _epoch_of(_drawn(seed, count, _Held.keys))


def _epoch_of_all() -> float:
    """The CPU seconds of an epoch over each of the keys held."""
    return _epoch_of(np.arange(_Held.keys, dtype=np.int64))


def _epoch_of(keys: npt.NDArray[np.int64]) -> float:
    cpu_s, _, _ = _Held.shard.epoch(_sorted(keys))
    uploader().drain()  # a base in the making would count for the next epoch
    return cpu_s


def _drawn(seed: int, count: int, keys: int) -> npt.NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, keys, count)


def _peak() -> int | None:
    return peak(os.getpid())


def _prepare_reads(home: Path, keys: int, directory: Path) -> None:
    (database,) = (home / "working").rglob("db")
    _Read.rows, _Read.keys = ColdRows(database, "held", directory), keys


def _read(seed: int, count: int) -> tuple[float, float, int]:
    """The CPU seconds that the reads of an epoch take in RocksDB, and of blocks; how many rows."""
    keys = np.unique(_drawn(seed, count, _Read.keys))
    encode = key_codec(int).encode
    groups = map(pack_group, groups_of(keys).tolist())
    rows = sorted(group + encode(key) for group, key in zip(groups, keys.tolist(), strict=True))
    return *_Read.rows.read(rows), len(rows)


class _Spent(NamedTuple):
    """What all that took turns spent.

    Parameters:
        arms: the shards, by the keys held.
        once: the shard that meets each of its keys once.
        reads: CPU seconds in RocksDB, of the blocks, and the rows, of each turn.
    """

    arms: list[Arm]
    once: Arm
    reads: list[tuple[float, float, int]]


def scaling(
    sizes: Sequence[int] = SIZES, per_epoch: int = PER_EPOCH, rounds: int = ROUNDS
) -> list[Row]:
    """A row for each number of keys held, against the least; then bounds for the largest."""
    spent = _spent(sizes, per_epoch, rounds)
    arms = spent.arms
    found = []
    for keys, arm in zip(sizes, arms, strict=True):
        title = f"one core, running count, epochs of {per_epoch:,} events: {keys:,} keys"
        told = f"{arm.events / arm.seconds:,.0f} events/s per core"
        if arm is arms[0]:
            found.append(Row(title, told, "", (arm,), keys=keys))
            continue
        times = arms[0].seconds / arm.seconds
        told = f"{told}, {times:.2f} of those with {sizes[0]:,}"
        found.append(
            Row(f"{title}, compared with {sizes[0]:,}", told, "", (arm, arms[0]), keys=keys)
        )
    return found + _bounds(spent, sizes[-1], per_epoch)


def _bounds(spent: _Spent, keys: int, per_epoch: int) -> list[Row]:
    """What an epoch over many keys costs beside one without repeated keys, and its reads alone."""
    large, once = spent.arms[-1], spent.once
    title = f"one core, running count, epochs of {per_epoch:,} events: {keys:,} keys"
    told = f"{large.seconds / once.seconds:.2f} times the CPU"
    found = [Row(f"{title}, compared with {per_epoch:,}, each once", told, "", (large, once))]
    for at, reads in enumerate(("read by RocksDB alone", "their blocks read and decompressed")):
        each = [turn[at] for turn in spent.reads]
        per_row = statistics.median(turn[at] / turn[2] for turn in spent.reads)
        share = statistics.median(each) / large.seconds
        told = f"{per_row * 1e6:.1f} µs per row, {share:.2f} of the CPU of the epoch"
        found.append(Row(f"the rows of an epoch over {keys:,} keys, {reads}", told, ""))
    return found


def _spent(sizes: Sequence[int], per_epoch: int, rounds: int) -> _Spent:
    spawn = get_context("spawn")
    with ExitStack() as stack:
        held = [*sizes, per_epoch]
        homes = [Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in held]
        aside = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        *pools, once, reads = (
            stack.enter_context(ProcessPoolExecutor(1, mp_context=spawn)) for _ in (*held, aside)
        )
        for pool, home, keys in zip((*pools, once), homes, held, strict=True):
            pool.submit(_fill, home, keys).result()
        reads.submit(_prepare_reads, homes[len(sizes) - 1], sizes[-1], aside).result()
        turns = []
        for seed in range(WARM + rounds):
            epochs = [pool.submit(_epoch, seed, per_epoch).result() for pool in pools]
            epochs.append(once.submit(_epoch_of_all).result())
            turns.append((epochs, reads.submit(_read, seed, per_epoch).result()))
        peaks = [pool.submit(_peak).result() for pool in (*pools, once)]
        written = [bytes_in(home) for home in homes]
    turns = turns[WARM:]
    each = zip(*(epochs for epochs, _ in turns), strict=True)
    *arms, fewest = (
        statekit(statistics.median(seconds), per_epoch, f"statekit, {keys:,} keys")._replace(
            written=size, memory=memory
        )
        for keys, seconds, size, memory in zip(held, each, written, peaks, strict=True)
    )
    return _Spent(arms, fewest._replace(name=f"{fewest.name}, each once"), [r for _, r in turns])
