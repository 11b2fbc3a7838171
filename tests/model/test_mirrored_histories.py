"""Mirrors with history, compared with a model in plain Python: the versions of all rows that the
states after each epoch lead to, through rollbacks, rescales, kills and steps of several epochs.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import pytest

import statekit as sk
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.rollback import plan
from statekit.testing import Harness
from statekit.timestamp import instant
from tests.support.effort import SOAK
from tests.support.lake_tables import IcebergTable, in_class
from tests.support.mirrors import Dying, DyingDelta, DyingPostgres, Killed, Sale, delta_rows
from tests.support.postgres import PostgresSchema

STATES = ("total", "by_cents", "recent", "last")
HISTORIES = 200 if SOAK else 3
STEPS = 14


@sk.process(key="user")
def sales(
    sale: Sale,
    total: sk.ValueState[int],
    by_cents: sk.MapState[int, int],
    recent: Annotated[sk.MapState[int, str], sk.TTL("1 hour")],
    last: Annotated[sk.ListState[int], sk.TTL("1 hour")],
) -> None:
    if not sale.cents:
        total.clear()
        by_cents.clear()
        return
    total.update((total.get() or 0) + sale.cents)
    by_cents[sale.cents] = (by_cents.get(sale.cents) or 0) + 1
    recent[sale.cents] = sale.user
    last.append(sale.cents)


Version = tuple[str, int, int | None]
"""Of a row: its value as text, and the epochs in which it began and ended."""


Rows = list[dict[str, Any]]


class Model:
    """The versions of the rows of one state."""

    def __init__(self) -> None:
        self.versions: dict[Any, list[Version]] = {}

    def put(self, epoch: int, rows: dict[Any, str]) -> None:
        """Take the rows of the state after an epoch."""
        for key in self.versions.keys() | rows.keys():
            own = self.versions.setdefault(key, [])
            value, begin, end = own[-1] if own else ("", 0, 0)
            if end is None and value == rows.get(key):
                continue
            if end is None:
                own[-1] = value, begin, epoch
            if key in rows:
                own.append((rows[key], epoch, None))


class Histories:
    """A random history of a checkpoint, and its mirror.

    Parameters:
        sink: returns the sink for a state.
        read: returns all rows of the table of a state.
        commits: of a step.
    """

    def __init__(
        self,
        home: Path,
        seed: int,
        sink: Callable[[str], Any],
        read: Callable[[str], Rows],
        commits: int = len(STATES),
    ) -> None:
        self.home, self.sink, self.read, self.commits = home, sink, read, commits
        self.chosen = random.Random(seed)
        self.job = Harness(sales, checkpoint=home / "job", parallelism=2)
        self.states: dict[tuple[str, int], dict[Any, str]] = {}
        self.counted: dict[int, list[int]] = {}  # the epochs that count after each
        self.seen, self.minutes = -1, 0
        self.begun: int | None = None  # the first epoch of the versions

    def run(self) -> None:
        self.send()
        steps = [self.send] * 4 + [self.follow] * 3 + [self.roll_back, self.rescale, self.die]
        for _ in range(STEPS):
            self.chosen.choice(steps)()
        self.follow()

    def send(self) -> None:
        count = self.chosen.randrange(1, 12)
        users = [f"u{self.chosen.randrange(8)}" for _ in range(count)]
        self.minutes += self.chosen.randrange(40)
        self.job.set_clock(instant(self.minutes * 60_000_000))
        self.job.send(*(Sale(user, self.chosen.randrange(4)) for user in users))
        self.look()

    def look(self) -> None:
        """Read the states after the epochs that are new."""
        repository = Repository(self.home / "job")
        for epoch in range(self.seen + 1, repository.epochs()[-1] + 1):
            for name in STATES:
                self.states[name, epoch] = self.rows(name, epoch)
            previous = repository.manifest(epoch).previous
            before = [] if previous is None else self.counted[previous]
            self.counted[epoch], self.seen = [*before, epoch], epoch

    def expected(self, name: str) -> dict[Any, list[Version]]:
        """The versions of the rows of a state, from the epochs that count."""
        assert self.begun is not None, "a mirror has followed"
        model = Model()
        for epoch in self.counted[self.seen]:
            if epoch >= self.begun:
                model.put(epoch, self.states[name, epoch])
        return model.versions

    def rows(self, name: str, epoch: int) -> dict[Any, str]:
        rows = sk.read(self.home / "job", "sales", name, epoch).read_all().to_pylist()
        return {
            (row["user"], row.get("map_key", row.get("position"))): value_of(row) for row in rows
        }

    def roll_back(self) -> None:
        """Go back to any epoch, also to one that was rolled back, or before the versions began."""
        repository = Repository(self.home / "job")
        *others, seen = repository.epochs()
        if not others:
            return
        last = self.chosen.choice(others)
        plan(repository, last).carry_out()
        if repository.epochs()[-1] == seen:
            return  # the last epoch is a rollback to this one already
        common = max(set(self.counted[seen]) & set(self.counted[last]))
        self.look()
        if self.begun is not None and common < self.begun:
            self.begun = self.seen if common == last else common
        self.job = Harness(sales, checkpoint=self.home / "job", parallelism=2)

    def rescale(self) -> None:
        self.job.rescale(self.chosen.randrange(1, 5))
        self.look()

    def die(self) -> None:
        """Follow, and die before or after a commit."""
        Dying.dies = self.chosen.randrange(self.commits), bool(self.chosen.randrange(2))
        with suppress(Killed):
            self.follow()
        Dying.dies = None

    def follow(self) -> None:
        """Follow, and compare the tables with the models."""
        if self.begun is None:
            self.begun = self.seen
        tables = {f"sales.{name}": self.sink(name) for name in STATES}
        with sk.mirror(self.home / "job", tables, mode="history", name="all") as mirror:
            assert mirror.catch_up() == self.seen
        for name in STATES:
            self.compare(name)

    def compare(self, name: str) -> None:
        found = self.read(name)
        expected = [
            (key[0], value, begin, end)
            for key, own in self.expected(name).items()
            for value, begin, end in own
        ]
        shown = [
            (row["user"], value_of(row), row["from_epoch"], row["until_epoch"]) for row in found
        ]
        if name == "last":  # positions of elements are of the table alone
            current = [(user, value) for user, value, _, end in shown if end is None]
            rows = self.states[name, self.seen].items()
            assert sorted(current) == sorted((key[0], value) for key, value in rows)
        else:
            assert sorted(shown, key=str) == sorted(expected, key=str), name
        repository = Repository(self.home / "job")
        for row in found:
            for time, epoch in (("valid_from", "from_epoch"), ("valid_until", "until_epoch")):
                of = None if row[epoch] is None else repository.manifest(row[epoch])
                assert row[time] == (None if of is None else instant(of.processing_time_us))


def value_of(row: dict[str, Any]) -> str:
    """The value, with the time when it expires."""
    return f"{row['value']} {row.get('expires')}"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(HISTORIES))
def test_tables_with_history_have_the_versions_of_the_model(tmp_path: Path, seed: int) -> None:
    def read(name: str) -> Rows:
        rows: Rows = delta_rows(tmp_path / name).to_pylist()
        return rows

    Histories(tmp_path, seed, lambda name: DyingDelta.at(tmp_path / name), read).run()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(HISTORIES // 3))
def test_tables_of_iceberg_with_history_have_them_too(tmp_path: Path, seed: int) -> None:
    tables = {name: IcebergTable(str(tmp_path / "lake" / name)) for name in STATES}

    def read(name: str) -> Rows:
        rows: Rows = tables[name].read().to_pylist()
        return rows

    Histories(tmp_path, seed, lambda name: tables[name].sink(), read).run()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(HISTORIES // 3 + 1))
def test_tables_of_postgres_with_history_have_them_too(
    tmp_path: Path, postgres: PostgresSchema, seed: int
) -> None:
    """A step is one transaction of all tables."""

    def sink(name: str) -> Any:
        return in_class(DyingPostgres, sk.sinks.postgres(postgres.url, name))

    Histories(tmp_path, seed, sink, postgres.table, commits=1).run()
