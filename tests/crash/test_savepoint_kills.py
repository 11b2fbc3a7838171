"""Killed with SIGKILL before any change of the store, nothing is half there."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from statekit.checkpoint.repository import Repository
from statekit.errors import RestoreError
from statekit.maintenance.rewrite import rewrite_checkpoint
from statekit.maintenance.savepoint.format import Savepoint
from statekit.maintenance.savepoint.restore import import_savepoint
from statekit.maintenance.savepoint.write import write_savepoint
from statekit.testing import Harness
from tests.support.counting_job import entries, plain_state, state_of, tally
from tests.support.effort import SOAK
from tests.support.killable_processes import die_before, kills

CHANGES = tuple((Repository, name) for name in ("put_file", "create", "remove"))
KILLS = 6 if SOAK else 3
EXPECTED = plain_state(record for epoch in range(3) for record in entries(epoch, 30))


def saves(path: Path, change: int) -> None:
    die_before(change, *CHANGES)
    write_savepoint(Repository(path), "s")


def imports(path: Path, change: int) -> None:
    die_before(change, *CHANGES)
    import_savepoint(Savepoint.at(path / "savepoints/s"), Repository(path / "new"), key_groups=5)


def rewrites(path: Path, change: int) -> None:
    die_before(change, *CHANGES)
    rewrite_checkpoint(Repository(path), parallelism=2, key_groups=5)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    harness = Harness(tally, 2, 8, checkpoint=tmp_path / "checkpoint")
    for epoch in range(3):
        harness.send(*entries(epoch, 30))
    return tmp_path / "checkpoint"


def files_of(path: Path) -> set[str]:
    """All files but the store's own drafts."""
    found = (file for file in path.rglob("*") if file.is_file() and file.parent.name != "tmp")
    return {str(file.relative_to(path)) for file in found}


def test_a_savepoint_is_complete_or_absent(checkpoint: Path) -> None:
    before, left = files_of(checkpoint), set[str]()
    for change in kills(saves, checkpoint):
        home = checkpoint / "savepoints/s"
        try:
            made = Savepoint.at(home)
        except RestoreError:
            continue
        assert change >= 4, "three states, and the file that names them"
        assert state_of(Harness.restore(tally, home), EXPECTED) == EXPECTED
        left = files_of(checkpoint) - before - {f"savepoints/s/{name}" for name in named(made)}
        left = {path for path in left if not path.startswith("held/")}  # these run out
        if left:  # what killed attempts left, and it was killed before it could remove that
            (home / "savepoint.json").unlink()
    assert not left, "it went with the attempt that was not killed"
    assert before <= files_of(checkpoint)


def named(made: Savepoint) -> set[str]:
    states = made.file.operators["tally"].states.values()
    return {"savepoint.json", *(file.path for contents in states for file in contents.files)}


def test_an_import_that_was_killed_is_begun_again(checkpoint: Path) -> None:
    write_savepoint(Repository(checkpoint), "s")
    for _ in kills(imports, checkpoint):
        if Repository(checkpoint / "new").epochs():
            break
    harness = Harness(tally, checkpoint=checkpoint / "new")
    assert (harness.key_groups, harness.epoch) == (5, 2)
    assert state_of(harness, EXPECTED) == EXPECTED


def test_a_rewritten_checkpoint_has_the_old_or_the_new_state_after_any_kill(
    checkpoint: Path,
) -> None:
    for _ in kills(rewrites, checkpoint):
        harness = Harness(tally, checkpoint=checkpoint)
        assert harness.key_groups == (8 if harness.epoch == 2 else 5)
        assert state_of(harness, EXPECTED) == EXPECTED
        if harness.epoch == 3:
            break
    assert Repository(checkpoint).epochs() == [0, 1, 2, 3]


def test_the_command_killed_at_any_time_leaves_a_complete_savepoint_or_none(
    checkpoint: Path,
) -> None:
    command = [sys.executable, "-m", "statekit.cli", "savepoint", str(checkpoint)]
    started = time.monotonic()
    subprocess.run([*command, "whole"], check=True, capture_output=True)
    took = time.monotonic() - started
    for number in range(KILLS):
        process = subprocess.Popen([*command, f"s{number}"], stdout=subprocess.DEVNULL)
        time.sleep(took * (0.7 + number / KILLS / 2))
        process.kill()
        process.wait()
        home = checkpoint / f"savepoints/s{number}"
        try:
            Savepoint.at(home)
        except RestoreError:
            write_savepoint(Repository(checkpoint), f"s{number}")
        assert state_of(Harness.restore(tally, home), EXPECTED) == EXPECTED
        assert files_of(home) == named(Savepoint.at(home))
