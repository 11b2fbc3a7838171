"""A checkpoint that is copied while a job runs: by names only, as `cp` and `aws s3 sync` do.

The job and the copy take turns, so that each copy is under way during several epochs.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import statekit as sk
from statekit.checkpoint.paths import first_path
from statekit.checkpoint.repository import Repository
from statekit.errors import CorruptCheckpointError
from statekit.job.options import RunOptions
from statekit.maintenance.verify.findings import Verification
from statekit.maintenance.verify.verify import verify
from statekit.runtime.local import LocalRunner
from statekit.working_copy.copies import DiskCopies, MemoryCopies
from statekit.working_copy.uploader import uploader
from tests.support.counting_job import committed_rows, comparable, entries, tally_job

GROUPS = 8
COUNT = 20
"""Records of an epoch."""

BEFORE, MEANWHILE = 10, 6
"""Epochs that are made before a copy is begun, and while data is copied."""

EAGER = sk.BaseOptions(replay_seconds=0, uploaded_per_changed=100)


class Copied:
    """A job, and a copy of its checkpoint in the making.

    Parameters:
        home: where both are.
        keeping: how many epochs the job keeps.
    """

    def __init__(self, home: Path, *, keeping: int) -> None:
        self.checkpoint, self.copy, self._copies = home / "c", home / "copy", home / "local"
        self._job = LocalRunner(
            tally_job(GROUPS).plan,
            Repository(self.checkpoint),
            DiskCopies(self._copies, bases=EAGER),
            RunOptions(parallelism=2, retention=sk.Retention(epochs=keeping)),
        )
        self.vanished = 0
        self.advance(BEFORE)

    @property
    def last(self) -> int:
        """The last epoch of the job."""
        return self._job.coordinator.epoch - 1

    def advance(self, epochs: int) -> None:
        """Make epochs, with bases, and with the garbage of each collected before the next."""
        for _ in range(epochs):
            self._job.epoch({"records": entries(self._job.coordinator.epoch, COUNT)})
            assert uploader().drain(60)
            self._job.coordinator.close()

    def files(self, folder: str, wanted: str = "*") -> None:
        """Copy the files that a folder has now, one after the other, while the job runs."""
        for path in sorted((self.checkpoint / folder).rglob(wanted)):
            target = self.copy / path.relative_to(self.checkpoint)
            if path.is_dir():
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                shutil.copyfile(path, target)
            except FileNotFoundError:  # collected since it was listed, which `cp` only tells
                target.unlink(missing_ok=True)
                self.vanished += 1
            if folder == "data" and self.last < BEFORE + MEANWHILE - 1:
                self.advance(1)

    def in_order(self) -> None:
        """The procedure of docs/operate/backup.md."""
        self.files("epochs")
        self.job_files()
        self.files("data")
        self.files("epochs", "*.first")

    def job_files(self) -> None:
        self.copy.mkdir(exist_ok=True)
        for path in self.checkpoint.glob("job*"):
            shutil.copyfile(path, self.copy / path.name)

    def verified(self) -> Verification:
        return verify(Repository(self.copy, create=False))


def expected_after(epochs: int) -> Any:
    made = LocalRunner(
        tally_job(GROUPS).plan, Repository.in_memory(), MemoryCopies(), RunOptions(parallelism=2)
    )
    for number in range(epochs):
        made.epoch({"records": entries(number, COUNT)})
    return comparable(committed_rows(made.coordinator.repository, GROUPS))


def test_a_copy_manifests_first_is_intact_whatever_is_committed_and_collected_meanwhile(
    tmp_path: Path,
) -> None:
    made = Copied(tmp_path, keeping=8)
    made.in_order()
    assert made.vanished, "files were collected during the copy"
    found = made.verified()
    assert not found.findings
    assert found.epochs[-1] == BEFORE - 1
    assert found.epochs[0] > 0
    assert (made.copy / first_path(found.epochs[0])).exists(), "what was given up is given up here"
    assert made.last == BEFORE + MEANWHILE - 1, "the job went on"
    assert comparable(committed_rows(Repository(made.copy), GROUPS)) == expected_after(BEFORE)

    local = DiskCopies(tmp_path / "other")
    goes_on = LocalRunner(
        tally_job(GROUPS).plan, Repository(made.copy), local, RunOptions(parallelism=3)
    )
    for number in range(BEFORE, BEFORE + 3):
        assert goes_on.coordinator.epoch == number
        goes_on.epoch({"records": entries(number, COUNT)})
    assert comparable(committed_rows(Repository(made.copy), GROUPS)) == expected_after(BEFORE + 3)


def test_a_copy_data_first_lacks_files_and_verify_says_so(tmp_path: Path) -> None:
    made = Copied(tmp_path, keeping=100)
    made.job_files()
    made.files("data")
    made.files("epochs")
    found = made.verified()
    assert found.is_damaged
    assert {finding.kind for finding in found.findings} == {"file"}


def test_a_copy_that_takes_longer_than_epochs_are_kept_is_refused(tmp_path: Path) -> None:
    made = Copied(tmp_path, keeping=2)
    made.in_order()
    (finding,) = made.verified().findings
    assert (finding.kind, finding.path) == ("manifest", "epochs")
    assert "no later epoch" in finding.what
    with pytest.raises(CorruptCheckpointError, match="no later epoch"):
        LocalRunner(tally_job(GROUPS).plan, Repository(made.copy), DiskCopies(tmp_path / "other"))
