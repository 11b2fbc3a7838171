"""`python -m tests.mutation [NAME …] [--into PAGE]`: put each fault into a copy of statekit, and
see whether a check or the protocol's state machine finds it, and how long that takes.

A copy without a fault is run first: if something is found there, nothing can be said of others.
Finders are programs that run in a process of their own and fail if they find something.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.mutation.mutants import MUTANTS, Mutant
from tests.support.places import ROOT

FINDERS = {"check": "tests.mutation.subjects", "state machine": "tests.mutation.machines"}
"""Modules that are run one after the other until one finds the fault."""

LIMIT_S = 900

_NONE = "none"
_BEGIN, _END = "<!-- outcomes -->", "<!-- /outcomes -->"


@dataclass(frozen=True)
class Outcome:
    """What became of a fault.

    Parameters:
        name, what: of the fault.
        found_by: the finder and what it says; None if nothing found it.
        seconds: until it was found.
    """

    name: str
    what: str
    found_by: str | None
    seconds: float


def outcome_of(mutant: Mutant | None) -> Outcome:
    """Run the finders on a copy of statekit with a fault; None for the code as it is."""
    with tempfile.TemporaryDirectory(prefix="statekit-mutant-") as place:
        site = Path(place)
        shutil.copytree(ROOT / "statekit", site / "statekit")
        for name in ("tests", "pyproject.toml"):
            (site / name).symlink_to(ROOT / name)
        if mutant is not None:
            mutant.put_into(site / "statekit")
        name, what = (_NONE, "no fault") if mutant is None else (mutant.name, mutant.what)
        began = time.perf_counter()
        for finder, module in FINDERS.items():
            found = _found(module, site)
            if found is not None:
                told = found if found.startswith(finder) else f"{finder}: {found}"
                return Outcome(name, what, told, time.perf_counter() - began)
        return Outcome(name, what, None, time.perf_counter() - began)


def _found(module: str, site: Path) -> str | None:
    """Return what a finder says about a fault; None if it finds none."""
    try:
        ran = subprocess.run(
            [sys.executable, "-m", module],
            cwd=site,
            env={**os.environ, "PYTHONPATH": str(site), "TMPDIR": str(site)},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"it does not end within {LIMIT_S} s"
    if ran.returncode == 0:
        return None
    if ran.stdout.strip():
        return ran.stdout.splitlines()[-1]
    raised = re.findall(r"^(?:\w+\.)*(\w+Error)\b", ran.stderr, re.MULTILINE)
    return f"an error, {raised[-1]}" if raised else "the process ends"


def main() -> None:
    """Run the faults that were asked for, or all, and print a table of what found them."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation")
    parser.add_argument("names", nargs="*", metavar="NAME", help="which; all of them if none")
    parser.add_argument("--into", type=Path, help="a page with a place for the table")
    parser.add_argument("--at-once", type=int, default=1, help="how many run beside each other")
    given = parser.parse_args()
    by_name: dict[str, Mutant | None] = {each.name: each for each in MUTANTS}
    chosen = [_NONE, *(given.names or by_name)]
    by_name[_NONE] = None
    outcomes: list[Outcome] = []
    with ThreadPoolExecutor(given.at_once) as threads:
        running = [threads.submit(outcome_of, by_name[name]) for name in chosen]
        for ended in as_completed(running):
            outcome = ended.result()
            outcomes.append(outcome)
            print(f"{outcome.name}: {outcome.found_by} ({outcome.seconds:.0f} s)", flush=True)
            if outcome.name == _NONE and outcome.found_by is not None:
                threads.shutdown(cancel_futures=True)
                sys.exit(f"without a fault, too: {outcome.found_by}. Nothing is known of the rest")
            if given.into is not None:
                given.into.write_text(_with_table(given.into.read_text(), [outcome]))
    table = Table("fault", "found by", "seconds")
    for outcome in outcomes:
        table.add_row(outcome.what, outcome.found_by or "NOTHING", f"{outcome.seconds:.0f}")
    Console().print(table)


def _with_table(page: str, outcomes: Iterable[Outcome]) -> str:
    """Return a page with these outcomes in its table. Those of other faults stay."""
    before, _, rest = page.partition(_BEGIN)
    there, _, after = rest.partition(_END)
    rows = {line.split("|")[1].strip(): line for line in there.splitlines() if line[:2] == "| "}
    for each in outcomes:
        found_by = each.found_by or "nothing"
        rows[each.what] = f"| {each.what} | {found_by} | {each.seconds:.0f} |"
    ordered = [rows[each.what] for each in MUTANTS if each.what in rows]
    table = "\n".join(["| fault | found by | seconds |", "|---|---|---|", *ordered])
    return f"{before}{_BEGIN}\n{table}\n{_END}{after}"


if __name__ == "__main__":
    main()
