"""What durability costs: commits, uploads, restores, storage at rest, and shards without records.

Everything is measured beside something of the same run: a commit over many rows beside one over
few, a restore beside `cp` of the same files, a job of many shards beside one of few.
"""

from __future__ import annotations

import os
import random
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import ClassVar

from statekit.backend.interface import FirstKey, NextKeys, RowReads
from statekit.backend.rocksdb import RocksBackend
from statekit.checkpoint.manifest import OperatorEpoch, ShardPlan, ShardState
from statekit.checkpoint.references import named_by
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.retention import DEFAULT_RETENTION, Retention
from statekit.job.options import RunOptions
from statekit.runtime.local import LocalRunner
from statekit.working_copy.base_options import BaseOptions
from statekit.working_copy.copies import DiskCopies, MemoryCopies, WorkingCopy
from statekit.working_copy.uploader import uploader
from tests.bench.built import ROW_BYTES, ROWS, Seen, apart, build, job, keep, payloads
from tests.bench.on_spark import StatekitCount, interleaved
from tests.bench.report import COPIED, Arm, Row, statekit
from tests.bench.workload import events

EPOCHS = int(os.environ.get("STATEKIT_BENCH_EPOCHS", "10_000"))
OTHER_DISK = Path(os.environ.get("STATEKIT_BENCH_OTHER_DISK", "/dev/shm"))
"""A directory on another disk than the temporary one: files are copied from it, and not linked."""

CHANGED = 1_000
RUNS = 7

# Epochs between two looks at how large a checkpoint is.
_LOOKED_AT = 50


@contextmanager
def _scratch(under: Path | None = None) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="statekit-bench-", dir=under) as directory:
        yield Path(directory)


def _scratch_for_sizes() -> AbstractContextManager[Path]:
    """In memory where that can be: sizes do not depend on the disk, and nothing is timed."""
    return _scratch(OTHER_DISK if OTHER_DISK.is_dir() else None)


class Held:
    """A job of one shard that holds rows, and changes some of them with each epoch.

    Parameters:
        home: of its checkpoint and its working copy.
        rows: keys from 0 on.
        text: whether values are words, and not bytes that nothing makes smaller.
    """

    def __init__(
        self,
        home: Path,
        rows: int,
        *,
        text: bool = False,
        bases: BaseOptions | None = None,
        retention: Retention | None = None,
    ) -> None:
        if not home.exists():
            home.mkdir()
            build(home, rows, 1, text=text)
        self.checkpoint = home / "checkpoint"
        self.copies = _WatchedCopies(home / "local", bases=bases)
        self.runner = LocalRunner(
            job().plan,
            Repository(self.checkpoint),
            self.copies,
            RunOptions(parallelism=1, retention=retention),
        )
        self._rows = range(rows)
        self._text = text
        self._epochs = 0

    def epoch(self, changed: int = CHANGED) -> Spent:
        """Write rows anew."""
        self._epochs += 1
        chosen = random.Random(self._epochs).sample(self._rows, changed)
        made = payloads(changed, self._epochs, text=self._text).tobytes()
        records = [
            Seen(key, made[start : start + ROW_BYTES])
            for key, start in zip(chosen, range(0, len(made), ROW_BYTES), strict=True)
        ]
        wall, cpu = time.perf_counter(), time.thread_time()
        self.runner.epoch({"seen": records})
        durable = time.perf_counter() - self.copies.read_s
        return Spent(time.perf_counter() - wall, time.thread_time() - cpu, durable)

    @property
    def operator(self) -> OperatorEpoch:
        """What the last manifest says."""
        last = self.runner.coordinator.last
        assert last is not None
        return last.operators[keep.name]

    @property
    def shard(self) -> ShardState:
        return self.operator.shards[0]

    @property
    def live_bytes(self) -> int:
        return sum(self.operator.bytes.values())

    def stand_on_a_base(self, changed: int = CHANGED) -> None:
        """Run epochs until the manifest names a base."""
        while self.shard.base is None:
            self.epoch(changed)
            uploader().drain()


@dataclass(frozen=True)
class Spent:
    """Seconds of an epoch.

    Parameters:
        wall: all of it.
        cpu: of the thread that runs it, on a core.
        durable: behind the last read of a row: what makes the epoch durable, commit included.
    """

    wall: float
    cpu: float
    durable: float


class _WatchedCopies(DiskCopies):
    """Notes when the last row was read.

    Attributes:
        read_s: when that was.
    """

    read_s = 0.0

    def obtain(self, plan: ShardPlan, states: Sequence[str], repository: Repository) -> WorkingCopy:
        copy = super().obtain(plan, states, repository)
        backend = copy.backend
        reader_of = backend.reader

        def watched(
            state: str, next_keys: NextKeys | None = None, first_key: FirstKey | None = None
        ) -> RowReads:
            reader = reader_of(state, next_keys, first_key)

            def got(key: bytes) -> bytes | None:
                row = reader.get(key)
                self.read_s = time.perf_counter()
                return row

            def got_all(keys: Sequence[bytes]) -> list[bytes | None]:
                rows = reader.get_all(keys)
                self.read_s = time.perf_counter()
                return rows

            return reader._replace(get=got, get_all=got_all)

        vars(backend)["reader"] = watched
        return copy


def _bytes_below(*directories: Path) -> int:
    """Sizes of all files; what is removed meanwhile does not count."""
    total = 0
    for directory in directories:
        for folder, _, names in os.walk(directory):
            for name in names:
                try:
                    total += os.stat(f"{folder}/{name}").st_size
                except FileNotFoundError:
                    continue
    return total


# ----------------------------------------------------------------------------------------- commits


def commits(rows: int = ROWS, pairs: int = 300, bases: BaseOptions | None = None) -> list[Row]:
    """Epochs of 1,000 changed keys over many rows and over a hundredth of them."""
    with _scratch() as home:
        few, many = (
            Held(home / name, held, bases=bases)
            for name, held in (("few", rows // 100), ("many", rows))
        )
        changed = min(CHANGED, rows // 100)
        for held in (few, many):
            held.stand_on_a_base(changed)
        spent = [(few.epoch(changed), many.epoch(changed)) for _ in range(pairs)]
        uploader().drain()
    what = f"commit of {changed:,} changed keys, {rows:,} rows compared with {rows // 100:,}"
    return [
        _compared(f"{what}: wall, median of pairs", spent, lambda one: one.wall),
        _compared(f"{what}: CPU, median of pairs", spent, lambda one: one.cpu),
        _compared(
            f"{what}: wall behind the last read, median of pairs", spent, lambda one: one.durable
        ),
        Row(f"{what}: wall, all epochs", _summed(spent), "≤ 1.2"),
    ]


def _compared(what: str, spent: list[tuple[Spent, Spent]], of: Callable[[Spent], float]) -> Row:
    ratio = statistics.median(of(many) / of(few) for few, many in spent)
    few, many = (statistics.median(map(of, side)) for side in zip(*spent, strict=True))
    told = f"{ratio:.2f} times ({many * 1000:.1f} ms, {few * 1000:.1f} ms)"
    arms = (
        statekit(many, name="statekit, many rows held"),
        statekit(few, name="statekit, a hundredth of the rows"),
    )
    return Row(what, told, "≤ 1.2", arms, ratio=1 / ratio)


def _summed(spent: list[tuple[Spent, Spent]]) -> str:
    few, many = (sum(one.wall for one in side) for side in zip(*spent, strict=True))
    return f"{many / few:.2f} times ({many:.1f} s, {few:.1f} s for {len(spent)} each)"


# ----------------------------------------------------------------------------------------- uploads


def uploads(
    rows: int = ROWS // 10, epochs: int = EPOCHS // 10, bases: BaseOptions | None = None
) -> list[Row]:
    """Everything that gets into the checkpoint, against keys and values that were written.

    Counted from the first base on, so without the load.
    """
    return [_uploaded(rows, epochs, bases, text=text) for text in (False, True)]


def _uploaded(rows: int, epochs: int, bases: BaseOptions | None, *, text: bool) -> Row:
    changed = min(CHANGED, rows // 10)
    with _scratch_for_sizes() as home:
        held = Held(home / "job", rows, text=text, bases=bases)
        held.stand_on_a_base(changed)
        places = held.checkpoint / "data", held.checkpoint / "epochs"
        before, found = _bytes_below(*places), {held.shard.base}
        for _ in range(epochs):
            held.epoch(changed)
            uploader().drain()  # bytes are counted here, and not time
            found.add(held.shard.base)
        added = _bytes_below(*places) - before
        row_bytes = held.live_bytes / rows
    ratio = added / (epochs * changed * row_bytes)
    kind = "words" if text else "random bytes"
    return Row(
        f"{epochs:,} epochs of {changed:,} changes of {rows:,} rows of {kind}: bytes stored for "
        "each byte changed",
        f"{ratio:.2f}, {len(found) - 1} bases",
        "≤ 2",
    )


# ---------------------------------------------------------------------------------------- restores


def restores(rows: int = ROWS, runs: int = RUNS, bases: BaseOptions | None = None) -> list[Row]:
    """Working copies made of a base and a few change files, against `cp` of these files.

    As they are, and cut into two shards, which hosts of their own fetch.
    """
    with _scratch() as home:
        held = Held(home / "job", rows, bases=bases)
        changed = min(CHANGED, rows // 100)
        held.stand_on_a_base(changed)
        for _ in range(5):
            held.epoch(changed)
        uploader().drain()
        table = _against_cp("on one disk", held, home, home, runs)
        if OTHER_DISK.is_dir() and OTHER_DISK.stat().st_dev != home.stat().st_dev:
            with _scratch(OTHER_DISK) as elsewhere:
                table += _against_cp("from another disk", held, elsewhere, home, runs)
    return table


def _against_cp(what: str, held: Held, source: Path, target: Path, runs: int) -> list[Row]:
    """Parameters:
    source: where the checkpoint is to be.
    target: where the working copies are to be.
    """
    named = sorted(_named(held))
    checkpoint, only_data = source / "checkpoint at rest", source / "only data"
    _copy(held.checkpoint, checkpoint, [*named, "job.json"], *held.checkpoint.glob("epochs/*"))
    _copy(held.checkpoint, only_data, named)
    size, rows = _bytes_below(only_data), sum(held.operator.rows.values())
    table = []
    for shards, cut in ((1, ""), (2, ", as two shards on two hosts")):
        spent = []
        for run in range(runs + 1):
            whole = None if run else held.live_bytes
            ours = apart(_restored, checkpoint, target / "restored", shards, whole)[0]
            theirs = sum(_cp(only_data, target / "restored by cp") for _ in range(shards))
            if run:  # the first ones read files that are in no cache, and look at every row
                spent.append((ours, theirs))
        ratio = statistics.median(ours / theirs for ours, theirs in spent)
        ours, theirs = (statistics.median(side) for side in zip(*spent, strict=True))
        table.append(
            Row(
                f"restore of {rows:,} rows, {size / 1e6:,.0f} MB, {what}{cut}, against cp",
                f"{ratio:.2f} times ({ours:.2f} s, {theirs:.2f} s)",
                "≤ 2",
                (statekit(ours), Arm("cp of the same files", theirs, COPIED)),
                ratio=1 / ratio,
            )
        )
    return table


def _named(held: Held) -> Iterable[str]:
    """Paths of all data that the last epoch needs."""
    last = held.runner.coordinator.last
    assert last is not None
    found = named_by(Repository(held.checkpoint), last, set())
    return {ref.path for ref in found if ref.path.startswith("data/")}


def _copy(source: Path, target: Path, paths: Iterable[str], *others: Path) -> None:
    for path in (*paths, *(str(other.relative_to(source)) for other in others)):
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / path, target / path)


def _restored(checkpoint: Path, local: Path, shards: int, live_bytes: int | None) -> float:
    """Seconds until working copies of all shards can be read, each on a host of its own.

    Parameters:
        live_bytes: what all rows together should then take; None not to look.
    """
    runner = LocalRunner(
        job().plan, Repository(checkpoint), MemoryCopies(), RunOptions(parallelism=shards)
    )
    coordinator = runner.coordinator
    coordinator.begin()
    seconds, found = 0.0, 0
    for plan in coordinator.plans(keep.name):
        copies = DiskCopies(local)
        begun = time.perf_counter()
        copy = copies.obtain(plan, keep.families_in(plan), coordinator.repository)
        seconds += time.perf_counter() - begun
        assert isinstance(copy.backend, RocksBackend)
        if live_bytes is not None:
            found += sum(size.bytes for size in copy.backend.sizes().values())
        copy.abandon()
        shutil.rmtree(local)
    assert live_bytes in (None, found)
    return seconds


def _cp(source: Path, target: Path) -> float:
    begun = time.perf_counter()
    subprocess.run(["cp", "-r", source, target], check=True)
    seconds = time.perf_counter() - begun
    shutil.rmtree(target)
    return seconds


# ----------------------------------------------------------------------------------------- at rest


def at_rest(rows: int = 20_000, epochs: int = EPOCHS) -> list[Row]:
    """A checkpoint whose garbage is collected beside the job, against the rows in it."""
    kept = (DEFAULT_RETENTION.epochs, 10 * DEFAULT_RETENTION.epochs)
    with ProcessPoolExecutor(len(kept), mp_context=get_context("spawn")) as processes:
        found = processes.map(_at_rest, kept, [rows] * len(kept), [epochs] * len(kept))
        ends = list(found)
    what = f"storage after {epochs:,} epochs of {rows // 100:,} changes of {rows:,} rows"
    return [
        Row(
            f"{what}, the last {keep_epochs} kept, against the rows",
            f"{end:.2f} times; {middle:.2f} in the median, {largest:.2f} at most",
            "≤ 2.5" if keep_epochs == kept[0] else "–",
        )
        for keep_epochs, (end, middle, largest) in zip(kept, ends, strict=True)
    ]


def _at_rest(keep_epochs: int, rows: int, epochs: int) -> tuple[float, float, float]:
    """Bytes of the checkpoint for each byte of its rows: at the end, their median and the most."""
    with _scratch_for_sizes() as home:
        held = Held(home / "job", rows, retention=Retention(epochs=keep_epochs))
        seen = []
        for epoch in range(epochs):
            held.epoch(rows // 100)
            if epoch % _LOOKED_AT == 0:
                seen.append(_bytes_below(held.checkpoint) / held.live_bytes)
        uploader().drain()
        held.runner.coordinator.close()
        seen.append(_bytes_below(held.checkpoint) / held.live_bytes)
        return seen[-1], statistics.median(seen), max(seen)


# -------------------------------------------------------------------------------------------- idle


def idle() -> list[Row]:
    """Epochs with records for few shards of a job of many."""
    return [idle_alone(), idle_on_spark()]


def idle_alone(epochs: int = 100, shards: int = 65) -> Row:
    with _scratch() as home:
        one, many = (
            LocalRunner(
                job().plan,
                Repository(home / f"{parallelism}"),
                DiskCopies(home / f"copies of {parallelism}"),
                RunOptions(parallelism=parallelism),
            )
            for parallelism in (1, shards)
        )
        for runner in (one, many):
            runner.epoch({"seen": [Seen(key, b"x") for key in range(1_000)]})
        spent = [(_timed(one, number), _timed(many, number)) for number in range(epochs)]
    added = statistics.median(of_many - of_one for of_one, of_many in spent)
    return Row(
        f"epoch of {shards} shards, one with records, against 1 shard, without Spark: per idle "
        "shard",
        f"{added / (shards - 1) * 1000:.2f} ms",
        "< 40 ms",
    )


def _timed(runner: LocalRunner, number: int) -> float:
    begun = time.perf_counter()
    runner.epoch({"seen": [Seen(0, b"%d" % number)]})
    return time.perf_counter() - begun


def idle_on_spark(few: int = 4, many: int = 20, warm: int = 10, rounds: int = 25) -> Row:
    class Few(StatekitCount):
        shards: ClassVar[int] = few

    class Many(StatekitCount):
        shards: ClassVar[int] = many

    tables = (events(100, seed=number, keys=2) for number in range(warm + rounds))
    seconds = interleaved((Few, Many), tables, warm)
    added = (seconds[1] - seconds[0]) / (many - few)
    return Row(
        f"epoch of {many} shards, two with records, against {few}, on Spark on 2 cores: per idle "
        "shard",
        f"{added * 1000:.1f} ms ({seconds[1]:.2f} s, {seconds[0]:.2f} s)",
        "< 40 ms",
    )
