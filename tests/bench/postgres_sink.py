"""The sink of PostgreSQL beside rows that psycopg inserts with `executemany`, on the same server.

Both are given what they take: Arrow batches, and tuples. The server has its own defaults, so each
commit is on the disk. Seconds are those of CPU of the client and the server, since other work on
the machine does not change them much; the time by the clock is in words.
"""

from __future__ import annotations

import datetime as dt
import pickle
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psutil
import psycopg
import pyarrow as pa

import statekit as sk
from statekit.sinks import Attempt, Outputs, Part, Postgres
from tests.bench.lean_heap import lean_heap
from tests.bench.peers.environments import NotAvailable
from tests.bench.report import Arm, Row, times_as_fast
from tests.support.postgres import PostgresServer

ROUNDS = 5
ROWS, INSERTED_ROWS = 200_000, 20_000
_BATCH_ROWS = 10_000
_DURABLE = "the rows in the table, committed"
_COLUMNS = "id bigint, customer text, cents bigint, ratio float8, at timestamptz, note text"

Rows = list[tuple[Any, ...]]


@dataclass(frozen=True)
class Spent:
    """What writing rows took, per row.

    Parameters:
        wall_s: until all are committed.
        client_s: CPU time of this process.
        server_s: CPU time of the server.
    """

    wall_s: float
    client_s: float
    server_s: float

    @property
    def cpu_s(self) -> float:
        return self.client_s + self.server_s


def rates() -> list[Row]:
    """Rows per second of the sink in each of its ways, and of `executemany`."""
    try:
        server = PostgresServer(options=None)
    except RuntimeError as error:
        raise NotAvailable(str(error)) from error
    with server:
        spent: dict[str, list[Spent]] = {}
        for number in range(ROUNDS):
            for name, write in _WAYS.items():
                spent.setdefault(name, []).append(write(server, f"t{number}"))
    inserted = spent.pop(_INSERTED)
    return [_row(name, ours, inserted) for name, ours in spent.items()]


def _row(name: str, ours: list[Spent], inserted: list[Spent]) -> Row:
    def rate(of: Callable[[Spent], float]) -> str:
        return f"{statistics.median(1 / of(each) for each in ours):,.0f}"

    arms = (_arm("statekit", ours), _arm("psycopg, executemany", inserted))
    by_clock = statistics.median(b.wall_s / a.wall_s for a, b in zip(ours, inserted, strict=True))
    result = (
        f"{times_as_fast(*arms):.1f} times the rows per CPU second of client and server: "
        f"{rate(lambda each: each.cpu_s)}, of the client alone {rate(lambda each: each.client_s)}; "
        f"by the clock {rate(lambda each: each.wall_s)} rows/s, {by_clock:.1f} times as many"
    )
    wanted = "3 times executemany, 100,000 rows/s by the clock" if name == _IN_PROCESS else ""
    return Row(f"rows into PostgreSQL, {name}", result, wanted, arms)


def _arm(name: str, spent: list[Spent]) -> Arm:
    turns = tuple(each.cpu_s * ROWS for each in spent)
    return Arm(name, statistics.median(turns), _DURABLE, ROWS, turns=turns)


# ----------------------------------------------------------------------------------- what is run


def _rows(count: int) -> Rows:
    draw = random.Random(0)
    begin = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    return [
        (
            number,
            f"customer-{draw.randrange(50_000)}",
            draw.randrange(10**6),
            draw.random(),
            begin + dt.timedelta(microseconds=draw.randrange(10**13)),
            None if number % 3 else "a note of some words",
        )
        for number in range(count)
    ]


_NAMES = [column.split()[0] for column in _COLUMNS.split(", ")]


def _batches() -> list[pa.RecordBatch]:
    rows = _rows(ROWS)
    table = pa.table(dict(zip(_NAMES, map(list, zip(*rows, strict=True)), strict=True)))
    return list(table.to_batches(max_chunksize=_BATCH_ROWS))


def _measured(server: PostgresServer, rows: int, write: Callable[[], object]) -> Spent:
    before = _cpu_s(server)
    with lean_heap():
        cpu_s, wall_s = time.process_time(), time.perf_counter()
        write()
        wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    return Spent(wall_s / rows, cpu_s / rows, max(0.0, _cpu_s(server) - before) / rows)


def _cpu_s(server: PostgresServer) -> float:
    first = psutil.Process(server.pid)
    own = first.cpu_times()
    times = [own, *(each.cpu_times() for each in first.children())]
    ended = own.children_user + own.children_system  # of connections that were closed
    return float(sum(each.user + each.system for each in times) + ended)


def _inserted(server: PostgresServer, table: str) -> Spent:
    rows = _rows(INSERTED_ROWS)
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(f"CREATE TABLE inserted_{table} ({_COLUMNS})".encode())
        statement = f"INSERT INTO inserted_{table} VALUES (%s, %s, %s, %s, %s, %s)".encode()

        def write() -> None:
            with connection.transaction(), connection.cursor() as cursor:
                cursor.executemany(statement, rows)

        return _measured(server, INSERTED_ROWS, write)


def _sink(kind: str, options: dict[str, Any]) -> Callable[[PostgresServer, str], Spent]:
    """Return a way to write rows by a sink, as a run in one process calls it."""

    def written(server: PostgresServer, table: str) -> Spent:
        sink = sk.sinks.postgres(server.url(), f"{kind}_{table}", **options)
        batches = _batches()
        attempt = _attempt(kind + table, batches[0].schema, epoch=0)
        sink.begin(attempt.outputs)
        _published(sink, sink, attempt, batches[:1])  # the connection is open then
        following = _attempt(kind + table, batches[0].schema, epoch=1)
        writes = _copy_of(sink) if kind == "staged" else sink
        try:
            return _measured(server, ROWS, lambda: _published(sink, writes, following, batches))
        finally:
            sink.close()

    return written


def _copy_of(sink: Postgres) -> Postgres:
    """Return what a task of Spark has."""
    copied: Postgres = pickle.loads(pickle.dumps(sink))
    return copied


def _attempt(name: str, schema: pa.Schema, epoch: int) -> Attempt:
    return Attempt(Outputs(name, name, schema), epoch, "bench", epoch == 0, (), lambda: None)


def _published(
    sink: Postgres, writes: Postgres, attempt: Attempt, batches: list[pa.RecordBatch]
) -> None:
    sink.open(attempt)
    part = Part(attempt.outputs, attempt.epoch, attempt.writer, 0)
    sink.publish(attempt, [writes.write(part, iter(batches))])


_INSERTED = "executemany"
_IN_PROCESS = "append in one process"

_WAYS: dict[str, Callable[[PostgresServer, str], Spent]] = {
    _IN_PROCESS: _sink("append", {}),
    "append of a task, staged and moved": _sink("staged", {}),
    "upsert of new keys in one process": _sink("upsert", {"key": "id", "mode": "upsert"}),
    _INSERTED: _inserted,
}

BENCHMARKS = {"postgres-sink": rates}
