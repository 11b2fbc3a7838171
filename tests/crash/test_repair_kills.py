"""`statekit verify --repair`, killed with SIGKILL before any change of the store."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from statekit.checkpoint.object_store import LocalObjects
from statekit.checkpoint.repository import Repository
from statekit.cli import verify as cli_verify
from statekit.maintenance.verify.verify import verify
from tests.support.full_checkpoint import run
from tests.support.killable_processes import die_before, kills
from tests.unit.checkpoint.test_rollback import next_input, sparks_part
from tests.unit.maintenance.test_repair import (
    BAD_ROWS,
    due_row_lost,
    everything,
    forge,
    last_file,
    spoil,
    stream,
)


def rows_damaged(place: Path) -> None:
    repository = Repository(place)
    run(repository, 0, 2, 2)
    forge(repository, "keep", [*due_row_lost(repository), *(row for _, row in BAD_ROWS)])


def file_lost(place: Path) -> None:
    repository = Repository(place)
    run(repository, 0, 2, 2)
    last_file(repository, 2).unlink()


def manifests_of_a_stream_lost(place: Path) -> None:
    last = stream(place).epochs()[-1]
    spoil(place, last)
    spoil(place, last - 1)


def repairs(place: Path, change: int) -> None:
    """The command, which dies before it changes the store for that time."""
    die_before(
        change,
        *((LocalObjects, name) for name in ("put", "create", "delete")),
        (os, "rename"),
        (os, "link"),
    )
    cli_verify.verify_checkpoint(str(place), mend=True, drop_rows=True)


def files_of(place: Path) -> dict[str, bytes]:
    """All files but Spark's, which may be set back, and drafts."""
    found = (path for path in place.rglob("*") if path.is_file())
    names = ((str(path.relative_to(place)), path) for path in found)
    return {
        name: path.read_bytes() for name, path in names if not name.startswith(("tmp/", "spark/"))
    }


def to_read(repository: Repository) -> set[int] | None:
    """The files that Spark would hand on next; None if a start would be refused."""
    found, last = sparks_part(repository), repository.manifest(repository.epochs()[-1])
    return next_input(found, -1 if last.batch is None else last.batch) if found else set()


@pytest.mark.parametrize("damage", [rows_damaged, file_lost, manifests_of_a_stream_lost])
def test_a_repair_killed_anywhere_was_made_or_was_not_and_can_be_made_again(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    damaged, whole, place = (tmp_path / name for name in ("damaged", "whole", "killed"))
    damage(damaged)
    shutil.copytree(damaged, whole)
    cli_verify.verify_checkpoint(str(whole), mend=True, drop_rows=True)
    expected, before = Repository(whole), files_of(damaged)
    seen = set[bool]()
    for _ in kills(anew, damaged, place):
        repository = Repository(place)
        is_made = repository.epochs() == expected.epochs()
        seen.add(is_made)
        assert is_made or repository.epochs() == Repository(damaged).epochs()
        assert verify(repository, epoch=repository.epochs()[-1]).is_intact == is_made
        assert before.items() <= files_of(place).items(), "nothing is removed or overwritten"
        # It exits with 0, or would raise.
        cli_verify.verify_checkpoint(str(place), mend=True, drop_rows=True)
        assert repository.epochs() == expected.epochs()
        assert everything(repository) == everything(expected)
        assert to_read(repository) == to_read(expected)
    assert seen == {True, False}


def anew(damaged: Path, place: Path, change: int) -> None:
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(damaged, place)
    repairs(place, change)
