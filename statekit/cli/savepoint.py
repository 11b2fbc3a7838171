"""`statekit savepoint`: write a savepoint and show one."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from statekit.checkpoint.job_file import TIMERS
from statekit.checkpoint.repository import Repository
from statekit.cli.tables import empty_table, out, print_json, progress_bar, say
from statekit.maintenance.savepoint.format import Savepoint, SavepointFile
from statekit.maintenance.savepoint.write import savepoint_folder, write_savepoint
from statekit.reader import state_text
from statekit.timestamp import instant


def savepoint(
    checkpoint: Annotated[
        str, typer.Argument(help="Directory or URL of a checkpoint.", show_default=False)
    ],
    name: Annotated[
        str,
        typer.Argument(help="Letters, digits and any of _ . -; not taken.", show_default=False),
    ],
    epoch: Annotated[
        int | None,
        typer.Option(help="Save this epoch instead of the last one.", show_default=False),
    ] = None,
) -> None:
    """Write all state to Parquet files, to keep, to read, or to start other jobs from.

    The job may run meanwhile. Nothing ever deletes a savepoint.
    """
    repository = Repository(checkpoint, create=False)
    with progress_bar("rows") as progress:
        made = write_savepoint(repository, name, epoch=epoch, progress=progress)
    url = f"{repository.url}/{savepoint_folder(name)}"
    _print(made, url)
    told = f'Start from it: job.start(..., checkpoint="<a new one>", from_savepoint="{url}")'
    say(told)


def inspect_savepoint(url: str, *, as_json: bool) -> None:
    """Print the contents of a savepoint."""
    found = Savepoint.at(url)
    if as_json:
        print_json(_as_data(found.file, found.url))
    else:
        _print(found.file, found.url)


def _print(made: SavepointFile, url: str) -> None:
    out.print(f"[bold]savepoint {made.name}[/] of job {made.job.name}")
    say(url)
    behind = "" if made.batch is None else f", Spark continues after micro-batch {made.batch}"
    taken = f"{instant(made.taken_at_us):%Y-%m-%d %H:%M:%S} UTC"
    out.print(f"epoch {made.epoch}{behind}, taken {taken}")
    table = empty_table(("rows", "bytes", "files"), texts=("operator.state", "type"))
    for operator in made.job.operators:
        types = {state.name: state_text(state) for state in operator.states}
        for name, held in made.operators[operator.name].states.items():
            size = sum(file.size for file in held.files)
            table.add_row(
                f"{operator.name}.{name}",
                Text(types.get(name, "timers" if name == TIMERS else "buffered records")),
                f"{held.rows:,}",
                f"{size:,}",
                str(len(held.files)),
            )
    out.print(table)


def _as_data(made: SavepointFile, url: str) -> dict[str, object]:
    return {
        "savepoint": made.name,
        "url": url,
        "job": made.job.name,
        "epoch": made.epoch,
        "batch": made.batch,
        "operators": {
            name: {
                state: {
                    "rows": held.rows,
                    "bytes": sum(file.size for file in held.files),
                    "files": [file.path for file in held.files],
                }
                for state, held in operator.states.items()
            }
            for name, operator in made.operators.items()
        },
    }
