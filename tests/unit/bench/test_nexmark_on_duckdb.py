"""Nexmark in one process comes to what DuckDB says, or there is no number."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.bench.nexmark.events import Events, Tables
from tests.bench.nexmark.on_duckdb import check, measured, run_duckdb
from tests.bench.nexmark.queries import QUERIES
from tests.bench.nexmark.sql import answers
from tests.bench.peers.environments import NotAvailable

pytestmark = pytest.mark.slow

COUNT = 4_000
RATE, GROUP = 100, 97  # 40 seconds in all; out of order, within the lateness


@pytest.fixture(scope="module")
def tables() -> Tables:
    return Events(1, RATE, GROUP).tables(0, COUNT)


@pytest.mark.parametrize("number", QUERIES)
def test_the_job_that_is_measured_beside_duckdb_has_its_result(number: int, tables: Tables) -> None:
    check(number, tables, answers(number, tables))


def test_duckdb_writes_the_rows_that_are_compared(tables: Tables, tmp_path: Path) -> None:
    assert run_duckdb(8, tables, tmp_path) > 0
    assert pq.read_table(tmp_path / "out.parquet").num_rows == len(answers(8, tables))


def test_a_query_that_is_right_has_a_number_for_each_side() -> None:
    row = measured(8, COUNT, rounds=1)
    ours, theirs = row.arms
    assert row.times_as_fast == theirs.seconds / ours.seconds
    assert (ours.events, theirs.events) == (COUNT, COUNT)
    assert "events/s against" in row.result


def test_a_result_that_is_not_that_of_duckdb_is_no_number(tables: Tables) -> None:
    _, *others = answers(8, tables)
    counts = f"statekit has {len(others) + 1} rows, DuckDB {len(others)}"
    with pytest.raises(NotAvailable, match=counts):
        check(8, tables, others)
