"""How many keys are held: events per second of one shard over 10 thousand to 10 million of them.

Each shard is in a process of its own, whose memory can so be told, and is filled by running it: its
epochs write change files and bases, as they do in a job. Then all take turns with small epochs of
keys drawn from all that are held.
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

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statekit.runtime.shard import RARE_COLLECTION
from statekit.working_copy.uploader import uploader
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
    drawn = np.random.default_rng(seed).integers(0, _Held.keys, count)
    cpu_s, _, _ = _Held.shard.epoch(_sorted(drawn))
    uploader().drain()  # a base in the making would count for the next epoch
    return cpu_s


def _peak() -> int | None:
    return peak(os.getpid())


def scaling(
    sizes: Sequence[int] = SIZES, per_epoch: int = PER_EPOCH, rounds: int = ROUNDS
) -> list[Row]:
    """A row for each number of keys held, against the least."""
    arms = _arms(sizes, per_epoch, rounds)
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
    return found


def _arms(sizes: Sequence[int], per_epoch: int, rounds: int) -> list[Arm]:
    spawn = get_context("spawn")
    with ExitStack() as stack:
        homes = [Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in sizes]
        pools = [stack.enter_context(ProcessPoolExecutor(1, mp_context=spawn)) for _ in sizes]
        for pool, home, keys in zip(pools, homes, sizes, strict=True):
            pool.submit(_fill, home, keys).result()
        spent = [
            [pool.submit(_epoch, seed, per_epoch).result() for pool in pools]
            for seed in range(WARM + rounds)
        ]
        peaks = [pool.submit(_peak).result() for pool in pools]
        written = [bytes_in(home) for home in homes]
    each = zip(sizes, zip(*spent[WARM:], strict=True), written, peaks, strict=True)
    return [
        statekit(statistics.median(seconds), per_epoch, f"statekit, {keys:,} keys")._replace(
            written=size, memory=memory
        )
        for keys, seconds, size, memory in each
    ]
