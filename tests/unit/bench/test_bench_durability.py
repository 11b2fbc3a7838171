"""The benchmarks of durability do, with few rows, what they do with many."""

from __future__ import annotations

import re

import pytest

from statekit.working_copy.base_options import BaseOptions
from tests.bench import durability
from tests.bench.report import Row

pytestmark = pytest.mark.soak

ALWAYS = BaseOptions(replay_seconds=0, uploaded_per_changed=1000)


def _number(row: Row) -> float:
    found = re.match(r"-?[\d.]+", row.result)
    assert found is not None, row
    return float(found[0])


def test_commits_over_many_and_over_few_rows_are_compared() -> None:
    rows = durability.commits(rows=2_000, pairs=3, bases=ALWAYS)
    assert len(rows) == 4
    assert all(0.05 < _number(row) < 50 for row in rows)


def test_uploads_have_at_least_the_changed_bytes_and_include_bases() -> None:
    for row in durability.uploads(rows=500, epochs=4, bases=ALWAYS):
        assert _number(row) > 1
        assert not row.result.endswith(" 0 bases")


def test_restored_state_is_complete_on_any_disk() -> None:
    rows = durability.restores(rows=500, runs=1, bases=ALWAYS)
    assert all(row.measured.startswith("restore of 500 rows") for row in rows)
    assert all(_number(row) > 0 for row in rows)
    assert sum("as two shards on two hosts" in row.measured for row in rows) == len(rows) / 2


def test_more_is_stored_where_more_epochs_are_kept() -> None:
    few, many = durability.at_rest(rows=200, epochs=100)
    assert 1 < _number(few) < _number(many)


def test_shards_without_records_are_counted_one_by_one() -> None:
    row = durability.idle_alone(epochs=3, shards=5)
    assert row.measured.startswith("epoch of 5 shards, one with records")
    assert -1000 < _number(row) < 1000
