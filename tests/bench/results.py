"""What was measured, as one JSON file: all that pages and plots are made of.

What lives here: `Results`, and taking new rows into it. What does not: measuring, and how it is
shown (`pages`, `plots`).
"""

from __future__ import annotations

import datetime as dt
import os
import platform
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

import msgspec

from tests.bench.measured_code import changed_since, code_of
from tests.bench.report import Arm, Row

__all__ = ["Measured", "Results", "Side"]

FILE = "results.json"


class Side(msgspec.Struct, frozen=True):
    """One of the things that took turns.

    Parameters:
        events_per_second: None where nothing is counted.
        durable: what of its state would have outlived a crash.
        p50, p99: the seconds that half of its epochs, and 99 of 100, took at most.
        written: the bytes that it had left on the disk.
        memory: the most bytes that it held in memory.
    """

    name: str
    seconds: float
    events_per_second: float | None
    durable: str
    p50: float | None = None
    p99: float | None = None
    written: int | None = None
    memory: int | None = None

    @classmethod
    def of(cls, arm: Arm) -> Side:
        return cls(
            name=arm.name,
            seconds=round(arm.seconds, 4),
            events_per_second=round(arm.events / arm.seconds, 1) if arm.events else None,
            durable=arm.durable,
            p50=arm.p50,
            p99=arm.p99,
            written=arm.written,
            memory=arm.memory,
        )


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the report.

    Parameters:
        benchmark: what `python -m tests.bench` calls it.
        measured, result, wanted: in words.
        ours: None for a row that is words alone.
        against: what it is compared with, in the same run.
        without: why it is compared with nothing, although it should be.
        ratio: how many times as fast as that ours is.
        note: what has to be known to read the ratio.
        keys: how many were held, in rows that show what it costs to hold more.
        cores: of the machine, as this process may use them.
        machine: what kind, with the versions that matter.
        on: the day.
        code: digests of the folders of the package that were measured.
        changed: which of them have changed since.
    """

    benchmark: str
    measured: str
    result: str
    wanted: str
    ours: Side | None = None
    against: Side | None = None
    without: str = ""
    ratio: float | None = None
    note: str = ""
    keys: int | None = None
    cores: int
    machine: str
    on: dt.date
    code: dict[str, str] = {}
    changed: tuple[str, ...] = ("unknown",)

    @classmethod
    def of(cls, benchmark: str, row: Row, on: dt.date) -> Measured:
        sides = [Side.of(arm) for arm in row.arms]
        ours = sides[0] if sides else None
        against = sides[1] if sides[1:] else None
        times = row.times_as_fast
        return cls(
            benchmark=benchmark,
            measured=row.measured,
            result=row.result,
            wanted=row.wanted,
            ours=ours,
            against=against,
            without=row.without,
            ratio=None if times is None else round(times, 3),
            note=row.note,
            keys=row.keys,
            cores=_cores(),
            machine=f"{platform.machine()}, Python {platform.python_version()}, "
            f"Spark {version('pyspark')}",
            on=on,
            code=code_of(benchmark),
            changed=(),
        )


def _cores() -> int:
    """As many as this process may use, where the system tells."""
    allowed = getattr(os, "sched_getaffinity", None)
    return len(allowed(0)) if allowed else os.cpu_count() or 1


class Results(msgspec.Struct, frozen=True):
    """All rows, in the order in which benchmarks are listed."""

    rows: tuple[Measured, ...] = ()

    @classmethod
    def read(cls, directory: Path) -> Results:
        """What a directory has; nothing if it has no such file."""
        path = directory / FILE
        if not path.exists():
            return cls()
        return msgspec.json.decode(path.read_bytes(), type=cls)

    def write(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / FILE).write_bytes(msgspec.json.format(self.encoded, indent=1) + b"\n")

    @property
    def encoded(self) -> bytes:
        return msgspec.json.encode(self)

    def with_rows(self, benchmark: str, rows: Iterable[Measured], order: list[str]) -> Results:
        """With the rows of a benchmark in the place of those that it had.

        Parameters:
            order: the names of all benchmarks. What others measured once is dropped.
        """
        kept: dict[str, list[Measured]] = {name: [] for name in order}
        for row in self.rows:
            if row.benchmark in kept and row.benchmark != benchmark:
                kept[row.benchmark].append(row)
        kept[benchmark] = list(rows)
        return Results(tuple(row for name in order for row in kept[name]))

    def marked(self) -> Results:
        """With what has changed since each row was measured."""
        return Results(
            tuple(
                msgspec.structs.replace(row, changed=changed_since(row.code)) if row.code else row
                for row in self.rows
            )
        )

    def compared(self) -> list[tuple[Measured, Side, Side, float]]:
        """The rows that are compared with something: with ours, the other, and the ratio."""
        found: list[tuple[Measured, Side, Side, float]] = []
        for row in self.rows:
            if row.ours and row.against and row.ratio is not None:
                found.append((row, row.ours, row.against, row.ratio))
        return found
