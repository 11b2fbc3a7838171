"""Killed with SIGKILL at any time, a transform leaves a complete new checkpoint, or one on which no
job starts and that another run completes.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import statekit as sk
from statekit.checkpoint.repository import Repository
from statekit.errors import RestoreError
from statekit.maintenance.verify.verify import verify
from statekit.testing import Harness
from tests.support.counting_job import entries, plain_state, state_of, tally, tally_job
from tests.support.effort import SOAK
from tests.support.killable_processes import RandomKills, die_before, kills

CHANGES = tuple((Repository, name) for name in ("put_file", "create", "remove", "collect"))
KILLS = 100 if SOAK else 3
EXPECTED = plain_state(record for epoch in range(3) for record in entries(epoch, 30))


@sk.transform(tally_job)
def rewritten(old: sk.Transformation) -> None:
    for state in ("total", "seen"):
        old.write("tally", state, old.read("tally", state))
    old.copy("tally", "parity")


def transforms(path: Path, change: int | None = None) -> None:
    if change is not None:
        die_before(change, *CHANGES)
    rewritten.run(path, into=path.parent / "new", parallelism=3)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    harness = Harness(tally, 2, 8, checkpoint=tmp_path / "checkpoint")
    for epoch in range(3):
        harness.send(*entries(epoch, 30))
    return tmp_path / "checkpoint"


def is_complete(new: Path) -> bool:
    """Whether the new checkpoint has its epoch. If not, nothing takes it for a checkpoint."""
    if not new.exists() or not Repository(new).epochs():
        if (new / "transform.json").exists():
            with pytest.raises(RestoreError, match="not complete: run the command again"):
                Harness(tally, checkpoint=new)
        return False
    assert verify(Repository(new)).findings == []
    harness = Harness(tally, checkpoint=new)
    assert (harness.epoch, state_of(harness, EXPECTED)) == (2, EXPECTED)
    return True


@pytest.mark.slow
def test_a_transform_killed_before_any_change_is_completed_by_another_run(checkpoint: Path) -> None:
    new = checkpoint.parent / "new"
    before = {path: path.read_bytes() for path in (checkpoint / "data").rglob("*.arrow")}
    for _ in kills(transforms, checkpoint):
        is_complete(new)
    assert is_complete(new)
    assert not (new / "transform.json").exists()
    kept = [ref.path for ref in Repository(new).manifest(2).operators["tally"].shards[0].files]
    assert kept
    assert {path: path.read_bytes() for path in (checkpoint / "data").rglob("*.arrow")} == before


@pytest.mark.slow
def test_transforms_that_are_killed_at_random_times_are_run_again(checkpoint: Path) -> None:
    random_kills, new = RandomKills(KILLS), checkpoint.parent / "new"
    while random_kills.left:
        while not random_kills.survives(transforms, checkpoint):
            if is_complete(new) and not (new / "transform.json").exists():
                break  # it was killed when it had nothing left to do
        assert is_complete(new)
        assert not (new / "transform.json").exists()
        shutil.rmtree(new)
