"""Events of the auction site as JSON lines: the files that Flink and statekit both read.

What lives here: `Streams`, which writes persons, auctions and bids as streams of their own. What
does not: the events (`events`), and who reads them (`on_flink`).

The lines are the same for both, in two partitions, as those of a topic. Spark is given files for
each batch. Flink is given one file for each of its tasks: it does not read the files of a directory
in an order, so event time would go back.

Instants are integers, milliseconds since 1970, which both read at least cost. There is one event in
each millisecond, as Flink's event time has no more.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa

from tests.bench.nexmark.events import Events, Tables

__all__ = ["KINDS", "PARTITIONS", "TIMES", "Streams", "file_schema"]

KINDS = ("persons", "auctions", "bids")
TIMES = ("at", "expires")
"""The columns that are instants."""

PARTITIONS = 2
_RATE, _GROUP = 1000, 500


@dataclass(frozen=True)
class Streams:
    """The first events of a seed, in a directory.

    Parameters:
        home: the directory, with `batches/KIND/` and `partitions/KIND/`.
        count: of events of all kinds.
        per_batch: how many of them Spark is given at a time.
        kinds: those that are written.
        rate: events per second of event time.
        group: so many events at a time arrive out of order.
    """

    home: Path
    count: int
    per_batch: int
    kinds: tuple[str, ...] = KINDS
    rate: int = _RATE
    group: int = _GROUP

    def write(self) -> Streams:
        for kind in self.kinds:
            for way in ("batches", "partitions"):
                (self.home / way / kind).mkdir(parents=True)
        with duckdb.connect() as database:
            for number, tables in enumerate(self._batches()):
                for kind in self.kinds:
                    self._write(database, kind, number, getattr(tables, kind))
        return self

    def tables(self) -> Tables:
        """All events that are written; none of other kinds."""
        batches = list(self._batches())
        return Tables(
            *(pa.concat_tables(getattr(tables, kind) for tables in batches) for kind in KINDS)
        )

    def _batches(self) -> Iterator[Tables]:
        events = Events(seed=1, rate=self.rate, group=self.group)
        for first in range(0, self.count, self.per_batch):
            made = events.tables(first, min(self.per_batch, self.count - first))
            yield Tables(
                *(getattr(made, kind).slice(0, None if kind in self.kinds else 0) for kind in KINDS)
            )

    def _write(
        self, database: duckdb.DuckDBPyConnection, kind: str, batch: int, table: pa.Table
    ) -> None:
        """Write a batch of a kind, and append it to the partitions."""
        for partition in range(PARTITIONS):
            part = table.take(np.arange(partition, table.num_rows, PARTITIONS))
            database.register("part", _in_milliseconds(part))
            path = self.home / "batches" / kind / f"{batch:06d}-{partition}.json"
            database.execute(f"copy part to '{path}' (format json)")
            os.utime(path, (batch + 1, batch + 1))  # Spark reads files in the order of these times
            with (self.home / "partitions" / kind / f"{partition}.json").open("ab") as whole:
                whole.write(path.read_bytes())


def file_schema(kind: str) -> pa.Schema:
    """The columns of a kind's files."""
    return _in_milliseconds(getattr(Events(0, _RATE).tables(0, 50), kind)).schema


def _in_milliseconds(table: pa.Table) -> pa.Table:
    """With instants as integers."""
    for place, name in enumerate(table.column_names):
        if name in TIMES:
            times = table.column(place).cast(pa.timestamp("ms", tz="UTC"))
            table = table.set_column(place, name, times.cast(pa.int64()))
    return table
