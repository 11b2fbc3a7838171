"""Pathway: its built-in reducers, with persistence of what came in.

Arguments: the events, `count` or `entries`, and a scratch directory. There are no maps; an entry is
a group of key and entry.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("PATHWAY_THREADS", "1")

import pathway as pw

from tests.bench.peers.jobs.handshake import bytes_in, done, ready


class Counted(pw.Schema):
    key: int
    value: int


class Entry(pw.Schema):
    key: int
    entry: int
    value: int


def main(events: Path, workload: str, home: Path) -> None:
    schema = Entry if workload == "entries" else Counted
    rows = pw.io.csv.read(str(events / "csv"), schema=schema, mode="static", name="events")
    by = [rows.key, rows.entry] if workload == "entries" else [rows.key]
    sums = rows.groupby(*by).reduce(
        *by, count=pw.reducers.count(), total=pw.reducers.sum(rows.value)
    )
    check = 0

    def changed(key: Any, row: dict[str, int], time: int, is_addition: bool) -> None:
        nonlocal check
        check += row["total"] if is_addition else -row["total"]

    pw.io.subscribe(sums, changed)
    backend = pw.persistence.Backend.filesystem(str(home / "log"))
    kept = pw.persistence.Config(backend, persistence_mode=pw.PersistenceMode.PERSISTING)
    ready()
    pw.run(monitoring_level=pw.MonitoringLevel.NONE, persistence_config=kept)
    done(check=check, of="keys", written=bytes_in(home / "log"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
