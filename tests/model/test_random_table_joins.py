"""A sink that applies the changes of a join of tables has what DuckDB joins, after each epoch."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import pytest

from statekit.job.joins import matching, side_rows
from statekit.runtime import key_iteration
from tests.support.effort import SOAK
from tests.support.random_tables import RandomTables

COUNT = 10_000 if SOAK else 30


@pytest.mark.parametrize("moves", [False, True])
def test_the_changes_of_random_joins_of_tables_make_what_duckdb_joins(
    moves: bool, tmp_path: Path
) -> None:
    _check(range(COUNT), tmp_path, moves=moves, net=True)


@pytest.mark.parametrize(("rows", "pairs"), [(1, 1), (2, 7), (5, 2)])
def test_they_are_right_if_few_rows_of_a_key_fit_in_memory(
    rows: int, pairs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of a key are read in parts, and the changes of a key are cut."""
    monkeypatch.setattr(side_rows, "ROWS_AT_ONCE", rows)
    monkeypatch.setattr(matching, "PAIRS_AT_ONCE", pairs)
    monkeypatch.setattr(key_iteration, "RECORDS_AT_ONCE", 2 * rows + 1)
    count = COUNT // 8
    for moves in (False, True):
        seeds = range(COUNT + rows * count, COUNT + (rows + 1) * count)
        _check(seeds, tmp_path, moves=moves, net=False)


def _check(seeds: range, tmp_path: Path, *, moves: bool, net: bool) -> None:
    """Compare some random joins.

    Parameters:
        moves: whether the values of `on` of a row may change.
        net: whether each row changes once in an epoch at most.
    """
    not_empty = 0
    for seed in seeds:
        tables = RandomTables(seed, moves=moves)
        backend = "rocksdb" if seed % 10 == 0 else "memory"
        with tempfile.TemporaryDirectory(dir=tmp_path) as home:
            found = tables.found(Path(home), backend)
            for epoch, (expected, (sinks, changes)) in enumerate(
                zip(tables.expected(), found, strict=True)
            ):
                for rows in sinks:
                    assert rows == expected, (seed, epoch, tables.options)
                not_empty += bool(expected)
                keys = Counter(map(tables.key_of, changes))
                assert not net or max(keys.values(), default=0) <= 1, (seed, epoch)
    assert not_empty > len(seeds) // 3
