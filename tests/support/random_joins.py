"""Random joins: the inputs, the job, a run in epochs and shards, and the result of DuckDB."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import duckdb

import statekit as sk
from statekit.testing import JobHarness

START = dt.datetime(2026, 3, 28, 22, tzinfo=dt.UTC)  # some hours before clocks change in Berlin
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)  # where the processing time of a harness begins
_START = int(START.timestamp())


class Left(NamedTuple):
    key: int | None
    number: int
    at: dt.datetime
    until: dt.datetime


class Right(NamedTuple):
    ref: int | None
    number: int
    seen: dt.datetime


def seconds(count: float) -> dt.timedelta:
    return dt.timedelta(seconds=count)


@dataclass
class RandomJoin:
    """A join of random kind with random records.

    Parameters:
        seed: of all choices.

    Attributes:
        how, options: of the join.
        left, right: the records in order of arrival, cut into epochs.
        arrived: the processing time of each epoch, in seconds after the first one.
    """

    seed: int
    how: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    left: list[list[Left]] = field(default_factory=list)
    right: list[list[Right]] = field(default_factory=list)
    arrived: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = chosen = random.Random(self.seed)
        self.how = chosen.choice(["inner", "left", "right", "full", "semi", "anti"])
        self._kind = chosen.choice(["interval", "own end", "fixed", "calendar", "none"])
        if self._kind == "none":
            self.how = chosen.choice(["inner", "semi"])
        self._between = chosen.choice([(0, 0), (3, 3), (0, 5), (10, -3), (-2, 7), (1, 100)])
        self._size = chosen.choice([1, 5, 7, 10])
        self._every = chosen.choice([self._size, 4])
        self._every = min(self._every, self._size)
        self._span = chosen.choice([5, 30, 200]) if self._kind != "calendar" else 20_000
        self._is_late = chosen.random() < 0.5  # records arrive in any order, and lateness covers it
        self._ttl = chosen.choice([None, 1, 20]) if self._kind == "none" else None
        self.options = self._chosen_options()
        self._fill()

    def _chosen_options(self) -> dict[str, Any]:
        options: dict[str, Any] = {"on": ("key", "ref"), "how": self.how, "name": "j"}
        if self.how not in ("semi", "anti"):
            fields = (
                "left.key",
                "left.number",
                "left.at",
                "right.ref",
                "right.number",
                "right.seen",
            )
            options["fields"] = {of.replace(".", "_"): of for of in fields}
            if self._kind in ("fixed", "calendar"):
                options["fields"]["start"] = "start"
        if self._ttl is not None:
            options["ttl"] = sk.TTL(seconds(self._ttl))
        if self._kind == "none":
            return options
        lateness = seconds(self._span if self._is_late else 0)
        options |= {"event_time": ("at", "seen"), "lateness": lateness}
        if self._kind == "interval":
            options["within"] = tuple(map(seconds, self._between))
        elif self._kind == "own end":
            options["within"] = (seconds(self._between[0]), "until")
        elif self._kind == "fixed":
            options["window"] = sk.sliding(seconds(self._size), seconds(self._every))
        else:
            options["window"] = sk.tumbling("1 hour", zone="Europe/Berlin")
        return options

    def _fill(self) -> None:
        chosen = self._random
        keys = [*range(chosen.choice([2, 20])), None]
        size = chosen.choice([3, 20, 80])

        def until(at: dt.datetime) -> list[dt.datetime]:
            return [at + seconds(chosen.choice([-1, 0, 1, 5, 300]))]

        def some(cls: Any) -> list[Any]:
            made = []
            for number in range(chosen.randrange(size + 1)):
                at = START + seconds(chosen.randrange(self._span))
                made.append(cls(chosen.choice(keys), number, at, *until(at)[: cls is Left]))
            return [chosen.choice(made) for _ in made] if chosen.random() < 0.3 else made

        left, right, epochs = some(Left), some(Right), chosen.randrange(1, 6)
        self.arrived = sorted(chosen.sample(range(40), epochs))
        if self._is_late or self._kind == "none":
            self.left, self.right = self._cut(left, epochs), self._cut(right, epochs)
            return
        cuts = sorted(START + seconds(chosen.randrange(self._span + 1)) for _ in range(epochs - 1))
        bounds = [START - seconds(1), *cuts, START + seconds(2 * self._span)]
        for first, last in pairwise(bounds):
            self.left.append([row for row in left if first < row.at <= last])
            self.right.append([row for row in right if first < row.seen <= last])

    def _cut(self, records: list[Any], epochs: int) -> list[list[Any]]:
        places = sorted(self._random.randrange(len(records) + 1) for _ in range(epochs - 1))
        ends = zip([0, *places], [*places, len(records)], strict=True)
        return [records[first:end] for first, end in ends]

    # ------------------------------------------------------------------------------------- results

    def job(self) -> sk.Job:
        job = sk.Job("random")
        left, right = job.source("left", Left), job.source("right", Right)
        left.join(right, **self.options).sink("out")
        return job

    def found(self, home: Path, backend: Any = "memory") -> Counter[tuple[int | None, ...]]:
        """The results of the job, which goes on with other shards after some epochs."""
        chosen, job = self._random, self.job()
        harness = JobHarness(job, chosen.choice([1, 2, 5]), backend=backend)
        results: list[Any] = []
        for number, (left, right) in enumerate(zip(self.left, self.right, strict=True)):
            if self._ttl is not None:
                harness.advance_processing_time(EPOCH + seconds(self.arrived[number] + 1))
            results += harness.send(left=left, right=right)["out"]
            if chosen.random() < 0.2:
                path = home / f"{self.seed}-{number}"
                harness.checkpoint(path)
                harness = JobHarness.restore(job, path, chosen.choice([1, 2, 3, 7]), backend)
        if self._kind != "none":
            results += harness.drain()["out"]
        return counted(results)

    def expected(self) -> Counter[tuple[int | None, ...]]:
        """The results of DuckDB over all records."""
        with duckdb.connect() as database:
            sides: list[tuple[str, Sequence[list[Any]]]] = [("l", self.left), ("r", self.right)]
            for name, records in sides:
                until = ", u bigint" if name == "l" else ""
                database.execute(f"create table {name} (k int, n int, t bigint{until}, a bigint)")
                epochs = zip(self.arrived, records, strict=True)
                rows = [(*_numbers(record), at) for at, some in epochs for record in some]
                if rows:
                    places = ", ".join("?" * len(rows[0]))
                    database.executemany(f"insert into {name} values ({places})", rows)
            return Counter(database.execute(self._sql()).fetchall())

    def _sql(self) -> str:
        left, right, on = "l", "r", "l.k = r.k"
        if self._kind == "interval":
            before, after = self._between
            on += f" and r.t between l.t - {before} and l.t + {after}"
        elif self._kind == "own end":
            on += f" and r.t between l.t - {self._between[0]} and l.u"
        elif self._kind in ("fixed", "calendar"):
            left, right = self._in_windows("l"), self._in_windows("r")
            on += " and l.w = r.w"
        if self._ttl is not None:
            on += f" and abs(l.a - r.a) < {self._ttl}"
        if self.how in ("semi", "anti"):
            return f"select l.k, l.n, l.t, l.u from {left} l {self.how} join {right} r on {on}"
        window = ", coalesce(l.w, r.w)" if self._kind in ("fixed", "calendar") else ""
        columns = f"l.k, l.n, l.t, r.k, r.n, r.t{window}"
        return f"select {columns} from {left} l {self.how} join {right} r on {on}"

    def _in_windows(self, table: str) -> str:
        """A table with a row for each window of a record; the zone has whole hours."""
        size, every = (3600, 3600) if self._kind == "calendar" else (self._size, self._every)
        latest = f"((t + {_START}) // {every}) * {every} - {_START}"
        starts = ", ".join(f"{latest} - {n * every}" for n in range(-(-size // every)))
        return (
            f"(select * from (select *, unnest([{starts}]) as w from {table}) where w + {size} > t)"
        )


def counted(results: Sequence[Any]) -> Counter[tuple[int | None, ...]]:
    """Results as tuples of numbers, with how often each is there."""
    return Counter(map(_numbers, results))


def _numbers(record: Any) -> tuple[int | None, ...]:
    return tuple(
        round((value - START).total_seconds()) if isinstance(value, dt.datetime) else value
        for value in record
    )
