"""Mirrors with history: a row per version, in each kind of table."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import statekit as sk
from statekit.checkpoint.gc.collector import Collector
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.rollback import plan
from statekit.testing import Harness
from statekit.timestamp import instant
from tests.support.lake_tables import IcebergTable
from tests.support.mirrors import Sale, delta_rows, sales
from tests.support.postgres import PostgresSchema

Made = tuple[Any, Callable[[], list[dict[str, Any]]]]
"""A sink, and a function that reads its table."""


@pytest.fixture
def job(tmp_path: Path) -> Harness:
    harness = Harness(sales, checkpoint=tmp_path / "job", parallelism=2)
    harness.set_clock(instant(0))
    harness.send(Sale("ada", 5), Sale("bob", 7))
    return harness


@pytest.fixture(params=["delta", "iceberg", "postgres"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Made:
    if request.param == "delta":
        path = tmp_path / "table"
        return sk.sinks.delta(path), lambda: delta_rows(path).to_pylist()
    if request.param == "iceberg":
        table = IcebergTable(str(tmp_path / "warehouse"))
        return table.sink(), lambda: table.read().to_pylist()
    schema: PostgresSchema = request.getfixturevalue("postgres")
    return sk.sinks.postgres(schema.url, "totals"), lambda: schema.table("totals")


def versions(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    names = ("user", "value", "from_epoch", "until_epoch")
    return sorted((tuple(row[name] for name in names) for row in rows), key=str)


def follow(tmp_path: Path, sink: Any, **options: Any) -> int | None:
    with sk.mirror(tmp_path / "job", "sales.total", sink, mode="history", **options) as mirror:
        return mirror.catch_up()


def test_a_table_has_the_versions_of_rows_and_a_rollback_takes_them_back(
    tmp_path: Path, job: Harness, made: Made
) -> None:
    sink, read = made
    follow(tmp_path, sink)
    job.set_clock(instant(60_000_000))
    job.send(Sale("ada", 1), Sale("bob", 0))
    job.set_clock(instant(120_000_000))
    job.send(Sale("ada", 1), Sale("eve", 2))
    assert follow(tmp_path, sink) == 2
    assert versions(read()) == [
        ("ada", 5, 0, 1),
        ("ada", 6, 1, 2),
        ("ada", 7, 2, None),
        ("bob", 7, 0, 1),
        ("eve", 2, 2, None),
    ]
    (second,) = (row for row in read() if row["value"] == 6)
    assert (second["valid_from"], second["valid_until"]) == (
        instant(60_000_000),
        instant(120_000_000),
    )
    plan(Repository(tmp_path / "job"), 1).carry_out()
    assert follow(tmp_path, sink) == 3
    assert versions(read()) == [("ada", 5, 0, 1), ("ada", 6, 1, None), ("bob", 7, 0, 1)]


def test_a_rescale_makes_no_version_and_a_rollback_over_it_takes_the_table_back(
    tmp_path: Path, job: Harness, made: Made
) -> None:
    sink, read = made
    follow(tmp_path, sink)
    job.rescale(5)
    last = follow(tmp_path, sink)
    assert versions(read()) == [("ada", 5, 0, None), ("bob", 7, 0, None)]
    job.send(Sale("ada", 1), Sale("bob", 0))
    ended = follow(tmp_path, sink)
    assert versions(read()) == [("ada", 5, 0, ended), ("ada", 6, ended, None), ("bob", 7, 0, ended)]
    assert last is not None
    plan(Repository(tmp_path / "job"), last).carry_out()
    follow(tmp_path, sink)
    assert versions(read()) == [("ada", 5, 0, None), ("bob", 7, 0, None)]
    Harness(sales, checkpoint=tmp_path / "job", parallelism=2).send(Sale("eve", 3))
    begun = follow(tmp_path, sink)
    assert versions(read())[2:] == [("eve", 3, begun, None)]


def test_a_rollback_to_an_epoch_that_was_rolled_back_brings_its_versions_back(
    tmp_path: Path, job: Harness, made: Made
) -> None:
    sink, read = made
    follow(tmp_path, sink)
    job.send(Sale("ada", 1), Sale("new", 3))
    job.send(Sale("ada", 1), Sale("bob", 0))
    follow(tmp_path, sink)
    before = versions(read())
    plan(Repository(tmp_path / "job"), 0).carry_out()
    follow(tmp_path, sink)
    Harness(sales, checkpoint=tmp_path / "job", parallelism=2).send(Sale("eve", 2))
    follow(tmp_path, sink)
    assert versions(read()) == [("ada", 5, 0, None), ("bob", 7, 0, None), ("eve", 2, 4, None)]
    plan(Repository(tmp_path / "job"), 2).carry_out()
    follow(tmp_path, sink)
    assert versions(read()) == before
    Harness(sales, checkpoint=tmp_path / "job", parallelism=2).send(Sale("new", 4))
    assert follow(tmp_path, sink) == 6
    assert set(versions(read())) - set(before) == {("new", 3, 1, 6), ("new", 7, 6, None)}


def test_a_rollback_to_an_epoch_before_the_history_begins_it_anew(
    tmp_path: Path, job: Harness, made: Made
) -> None:
    sink, read = made
    job.send(Sale("ada", 1), Sale("new", 3))
    follow(tmp_path, sink)
    plan(Repository(tmp_path / "job"), 0).carry_out()
    follow(tmp_path, sink)
    assert versions(read()) == [("ada", 5, 2, None), ("bob", 7, 2, None)]
    Harness(sales, checkpoint=tmp_path / "job", parallelism=2).send(Sale("ada", 1))
    follow(tmp_path, sink)
    assert versions(read()) == [("ada", 5, 2, 3), ("ada", 6, 3, None), ("bob", 7, 2, None)]


def test_a_rollback_whose_epochs_were_collected_is_refused_and_the_table_stays(
    tmp_path: Path, job: Harness
) -> None:
    sink = sk.sinks.delta(tmp_path / "table")
    for cents in (1, 2, 3):
        job.send(Sale("ada", cents))
    follow(tmp_path, sink)
    plan(Repository(tmp_path / "job"), 1).carry_out()
    follow(tmp_path, sink)
    before = versions(delta_rows(tmp_path / "table").to_pylist())
    repository = Repository(tmp_path / "job")
    plan(repository, 3).carry_out()
    Collector(repository, sk.Retention(epochs=2, readers=None)).collect(sweep=False)
    assert repository.epochs() == [3, 4, 5]
    with pytest.raises(sk.QueryError, match=r"went back to epoch 3, .* drop the table for a new"):
        follow(tmp_path, sink)
    assert versions(delta_rows(tmp_path / "table").to_pylist()) == before
    shutil.rmtree(tmp_path / "table")
    assert follow(tmp_path, sink) == 5
    assert versions(delta_rows(tmp_path / "table").to_pylist()) == [
        ("ada", 11, 5, None),
        ("bob", 7, 5, None),
    ]


def test_a_history_is_not_replaced_when_its_epochs_were_collected(
    tmp_path: Path, job: Harness
) -> None:
    sink = sk.sinks.delta(tmp_path / "table")
    follow(tmp_path, sink)
    job.send(Sale("ada", 1))
    job.send(Sale("ada", 1))
    Collector(Repository(tmp_path / "job"), sk.Retention(epochs=1, readers=None)).collect(
        sweep=False
    )
    with pytest.raises(sk.QueryError, match="cannot continue its history"):
        follow(tmp_path, sink)
    rows = delta_rows(tmp_path / "table").to_pylist()
    assert versions(rows) == [("ada", 5, 0, None), ("bob", 7, 0, None)]
    assert follow(tmp_path, sink, replace=True) == 2
    rows = delta_rows(tmp_path / "table").to_pylist()
    assert versions(rows) == [("ada", 7, 2, None), ("bob", 7, 2, None)]


def test_a_table_that_others_have_changed_is_refused(tmp_path: Path, job: Harness) -> None:
    from deltalake import DeltaTable

    sink = sk.sinks.delta(tmp_path / "table")
    follow(tmp_path, sink)
    DeltaTable(str(tmp_path / "table")).delete("value = 5")
    job.send(Sale("ada", 1))
    with pytest.raises(sk.StateSchemaError, match="so that others have changed it"):
        follow(tmp_path, sink)


def test_files_have_no_history(tmp_path: Path, job: Harness) -> None:
    with pytest.raises(sk.StateTypeError, match=r"choose sinks.delta, sinks.iceberg or"):
        follow(tmp_path, sk.sinks.parquet(tmp_path / "table"))
