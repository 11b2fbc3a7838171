"""A full disk under what changes a checkpoint: an error that says so, and nothing is lost."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

import statekit as sk
from statekit import rollback
from statekit.migration import Migration
from statekit.offline_rescale import rescale_offline
from statekit.reader import CheckpointReader
from statekit.repository import Repository
from statekit.rewrite import rewrite_checkpoint
from tests.small_disk import small_disk
from tests.test_operator_state_kept import EVENTS, SPECS, held, job, made, migrating

CHANGES: dict[str, Callable[[Path], object]] = {
    "rescale": lambda place: rescale_offline(Repository(place), 2, job=job()),
    "rewrite": lambda place: rewrite_checkpoint(Repository(place), key_groups=32, specs=SPECS),
    "migrate": lambda place: Migration(migrating("follow"), place).run(lambda *_: None),
    "rollback": lambda place: rollback.plan(Repository(place), 0).carry_out(),
    "start with another parallelism": lambda place: job().run(
        {"records": EVENTS}, checkpoint=place, parallelism=5, drain=False
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_on_a_full_disk_it_fails_with_an_error_that_says_so_and_can_be_done_again(
    tmp_path: Path, name: str
) -> None:
    change = CHANGES[name]
    with small_disk(tmp_path / "disk") as disk:
        place = disk.path / "checkpoint"
        before = made(place)
        epochs = CheckpointReader(place).epochs
        disk.fill()
        with pytest.raises(sk.StorageError, match=r"cannot write .* check that the store"):
            change(place)
        disk.make_space()
        assert (CheckpointReader(place).epochs, held(place)) == (epochs, before)
        change(place)
        assert CheckpointReader(place).epochs == [*epochs, epochs[-1] + 1]


def test_a_full_local_disk_is_told_where_rows_are_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = made(tmp_path / "checkpoint")
    with small_disk(tmp_path / "disk") as disk:
        disk.fill()
        monkeypatch.setattr(tempfile, "tempdir", str(disk.path))
        for name in ("rewrite", "migrate"):
            with pytest.raises(sk.StorageError):
                CHANGES[name](tmp_path / "checkpoint")
        disk.make_space()
        assert held(tmp_path / "checkpoint") == before
        CHANGES["rewrite"](tmp_path / "checkpoint")
    assert CheckpointReader(tmp_path / "checkpoint").job.key_groups == 32
