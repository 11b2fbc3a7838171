"""Mirrors: the time from the commit of an epoch until the table has its changes, and the cost of a
mirror beside a job for the job.

Epochs change 10,000 of 100,000 keys. The mirror polls without a pause, in this process, so the time
is that of its step: by the clock, since waiting for a disk or a server is a part of it, and as CPU
of this process.

The cost is that of a job in pairs of runs, with and without `mirror=`: the CPU of the process of
the job, in which the process of the mirror has no part, and the time by the clock until the last
record is read, for which both processes share the machine. A run takes so long (30 s) that the
start of the process of the mirror, a second of CPU, is a small part. The wait at the end of the job
for the last step is not in that time, and is reported beside it.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import chain, repeat
from pathlib import Path
from typing import NamedTuple

import statekit as sk
from statekit.sinks.protocol.sink import TableSink
from statekit.testing import Harness
from tests.bench.peers.environments import NotAvailable
from tests.bench.report import Arm, Row
from tests.support.postgres import PostgresServer

KEYS, CHANGES, EPOCHS = 100_000, 10_000, 9
ORDERS, ROUNDS, PAIRS = 1_000_000, 4, 5
_DURABLE = "the rows in the table, committed"


class Order(NamedTuple):
    customer: int
    cents: int


@sk.process(key="customer")
def spending(order: Order, total: sk.ValueState[int]) -> None:
    total.update((total.get() or 0) + order.cents)


def _row(name: str, made: Callable[[Path], TableSink]) -> Row:
    chosen = random.Random(7)
    with tempfile.TemporaryDirectory(prefix="statekit-bench-") as home:
        place = Path(home)
        job = Harness(spending, checkpoint=place / "job", parallelism=2)
        job.send(*(Order(key, 1) for key in range(KEYS)))
        walls, cpus = [], []
        with sk.mirror(place / "job", "spending.total", made(place)) as mirror:
            mirror.catch_up()
            for _ in range(EPOCHS + 1):
                job.send(*(Order(key, 1) for key in chosen.sample(range(KEYS), CHANGES)))
                began, cpu = time.perf_counter(), time.process_time()
                mirror.step()
                walls.append(time.perf_counter() - began)
                cpus.append(time.process_time() - cpu)
    wall, cpu, worst = statistics.median(walls[1:]), statistics.median(cpus[1:]), max(walls[1:])
    arm = Arm(f"mirror into {name}", cpu, _DURABLE, CHANGES, turns=tuple(cpus[1:]))
    result = f"{wall:.2f} s by the clock, at most {worst:.2f} s; {cpu:.2f} s of CPU"
    return Row(f"mirror into {name}, {CHANGES:,} changes", result, "within 1 s", (arm,))


def into_targets() -> list[Row]:
    """Mirrors into each target."""
    rows = [
        _row("Delta Lake", lambda home: sk.sinks.delta(home / "table")),
        _row("Iceberg", lambda home: sk.sinks.iceberg("shop.total", warehouse=home / "lake")),
    ]
    try:
        server = PostgresServer(None)
    except RuntimeError as error:
        raise NotAvailable(str(error)) from error
    with server:
        schema = server.new_schema()
        rows.append(_row("PostgreSQL", lambda home: sk.sinks.postgres(schema.url, "total")))
    return rows


class _Spent(NamedTuple):
    """Seconds of a run: the CPU and the clock until its last record is read, and its end."""

    cpu: float
    wall: float
    end: float


def _run(home: Path, mirror: dict[str, TableSink] | None) -> _Spent:
    """Run a job."""
    chosen, ends = random.Random(7), [0.0, 0.0]
    orders = [Order(chosen.randrange(KEYS), 1) for _ in range(ORDERS)]
    job = sk.Job("shop")
    job.source("orders", Order).process(spending)

    def records() -> Iterator[Order]:
        yield from chain.from_iterable(repeat(orders, ROUNDS))
        ends[:] = time.process_time(), time.perf_counter()

    begun = time.process_time(), time.perf_counter()
    job.run({"orders": records()}, checkpoint=home / "job", epoch_size=CHANGES, mirror=mirror)
    cpu, wall = (end - begin for begin, end in zip(begun, ends, strict=True))
    return _Spent(cpu, wall, time.perf_counter() - ends[1])


def beside_job() -> list[Row]:
    """A mirror beside a job, for the job."""
    found: dict[str, list[_Spent]] = {"without": [], "with": []}
    for pair in range(2 * PAIRS):
        name = ("without", "with")[(pair + pair // 2) % 2]  # which one is first alternates
        with tempfile.TemporaryDirectory(prefix="statekit-bench-") as made:
            place = Path(made)
            table: TableSink = sk.sinks.delta(place / "table")
            found[name].append(_run(place, {"spending.total": table} if name == "with" else None))
    cost, wall = (
        statistics.median(
            one[part] / other[part] - 1
            for one, other in zip(found["with"], found["without"], strict=True)
        )
        for part in (0, 1)
    )
    arms = [
        Arm(
            f"a job {name} a mirror",
            statistics.median(run.cpu for run in own),
            "the epochs, committed",
            ROUNDS * ORDERS,
            turns=tuple(run.cpu for run in own),
        )
        for name, own in found.items()
    ]
    seconds = statistics.median(run.wall for run in found["without"])
    end = statistics.median(run.end for run in found["with"])
    result = (
        f"{cost:+.1%} of CPU of its process, {wall:+.1%} by the clock in {seconds:.0f} s, medians "
        f"of {PAIRS} pairs; its end waits {end:.1f} s for the last step"
    )
    return [
        Row("a mirror into Delta Lake beside a job, for the job", result, "below 5 %", (*arms,))
    ]


BENCHMARKS = {"mirror-targets": into_targets, "mirror-beside": beside_job}
