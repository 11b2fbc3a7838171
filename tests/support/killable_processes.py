"""Processes to be killed: started warm, so that tests may start many of them.

They are forked from a server that imported statekit and opened nothing: neither RocksDB nor the
object store survive a fork.
"""

from __future__ import annotations

import functools
import itertools
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.support.timeouts import PATIENCE_S

__all__ = [
    "RandomKills",
    "as_nobody",
    "barrier",
    "die",
    "die_at",
    "die_before",
    "exit_code",
    "kills",
    "open_to_all",
    "pipe",
    "preload",
    "start",
]

NOBODY = 65534

_context = multiprocessing.get_context("forkserver")
_PRELOADED = [
    "pytest",
    "hypothesis.stateful",
    "tests.support.counting_job",
    "tests.support.history_job",
    # What commands import; the commands themselves read the environment when they are imported.
    "rich.progress",
    "rich.table",
    "statekit.maintenance.diff.compare",
    "statekit.maintenance.migrate",
    "statekit.maintenance.savepoint.write",
    "statekit.maintenance.transform.declaration",
    "statekit.maintenance.verify.verify",
    "statekit.query.tables.export",
    "statekit.query.replica.replica",
    "typer",
]
_context.set_forkserver_preload(_PRELOADED)


def preload(*modules: str) -> None:
    """Have the server import modules, too, if it was not started yet. They open nothing."""
    _PRELOADED.extend(modules)
    _context.set_forkserver_preload(_PRELOADED)


def pipe() -> tuple[Connection, Connection]:
    """Two ends of a connection, one of them to be given to a process."""
    return _context.Pipe()


def barrier(parties: int) -> Barrier:
    """For processes to wait for each other at."""
    return _context.Barrier(parties)


def start(target: Callable[..., object], *args: object) -> ForkServerProcess:
    """A process that runs a function of a test module."""
    process = _context.Process(target=target, args=args, daemon=True)
    process.start()
    return process


def exit_code(target: Callable[..., object], *args: object) -> int | None:
    """Run a function in a process of its own; 0 if it returned, -9 if it was killed."""
    process = start(target, *args)
    process.join(PATIENCE_S)
    return process.exitcode


def die() -> None:
    """End this process as a power switch would."""
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)


def die_at(owner: Any, name: str, *, before: bool, call: int = 1) -> None:
    """End this process before or after some call of a function.

    Parameters:
        name: where the function is in its owner, with dots.
        call: which call of it, counted from 1.
    """
    *path, function = name.split(".")
    for part in path:
        owner = getattr(owner, part)
    inner, numbers = getattr(owner, function), itertools.count(1)

    @functools.wraps(inner)
    def counted(*args: Any, **given: Any) -> Any:
        this = next(numbers)  # several threads may call it
        if before and this == call:
            die()
        result = inner(*args, **given)
        if this == call:
            die()
        return result

    setattr(owner, function, counted)


def die_before(number: int, *functions: tuple[Any, str]) -> None:
    """End this process before that call, counted from 0, of any of several functions, each given
    with its owner.
    """
    left = [number]

    def armed(inner: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(inner)
        def counted(*args: Any, **given: Any) -> object:
            if not left[0]:
                die()
            left[0] -= 1
            return inner(*args, **given)

        return counted

    for owner, name in functions:
        setattr(owner, name, armed(getattr(owner, name)))


def kills(target: Callable[..., object], *args: object) -> Iterator[int]:
    """Run a function that dies before the nth of what it does, for each n; ends when it survived.

    Parameters:
        args: come before the number.
    """
    for number in range(100):
        code = exit_code(target, *args, number)
        yield number
        if code == 0:
            return
        assert code == -signal.SIGKILL
    raise AssertionError("it never ended")


class RandomKills:
    """Runs functions in processes of their own, and kills these at random times.

    Parameters:
        count: how many to kill.

    Attributes:
        left: how many are left.
    """

    def __init__(self, count: int) -> None:
        self.left = count
        self._chosen = random.Random(count)
        self._took_s: float | None = None
        self._is_new = True

    def survives(self, target: Callable[..., object], *args: object) -> bool:
        """Run a function, and return whether it ended before it was killed. The first one is not
        killed. Runs that follow one that ended tell how long a run takes.
        """
        begun = time.perf_counter()
        process = start(target, *args)
        limit = PATIENCE_S
        if self._took_s is not None and self.left:
            limit = self._chosen.uniform(0, self._took_s)
        process.join(limit)
        process.kill()
        process.join()
        is_new, self._is_new = self._is_new, process.exitcode == 0
        if process.exitcode == -signal.SIGKILL:
            assert self._took_s is not None, "the first run never ended"
            self.left -= 1
            return False
        assert process.exitcode == 0
        if is_new:
            took_s = time.perf_counter() - begun
            self._took_s = min(took_s, self._took_s or took_s)
        return True


def open_to_all(path: Path) -> None:
    """Let others pass through the directories that pytest keeps to their owner."""
    for directory in (path, *path.parents):
        if directory == Path(tempfile.gettempdir()):
            return
        directory.chmod(0o755)


def as_nobody(check: Callable[..., object], *args: object) -> None:
    """Run a check without the rights of root. For use as a target."""
    if os.geteuid() == 0:
        pa.array([])  # it looks for pandas, as long as this process may read all of that
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    check(*args)
