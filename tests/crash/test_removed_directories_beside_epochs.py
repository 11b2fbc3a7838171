"""Directories that are removed, or may no longer be written, under what goes on beside epochs.

What lives here: histories, bases and merges in the making, garbage collection, verification and
repair. What does not: the epoch itself (`test_lost_places`) and full disks (`test_full_disks`).
"""

from __future__ import annotations

import contextlib
import datetime as dt
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import statekit as sk
from statekit.checkpoint import references
from statekit.checkpoint.gc.collector import Collector
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.store import Store
from statekit.maintenance.verify.repair import repair
from statekit.maintenance.verify.verify import verify
from statekit.runtime.local import LocalRunner
from statekit.working_copy.base_options import BaseOptions
from statekit.working_copy.base_snapshot import StagedSnapshot
from statekit.working_copy.copies import DiskCopies
from statekit.working_copy.uploader import _in_process, uploader
from tests.crash.test_removed_directories import give_to_nobody, place
from tests.support.counting_job import committed_rows, comparable
from tests.support.counting_job_runs import EAGER, GROUPS, advance, rows_after, runner, uploaded
from tests.support.full_checkpoint import run
from tests.support.killable_processes import as_nobody, exit_code
from tests.unit.maintenance.test_repair import due_row_lost, forge

__all__ = ["place"]

COUNT = 20
NEITHER = BaseOptions(bases=False)


FEW = [(references, "FILES_MAX", 1)]
"""So that there are histories of few files."""


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, number in FEW:
        monkeypatch.setattr(module, name, number)


def few_in_this_process() -> None:
    for module, name, number in FEW:
        setattr(module, name, number)


def job_in(home: Path, options: BaseOptions) -> LocalRunner:
    return runner(home / "c", DiskCopies(home / "local", bases=options))


def advance_and_upload(made: LocalRunner, epochs: int) -> None:
    for _ in range(epochs):
        advance(made, 1, COUNT)
        uploaded()


def check(home: Path, epochs: int) -> None:
    """Exactly these epochs are committed, and what they hold is there for a new host, too."""
    repository = Repository(home / "c")
    assert repository.latest_epoch() == epochs - 1
    assert comparable(committed_rows(repository, GROUPS)) == rows_after(epochs, COUNT)
    assert verify(repository).is_intact


def stands_on(home: Path, options: BaseOptions) -> bool:
    """Whether the shard made use of what was done beside the epochs."""
    made = job_in(home, options)
    shard = made.coordinator.plans("tally")[0].base
    return shard.base is not None


@contextlib.contextmanager
def hidden(path: Path) -> Iterator[None]:
    """Have a directory away, and back with what was made in its place meanwhile."""
    away = path.with_name("hidden")
    path.rename(away)
    yield
    shutil.copytree(path, away, dirs_exist_ok=True) if path.exists() else None
    shutil.rmtree(path, ignore_errors=True)
    away.rename(path)


# -------------------------------------------------------------------------------------- histories


def test_a_history_that_is_removed_under_a_job_is_named_and_the_job_continues_once_it_is_back(
    tmp_path: Path,
) -> None:
    made = job_in(tmp_path, NEITHER)
    advance(made, 3, COUNT)
    histories = list((tmp_path / "c/data").rglob("*.history.json"))
    for history in histories:
        history.rename(history.with_suffix(".away"))
    with pytest.raises(sk.CorruptCheckpointError, match=r"history\.json is missing: restore it"):
        advance(made, 1, COUNT)
    for history in histories:
        history.with_suffix(".away").rename(history)
    advance(made, 1, COUNT)
    check(tmp_path, 4)


def fails_at_the_history(home: str) -> None:
    few_in_this_process()
    made, put = job_in(Path(home), NEITHER), Store.put_file
    folder = Path(home, "c/data/tally")

    def close_first(store: Store, path: str, *args: Any, **given: Any) -> Any:
        if path.endswith(".history.json"):
            folder.chmod(0o555)
        return put(store, path, *args, **given)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Store, "put_file", close_first)
        with pytest.raises(sk.StorageError, match=r"cannot write .*/data/tally/.*\.history\.json"):
            advance(made, 1, COUNT)
    folder.chmod(0o755)
    advance(made, 1, COUNT)


def test_a_history_that_may_not_be_written_fails_the_epoch_which_works_again_when_it_may(
    place: Path,
) -> None:
    advance(job_in(place, NEITHER), 3, COUNT)
    give_to_nobody(place)
    assert exit_code(as_nobody, fails_at_the_history, str(place)) == 0
    check(place, 4)


# ------------------------------------------------------------------------------- bases


def test_staged_work_that_is_removed_from_the_queue_starts_again(tmp_path: Path) -> None:
    made = job_in(tmp_path, EAGER)
    advance_and_upload(made, 1)
    uploader().close()  # what is staged waits
    advance(made, 2, COUNT)
    staged = [path for path in (tmp_path / "local").rglob("snapshots") if any(path.iterdir())]
    assert staged
    for path in staged:
        shutil.rmtree(path)
    _in_process.clear()
    advance_and_upload(made, 5)
    assert stands_on(tmp_path, EAGER)
    check(tmp_path, made.coordinator.epoch)


def test_staged_work_that_is_removed_while_it_runs_is_reported_and_starts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = job_in(tmp_path, EAGER)
    write, removed = StagedSnapshot.write, list[Path]()

    def remove_first(staged: StagedSnapshot, name: str, note: Any) -> None:
        if name == "finished.json" and not removed:
            removed.append(staged.place)
            shutil.rmtree(staged.place)
        write(staged, name, note)

    monkeypatch.setattr(StagedSnapshot, "write", remove_first)
    advance_and_upload(made, 10)
    assert removed
    assert "failed and is tried again with a later epoch" in caplog.text
    assert stands_on(tmp_path, EAGER)
    check(tmp_path, 10)


def goes_on_without(home: str) -> None:
    few_in_this_process()
    advance_and_upload(job_in(Path(home), EAGER), 4)


@pytest.mark.parametrize("when", ["empty", "with work that is done"])
def test_where_staged_work_may_not_be_put_no_epoch_fails_and_bases_are_made_once_it_may(
    place: Path, when: str
) -> None:
    before = 1
    advance_and_upload(job_in(place, EAGER if when != "empty" else NEITHER), before)
    (home,) = place.glob("local/*/tally/0-7")
    (home / "snapshots").mkdir(exist_ok=True)
    assert any((home / "snapshots").iterdir()) == (when != "empty")
    give_to_nobody(place)
    closed = [home / "snapshots", *(home / "snapshots").iterdir()]
    for path in closed:
        path.chmod(0o555)
    assert exit_code(as_nobody, goes_on_without, str(place)) == 0
    for path in closed:
        path.chmod(0o755)
    check(place, before + 4)
    assert exit_code(as_nobody, goes_on_without, str(place)) == 0
    assert stands_on(place, EAGER)
    check(place, before + 8)


# ---------------------------------------------------------------------------- garbage collection


def collect(home: Path) -> None:
    Collector(
        Repository(home / "c", create=False), sk.Retention(epochs=1), grace=dt.timedelta(0)
    ).collect(sweep=True)


@pytest.mark.parametrize("lost", ["c/data", "c/data/tally", "c/epochs"])
def test_a_collection_under_which_a_directory_is_removed_deletes_nothing_that_is_needed(
    tmp_path: Path, lost: str
) -> None:
    advance_and_upload(job_in(tmp_path, EAGER), 5)
    with hidden(tmp_path / lost), contextlib.suppress(sk.StatekitError):
        collect(tmp_path)
    check(tmp_path, 5)
    collect(tmp_path)
    assert Repository(tmp_path / "c").epochs() == [4]
    check(tmp_path, 5)


def fails_to_collect(home: str, text: str) -> None:
    with pytest.raises(sk.StorageError, match=text):
        collect(Path(home))


def collects(home: str) -> None:
    collect(Path(home))


@pytest.mark.parametrize(
    ("lost", "text"),
    [
        ("c/epochs", r"cannot write .*/c/epochs/.*\.closed"),
        ("c/data/tally", r"cannot remove .*/data/tally/"),
    ],
)
def test_a_collection_that_may_not_delete_says_where_and_is_done_again_when_it_may(
    place: Path, lost: str, text: str
) -> None:
    advance_and_upload(job_in(place, EAGER), 5)
    give_to_nobody(place)
    (place / lost).chmod(0o555)
    assert exit_code(as_nobody, fails_to_collect, str(place), text) == 0
    (place / lost).chmod(0o755)
    check(place, 5)
    assert exit_code(as_nobody, collects, str(place)) == 0
    assert Repository(place / "c").epochs() == [4]
    check(place, 5)


# ------------------------------------------------------------------------ verification and repair


def damaged(home: Path) -> Repository:
    """A checkpoint whose last epoch lacks a row of an index."""
    repository = Repository(home / "c")
    run(repository, 0, 2, 2)
    forge(repository, "keep", due_row_lost(repository))
    return repository


def test_where_nothing_can_be_unpacked_nothing_is_called_damaged_and_nothing_is_repaired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = damaged(tmp_path)
    monkeypatch.setattr("statekit.working_copy.unpacked_shard._FEW_BYTES", 0)
    with monkeypatch.context() as patched:
        patched.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
        found = verify(repository)
        assert {finding.kind for finding in found.findings} == {"unreadable"}
        assert not found.is_damaged
        with pytest.raises(sk.RestoreError, match="some files could not be read"):
            repair(repository, found)
    found = verify(repository)
    with monkeypatch.context() as patched:
        patched.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
        with pytest.raises(sk.StorageError, match=r"cannot unpack rows in .*/gone.*TMPDIR"):
            repair(repository, found)
    assert repository.epochs() == [0, 1, 2, 3]
    assert repair(repository, found) is not None
    assert verify(repository, epoch=4).is_intact


def fails_to_repair(home: str, text: str) -> None:
    repository = Repository(Path(home, "c"))
    with pytest.raises(sk.StorageError, match=text):
        repair(repository, verify(repository))


def repairs(home: str) -> None:
    repository = Repository(Path(home, "c"))
    assert repair(repository, verify(repository)) is not None


@pytest.mark.parametrize(
    ("lost", "text"),
    [
        ("c/data/keep", r"cannot write .*/data/keep/"),
        ("c/epochs", r"cannot write .*/epochs/"),
        ("c/tmp", r"cannot write .*/epochs/"),
    ],
)
def test_a_repair_that_may_not_write_says_where_and_is_made_when_it_may(
    place: Path, lost: str, text: str
) -> None:
    repository = damaged(place)
    give_to_nobody(place)
    (place / lost).chmod(0o555)
    assert exit_code(as_nobody, fails_to_repair, str(place), text) == 0
    assert repository.epochs() == [0, 1, 2, 3]
    (place / lost).chmod(0o755)
    assert exit_code(as_nobody, repairs, str(place)) == 0
    assert verify(repository, epoch=4).is_intact
