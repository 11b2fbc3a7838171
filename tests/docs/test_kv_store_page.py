"""The key-value store's pages are true: the flights on Spark, and what their commands print.

The other examples run in `test_readme`.
"""

from __future__ import annotations

import itertools
import os
import re
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from statekit.demo.flights import Flight
from tests.support.command_line import statekit
from tests.support.effort import SOAK
from tests.support.places import DOCS

PAGE = (DOCS / "guide" / "kv-store-examples.md").read_text()
RUNNING = (DOCS / "guide" / "kv-store-running.md").read_text()
EXAMPLES = re.findall(r"<!-- run -->\n```python\n(.*?)```", PAGE, re.DOTALL)
ON_SPARK = re.findall(r"<!-- run on spark -->\n```python\n(.*?)```", PAGE, re.DOTALL)
FILES = 2
"""Of the six files of flights."""

AIRCRAFT = ".*" if SOAK else "N[12]"
"""How the tail numbers of the aircraft begin whose flights are looked at: those of a fifth."""


def run(*examples: str, **given: Any) -> dict[str, Any]:
    names = {"__name__": "page", **given}
    for example in examples:
        exec(compile(example, "kv-store.md", "exec", dont_inherit=True), names)
    return names


@pytest.fixture(autouse=True)
def _in_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
@pytest.mark.spark
def test_delayed_flights_find_where_their_aircraft_came_from(spark: Any) -> None:
    write, stream = ON_SPARK
    names = run(*EXAMPLES, write, spark=spark)
    paths = sorted(Path("input").iterdir())
    for path in paths[:FILES]:
        _keep_some(path)
    for path in paths[FILES:]:
        path.unlink()
    delayed = names["delayed"]
    run(stream, **names)

    answers = pq.read_table("came_from").to_pylist()
    found = [(Flight(**row["record"]), _flight(row["value"])) for row in answers]
    expected = came_from(flights(), delayed)
    assert sorted(found, key=repr) == sorted(expected, key=repr)
    assert len(expected) > 1_000
    assert sum(1 for _, before in expected if before is None) > 20
    assert pq.read_table("late").num_rows == 0


def _keep_some(path: Path) -> None:
    """Leave the flights of some aircraft in a file, which keeps its place in time."""
    table, at = pq.read_table(path), path.stat()
    pq.write_table(table.filter(pc.match_substring_regex(table["tailnum"], f"^{AIRCRAFT}")), path)
    os.utime(path, ns=(at.st_atime_ns, at.st_mtime_ns))


def flights() -> list[Flight]:
    paths = sorted(Path("input").glob("*.parquet"))
    return [Flight(**row) for path in paths for row in pq.read_table(path).to_pylist()]


def came_from(given: list[Flight], delayed: Any) -> list[tuple[Flight, Flight | None]]:
    """Each delayed flight, with the flight before it of the same aircraft."""
    given.sort(key=lambda flight: (flight.tailnum, flight.departed))
    found: list[tuple[Flight, Flight | None]] = []
    for _, of_aircraft in itertools.groupby(given, key=lambda flight: flight.tailnum):
        before = None
        for flight in of_aircraft:
            assert before is None or before.departed < flight.departed, "no tie to be broken"
            if delayed(flight):
                found.append((flight, before))
            before = flight
    return found


def _flight(row: dict[str, Any] | None) -> Flight | None:
    return None if row is None else Flight(**row)


def test_the_commands_of_the_page_print_what_it_shows() -> None:
    run(*EXAMPLES)
    (block,) = re.findall(r"```\n(\$ statekit get bank.*?)```", RUNNING, re.DOTALL)
    for command in block.split("$ statekit ")[1:]:
        line, *shown = command.strip().splitlines()
        done = statekit(*line.split(), cwd=Path.cwd())
        assert done.returncode == 0
        printed = _words(done.stdout)
        for text in shown:
            is_of_this_run = "file://" in text or "committed" in text
            assert is_of_this_run or _words(text) in printed, text


def _words(text: str) -> str:
    """The text without line breaks, which depend on the width."""
    return " ".join(text.split())
