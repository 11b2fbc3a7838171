"""`statekit demo --serve`: play the year's flights at a chosen pace, and serve the job's state."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from statekit.demo.flights import flights_by_schedule, raw_csv
from statekit.demo.show import driver_facts, empty, start_driver
from statekit.errors import StatekitError

_FIRST = timedelta(days=7)
"""What has happened when the demo begins, so that there is something to see."""

_SHARDS = 4
_TICK_S = 1.0
_END_S = 15.0

_console = Console()


def play(home: Path, days_per_second: float, port: int) -> None:
    """Play the flights in a directory, and serve the state until Ctrl-C.

    Raises:
        StatekitError: the directory is not the demo's, or the job or the server ends.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    empty(home)
    flights = flights_by_schedule(raw_csv(home))
    (home / "input").mkdir()
    ends = threading.Event()
    with start_driver(home, "play", str(home), str(_SHARDS)) as driver:
        try:
            writer = threading.Thread(
                target=_write, args=(flights, home / "input", days_per_second, ends), daemon=True
            )
            writer.start()
            _show(home, driver, flights.num_rows, port)
        except KeyboardInterrupt:
            _console.print("stopped")
        finally:
            ends.set()
            os.killpg(driver.pid, signal.SIGKILL)  # Python and the JVM: the whole driver


def _write(
    flights: pa.Table, directory: Path, days_per_second: float, ends: threading.Event
) -> None:
    """Write the flights of each second of the play as a file."""
    departed = flights["departed"].cast(pa.int64()).combine_chunks()
    latest = pc.cumulative_max(departed)  # flights are in scheduled order
    until_us = latest[0].as_py() + _FIRST // timedelta(microseconds=1)
    step_us = int(days_per_second * _TICK_S * timedelta(days=1) / timedelta(microseconds=1))
    start = number = 0
    while start < flights.num_rows and not ends.wait(_TICK_S if number else 0):
        end = pc.sum(pc.less(latest, until_us)).as_py()
        if end > start:
            hidden = directory / f".flights-{number:05d}.parquet"  # Spark reads no hidden file
            pq.write_table(flights.slice(start, end - start), hidden)
            hidden.rename(directory / f"flights-{number:05d}.parquet")
            start, number = end, number + 1
        until_us += step_us


def _show(home: Path, driver: subprocess.Popen[bytes], flights: int, port: int) -> None:
    """Show the epochs of the driver. The server starts after the first one."""
    facts = driver_facts(driver)
    with _console.status("starting Spark …"):
        first = next(facts, None)
    if first is None:
        raise StatekitError(f"the job did not start: see {home / 'driver.log'}")
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[epoch]}")
    with (
        _server(home, port) as server,
        Progress(*columns, TimeElapsedColumn(), console=_console) as bar,
    ):
        task = bar.add_task("flights of 2013", total=flights, epoch="")
        for each in itertools.chain([first], facts):
            text = (
                f"epoch {each['epoch']}, {each['rows']:,} rows of state, watermark "
                f"{each['watermark']}"
            )
            bar.update(task, advance=each["records"], epoch=text)
            if server.poll() is not None:
                raise StatekitError("the server has ended: its last line says why")
    raise StatekitError(f"the job ended: see {home / 'driver.log'}")


@contextmanager
def _server(home: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Serve the checkpoint, and print the address."""
    command = [sys.executable, "-m", "statekit.cli", "serve", f"fleet={home / 'checkpoint'}"]
    with subprocess.Popen([*command, "--port", str(port), "--epochs", "100"]) as server:
        try:
            yield server
        finally:
            server.terminate()
            try:
                server.wait(_END_S)
            except subprocess.TimeoutExpired:
                server.kill()
