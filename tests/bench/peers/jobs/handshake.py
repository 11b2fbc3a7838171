"""How a job talks to what measures it, and the little that all jobs need.

What lives here: the two words, reading events, and adding up files. What does not: the other side
(`tests.bench.peers.processes`).
"""

from __future__ import annotations

import json
import sys
from array import array
from pathlib import Path

__all__ = ["DONE", "READY", "bytes_in", "columns", "done", "ready"]

READY, DONE = "job is ready: ", "job is done: "


def ready() -> None:
    """Say that what follows counts, and wait until it is awaited."""
    _say(READY, {})


def done(*, check: int, of: str, written: int) -> None:
    """Say what came out, and wait until that was looked at.

    Parameters:
        check: the sums that were emitted, added up.
        of: what: `events` where there is one for each, `keys` for the last one of each key, and
            `nothing` if outputs go nowhere.
        written: the bytes left on the disk.
    """
    _say(DONE, {"check": check, "of": of, "written": written})


def _say(word: str, told: dict[str, object]) -> None:
    print(word + json.dumps(told), flush=True)
    sys.stdin.readline()


def columns(home: Path, *names: str) -> list[list[int]]:
    """Columns of the events."""
    found = []
    for name in names:
        column = array("q")
        column.frombytes((home / f"{name}.i64").read_bytes())
        found.append(column.tolist())
    return found


def bytes_in(*directories: Path) -> int:
    """What the files of directories take."""
    return sum(
        path.stat().st_size
        for directory in directories
        for path in directory.rglob("*")
        if path.is_file()
    )
