"""The demo's console output: three drivers, one of them killed, then tables."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from statekit.demo.check import Comparison
from statekit.demo.flights import FILES, build_job, raw_csv, write_input
from statekit.errors import StatekitError

SHARDS = (2, 4, 3)
"""The parallelism of each driver."""

STOP_AFTER = 2
KILL_AFTER = 2
MID_EPOCH_S = 0.8

_console = Console()
_MARK = ".statekit-demo"


def run(home: Path) -> bool:
    """Run the whole demo in a directory. Return whether all results agreed."""
    _empty(home)
    csv = raw_csv(home)
    flights, behind = write_input(csv, home / "input")
    _console.print(
        f"[bold]{flights:,} flights of 2013[/] arrive by schedule, in {FILES} epochs; {behind:.1%} "
        "of them actually left before a flight that arrived earlier\n"
    )
    _console.print(Text(str(build_job())), soft_wrap=True)
    _console.print()
    with _bar() as bar:
        task = bar.add_task("starting Spark", total=flights)
        first, second, third = SHARDS
        _follow(bar, task, home, f"{first} shards, to be stopped", first, epochs=STOP_AFTER)
        _follow(bar, task, home, f"{second} shards, to be killed", second, kill_after=KILL_AFTER)
        _follow(bar, task, home, f"{third} shards, to the end", third)
    _console.print("asking the raw file the same questions …", style="dim")
    with _driver(home, "results", str(home)) as driver:
        results = next(_facts(driver), None)
    if results is None:
        raise StatekitError(f"the check did not end: see {home / 'driver.log'}")
    _print_airports(results["airports"])
    comparisons = [Comparison(**comparison) for comparison in results["comparisons"]]
    _print_comparisons(comparisons)
    _inspect(home)
    return all(comparison.agrees for comparison in comparisons)


def _empty(home: Path) -> None:
    """Create the directory, or empty it if a demo created it; never any other directory."""
    if home.exists() and any(home.iterdir()):
        if not (home / _MARK).is_file():
            raise StatekitError(
                f"{home} is not empty and was not made by the demo: choose another --directory"
            )
        shutil.rmtree(home)
    home.mkdir(parents=True, exist_ok=True)
    (home / _MARK).touch()


def _follow(
    bar: Progress,
    task: Any,
    home: Path,
    title: str,
    shards: int,
    *,
    epochs: int | None = None,
    kill_after: int | None = None,
) -> None:
    """Run one driver and show its epochs; kill it with SIGKILL after some of them.

    Parameters:
        shards: its parallelism, another one than that of the driver before.
    """
    bar.update(task, description=f"{title}: starting Spark")
    killed = False
    words = [str(shards), *([str(epochs)] if epochs else [])]
    with _driver(home, "stream", str(home), *words) as driver:
        for number, facts in enumerate(_facts(driver), 1):
            bar.update(task, advance=facts["records"], description=title)
            bar.console.print(
                f"  epoch {facts['epoch']:>2}  {facts['shards']} shards  "
                f"{facts['records']:>7,} flights  "
                f"{facts['seconds']:5.1f} s  {facts['rate']:>8,.0f} flights/s  "
                f"{facts['rows']:>8,} rows of state  watermark {facts['watermark']}",
                highlight=False,
            )
            if kill_after is not None and number == kill_after:
                time.sleep(MID_EPOCH_S)
                os.killpg(driver.pid, signal.SIGKILL)  # Python and the JVM: the whole driver
                killed = True
        code = driver.wait()
    if killed:
        bar.console.print("  [bold red]driver killed with SIGKILL[/] in the middle of an epoch")
    elif code != 0:
        raise StatekitError(f"the driver ended with code {code}: see {home / 'driver.log'}")
    else:
        bar.console.print("  driver stopped" if epochs else "  input is at its end")


def _driver(home: Path, *words: str) -> subprocess.Popen[bytes]:
    """Start a driver in a process group of its own. Spark's log goes to `driver.log`."""
    with (home / "driver.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "statekit.demo.driver", *words],
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )


def _facts(driver: subprocess.Popen[bytes]) -> Iterator[dict[str, Any]]:
    assert driver.stdout is not None
    with driver.stdout as lines:
        for line in lines:
            if line.startswith(b"{"):
                yield json.loads(line)


def _bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=_console,
    )


def _print_airports(rows: list[tuple[str, int, float, float]]) -> None:
    table = Table(title="turnarounds per airport", title_justify="left")
    for heading in ("airport", "turnarounds", "mean hours", "longest hours"):
        table.add_column(heading, justify="left" if heading == "airport" else "right")
    for airport, turnarounds, mean, longest in rows:
        table.add_row(airport, f"{turnarounds:,}", f"{mean:,.1f}", f"{longest:,.1f}")
    _console.print()
    _console.print(table)


def _print_comparisons(comparisons: list[Comparison]) -> None:
    table = Table(title="compared with plain SQL on the raw file", title_justify="left")
    for heading in ("question", "streaming job", "batch SQL", ""):
        table.add_column(heading, overflow="fold")
    for item in comparisons:
        verdict = "[green]same[/]" if item.agrees else "[bold red]DIFFERENT[/]"
        table.add_row(item.question, _text(item.job), _text(item.batch), verdict)
    _console.print()
    _console.print(table)
    if all(item.agrees for item in comparisons):
        _console.print(
            "[bold green]nothing was lost, nothing was counted twice[/], with "
            f"{' → '.join(map(str, SHARDS))} shards"
        )


def _text(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(f"{name} {count:,}" for name, count in value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return f"{value:,}" if isinstance(value, int | float) else str(value)


def _inspect(home: Path) -> None:
    """Show the state with the command line."""
    for words in (
        ["inspect", str(home / "checkpoint")],
        ["get", str(home / "checkpoint"), "turnaround", "visits", "N14228"],
    ):
        _console.print(f"\n[bold]$ statekit {' '.join(words)}[/]", highlight=False)
        subprocess.run([sys.executable, "-m", "statekit.cli", *words], check=True)
