"""`statekit sql`: a query over the states of a checkpoint."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

import pyarrow as pa
import typer

from statekit.cli.arguments import Checkpoint, Epoch, WideInts, WideIntsAsText, ints_as
from statekit.cli.tables import print_cells, print_line, say
from statekit.query.tables.export import csv_text
from statekit.records.json_rows import json_rows, json_values
from statekit.sql.run import run_sql


def sql(
    checkpoint: Checkpoint,
    query: Annotated[
        str, typer.Argument(help="One statement that reads; operator.state is a table.")
    ],
    epoch: Epoch = None,
    to: Annotated[
        Literal["table", "json", "csv", "arrow"], typer.Option(help="How the result is printed.")
    ] = "table",
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="The number of rows.")] = 1_000,
    timeout: Annotated[float, typer.Option(min=0.1, help="The longest time, in seconds.")] = 60.0,
    memory: Annotated[str, typer.Option(help="How much memory the query may take.")] = "1GB",
    wide_ints: WideInts = False,
    wide_ints_as_text: WideIntsAsText = False,
) -> None:
    """Run a query over the states of one epoch, with DuckDB.

    Needs the extra `sql` (pip install 'statekit\\[sql]').
    """
    result = run_sql(
        checkpoint,
        query,
        epoch,
        rows=limit,
        timeout_s=timeout,
        memory=memory,
        wide_ints=ints_as(wide_ints, wide_ints_as_text),
    )
    table = result.table
    if to == "arrow":
        with pa.ipc.new_stream(sys.stdout.buffer, table.schema) as stream:
            stream.write_table(table)
    elif to == "csv":
        sys.stdout.write(csv_text(table))
    elif to == "json":
        for batch in table.to_batches():
            for row in json_rows(batch):
                print_line(row)
    else:
        rows = (row for batch in table.to_batches() for row in json_values(batch))
        print_cells(table.column_names, rows)
    if result.is_cut:
        say(f"there are more rows than {limit:,}: give --limit")
