"""A replica: reads per second, catching up, how soon an epoch is visible, and the job beside it."""

from __future__ import annotations

import contextlib
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import statekit as sk
from statekit.query.replica.follower import Follower
from statekit.query.rows.epochs import EpochReader
from tests.bench.report import Arm, Row, statekit

KEYS = 200_000
READS = 100_000
ROUNDS = 5
EPOCHS = 40
CHANGES = 10_000
RAW = "RocksDB's get alone, of the same rows"


class Sale(NamedTuple):
    shop: int
    cents: int


Total = Annotated[sk.ReducingState[int], sk.Reduce(sum)]


@sk.process(key="shop")
def sales(sale: Sale, total: Total, last: sk.ValueState[Sale]) -> None:
    total.add(sale.cents)
    last.update(sale)


@sk.process(key="shop")
def totals(sale: Sale, total: Total) -> None:
    total.add(sale.cents)


def job(declared: Any) -> sk.Job:
    made = sk.Job("sales")
    made.source("records", Sale).process(declared)
    return made


def reads() -> list[Row]:
    """Single keys and many keys, of a scalar and of a struct, on one core."""
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        records = (Sale(number * 7919, number) for number in range(KEYS))
        job(sales).run(
            {"records": records}, checkpoint=home / "c", parallelism=4, epoch_size=KEYS // 4
        )
        with sk.Replica(home / "c", directory=home / "r", follow=False) as replica:
            return [row for state in ("total", "last") for row in _reads_of(replica, state)]


def _reads_of(replica: sk.Replica, name: str) -> Iterator[Row]:
    chosen = random.Random(1)
    keys = [chosen.randrange(KEYS) * 7919 for _ in range(READS)]
    with replica.at() as view:
        state = view.state("sales", name)
        get = view._rows["sales"]._copy.getters[name]
        row_keys = [state._rows.keys.prefix(key) for key in keys]
        ways: dict[str, tuple[Callable[[], object], str]] = {
            "get": (lambda: list(map(state.get, keys)), "150,000 a second"),
            "get_many": (lambda: state.get_many(keys), "300,000 a second"),
        }
        kind = "a number" if name == "total" else "a record"
        for way, (read, wanted) in ways.items():
            ours, raw = _paired(read, lambda: list(map(get, row_keys)))
            arm = Arm(RAW, statistics.median(raw), "nothing", READS, turns=tuple(raw))
            own = Arm(
                f"Replica.{way}", statistics.median(ours), "nothing", READS, turns=tuple(ours)
            )
            result = f"{READS / own.seconds:,.0f} keys/s (RocksDB alone {READS / arm.seconds:,.0f})"
            yield Row(f"replica: {way} of {kind} per key", result, wanted, (own, arm))


def _paired(*ways: Callable[[], object]) -> list[list[float]]:
    """CPU seconds of each way, in turns."""
    seconds: list[list[float]] = [[] for _ in ways]
    for _ in range(ROUNDS):
        for own, way in zip(seconds, ways, strict=True):
            start = time.process_time()
            way()
            own.append(time.process_time() - start)
    return seconds


def catching_up() -> list[Row]:
    """Mutations per second of a replica that is behind."""
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        records = (Sale(number % KEYS, number) for number in range(EPOCHS * 25_000))
        job(totals).run(
            {"records": records}, checkpoint=home / "c", epoch_size=25_000, retention=None
        )
        rates = []
        for number in range(ROUNDS):
            reader = EpochReader(home / "c")
            follower = Follower(reader, home / f"r{number}", None, None, sk.RocksOptions())
            follower.restore(reader.manifest(0))
            start = time.process_time()
            while follower.advance():
                pass
            rates.append((EPOCHS - 1) * 25_000 / (time.process_time() - start))
            follower.close()
        rate = statistics.median(rates)
        mutations = (EPOCHS - 1) * 25_000
        return [
            Row(
                "replica: catching up, per core",
                f"{rate:,.0f} mutations/s",
                "300,000 a second",
                (statekit(mutations / rate, mutations),),
            )
        ]


def visibility() -> list[Row]:
    """Seconds from the commit of an epoch to its first read, and the CPU of the job beside."""
    waits: list[float] = []
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        _epochs(home / "c", 1, lambda _: None)
        with sk.Replica(home / "c", directory=home / "r") as replica:
            _epochs(home / "c", EPOCHS + 1, lambda epoch: waits.append(_wait(replica, epoch)))
    waits = sorted(waits[1:])
    p50, p99 = statistics.median(waits), waits[int(0.99 * len(waits))]
    arm = statekit(p50, CHANGES)._replace(p50=p50, p99=p99)
    return [
        Row(
            f"replica: an epoch of {CHANGES:,} changes visible after its commit",
            f"{1000 * p50:.0f} ms, {1000 * p99:.0f} ms for 99 of 100",
            "60 ms, 200 ms",
            (arm,),
        )
    ]


def _epochs(checkpoint: Path, epochs: int, committed: Callable[[int], None]) -> None:
    """Run a job for some epochs, and call a function after each commit."""

    def records() -> Iterator[Sale]:
        for number in range(epochs * CHANGES):
            if number and number % CHANGES == 0:
                epoch = number // CHANGES - 1
                path = checkpoint / "epochs" / f"{epoch:020d}.json"
                if path.exists():
                    committed(epoch)
            yield Sale(number * 31 % KEYS, number)

    job(totals).run({"records": records()}, checkpoint=checkpoint, epoch_size=CHANGES)


def _wait(replica: sk.Replica, epoch: int) -> float:
    path = Path(replica._reader.repository.root or "") / "epochs" / f"{epoch:020d}.json"
    since_commit = time.time() - path.stat().st_mtime
    start = time.perf_counter()
    replica.wait_for(epoch)
    return since_commit + time.perf_counter() - start


def beside() -> list[Row]:
    """CPU of the job per epoch, with a replica in another process and without."""
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for round_number in range(2 * ROUNDS):
        has_replica = bool(round_number % 2)
        with tempfile.TemporaryDirectory() as place:
            seconds[has_replica].append(_job_cpu(Path(place), has_replica=has_replica))
    with_one, without = (statistics.median(seconds[has]) for has in (True, False))
    return [
        Row(
            "replica: CPU of the job beside one, in another process",
            f"{with_one / without:.2f} times that without",
            "1.03",
            (
                Arm("with a replica", with_one, "", turns=tuple(seconds[True])),
                Arm("without", without, "", turns=tuple(seconds[False])),
            ),
        )
    ]


def _job_cpu(home: Path, *, has_replica: bool) -> float:
    """CPU seconds of this process for a job of some epochs."""
    _epochs(home / "c", 1, lambda _: None)
    with _following(home) if has_replica else contextlib.nullcontext():
        start = time.process_time()
        _epochs(home / "c", EPOCHS // 2, lambda _: None)
        return time.process_time() - start


@contextlib.contextmanager
def _following(home: Path) -> Iterator[None]:
    """Follow the checkpoint in another process, which has ended afterwards."""
    program = (
        "import sys, statekit as sk\n"
        f"with sk.Replica({str(home / 'c')!r}, directory={str(home / 'r')!r}):\n"
        "    print('follows', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield
    finally:
        process.communicate()


BENCHMARKS = {
    "replica-reads": reads,
    "replica-catch-up": catching_up,
    "replica-visible": visibility,
    "replica-beside": beside,
}
