"""Arguments and options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

Checkpoint = Annotated[str, typer.Argument(help="Directory or URL of a checkpoint.")]
Epoch = Annotated[int | None, typer.Option(help="Look at this epoch instead of the last one.")]
AllowPickle = Annotated[
    bool,
    typer.Option("--allow-pickle", help="Unpickle; only for checkpoints that you trust like code."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what it would do.")]
