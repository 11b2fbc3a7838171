"""Mirrors into each kind of target, through Python and through the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import statekit as sk
from statekit.checkpoint.leases.lease_files import lease_of
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.rollback import plan
from statekit.cli.mirror import target_of
from statekit.testing import Harness
from tests.support.invoked import invoked
from tests.support.lake_tables import IcebergTable
from tests.support.mirrors import Sale, delta_rows, file_rows, sales, shown, state_rows
from tests.support.postgres import PostgresSchema


@pytest.fixture
def job(tmp_path: Path) -> Harness:
    harness = Harness(sales, checkpoint=tmp_path / "job", parallelism=2)
    harness.send(Sale("ada", 5), Sale("bob", 7), Sale("eve", 9))
    return harness


def change(tmp_path: Path, job: Harness) -> None:
    """Two epochs in which rows are added, replaced and removed."""
    job.send(Sale("ada", 0), Sale("bob", 1))
    job.send(Sale("max", 2), Sale("max", 3))


def expected(tmp_path: Path, state: str) -> list[str]:
    rows = state_rows(tmp_path / "job", "sales", state, None)
    return shown(rows, rows)


def like(tmp_path: Path, state: str) -> pa.Table:
    return state_rows(tmp_path / "job", "sales", state, None)


@pytest.mark.parametrize("state", ["total", "by_cents"])
def test_an_iceberg_table_equals_its_state(tmp_path: Path, job: Harness, state: str) -> None:
    table = IcebergTable(str(tmp_path / "warehouse"))
    with sk.mirror(tmp_path / "job", f"sales.{state}", table.sink()) as mirror:  # type: ignore[arg-type]
        mirror.catch_up()
        change(tmp_path, job)
        mirror.catch_up()
        assert shown(table.read(), like(tmp_path, state)) == expected(tmp_path, state)
        plan(Repository(tmp_path / "job"), 0).carry_out()
        mirror.catch_up()
    assert shown(table.read(), like(tmp_path, state)) == expected(tmp_path, state)
    assert table.commits() <= 4


def test_two_states_in_one_table_are_refused(tmp_path: Path, job: Harness) -> None:
    path, url = tmp_path / "t", "postgresql://db/shop"
    (link := tmp_path / "link").symlink_to(path)
    pairs: list[tuple[Any, Any]] = [
        (sk.sinks.delta(path), sk.sinks.delta(f"{path}/")),
        (sk.sinks.parquet(path), sk.sinks.parquet(tmp_path / "x" / ".." / "t")),
        (sk.sinks.parquet(path), sk.sinks.delta(path)),
        (IcebergTable(str(path)).sink(), IcebergTable(str(path)).sink()),
        (sk.sinks.postgres(url, "t"), sk.sinks.postgres(url, "public.t")),
        (sk.sinks.postgres(url, "t"), sk.sinks.postgres("postgres://ada:pw@DB:5432/shop", "t")),
        (sk.sinks.postgres(url, "t"), sk.sinks.postgres("host=db dbname=shop", "t")),
        (sk.sinks.delta(path), sk.sinks.delta(link)),
        (sk.sinks.delta(path), sk.sinks.delta(path.as_uri())),
    ]
    for one, other in pairs:
        with pytest.raises(sk.StateTypeError, match="both have one table"):
            sk.mirror(tmp_path / "job", {"sales.total": one, "sales.by_cents": other})
    assert not path.exists()


def postgres_rows(postgres: PostgresSchema, table: str, names: list[str]) -> pa.Table:
    rows = postgres.rows(f"SELECT {', '.join(map(json.dumps, names))} FROM {table}")
    return pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows])


def check_postgres(tmp_path: Path, postgres: PostgresSchema) -> None:
    for state in ("total", "by_cents"):
        rows = postgres_rows(postgres, state, like(tmp_path, state).column_names)
        assert shown(rows, like(tmp_path, state)) == expected(tmp_path, state)


def tables(postgres: PostgresSchema) -> dict[str, Any]:
    return {
        f"sales.{name}": sk.sinks.postgres(postgres.url, name) for name in ("total", "by_cents")
    }


def test_tables_of_one_database_change_in_one_transaction(
    tmp_path: Path, job: Harness, postgres: PostgresSchema
) -> None:
    with sk.mirror(tmp_path / "job", tables(postgres), name="m") as mirror:
        mirror.catch_up()
        check_postgres(tmp_path, postgres)
        change(tmp_path, job)
        mirror.catch_up()
    check_postgres(tmp_path, postgres)
    changed = postgres.rows("SELECT DISTINCT xmin::text FROM _statekit_sinks")
    assert len(changed) == 1
    plan(Repository(tmp_path / "job"), 0).carry_out()
    with sk.mirror(tmp_path / "job", tables(postgres), name="m") as mirror:
        mirror.catch_up()
    check_postgres(tmp_path, postgres)


def test_tables_of_one_database_change_both_or_none(
    tmp_path: Path, job: Harness, postgres: PostgresSchema
) -> None:
    with sk.mirror(tmp_path / "job", tables(postgres), name="m") as mirror:
        mirror.catch_up()
    before = state_rows(tmp_path / "job", "sales", "total", 0)
    change(tmp_path, job)
    postgres.rows("ALTER TABLE by_cents ADD CHECK (value <> 'max')")
    with (
        sk.mirror(tmp_path / "job", tables(postgres), name="m") as mirror,
        pytest.raises(sk.ProcessError, match="by_cents_value_check"),
    ):
        mirror.catch_up()
    rows = postgres_rows(postgres, "total", before.column_names)
    assert shown(rows, before) == shown(before, before)
    postgres.rows("ALTER TABLE by_cents DROP CONSTRAINT by_cents_value_check")
    with sk.mirror(tmp_path / "job", tables(postgres), name="m") as mirror:
        mirror.catch_up()
    check_postgres(tmp_path, postgres)


def test_a_table_of_postgres_that_was_dropped_is_written_again(
    tmp_path: Path, job: Harness, postgres: PostgresSchema
) -> None:
    with sk.mirror(tmp_path / "job", tables(postgres), name="m") as mirror:
        mirror.catch_up()
    postgres.rows("DROP TABLE total")
    change(tmp_path, job)
    with sk.mirror(tmp_path / "job", tables(postgres), name="m") as mirror:
        mirror.catch_up()
    check_postgres(tmp_path, postgres)


@pytest.mark.parametrize("state", ["total", "by_cents"])
def test_text_with_a_zero_byte_is_refused_by_postgres_with_advice(
    tmp_path: Path, job: Harness, postgres: PostgresSchema, state: str
) -> None:
    job.send(Sale("a\0b", 5))
    sink = sk.sinks.postgres(postgres.url, state)
    with (
        sk.mirror(tmp_path / "job", f"sales.{state}", sink) as mirror,
        pytest.raises(sk.ProcessError, match="has no zero byte, so remove zero bytes in the job"),
    ):
        mirror.catch_up()


def test_a_column_of_postgres_gets_a_wider_type(
    tmp_path: Path, job: Harness, postgres: PostgresSchema
) -> None:
    postgres.rows('CREATE TABLE total ("user" int PRIMARY KEY, value text, note text)')
    postgres.rows("INSERT INTO total VALUES (1, 'of others', '')")
    sink = sk.sinks.postgres(postgres.url, "total")
    with (
        sk.mirror(tmp_path / "job", "sales.total", sink) as mirror,
        pytest.raises(sk.StateSchemaError, match="has rows that this mirror has not written"),
    ):
        mirror.catch_up()
    with sk.mirror(tmp_path / "job", "sales.total", sink, replace=True) as mirror:
        mirror.catch_up()
    rows = postgres.rows('SELECT "user", value, note FROM total ORDER BY 1')
    assert rows == [("ada", 5, None), ("bob", 7, None), ("eve", 9, None)]


# ------------------------------------------------------------------------------ the command line


def test_the_command_mirrors_several_states(tmp_path: Path, job: Harness) -> None:
    words = ("mirror", tmp_path / "job", "sales.total", "sales.by_cents", "--name", "m", "--to")
    done = invoked(*words, f"delta:{tmp_path}/{{state}}")
    assert (done.exit_code, done.output) == (0, "epoch 0\n")
    change(tmp_path, job)
    done = invoked(*words, f"delta:{tmp_path}/{{state}}", "--until", 2)
    assert (done.exit_code, done.output) == (0, "epoch 2\n")
    for state in ("total", "by_cents"):
        rows = delta_rows(tmp_path / f"sales_{state}")
        assert shown(rows, like(tmp_path, state)) == expected(tmp_path, state)


def test_the_command_takes_the_options_of_the_lease_and_the_local_copy(
    tmp_path: Path, job: Harness
) -> None:
    words = ("mirror", tmp_path / "job", "sales.by_cents", "--to", f"parquet:{tmp_path}/files")
    copies = tmp_path / "copies"
    copies.mkdir()
    options = ("--lease-ttl", "2h", "--poll", "1s", "--directory", copies)
    assert invoked(*words, *options).output == "epoch 0\n"
    stored = lease_of(Repository(tmp_path / "job"), "mirror-sales.by_cents")
    assert stored is not None
    assert stored.lease.ttl_us == 2 * 3_600 * 1_000_000
    done = invoked(*words, "--poll", "0s")
    assert "poll='0s': give a duration above 0" in str(done.exception)


def test_the_command_writes_files_and_logs(tmp_path: Path, job: Harness) -> None:
    change(tmp_path, job)
    words = ("mirror", tmp_path / "job", "sales.total", "--to", f"parquet:{tmp_path}/files")
    assert invoked(*words).output == "epoch 2\n"
    rows = file_rows(tmp_path / "files")
    assert shown(rows, like(tmp_path, "total")) == expected(tmp_path, "total")


def test_names_of_states_that_give_one_target_are_refused(tmp_path: Path) -> None:
    @sk.process(key="user")
    def a(sale: Sale, b_c: sk.ValueState[int]) -> None:
        b_c.update(sale.cents)

    @sk.process(key="user")
    def a_b(sale: Sale, c: sk.ValueState[int]) -> None:
        c.update(-sale.cents)

    job = sk.Job("shop")
    stream = job.source("sales", Sale)
    stream.process(a)
    stream.process(a_b)
    job.run({"sales": [Sale("ada", 5)]}, checkpoint=tmp_path / "both")
    words = ("mirror", tmp_path / "both", "a.b_c", "a_b.c", "--to", f"delta:{tmp_path}/{{state}}")
    done = invoked(*words)
    assert isinstance(done.exception, sk.StateTypeError)
    assert "a.b_c and a_b.c: both have one table" in str(done.exception)
    assert not (tmp_path / "a_b_c").exists()


@pytest.mark.parametrize(
    ("to", "says"),
    [
        ("mysql:db", "give delta:PATH"),
        ("delta", "give delta:PATH"),
        ("iceberg:/warehouse", "the table is missing"),
        ("postgres:postgresql://ada:secret@db/shop", "the table is missing"),
    ],
)
def test_targets_that_cannot_be_are_refused_without_passwords(to: str, says: str) -> None:
    with pytest.raises(sk.StateTypeError, match=says) as raised:
        target_of(to, "sales.total", is_alone=True)
    assert "secret" not in str(raised.value)


def test_several_states_need_several_tables() -> None:
    with pytest.raises(sk.StateTypeError, match="each state needs a table of its own"):
        target_of("delta:/lake/all", "sales.total", is_alone=False)
