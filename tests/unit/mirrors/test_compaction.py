"""Small files of mirrored tables are rewritten as large ones, and no row is lost or doubled."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

import statekit as sk
from statekit.sinks.lake.delta_log import DeltaLog
from statekit.testing import Harness
from tests.support.killable_processes import die_at, exit_code
from tests.support.lake_tables import IcebergTable
from tests.support.mirrors import Sale, delta_rows, sales

STEPS = 7


def follow(home: Path, sink: Any, name: str, **options: Any) -> None:
    with sk.mirror(
        home / "job", "sales.by_cents", sink, mode="changes", name=name, **options
    ) as mirror:
        mirror.catch_up()


def log_of(rows: pa.Table) -> list[str]:
    """All changes but the first one, which clears the table."""
    changes = rows.filter(pc.field("op") != "clear")
    return sorted(map(str, changes.select(["op", "user", "map_key", "value"]).to_pylist()))


def steps(home: Path, sink: Any, **options: Any) -> None:
    """Take steps one by one: of each, the table has a file."""
    job = Harness(sales, checkpoint=home / "job", parallelism=2)
    with sk.mirror(
        home / "job", "sales.by_cents", sink, mode="changes", name="one", **options
    ) as mirror:
        for number in range(STEPS):
            job.send(Sale("ada", 1 + number), Sale("bob", number))
            mirror.catch_up()


def without_compaction(home: Path) -> list[str]:
    """The log of a mirror that compacts nothing. Each row is written once, so that its snapshot
    has the same changes.
    """
    path = home / "expected"
    follow(home, sk.sinks.delta(path), "expected", compact=0)
    return log_of(delta_rows(path))


def test_files_of_a_delta_log_are_compacted(tmp_path: Path) -> None:
    steps(tmp_path, sk.sinks.delta(tmp_path / "log"), compact=3)
    table = DeltaTable(str(tmp_path / "log"))
    assert len(table.file_uris()) < 5
    assert "OPTIMIZE" in {commit["operation"] for commit in table.history()}
    assert log_of(delta_rows(tmp_path / "log")) == without_compaction(tmp_path)


def test_files_of_an_iceberg_log_are_compacted(tmp_path: Path) -> None:
    table = IcebergTable(str(tmp_path / "warehouse"))
    steps(tmp_path, table.sink(), compact=3)
    assert len(list((tmp_path / "warehouse").rglob("*compacted-*.parquet"))) > 0
    assert log_of(table.read()) == without_compaction(tmp_path)


def follow_until_killed(home: Path, before: bool) -> None:
    die_at(DeltaLog, "compact", before=before, call=2)
    steps(home, sk.sinks.delta(home / "log"), compact=3)


@pytest.mark.parametrize("before", [True, False])
def test_a_mirror_that_is_killed_at_a_compaction_continues(tmp_path: Path, before: bool) -> None:
    assert exit_code(follow_until_killed, tmp_path, before) == -signal.SIGKILL
    Harness(sales, checkpoint=tmp_path / "job").send(Sale("eve", 3))
    follow(tmp_path, sk.sinks.delta(tmp_path / "log"), "one", compact=3)
    assert log_of(delta_rows(tmp_path / "log")) == without_compaction(tmp_path)
