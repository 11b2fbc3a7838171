from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from statekit.backend import mutation, rocksdb
from statekit.backend.interface import MemoryBackend
from statekit.backend.rocksdb import RocksBackend
from statekit.checkpoint.paths import epoch_path
from statekit.checkpoint.repository import Repository
from statekit.errors import CorruptCheckpointError, StatekitError, StorageError
from statekit.runtime.coordinator import Coordinator
from statekit.runtime.local import LocalRunner
from statekit.testing import Harness
from statekit.working_copy import copies as copies_module
from statekit.working_copy.copies import DiskCopies, MemoryCopies, WorkingCopies
from tests.support.counting_job import (
    STATES,
    Entry,
    committed_rows,
    comparable,
    copied_rows,
    plain_state,
    rows_of,
    state_of,
    tally_job,
)
from tests.support.counting_job import tally as tally_process
from tests.support.counting_job_runs import (
    GROUPS,
    SMALL_BUFFER,
    advance,
    check_rows,
    homes,
    obtain,
    records_of,
    rows_after,
    runner,
)
from tests.support.effort import SOAK
from tests.support.hidden_rows import hide_rows, show_rows
from tests.support.killable_processes import die, die_at, exit_code, start
from tests.support.mutations import Put, batch_of
from tests.support.small_disk import small_disk

SPILLING = 300
"""So many records of an epoch are spilled several times."""


# ---------------------------------------------------------------------------------------- random


def run_until_killed(root: str, local: str) -> None:
    """Epoch after epoch, spilling often."""
    mutation.BATCH_ROWS_MAX = 30
    made = runner(Path(root), DiskCopies(local, SMALL_BUFFER), 2)
    while True:
        advance(made, 1, 150)


def latest_in(root: Path) -> int:
    names = (root / "epochs").glob("*.json")  # cheap, as it is asked in a loop
    return max((int(path.stem) for path in names), default=-1)


@pytest.mark.slow
def test_after_a_kill_at_any_instant_the_copies_have_the_committed_state(tmp_path: Path) -> None:
    root, local = tmp_path / "c", tmp_path / "local"
    chosen, seen = random.Random(5), -1
    for number in range(20 if SOAK else 8):
        process = start(run_until_killed, str(root), str(local))
        deadline = time.monotonic() + 60
        while latest_in(root) <= seen:
            assert time.monotonic() < deadline, "no epoch was committed"
            time.sleep(0.005)
        time.sleep(chosen.uniform(0, 0.15))
        process.kill()
        process.join()
        assert process.exitcode == -9
        repository = Repository(root)
        seen = latest_in(root)
        expected = rows_after(seen + 1, 150)
        assert comparable(committed_rows(repository, GROUPS)) == expected
        if number % 3 != 2:  # at times, the next process meets what this one left
            coordinator = Coordinator.open(tally_job(GROUPS).plan, repository)
            assert comparable(copied_rows(coordinator, DiskCopies(local))) == expected


# -------------------------------------------------------------------------------------- targeted

Instant = tuple[str, bool, int]
"""A method, whether to die before or after it, and at which of its calls in epoch 1."""

INSTANTS: dict[str, Instant] = {
    "before the mark is removed": ("DirectoryLease.clear_mark", True, 1),
    "after the mark is removed": ("DirectoryLease.clear_mark", False, 1),
    "after the first spill": ("_DiskCopy.write", False, 1),
    "after the second spill": ("_DiskCopy.write", False, 2),
    "before the first shard is kept": ("_DiskCopy.close_at", True, 1),
    "before the flush": ("RocksBackend.flush", True, 1),
    "between the flushes of two states": ("flush of one state", False, 1),
    "after the flush": ("RocksBackend.flush", False, 1),
    "before the close": ("RocksBackend.close", True, 1),
    "between close and mark": ("DirectoryLease.set_mark", True, 1),
    "after the mark": ("DirectoryLease.set_mark", False, 1),
    "in the flush of the second shard": ("RocksBackend.flush", False, 2),
    "after the second shard is kept": ("_DiskCopy.close_at", False, 2),
}


def run_and_die(root: str, local: str, instant: Instant) -> None:
    mutation.BATCH_ROWS_MAX = 50
    made = runner(Path(root), DiskCopies(local, SMALL_BUFFER), 2)
    advance(made, 1, SPILLING)
    name, before, call = instant
    if name == "flush of one state":
        for_one_state(made, Path(root))
    else:
        owner = rocksdb if name.startswith("RocksBackend") else copies_module
        die_at(owner, name, before=before, call=call)
    advance(made, 1, SPILLING)


def for_one_state(made: LocalRunner, root: Path) -> None:
    """Die when one column family was flushed, and the others were not."""

    def flush(backend: RocksBackend) -> None:
        backend._families["seen"].flush()
        die()

    RocksBackend.flush = flush  # type: ignore[method-assign, assignment]


@pytest.mark.parametrize("instant", INSTANTS.values(), ids=INSTANTS)
def test_a_copy_of_a_killed_process_is_intact_or_not_used(tmp_path: Path, instant: Instant) -> None:
    root, local = tmp_path / "c", tmp_path / "local"
    assert exit_code(run_and_die, str(root), str(local), instant) == -9
    coordinator = Coordinator.open(tally_job(GROUPS).plan, Repository(root))
    assert coordinator.last is not None
    assert coordinator.last.epoch == 0
    assert comparable(copied_rows(coordinator, DiskCopies(local))) == rows_after(1, SPILLING)
    advance(runner(root, DiskCopies(local)), 1, SPILLING)
    coordinator = Coordinator.open(tally_job(GROUPS).plan, Repository(root))
    assert comparable(copied_rows(coordinator, DiskCopies(local))) == rows_after(2, SPILLING)


# ----------------------------------------------------------------------------- trusted or rebuilt


def test_copy_that_was_closed_cleanly_is_used_without_reading_the_checkpoint(
    root: Path, copies: DiskCopies
) -> None:
    made = runner(root, copies, 2)
    advance(made, 3)
    expected = committed_rows(made.coordinator.repository, GROUPS)
    hide_rows(root)
    assert copied_rows(made.coordinator, copies) == expected
    assert copied_rows(Coordinator.open(tally_job().plan, Repository(root)), copies) == expected


def test_copy_of_an_older_epoch_reads_only_newer_files(root: Path, copies: DiskCopies) -> None:
    made = runner(root, copies, 2)
    advance(made, 3)
    old = {path.name for path in (root / "data" / "tally").iterdir()}
    elsewhere = runner(root, DiskCopies(copies.root.with_name("other")))
    advance(elsewhere, 3)
    expected = committed_rows(Repository(root), GROUPS)
    for name in old:
        (root / "data" / "tally" / name).unlink()
    assert copied_rows(elsewhere.coordinator, copies) == expected
    hide_rows(root)  # and now it is at the newest attempt
    assert copied_rows(elsewhere.coordinator, copies) == expected


def test_copy_that_was_written_and_dropped_is_rebuilt(root: Path, copies: DiskCopies) -> None:
    made = runner(root, copies)
    advance(made, 2)
    copy = obtain(made)
    copy.write(batch_of([Put("total", b"\0\0wrong", b"wrong")]))
    copy.abandon()
    expected = committed_rows(made.coordinator.repository, GROUPS)
    hide_rows(root)
    with pytest.raises(CorruptCheckpointError, match="is missing"):
        copied_rows(made.coordinator, copies)
    show_rows(root)
    assert copied_rows(made.coordinator, copies) == expected


def test_copy_that_was_only_read_stays_trusted(root: Path, copies: DiskCopies) -> None:
    made = runner(root, copies)
    advance(made, 1)
    obtain(made).abandon()
    hide_rows(root)
    copied_rows(made.coordinator, copies)


def no_mark(home: Path) -> None:
    (home / "clean").unlink()


def empty_mark(home: Path) -> None:
    (home / "clean").write_bytes(b"")


def half_a_mark(home: Path) -> None:
    mark = home / "clean"
    mark.write_bytes(mark.read_bytes()[:-5])


def mark_of_another_kind(home: Path) -> None:
    (home / "clean").write_text("[]")


def binary_mark(home: Path) -> None:
    (home / "clean").write_bytes(b"\xff\xfe\x00")


def mark_of_another_attempt(home: Path) -> None:
    mark = json.loads((home / "clean").read_text())
    (home / "clean").write_text(json.dumps({**mark, "attempt": "f" * 32}))


def no_database(home: Path) -> None:
    shutil.rmtree(home / "db")


def emptied_database(home: Path) -> None:
    shutil.rmtree(home / "db")
    (home / "db").mkdir()


def no_tables(home: Path) -> None:
    for table in (home / "db").glob("*.sst"):
        table.unlink()


def no_current(home: Path) -> None:
    (home / "db" / "CURRENT").unlink()


def truncated_tables(home: Path) -> None:
    for table in (home / "db").glob("*.sst"):
        table.write_bytes(table.read_bytes()[:-10])


def no_manifest(home: Path) -> None:
    for manifest in (home / "db").glob("MANIFEST*"):
        manifest.unlink()


@pytest.mark.parametrize(
    "damage",
    [
        no_mark,
        empty_mark,
        half_a_mark,
        mark_of_another_kind,
        binary_mark,
        mark_of_another_attempt,
        no_database,
        emptied_database,
        no_tables,
        no_current,
        truncated_tables,
        no_manifest,
    ],
)
def test_damaged_copy_is_rebuilt(
    root: Path, copies: DiskCopies, damage: Callable[[Path], None]
) -> None:
    made = runner(root, copies, 2)
    advance(made, 2)
    for home in homes(copies):
        damage(home)
    expected = committed_rows(made.coordinator.repository, GROUPS)
    assert copied_rows(made.coordinator, copies) == expected
    hide_rows(root)
    assert copied_rows(made.coordinator, copies) == expected


def test_copy_with_an_unreadable_block_fails_the_epoch_and_is_then_rebuilt(
    root: Path, copies: DiskCopies
) -> None:
    made = runner(root, copies)
    advance(made, 1, 2000)
    (home,) = homes(copies)
    for table in (home / "db").glob("*.sst"):
        data = bytearray(table.read_bytes())
        data[: len(data) // 2] = bytes(len(data) // 2)
        table.write_bytes(data)
    with pytest.raises(StorageError, match="cannot read the working copy"):
        advance(made, 1, 2000)
    assert made.coordinator.repository.latest_epoch() == 0
    advance(made, 1, 2000)
    expected = rows_after(2, 2000)
    assert comparable(copied_rows(made.coordinator, copies)) == expected


def test_error_that_the_users_function_swallowed_still_fails_the_epoch(
    root: Path, copies: DiskCopies
) -> None:
    made = runner(root, copies)
    advance(made, 1)
    plan = made.coordinator.plans("tally")[0]
    copy = obtain(made)
    assert isinstance(copy.backend, RocksBackend)
    copy.backend.failed = True
    with pytest.raises(StorageError, match="failed during this epoch"):
        copy.close_at(plan.base)
    copy.abandon()
    hide_rows(root)
    with pytest.raises(CorruptCheckpointError):  # it is not trusted again
        copied_rows(made.coordinator, copies)


def test_copy_of_another_checkpoint_is_never_used(
    tmp_path: Path, root: Path, copies: DiskCopies
) -> None:
    one, other = runner(root, copies), runner(tmp_path / "c2", copies)
    one.epoch({"records": [Entry("a", 1)]})
    other.epoch({"records": [Entry("b", 2)]})
    for made in (one, other):
        check_rows(made)
    assert len(homes(copies)) == 2


def test_copies_of_two_branches_of_one_checkpoint_are_never_mixed(
    tmp_path: Path, root: Path, copies: DiskCopies
) -> None:
    made = runner(root, copies, 2)
    advance(made, 1)
    shutil.copytree(root, tmp_path / "branch")
    made.epoch({"records": [Entry("a", 1)]})
    branch = runner(tmp_path / "branch", copies, 2)
    branch.epoch({"records": [Entry("b", 2)]})
    for parallelism in (2, 1, 3, 2):
        for place in (root, tmp_path / "branch"):
            check_rows(runner(place, copies, parallelism))


def test_rolled_back_epoch_that_is_made_again_is_not_taken_from_the_copy(
    root: Path, copies: DiskCopies
) -> None:
    advance(runner(root, copies, 2), 1)
    for record in (Entry("a", 1), Entry("a", 2)):
        (root / epoch_path(1)).unlink(missing_ok=True)
        made = runner(root, copies)
        made.epoch({"records": [record]})
        for parallelism in (2, 1):
            check_rows(runner(root, copies, parallelism))


def test_changed_parallelism_slices_the_copies(root: Path, copies: DiskCopies) -> None:
    for parallelism in (1, 3, 2, 8, 1):
        made = runner(root, copies, parallelism)
        check_rows(made)
        advance(made, 1)
        check_rows(made)
    harness = Harness(tally_process, checkpoint=root)
    model = plain_state(record for epoch in range(5) for record in records_of(epoch))
    assert state_of(harness, model) == model


@pytest.mark.parametrize("kind", ["disk", "memory"])
def test_copy_without_a_new_state_is_rebuilt_with_it(
    root: Path, copies: DiskCopies, kind: str
) -> None:
    kept: WorkingCopies = copies if kind == "disk" else MemoryCopies()
    made = runner(root, kept)
    advance(made, 2)
    plan, repository = made.coordinator.plans("tally")[0], made.coordinator.repository
    copy = obtain(made, 0, (*STATES, "new"))
    assert rows_of(copy.backend) == committed_rows(repository, GROUPS)
    assert list(copy.backend.scan("new", b"", b"\xff")) == []
    copy.close_at(plan.base)
    fewer = obtain(made, 0, STATES[:2])
    assert rows_of(fewer.backend, STATES[:2]).keys() == {"total", "seen"}
    fewer.close_at(plan.base)


@pytest.mark.parametrize("kind", ["disk", "memory"])
def test_second_attempt_at_a_shard_gets_a_copy_of_its_own(
    root: Path, copies: DiskCopies, kind: str
) -> None:
    kept: WorkingCopies = copies if kind == "disk" else MemoryCopies()
    made = runner(root, kept)
    advance(made, 2)
    expected = committed_rows(made.coordinator.repository, GROUPS)
    one, two = obtain(made), obtain(made)
    one.write(batch_of([Put("total", b"\0\0one", b"1")]))
    two.write(batch_of([Put("total", b"\0\0two", b"2")]))
    assert one.backend.get("total", b"\0\0two") is two.backend.get("total", b"\0\0one") is None
    one.abandon()
    two.abandon()
    assert copied_rows(made.coordinator, kept) == expected
    if kind == "disk":
        assert len(homes(copies)) == 1  # the private one is gone


def test_a_private_copy_whose_owner_was_killed_is_removed(root: Path, copies: DiskCopies) -> None:
    made = runner(root, copies)
    advance(made, 2)
    (home,) = homes(copies)
    abandoned = home / f"private.{'0' * 32}"
    (abandoned / "db").mkdir(parents=True)
    (abandoned / "lock").touch()
    advance(made, 1)
    assert not abandoned.exists()


def run_while_held(root: str, local: str) -> None:
    advance(runner(Path(root), DiskCopies(local)), 1)


def test_another_process_is_not_blocked_by_a_copy_in_use(root: Path, copies: DiskCopies) -> None:
    made = runner(root, copies)
    advance(made, 1)
    held = obtain(made)
    assert exit_code(run_while_held, str(root), str(copies.root)) == 0
    held.abandon()
    assert Repository(root).latest_epoch() == 1
    check_rows(runner(root, copies))


def test_copy_is_free_again_after_every_way_of_giving_it_back(
    root: Path, copies: DiskCopies, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = runner(root, copies)
    advance(made, 1)
    plan = made.coordinator.plans("tally")[0]
    copy = obtain(made)
    copy.close_at(plan.base)
    copy.abandon()  # giving it back twice is nothing
    with pytest.raises(StatekitError, match="obtain it again"):
        _ = copy.backend

    def fail(_: object) -> None:
        raise StorageError("disk on fire")

    copy = obtain(made)
    copy.write(batch_of([Put("total", b"\0\0k", b"v")]))
    with monkeypatch.context() as patched:
        patched.setattr(RocksBackend, "flush", fail)
        with pytest.raises(StorageError, match="on fire"):
            copy.close_at(plan.base)
        copy.abandon()
    obtain(made).abandon()
    assert len(homes(copies)) == 1


def test_copies_directory_that_cannot_be_made_is_a_storage_error(
    tmp_path: Path, root: Path
) -> None:
    (tmp_path / "file").write_text("")
    made = runner(root, DiskCopies(tmp_path / "file"))
    with pytest.raises(StorageError, match="cannot use the working copy at"):
        advance(made, 1)


def test_full_local_disk_fails_the_epoch_and_is_overcome_when_space_returns(
    tmp_path: Path, root: Path
) -> None:
    with small_disk(tmp_path / "disk") as disk:
        copies = DiskCopies(disk.path / "local", SMALL_BUFFER)
        made = runner(root, copies)
        advance(made, 1, SPILLING)
        disk.fill()
        with pytest.raises(StorageError):
            advance(made, 1, SPILLING)
        with pytest.raises(StorageError):
            advance(made, 1, SPILLING)
        assert Repository(root).latest_epoch() == 0
        disk.make_space()
        advance(made, 1, SPILLING)
        found = comparable(copied_rows(made.coordinator, copies))
        assert found == rows_after(2, SPILLING)


def test_copies_in_memory_restore_rows_that_were_written_and_dropped(root: Path) -> None:
    copies = MemoryCopies()
    made = runner(root, copies)
    advance(made, 2)
    copy = obtain(made)
    assert isinstance(copy.backend, MemoryBackend)
    copy.write(batch_of([Put("total", b"\0\0wrong", b"wrong")]))
    copy.abandon()
    check_rows(made)
