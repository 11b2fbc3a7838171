"""`statekit demo`: run the demo."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from statekit.errors import StatekitError


def demo(
    directory: Annotated[
        Path, typer.Option(help="Where input, checkpoint and results go; emptied first.")
    ] = Path("demo-data"),
) -> None:
    """Run a job of four operators over the flights of 2013, kill it half-way, and check the result.

    Needs the extra `demo` (pip install 'statekit\\[demo]') and Java 17 or newer.
    """
    if importlib.util.find_spec("pyspark") is None:
        raise StatekitError("the demo needs PySpark: pip install 'statekit[demo]'")
    from statekit.demo import run

    if not run(directory):
        raise typer.Exit(1)
