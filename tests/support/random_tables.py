"""Random joins of tables: changes of both, a sink that applies those of the join, and DuckDB."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import duckdb

import statekit as sk
from statekit.testing import JobHarness


class Left(NamedTuple):
    ref: int | None
    id: int
    value: int
    gone: bool


class Right(NamedTuple):
    key: int | None
    id: int
    value: int | None


Rows = list[tuple[int | None, ...]]

FIELDS = ("left.ref", "left.id", "left.value", "right.key", "right.id", "right.value")


@dataclass
class RandomTables:
    """A join of two tables with random changes.

    Parameters:
        seed: of all choices.

    Attributes:
        options: of the join.
        changes: of both tables, by epoch.
    """

    seed: int
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
        self.options = {
            "on": ("ref", "key"),
            "how": self.how,
            "emit": "changes",
            "key": self.keys,
            "deletes": ("gone", "value"),
            "fields": {of.replace(".", "_"): of for of in FIELDS} | {"deleted": "deleted"},
            "name": "j",
        }
        self._fill()

    def _fill(self) -> None:
        chosen = self._random
        keys = [*range(chosen.choice([1, 3, 20])), None]
        ids, size = chosen.choice([2, 6, 40]), chosen.choice([2, 10, 60])
        deletes = chosen.choice([0.1, 0.4])
        for _ in range(chosen.randrange(1, 8)):
            left = [
                Left(
                    chosen.choice(keys),
                    chosen.randrange(ids),
                    chosen.randrange(3),
                    chosen.random() < deletes,
                )
                for _ in range(chosen.randrange(size + 1))
            ]
            right = [
                Right(
                    chosen.choice(keys),
                    chosen.randrange(ids),
                    None if chosen.random() < deletes else chosen.randrange(3),
                )
                for _ in range(chosen.randrange(size + 1))
            ]
            empty: list[Any] = []
            self.changes.append(
                chosen.choice([(left, right), (left, right), (left, empty), (empty, right)])
            )

    def job(self) -> sk.Job:
        job = sk.Job("random")
        left, right = job.source("left", Left), job.source("right", Right)
        left.join(right, **self.options).sink("out")
        return job

    def found(self, home: Path, backend: Any = "memory") -> Iterator[tuple[Rows, list[Any]]]:
        """Yield the rows of a sink after each epoch, and the changes of the epoch.

        The job goes on with other shards after some epochs.
        """
        chosen, job = self._random, self.job()
        harness = JobHarness(job, chosen.choice([1, 2, 5]), backend=backend)
        sink: dict[Any, tuple[int | None, ...]] = {}
        for number, (left, right) in enumerate(self.changes):
            changes = harness.send(left=left, right=right)["out"]
            for *row, deleted in changes:
                key = self._key_in_sink(row)
                if deleted:
                    assert sink.pop(key) is not None, "a row is deleted that the sink has"
                else:
                    sink[key] = tuple(row)
            yield in_order(sink.values()), changes
            if chosen.random() < 0.2:
                path = home / f"{self.seed}-{number}"
                harness.checkpoint(path)
                harness = JobHarness.restore(job, path, chosen.choice([1, 2, 3, 7]), backend)

    def _key_in_sink(self, row: Sequence[int | None]) -> Any:
        """The key of a row of the join: without the right side if a left row has one at most."""
        is_one = self.has_one_right and self.how in ("inner", "left")
        return tuple(row[:2]) if is_one else self.key_of(row)

    def key_of(self, row: Sequence[int | None]) -> Any:
        """The keys of both rows of a row of the join."""
        return (*row[:2], row[3]) if self.has_one_right else (*row[:2], *row[3:5])

    def expected(self) -> Iterator[Rows]:
        """Yield the join of both tables after each epoch, by DuckDB."""
        left: dict[Any, Any] = {}
        right: dict[Any, Any] = {}
        join = f"select l.*, r.* from l {self.how} join r on l.ref = r.key"
        with duckdb.connect() as database:
            database.execute("create table l (ref int, id int, value int)")
            database.execute("create table r (key int, id int, value int)")
            for of_left, of_right in self.changes:
                for row in of_left:
                    left[row.ref, row.id] = None if row.gone else row[:3]
                for own in of_right:
                    key = own.key if self.has_one_right else (own.key, own.id)
                    right[key] = None if own.value is None else own
                for name, table in (("l", left), ("r", right)):
                    database.execute(f"delete from {name}")
                    rows = [of for of in table.values() if of is not None]
                    if rows:
                        database.executemany(f"insert into {name} values (?, ?, ?)", rows)
                yield in_order(database.execute(join).fetchall())


def in_order(rows: Any) -> Rows:
    """Rows in an order that does not depend on how they were computed."""
    return sorted(rows, key=str)
