"""`statekit check`: the findings about a job before it runs."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from statekit.checking.job_check import check_job
from statekit.cli.arguments import AllowDroppedState, AsJson, JobName, Modules, Settings
from statekit.cli.declared_jobs import declared_job
from statekit.cli.tables import count_text, out, print_json
from statekit.errors import StatekitError
from statekit.job.findings import JobFinding, failed_check

_STYLES = {"ok": "green", "warning": "yellow", "error": "bold red"}


def check_job_before(
    job: JobName,
    checkpoint: Annotated[
        str | None, typer.Option(help="Directory or URL of the checkpoint, if there is one.")
    ] = None,
    set_: Settings = None,
    spark: Annotated[bool, typer.Option("--spark", help="Whether it is to run on Spark.")] = False,
    allow_dropped_state: AllowDroppedState = False,
    offline: Annotated[
        bool, typer.Option("--offline", help="Connect to no source and no sink.")
    ] = False,
    limit: Annotated[
        float, typer.Option(help="How long a connection may take, in seconds.", min=0.1)
    ] = 10.0,
    module: Modules = None,
    as_json: AsJson = False,
) -> None:
    """Check a job before it runs: types, functions, checkpoint, sources and sinks.

    Nothing runs, and nothing is changed. The exit code is 1 if there are errors.
    """
    try:
        declared = declared_job(job, set_ or (), module)
    except StatekitError as error:
        findings = [failed_check(f"job {job}", error)]
    else:
        findings = check_job(
            declared.plan,
            {},
            {},
            checkpoint,
            spark=spark,
            allow_dropped_state=allow_dropped_state,
            connections=not offline,
            limit_s=limit,
            needs_targets=True,
        )
    if as_json:
        print_json([each._asdict() for each in findings])
    else:
        _print_findings(findings)
    if any(each.severity == "error" for each in findings):
        raise typer.Exit(1)


def _print_findings(findings: list[JobFinding]) -> None:
    for each in findings:
        first, *others = each.what.splitlines()
        line = Text(f"{each.severity:<8}", style=_STYLES[each.severity])
        out.print(line + Text(f"{each.where}: {first}", style="default"), soft_wrap=True)
        for other in others:
            out.print(Text(f"        {other}"), soft_wrap=True)
    errors, warnings = (
        sum(each.severity == severity for each in findings) for severity in ("error", "warning")
    )
    out.print(
        f"{count_text(errors, 'error', 'errors')}, {count_text(warnings, 'warning', 'warnings')}"
    )
