"""`statekit demo`: run the demo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from statekit.optional_packages import check_installed


def demo(
    directory: Annotated[
        Path, typer.Option(help="Where input, checkpoint and results go; emptied first.")
    ] = Path("demo-data"),
    serve: Annotated[
        bool, typer.Option("--serve", help="Play the flights and serve the state, until Ctrl-C.")
    ] = False,
    pace: Annotated[
        float, typer.Option(min=0.01, max=100, help="With --serve: days of flights per second.")
    ] = 1.0,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="With --serve: the port of the server.")
    ] = 8321,
) -> None:
    """Run a job of four operators over the flights of 2013, kill it half-way, and check the result.

    With --serve, play the flights like a live stream, and show their state in the dashboard.

    Needs the extra `demo` (pip install 'statekit\\[demo]') and Java 17 or newer.
    """
    check_installed("the demo", "pyspark", "demo")
    from statekit.demo import play, run_demo

    if serve:
        check_installed("--serve", "starlette", "demo")
        play(directory, pace, port)
        return
    if not run_demo(directory):
        raise typer.Exit(1)
