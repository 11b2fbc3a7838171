"""The command line: parse arguments, call one function, print its result."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from statekit.checkpoint import rollback as rollbacks
from statekit.checkpoint.gc.readers import readers_of
from statekit.checkpoint.repository import Repository
from statekit.cli import diff as cli_diff
from statekit.cli import inspect as cli_inspect
from statekit.cli import migrate as cli_migrate
from statekit.cli import rescale as cli_rescale
from statekit.cli import rollback as cli_rollback
from statekit.cli import verify as cli_verify
from statekit.cli.copies import copies
from statekit.cli.gc import gc
from statekit.cli.import_spark import import_spark
from statekit.cli.savepoint import inspect_savepoint, savepoint
from statekit.cli.tables import print_error, print_json
from statekit.errors import StatekitError
from statekit.maintenance.diff.compare import compare
from statekit.reader import CheckpointReader

app = typer.Typer(
    name="statekit",
    help="Typed, exactly-once state for Python stream processing on Spark.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"statekit {importlib.metadata.version('statekit')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Typed, exactly-once state for Python stream processing on Spark."""


Checkpoint = Annotated[
    str, typer.Argument(help="Directory or URL of a checkpoint.", show_default=False)
]
Epoch = Annotated[
    int | None, typer.Option(help="Look at this epoch instead of the last one.", show_default=False)
]

AllowPickle = Annotated[
    bool,
    typer.Option("--allow-pickle", help="Unpickle; only for checkpoints that you trust like code."),
]

_DIFFERENT = 3
"""The exit code of `diff` for a difference, which is not an error."""


def main() -> None:
    """Run the command line. A statekit error becomes one message and exit code 1."""
    try:
        app()
    except StatekitError as error:
        print_error(error)
        sys.exit(1)


@app.command(epilog="Example: statekit inspect ./checkpoint")
def inspect(
    checkpoint: Checkpoint,
    epoch: Epoch = None,
    fast: Annotated[
        bool, typer.Option("--fast", help="Trust the manifest's counts; read no state.")
    ] = False,
    operator: Annotated[
        str | None, typer.Option(help="Show only this operator.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Show what a checkpoint contains: job, operators, states with types and sizes, epochs, skew.

    For a savepoint: the job, and states with types, sizes and files.
    """
    if Repository(checkpoint, create=False).is_savepoint:
        if epoch is not None:
            raise typer.BadParameter("a savepoint is of one epoch: leave --epoch out")
        if operator is not None:
            raise typer.BadParameter("--operator is for checkpoints: leave it out")
        inspect_savepoint(checkpoint, as_json=as_json)
        return
    reader = CheckpointReader(checkpoint, epoch=epoch)
    names = [record.name for record in reader.job.operators]
    if operator is not None:
        names = [reader.operator(operator).name]
    counted = cli_inspect.counted(reader, names, fast=fast)
    readers = readers_of(reader.repository, cli_inspect.INSPECTED, measured=not fast)
    if as_json:
        print_json(cli_inspect.as_data(reader, counted, readers))
    else:
        cli_inspect.print_checkpoint(reader, counted, readers)


@app.command(
    # So that -1 is a key and not an option.
    context_settings={"ignore_unknown_options": True},
    epilog="Examples: statekit get ./checkpoint turnaround visits N14228  ·  "
    """statekit get ./checkpoint routes delays '["UA", 1545]' --epoch 7""",
)
def get(
    checkpoint: Checkpoint,
    operator: Annotated[str, typer.Argument(help="Name of the operator.", show_default=False)],
    state: Annotated[str, typer.Argument(help="Name of the state.", show_default=False)],
    key: Annotated[
        str | None,
        typer.Argument(
            help="The key; several fields as a JSON array. Leave it out for operator state.",
            show_default=False,
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
        _print_values(reader.operator_state(operator, state))
    else:
        _print_values(reader.get(operator, state, key))


@app.command(epilog="Example: statekit migrate ./checkpoint --app fleet:job --dry-run")
def migrate(
    checkpoint: Checkpoint,
    application: Annotated[
        str,
        typer.Option(
            "--app", help="The job as it is declared now: module:attribute.", show_default=False
        ),
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Convert every row, and change nothing.")
    ] = False,
) -> None:
    """Rewrite the rows of states whose types changed, with the hooks of the job; offline."""
    if not cli_migrate.migrate_and_print(checkpoint, application, dry_run=dry_run):
        raise typer.Exit(1)


app.command(
    epilog="Examples: statekit rescale ./checkpoint --to 8 --plan  ·  "
    "statekit rescale ./checkpoint --to 8 --key-groups 1024"
)(cli_rescale.rescale)


@app.command(epilog="Example: statekit rollback ./checkpoint --to 12 --dry-run")
def rollback(
    checkpoint: Checkpoint,
    to: Annotated[int, typer.Option(help="The epoch to go back to.", show_default=False)],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what it would do.")] = False,
) -> None:
    """Continue a checkpoint from an earlier epoch. A running job is fenced.

    Does not ask for confirmation. After a kill, run it again or start the job.
    """
    plan_of_rollback = rollbacks.plan(Repository(checkpoint, create=False), to)
    cli_rollback.print_plan(plan_of_rollback)
    if not dry_run:
        plan_of_rollback.carry_out()
    cli_rollback.print_done(plan_of_rollback, dry_run=dry_run)


@app.command(
    epilog="Examples: statekit diff ./checkpoint@12 ./checkpoint@15 --rows 5  ·  "
    "statekit diff ./checkpoint ./copy --json"
)
def diff(
    a: Annotated[
        str, typer.Argument(help="A checkpoint, or CHECKPOINT@EPOCH.", show_default=False)
    ],
    b: Annotated[str, typer.Argument(help="What to compare it with.", show_default=False)],
    rows: Annotated[int, typer.Option(min=0, help="Show so many rows that differ per state.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    allow_pickle: AllowPickle = False,
) -> None:
    """Compare two states: schemas, and the rows of each state.

    The exit code is 0 if they are equal, and 3 if they differ.
    """
    difference = compare(
        cli_diff.source_of(a), cli_diff.source_of(b), examples=rows, allow_pickle=allow_pickle
    )
    if as_json:
        _print_values(cli_diff.as_data(difference))
    else:
        cli_diff.print_difference(difference)
    if not difference.is_same:
        raise typer.Exit(_DIFFERENT)


app.command(
    epilog="Examples: statekit gc ./checkpoint --dry-run  ·  "
    "statekit gc ./checkpoint --epochs 10 --age '7 days'"
)(gc)


app.command(epilog="Example: statekit savepoint ./checkpoint before-upgrade")(savepoint)
app.command(epilog="Examples: statekit copies  ·  statekit copies /data/working --clean")(copies)


app.command(
    epilog="Examples: statekit verify ./checkpoint --all  ·  statekit verify ./checkpoint --repair"
)(cli_verify.verify)


app.command(
    name="import-spark",
    epilog="Example: statekit import-spark ./old --to ./checkpoint --app fleet:stream --dry-run",
)(import_spark)


@app.command(epilog="Example: statekit demo --directory /tmp/flights")
def demo(
    directory: Annotated[
        Path, typer.Option(help="Where input, checkpoint and results go; emptied first.")
    ] = Path("demo-data"),
) -> None:
    """Run a job of four operators over the flights of 2013, kill it half-way, and check the result.

    Needs the extra `demo` (pip install 'statekit\\[demo]') and Java 17 or newer.
    """
    run: Callable[[Path], bool] = _demo_runner()
    if not run(directory):
        raise typer.Exit(1)


def _print_values(values: Any) -> None:
    print(json.dumps(_finite(values), indent=2, ensure_ascii=False, allow_nan=False))


def _finite(data: Any) -> Any:
    """Return the data with NaN and infinities as text, because JSON has no such numbers."""
    if isinstance(data, float) and not math.isfinite(data):
        return str(data)
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    return [_finite(value) for value in data] if isinstance(data, list | tuple) else data


def _demo_runner() -> Callable[[Path], bool]:
    if importlib.util.find_spec("pyspark") is None:
        raise StatekitError("the demo needs PySpark: pip install 'statekit[demo]'")
    from statekit.demo import run

    return run
