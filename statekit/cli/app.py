"""The command line: registers the commands, and runs them."""

from __future__ import annotations

import importlib.metadata
import sys
from typing import Annotated

import typer

from statekit.cli.copies import copies
from statekit.cli.demo import demo
from statekit.cli.diff import diff
from statekit.cli.gc import gc
from statekit.cli.get import print_key
from statekit.cli.import_spark import import_spark
from statekit.cli.inspect import inspect
from statekit.cli.migrate import migrate
from statekit.cli.query import print_query
from statekit.cli.read_state import export_state, print_rows, top_keys
from statekit.cli.replay import replay_epoch
from statekit.cli.rescale import rescale
from statekit.cli.rollback import rollback
from statekit.cli.savepoint import savepoint
from statekit.cli.serve import serve_checkpoints
from statekit.cli.sql import sql
from statekit.cli.tables import print_error
from statekit.cli.token import token
from statekit.cli.verify import verify_checkpoint
from statekit.errors import StatekitError

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


def main() -> None:
    """Run the command line. A statekit error becomes one message and exit code 1."""
    try:
        app()
    except StatekitError as error:
        print_error(error)
        sys.exit(1)


app.command(epilog="Example: statekit inspect ./checkpoint")(inspect)
app.command(
    name="get",
    # So that -1 is a key and not an option.
    context_settings={"ignore_unknown_options": True},
    epilog="Examples: statekit get ./checkpoint turnaround visits N14228  ·  "
    """statekit get ./checkpoint routes delays '["UA", 1545]' --epoch 7""",
)(print_key)
app.command(
    name="serve",
    epilog="Examples: statekit serve ./checkpoint  ·  "
    "statekit serve bank=s3://state/bank --host 0.0.0.0 --tokens tokens.json",
)(serve_checkpoints)
app.command(
    epilog="Examples: statekit token reports --read shop --read bank/balances  ·  "
    "statekit token reports --remove --tokens tokens.json"
)(token)
app.command(
    name="query",
    context_settings={"ignore_unknown_options": True},
    epilog="Examples: statekit query http://127.0.0.1:8321 shop sales total rome  ·  "
    "statekit query http://127.0.0.1:8321 shop sales total --follow",
)(print_query)
app.command(epilog="Example: statekit sql ./checkpoint 'select max(value) from turnaround.visits'")(
    sql
)
app.command(epilog="Example: statekit migrate ./checkpoint --app fleet:job --dry-run")(migrate)
app.command(
    epilog="Examples: statekit rescale ./checkpoint --to 8 --plan  ·  "
    "statekit rescale ./checkpoint --to 8 --key-groups 1024"
)(rescale)
app.command(
    name="replay",
    context_settings={"ignore_unknown_options": True},
    epilog="Example: statekit replay ./checkpoint --epoch 12 --operator turnaround --key N14228 "
    "--app fleet:job --recorded-at ./records --pdb",
)(replay_epoch)
app.command(epilog="Example: statekit rollback ./checkpoint --to 12 --dry-run")(rollback)
app.command(
    epilog="Examples: statekit diff ./checkpoint@12 ./checkpoint@15 --rows 5  ·  "
    "statekit diff ./checkpoint ./copy --json"
)(diff)
app.command(
    epilog="Examples: statekit gc ./checkpoint --dry-run  ·  "
    "statekit gc ./checkpoint --epochs 10 --age '7 days'"
)(gc)


app.command(
    name="export",
    epilog="Example: statekit export ./checkpoint turnaround visits --to parquet --into v.parquet",
)(export_state)
app.command(
    name="scan",
    epilog="Examples: statekit scan ./checkpoint turnaround visits --limit 5  ·  "
    "statekit scan ./checkpoint turnaround _timers --key N14228 --json",
)(print_rows)
app.command(
    name="top",
    epilog="Examples: statekit top ./checkpoint  ·  "
    "statekit top ./checkpoint turnaround --by writes",
)(top_keys)


app.command(epilog="Example: statekit savepoint ./checkpoint before-upgrade")(savepoint)
app.command(epilog="Examples: statekit copies  ·  statekit copies /data/working --clean")(copies)
app.command(
    name="verify",
    epilog="Examples: statekit verify ./checkpoint --all  ·  statekit verify ./checkpoint --repair",
)(verify_checkpoint)
app.command(
    epilog="Example: statekit import-spark ./old --to ./checkpoint --app fleet:stream --dry-run"
)(import_spark)
app.command(epilog="Example: statekit demo --directory /tmp/flights")(demo)
