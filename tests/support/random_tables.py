"""Random joins of tables: changes of both, a sink that applies those of the join, and DuckDB."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import duckdb

import statekit as sk
from statekit.testing import JobHarness


class Left(NamedTuple):
    ref: int | None
    id: int | None
    value: int
    gone: bool


class Right(NamedTuple):
    key: int | None
    id: int | None
    value: int | None


class LeftRow(NamedTuple):
    left_ref: int | None
    left_id: int | None
    left_value: int
    deleted: bool


Rows = list[tuple[int | None, ...]]

FIELDS = ("left.ref", "left.id", "left.value", "right.key", "right.id", "right.value")


@dataclass
class RandomTables:
    """A join of two tables with random changes.

    Parameters:
        seed: of all choices.
        moves: whether the values of `on` of a row may change, as its key may be without them.

    Attributes:
        options: of the join.
        changes: of both tables, by epoch.
    """

    seed: int
    moves: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    changes: list[tuple[list[Left], list[Right]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = chosen = random.Random(self.seed)
        self.how = chosen.choice(["inner", "left", "left", "right", "full"])
        self.has_one_right = chosen.random() < 0.4
        self.keys: tuple[list[str], list[str]] = (
            ["ref", "id"],
            ["key"] if self.has_one_right else ["id", "key"],
        )
        if chosen.random() < 0.3:
            self.how = chosen.choice(["semi", "anti"])
        if self.moves:
            self.keys = (
                chosen.choice([["id"], ["id"], ["ref", "id"], ["ref"]]),
                chosen.choice([["key"], ["id", "key"], ["id"]]),
            )
        self.options = {
            "on": ("ref", "key"),
            "how": self.how,
            "emit": "changes",
            "key": self.keys,
            "deletes": ("gone", "value"),
            "name": "j",
        }
        if self.of_left_alone:
            self.options["into"] = LeftRow
            self.options["fields"] = {of.replace(".", "_"): of for of in FIELDS[:3]}
        else:
            self.options["fields"] = {of.replace(".", "_"): of for of in FIELDS}
            self.options["fields"]["deleted"] = "deleted"
        self._fill()

    def _fill(self) -> None:
        chosen = self._random
        keys = [*range(chosen.choice([1, 3, 20])), None]
        ids: list[int | None] = [*range(chosen.choice([2, 6, 40]))]
        ids += [None] if self.moves and chosen.random() < 0.5 else []
        size = chosen.choice([2, 10, 60])
        deletes = chosen.choice([0.1, 0.4])
        for _ in range(chosen.randrange(1, 8)):
            left = [
                Left(
                    chosen.choice(keys),
                    chosen.choice(ids),
                    chosen.randrange(3),
                    chosen.random() < deletes,
                )
                for _ in range(chosen.randrange(size + 1))
            ]
            right = [
                Right(
                    chosen.choice(keys),
                    chosen.choice(ids),
                    None if chosen.random() < deletes else chosen.randrange(3),
                )
                for _ in range(chosen.randrange(size + 1))
            ]
            empty: list[Any] = []
            self.changes.append(
                chosen.choice([(left, right), (left, right), (left, empty), (empty, right)])
            )

    @property
    def of_left_alone(self) -> bool:
        """Whether a row of the join is a row of the left side."""
        return self.how in ("semi", "anti")

    def job(self) -> sk.Job:
        job = sk.Job("random")
        left, right = job.source("left", Left), job.source("right", Right)
        left.join(right, **self.options).sink("out")
        return job

    def found(self, home: Path, backend: Any = "memory") -> Iterator[tuple[list[Rows], list[Any]]]:
        """Yield the rows of sinks with several keys after each epoch, and the changes of the epoch.

        The job goes on with other shards after some epochs.
        """
        chosen, job = self._random, self.job()
        harness = JobHarness(job, chosen.choice([1, 2, 5]), backend=backend)
        sinks: list[tuple[Any, dict[Any, Any]]] = [(of, {}) for of in self._keys_of_sinks()]
        for number, (left, right) in enumerate(self.changes):
            changes = harness.send(left=left, right=right)["out"]
            for *row, deleted in changes:
                for key_of, rows in sinks:
                    key = key_of(row)
                    if not deleted:
                        rows[key] = tuple(row)
                    else:
                        del rows[key]  # a row is deleted that the sink has
            yield [in_order(rows.values()) for _, rows in sinks], changes
            if chosen.random() < 0.2:
                path = home / f"{self.seed}-{number}"
                harness.checkpoint(path)
                harness = JobHarness.restore(job, path, chosen.choice([1, 2, 3, 7]), backend)

    def _keys_of_sinks(self) -> list[Callable[[Sequence[int | None]], Any]]:
        """Return the keys that sinks may have: of both rows, or of one side if each of its rows has
        one match at most.
        """
        if self.of_left_alone:
            return [self._left_key]
        keys: list[Callable[[Sequence[int | None]], Any]] = [self.key_of]
        if "id" not in self.keys[1] and self.how in ("inner", "left"):
            keys.append(self._left_key)
        elif "id" not in self.keys[0] and self.how in ("inner", "right"):
            keys.append(self._right_key)
        return keys

    def _left_key(self, row: Sequence[int | None]) -> Any:
        return tuple(row[{"ref": 0, "id": 1}[field]] for field in self.keys[0])

    def _right_key(self, row: Sequence[int | None]) -> Any:
        return tuple(row[{"key": 3, "id": 4}[field]] for field in self.keys[1])

    def key_of(self, row: Sequence[int | None]) -> Any:
        """Return the keys of both rows of a row of the join, and which rows there are: the key of
        a row may be None.
        """
        if self.of_left_alone:
            return self._left_key(row)
        return self._left_key(row), self._right_key(row), row[2] is None, row[5] is None

    def expected(self) -> Iterator[Rows]:
        """Yield the join of both tables after each epoch, by DuckDB."""
        tables: tuple[dict[Any, Any], dict[Any, Any]] = ({}, {})
        columns = "l.*" if self.of_left_alone else "l.*, r.*"
        join = f"select {columns} from l {self.how} join r on l.ref = r.key"
        with duckdb.connect() as database:
            database.execute("create table l (ref int, id int, value int)")
            database.execute("create table r (key int, id int, value int)")
            for changes in self.changes:
                sides: Any = "lr", tables, self.keys, changes
                for name, table, key, rows in zip(*sides, strict=True):
                    for row in rows:
                        gone = row.gone if isinstance(row, Left) else row.value is None
                        table[tuple(getattr(row, of) for of in key)] = None if gone else row[:3]
                    database.execute(f"delete from {name}")
                    if there := [of for of in table.values() if of is not None]:
                        database.executemany(f"insert into {name} values (?, ?, ?)", there)
                yield in_order(database.execute(join).fetchall())


def in_order(rows: Any) -> Rows:
    """Rows in an order that does not depend on how they were computed."""
    return sorted(rows, key=str)
