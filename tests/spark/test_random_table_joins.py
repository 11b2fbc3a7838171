"""A Delta table with the changes of a join of tables on Spark has what DuckDB joins."""

from __future__ import annotations

import pyarrow as pa
import pytest
from deltalake import DeltaTable

import statekit as sk
from tests.support.random_tables import RandomTables, in_order
from tests.support.spark_runs import Runs

CASES = [
    (72, False, ["left_ref", "left_id", "right_id"]),  # an inner join, so no key is None
    (168, True, ["left_id", "right_id"]),  # rows of both sides move
    (562, True, ["left_id"]),  # a left join by a foreign key
]

_SCHEMAS = {
    "left": pa.schema(
        {"ref": pa.int64(), "id": pa.int64(), "value": pa.int64(), "gone": pa.bool_()}
    ),
    "right": pa.schema({"key": pa.int64(), "id": pa.int64(), "value": pa.int64()}),
}


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "moves", "key"), CASES)
def test_a_table_of_a_join_on_spark_has_what_duckdb_joins(
    runs: Runs, seed: int, moves: bool, key: list[str]
) -> None:
    tables, path = RandomTables(seed, moves=moves), runs.home / "joined"
    sink = sk.sinks.delta(path, mode="upsert", key=key, delete="deleted")
    for number, (expected, changes) in enumerate(
        zip(tables.expected(), tables.changes, strict=True)
    ):
        left, right = changes
        inputs = {
            "left": runs.frame(left, _SCHEMAS["left"]),
            "right": runs.frame(right, _SCHEMAS["right"]),
        }
        runs.start(
            tables.job(), inputs, outputs={"out": sink}, parallelism=1 + (seed + number) % 3
        ).await_termination()
        rows = DeltaTable(path).to_pyarrow_table().to_pylist()
        assert in_order(tuple(row.values()) for row in rows) == expected, (number, tables.options)
