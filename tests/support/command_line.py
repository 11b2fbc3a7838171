"""Run the command line as a user does: in a process of its own, which is started warm."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.killable_processes import start
from tests.support.timeouts import PATIENCE_S

__all__ = ["output_of", "statekit"]

ROOT = Path(__file__).parents[2]


def statekit(
    *words: object,
    columns: int = 160,
    env: dict[str, str] | None = None,
    cwd: Path = ROOT,
    timeout: float = PATIENCE_S,
) -> subprocess.CompletedProcess[str]:
    """Run `statekit WORDS…` and return its exit code and what it printed.

    The process is forked from one that has imported the library, and imports the commands itself:
    a cold start takes a second of a core.

    Parameters:
        columns: the width of the terminal.
        env: variables of its environment beside those of this process.
        cwd: its working directory, from which it can import modules.
    """
    given = [str(word) for word in words]
    variables = {**os.environ, "COLUMNS": str(columns), "LANG": "C.UTF-8", **(env or {})}
    with tempfile.TemporaryDirectory() as directory:
        printed = [Path(directory, name) for name in ("out", "err")]
        process = start(_run, given, variables, str(cwd), [str(path) for path in printed])
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            raise subprocess.TimeoutExpired(given, timeout)
        out, err = (path.read_text() for path in printed)
    return subprocess.CompletedProcess(given, process.exitcode, out, err)


def _run(words: list[str], variables: dict[str, str], cwd: str, printed: list[str]) -> None:
    for descriptor, path in zip((1, 2), printed, strict=True):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(cwd)
    sys.path.insert(0, cwd)
    sys.argv = ["statekit", *words]

    from statekit.cli import main  # it reads the width of the terminal when it is imported

    main()


def output_of(program: str, *words: str, cwd: Path | None = None, path: Path | None = None) -> str:
    """Run a program, which succeeds, and return its output.

    Parameters:
        program: such as an interpreter of Python.
        cwd: its working directory.
        path: the directory from which Python can import modules; None for none but its own.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if os.path.isabs(program):  # workers of Spark run what is first on the path
        environment["PATH"] = os.pathsep.join((str(Path(program).parent), environment["PATH"]))
    done = subprocess.run(
        [program, *words],
        cwd=cwd,
        env=environment | ({} if path is None else {"PYTHONPATH": str(path)}),
        capture_output=True,
        text=True,
        check=False,
        timeout=800,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
