"""What a function does to what it gets is seen nowhere else, wherever Spark runs it."""

from __future__ import annotations

import copy
import datetime as dt
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

from tests.support.changing_functions import (
    RULE,
    START,
    Graph,
    Tagged,
    changing_job,
    plain_run,
    sorted_records,
)
from tests.support.spark_runs import Runs

pytestmark = [pytest.mark.spark, pytest.mark.slow]

RECORDS = [
    Tagged("ab"[n % 2], START + dt.timedelta(minutes=n), n, ["x"][: n % 2], {"n": [n]})
    for n in range(6)
]
SCHEMA = pa.schema(
    [
        ("user", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("score", pa.int64()),
        ("tags", pa.list_(pa.string())),
        ("notes", pa.map_(pa.string(), pa.list_(pa.int64()))),
    ]
)

GRAPHS: dict[str, Graph] = {
    "in the task before an operator": [
        ("filter", 0),
        ("filter again", 1),
        ("hoard", 2),
        ("filter", 3),
        ("process", 4),
    ],
    "over frames that several read": [
        ("filter", 0),
        ("process", 1),
        ("filter again", 1),
        ("filter", 3),
        ("flat_map", 1),
        ("filter", 5),
        ("process", 6),
    ],
    "behind an operator, and in a chain": [
        ("process", 0),
        ("filter", 1),
        ("process", 2),
        ("filter again", 3),
        ("map", 4),
        ("filter", 5),
    ],
    "in shared passes": [
        ("process", 0),
        ("ordered", 0),
        ("broadcast", 0),
        ("filter", 1),
        ("filter", 2),
        ("filter", 3),
        ("filter again", 4),
    ],
}


def taking(found: dict[str, list[Tagged]], name: str) -> Any:
    def take(df: DataFrame, _epoch: int) -> None:
        for row in df.toArrow().to_pylist(maps_as_pydicts="strict"):
            found.setdefault(name, []).append(Tagged(**{**row, "at": row["at"].astimezone(dt.UTC)}))

    return take


@pytest.mark.parametrize("sinks", ["the last", "all"])
@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)
def test_functions_that_change_what_they_get_are_as_in_plain_python(
    runs: Runs, graph: Graph, sinks: str
) -> None:
    streams = list(range(1, len(graph) + 1))
    read = {of for _, of in graph}
    wanted = [number for number in streams if sinks == "all" or number not in read]
    job, found = changing_job(graph, wanted), dict[str, list[Tagged]]()
    for source, records in (("in", RECORDS), ("rules", [RULE])):
        rows = [{**vars(record), "notes": list(record.notes.items())} for record in records]
        runs.feed(source, pa.Table.from_pylist(rows, schema=SCHEMA))
    frames = {name: runs.spark.read.parquet(str(runs.home / name)) for name in ("in", "rules")}
    outputs = {f"sink_{number}": taking(found, f"sink_{number}") for number in wanted}
    runs.finish(job, frames, outputs=outputs, parallelism=2)
    expected = plain_run(graph, RECORDS)
    given = copy.deepcopy(RECORDS)
    run = changing_job(graph, wanted).run({"in": given, "rules": [RULE]}, parallelism=2)
    for number in wanted:
        name, wanted_records = f"sink_{number}", sorted_records(expected[number])
        assert sorted_records(run.outputs[name]) == wanted_records, name
        assert sorted_records(found.get(name, [])) == wanted_records, name
