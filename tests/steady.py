"""`python -m tests.steady [--times 20] [--busy 4]`: run the fast tests again and again, beside
processes that keep all cores busy. The first run with a failure ends it.

A test that passes alone and fails here waits for something other than what it looks at.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.places import ROOT

_FAST = ("-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", "-m", "not slow")


def main() -> int:
    """Run the tests, and return the exit code of the last run."""
    parser = argparse.ArgumentParser(description="Run the fast tests beside busy processes.")
    parser.add_argument("--times", type=int, default=20, help="how many runs")
    parser.add_argument("--busy", type=int, default=4, help="how many busy processes")
    parser.add_argument("tests", nargs="*", help="files or tests; all fast ones if none")
    given = parser.parse_args()
    code = 0
    with _busy_processes(given.busy):
        for number in range(1, given.times + 1):
            print(f"run {number} of {given.times}", flush=True)
            code = subprocess.run([sys.executable, *_FAST, *given.tests], cwd=ROOT).returncode
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
