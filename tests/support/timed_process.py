"""Timers, TTL and `ordered=True` on RocksDB, in a process that tests kill.

It handles its input epoch by epoch, and then drains.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import random
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, NamedTuple

import statekit as sk
from statekit.backend import mutation
from statekit.backend.rocksdb_options import RocksOptions
from statekit.checkpoint.repository import Repository
from statekit.job.options import RunOptions
from statekit.runtime.local import LocalRunner
from statekit.working_copy.copies import DiskCopies
from tests.support.offsets import records_read

EPOCHS = 50
EPOCH_SIZE = 40
SINKS = ("rang", "counted")


class Seen(NamedTuple):
    word: str
    at: dt.datetime
    number: int


class Rang(NamedTuple):
    """A timer was called: a session that ended, or the one that a record set on the wall clock."""

    word: str
    timer: str
    numbers: list[int]


@sk.process(key="word", event_time="at", lateness="30 seconds")
def sessions(
    seen: Seen,
    ctx: sk.Context,
    numbers: sk.ListState[int],
    recent: Annotated[sk.MapState[int, int], sk.TTL("40 seconds", clock="event")],
) -> Iterator[Rang]:
    numbers.append(seen.number)
    recent[seen.number % 5] = seen.number
    ctx.timers.replace(seen.at + dt.timedelta(seconds=20), "close")
    ctx.timers.set(ctx.processing_time, str(seen.number), clock="processing")
    yield from ()


@sessions.on_timer("close")
def close(
    timer: sk.Timer,
    ctx: sk.Context[str],
    numbers: sk.ListState[int],
    recent: Annotated[sk.MapState[int, int], sk.TTL("40 seconds", clock="event")],
) -> Iterator[Rang]:
    yield Rang(ctx.key, "close", [*numbers, *recent.values()])
    numbers.clear()


@sessions.on_timer
def wall(timer: sk.Timer, ctx: sk.Context[str]) -> Iterator[Rang]:
    if int(timer.name) % 2:  # and once more, in an epoch that follows
        later = ctx.processing_time + dt.timedelta(microseconds=1)
        ctx.timers.set(later, str(int(timer.name) + 1_000_000 - 1), clock="processing")
    yield Rang(ctx.key, "wall", [int(timer.name)])


@sk.process(key="word", event_time="at", lateness="30 seconds", ordered=True)
def count(
    seen: Seen, times: Annotated[sk.ValueState[int], sk.TTL("25 seconds", clock="event")]
) -> Iterator[tuple[str, int, int]]:
    times.update((times.get() or 0) + 1)
    yield seen.word, seen.number, times.get() or 0


def timed_job() -> sk.Job:
    job = sk.Job("timed")
    source = job.source("seen", Seen)
    source.process(sessions).sink("rang")
    source.process(count).sink("counted")
    return job


def given(seed: int) -> list[Seen]:
    """A second per record, up to 40 seconds late."""
    chosen = random.Random(seed)
    began = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    return [
        Seen(
            f"w{chosen.randrange(9)}",
            began + dt.timedelta(seconds=number - chosen.choice((0, 0, 5, 15, 25, 40))),
            number,
        )
        for number in range(EPOCHS * EPOCH_SIZE)
    ]


def run(home: Path, seed: int, parallelism: int, ready: Connection) -> None:
    """Run the job to its end.

    Parameters:
        ready: is sent something when the first epoch begins.
    """
    mutation.BATCH_BYTES_MAX = 2_000  # epochs that spill
    copies = DiskCopies(home / "working", RocksOptions(write_buffer_bytes=64 * 1024))
    runner = LocalRunner(
        timed_job().plan,
        Repository(home / "checkpoint"),
        copies,
        RunOptions(parallelism=parallelism),
    )

    def write(sink: str, records: list[object], epoch: int) -> None:
        (home / sink).mkdir(parents=True, exist_ok=True)
        draft = home / sink / f".{epoch:05d}.{os.getpid()}"
        draft.write_text(json.dumps(records))
        draft.rename(home / sink / f"{epoch:05d}.json")

    outputs = {sink: lambda r, epoch, sink=sink: write(sink, r, epoch) for sink in SINKS}
    coordinator, records = runner.coordinator, given(seed)
    start = records_read(coordinator.last, "seen")
    ready.send("ready")
    if not coordinator.was_draining:
        for begin in range(start, len(records), EPOCH_SIZE):
            end = begin + EPOCH_SIZE
            piece = {"seen": records[begin:end]}
            runner.epoch(piece, outputs=outputs, offsets={"seen": end})
        time.sleep(0.01)  # so that the last timers on the wall clock are due
    while not coordinator.is_drained:
        runner.epoch({}, outputs=outputs, what="drain")
