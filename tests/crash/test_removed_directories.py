"""Directories that are removed, or may no longer be written, under a running job."""

from __future__ import annotations

import functools
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

import statekit as sk
from statekit.backend.rocksdb import RocksBackend
from statekit.checkpoint.repository import Repository
from statekit.cli import copies as cli_copies
from statekit.cli.gc import gc
from statekit.cli.inspect import inspect
from statekit.cli.verify import verify_checkpoint
from statekit.runtime.local import LocalRunner
from statekit.working_copy.copies import DiskCopies
from tests.support import counting_job_runs as tally_runs
from tests.support.counting_job import committed_rows, comparable, tally_job
from tests.support.counting_job_runs import GROUPS, SMALL_BUFFER, records_of, rows_after, runner
from tests.support.killable_processes import NOBODY, as_nobody, exit_code


def job_in(place: Path, parallelism: int | None = None) -> LocalRunner:
    return runner(place / "c", DiskCopies(place / "local", SMALL_BUFFER), parallelism)


advance = functools.partial(tally_runs.advance, count=200)


def check(place: Path, epochs: int) -> None:
    """The checkpoint holds what an undisturbed run does, and goes on from there."""
    repository = Repository(place / "c")
    assert repository.latest_epoch() == epochs - 1
    assert comparable(committed_rows(repository, GROUPS)) == rows_after(epochs, 200)


# --------------------------------------------------------------------------- a removed directory


def test_a_working_directory_that_is_removed_between_epochs_is_restored(tmp_path: Path) -> None:
    made = job_in(tmp_path, 2)
    advance(made, 2)
    shutil.rmtree(tmp_path / "local")
    advance(made)
    check(tmp_path, 3)


@pytest.mark.parametrize("stage", ["write", "flush", "close"])
def test_a_working_directory_that_is_removed_within_an_epoch_fails_it_at_most(
    tmp_path: Path, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = job_in(tmp_path)
    advance(made, 2)
    step = getattr(RocksBackend, stage)

    def remove_first(*args: object) -> object:
        shutil.rmtree(tmp_path / "local", ignore_errors=True)
        return step(*args)

    with monkeypatch.context() as patched:
        patched.setattr(RocksBackend, stage, remove_first)
        with pytest.raises(sk.StorageError, match=r"working copy at .*/local/.* start"):
            advance(made)
    assert Repository(tmp_path / "c").latest_epoch() == 1
    advance(made)
    check(tmp_path, 3)


@pytest.mark.parametrize("lost", ["c", "c/epochs"])
@pytest.mark.parametrize("when", ["between epochs", "within an epoch"])
def test_a_checkpoint_that_is_removed_under_a_running_job_is_never_written_to_again(
    tmp_path: Path, lost: str, when: str
) -> None:
    made = job_in(tmp_path)
    advance(made, 2)
    published: list[int] = []

    def publish(records: list[object], epoch: int) -> None:
        published.append(epoch)
        if when == "within an epoch":
            (tmp_path / lost).rename(tmp_path / "hidden")

    if when == "between epochs":
        (tmp_path / lost).rename(tmp_path / "hidden")
    with pytest.raises(sk.CorruptCheckpointError, match=r"1\.json is missing, .* restore the"):
        made.epoch({"records": records_of(2, 200)}, outputs={"outputs": publish})
    assert published == ([] if when == "between epochs" else [2])
    assert not list((tmp_path / "c").rglob("epochs/*.json"))
    shutil.rmtree(tmp_path / lost, ignore_errors=True)
    (tmp_path / "hidden").rename(tmp_path / lost)
    advance(job_in(tmp_path))
    check(tmp_path, 3)


def test_change_files_that_are_removed_under_a_job_are_named_when_they_are_needed(
    tmp_path: Path,
) -> None:
    made = job_in(tmp_path)
    advance(made, 2)
    (tmp_path / "c" / "data").rename(tmp_path / "hidden")
    shutil.rmtree(tmp_path / "local")
    with pytest.raises(sk.CorruptCheckpointError, match=r"data/tally/.* is missing: restore it"):
        advance(made)
    (tmp_path / "hidden").rename(tmp_path / "c" / "data")
    advance(made)
    check(tmp_path, 3)


def test_a_temporary_directory_that_is_removed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = job_in(tmp_path)
    advance(made)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr("statekit.backend.change_file._SPOOL_BYTES_MAX", 1000)
    (tmp_path / "tmp").rmdir()
    with pytest.raises(sk.StorageError, match=r"cannot write a change file to .*/tmp.* TMPDIR"):
        advance(made)
    (tmp_path / "tmp").mkdir()
    advance(made)
    check(tmp_path, 2)


# ------------------------------------------------------------------------------- lost permission


def fails(place: str, text: str) -> None:
    """An epoch, as somebody who may not write everywhere."""
    made = job_in(Path(place))
    with pytest.raises(sk.StorageError, match=text):
        advance(made)


def works(place: str) -> None:
    advance(job_in(Path(place)))


@pytest.fixture
def place() -> Iterator[Path]:
    """Not below the directory of pytest, which every start of pytest closes to others."""
    with tempfile.TemporaryDirectory(prefix="statekit-tests-") as made:
        Path(made).chmod(0o755)
        yield Path(made)


def give_to_nobody(place: Path) -> None:
    """Let a process without the rights of root have a directory, if this one has them."""
    if os.geteuid() == 0:
        for path in (place, *place.rglob("*")):
            os.chown(path, NOBODY, NOBODY)


@pytest.mark.parametrize(
    ("lost", "text"),
    [
        ("local", r"cannot use the working copy at .*/local"),
        ("local/*/tally/0-7", r"cannot use the working copy at .*/0-7"),
        ("c/epochs", r"cannot write .*/epochs/"),
        ("c/data/tally", r"cannot write .*/data/tally/"),
        ("c/tmp", r"cannot write .*/c/"),
    ],
)
def test_a_directory_that_may_no_longer_be_written_is_named_and_the_job_continues_when_it_may(
    place: Path, lost: str, text: str
) -> None:
    advance(job_in(place), 2)
    if lost == "local":  # and there is no copy in it yet
        shutil.rmtree(place / "local")
        (place / "local").mkdir()
    give_to_nobody(place)
    (closed,) = place.glob(lost)
    closed.chmod(0o555)
    try:
        assert exit_code(as_nobody, fails, str(place), text) == 0
        assert Repository(place / "c").latest_epoch() == 1
    finally:
        closed.chmod(0o755)
    assert exit_code(as_nobody, works, str(place)) == 0
    check(place, 3)


def copies_fail(place: str, text: str) -> None:
    """The command that removes copies, as somebody who may not do everything."""
    with pytest.raises(sk.StorageError, match=text):
        cli_copies.copies(place, clean=True, everything=True)


@pytest.mark.parametrize(
    ("closed", "mode", "text"),
    [
        (".", 0o555, r"0-7 cannot be removed, although .* a user that may write there and in .*"),
        (".", 0o000, r"cannot read .*/local: Permission denied. Run this as the user"),
        ("..", 0o000, r"cannot read .*/local: Permission denied. Run this as the user"),
        ("*/tally", 0o000, r"tally may not be read, so copies in there are not shown: run this as"),
    ],
)
def test_the_command_for_copies_reports_missing_permissions(
    place: Path, closed: str, mode: int, text: str
) -> None:
    advance(job_in(place))
    give_to_nobody(place)
    (path,) = place.glob(f"local/{closed}") if "*" in closed else [place / "local" / closed]
    path.chmod(mode)
    try:
        assert exit_code(as_nobody, copies_fail, str(place / "local"), text) == 0
    finally:
        path.chmod(0o755)
    check(place, 1)


def cannot_look(place: str) -> None:
    """What commands and a job say of places in a directory that may not be entered."""
    checkpoint, local = f"{place}/closed/c", f"{place}/closed/local"
    for command in (gc, inspect):
        with pytest.raises(sk.StorageError, match=r"cannot open .*/closed/c: .* check that the"):
            command(checkpoint)
    with pytest.raises(typer.Exit) as stopped:
        verify_checkpoint(checkpoint)
    assert stopped.value.exit_code == 2
    with pytest.raises(sk.StorageError, match=r"cannot open .*/closed/c: .* check that the store"):
        LocalRunner(tally_job(GROUPS).plan, Repository(checkpoint), DiskCopies(local))
    with pytest.raises(sk.StorageError, match=r"cannot use the working copy at .*/closed/local"):
        advance(runner(Path(place) / "open", DiskCopies(local)))


def test_a_directory_that_may_not_be_entered_is_no_damage(place: Path) -> None:
    (place / "closed").mkdir()
    advance(runner(place / "closed" / "c", DiskCopies(place / "closed" / "local")))
    give_to_nobody(place)
    (place / "closed").chmod(0o000)
    assert exit_code(as_nobody, cannot_look, str(place)) == 0
    (place / "closed").chmod(0o755)
    assert Repository(place / "closed" / "c").latest_epoch() == 0
