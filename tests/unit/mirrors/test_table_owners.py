"""Tables that others write, and tables that are gone."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

import statekit as sk
from statekit.testing import Harness
from tests.support.lake_tables import IcebergTable
from tests.support.mirrors import Sale, delta_rows, file_rows
from tests.support.postgres import PostgresSchema


@sk.process(key="user")
def sales(
    sale: Sale, total: sk.ValueState[int], less: sk.ValueState[int], none: sk.ValueState[int]
) -> None:
    total.update((total.get() or 0) + sale.cents)
    less.update((less.get() or 0) - sale.cents)
    if sale.user == "max":
        none.update(sale.cents)


class Copy(NamedTuple):
    user: str
    value: int


@sk.process(key="user")
def copies(sale: Sale, seen: sk.ValueState[int]) -> Iterator[Copy]:
    yield Copy(sale.user, sale.cents)


@pytest.fixture
def job(tmp_path: Path) -> Harness:
    harness = Harness(sales, checkpoint=tmp_path / "job", parallelism=2)
    harness.send(Sale("ada", 5), Sale("bob", 7))
    return harness


class Target:
    """A table, the sinks that write it, and its values."""

    def __init__(
        self, place: Path, sink: Callable[[], Any], values: Callable[[], list[Any]]
    ) -> None:
        self.place, self.sink, self._values = place, sink, values

    def values(self) -> list[Any]:
        return sorted(self._values())


@pytest.fixture(params=["delta", "iceberg", "parquet", "postgres"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    place = tmp_path / "table"
    if request.param == "delta":
        read = lambda: delta_rows(place)["value"].to_pylist()  # noqa: E731
        return Target(place, lambda: sk.sinks.delta(place), read)
    if request.param == "iceberg":
        table = IcebergTable(str(place))
        return Target(place, table.sink, lambda: table.read()["value"].to_pylist())
    if request.param == "parquet":

        def files() -> list[Any]:
            rows = file_rows(place)
            return rows["value"].to_pylist() if rows.num_rows else []

        return Target(place, lambda: sk.sinks.parquet(place), files)
    schema: PostgresSchema = request.getfixturevalue("postgres")
    return Target(
        place,
        lambda: sk.sinks.postgres(schema.url, "t"),
        lambda: [value for (value,) in schema.rows("SELECT value FROM t")],
    )


def drop(target: Target, request: pytest.FixtureRequest) -> None:
    """Drop a table while others have it open."""
    if not target.place.exists():
        request.getfixturevalue("postgres").rows("DROP TABLE t")
    elif (target.place / "catalog.db").exists():
        with IcebergTable(str(target.place)).loaded() as table:
            table.catalog.drop_table("shop.spent")
    else:
        shutil.rmtree(target.place)


def follow(tmp_path: Path, state: str, target: Target, name: str, **options: Any) -> None:
    job = tmp_path / "job"
    with sk.mirror(job, f"sales.{state}", target.sink(), name=name, **options) as mirror:
        mirror.catch_up()


def test_the_table_of_another_mirror_is_replaced_only_on_demand(
    tmp_path: Path, job: Harness, target: Target
) -> None:
    follow(tmp_path, "total", target, "first")
    with pytest.raises(sk.StateSchemaError, match=r"another mirror.*first\.sales\.total"):
        follow(tmp_path, "less", target, "second")
    assert target.values() == [5, 7]
    follow(tmp_path, "less", target, "second", replace=True)
    assert target.values() == [-7, -5]
    job.send(Sale("ada", 1))
    follow(tmp_path, "less", target, "second")
    assert target.values() == [-7, -6]
    with pytest.raises(sk.StateSchemaError, match=r"another mirror.*second\.sales\.less"):
        follow(tmp_path, "total", target, "first")
    follow(tmp_path, "total", target, "first", replace=True)
    assert target.values() == [6, 7]


def test_the_empty_table_of_another_mirror_is_refused(
    tmp_path: Path, job: Harness, target: Target
) -> None:
    follow(tmp_path, "none", target, "first")
    assert target.values() == []
    with pytest.raises(sk.StateSchemaError, match="another mirror"):
        follow(tmp_path, "total", target, "second")
    job.send(Sale("max", 9))
    follow(tmp_path, "none", target, "first")
    assert target.values() == [9]


def test_a_log_of_changes_refuses_the_table_of_another_mirror(
    tmp_path: Path, job: Harness, target: Target
) -> None:
    follow(tmp_path, "total", target, "first")
    before = target.values()
    with pytest.raises(sk.StateSchemaError, match="another mirror"):
        follow(tmp_path, "less", target, "second", mode="changes")
    assert target.values() == before


@pytest.mark.parametrize("mode", ["table", "changes"])
def test_files_of_others_are_replaced_only_on_demand(
    tmp_path: Path, job: Harness, mode: str
) -> None:
    place = tmp_path / "table"
    place.mkdir()
    pq.write_table(pa.table({"user": ["others"], "value": [99]}), place / "foreign.parquet")
    target = Target(place, lambda: sk.sinks.parquet(place), list)
    with pytest.raises(sk.StateSchemaError, match="--replace"):
        follow(tmp_path, "total", target, "m", mode=mode)
    assert file_rows(place)["value"].to_pylist() == [99]
    follow(tmp_path, "total", target, "m", mode=mode, replace=True)
    values = [value for value in file_rows(place)["value"].to_pylist() if value is not None]
    assert sorted(values) == [5, 7]


def test_a_log_of_changes_replaces_the_rows_of_others_only_on_demand(
    tmp_path: Path, job: Harness
) -> None:
    place = tmp_path / "table"
    write_deltalake(place, pa.table({"z": [1]}))
    target = Target(place, lambda: sk.sinks.delta(place), list)
    with pytest.raises(sk.StateSchemaError, match="--replace"):
        follow(tmp_path, "total", target, "m", mode="changes")
    assert delta_rows(place).to_pylist() == [{"z": 1}]
    follow(tmp_path, "total", target, "m", mode="changes", replace=True)
    job.send(Sale("ada", 1))
    follow(tmp_path, "total", target, "m", mode="changes", replace=True)
    rows = delta_rows(place)
    assert "z" not in rows.column_names
    assert sorted(rows["value"].drop_null().to_pylist()) == [5, 6, 7]


def test_the_output_of_a_job_is_never_replaced(
    tmp_path: Path, job: Harness, target: Target
) -> None:
    site = sk.Job("site")
    site.source("sales", Sale).process(copies).sink("out")
    site.run(
        {"sales": [Sale("ada", 3)]}, outputs={"out": target.sink()}, checkpoint=tmp_path / "site"
    )
    for mode in ("table", "changes"):
        with pytest.raises(sk.StateSchemaError, match="the output of a job"):
            follow(tmp_path, "total", target, "m", mode=mode, replace=True)
    assert target.values() == [3]


def test_a_table_that_is_dropped_while_the_mirror_runs_is_written_again(
    tmp_path: Path, job: Harness, target: Target, request: pytest.FixtureRequest
) -> None:
    with sk.mirror(tmp_path / "job", "sales.total", target.sink(), name="m") as mirror:
        mirror.catch_up()
        drop(target, request)
        job.send(Sale("ada", 1))
        assert mirror.catch_up() == 1
        assert target.values() == [6, 7]
        job.send(Sale("ada", 1))
        assert mirror.catch_up() == 2
        assert target.values() == [7, 7]
    follow(tmp_path, "total", target, "m")
    assert target.values() == [7, 7]
