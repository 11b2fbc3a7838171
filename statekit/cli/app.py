"""The command line: registers the commands, and runs them."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from statekit.cli.check import check_job_before
from statekit.cli.copies import copies
from statekit.cli.demo import demo
from statekit.cli.diff import diff
from statekit.cli.explain import draw_job, explain_job
from statekit.cli.gc import gc
from statekit.cli.import_spark import import_spark
from statekit.cli.inspect import inspect
from statekit.cli.migrate import migrate
from statekit.cli.mirror import mirror_states
from statekit.cli.query import print_query
from statekit.cli.read_state import export_state, print_key, print_rows, top_keys
from statekit.cli.replay import replay_epoch
from statekit.cli.rescale import rescale
from statekit.cli.rollback import rollback
from statekit.cli.run import run_job
from statekit.cli.savepoint import savepoint
from statekit.cli.serve import serve_checkpoints, serve_jobs
from statekit.cli.sql import sql
from statekit.cli.submitted import (
    delete_job,
    list_jobs,
    print_log,
    restart_job,
    start_job,
    stop_job,
    submit_job,
)
from statekit.cli.tables import print_error
from statekit.cli.token import token
from statekit.cli.transform import transform_checkpoint
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


_COMMANDS: dict[Callable[..., None], tuple[str, ...]] = {
    run_job: (
        "run shop:job --checkpoint ./checkpoint",
        "run shop:job --checkpoint s3://state/shop --follow --restart '5 in 10 minutes'",
        "run shop.json --checkpoint ./checkpoint --spark 'local[2]' --set source.orders.path=/data",
    ),
    check_job_before: (
        "check shop:job --checkpoint ./checkpoint",
        "check shop.json --spark --set sink.totals.path=/tmp/totals --json",
    ),
    explain_job: ("explain shop:job", "explain shop:job --checkpoint ./checkpoint"),
    draw_job: ("draw shop:job", "draw shop:job --svg > shop.svg"),
    inspect: ("inspect ./checkpoint",),
    print_key: (
        "get ./checkpoint turnaround visits N14228",
        """get ./checkpoint routes delays '["UA", 1545]' --epoch 7""",
    ),
    serve_checkpoints: (
        "serve ./checkpoint",
        "serve bank=s3://state/bank --host 0.0.0.0 --tokens tokens.json",
    ),
    serve_jobs: (
        "server ./jobs --allow shop --checkpoints-below /data/state --data-below /data",
        "server s3://state/jobs --work /var/lib/statekit --tokens tokens.json --allow shop "
        "--checkpoints-below s3://state --host 0.0.0.0",
    ),
    submit_job: (
        "submit http://127.0.0.1:8321 shop:job",
        "submit http://127.0.0.1:8321 shop.json --name shop --replace",
    ),
    list_jobs: ("jobs http://127.0.0.1:8321",),
    start_job: ("start http://127.0.0.1:8321 shop",),
    stop_job: ("stop http://127.0.0.1:8321 shop",),
    delete_job: ("delete http://127.0.0.1:8321 shop",),
    restart_job: ("restart http://127.0.0.1:8321 shop",),
    print_log: ("logs http://127.0.0.1:8321 shop --lines 50",),
    token: (
        "token reports --read shop --read bank/balances",
        "token reports --remove --tokens tokens.json",
    ),
    print_query: (
        "query http://127.0.0.1:8321 shop sales total rome",
        "query http://127.0.0.1:8321 shop sales total --prefix ro --limit 5",
        "query http://127.0.0.1:8321 shop sales total --follow",
    ),
    mirror_states: (
        "mirror ./checkpoint turnaround.visits --to delta:/lake/visits --follow",
        "mirror ./checkpoint sales.total sales.last --to postgres:postgresql://db/shop#{state}",
    ),
    sql: ("sql ./checkpoint 'select max(value) from turnaround.visits'",),
    transform_checkpoint: (
        "transform ./checkpoint --app reshape:by_customer --into ./new",
        "transform ./checkpoint --app reshape:fixed --job shop:job --into ./new --parallelism 8",
    ),
    migrate: ("migrate ./checkpoint --app fleet:job --dry-run",),
    rescale: (
        "rescale ./checkpoint --to 8 --plan",
        "rescale ./checkpoint --to 8 --key-groups 1024",
    ),
    replay_epoch: (
        "replay ./checkpoint --epoch 12 --operator turnaround --key N14228 --app fleet:job "
        "--recorded-at ./records --pdb",
    ),
    rollback: ("rollback ./checkpoint --to 12 --dry-run",),
    diff: ("diff ./checkpoint@12 ./checkpoint@15 --rows 5", "diff ./checkpoint ./copy --json"),
    gc: ("gc ./checkpoint --dry-run", "gc ./checkpoint --epochs 10 --age '7 days'"),
    export_state: ("export ./checkpoint turnaround visits --to parquet --into v.parquet",),
    print_rows: (
        "scan ./checkpoint turnaround visits --prefix N14 --limit 5",
        "scan ./checkpoint turnaround _timers --key N14228 --json",
    ),
    top_keys: ("top ./checkpoint", "top ./checkpoint turnaround --by writes"),
    savepoint: ("savepoint ./checkpoint before-upgrade",),
    copies: ("copies", "copies /data/working --clean"),
    verify_checkpoint: ("verify ./checkpoint --all", "verify ./checkpoint --repair"),
    import_spark: ("import-spark ./old --to ./checkpoint --app fleet:stream --dry-run",),
    demo: ("demo --directory /tmp/flights",),
}
"""All commands, each with its examples. The first word of an example is the name of the command."""

_WITH_KEYS = {print_key, print_query, replay_epoch}
"""Commands with keys: -1 is a key, and not an option."""

for command, examples in _COMMANDS.items():
    app.command(
        examples[0].partition(" ")[0],
        context_settings={"ignore_unknown_options": command in _WITH_KEYS},
        epilog=f"Example{'s' if examples[1:] else ''}: "
        + "  ·  ".join(f"statekit {example}" for example in examples),
    )(command)
