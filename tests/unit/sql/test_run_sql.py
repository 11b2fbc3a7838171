"""Queries over states: what they read, and what they cannot."""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
import tempfile
import time
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

import statekit as sk
from statekit.query.tables import read
from statekit.sql.request import Request
from statekit.sql.run import run_sql
from statekit.sql.worker import result_of_query
from tests.support.served import Sale, sales_job

RECORDS = [
    Sale("rome", "tea", 400),
    Sale("oslo", "cup", 900),
    Sale("rome", "pot", 2100),
    Sale("null", "tea", 1),
]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> str:
    home = tmp_path_factory.mktemp("sql") / "sales"
    sales_job().run({"records": RECORDS}, checkpoint=home, epoch_size=2)
    return str(home)


def rows(checkpoint: str, sql: str, **options: Any) -> list[dict[str, Any]]:
    """The rows of a query, run in this process."""
    with tempfile.TemporaryDirectory() as directory:
        given: dict[str, Any] = {"epoch": None, "rows": 100, "memory_bytes": 500 * 2**20, **options}
        table = result_of_query(Request(checkpoint=checkpoint, sql=sql, **given), Path(directory))
    found: list[dict[str, Any]] = table.to_pylist()
    return found


def test_a_result_may_have_maps_whose_keys_are_nested(home: str) -> None:
    found = rows(home, "select map([[1, 2]], [3]) as lists, map([{'a': 1}], [2]) as structs")
    assert found == [{"lists": [([1, 2], 3)], "structs": [({"a": 1}, 2)]}]


def test_a_query_runs_in_a_process_of_its_own(home: str) -> None:
    found = run_sql(home, "select shop, value from sales.total order by shop", rows=2)
    assert found.table.to_pylist() == [{"shop": "null", "value": 1}, {"shop": "oslo", "value": 900}]
    assert (found.epoch, found.is_cut) == (1, True)


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("select sum(value) as n from sales.total", [{"n": Decimal(3401)}]),
        ("select value from sales.total where shop = 'rome'", [{"value": 2500}]),
        ("select value from sales.total t where 'rome' = t.shop", [{"value": 2500}]),
        ("select value from SALES.Total where shop = 'null'", [{"value": 1}]),
        ('select value from "sales"."total" where shop = \'nice\'', []),
        ("select value from sales.total where shop = 'rome' or value = 900 order by 1", "both"),
        ("select value from sales.total where not shop = 'rome' order by 1", "others"),
        ("select item, cents from sales.last where shop = 'oslo'", [{"item": "cup", "cents": 900}]),
        (
            "select i.map_key, t.value from sales.items i join sales.total t using (shop) "
            "where shop = 'rome' order by all",
            [{"map_key": "pot", "value": 2500}, {"map_key": "tea", "value": 2500}],
        ),
        ("select count(*) as n from sales.total a, sales.total b", [{"n": 9}]),
        ("with t as (select 5 as n) select * from t", [{"n": 5}]),
        ("select count(*) as n from query_table('sales.total')", [{"n": 3}]),
        ("select state, rows from states where state = 'total'", [{"state": "total", "rows": 3}]),
    ],
)
def test_states_are_tables(home: str, sql: str, expected: Any) -> None:
    known = {"both": [{"value": 900}, {"value": 2500}], "others": [{"value": 1}, {"value": 900}]}
    assert rows(home, sql) == (known[expected] if isinstance(expected, str) else expected)


def test_all_states_of_a_query_are_of_one_epoch(home: str) -> None:
    sql = "select (select sum(value) from sales.total) as n, (select count(*) from sales.log) as m"
    assert rows(home, sql, epoch=0) == [{"n": Decimal(1300), "m": 2}]
    assert rows(home, sql) == [{"n": Decimal(3401), "m": 4}]


class Typed(NamedTuple):
    day: dt.date
    number: int | None
    flag: bool


@sk.process(key=("day", "number", "flag"))
def typed(record: Typed, seen: sk.ValueState[int]) -> None:
    seen.update((seen.get() or 0) + 1)


class Raw(NamedTuple):
    raw: bytes
    n: int


@sk.process(key="raw")
def order(record: Raw, seen: sk.ValueState[int]) -> None:
    seen.update(record.n)


def test_an_operator_may_have_the_name_of_a_word_and_keys_of_bytes(tmp_path: Path) -> None:
    job = sk.Job("raw")
    job.source("records", Raw).process(order)
    job.run(
        {"records": [Raw(b"abcd", 1), Raw(bytes.fromhex("abcd"), 2)]}, checkpoint=tmp_path / "c"
    )
    home = str(tmp_path / "c")
    assert rows(home, """select value from "order".seen where raw = 'abcd'""") == [{"value": 1}]
    assert rows(home, """select count(*) as n from "order".seen""") == [{"n": 2}]


def test_a_result_that_is_too_large_is_an_error(home: str) -> None:
    with pytest.raises(sk.QueryError, match="more than 64 MB"):
        rows(home, "select repeat('x', 1000000) from range(300)", rows=1_000)


def test_a_worker_ends_with_the_process_that_asked(home: str, tmp_path: Path) -> None:
    sql = "select count(*) from range(100000000) a, range(1000000) b"
    code = f"from statekit.sql.run import run_sql; run_sql({home!r}, {sql!r}, timeout_s=60)"
    with subprocess.Popen(
        [sys.executable, "-c", code], env=os.environ | {"TMPDIR": str(tmp_path)}
    ) as it:
        process = psutil.Process(it.pid)
        while not (workers := process.children()) or not any(tmp_path.iterdir()):
            time.sleep(0.05)
        it.kill()
    psutil.wait_procs(workers, timeout=20)
    assert not any(worker.is_running() for worker in workers)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def typed_home(tmp_path_factory: pytest.TempPathFactory) -> str:
    home = tmp_path_factory.mktemp("sql") / "typed"
    job = sk.Job("typed")
    job.source("records", Typed).process(typed)
    days = [dt.date(2026, 1, day) for day in (1, 2)]
    records = [Typed(day, n, flag) for day in days for n in (None, 7) for flag in (True, False)]
    job.run({"records": records}, checkpoint=home)
    return str(home)


@pytest.mark.parametrize(
    ("condition", "count"),
    [
        ("day = '2026-01-01' and number = 7 and flag = true", 1),
        ("day = '2026-01-01' and number = 7 and flag", 1),
        ("day = '2026-01-01' and number is null and flag = false", 1),
        ("day = '2026-01-01' and number = 8 and flag = true", 0),
        ("day = '2026-01-01' and number = '7' and flag = 'true'", 1),
        ("day = '2026-01-01' and number = 7", 2),
        ("number = 7 and flag = true and day = '2026-01-01' and seen.value = 1", 1),
        ("day = date '2026-01-01' and number = 7 and flag = true", 1),
    ],
)
def test_a_condition_on_keys_of_several_types_finds_the_same_rows(
    typed_home: str, condition: str, count: int
) -> None:
    assert rows(typed_home, f"select count(*) as n from typed.seen where {condition}") == [
        {"n": count}
    ]


@pytest.fixture
def keys_read(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The keys that were read alone; None for all."""
    found: list[Any] = []
    of_table = read.StateTable.reader

    def noted(table: Any, *, key: Any = None, **options: Any) -> Any:
        found.append(key)
        return of_table(table, key=key, **options)

    monkeypatch.setattr(read.StateTable, "reader", noted)
    return found


@pytest.mark.parametrize(
    ("sql", "key"),
    [
        ("select * from sales.total where shop = 'rome'", "rome"),
        ("select * from sales.total t where t.shop = 'rome' and value > 5", "rome"),
        ("select sum(value) from sales.total where 'rome' = shop limit 1", "rome"),
        ("select * from sales.total where shop = 'rome' or true", None),
        ("select * from sales.total where lower(shop) = 'rome'", None),
        ("select * from sales.total where shop = value::text", None),
        ("select * from sales.total where shop = 'null'", None),
        ("select * from sales.total as t(value, shop) where shop = '2500'", None),
        (
            "select (select sum(value) from sales/**/.total) from sales.total where shop = 'rome'",
            None,
        ),
        (
            "select (select sum(value) from query_table('sales'||'.total')) from sales.total "
            "where shop = 'rome'",
            None,
        ),
        ("select * from (select * from sales.total) where shop = 'rome'", None),
    ],
)
def test_a_query_about_one_key_reads_its_key_group_alone(
    home: str, keys_read: list[Any], sql: str, key: Any
) -> None:
    rows(home, sql)
    assert keys_read == [key]


@pytest.mark.parametrize(
    "sql",
    [
        "select * from read_csv('/etc/passwd')",
        "select * from read_text('/etc/passwd')",
        "select * from read_blob('{home}/job.json')",
        "select * from read_parquet('http://127.0.0.1:9/x.parquet')",
        "select * from '/etc/passwd'",
        "select * from glob('/*')",
        "select * from sniff_csv('/etc/passwd')",
        "select * from request",
        "select getenv('HOME')",
        "copy (select 1) to '{home}/x.csv'",
        "copy sales.total from '/etc/passwd'",
        "export database '{home}'",
        "attach '{home}/x.db'",
        "install httpfs",
        "load httpfs",
        "set enable_external_access = true",
        "reset enable_external_access",
        "pragma enable_profiling",
        "call pragma_version()",
        "create table x as select 1",
        "drop view sales.total",
        "insert into states values (1)",
        "select 1; select 2",
        "",
        "-- nothing",
        "selec 1",
        "select * from nothing.there",
    ],
)
def test_a_query_reads_nothing_but_states_and_changes_nothing(home: str, sql: str) -> None:
    before = sorted(path.name for path in Path(home).iterdir())
    with pytest.raises(sk.QueryError):
        rows(home, sql.replace("{home}", home))
    assert sorted(path.name for path in Path(home).iterdir()) == before


def test_an_option_cannot_be_changed_in_a_query(home: str) -> None:
    sql = "select set_config('enable_external_access', 'true', false)"
    with pytest.raises(sk.QueryError):
        rows(home, sql)


def test_states_that_may_not_be_read_are_no_tables(home: str) -> None:
    states = [("sales", "last")]
    assert rows(home, "select count(*) as n from sales.last", states=states) == [{"n": 3}]
    assert rows(home, "select state from states", states=states) == [{"state": "last"}]
    for sql in ("select * from sales.total", "select * from query_table('sales.total')"):
        with pytest.raises(sk.QueryError, match=r"Tables are states: sales\.last;"):
            rows(home, sql, states=states)


def test_a_query_that_takes_too_long_is_ended_and_leaves_nothing(
    home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(sk.QueryError, match="took more than 2 s"):
        run_sql(home, "select count(*) from range(100000000) a, range(1000000) b", timeout_s=2)
    assert list(tmp_path.iterdir()) == []


def test_a_query_that_takes_too_much_memory_is_an_error(home: str) -> None:
    sql = "select list(a.range order by a.range desc) from range(100000000) a"
    with pytest.raises(sk.QueryError, match="the query took more memory than it may"):
        run_sql(home, sql, memory="500MB")
    with pytest.raises(sk.QueryError, match="memory=50MB: the process of a query needs 500MB"):
        run_sql(home, sql, memory="50MB")


def test_errors_of_the_checkpoint_keep_their_class(tmp_path: Path, home: str) -> None:
    with pytest.raises(sk.RestoreError):
        run_sql(str(tmp_path / "none"), "select 1")
    with pytest.raises(sk.QueryError, match="epoch 99"):
        run_sql(home, "select 1", epoch=99)
    with pytest.raises(sk.QueryError, match="rows=0"):
        run_sql(home, "select 1", rows=0)
