"""Random SQL: it never reads what is no state, and never fails in a way that is no answer."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings

import statekit as sk
from statekit.sql.request import Request
from statekit.sql.run import run_sql
from statekit.sql.worker import result_of_query
from tests.support.effort import SOAK
from tests.support.random_sql import QUERIES
from tests.support.served import Sale, sales_job

EXAMPLES = 5_000 if SOAK else 150
SECRET = "s3cr3t-of-another-file"
SETTINGS = settings(
    max_examples=EXAMPLES,
    derandomize=not SOAK,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> str:
    home = tmp_path_factory.mktemp("sql") / "sales"
    sales_job().run(
        {"records": [Sale("rome", "tea", 400), Sale("oslo", "cup", 9)]}, checkpoint=home
    )
    return str(home)


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files that no query may read, of all formats that DuckDB knows by itself."""
    outside = tmp_path_factory.mktemp("outside")
    for name in ("secret.csv", "secret.txt", "secret.json"):
        (outside / name).write_text(f'["{SECRET}"]\n')
    with duckdb.connect(str(outside / "secret.duckdb")) as database:
        database.execute(f"create table t as select '{SECRET}' as n")
        database.execute(f"copy t to '{outside}/secret.parquet'")
    return outside


def ran(home: str, sql: str) -> str:
    """All that a query says: its result, or its error."""
    with tempfile.TemporaryDirectory() as directory:
        request = Request(checkpoint=home, epoch=None, sql=sql, rows=100, memory_bytes=500 * 2**20)
        try:
            said = str(result_of_query(request, Path(directory)).to_pydict())
        except sk.QueryError as error:
            said = str(error)
        assert directory not in said
        return said


@given(sql=QUERIES)
@SETTINGS
def test_no_query_reads_a_file_or_writes_one(home: str, outside: Path, sql: str) -> None:
    before = sorted(outside.iterdir())
    said = ran(home, sql.replace("{}", str(outside)))
    assert SECRET not in said
    assert "root:x:0" not in said
    assert str(Path.home()) not in said.replace(sql, "")
    assert sorted(outside.iterdir()) == before


EVERYTHING = [
    "select " + "(" * 20_000 + "1" + ")" * 20_000,
    "select " + "not " * 50_000 + "true",
    "with recursive t as (select 1 as n union all select n + 1 from t) select count(*) from t",
    "select list(n) from range(1000000000) t(n)",
]
MORE = [
    "select " + "1 + " * 50_000 + "1",
    "select * from " + "(select * from " * 3_000 + "states" + ")" * 3_000,
    "select [" * 5_000,
    "select '" + "x" * 3_000_000 + "'",
    "select '" + "x" * 400_000 + "'",
    "select " + ", ".join(f"{n} as c{n}" for n in range(20_000)),
    "select * from range(1000000000) a, range(1000000000) b order by random()",
    "select repeat('x', 1000000000), repeat('y', 1000000000), repeat('z', 1000000000)",
    "select regexp_matches(repeat('a', 100000), '(a*)*(b*)*c') from range(1000)",
]


@pytest.mark.parametrize("sql", EVERYTHING + (MORE if SOAK else []), ids=lambda sql: sql[:40])
def test_a_query_that_takes_everything_ends_in_time(home: str, sql: str) -> None:
    with contextlib.suppress(sk.QueryError):
        assert run_sql(home, sql, timeout_s=3, memory="500MB").table.num_rows <= 10_000
