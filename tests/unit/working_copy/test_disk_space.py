"""Working copies on a disk: found, kept while in use, removed when there are too many."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st

import statekit as sk
from statekit.cli import copies as cli_copies
from statekit.runtime.local import LocalRunner
from statekit.working_copy.copies import DiskCopies, MemoryCopies
from statekit.working_copy.disk_space import CopySpace
from statekit.working_copy.lock import DirectoryLock
from tests.support.command_line import statekit
from tests.support.counting_job import Entry, comparable, copied_rows
from tests.support.counting_job_runs import advance, check_rows, obtain, rows_after, runner
from tests.support.killable_processes import start
from tests.support.small_disk import small_disk

MIB = 1024 * 1024
AT = datetime(2013, 1, 1, tzinfo=UTC)
LEFT = "0123456789abcdef" * 2
"""What is behind the dot in names of what a killed process left."""


def look_again(copies: DiskCopies) -> None:
    """Let the last look be long ago."""
    for note in copies.root.rglob("tidied"):
        os.utime(note, (0, 0))


def ranges(copies: DiskCopies) -> set[tuple[int, int]]:
    return {copy.groups for copy in CopySpace(copies.root).copies()}


# ------------------------------------------------------------------------------------------ found


def test_copies_are_found_with_their_owners_and_sizes(root: Path, copies: DiskCopies) -> None:
    made = runner(root, copies, 2)
    advance(made)
    held = obtain(made, 1)
    first, second = sorted(CopySpace(copies.root).copies(), key=lambda copy: copy.groups)
    assert (first.groups, second.groups) == ((0, 3), (4, 7))
    assert {first.operator, second.operator} == {"tally"}
    assert first.checkpoint_id == made.coordinator.job_file.id
    assert first.bytes == sum(f.stat().st_size for f in first.home.rglob("*") if f.is_file())
    assert abs(first.last_used_us / 1e6 - time.time()) < 3600
    assert (first.is_in_use, second.is_in_use) == (False, True)
    held.abandon()
    assert not second.is_in_use


def test_a_copy_whose_private_twin_is_in_use_is_in_use(root: Path, copies: DiskCopies) -> None:
    made = runner(root, copies)
    advance(made)
    one, two = obtain(made), obtain(made)
    one.abandon()
    (found,) = CopySpace(copies.root).copies()
    assert found.is_in_use
    # To remove the other one, which nobody uses, does no harm to it.
    assert CopySpace(copies.root).remove(found.home)
    assert dict(two.backend.scan("total", b"", b"\xff"))
    two.abandon()
    check_rows(made)


def test_a_copy_whose_base_another_process_uploads_is_not_removed(
    root: Path, copies: DiskCopies
) -> None:
    made = runner(root, copies)
    advance(made)
    (found,) = CopySpace(copies.root).copies()
    staged = found.home / "snapshots" / "1"
    staged.mkdir(parents=True)
    lock = DirectoryLock.take(staged)
    assert lock is not None
    assert not CopySpace(copies.root).remove(found.home)
    check_rows(made)
    lock.release()
    assert CopySpace(copies.root).remove(found.home)
    assert not staged.exists()
    check_rows(made)


# ------------------------------------------------------------------------------------- too much


def test_copies_over_the_limit_go_the_least_recently_used_first_and_never_one_in_use(
    root: Path, copies: DiskCopies
) -> None:
    made = runner(root, copies, 4)
    advance(made)
    for age, copy in enumerate(sorted(CopySpace(copies.root).copies(), key=lambda c: c.groups)):
        os.utime(copy.home / "lock", (age, age))
        (copy.home / "db" / "ballast").write_bytes(bytes(2 * MIB))
    held = obtain(made, 1)
    os.utime(copies.root.joinpath(*_home(made, 1), "lock"), (0, 0))  # the oldest of all
    limited = DiskCopies(copies.root, sk.RocksOptions(disk_limit_bytes=5 * MIB))
    look_again(limited)
    limited.tidy(made.coordinator.plans("tally"))
    assert ranges(copies) == {(2, 3), (6, 7)}
    held.abandon()
    check_rows(made)
    advance(runner(root, limited))
    check_rows(runner(root, limited))


def _home(made: LocalRunner, shard: int) -> tuple[str, str, str]:
    first, last = made.coordinator.plans("tally")[shard].base.groups
    return made.coordinator.job_file.id, "tally", f"{first}-{last}"


def test_files_that_copies_share_are_counted_once(root: Path, copies: DiskCopies) -> None:
    advance(runner(root, copies, 1), 1, 3000)
    halves = runner(root, copies, 2)
    check_rows(halves)  # made of links to the files of the first
    found = CopySpace(copies.root).copies()
    once = sum({file: size for copy in found for file, size in copy.files.items()}.values())
    assert sum(copy.bytes for copy in found) > once > MIB // 32
    limit = max(once, MIB)
    CopySpace(copies.root, sk.RocksOptions(disk_limit_bytes=limit)).make_room()
    assert len(ranges(copies)) == 3


def test_where_the_disk_is_short_of_space_copies_of_jobs_that_rest_make_room_for_a_new_one(
    tmp_path: Path,
) -> None:
    with small_disk(tmp_path / "disk") as disk:
        options = sk.RocksOptions(disk_reserve_bytes=4 * MIB)
        copies = DiskCopies(disk.path / "local", options)
        old = runner(tmp_path / "old", copies)
        advance(old)
        (home,) = (copy.home for copy in CopySpace(copies.root).copies())
        (home / "db" / "ballast").write_bytes(bytes(5 * MIB))
        advance(runner(tmp_path / "new", copies))
        assert home.exists()  # it was used just now
        os.utime(home / "lock", (0, 0))
        newer = runner(tmp_path / "newer", copies)
        advance(newer)
        assert not home.exists()
        assert len(CopySpace(copies.root).copies()) == 2
        for made in (old, newer):
            check_rows(made)


def test_the_disk_is_checked_at_intervals_whatever_the_clock_does(
    root: Path, copies: DiskCopies
) -> None:
    limited = DiskCopies(copies.root, sk.RocksOptions(disk_limit_bytes=MIB))
    made = runner(root, limited, 2)
    advance(made)
    for copy in CopySpace(copies.root).copies():
        (copy.home / "db" / "ballast").write_bytes(bytes(MIB))
    limited.tidy(made.coordinator.plans("tally"))
    assert len(ranges(copies)) == 2  # somebody has just looked
    ahead = time.time() + 1e6  # and then the clock was set back
    os.utime(copies.root / "tidied", (ahead, ahead))
    limited.tidy(made.coordinator.plans("tally"))
    assert len(ranges(copies)) < 2


# -------------------------------------------------------------------------------- without any use


def test_copies_of_a_layout_go_when_no_shard_is_to_be_made_of_them(
    root: Path, copies: DiskCopies
) -> None:
    advance(runner(root, copies, 1))
    made = runner(root, copies, 2)
    look_again(copies)
    made.epoch({"records": [Entry("k1", 1)]})  # one of the two stands on its own
    look_again(copies)
    advance(made, 1, 0)
    assert (0, 7) in ranges(copies)
    advance(made)
    look_again(copies)
    advance(made)
    assert ranges(copies) == {(0, 3), (4, 7)}
    check_rows(made)


def test_files_of_killed_processes_are_removed(root: Path, copies: DiskCopies) -> None:
    made = runner(root, copies)
    advance(made)
    (copy,) = CopySpace(copies.root).copies()
    shutil.copytree(copy.home / "db", copy.home / f"private.{LEFT}" / "db")
    shutil.copytree(copy.home / "db", copies.root / f"removed.{LEFT}")
    look_again(copies)
    copies.tidy(made.coordinator.plans("tally"))
    assert sorted(path.name for path in copy.home.iterdir()) == ["clean", "db", "lock"]
    assert not (copies.root / f"removed.{LEFT}").exists()


def test_files_of_others_stay(root: Path, copies: DiskCopies) -> None:
    advance(runner(root, copies))
    (copy,) = CopySpace(copies.root).copies()
    theirs = [copies.root / "notes.txt", copies.root / "a/b/c/d.txt", copy.home / "staged" / "1"]
    for path in theirs:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    assert CopySpace(copies.root).remove_all() == 1
    assert all(path.read_text() == "mine" for path in theirs)
    assert sorted(path.name for path in copy.home.iterdir()) == ["staged"]


@pytest.mark.parametrize(
    ("drain", "keep", "stays"),
    [(True, None, False), (True, True, True), (False, None, True), (False, False, False)],
)
def test_copies_are_removed_at_the_end_if_no_run_can_continue_or_on_request(
    tmp_path: Path, drain: bool, keep: bool | None, stays: bool
) -> None:
    job = sk.Job("timed")
    job.source("records", Timed).process(timed).sink("outputs")
    done = job.run(
        {"records": [Timed("a", AT), Timed("b", AT)]},
        checkpoint=tmp_path / "c",
        backend="rocksdb",
        working_directory=tmp_path / "local",
        drain=drain,
        keep_copies=keep,
    )
    assert sorted(done.outputs["outputs"]) == ["a", "b"]
    assert bool(CopySpace(tmp_path / "local").copies()) == stays
    left = [path.name for path in (tmp_path / "local").iterdir()]
    assert stays or left == ["tidied"]


class Timed(NamedTuple):
    key: str
    at: datetime


@sk.process(key="key", event_time="at")
def timed(record: Timed, last: sk.ValueState[datetime]) -> Iterator[str]:
    last.update(record.at)
    yield record.key


def test_copies_in_memory_of_another_layout_go_as_well(root: Path) -> None:
    copies = MemoryCopies()
    advance(runner(root, copies, 1))
    made = runner(root, copies, 2)
    advance(made, 2)
    assert {name[2:4] for name in copies.kept} == {(0, 3), (4, 7)}
    check_rows(made)
    copies.forget(made.coordinator.job_file.id)
    assert copies.kept == {}
    check_rows(made)


# -------------------------------------------------------------------------------------- at any time

STEPS = st.lists(
    st.one_of(
        st.just("epoch"),
        st.sampled_from(["rescale to 1", "rescale to 2", "rescale to 3"]),
        st.sampled_from(["remove 0", "remove 1", "remove all", "limit", "look"]),
    ),
    min_size=4,
    max_size=8,
)


@settings(max_examples=5, deadline=None)
@given(STEPS)
def test_whatever_is_removed_between_epochs_the_rows_are_those_that_were_committed(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str]
) -> None:
    place = tmp_path_factory.mktemp("any")
    copies = DiskCopies(place / "local")
    made = runner(place / "c", copies, 2)
    advance(made)
    for step in steps:
        what, _, number = step.rpartition(" ")
        space = CopySpace(copies.root, sk.RocksOptions(disk_limit_bytes=MIB))
        found = space.copies()
        if step == "epoch":
            advance(made)
        elif what == "rescale to":
            made = runner(place / "c", copies, int(number))
        elif step == "remove all":
            space.remove_all()
        elif what == "remove" and int(number) < len(found):
            assert space.remove(found[int(number)].home)
        elif step == "limit":
            space.make_room()
        elif step == "look":
            look_again(copies)
    check_rows(made)
    advance(made)
    check_rows(made)


def remove_while_it_runs(root: str, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        CopySpace(root).remove_all()
        time.sleep(0.005)


def test_a_job_whose_copies_are_always_removed_continues(root: Path, copies: DiskCopies) -> None:
    process = start(remove_while_it_runs, str(copies.root), 1.0)
    made = runner(root, copies, 2)
    while process.is_alive():
        advance(made)
    assert process.exitcode == 0
    made = runner(root, copies)
    assert comparable(copied_rows(made.coordinator, copies)) == rows_after(made.coordinator.epoch)


# ------------------------------------------------------------------------------------ command line


def copies_command(*words: object) -> subprocess.CompletedProcess[str]:
    return statekit("copies", *words, columns=200)


def test_the_command_shows_copies_and_removes_those_of_checkpoints_that_are_gone(
    root: Path, copies: DiskCopies
) -> None:
    made = runner(root, copies, 2)
    advance(made)
    lost = runner(root.with_name("lost"), copies, 3)
    advance(lost)
    held = obtain(made, 1)
    shutil.rmtree(root.with_name("lost"))
    shown = copies_command(copies.root)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.count("checkpoint is gone") == 3
    (line,) = (line for line in shown.stdout.splitlines() if "4–7" in line and "yes" in line)
    assert made.coordinator.job_file.id[:10] in line
    assert "5 copies" in shown.stdout
    cleaned = copies_command(copies.root, "--clean")
    assert "removed 3 copies" in cleaned.stdout
    assert ranges(copies) == {(0, 3), (4, 7)}
    assert "removed 1 copy of" in copies_command(copies.root, "--clean", "--all").stdout
    assert ranges(copies) == {(4, 7)}  # in use
    held.abandon()
    check_rows(made)


def test_the_command_gives_advice_for_a_missing_directory(tmp_path: Path) -> None:
    done = copies_command(tmp_path / "nowhere")
    assert done.returncode == 1
    assert "pass a job's working_directory" in done.stderr.replace("\n", " ")
    with pytest.raises(typer.BadParameter, match="--all goes with --clean"):
        cli_copies.copies(str(tmp_path), everything=True)


def test_the_command_leaves_directories_alone_that_are_only_called_like_ours(
    tmp_path: Path, root: Path, copies: DiskCopies
) -> None:
    photos = tmp_path / "home" / "removed.photos" / "a"
    private = tmp_path / "home" / "x" / "y" / "1-2" / f"private.{LEFT}"
    for directory in (photos, private):
        directory.mkdir(parents=True)
    (private.parent / "lock").touch()
    refused = copies_command(tmp_path / "home", "--clean", "--all")
    assert refused.returncode == 1
    assert "home is no working directory" in refused.stderr.replace("\n", " ")
    advance(runner(root, copies))
    (copy,) = CopySpace(copies.root).copies()
    theirs = [
        copies.root / "removed.photos" / "a",
        copies.root / "x" / "y" / "1-2" / f"private.{LEFT}",
        copy.home / "private.letters",
    ]
    ours = [copies.root / f"removed.{LEFT}" / "a", copy.home / f"private.{LEFT}"]
    for directory in (*theirs, *ours):
        directory.mkdir(parents=True)
    assert (
        "removed 0 copies of 0 bytes, and 2 leftovers"
        in copies_command(copies.root, "--clean").stdout
    )
    assert "removed 1 copy of" in copies_command(copies.root, "--clean", "--all").stdout
    assert all(map(Path.is_dir, [photos, private, *theirs]))
    assert not any(map(Path.exists, ours))


def test_the_command_asks_dead_stores_in_parallel(
    root: Path, copies: DiskCopies, monkeypatch: pytest.MonkeyPatch
) -> None:
    advance(runner(root, copies))
    (copy,) = CopySpace(copies.root).copies()
    ids = [f"{number:032x}" for number in range(8)]
    for checkpoint_id in ids:
        shutil.copytree(copy.home, copies.root / checkpoint_id / "tally" / copy.home.name)
        CopySpace(copies.root).note_origin(checkpoint_id, "s3://bucket/c")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
    began = time.monotonic()
    shown = copies_command(copies.root, "--clean")
    assert time.monotonic() - began < 60  # one after the other, and as jobs do, it is 24 minutes
    assert shown.stdout.count("unknown") == len(ids), shown.stderr
