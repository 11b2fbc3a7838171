"""Random joins have the results of DuckDB over all records, in any epochs and shards."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.support.effort import SOAK
from tests.support.random_joins import RandomJoin

COUNT = 10_000 if SOAK else 60


def test_random_joins_have_the_results_of_duckdb(tmp_path: Path) -> None:
    not_empty = 0
    for seed in range(COUNT):
        join, backend = RandomJoin(seed), "rocksdb" if seed % 10 == 0 else "memory"
        expected = join.expected()
        with tempfile.TemporaryDirectory(dir=tmp_path) as home:
            found = join.found(Path(home), backend)
        assert found == expected, (seed, join.options, found - expected, expected - found)
        not_empty += bool(expected)
    assert not_empty > COUNT // 3
