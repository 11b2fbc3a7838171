"""Processes to be killed: started warm, so that tests may start many of them.

They are forked from a server that imported statekit and opened nothing: neither RocksDB nor the
object store survive a fork.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from multiprocessing.synchronize import Barrier

__all__ = ["as_nobody", "barrier", "die", "exit_code", "pipe", "start"]

NOBODY = 65534

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["pytest", "hypothesis.stateful", "tests.tally"])


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
    process.join(60)
    return process.exitcode


def die() -> None:
    """End this process as a power switch would."""
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)


def as_nobody(check: Callable[..., object], *args: object) -> None:
    """Run a check without the rights of root. For use as a target."""
    if os.geteuid() == 0:
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    check(*args)
