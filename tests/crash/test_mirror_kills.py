"""Mirrors, their job and their database are killed at random points. After each kill, every table
equals the state after the epoch that it has, which is not before one that the mirror has reported.
The processes that were not killed go on meanwhile, as they would.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pyarrow as pa
import pytest
from psycopg.rows import dict_row

import statekit as sk
from statekit.checkpoint.repository import Repository
from statekit.clock import sleep_s
from statekit.testing import Harness
from statekit.working_copy.base_options import BaseOptions
from statekit.working_copy.copies import DiskCopies
from tests.support.effort import SOAK
from tests.support.killable_processes import pipe, preload, start
from tests.support.lake_tables import IcebergTable
from tests.support.mirrors import Sale, sales, shown, state_rows
from tests.support.postgres import PostgresServer
from tests.support.timeouts import PATIENCE_S

pytestmark = pytest.mark.slow

preload(__name__, "statekit.sinks.lake.delta_log", "statekit.sinks.lake.iceberg_log")

KILLS = 100 if SOAK else 2
"""Of each victim."""

STATES = ("total", "by_cents", "last")
NAME = "killed"
STEP_S = 0.4
"""More than a step takes: a process is killed at a random point of this time."""


def work(checkpoint: Path, seed: int) -> None:
    """Commit epochs until the process is killed. Bases keep the starts after some thousand epochs
    as short as the first ones.
    """
    copies = DiskCopies(str(checkpoint.parent / "copies"), bases=BaseOptions(replay_seconds=0.05))
    harness = Harness(sales, checkpoint=checkpoint, parallelism=2, backend=copies)
    chosen = random.Random(seed)
    while True:
        users = [f"u{chosen.randrange(30)}" for _ in range(chosen.randrange(1, 30))]
        harness.send(*(Sale(user, chosen.randrange(6)) for user in users))
        sleep_s(0.05)  # so that a mirror on a busy machine keeps up


def follow(checkpoint: Path, tables: dict[str, Any], reports: Connection) -> None:
    """Mirror the states until the process is killed. Report each step."""
    with sk.mirror(checkpoint, tables, name=NAME, compact=3) as mirror:
        for epoch in mirror.follow():
            reports.send(epoch)


class Found(NamedTuple):
    """A table at one moment.

    Parameters:
        state: its name.
        epoch: of the last commit that changed the table.
        rows: the columns of them and perhaps more.
    """

    state: str
    epoch: int
    rows: pa.Table


class Target(ABC):
    """A place for the tables."""

    victims: tuple[str, ...] = ("mirror", "job")

    @abstractmethod
    def sink(self, state: str) -> Any: ...

    @abstractmethod
    def found(self) -> Iterator[Found]:
        """The tables that are there, each with its epoch, read in one transaction."""

    def kill(self) -> None:
        """Kill the database, and start it."""
        raise NotImplementedError


class Deltas(Target):
    def __init__(self, home: Path) -> None:
        self.home = home

    def sink(self, state: str) -> Any:
        return sk.sinks.delta(self.home / state)

    def found(self) -> Iterator[Found]:
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        newest = Repository(self.home / "job").newest_job_file()
        assert newest is not None, "the job has committed"
        for state in STATES:
            with suppress(TableNotFoundError):
                table = DeltaTable(str(self.home / state))
                sink = f"statekit/{newest[0].id}/{NAME}.sales.{state}"
                if (epoch := table.transaction_version(sink)) is not None:
                    yield Found(state, epoch, table.to_pyarrow_table())


class Icebergs(Target):
    def __init__(self, home: Path) -> None:
        self.tables = {state: IcebergTable(str(home / state)) for state in STATES}

    def sink(self, state: str) -> Any:
        return self.tables[state].sink()

    def found(self) -> Iterator[Found]:
        from pyiceberg.exceptions import NoSuchTableError

        for state, place in self.tables.items():
            if not (Path(place.place) / "catalog.db").exists():
                continue
            with suppress(NoSuchTableError), place.loaded() as table:
                epochs = (
                    int(number)
                    for name, number in table.properties.items()
                    if name.startswith("statekit.") and name.endswith(".epoch")
                )
                if (epoch := next(epochs, None)) is not None:
                    yield Found(state, epoch, table.scan().to_arrow())


class Postgreses(Target):
    victims = ("mirror", "job", "database")

    def __init__(self, server: PostgresServer) -> None:
        self.server, self.schema = server, server.new_schema()

    def sink(self, state: str) -> Any:
        return sk.sinks.postgres(self.schema.url, state)

    def found(self) -> Iterator[Found]:
        with psycopg.connect(self.schema.url, row_factory=dict_row) as connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            if "_statekit_sinks" not in self.schema.tables():
                return
            for state in STATES:
                epochs = "SELECT epoch FROM _statekit_sinks WHERE sink = %s"
                own = connection.execute(epochs, [f"{NAME}.sales.{state}"]).fetchone()
                if own is not None and own["epoch"] is not None:
                    rows = connection.execute(f"SELECT * FROM {state}".encode()).fetchall()
                    yield Found(state, own["epoch"], pa.Table.from_pylist(rows))

    def kill(self) -> None:
        self.server.kill()
        self.server.start()


class Killing:
    """A job and its mirror, in processes that are killed and started again."""

    def __init__(self, home: Path, target: Target) -> None:
        self.checkpoint, self.target = home / "job", target
        self.tables = {f"sales.{state}": target.sink(state) for state in STATES}
        self.chosen, self.starts = random.Random(7), 0
        self.last: int | None = None  # the last epoch that was reported
        self.checked: set[int] = set()
        Harness(sales, checkpoint=self.checkpoint, parallelism=2).send(Sale("u1", 1))
        self.processes: dict[str, ForkServerProcess] = {}
        self.start("job")
        self.start("mirror")

    def start(self, name: str) -> None:
        self.starts += 1
        if name == "job":
            self.processes[name] = start(work, self.checkpoint, self.starts)
        else:
            self.reports, end = pipe()
            self.processes[name] = start(follow, self.checkpoint, self.tables, end)
            end.close()  # so that the end of the process is seen

    def kill(self, victim: str) -> None:
        if victim == "database":
            self.target.kill()
        else:
            self.processes[victim].kill()
            self.processes[victim].join()

    def note(self) -> None:
        """Note the epochs that the mirror has reported."""
        while self.reports.poll():
            self.last = self.reports.recv()

    def run(self) -> None:
        victims = list(self.target.victims * KILLS)
        self.chosen.shuffle(victims)
        for victim in victims:
            if self.chosen.random() < 0.6:  # in other rounds the mirror may be starting
                assert self.reports.poll(PATIENCE_S), "the mirror takes a step"
                self.note()
            sleep_s(self.chosen.uniform(0.0, STEP_S))
            self.kill(victim)
            with suppress(EOFError):  # it was the mirror
                self.note()
            self.check()
            if victim in self.processes:
                self.start(victim)
        for name in self.processes:
            self.kill(name)
        with sk.mirror(self.checkpoint, self.tables, name=NAME) as mirror:
            self.last = mirror.catch_up()
        assert self.check() == set(STATES)
        assert len(self.checked) > len(victims) / 3, "the mirror advances"

    def check(self) -> set[str]:
        """Compare the tables with the states after their epochs, and return the names of those that
        are there. A step that does not change a table leaves its epoch as it is.
        """
        names = set()
        for state, epoch, rows in self.target.found():
            epoch = epoch if self.last is None else max(epoch, self.last)
            expected = state_rows(self.checkpoint, "sales", state, epoch)
            assert shown(rows, expected) == shown(expected, expected), (state, epoch)
            self.checked.add(epoch)
            names.add(state)
        return names


def test_tables_of_delta_equal_the_states_after_their_epochs(tmp_path: Path) -> None:
    Killing(tmp_path, Deltas(tmp_path)).run()


def test_tables_of_iceberg_equal_the_states_after_their_epochs(tmp_path: Path) -> None:
    Killing(tmp_path, Icebergs(tmp_path)).run()


def test_tables_of_postgres_equal_the_states_after_their_epochs(tmp_path: Path) -> None:
    with PostgresServer() as server:
        Killing(tmp_path, Postgreses(server)).run()
