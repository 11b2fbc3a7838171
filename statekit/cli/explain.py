"""`statekit explain` and `statekit draw`: show the plan of a job."""

from __future__ import annotations

from typing import Annotated

import typer

from statekit.cli.arguments import JobName
from statekit.cli.declared_jobs import declared_job
from statekit.job.diagram import mermaid_of, picture_of_plan


def explain_job(
    job: JobName,
    checkpoint: Annotated[
        str | None, typer.Option(help="Say what its last epoch took, too: directory or URL.")
    ] = None,
) -> None:
    """Print the reads, shuffles and calls of a job on Spark, with the reasons."""
    print(declared_job(job, (), None).explain(checkpoint))


def draw_job(
    job: JobName,
    svg: Annotated[
        bool,
        typer.Option("--svg/--mermaid", help="A picture, or a diagram of Mermaid for Markdown."),
    ] = False,
) -> None:
    """Draw the plan of a job: a diagram of Mermaid for Markdown pages, or a picture."""
    declared = declared_job(job, (), None)
    print(picture_of_plan(declared.plan).svg(is_file=True) if svg else mermaid_of(declared.plan))
