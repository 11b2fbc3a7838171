"""Transactions with PostgreSQL are tried again where that can help, and fail with typed errors."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

import statekit as sk
from statekit.connectors.postgres import Database, PostgresSession, quoted_name
from statekit.errors import StatekitError
from statekit.sinks import Outputs
from statekit.sinks.database import postgres_staging
from statekit.sinks.database.postgres_staging import RepeatableBatches, StagingTable
from statekit.sinks.database.postgres_table import TargetTable
from tests.support.postgres import PostgresSchema
from tests.support.small_disk import small_disk

SCHEMA = pa.schema([("n", pa.int64())])


@pytest.fixture
def database(postgres: PostgresSchema) -> Iterator[Database]:
    database = Database(postgres.url)
    yield database
    database.close()


def cut(postgres: PostgresSchema) -> None:
    """End all connections of statekit."""
    postgres.rows(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE application_name = 'statekit' AND pid <> pg_backend_pid()"
    )


def test_a_database_that_does_not_answer_is_reported_before_the_run_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    database = Database("postgresql://ada:secret@127.0.0.1:1/shop", retry_s=2.0)
    with pytest.raises(sk.ConnectorError, match=r"sink 'totals': .* cannot be reached"):
        database.transaction("sink 'totals'", lambda session: None)
    (told,) = [record for record in caplog.records if record.name == "statekit.connectors"]
    assert told.levelname == "WARNING"
    assert told.getMessage().startswith(
        "sink 'totals': PostgreSQL at postgresql://ada@127.0.0.1:1/shop failed: connection"
    )
    assert told.getMessage().endswith("It is tried again for some time")
    assert "secret" not in caplog.text


def test_a_transaction_whose_connection_is_lost_runs_again(
    postgres: PostgresSchema, database: Database
) -> None:
    postgres.rows("CREATE TABLE t (n bigint)")
    tries: list[int] = []

    def work(session: PostgresSession) -> int:
        tries.append(session.run("INSERT INTO t VALUES (1)"))
        if len(tries) < 3:
            cut(postgres)
        return session.run("INSERT INTO t VALUES (%(n)s)", n=2)

    assert database.transaction("a test", work) == 1
    assert len(tries) == 3
    assert sorted(postgres.rows("SELECT n FROM t")) == [(1,), (2,)]


def test_a_transaction_that_may_not_be_repeated_fails_at_once(
    postgres: PostgresSchema, database: Database
) -> None:
    def work(session: PostgresSession) -> None:
        cut(postgres)
        session.run("SELECT 1")

    with pytest.raises(sk.ConnectorError, match=r"a test: PostgreSQL at .* AdminShutdown"):
        database.transaction("a test", work, may_repeat=lambda: False)


def test_an_error_that_does_not_pass_is_not_tried_again(database: Database) -> None:
    tries: list[int] = []

    def work(session: PostgresSession) -> None:
        tries.append(1)
        session.run(f"SELECT * FROM {quoted_name('no % such')}")

    with pytest.raises(sk.ConnectorError, match='UndefinedTable: relation "no % such"'):
        database.transaction("a test", work)
    assert len(tries) == 1


def _batches(postgres: PostgresSchema, cut_after: int) -> Iterator[pa.RecordBatch]:
    for number in range(4):
        if number == cut_after:
            cut(postgres)
        yield pa.record_batch([pa.array([number] * 20_000)], schema=SCHEMA)


def _copied(postgres: PostgresSchema, database: Database) -> tuple[int, RepeatableBatches]:
    """Copy batches whose connection is lost on the way."""
    target = TargetTable(("t",), SCHEMA, "out")
    outputs = Outputs("c", "out", SCHEMA)
    database.transaction(outputs.sink, target.prepare)
    batches = RepeatableBatches(_batches(postgres, cut_after=2))

    def create(session: PostgresSession) -> StagingTable:
        staging = StagingTable.of(session, target.own("staged"), target)
        staging.create(session)
        return staging

    staging = database.transaction("a test", create)
    copied = database.transaction(
        "a test",
        lambda session: staging.copy(session, 7, iter(batches)),
        may_repeat=lambda: batches.is_complete,
    )
    return copied, batches


def test_a_part_whose_connection_is_lost_is_copied_again_as_a_whole(
    postgres: PostgresSchema, database: Database
) -> None:
    copied, _ = _copied(postgres, database)
    assert copied == 80_000
    statement = "SELECT n, count(*), count(DISTINCT _statekit_row) FROM _statekit_staged GROUP BY n"
    assert sorted(postgres.rows(statement)) == [(n, 20_000, 20_000) for n in range(4)]


def test_a_part_too_large_to_be_kept_is_not_copied_again(
    postgres: PostgresSchema, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_staging, "_KEPT_BYTES_MAX", 300_000)
    with pytest.raises(sk.ConnectorError):
        _copied(postgres, database)
    assert postgres.rows("SELECT * FROM _statekit_staged") == []


def test_a_full_disk_is_named(postgres: PostgresSchema) -> None:
    home = Path(tempfile.mkdtemp())
    space = f"small_{postgres.name}"
    try:
        home.chmod(0o755)
        with small_disk(home / "disk") as disk:
            place = disk.path / "space"
            place.mkdir()
            os.chown(place, *postgres.server.owner)
            postgres.rows(f"CREATE TABLESPACE {space} LOCATION '{place}'")
            postgres.rows(f"ALTER ROLE CURRENT_USER SET default_tablespace = '{space}'")
            try:
                _fill(postgres)
            finally:
                postgres.rows("ALTER ROLE CURRENT_USER RESET default_tablespace")
                postgres.rows("DROP TABLE IF EXISTS t")
                postgres.rows(f"DROP TABLESPACE {space}")
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _fill(postgres: PostgresSchema) -> None:
    database = Database(postgres.url)

    def work(session: PostgresSession) -> None:
        session.run("CREATE TABLE t (n text)")
        session.run("INSERT INTO t SELECT repeat('a', 1000) FROM generate_series(1, 20000)")

    with pytest.raises(sk.ConnectorError, match=r"DiskFull: .* make space on the disk"):
        database.transaction("a test", work)
    database.close()


def test_a_server_that_is_not_there_is_tried_for_a_bounded_time() -> None:
    database = Database("postgresql://ada:sentinel@127.0.0.1:1/shop", retry_s=0.3)
    with pytest.raises(sk.ConnectorError, match="cannot be reached") as raised:
        database.transaction("a test", lambda session: session.run("SELECT 1"))
    assert isinstance(raised.value.__cause__, psycopg.OperationalError)
    assert "sentinel" not in f"{raised.value} {raised.value.__cause__}"


def test_without_psycopg_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("psycopg", "psycopg.conninfo"):
        hidden: Any = None
        monkeypatch.setitem(sys.modules, name, hidden)
    with pytest.raises(StatekitError, match=r"pip install 'statekit\[postgres\]'"):
        sk.sinks.postgres("postgresql://db/shop", "spent")
