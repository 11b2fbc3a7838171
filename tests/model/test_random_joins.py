"""Random joins have the results of DuckDB over all records, in any epochs and shards."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from statekit.job.joins import matching, side_rows, stream_join
from statekit.runtime import key_iteration
from tests.support.effort import SOAK
from tests.support.random_joins import RandomJoin

COUNT = 10_000 if SOAK else 60


def test_random_joins_have_the_results_of_duckdb(tmp_path: Path) -> None:
    _check(range(COUNT), tmp_path)


@pytest.mark.parametrize(("rows", "pairs"), [(1, 1), (2, 7), (5, 2)])
def test_random_joins_are_right_if_few_rows_of_a_key_fit_in_memory(
    rows: int, pairs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys with more rows than fit are matched row by row, and the records of a key are cut."""
    monkeypatch.setattr(side_rows, "ROWS_AT_ONCE", rows)
    monkeypatch.setattr(stream_join, "ROWS_AT_ONCE", rows)
    monkeypatch.setattr(matching, "PAIRS_AT_ONCE", pairs)
    monkeypatch.setattr(key_iteration, "RECORDS_AT_ONCE", 2 * rows + 1)
    count = COUNT // 6
    _check(range(COUNT + rows * count, COUNT + (rows + 1) * count), tmp_path)


def _check(seeds: range, tmp_path: Path) -> None:
    not_empty = 0
    for seed in seeds:
        join, backend = RandomJoin(seed), "rocksdb" if seed % 10 == 0 else "memory"
        expected = join.expected()
        with tempfile.TemporaryDirectory(dir=tmp_path) as home:
            found = join.found(Path(home), backend)
        assert found == expected, (seed, join.options, found - expected, expected - found)
        not_empty += bool(expected)
    assert not_empty > len(seeds) // 3
