"""Views of a replica are consistent while the job and the replica are killed, rescaled and rolled
back.
"""

from __future__ import annotations

import os
import random
import time
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

from statekit.checkpoint.repository import Repository
from statekit.checkpoint.rollback import plan
from statekit.errors import StatekitError
from tests.support.killable_processes import pipe, start
from tests.support.timeouts import PATIENCE_S
from tests.support.transfers import sum_up, transfer

pytestmark = pytest.mark.slow

SECONDS = 120 if os.environ.get("STATEKIT_SOAK") else 15
EPOCHS_CHECKED_MIN = 10


def test_every_sum_of_a_view_is_right_whatever_is_killed(tmp_path: Path) -> None:
    chosen = random.Random(7)
    job = started(transfer, tmp_path, chosen.choice([1, 2, 3]))
    wait_for_an_epoch(tmp_path)
    reader = started(sum_up, tmp_path)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end or epochs_checked(tmp_path) < EPOCHS_CHECKED_MIN:
        time.sleep(chosen.uniform(0.3, 2.5))
        if chosen.random() < 0.6:
            kill(job)
            if chosen.random() < 0.4:
                roll_back(tmp_path, chosen)
            job = started(transfer, tmp_path, chosen.choice([1, 2, 3]))
        if chosen.random() < 0.4 or not reader.is_alive():
            kill(reader)
            reader = started(sum_up, tmp_path)
    kill(job)
    kill(reader)
    assert not (tmp_path / "wrong").exists(), (tmp_path / "wrong").read_text()


def started(target: object, home: Path, *args: object) -> ForkServerProcess:
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


def epochs_checked(home: Path) -> int:
    path = home / "checked"
    return len(set(path.read_text().splitlines())) if path.exists() else 0


def roll_back(home: Path, chosen: random.Random) -> None:
    """Go back to one of the kept epochs, if the job has not begun another one."""
    repository = Repository(home / "checkpoint")
    epochs = repository.epochs()
    try:
        plan(repository, chosen.choice(epochs[:-1] or epochs)).carry_out()
    except StatekitError:
        return  # an epoch was begun before the kill: the job has to complete it first
