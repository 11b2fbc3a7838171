"""The demo's console output: three drivers, one of them killed, then tables."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from statekit.demo.check import ComparedAnswers
from statekit.demo.flights import FILES, build_job, raw_csv, write_input
from statekit.errors import StatekitError

_DRIVERS = {2: "to be stopped", 4: "to be killed", 3: "to the end"}
"""The parallelism of each driver, and how the driver ends."""

_EPOCHS = 2
"""A driver is stopped, or killed, after so many epochs."""

_MID_EPOCH_S = 0.8

_ABOUT = """\
A streaming job follows each aircraft that left New York in 2013, in the order in which it flew:
how long until it left again, how late, from which airport, and whether it was not seen for a day.
What the job remembers of an aircraft is its state, which has to outlive whatever happens. So the
job runs in 2 parts (shards) and is stopped, goes on in 4 and is killed in the middle, and goes on
in 3. In the end its results are compared with plain SQL over the raw file.
"""

_NEXT = """\
What to try next:
  statekit demo --serve          the same flights as a live stream, with pages in your browser
  docs/start/tutorial.md         ten minutes: a job of your own, killed, rescaled, served
  examples/README.md             ten programs to copy from
"""

_console = Console()
_MARK = ".statekit-demo"


def run_demo(home: Path) -> bool:
    """Run the whole demo in a directory. Return whether all results agreed."""
    empty(home)
    _console.print(_ABOUT, highlight=False)
    with contextlib.ExitStack() as started:
        results = _streamed(
            home, (started.enter_context(_stream_driver(home, shards)) for shards in _DRIVERS)
        )
    rows = [
        (airport, f"{turnarounds:,}", f"{mean:,.1f}", f"{longest:,.1f}")
        for airport, turnarounds, mean, longest in results["airports"]
    ]
    headings = "airport", "turnarounds", "mean hours", "longest hours"
    _print_table("turnarounds per airport", headings, rows)
    comparisons = [ComparedAnswers(*comparison) for comparison in results["comparisons"]]
    _print_comparisons(comparisons)
    _inspect(home)
    _console.print(f"\n{_NEXT}", highlight=False)
    return all(comparison.agrees for comparison in comparisons)


def _streamed(home: Path, drivers: Iterator[subprocess.Popen[bytes]]) -> dict[str, Any]:
    """Write the input, run one driver after the other, and return the results of the last one.

    Parameters:
        drivers: starts a driver each time. A driver starts Spark before its turn: the first one
            while the input is written, each other while the driver before it ends.
    """
    waiting = [next(drivers)]
    csv = raw_csv(home)
    flights, behind = write_input(csv, home / "input")
    _console.print(
        f"[bold]{flights:,} flights of 2013[/] arrive by schedule, in {FILES} epochs; {behind:.1%} "
        "of them actually left before a flight that arrived earlier\n"
    )
    _console.print(Text(str(build_job())), soft_wrap=True)
    _console.print()
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, TimeElapsedColumn(), console=_console) as bar:
        task = bar.add_task("starting Spark", total=flights)
        results: dict[str, Any] = {}
        for shards, ending in _DRIVERS.items():
            bar.update(task, description=f"{shards} shards, {ending}: starting Spark")
            driver = waiting.pop()
            _begin(driver)
            results = _follow(
                bar, task, driver, shards, ending, lambda: waiting.extend(islice(drivers, 1))
            )
            if ending == "to be killed" and driver.returncode == -signal.SIGKILL:
                bar.console.print(
                    "  [bold red]driver killed with SIGKILL[/] in the middle of an epoch"
                )
            elif driver.returncode != 0:
                raise StatekitError(
                    f"the driver ended with code {driver.returncode}: see {home / 'driver.log'}"
                )
            elif ending == "to be stopped":
                bar.console.print("  driver stopped")
    return results


def empty(home: Path) -> None:
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
    driver: subprocess.Popen[bytes],
    shards: int,
    ending: str,
    start_next: Callable[[], None],
) -> dict[str, Any]:
    """Show the epochs of a driver; end it as `_DRIVERS` says.

    Parameters:
        shards: its parallelism, another one than that of the driver before.
        start_next: called when the driver is about to end.

    Returns:
        The results and their check, which the driver prints at the end of the input.
    """
    results: dict[str, Any] = {}
    for number, facts in enumerate(driver_facts(driver), 1):
        if "epoch" in facts:
            bar.update(task, advance=facts["records"], description=f"{shards} shards, {ending}")
            _print_epoch(bar.console, facts)
        elif "ends" in facts:
            bar.console.print("  input is at its end")
            bar.update(task, description="asking the raw file the same questions")
        else:
            results = facts
        if ending != "to the end" and number == _EPOCHS:
            start_next()
        if ending == "to be killed" and number == _EPOCHS:
            time.sleep(_MID_EPOCH_S)
            os.killpg(driver.pid, signal.SIGKILL)  # Python and the JVM: the whole driver
    driver.wait()
    return results


def _print_epoch(console: Console, facts: dict[str, Any]) -> None:
    console.print(
        f"  epoch {facts['epoch']:>2}  {facts['shards']} shards  {facts['records']:>7,} flights  "
        f"{facts['seconds']:5.1f} s  {facts['rate']:>6,.0f}/s  {facts['rows']:>7,} rows of state  "
        f"time {facts['watermark']}",
        highlight=False,
    )


def start_driver(home: Path, *words: str) -> subprocess.Popen[bytes]:
    """Start a driver in a process group of its own. Spark's log goes to `driver.log`."""
    with (home / "driver.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "statekit.demo.driver", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )


def _stream_driver(home: Path, shards: int) -> subprocess.Popen[bytes]:
    """Start a driver that waits for `_begin` before it streams, and ends if its input is closed."""
    stop_after = [str(_EPOCHS)] if _DRIVERS[shards] == "to be stopped" else []
    return start_driver(home, "stream", str(home), str(shards), *stop_after)


def _begin(driver: subprocess.Popen[bytes]) -> None:
    """Let a driver stream."""
    assert driver.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it has ended, which its code tells
        driver.stdin.write(b"\n")
        driver.stdin.flush()


def driver_facts(driver: subprocess.Popen[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the JSON lines that a driver prints, as dicts."""
    assert driver.stdout is not None
    with driver.stdout as lines:
        for line in lines:
            if line.startswith(b"{"):
                yield json.loads(line)


def _print_table(title: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table whose columns are flush right, except the first."""
    table = Table(title=title, title_justify="left")
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="right" if place else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    _console.print()
    _console.print(table)


def _print_comparisons(comparisons: list[ComparedAnswers]) -> None:
    rows = []
    for item in comparisons:
        verdict = "[green]same[/]" if item.agrees else "[bold red]DIFFERENT[/]"
        rows.append((item.question, f"{item.job:,.0f}", f"{item.batch:,.0f}", verdict))
    headings = "question", "streaming job", "batch SQL", ""
    _print_table("compared with plain SQL on the raw file", headings, rows)
    if all(item.agrees for item in comparisons):
        _console.print(
            "[bold green]nothing was lost, nothing was counted twice[/], with "
            f"{' → '.join(map(str, _DRIVERS))} shards"
        )


def _inspect(home: Path) -> None:
    """Show the state with the command line."""
    for words in (
        ["inspect", str(home / "checkpoint")],
        ["get", str(home / "checkpoint"), "turnaround", "visits", "N14228"],
    ):
        _console.print(f"\n[bold]$ statekit {' '.join(words)}[/]", highlight=False)
        subprocess.run([sys.executable, "-m", "statekit.cli", *words], check=True)
