"""Verifying beside a job whose collector gives up what is being looked at."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import statekit as sk
from statekit.checkpoint.repository import Repository
from statekit.errors import RestoreError
from statekit.maintenance.verify import verify as verification
from statekit.maintenance.verify.repair import repair
from statekit.maintenance.verify.verify import verify
from statekit.testing.faults import Fault, Faults, faulty
from statekit.working_copy.copies import MemoryCopies
from tests.support.counting_job_runs import advance, runner
from tests.support.effort import SOAK
from tests.support.killable_processes import start
from tests.support.timeouts import PATIENCE_S

KEPT = 6
VERIFIES = 5 if SOAK else 2


def keep_running(root: Path) -> None:
    """The job, in a process of its own, until it is told to end."""
    made = runner(root, MemoryCopies(), retention=sk.Retention(epochs=KEPT))
    while not (root.parent / "stop").exists():
        advance(made, 1, count=6)
    made.coordinator.close()


@contextlib.contextmanager
def running(repository: Repository) -> Iterator[None]:
    """While the job runs, once its collector is at work."""
    assert repository.root is not None
    began = repository.first_kept()
    process = start(keep_running, repository.root)
    root = repository.root
    try:
        while repository.first_kept() == began:
            assert process.is_alive()
        yield
    finally:
        (root.parent / "stop").touch()
        process.join(PATIENCE_S)
    assert process.exitcode == 0


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """A few epochs of two shards."""
    made = runner(tmp_path / "checkpoint", MemoryCopies(), 2)
    advance(made, KEPT, count=6)
    return Repository(tmp_path / "checkpoint")


def test_a_checkpoint_is_intact_while_a_job_collects_epochs(repository: Repository) -> None:
    given_up = 0
    with running(repository):
        for number in range(200):  # the job collects epochs once a second
            found = verify(repository, all_rows=number % 2 == 1)
            assert found.findings == []
            assert found.looked_at
            assert found.rows
            assert repair(repository, found) is None
            given_up += found.given_up
            if given_up and number + 1 >= VERIFIES:
                break
    assert given_up
    assert verify(repository, all_rows=True).is_intact


def test_beside_such_a_job_real_damage_is_found_still(repository: Repository) -> None:
    assert repository.root is not None
    last = repository.manifest(KEPT - 1)
    shard = last.operators["tally"].shards[0]
    file = shard.files[0]
    with running(repository):
        (repository.root / file.path).write_bytes(b"")  # the job has read it, and names it on
        for _ in range(VERIFIES):
            found = verify(repository)
            assert [(f.kind, f.path) for f in found.findings] == [("file", file.path)]
            assert set(found.findings[0].epochs) >= {*found.epochs}
            assert found.is_damaged


def test_a_collected_epoch_cannot_be_verified(repository: Repository) -> None:
    with running(repository):
        pass
    first = repository.first_kept()
    assert verify(repository, epoch=first).is_intact
    with pytest.raises(RestoreError, match=f"epoch {first - 1} .* was collected"):
        verify(repository, epoch=first - 1)


def test_the_note_of_a_verification_is_removed_afterwards(repository: Repository) -> None:
    with running(repository):
        for _ in range(VERIFIES):
            assert verify(repository, all_rows=True).findings == []
    assert not list(repository.names("held"))


def test_who_may_not_leave_notes_finds_no_damage_either(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "_ROUNDS", 5)
    refused = [Fault("fail before", at=number, operation="create") for number in range(200)]
    ended = set()
    with running(repository):
        for _ in range(VERIFIES):
            reading = faulty(Repository(repository.url), Faults(*refused, lasting=True))
            ended.add(_told_by(reading))
    assert ended <= {"whole", "nothing found"}


def _told_by(repository: Repository) -> str:
    try:
        return "whole" if verify(repository, all_rows=True).is_intact else "damaged"
    except RestoreError as error:
        return "nothing found" if "Nothing was found to be damaged" in str(error) else str(error)
