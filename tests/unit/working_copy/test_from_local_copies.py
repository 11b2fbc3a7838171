"""Working copies made out of those of other shards: what they share, and when they are not used."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from statekit import working_copy
from statekit.backend.range_partitioned import FragmentedBackend
from statekit.backend.rocksdb import RocksBackend, link_database
from statekit.checkpoint.repository import Repository
from statekit.job.options import RunOptions
from statekit.runtime.local import LocalRunner
from statekit.working_copy import clipping as pieces
from statekit.working_copy.copies import DiskCopies, MemoryCopies
from tests.support.counting_job import STATES, comparable, copied_rows, entries, rows_of, tally_job
from tests.support.killable_processes import die_at, exit_code
from tests.support.mutations import Put, batch_of

GROUPS = 32
PER_EPOCH = 300


def runner(home: Path, parallelism: int) -> LocalRunner:
    copies = DiskCopies(home / "local")
    repository = Repository(home / "checkpoint")
    return LocalRunner(
        tally_job(GROUPS).plan, repository, copies, RunOptions(parallelism=parallelism)
    )


def advance(home: Path, parallelism: int) -> LocalRunner:
    """One more epoch, by a process that starts with so many shards."""
    made = runner(home, parallelism)
    made.epoch({"records": entries(made.coordinator.epoch, PER_EPOCH, keys=60)})
    return made


def reference(epochs: int) -> dict[str, Any]:
    """What an undisturbed run in memory holds after so many epochs."""
    copies = MemoryCopies()
    made = LocalRunner(tally_job(GROUPS).plan, Repository.in_memory(), copies)
    for epoch in range(epochs):
        made.epoch({"records": entries(epoch, PER_EPOCH, keys=60)})
    return comparable(copied_rows(made.coordinator, copies))


def held(home: Path, parallelism: int) -> dict[str, Any]:
    made = runner(home, parallelism)
    return comparable(copied_rows(made.coordinator, made.copies))


@pytest.fixture(autouse=True)
def _pieces_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """However small they are."""
    monkeypatch.setattr(pieces, "COPIED_BYTES", 0)


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many change files were replayed, per call."""
    counted: list[int] = []
    inner = Repository.replay

    def replay(self: Repository, backend: Any, refs: list[Any], first: int, last: int) -> None:
        counted.append(len(refs))
        inner(self, backend, refs, first, last)

    monkeypatch.setattr(Repository, "replay", replay)
    return counted


def copy_of(home: Path, first: int, last: int) -> Path:
    (found,) = (home / "local").glob(f"*/tally/{first}-{last}")
    return found


def tables(copy: Path) -> set[int]:
    return {path.stat().st_ino for path in copy.rglob("*.sst")}


@pytest.mark.parametrize(("before", "after"), [(4, 8), (8, 4), (3, 5), (5, 3), (1, 7), (7, 1)])
def test_a_change_of_parallelism_replays_nothing(
    tmp_path: Path, replays: list[int], before: int, after: int
) -> None:
    advance(tmp_path, before)
    advance(tmp_path, after)
    assert sum(replays) == 0
    assert held(tmp_path, after) == reference(2)
    assert sum(replays) == 0, "the new copies are trusted"


def test_new_shards_share_the_files_of_those_they_came_from(tmp_path: Path) -> None:
    advance(tmp_path, 2)
    old = tables(copy_of(tmp_path, 0, 15))
    made = runner(tmp_path, 4)
    for number in (0, 1):
        plan = made.coordinator.plans("tally")[number]
        copy = made.copies.obtain(plan, STATES, made.coordinator.repository)
        assert old <= tables(copy_of(tmp_path, *plan.base.groups))
        groups = {key[1] for rows in rows_of(copy.backend).values() for key in rows}
        first, last = plan.base.groups
        assert groups
        assert all(first <= group <= last for group in groups), "of no other shard"
        copy.close_at(plan.base)
    assert old == tables(copy_of(tmp_path, 0, 15)), "the source stays as it is"


def test_shards_that_are_merged_become_fragments_until_there_are_too_many(
    tmp_path: Path, replays: list[int]
) -> None:
    for parallelism, fragments in ((8, 1), (4, 2), (2, 4), (1, 8)):
        made = advance(tmp_path, parallelism)
        plan = made.coordinator.plans("tally")[0]
        copy = made.copies.obtain(plan, STATES, made.coordinator.repository)
        ranges = json.loads((copy_of(tmp_path, *plan.base.groups) / "clean").read_text())
        assert len(ranges.get("fragments", [1])) == fragments
        assert isinstance(copy.backend, FragmentedBackend) == (fragments > 1)
        copy.abandon()
    advance(tmp_path, 16)
    shutil.rmtree(copy_of(tmp_path, 0, 31))  # its missed changes would be applied
    advance(tmp_path, 1)
    mark = json.loads((copy_of(tmp_path, 0, 31) / "clean").read_text())
    assert len(mark["fragments"]) == pieces.FRAGMENTS_MAX == 8, "the others are copied into these"
    assert not (copy_of(tmp_path, 0, 31) / "pieces").exists()
    assert sum(replays) == 0
    assert held(tmp_path, 1) == reference(6)


def test_small_pieces_become_one_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    for parallelism in (3, 1, 2, 1):
        made = advance(tmp_path, parallelism)
    plan = made.coordinator.plans("tally")[0]
    copy = made.copies.obtain(plan, STATES, made.coordinator.repository)
    assert isinstance(copy.backend, RocksBackend)
    copy.abandon()
    assert held(tmp_path, 1) == reference(4)


def test_a_copy_that_is_older_than_the_cut_applies_the_missing_changes(
    tmp_path: Path, replays: list[int]
) -> None:
    advance(tmp_path, 2)
    shutil.copytree(tmp_path / "local", tmp_path / "older")
    advance(tmp_path, 2)
    shutil.rmtree(tmp_path / "local")
    (tmp_path / "older").rename(tmp_path / "local")
    replays.clear()
    advance(tmp_path, 4)
    assert replays == [1, 1, 1, 1], "the change files of one epoch, and not of two"
    assert held(tmp_path, 4) == reference(3)


def without_mark(copy: Path) -> None:
    (copy / "clean").unlink()


def without_a_table(copy: Path) -> None:
    for path in copy.rglob("*.sst"):
        path.unlink()


def of_other_states(copy: Path) -> None:
    mark = json.loads((copy / "clean").read_text())
    (copy / "clean").write_text(json.dumps({**mark, "states": ["other"]}))


def at_an_unknown_attempt(copy: Path) -> None:
    mark = json.loads((copy / "clean").read_text())
    (copy / "clean").write_text(json.dumps({**mark, "attempt": "unknown", "last": "unknown"}))


def of_garbage(copy: Path) -> None:
    (copy / "clean").write_text("[1]")


def gone(copy: Path) -> None:
    shutil.rmtree(copy)


@pytest.mark.parametrize(
    "spoil",
    [without_mark, without_a_table, of_other_states, at_an_unknown_attempt, of_garbage, gone],
)
@pytest.mark.parametrize(("before", "after"), [(2, 4), (4, 2)])
def test_parts_without_a_copy_are_replayed(
    tmp_path: Path, replays: list[int], before: int, after: int, spoil: Callable[[Path], None]
) -> None:
    made = advance(tmp_path, before)
    spoil(copy_of(tmp_path, *made.coordinator.plans("tally")[0].base.groups))
    advance(tmp_path, after)
    assert sum(replays) > 0
    assert held(tmp_path, after) == reference(2)


def test_a_copy_in_use_is_not_touched(tmp_path: Path, replays: list[int]) -> None:
    advance(tmp_path, 2)
    with (copy_of(tmp_path, 0, 15) / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        advance(tmp_path, 4)
    assert sum(replays) > 0
    assert held(tmp_path, 4) == reference(2)


def test_files_that_cannot_be_linked_are_copied(
    tmp_path: Path, replays: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def on_another_device(*given: Any, **options: Any) -> None:
        if not options:
            raise OSError(18, "Invalid cross-device link")
        link(*given, **options)  # within the checkpoint

    advance(tmp_path, 2)
    monkeypatch.setattr(os, "link", on_another_device)
    advance(tmp_path, 4)
    assert sum(replays) == 0
    assert held(tmp_path, 4) == reference(2)


def test_a_linked_database_and_its_source_go_ways_of_their_own(tmp_path: Path) -> None:
    source = RocksBackend(tmp_path / "a", ["s"])
    source.write(batch_of([Put("s", b"\0\1k", b"old")]))
    source.flush()
    source.close()
    link_database(tmp_path / "a", tmp_path / "b")
    linked = RocksBackend(tmp_path / "b", ["s"], create=False)
    linked.write(batch_of([Put("s", b"\0\1k", b"new")]))
    linked.flush()
    linked.close()
    shutil.rmtree(tmp_path / "b")
    source = RocksBackend(tmp_path / "a", ["s"], create=False)
    assert source.get("s", b"\0\1k") == b"old"
    source.close()


# ---------------------------------------------------------------------------------------- killed

INSTANTS = {
    "before anything is linked": ("restore.link_database", True, 1),
    "between two sources": ("restore.link_database", False, 1),
    "before the fragments are opened": ("restore.assembled", True, 1),
    "before a piece is trimmed": ("clipping._trim", True, 1),
    "after a piece is trimmed": ("clipping._trim", False, 1),
    "between two pieces": ("clipping._taken", False, 1),
    "before a piece is copied": ("clipping._copy", True, 1),
    "after a piece is copied": ("clipping._copy", False, 1),
    "when the copy is assembled": ("restore.Assembly.made", False, 1),
    "when the second shard is": ("restore.Assembly.made", False, 2),
}


def rescale_and_die(home: str, after: int, instant: tuple[str, bool, int]) -> None:
    name, before, call = instant
    pieces.COPIED_BYTES = 0
    die_at(working_copy, name, before=before, call=call)
    advance(Path(home), after)


@pytest.mark.parametrize("instant", INSTANTS.values(), ids=INSTANTS)
def test_a_process_that_is_killed_while_it_puts_a_copy_together_leaves_none(
    tmp_path: Path, instant: tuple[str, bool, int]
) -> None:
    before, after = (9, 1) if instant[0] == "clipping._copy" else (3, 5)
    advance(tmp_path, before)
    assert exit_code(rescale_and_die, str(tmp_path), after, instant) == -9
    assert Repository(tmp_path / "checkpoint").epochs() == [0]
    advance(tmp_path, after)
    assert held(tmp_path, after) == reference(2)
    assert not list((tmp_path / "local").rglob("pieces"))
