"""`python -m tests.steady [--times 20] [--busy 4] COMMAND …`: run a command again and again, beside
processes that keep all cores busy. The first run that fails ends it.

A test that passes alone and fails here waits for something other than what it looks at.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


def main() -> int:
    """Run the command, and return the exit code of the last run."""
    parser = argparse.ArgumentParser(description="Run a command beside busy processes.")
    parser.add_argument("--times", type=int, default=20, help="how many runs")
    parser.add_argument("--busy", type=int, default=4, help="how many busy processes")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="such as pytest with its options")
    given = parser.parse_args()
    if not given.command:
        parser.error("give the command to run, such as: python -m pytest tests/unit")
    code = 0
    with _busy_processes(given.busy):
        for number in range(1, given.times + 1):
            print(f"run {number} of {given.times}", flush=True)
            code = subprocess.run(given.command).returncode
            if code:
                break
    return code


@contextmanager
def _busy_processes(count: int) -> Iterator[None]:
    """Keep as many cores busy meanwhile."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


if __name__ == "__main__":
    sys.exit(main())
