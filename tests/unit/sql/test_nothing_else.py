"""What queries show of the process that runs them: nothing, by any table, function or setting that
the installed DuckDB has; and what they take of its memory.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pyarrow as pa
import pytest

import statekit as sk
from statekit.query.tables.child_process import ChildWork, run_child
from statekit.sql.request import Request
from statekit.sql.run import memory_of_duckdb, run_sql
from statekit.sql.statements import check_plan, checked
from statekit.sql.worker import result_of_query
from tests.support.served import Sale, sales_job

MEMORY = 500 * 2**20


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> str:
    home = tmp_path_factory.mktemp("sql") / "sales"
    sales_job().run({"records": [Sale("rome", "tea", 400)]}, checkpoint=home)
    return str(home)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The directory of a query, which its process runs in."""
    directory = tmp_path_factory.mktemp("statekit-child-")
    before = Path.cwd()
    os.chdir(directory)
    yield directory
    os.chdir(before)


@pytest.fixture(scope="module")
def database() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(":memory:") as database:
        database.execute("create schema sales; create view sales.total as select 'rome' as shop")
        yield database


def is_refused(database: duckdb.DuckDBPyConnection, sql: str) -> bool:
    """Whether a query is refused before its names are looked up, or by its plan."""
    try:
        check_plan(database, checked(database, sql))
    except (sk.QueryError, duckdb.ParserException):
        return True
    except duckdb.Error:
        return False
    return False


def shown(home: str, directory: Path, sql: str) -> str:
    """What a client sees of a query: its result, or the words of its error."""
    for file in directory.glob("*.parquet"):
        file.unlink()
    try:
        table = result_of_query(Request(home, None, sql, 1_000, MEMORY), directory)
    except sk.QueryError as error:
        return str(error)
    columns = (column.to_string(window=1_000) for column in table.columns)
    return " ".join([*table.schema.names, *columns])


def places(home: str, directory: Path) -> list[str]:
    own = [home, str(directory), directory.name, str(Path.home()), str(Path(sys.prefix)), "/tmp"]
    return [place for place in own if len(place) > 1]


def names(query: str) -> list[tuple[Any, ...]]:
    with duckdb.connect(":memory:") as database:
        return database.execute(query).fetchall()


def assert_nothing(home: str, directory: Path, sql: str) -> None:
    """Check that a query shows no place of the server."""
    answer = shown(home, directory, sql)
    for place in places(home, directory):
        assert place not in answer, sql


ARGUMENTS = ["", "'.'", "'*'", "'0.parquet'", "'threads'", "'sales.total'", "1", "1, 2, 3"]
ALLOWED = {
    "generate_series", "histogram", "histogram_values", "icu_calendar_names", "json_each",
    "json_tree", "pg_timezone_names", "query_table", "range", "repeat", "repeat_row", "summary",
    "test_all_types", "test_vector_types", "unnest",
}  # fmt: skip


def test_no_other_table_function_is_called(database: duckdb.DuckDBPyConnection) -> None:
    every = names(
        "select distinct function_name from duckdb_functions() "
        "where function_type in ('table', 'pragma', 'table_macro') order by 1"
    )
    assert len(every) > 100
    for (name,), given in itertools.product(every, ARGUMENTS):
        for sql in (f"from {name}({given})", f"from system.main.{name}({given})"):
            assert is_refused(database, sql) or name in ALLOWED, sql


@pytest.mark.parametrize("name", sorted(ALLOWED))
def test_an_allowed_table_function_shows_no_place(home: str, directory: Path, name: str) -> None:
    for given in ("", "'*'", "'threads'", "1, 2"):
        assert_nothing(home, directory, f"from {name}({given})")


def test_no_view_of_the_system_is_read(database: duckdb.DuckDBPyConnection) -> None:
    views = names("select schema_name, view_name from duckdb_views() where internal order by all")
    assert len(views) > 40
    for schema, view in views:
        if names(f"explain (format json) from {schema}.{view}")[0][1].count('"Function"'):
            for name in (f"{schema}.{view}", f"system.{schema}.{view}"):
                for sql in (f"from {name}", f"from query_table('{name}')", f"explain from {name}"):
                    assert is_refused(database, sql), sql
        else:  # a view that is always empty
            assert names(f"select count(*) from {schema}.{view} where false") == [(0,)]


def test_no_setting_is_read(database: duckdb.DuckDBPyConnection) -> None:
    settings = [name for (name,) in names("select name from duckdb_settings()")]
    assert len(settings) > 100
    for name in settings:
        for sql in (
            f"select current_setting('{name}')",
            f"select '{name}'.current_setting()",
            f"select Current_Setting(x) from (values ('{name}')) t(x)",
            f"select system.main.current_setting('{name}')",
            f"explain select current_setting('{name}')",
            f"explain analyze select current_setting('{name}')",
            f"describe select current_setting('{name}')",
            f"select list_transform(['{name}'], lambda x: current_setting(x))",
            f"with t as (select current_setting('{name}') as x) select x from t",
            f"show {name}",
        ):
            assert is_refused(database, sql), sql


def test_no_function_without_arguments_shows_a_place(home: str, directory: Path) -> None:
    every = names(
        "select distinct function_name from duckdb_functions() where function_type in "
        "('scalar', 'macro') and function_name similar to '[a-z_0-9]+' and function_name not in "
        "('current_setting', 'getvariable', 'write_log', 'error', 'sleep_ms', 'pg_sleep')"
    )
    assert len(every) > 500
    with duckdb.connect(":memory:") as database:
        found = []
        for (name,) in every:
            try:
                database.execute(f"select {name}()").fetchall()
                found.append(f"{name}()::text")
            except duckdb.Error:
                continue  # it takes arguments
    assert len(found) > 20
    assert_nothing(home, directory, f"select {', '.join(found)}")


@pytest.mark.parametrize(
    "sql",
    [
        "show databases",
        "show tables",
        "show all tables",
        "from (show databases)",
        "pragma database_list",
        "pragma show_databases",
        "call duckdb_settings()",
        "select @@threads",
        "from query('select current_setting(''threads'')')",
        "from query('from duck' || 'db_settings()')",
        "from query_table('pg_catalog.pg_' || 'settings')",
        "from query_table(['information_schema.tables'])",
        "from json_execute_serialized_sql(json_serialize_sql('from duckdb_settings()'))",
        "select (select count(*) from duckdb_settings())",
        "select 1 where exists (from duckdb_databases())",
        "select * from sales.total, lateral (from duckdb_settings())",
        "explain from duckdb_settings()",
        "/* explain */ explain -- x\n analyze from duckdb_settings()",
        "explain (format json) from duckdb_settings()",
        "explain (analyze, format json) from duckdb_settings()",
        "explain (from duckdb_settings())",
        'from "duckdb_settings"()',
        "from DUCKDB_SETTINGS()",
        "from system.main.duckdb_settings()",
        "summarize from duckdb_settings()",
        "from pandas_scan(1)",
        "from arrow_scan(1, 2, 3)",
        "from python_map_function(1)",
        "select write_log('x')",
        "select pg_get_viewdef(1)",
        "select get_block_size('memory')",
    ],
)
def test_what_shows_the_process_is_refused_in_any_form(
    database: duckdb.DuckDBPyConnection, sql: str
) -> None:
    assert is_refused(database, sql)


@pytest.mark.parametrize(
    "sql",
    [
        "from read_text('x')",
        "from 'x.csv'",
        "from 'file:///etc/passwd'",
        "from '0.parquet'",
        "select * from sales.total order by no_such",
        "select no_such(1)",
        "select st_read('x')",
        "select 'x'::no_such",
        "from sales.no_such",
        "select error('x')",
        "select cast(shop as int) from sales.total",
        "explain analyze select * from sales.total",
        "explain (format json) select * from sales.total",
        "select sha256(content) from read_blob('*')",
    ],
)
def test_no_error_and_no_plan_has_a_place(home: str, directory: Path, sql: str) -> None:
    assert_nothing(home, directory, sql)


@pytest.mark.parametrize(
    "sql",
    [
        "explain select * from sales.total",
        "explain analyze select shop from sales.total",
        "explain (format json) select * from sales.total",
        "explain (select 1)",
        "-- why\nEXPLAIN /* is it */ select 1",
        "describe sales.total",
        "describe select * from sales.total",
        "summarize sales.total",
        "from sales.total using sample 1",
        "from sales.total select shop",
        "select * from (from sales.total) pivot (sum(value) for shop in ('rome'))",
        "unpivot sales.total on value into name n value v",
        "with recursive t as (select 1 as n union all select n + 1 from t where n < 5) from t",
        "select * from sales.total t, range(t.value - 398) r(n)",
        "select * from sales.items i, json_each('[1]')",
        "select value, row_number() over () from sales.total qualify true",
        "from histogram_values(sales.total, value)",
        "from query_table(['sales.total'])",
        "values (1), (2)",
        "select current_date, now(), version(), 1",
        "select [x + 1 for x in [1, 2]], {'a': 1}.a",
        "from states",
        "table sales.total",
    ],
)
def test_what_reads_states_is_allowed_in_any_form(home: str, directory: Path, sql: str) -> None:
    for file in directory.glob("*.parquet"):
        file.unlink()
    table = result_of_query(Request(home, None, sql, 1_000, MEMORY), directory)
    assert table.num_rows > 0


# ------------------------------------------------------------------------------------- memory

GREEDY = [
    "select count(*) from (select range, count(*) from range(60000000) group by all)",
    "select length(string_agg(range::varchar, ',')) from range(100000000)",
    "select length(list(range)::varchar) from range(50000000)",
    "select count(*) from (select unnest(range(100000000)))",
    "select count(*) from range(20000000) a join (select range * 2 as range, repeat('x', 100) as s "
    "from range(20000000)) b using (range) where length(s) > 5",
    "select range as a, hash(range) from range(30000000) order by 2 desc limit 20000000",
    "select length(repeat('x', 2000000000))",
    "select list_sum(list_transform(range(50000000), lambda x: x + 1))",
    "select count(distinct range::varchar || 'abcdefghijklmnop') from range(50000000)",
    "select median(range), mode(range) from range(50000000)",
    "select map(list(range), list(range::varchar)) from range(5000000)",
    "select repeat('x', 1000000) from range(60)",
    "with recursive t as (select 1 as n union all select n + 1 from t, range(10) where n < 9) "
    "select count(*) from t",
    "select histogram(range::varchar) from range(50000000)",
    "select quantile_cont(range, 0.5), approx_top_k(range, 100000) from range(50000000)",
    "select array_agg(s) from (select repeat('x', 1000) as s from range(5000000))",
    "select sum(n) over (order by n rows between 1000000 preceding and current row) "
    "from (select range as n from range(20000000)) limit 1",
]


class Peak(msgspec.Struct, frozen=True):
    """A query in a child that reports the most memory that it had."""

    request: Request


def peak_of(home: str, sql: str, memory_bytes: int) -> tuple[str, int]:
    """Run a query as the server does, and return its end and the largest memory of its process."""
    ours = Request(home, None, sql, 10_000, memory_of_duckdb(memory_bytes))
    try:
        answer = run_child(
            "tests.unit.sql.test_nothing_else",
            Peak(ours),
            "query",
            timeout_s=60,
            memory_bytes=memory_bytes,
        )
    except sk.QueryError as error:
        return str(error), 0
    end, peak = json.loads(answer)
    return end, peak


@pytest.mark.slow
@pytest.mark.parametrize("sql", GREEDY)
def test_the_process_of_a_query_takes_no_more_memory_than_it_may(home: str, sql: str) -> None:
    end, peak = peak_of(home, sql, 2**30)
    assert peak <= 2**30, end
    assert end == "answered" or re.search("memory|took more than 60 s", end), end


def test_a_greedy_query_ends_within_its_memory(home: str) -> None:
    end, peak = peak_of(home, GREEDY[1], MEMORY)
    assert "the query took more memory than it may" in end
    assert 0 < peak <= MEMORY


def test_an_ordinary_query_fits_the_least_memory(home: str) -> None:
    sql = "select count(*) as n from (select range, count(*) from range(300000) group by all)"
    assert run_sql(home, sql, memory="500MB").table.to_pylist() == [{"n": 300_000}]


def _peak_bytes() -> int:
    text = Path("/proc/self/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", text)
    assert found is not None
    return int(found[1]) * 1024


def _answer(work: Peak, directory: Path) -> bytes:
    os.chdir(directory)
    try:
        table = result_of_query(work.request, directory)
        with pa.ipc.new_stream(pa.BufferOutputStream(), table.schema) as stream:
            stream.write_table(table)
        end = "answered"
    except (sk.QueryError, MemoryError) as error:
        end = f"{type(error).__name__} of memory: {error}"
    return json.dumps([end, _peak_bytes()]).encode()


CHILD_WORK = ChildWork(Peak, _answer)
