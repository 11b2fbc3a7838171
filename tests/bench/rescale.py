"""What a change of parallelism costs: at restart and offline, against `cp` of the same files."""

from __future__ import annotations

import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from statekit.checkpoint.repository import Repository
from statekit.job.options import RunOptions
from statekit.keygroup import key_group, shard_of_group
from statekit.runtime.local import LocalRunner
from statekit.working_copy.copies import DiskCopies
from tests.bench.built import GROUPS, ROWS, Seen, apart, build, cloned, job
from tests.bench.report import COPIED, Arm, Row, statekit

RUNS = 3


def _restart(home: Path, shards: int) -> float:
    """Seconds from the start to the commit of an epoch with a record for every shard."""
    keys: dict[int, int] = {}
    number = 0
    while len(keys) < shards:
        keys.setdefault(shard_of_group(key_group(number, GROUPS), shards, GROUPS), number)
        number += 1
    records = [Seen(key, b"x") for key in keys.values()]
    begun = time.perf_counter()
    runner = LocalRunner(
        job().plan,
        Repository(home / "checkpoint"),
        DiskCopies(home / "local"),
        RunOptions(parallelism=shards),
    )
    runner.epoch({"seen": records})
    return time.perf_counter() - begun


def _offline(home: Path, shards: int) -> tuple[float, float, int]:
    """Seconds of the command, those of them after Python has started, and its peak KB."""
    code = (
        "import sys, resource; from statekit.cli import main; sys.argv[0] = 'statekit'\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    words = ["rescale", str(home / "checkpoint"), "--to", str(shards)]
    begun = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, check=True)
    seconds, told = time.perf_counter() - begun, done.stdout.decode()
    working = re.search(r"in ([\d.]+) s", told)
    assert working is not None, told
    return seconds, float(working[1]), int(told.split()[-1])


def _copied(source: Path, target: Path) -> float:
    begun = time.perf_counter()
    subprocess.run(["cp", "-r", source, target], check=True)
    seconds = time.perf_counter() - begun
    shutil.rmtree(target)
    return seconds


def _once(home: Path, scratch: Path, before: int, after: int) -> dict[str, float]:
    found = {
        "cp of copies": _copied(home / "local", scratch / "cp"),
        "cp of data": _copied(home / "checkpoint" / "data", scratch / "cp"),
    }
    for name, shards in (("unchanged", before), ("restart", after)):
        clone = cloned(home, scratch / "clone")
        found[name], kb = apart(_restart, clone, shards)
        found[f"{name} KB"] = kb
        shutil.rmtree(clone)
    clone = cloned(home, scratch / "clone")
    found["offline"], found["offline working"], found["offline KB"] = _offline(clone, after)
    shutil.rmtree(clone)
    return found


def rescaling() -> list[Row]:
    """4 → 8 and 8 → 4 shards."""
    table = []
    for before, after in ((4, 8), (8, 4)):
        with tempfile.TemporaryDirectory(prefix="statekit-bench-") as directory:
            home = Path(directory) / "built"
            build(home, ROWS, before)
            scratch = Path(directory) / "scratch"
            scratch.mkdir()
            _copied(home, scratch / "cp")  # so that no run is the first to read the files
            runs = [_once(home, scratch, before, after) for _ in range(RUNS)]
        table += _rows_of(before, after, runs)
    return table


def _rows_of(before: int, after: int, runs: list[dict[str, float]]) -> list[Row]:
    def median(of: Callable[[dict[str, float]], float]) -> float:
        return statistics.median(of(run) for run in runs)

    restart = median(lambda run: run["restart"] - run["unchanged"])
    memory = max(run[name] for run in runs for name in run if name.endswith("KB")) / 1024
    what = f"{ROWS:,} rows, {before} → {after} shards"
    return [
        Row(
            f"{what}: restart",
            f"{restart:+.3f} s over {median(lambda run: run['unchanged']):.3f} s unchanged, "
            f"cp {median(lambda run: run['cp of copies']):.3f} s, "
            f"{median(lambda r: (r['restart'] - r['unchanged']) / r['cp of copies']):.2f} of it",
            "≤ 2",
        ),
        Row(
            f"{what}: offline",
            f"{median(lambda run: run['offline']):.3f} s, "
            f"{median(lambda run: run['offline working']):.2f} s after Python has started, "
            f"cp {median(lambda run: run['cp of data']):.3f} s, "
            f"{median(lambda run: run['offline working'] / run['cp of data']):.2f} of it",
            "≤ 2",
            (
                statekit(median(lambda run: run["offline working"])),
                Arm("cp of the same files", median(lambda run: run["cp of data"]), COPIED),
            ),
            ratio=1 / median(lambda run: run["offline working"] / run["cp of data"]),
        ),
        Row(f"{what}: peak memory", f"{memory:.0f} MB", "< 1024 MB"),
    ]
