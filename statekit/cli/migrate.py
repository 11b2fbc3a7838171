"""`statekit migrate`: rewrite states whose types changed."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from statekit.checkpoint.job_file import StateRecord
from statekit.cli.arguments import Checkpoint
from statekit.cli.tables import out, print_table, progress_bar, say
from statekit.codec.schema import Schema
from statekit.job.loader import load_job
from statekit.maintenance.migrate import Migration, StateReport
from statekit.state.row_versions import value_schema


def migrate(
    checkpoint: Checkpoint,
    application: Annotated[
        str, typer.Option("--app", help="The job as it is declared now: module:attribute.")
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Convert every row, and change nothing.")
    ] = False,
) -> None:
    """Rewrite the rows of states whose types changed, with the job's hooks. No job may run."""
    migration = Migration(load_job(application), checkpoint)
    refused = migration.refused
    if refused and not dry_run:
        _print_reports(migration.reports)
        refused[0].allowed()  # raises
    with progress_bar("shards") as progress:
        manifest = migration.run(progress, dry=dry_run)
    _print_reports(migration.reports)
    for refusal in refused:
        say(refusal.problem)
    failed = [report for report in migration.reports if report.failed]
    for report in failed:
        say(
            f"{_name(report)}: {report.failed:,} rows cannot be converted. The first: "
            f"{report.first_failure}"
        )
    if dry_run:
        out.print("Nothing was changed.")
    elif manifest is None:
        out.print("All rows are of the declared types: there was nothing to do.")
    else:
        out.print(f"Committed as epoch {manifest.epoch}. Earlier epochs are as they were.")
    if refused or failed:
        raise typer.Exit(1)


def _print_reports(reports: list[StateReport]) -> None:
    rows = [
        (
            _name(report),
            Text(_type(report.succession.stored)),
            Text(_type(report.succession.record)),
            report.succession.verdict,
            f"{report.rows:,}",
            f"{report.rewritten:,}",
        )
        for report in reports
    ]
    texts = ("operator.state", "stored", "declared", "verdict")
    print_table(("rows", "rows rewritten"), rows, texts=texts)


def _name(report: StateReport) -> str:
    return f"{report.succession.operator}.{report.succession.record.name}"


def _type(state: StateRecord) -> str:
    key = f"{Schema.from_json(state.types['key']).brief} → " if "key" in state.types else ""
    return f"{state.kind}[{key}{value_schema(state).brief}]"
