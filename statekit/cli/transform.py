"""`statekit transform`: write a new checkpoint, for a job with other keys or other operators."""

from __future__ import annotations

from typing import Annotated

import typer

from statekit.cli.arguments import AllowPickle, Checkpoint
from statekit.cli.tables import out, print_table, progress_bar, say
from statekit.clock import stopwatch_s
from statekit.errors import StateTypeError
from statekit.job.loader import load_attribute, load_job
from statekit.maintenance.transform.declaration import CheckpointTransform
from statekit.shown import shown


def transform_checkpoint(
    checkpoint: Checkpoint,
    application: Annotated[
        str, typer.Option("--app", help="The transform function: module:function.")
    ],
    into: Annotated[
        str, typer.Option(help="The new checkpoint: a directory or URL without files.")
    ],
    job: Annotated[
        str | None,
        typer.Option(
            help=(
                "The new job, as module:attribute. Needed for a function that is not decorated "
                "with @statekit.transform(job)."
            )
        ),
    ] = None,
    parallelism: Annotated[
        int | None, typer.Option(help="Shards per operator; the same number as before by default.")
    ] = None,
    epoch: Annotated[
        int | None, typer.Option(help="Transform this epoch instead of the last one.")
    ] = None,
    allow_pickle: AllowPickle = False,
) -> None:
    """Write a new checkpoint from the rows of an old one, with a function of yours.

    The old checkpoint does not change, and no job may run on it. The new one is complete and
    verified, or no job can start on it: after a kill, run the command again.
    """
    declared = load_transform(application, job)
    begun = stopwatch_s()
    with progress_bar("rows") as progress:
        result = declared.run(
            checkpoint,
            into,
            epoch=epoch,
            parallelism=parallelism,
            allow_pickle=allow_pickle,
            progress=progress,
        )
    rows = [(name, f"{count:,}") for name, count in result.rows.items()]
    print_table(("rows",), rows, texts=("operator.state",))
    if result.files:
        out.print(
            f"verified {result.files:,} files, {result.bytes:,} bytes; all in "
            f"{stopwatch_s() - begun:.2f} s"
        )
    manifest = result.manifest
    say(f"Committed {into} as epoch {manifest.epoch} of job {manifest.job!r}.")
    out.print("Start the new job with it: the job continues with the offsets of that epoch.")


def load_transform(text: str, job: str | None) -> CheckpointTransform:
    """Load the transform `module:function`.

    Parameters:
        job: the new job; None for that of a decorated function.

    Raises:
        StateTypeError: there is none, or the new job is not known.
    """
    loaded = load_attribute(text)
    if isinstance(loaded, CheckpointTransform):
        return loaded if job is None else CheckpointTransform(loaded.function, load_job(job))
    if not callable(loaded):
        raise StateTypeError(f"{text!r} is {shown(loaded, 100)}, and no function: name one")
    if job is None:
        raise StateTypeError(
            f"{text!r} does not say which job it is for: decorate it with "
            "@statekit.transform(job), or pass --job module:attribute"
        )
    return CheckpointTransform(loaded, load_job(job))
