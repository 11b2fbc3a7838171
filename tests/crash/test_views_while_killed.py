"""Views of a replica are consistent while the job and the replica are killed, rescaled and rolled
back.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from tests.support.effort import SOAK
from tests.support.killed_bank import kill, roll_back, started, wait_for_an_epoch
from tests.support.transfers import sum_up, transfer

pytestmark = pytest.mark.slow

SECONDS = 120 if SOAK else 4
EPOCHS_CHECKED_MIN = 10 if SOAK else 5


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


def epochs_checked(home: Path) -> int:
    path = home / "checked"
    return len(set(path.read_text().splitlines())) if path.exists() else 0
