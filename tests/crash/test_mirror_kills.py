"""Mirrors, their job and their database are killed at random points: after each kill, every table
equals the state after the epoch that it reports, and a new process continues from there.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import statekit as sk
from statekit.checkpoint.repository import Repository
from statekit.clock import sleep_s
from statekit.testing import Harness
from tests.support.effort import SOAK
from tests.support.killable_processes import pipe, start
from tests.support.mirrors import Sale, delta_rows, sales, shown, state_rows
from tests.support.postgres import PostgresSchema, PostgresServer
from tests.support.timeouts import PATIENCE_S

pytestmark = pytest.mark.slow

KILLS = 300 if SOAK else 6
VICTIMS = ("mirror", "job", "database")
STATES = ("total", "by_cents", "last")


def work(checkpoint: Path, seed: int) -> None:
    """Commit epochs until the process is killed."""
    harness, chosen = Harness(sales, checkpoint=checkpoint, parallelism=2), random.Random(seed)
    while True:
        users = [f"u{chosen.randrange(30)}" for _ in range(chosen.randrange(1, 30))]
        harness.send(*(Sale(user, chosen.randrange(6)) for user in users))
        sleep_s(0.05)


def follow(checkpoint: Path, tables: Mapping[str, Any], reports: Connection) -> None:
    """Mirror the states until the process is killed, or its database is. Report each step."""
    with sk.mirror(checkpoint, tables, name="killed") as mirror:
        for epoch in mirror.follow():
            reports.send(epoch)


def check(checkpoint: Path, name: str, epoch: int | None, rows: pa.Table) -> None:
    """Compare a table with the state after the epoch that it reports."""
    if epoch is not None:
        expected = state_rows(checkpoint, "sales", name, epoch)
        assert shown(rows, expected) == shown(expected, expected), (name, epoch)


def delta_epoch(checkpoint: Path, name: str, path: Path) -> int | None:
    from deltalake import DeltaTable

    newest = Repository(checkpoint).newest_job_file()
    assert newest is not None, "the job has committed"
    sink = f"statekit/{newest[0].id}/killed.sales.{name}"
    found: int | None = DeltaTable(str(path)).transaction_version(sink)
    return found


def rounds(checkpoint: Path, tables: Mapping[str, Any], server: PostgresServer | None) -> Any:
    """Kill a process after a random time; yield the victim once all processes have ended."""
    chosen = random.Random(7)
    victims = VICTIMS if server is not None else VICTIMS[:2]
    for number, victim in zip(range(KILLS), itertools.cycle(victims), strict=False):
        processes = {"job": start(work, checkpoint, number)}
        reports, end = pipe()
        processes["mirror"] = start(follow, checkpoint, tables, end)
        if number % 4:
            assert reports.poll(PATIENCE_S), "the mirror takes a step"
        sleep_s(chosen.uniform(0.0, 0.8))
        if victim == "database" and server is not None:
            server.kill()
            server.start()
            sleep_s(chosen.uniform(0.0, 0.5))
        else:
            processes[victim].kill()
            sleep_s(chosen.uniform(0.0, 0.2))
        for process in processes.values():
            process.kill()
            process.join()
        yield victim


def test_tables_of_delta_equal_the_states_after_the_epochs_that_they_report(tmp_path: Path) -> None:
    checkpoint = tmp_path / "job"
    Harness(sales, checkpoint=checkpoint, parallelism=2).send(Sale("u1", 1))
    tables = {f"sales.{name}": sk.sinks.delta(tmp_path / name) for name in STATES}
    reported = set()
    for _ in rounds(checkpoint, tables, None):
        for name in STATES:
            if (tmp_path / name / "_delta_log").exists():
                epoch = delta_epoch(checkpoint, name, tmp_path / name)
                check(checkpoint, name, epoch, delta_rows(tmp_path / name))
                reported.add(epoch)
    assert len(reported) > KILLS / 3, "the mirror advances between kills"
    with sk.mirror(checkpoint, tables, name="killed") as mirror:
        last = mirror.catch_up()
    for name in STATES:
        check(checkpoint, name, last, delta_rows(tmp_path / name))


def test_tables_of_postgres_equal_the_states_after_the_epoch_that_they_report(
    tmp_path: Path,
) -> None:
    checkpoint = tmp_path / "job"
    Harness(sales, checkpoint=checkpoint, parallelism=2).send(Sale("u1", 1))
    with PostgresServer() as server:
        schema = server.new_schema()
        tables = {f"sales.{name}": sk.sinks.postgres(schema.url, name) for name in STATES}
        reported = set()
        for _ in rounds(checkpoint, tables, server):
            if "_statekit_sinks" in schema.tables():
                epochs = {each for (each,) in schema.rows("SELECT epoch FROM _statekit_sinks")}
                check_postgres(checkpoint, schema, max(epochs, key=lambda each: each or -1))
                reported |= epochs
        assert len(reported) > KILLS / 3, "the mirror advances between kills"
        with sk.mirror(checkpoint, tables, name="killed") as mirror:
            last = mirror.catch_up()
        check_postgres(checkpoint, schema, last)


def check_postgres(checkpoint: Path, schema: PostgresSchema, epoch: int | None) -> None:
    for name in STATES:
        if epoch is not None:
            names = state_rows(checkpoint, "sales", name, epoch).column_names
            quoted = ", ".join(f'"{each}"' for each in names)
            rows = schema.rows(f"SELECT {quoted} FROM {name}")
            found = [dict(zip(names, row, strict=True)) for row in rows]
            check(checkpoint, name, epoch, pa.Table.from_pylist(found))
