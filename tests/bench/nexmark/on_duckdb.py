"""Nexmark in one process: each query's job beside DuckDB, which reads all events as one batch.

What lives here: how both run, and the benchmarks. What does not: the jobs (`queries`) and the SQL
(`sql`).

Both read the same Arrow tables in memory, and write their results as Parquet files. A first run of
each does not count: there the rows of both have to be the same. What counts is the CPU time of this
process.
"""

from __future__ import annotations

import gc
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

import statekit as sk
from statekit.sources import Offsets, Source
from tests.bench.nexmark.events import Events, Tables
from tests.bench.nexmark.fronts import Front
from tests.bench.nexmark.queries import QUERIES
from tests.bench.nexmark.results import Answers, are_same, rows_of_files
from tests.bench.nexmark.sql import SQL, answers, over
from tests.bench.peers.environments import NotAvailable
from tests.bench.report import NOT_DURABLE, Arm, Row

__all__ = ["BENCHMARKS", "check", "events_in_memory", "measured", "run_duckdb", "run_statekit"]

EVENTS = int(os.environ.get("STATEKIT_BENCH_DUCKDB_EVENTS", "1_000_000"))
EPOCHS = 4
ROUNDS = 5

_GROUP = 1000  # so many events at a time arrive out of order
_DURABLE = "change files and a manifest for each epoch, on the local disk"


@dataclass
class TableSource(Source):
    """Events of a kind in memory, as a query takes them. An offset is a number of events.

    Parameters:
        table: all of them.
        front: what the query takes.
        per_epoch: how many of them are read in an epoch.
    """

    table: pa.Table
    front: Front
    per_epoch: int

    @property
    def is_bounded(self) -> bool:
        return True

    def earliest(self) -> Offsets:
        return {"all": 0}

    def latest(self, start: Offsets, limit: int, wait_s: float) -> Offsets:
        return {"all": min(start["all"] + self.per_epoch, self.table.num_rows)}

    def read(self, partition: str, start: int | None, end: int) -> Iterator[pa.RecordBatch]:
        first = start or 0
        yield from self.front.of_columns(self.table.slice(first, end - first)).to_batches()


def events_in_memory(count: int) -> Tables:
    return Events(seed=1, group=min(_GROUP, count)).tables(0, count)


def run_statekit(number: int, tables: Tables, home: Path) -> float:
    """Run a query's job into files, and return its CPU seconds.

    Parameters:
        home: a directory of this run; results are in `out`.
    """
    query, inputs = QUERIES[number], {}
    for name, front in query.fronts.items():
        table = getattr(tables, f"{front.kind}s")
        inputs[name] = TableSource(table, front, -(-table.num_rows // EPOCHS))
    began = time.process_time()
    query.job().run(
        inputs,
        outputs={"out": sk.sinks.parquet(home / "out")},
        checkpoint=home / "checkpoint",
        backend="rocksdb",
        working_directory=home / "working",
        parallelism=1,
    )
    return time.process_time() - began


def run_duckdb(number: int, tables: Tables, home: Path) -> float:
    """Run a query in one thread of DuckDB into a file, and return its CPU seconds.

    Parameters:
        home: a directory of this run; results are in `out.parquet`.
    """
    began = time.process_time()
    with over(tables) as database:
        database.execute("set threads = 1")
        database.execute(f"copy ({SQL[number]}) to '{home / 'out.parquet'}' (format parquet)")
    return time.process_time() - began


def check(number: int, tables: Tables, expected: Answers) -> None:
    """Compare what the job comes to with the rows of DuckDB.

    Raises:
        NotAvailable: that is something else.
    """
    with tempfile.TemporaryDirectory() as home:
        run_statekit(number, tables, Path(home))
        found = rows_of_files(number, Path(home) / "out")
    if not are_same(found, expected):
        raise NotAvailable(
            f"statekit has {len(found):,} rows, DuckDB {len(expected):,}, and they are not the same"
        )


def measured(number: int, events: int = EVENTS, rounds: int = ROUNDS) -> Row:
    """A query, with both in turn."""
    title = f"one core, Nexmark query {number}, {QUERIES[number].asks}, {events:,} events"
    title = f"{title}: against DuckDB in one batch"
    tables = events_in_memory(events)
    try:
        check(number, tables, answers(number, tables))
    except NotAvailable as why:
        reason = f"no number: {why}"
        return Row(title, reason, "", without=reason)
    ways = (("statekit in process", _DURABLE, run_statekit), ("DuckDB", NOT_DURABLE, run_duckdb))
    turns = [[_turn(run, number, tables) for _, _, run in ways] for _ in range(rounds + 1)][1:]
    arms = [
        Arm(name, statistics.median(spent), durable, events, turns=spent)
        for (name, durable, _), spent in zip(ways, zip(*turns, strict=True), strict=True)
    ]
    row = Row(title, "", "", tuple(arms), note=_note(number))
    ours, theirs = (events / arm.seconds for arm in arms)
    told = f"{row.times_as_fast:.3g} times as many: {ours:,.0f} events/s against {theirs:,.0f}"
    return row._replace(result=told)


def _turn(run: Callable[[int, Tables, Path], float], number: int, tables: Tables) -> float:
    with tempfile.TemporaryDirectory(prefix="statekit-bench-") as home:
        gc.collect()
        return run(number, tables, Path(home))


def _note(number: int) -> str:
    return (
        f"DuckDB has all events before it begins and keeps nothing; statekit takes them in "
        f"{EPOCHS} epochs, keeps its state in RocksDB, and calls Python for "
        f"{QUERIES[number].calls}."
    )


def benchmark(number: int) -> Callable[[], list[Row]]:
    return lambda: [measured(number)]


BENCHMARKS = {f"nexmark-duckdb-q{number}": benchmark(number) for number in QUERIES}
