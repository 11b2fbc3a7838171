"""A full disk at any step: an error that says where, and nothing is lost once there is space."""

from __future__ import annotations

import datetime as dt
import functools
import re
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import statekit as sk
from statekit.backend.rocksdb import RocksBackend
from statekit.checkpoint import rollback
from statekit.checkpoint.gc.collector import Collector
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.store import Store
from statekit.maintenance.migrate import Migration
from statekit.maintenance.rescale.offline import rescale_offline
from statekit.maintenance.rewrite import rewrite_checkpoint
from statekit.maintenance.savepoint.write import write_savepoint
from statekit.maintenance.verify.verify import verify
from statekit.query.rows.reader import CheckpointReader
from statekit.runtime.local import LocalRunner
from statekit.working_copy.base_snapshot import StagedSnapshot
from statekit.working_copy.copies import DiskCopies
from statekit.working_copy.directory import DirectoryLease
from tests.support import counting_job_runs as tally_runs
from tests.support.counting_job import committed_rows, comparable, copied_rows
from tests.support.counting_job_runs import (
    EAGER,
    GROUPS,
    SMALL_BUFFER,
    records_of,
    rows_after,
    runner,
    uploaded,
)
from tests.support.small_disk import SmallDisk, small_disk
from tests.support.timeouts import PATIENCE_S
from tests.unit.maintenance.test_operator_state_kept import (
    EVENTS,
    SPECS,
    held,
    job,
    made,
    migrating,
)

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


def test_a_full_local_disk_is_an_error_where_rows_are_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = made(tmp_path / "checkpoint")
    monkeypatch.setattr(
        "statekit.working_copy.unpacked_shard._FEW_BYTES", 0
    )  # as if there were many rows
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


# ------------------------------------------------------------------------ each step of an epoch


def job_at(checkpoint: Path, local: Path, parallelism: int | None = None) -> LocalRunner:
    return runner(checkpoint, DiskCopies(local, SMALL_BUFFER), parallelism)


advance = functools.partial(tally_runs.advance, count=400)


def check(made: LocalRunner, epochs: int) -> None:
    assert made.coordinator.repository.latest_epoch() == epochs - 1
    expected = rows_after(epochs, 400)
    assert comparable(committed_rows(made.coordinator.repository, GROUPS)) == expected
    assert comparable(copied_rows(made.coordinator, made.copies)) == expected


def full_from(
    patched: pytest.MonkeyPatch, disk: SmallDisk, owner: type, name: str, path: str = ""
) -> list[bool]:
    """Fill the disk just before a step; for files of a store, those with this in their path."""
    step, filled = getattr(owner, name), list[bool]()

    def fill_first(self: object, *args: Any, **given: Any) -> Any:
        if not filled and (not path or path in args[0]):
            filled.append(True)
            disk.fill()
        return step(self, *args, **given)

    patched.setattr(owner, name, fill_first)
    return filled


@pytest.mark.parametrize(
    ("owner", "step"),
    [
        (DirectoryLease, "clear_mark"),
        (RocksBackend, "write"),
        (RocksBackend, "flush"),
        (RocksBackend, "close"),
        (DirectoryLease, "set_mark"),
    ],
)
def test_a_working_copy_whose_disk_is_full_at_any_step_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: type, step: str
) -> None:
    monkeypatch.setattr("statekit.backend.mutation.BATCH_ROWS_MAX", 100)  # so that epochs spill
    with small_disk(tmp_path / "disk") as disk:
        made = job_at(tmp_path / "c", disk.path / "local")
        advance(made, 2)
        with monkeypatch.context() as patched:
            filled = full_from(patched, disk, owner, step)
            with pytest.raises(sk.StorageError, match=r"working copy at .*/disk/local/.* start"):
                advance(made)
        assert filled
        assert made.coordinator.repository.latest_epoch() == 1
        disk.make_space()
        advance(made)
        check(made, 3)


@pytest.mark.parametrize("kind", ["as they are", "merged each time", "made of others", "made anew"])
def test_with_little_space_left_copies_are_right_or_their_epoch_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """So much is left that it runs out in one step after the other, whatever the steps are."""
    if kind == "merged each time":
        monkeypatch.setattr("statekit.backend.rocksdb.SORTED_RUNS_MAX", 0)
    failed = 0
    with small_disk(tmp_path / "disk") as disk:
        made = job_at(tmp_path / "c", disk.path / "local", 2)
        advance(made)
        for number, leave in enumerate(range(0, 150_000, 25_000)):
            if kind == "made of others":
                made = job_at(tmp_path / "c", disk.path / "local", 1 + number % 2)
            elif kind == "made anew":
                made.copies.forget(made.coordinator.job_file.id)
            disk.fill(leave)
            epoch = made.coordinator.epoch
            try:
                advance(made)
            except sk.StorageError as error:
                failed += 1
                assert f"{disk.path}/local/" in str(error)  # noqa: PT017
                assert made.coordinator.repository.latest_epoch() == epoch - 1
            disk.make_space()
        # A copy of one database that cannot be opened is removed, which may make room enough.
        assert failed or kind == "merged each time"
        advance(made)
        check(made, made.coordinator.epoch)


@pytest.mark.parametrize(
    ("step", "path"),
    [
        ("put_file", ".changes.arrow"),
        ("put_file", ".history.json"),
        ("create", "epochs/"),
        ("create", "begun"),
        ("create", "job"),
    ],
)
def test_a_checkpoint_whose_disk_is_full_at_any_step_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, path: str
) -> None:
    """Further kinds of files of a checkpoint belong in the list above."""
    monkeypatch.setattr(
        "statekit.checkpoint.references.FILES_MAX", 1
    )  # so that there are histories
    with small_disk(tmp_path / "disk") as disk:
        place = disk.path / "c"
        epochs = 0 if path == "job" else 2
        if epochs:
            advance(job_at(place, tmp_path / "local"), epochs)

        def go_on() -> LocalRunner:
            made = job_at(place, tmp_path / "local")
            made.coordinator.notes_beginnings = True
            advance(made)
            return made

        with monkeypatch.context() as patched:
            filled = full_from(patched, disk, Store, step, path)
            with pytest.raises(sk.StorageError, match=rf"cannot write .*/disk/c/.*{path}.* start"):
                go_on()
        assert filled
        disk.make_space()
        check(go_on(), epochs + 1)


# ------------------------------------------------------------- beside epochs, and behind them


def full_during(
    patched: pytest.MonkeyPatch,
    disk: SmallDisk,
    owner: type,
    name: str,
    path: str,
    committed: threading.Event,
) -> list[bool]:
    """Fill the disk for one step, once, and make space when it has failed."""
    step, filled = getattr(owner, name), list[bool]()

    def fill_meanwhile(self: object, *args: Any, **given: Any) -> Any:
        if filled or path not in str(args[:1]):
            return step(self, *args, **given)
        filled.append(True)
        if threading.current_thread() is not threading.main_thread():
            # The disk is to be full for what goes on beside the epoch.
            assert committed.wait(PATIENCE_S)
        disk.fill()
        try:
            return step(self, *args, **given)
        finally:
            disk.make_space()

    patched.setattr(owner, name, fill_meanwhile)
    return filled


@pytest.mark.parametrize(
    ("full", "owner", "step", "path"),
    [
        pytest.param("local", StagedSnapshot, "write", "staged.json", id="staging a base"),
        pytest.param("local", StagedSnapshot, "write", "finished.json", id="noting a base"),
        pytest.param("c", Store, "put_path", ".sst", id="uploading a base"),
        pytest.param("c", Store, "put_file", ".base.json", id="naming a base"),
    ],
)
def test_a_full_disk_beside_epochs_is_logged_and_no_epoch_fails(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    full: str,
    owner: type,
    step: str,
    path: str,
) -> None:
    with small_disk(tmp_path / "disk") as disk:
        places = {"c": tmp_path / "c", "local": tmp_path / "local"} | {full: disk.path / full}
        copies = DiskCopies(places["local"], SMALL_BUFFER, bases=EAGER)
        made = runner(places["c"], copies)
        advance_and_upload(made, 1, 4)
        with monkeypatch.context() as patched:
            committed = threading.Event()
            filled = full_during(patched, disk, owner, step, path, committed)
            advance_and_upload(made, 2, 4, committed)
        assert filled
        assert re.search(r"tr(ied|ies) again", caplog.text)
        assert "No space left" in caplog.text
        advance_and_upload(made, 3, 4)
        shard = made.coordinator.plans("tally")[0].base
        assert shard.base is not None
        assert shard.chain.files < made.coordinator.epoch


def advance_and_upload(
    made: LocalRunner, epochs: int, count: int, committed: threading.Event | None = None
) -> None:
    for _ in range(epochs):
        if committed is not None:
            committed.clear()
        made.epoch({"records": records_of(made.coordinator.epoch, count)})
        if committed is not None:
            committed.set()
        uploaded()


def test_a_collection_on_a_full_disk_deletes_nothing_and_can_be_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_disk(tmp_path / "disk") as disk:
        made = job_at(disk.path / "c", tmp_path / "local")
        advance(made, 4)
        repository = made.coordinator.repository
        before = sorted(repository.tree(""))
        collector = Collector(repository, sk.Retention(epochs=1), grace=dt.timedelta(0))
        with monkeypatch.context() as patched:
            filled = full_from(patched, disk, Store, "create", ".first")
            with pytest.raises(sk.StorageError, match=r"cannot write .*/disk/c/epochs/.*\.first"):
                collector.collect(sweep=True)
        assert filled
        # The note that closes the epochs to new readers stays: the mark may have been written.
        notes = [path for path in repository.tree("") if path.endswith(".closed")]
        assert len(notes) == 1
        assert sorted(repository.tree("")) == sorted([*before, *notes])
        disk.make_space()
        done = collector.collect(sweep=True)
        assert done is not None
        assert (done.first, repository.epochs()) == (3, [3])
        assert not any(path.endswith(".closed") for path in repository.tree(""))
        disk.fill()
        assert collector.collect(sweep=False) is not None, "what only deletes needs no space"
        disk.make_space()
        advance(made)
        check(made, 5)


def test_a_full_temporary_directory_is_named_by_what_reads_a_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = DiskCopies(tmp_path / "local", bases=EAGER)
    made = runner(tmp_path / "c", copies)
    advance_and_upload(made, 3, 400)
    repository = made.coordinator.repository
    right = committed_rows(repository, GROUPS)
    with small_disk(tmp_path / "disk") as disk, monkeypatch.context() as patched:
        patched.setattr(tempfile, "tempdir", str(disk.path))
        disk.fill()
        with pytest.raises(sk.StorageError, match="disk"):
            committed_rows(repository, GROUPS)
        with pytest.raises(sk.StorageError, match="disk"):
            CheckpointReader(tmp_path / "c").get("tally", "total", "k1")
        found = verify(repository)
        assert {finding.kind for finding in found.findings} == {"unreadable"}
        assert not found.is_damaged
        disk.make_space()
        assert verify(repository).is_intact
        assert committed_rows(repository, GROUPS) == right
        assert list(disk.path.iterdir()) == []


def test_a_savepoint_on_a_full_disk_is_none_and_can_be_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_disk(tmp_path / "disk") as disk:
        made = job_at(disk.path / "c", tmp_path / "local")
        advance(made, 2)
        for step, path in (("put_file", "savepoints/"), ("create", "savepoints/")):
            with monkeypatch.context() as patched:
                filled = full_from(patched, disk, Store, step, path)
                with pytest.raises(sk.StorageError, match=r"cannot write .*/disk/c/savepoints/s"):
                    write_savepoint(made.coordinator.repository, "s")
            assert filled
            disk.make_space()
            advance(made)
        write_savepoint(made.coordinator.repository, "s")
        check(made, 4)


def test_a_full_temporary_directory_is_named_by_the_epoch_that_outgrows_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("statekit.backend.change_file._SPOOL_BYTES_MAX", 1000)
    made = job_at(tmp_path / "c", tmp_path / "local")
    advance(made, 2)
    with small_disk(tmp_path / "disk") as disk, monkeypatch.context() as patched:
        patched.setattr(tempfile, "tempdir", str(disk.path))
        disk.fill()
        with pytest.raises(
            sk.StorageError, match=r"cannot write a change file to .*/disk: .*TMPDIR"
        ):
            advance(made)
        disk.make_space()
        advance(made)
        assert list(disk.path.iterdir()) == []  # change files in the making have no name
        check(made, 3)
