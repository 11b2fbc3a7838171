"""The bank of `transfers` and those who read it, as processes that are killed at random."""

from __future__ import annotations

import random
import time
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from statekit.checkpoint.repository import Repository
from statekit.checkpoint.rollback import plan
from statekit.errors import StatekitError
from tests.support.killable_processes import pipe, start
from tests.support.timeouts import PATIENCE_S


def started(target: object, home: Path, *args: object) -> ForkServerProcess:
    """Start a process, and wait until it has begun."""
    ready, sent = pipe()
    process = start(target, home, *args, sent)  # type: ignore[arg-type]
    assert ready.poll(PATIENCE_S), "it never began"
    return process


def kill(process: ForkServerProcess) -> None:
    process.kill()
    process.join(PATIENCE_S)


def wait_for_an_epoch(home: Path) -> None:
    end = time.monotonic() + PATIENCE_S
    while not list((home / "checkpoint" / "epochs").glob("*.json")):
        assert time.monotonic() < end, "no epoch was committed"
        time.sleep(0.05)


def roll_back(home: Path, chosen: random.Random) -> None:
    """Go back to one of the kept epochs, if the job has not begun another one."""
    repository = Repository(home / "checkpoint")
    epochs = repository.epochs()
    try:
        plan(repository, chosen.choice(epochs[:-1] or epochs)).carry_out()
    except StatekitError:
        return  # an epoch was begun before the kill: the job has to complete it first
