"""`statekit explain` and `statekit draw`: show the plan of a job."""

from __future__ import annotations

from typing import Annotated

import typer

from statekit.cli.arguments import JobName
from statekit.cli.run import declared_job
from statekit.job.diagram import mermaid_of


def explain_job(
    job: JobName,
    checkpoint: Annotated[
        str | None, typer.Option(help="Say what its last epoch took, too: directory or URL.")
    ] = None,
) -> None:
    """Print the reads, shuffles and calls of a job on Spark, with the reasons."""
    print(declared_job(job, (), None).explain(checkpoint))


def draw_job(job: JobName) -> None:
    """Draw the plan of a job, as a diagram of Mermaid for Markdown pages."""
    print(mermaid_of(declared_job(job, (), None)))
