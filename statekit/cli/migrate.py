"""`statekit migrate`: rewrite states whose types changed."""

from __future__ import annotations

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Table
from rich.text import Text

from statekit.checkpoint.job_file import StateRecord
from statekit.cli.tables import empty_table, err, out, say
from statekit.codec.schema import Schema
from statekit.job.loader import load_job
from statekit.maintenance.migrate import Migration, StateReport
from statekit.state.row_versions import value_schema


def migrate_and_print(checkpoint: str, application: str, *, dry_run: bool) -> bool:
    """Migrate a checkpoint, or try to. Return whether all rows have, or would have, the declared
    types.
    """
    migration = Migration(load_job(application), checkpoint)
    refused = migration.refused
    if refused and not dry_run:
        out.print(_table(migration.reports))
        refused[0].allowed()  # raises
    with _progress() as bar:
        tasks: dict[str, TaskID] = {}

        def told(operator: str, done: int, shards: int) -> None:
            if operator not in tasks:
                tasks[operator] = bar.add_task(operator, total=shards)
            bar.update(tasks[operator], completed=done)

        manifest = migration.run(told, dry=dry_run)
    out.print(_table(migration.reports))
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
    return not refused and not failed


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    return Progress(*columns, console=err, transient=True, disable=not err.is_terminal)


def _table(reports: list[StateReport]) -> Table:
    texts = ("operator.state", "stored", "declared", "verdict")
    table = empty_table(("rows", "rows rewritten"), texts=texts)
    for report in reports:
        succession = report.succession
        table.add_row(
            _name(report),
            Text(_type(succession.stored)),
            Text(_type(succession.record)),
            succession.verdict,
            f"{report.rows:,}",
            f"{report.rewritten:,}",
        )
    return table


def _name(report: StateReport) -> str:
    return f"{report.succession.operator}.{report.succession.record.name}"


def _type(state: StateRecord) -> str:
    key = f"{Schema.from_json(state.types['key']).brief} → " if "key" in state.types else ""
    return f"{state.kind}[{key}{value_schema(state).brief}]"
