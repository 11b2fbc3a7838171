"""Results of Nexmark's jobs as rows, and whether they are those of plain SQL."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tests.bench.nexmark.queries import QUERIES

__all__ = ["Answers", "are_same", "rows_of_files"]

Answers = list[tuple[Any, ...]]


def rows_of_files(number: int, out: Path) -> Answers:
    """The rows of Parquet files, by epoch: a later one may take the place of an earlier one."""
    rows = [
        row for path in sorted(out.glob("*.parquet")) for row in pq.read_table(path).to_pylist()
    ]
    if updates := QUERIES[number].updates:
        rows = list({tuple(row[name] for name in updates): row for row in rows}.values())
    return [tuple(row.values()) for row in rows]


def are_same(found: Sequence[tuple[Any, ...]], expected: Sequence[tuple[Any, ...]]) -> bool:
    """Whether two have the same rows; of floats, SQL need not have the last digits."""
    return len(found) == len(expected) and all(
        math.isclose(one, other) if isinstance(one, float) else one == other
        for row, right in zip(sorted(found), sorted(expected), strict=True)
        for one, other in zip(row, right, strict=True)
    )
