"""`statekit savepoint`: write a savepoint and show one."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from statekit.checkpoint.job_file import TIMERS
from statekit.checkpoint.repository import Repository
from statekit.cli.arguments import Checkpoint
from statekit.cli.submitted import changed_at_server
from statekit.cli.tables import out, print_json, print_table, progress_bar, say
from statekit.maintenance.savepoint.format import Savepoint, SavepointFile
from statekit.maintenance.savepoint.write import savepoint_folder, write_savepoint
from statekit.stored_types import state_text
from statekit.timestamp import instant


def savepoint(
    checkpoint: Checkpoint,
    name: Annotated[str, typer.Argument(help="Letters, digits and any of _ . -; not taken.")],
    epoch: Annotated[
        int | None, typer.Option(help="Save this epoch instead of the last one.")
    ] = None,
) -> None:
    """Write all state to Parquet files, to keep, to read, or to start other jobs from.

    The job may run meanwhile. Nothing ever deletes a savepoint.
    """
    if changed_at_server(
        checkpoint, lambda client, job: client.save_job(job, name), epoch=epoch is not None
    ):
        return
    repository = Repository(checkpoint, create=False)
    with progress_bar("rows") as progress:
        savepoint_file = write_savepoint(repository, name, epoch=epoch, progress=progress)
    url = f"{repository.url}/{savepoint_folder(name)}"
    _print(savepoint_file, url)
    say(f'Start from it: job.start(..., checkpoint="<a new one>", from_savepoint="{url}")')
    say(f"or: statekit run <module:job> --checkpoint <a new one> --from-savepoint {url}")


def inspect_savepoint(url: str, *, as_json: bool) -> None:
    """Print the contents of a savepoint."""
    saved = Savepoint.at(url)
    if as_json:
        print_json(_as_data(saved.file, saved.url))
    else:
        _print(saved.file, saved.url)


def _print(saved: SavepointFile, url: str) -> None:
    out.print(f"[bold]savepoint {saved.name}[/] of job {saved.job.name}")
    say(url)
    behind = "" if saved.batch is None else f", Spark continues after micro-batch {saved.batch}"
    taken_at = f"{instant(saved.taken_at_us):%Y-%m-%d %H:%M:%S} UTC"
    out.print(f"epoch {saved.epoch}{behind}, taken {taken_at}")
    rows = []
    for operator in saved.job.operators:
        types = {state.name: state_text(state) for state in operator.states}
        for name, contents in saved.operators[operator.name].states.items():
            own_type = types.get(name, "timers" if name == TIMERS else "buffered records")
            size, files = sum(file.size for file in contents.files), str(len(contents.files))
            title = f"{operator.name}.{name}"
            rows.append((title, Text(own_type), f"{contents.rows:,}", f"{size:,}", files))
    print_table(("rows", "bytes", "files"), rows, texts=("operator.state", "type"))


def _as_data(saved: SavepointFile, url: str) -> dict[str, object]:
    return {
        "savepoint": saved.name,
        "url": url,
        "job": saved.job.name,
        "epoch": saved.epoch,
        "batch": saved.batch,
        "operators": {
            name: {
                state: {
                    "rows": contents.rows,
                    "bytes": sum(file.size for file in contents.files),
                    "files": [file.path for file in contents.files],
                }
                for state, contents in operator.states.items()
            }
            for name, operator in saved.operators.items()
        },
    }
