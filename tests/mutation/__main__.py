"""`python -m tests.mutation [SET] [NAME …] [--into PAGE]`: is what is wrong found, and nothing
that is right?

The set "faults" puts each fault into a copy of statekit and runs the finders on it: checks and the
protocol's state machine. A copy without a fault is run first: if something is found there, nothing
can be said of others. The sets "wrong" and "right" check functions of users. Finders are programs
that run in a process of their own and fail if they find something.
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
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from statekit.testing.effort import INPUTS, Depth
from tests.mutation.cases import Case
from tests.mutation.more_mutants import MORE
from tests.mutation.mutants import MUTANTS, Mutant
from tests.mutation.right_functions import RIGHT
from tests.mutation.wrong_memory import WRONG as WRONG_MEMORY
from tests.mutation.wrong_results import WRONG as WRONG_RESULTS
from tests.support.places import ROOT

LIMIT_S = 900

_NONE = "none"

SETS = {"faults": "fault", "wrong": "what is wrong", "right": "what is right"}
"""The sets, each with the title of its column."""


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


def outcome_of(mutant: Mutant | None, subjects: Sequence[str], depths: Sequence[Depth]) -> Outcome:
    """Run the finders on a copy of statekit with a fault; None for the code as it is.

    Parameters:
        subjects: that are checked; none for those of all faults, and then for state machines.
        depths: of the checks: what is found with few histories needs no more.
    """
    with tempfile.TemporaryDirectory(prefix="statekit-mutant-") as place:
        site = Path(place)
        shutil.copytree(ROOT / "statekit", site / "statekit")
        for name in ("tests", "pyproject.toml"):
            (site / name).symlink_to(ROOT / name)
        if mutant is not None:
            mutant.put_into(site / "statekit")
        name, what = (_NONE, "no fault") if mutant is None else (mutant.name, mutant.what)
        began = time.perf_counter()
        finders = [("check", "tests.mutation.subjects", (depth, *subjects)) for depth in depths]
        if not subjects:
            finders.append(("state machine", "tests.mutation.machines", ()))
        for finder, module, arguments in finders:
            found = _found(module, site, *arguments)
            if found is not None:
                told = found if found.startswith(finder) else f"{finder}: {found}"
                return Outcome(name, what, told, time.perf_counter() - began)
        return Outcome(name, what, None, time.perf_counter() - began)


def _found(module: str, site: Path, *arguments: str) -> str | None:
    """Return what a finder says; None if it finds nothing.

    Parameters:
        site: a directory with statekit.
        arguments: of the finder.
    """
    directory = os.environ.get("TMPDIR", tempfile.gettempdir()) if site == ROOT else str(site)
    try:
        ran = subprocess.run(
            [sys.executable, "-m", module, *arguments],
            cwd=site,
            env={**os.environ, "PYTHONPATH": str(site), "TMPDIR": directory},
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


def outcome_of_case(case: Case, depths: Sequence[Depth]) -> Outcome:
    """Check a function of a user in a process of its own, until something is found.

    Parameters:
        depths: of the checks: what is found with few histories needs no more.
    """
    began = time.perf_counter()
    found = None
    for depth in depths:
        found = found or _found("tests.mutation.checked", ROOT, case.name, depth)
    return Outcome(case.name, case.what, found, time.perf_counter() - began)


def _runs(of: str, depths: Sequence[Depth]) -> dict[str, tuple[str, Callable[[], Outcome]]]:
    """Return what is run for a set, by name, each with what it is."""
    if of == "faults":
        return {
            each.name: (each.what, partial(outcome_of, each, each.subjects, depths))
            for each in (*MUTANTS, *MORE)
        }
    cases = RIGHT if of == "right" else [*WRONG_MEMORY, *WRONG_RESULTS]
    return {each.name: (each.what, partial(outcome_of_case, each, depths)) for each in cases}


def main() -> None:
    """Run what was asked for, or all of a set, and print a table of what was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation")
    parser.add_argument("of", nargs="?", default="faults", choices=SETS, metavar="SET")
    parser.add_argument("names", nargs="*", metavar="NAME", help="which; all of them if none")
    parser.add_argument("--into", type=Path, help="a page with a place for the table")
    parser.add_argument("--at-once", type=int, default=1, help="how many run beside each other")
    parser.add_argument("--depth", choices=INPUTS, help="of checks of functions")
    given = parser.parse_args()
    depths: Sequence[Depth] = (given.depth,) if given.depth else ("quick", "normal")
    runs = _runs(given.of, depths)
    started = [runs[name][1] for name in given.names or runs]
    if given.of == "faults":
        chosen = [each for each in (*MUTANTS, *MORE) if each.name in (given.names or runs)]
        subjects = {each.subjects for each in chosen}
        started[:0] = [partial(outcome_of, None, each, depths) for each in sorted(subjects)]
    outcomes: list[Outcome] = []
    with ThreadPoolExecutor(given.at_once) as threads:
        running = [threads.submit(run) for run in started]
        for ended in as_completed(running):
            outcome = ended.result()
            outcomes.append(outcome)
            print(f"{outcome.name}: {outcome.found_by} ({outcome.seconds:.0f} s)", flush=True)
            if outcome.name == _NONE and outcome.found_by is not None:
                threads.shutdown(cancel_futures=True)
                sys.exit(f"without a fault, too: {outcome.found_by}. Nothing is known of the rest")
            if given.into is not None:
                order = [what for what, _ in runs.values()]
                page = given.into.read_text()
                given.into.write_text(_with_table(page, given.of, order, outcome))
    table = Table("what", "found by", "seconds")
    for outcome in outcomes:
        table.add_row(outcome.what, outcome.found_by or "NOTHING", f"{outcome.seconds:.0f}")
    Console().print(table)


def _with_table(page: str, of: str, order: Sequence[str], outcome: Outcome) -> str:
    """Return a page with an outcome in the table of its set. Those of others stay.

    Parameters:
        of: the set.
        order: of the rows.
    """
    begin, end = f"<!-- {of} -->", f"<!-- /{of} -->"
    before, _, rest = page.partition(begin)
    there, _, after = rest.partition(end)
    rows = {line.split("|")[1].strip(): line for line in there.splitlines() if line[:2] == "| "}
    found_by = outcome.found_by or "nothing"
    rows[outcome.what] = f"| {outcome.what} | {found_by} | {outcome.seconds:.0f} |"
    ordered = [rows[what] for what in order if what in rows]
    table = "\n".join([f"| {SETS[of]} | found by | seconds |", "|---|---|---|", *ordered])
    return f"{before}{begin}\n{table}\n{end}{after}"


if __name__ == "__main__":
    main()
