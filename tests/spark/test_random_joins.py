"""Random joins on Spark have the results of DuckDB over all records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import statekit as sk
from tests.support.effort import SOAK
from tests.support.random_joins import RandomJoin, counted
from tests.support.spark_runs import Runs

SEEDS = range(40) if SOAK else (4, 7)

_INSTANT = pa.timestamp("us", "UTC")
_SCHEMAS = {
    "left": pa.schema({"key": pa.int64(), "number": pa.int64(), "at": _INSTANT, "until": _INSTANT}),
    "right": pa.schema({"ref": pa.int64(), "number": pa.int64(), "seen": _INSTANT}),
}


def clock_at(second: int) -> Callable[[], int]:
    """A clock that stands still. The model has the processing time of each epoch."""
    return lambda: (second + 1) * 1_000_000


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_join_on_spark_has_the_results_of_duckdb(runs: Runs, seed: int) -> None:
    join = RandomJoin(seed)
    epochs = list(zip(join.left, join.right, strict=True))
    for number, (left, right) in enumerate(epochs):
        inputs = {
            "left": runs.frame(left, _SCHEMAS["left"]),
            "right": runs.frame(right, _SCHEMAS["right"]),
        }
        runs.start(
            join.job(),
            inputs,
            outputs={"out": sk.sinks.parquet(runs.home / "out")},
            parallelism=1 + (seed + number) % 3,
            drain=number == len(epochs) - 1,
            clock=clock_at(join.arrived[number]),
        ).await_termination()
    found = [tuple(row.values()) for row in runs.parquet("out")]
    expected: Counter[Any] = join.expected()
    assert counted(found) == expected, join.options
