"""`statekit get`, `export`, `scan` and `top`: a key, the rows of a state, and its largest keys."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from statekit.cli.arguments import (
    AllowPickle,
    Checkpoint,
    Closed,
    End,
    Epoch,
    Prefix,
    Start,
    WideInts,
    WideIntsAsText,
    ints_as,
)
from statekit.cli.tables import (
    count_text,
    empty_table,
    out,
    print_cells,
    print_json,
    print_line,
    print_title,
    print_values,
    say,
)
from statekit.query.rows.reader import CheckpointReader
from statekit.query.rows.state_rows import TextRange
from statekit.query.tables.export import Format, export
from statekit.query.tables.read import StateTable
from statekit.query.tables.top import Measure, TopKeys, first_keys
from statekit.records.json_rows import json_rows

Operator = Annotated[str, typer.Argument(help="Name of the operator.", show_default=False)]
State = Annotated[
    str,
    typer.Argument(
        help="Name of the state; _timers for timers, _waiting for buffered records.",
        show_default=False,
    ),
]
Key = Annotated[
    str | None,
    typer.Option(help="Only this key; several fields as a JSON array.", show_default=False),
]
Columns = Annotated[
    list[str] | None,
    typer.Option("--column", help="Only this column; repeat it.", show_default=False),
]

_ROWS_SHOWN = 20


def print_key(
    checkpoint: Checkpoint,
    operator: Operator,
    state: Annotated[str, typer.Argument(help="Name of the state.", show_default=False)],
    key: Annotated[
        str | None,
        typer.Argument(
            help="The key; several fields as a JSON array. Leave it out for operator state."
        ),
    ] = None,
    epoch: Epoch = None,
    allow_pickle: AllowPickle = False,
) -> None:
    """Print the state of one key as JSON; null if there is none.

    For operator state: a list with the state of each shard.
    """
    reader = CheckpointReader(checkpoint, epoch=epoch, allow_pickle=allow_pickle)
    if key is None:
        print_values(reader.operator_state(operator, state))
    else:
        print_values(reader.get(operator, state, key))


def export_state(
    checkpoint: Checkpoint,
    operator: Operator,
    state: State,
    to: Annotated[Format, typer.Option(help="The format of the file.", show_default=False)],
    into: Annotated[Path, typer.Option(help="The file to write.", show_default=False)],
    epoch: Epoch = None,
    key: Key = None,
    prefix: Prefix = None,
    start: Start = None,
    end: End = None,
    closed: Closed = "left",
    column: Columns = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the file if it exists.")
    ] = False,
    wide_ints: WideInts = False,
    wide_ints_as_text: WideIntsAsText = False,
    allow_pickle: AllowPickle = False,
) -> None:
    """Write the rows of a state to a file: Parquet, CSV, Arrow, or a DuckDB database."""
    rows = StateTable(CheckpointReader(checkpoint, epoch=epoch), operator, state)
    wide = ints_as(wide_ints, wide_ints_as_text)
    reader = rows.reader(
        key=key,
        within=TextRange(start, end, prefix, closed),
        columns=column,
        wide_ints=wide,
        allow_pickle=allow_pickle,
    )
    count = export(reader, into, to, name=state, overwrite=overwrite)
    say(f"{count_text(count, 'row', 'rows')} of {rows.place} in {into}")


def print_rows(
    checkpoint: Checkpoint,
    operator: Operator,
    state: State,
    epoch: Epoch = None,
    key: Key = None,
    prefix: Prefix = None,
    start: Start = None,
    end: End = None,
    closed: Closed = "left",
    column: Columns = None,
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="The number of rows; 20, or all with --json.", show_default=False),
    ] = None,
    offset: Annotated[
        int, typer.Option(min=0, help="The number of rows to leave out before the first one.")
    ] = 0,
    count: Annotated[
        bool, typer.Option("--count", help="Print only the number of rows in the range.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a line of JSON per row.")] = False,
    wide_ints: WideInts = False,
    wide_ints_as_text: WideIntsAsText = False,
    allow_pickle: AllowPickle = False,
) -> None:
    """Print the rows of a state, in the order of key groups and keys."""
    if count and (limit is not None or offset or column):
        raise typer.BadParameter(
            "--count counts all rows of a range: leave --limit, --offset and --column out"
        )
    rows = StateTable(CheckpointReader(checkpoint, epoch=epoch), operator, state)
    wide = ints_as(wide_ints, wide_ints_as_text)
    reader = rows.reader(
        key=key,
        within=TextRange(start, end, prefix, closed),
        columns=rows.schema(allow_pickle=True).names[:1] if count else column,
        wide_ints=wide,
        allow_pickle=allow_pickle,
    )
    if count:
        print_values(sum(batch.num_rows for batch in reader))
        return
    all_rows = islice((row for batch in reader for row in json_rows(batch)), offset, None)
    if as_json:
        for row in islice(all_rows, limit):
            print_line(row)
        return
    wanted = limit or _ROWS_SHOWN
    shown = list(islice(all_rows, wanted + 1))
    print_cells(reader.schema.names, (row.values() for row in shown[:wanted]))
    out.print(rows.place + (": more rows follow, see --limit" if len(shown) > wanted else ""))


def top_keys(
    checkpoint: Checkpoint,
    operator: Annotated[
        str | None, typer.Argument(help="Only this operator.", show_default=False)
    ] = None,
    state: Annotated[
        str | None, typer.Argument(help="Only this state.", show_default=False)
    ] = None,
    by: Annotated[
        Measure, typer.Option(help="Bytes, rows, or writes in the kept epochs.")
    ] = "size",
    limit: Annotated[int, typer.Option(min=1, help="The number of keys and key groups.")] = 10,
    epoch: Epoch = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Show the largest or most written keys, and the fullest key groups."""
    reader = CheckpointReader(checkpoint, epoch=epoch)
    names = [record.name for record in reader.job.operators if record.holds_by_key]
    if operator is not None:
        names = [reader.operator(operator).name]
    found = {name: first_keys(reader, name, state, by=by, limit=limit) for name in names}
    if as_json:
        print_json({name: _as_data(ranking, limit) for name, ranking in found.items()})
        return
    for name, ranking in found.items():
        _print(name, ranking, limit)


def _as_data(ranking: TopKeys, limit: int) -> dict[str, Any]:
    return {
        "keys": [
            {
                name: value
                for name, value in key._asdict().items()
                if name == "key" or value is not None
            }
            for key in ranking.keys
        ],
        "key_groups": [
            {"key_group": group, "rows": rows} for group, rows in ranking.groups[:limit]
        ],
        "epochs": ranking.epochs,
    }


def _print(operator: str, ranking: TopKeys, limit: int) -> None:
    by_writes = ranking.epochs is not None
    headings = ("writes",) if by_writes else ("rows", "bytes")
    table = empty_table(headings, texts=("state", "key"))
    for key in ranking.keys:
        numbers = (key.writes,) if by_writes else (key.rows, key.bytes)
        text = Text(json.dumps(key.key, ensure_ascii=False))
        table.add_row(key.state, text, *(f"{number:,}" for number in numbers))
    print_title(f"keys of {operator}")
    out.print(table)
    if ranking.epochs is not None:
        out.print("written in epochs {} to {}".format(*ranking.epochs))
    elif ranking.groups:
        groups = ", ".join(f"{group}: {rows:,}" for group, rows in ranking.groups[:limit])
        out.print(f"rows of the fullest key groups: {groups}")
