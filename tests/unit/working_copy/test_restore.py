"""Shards that were cut out of others, restored on hosts that have nothing of them."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count, product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import statekit
from statekit.backend.range_partitioned import FragmentedBackend
from statekit.backend.rocksdb import RocksBackend, link_database
from statekit.backend.rocksdb_options import RocksOptions
from statekit.checkpoint.manifest import EpochManifest
from statekit.checkpoint.references import files_of
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.restore_plan import shard_restore_plan
from statekit.checkpoint.sealed_json import FileRef
from statekit.checkpoint.shard_contents import BaseSnapshot
from statekit.errors import CorruptCheckpointError, StorageError
from statekit.job.options import RunOptions
from statekit.keygroup import key_group
from statekit.maintenance.sizes import counted_sizes
from statekit.maintenance.verify.verify import verify
from statekit.query.rows.reader import CheckpointReader
from statekit.runtime.local import LocalRunner
from statekit.working_copy import base_lifecycle as base_keeping
from statekit.working_copy import base_options
from statekit.working_copy import clipping as pieces
from statekit.working_copy.base_options import BaseOptions
from statekit.working_copy.copies import DiskCopies, MemoryCopies
from statekit.working_copy.uploader import uploader
from tests.support.counting_job import (
    STATES,
    Entry,
    committed_rows,
    comparable,
    copied_rows,
    entries,
    rows_of,
    tally_job,
)
from tests.support.counting_job_runs import homes
from tests.support.killable_processes import die_at, exit_code
from tests.support.small_disk import files_of_at_most, small_disk

GROUPS = 8
EAGER = BaseOptions(replay_seconds=0, uploaded_per_changed=100)
"""A base as soon as one was uploaded."""

NONE = BaseOptions(bases=False)


def runner(root: Path, local: Path, bases: BaseOptions = EAGER, **options: Any) -> LocalRunner:
    copies = DiskCopies(local, bases=bases)
    return LocalRunner(tally_job(GROUPS).plan, Repository(root), copies, RunOptions(**options))


def advance(made: LocalRunner, epochs: int = 1, count: int = 200) -> None:
    for _ in range(epochs):
        made.epoch({"records": entries(made.coordinator.epoch, count, keys=60)})


def last_of(root: Path) -> EpochManifest:
    repository = Repository(root)
    epoch = repository.latest_epoch()
    assert epoch is not None
    return repository.manifest(epoch)


def on_bases(root: Path, local: Path, parallelism: int) -> None:
    """Run until each shard stands on a base."""
    made = runner(root, local, parallelism=parallelism)
    advance(made)
    while not all(shard.base for shard in last_of(root).operators["tally"].shards):
        advance(made)
        assert uploader().drain(60)


def expected_after(epochs: int, count: int = 200) -> dict[str, Any]:
    made = LocalRunner(tally_job(GROUPS).plan, Repository.in_memory(), MemoryCopies())
    advance(made, epochs, count)
    return comparable(committed_rows(made.coordinator.repository, GROUPS))


def epochs_in(root: Path) -> int:
    return last_of(root).epoch + 1


@pytest.fixture(autouse=True)
def _pieces_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """However small they are."""
    monkeypatch.setattr(pieces, "COPIED_BYTES", 0)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "c"


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The pieces whose rows were copied."""
    found: list[object] = []
    inner = pieces._copy

    def copy(piece: pieces.Piece, *others: Any) -> None:
        found.append(piece)
        inner(piece, *others)

    monkeypatch.setattr(pieces, "_copy", copy)
    return found


def check_new_host(root: Path, local: Path, parallelism: int) -> list[int]:
    """Restore all shards on a host that has nothing; how many databases each one has."""
    made = runner(root, local, parallelism=parallelism)
    expected = committed_rows(Repository(root), GROUPS)
    databases = []
    found: dict[str, dict[bytes, bytes]] = {state: {} for state in STATES}
    for plan in made.coordinator.plans("tally"):
        copy = made.copies.obtain(plan, STATES, made.coordinator.repository)
        first, last = plan.base.groups
        for state, rows in rows_of(copy.backend).items():
            assert all(first <= int.from_bytes(key[:2], "big") <= last for key in rows)
            found[state] |= rows
        assert isinstance(copy.backend, RocksBackend | FragmentedBackend)
        databases.append(len(copy.backend.sequences))
        copy.close_at(plan.base)
    assert found == expected
    return databases


# ------------------------------------------------------------------------------------ what is done


@pytest.mark.parametrize(
    ("before", "after", "databases"),
    [(1, 2, [1, 1]), (2, 1, [2]), (2, 3, [1, 2, 1]), (3, 2, [2, 2]), (4, 1, [4])],
)
def test_slices_of_bases_are_fetched_as_databases_and_no_row_is_copied(
    root: Path, tmp_path: Path, copied: list[object], before: int, after: int, databases: list[int]
) -> None:
    on_bases(root, tmp_path / "local", before)
    assert check_new_host(root, tmp_path / "new", after) == databases
    assert copied == []


def test_bases_are_found_through_any_chain_of_slices(
    root: Path, tmp_path: Path, copied: list[object]
) -> None:
    on_bases(root, tmp_path / "local", 1)
    for parallelism in (2, 3, 1, 4):
        advance(runner(root, tmp_path / "local", NONE, parallelism=parallelism))
    for shards in (1, 3):
        place = tmp_path / f"new-{shards}"
        assert check_new_host(root, place, shards) == [1] * shards, "all of one base"
    on_bases(root, tmp_path / "other", 3)
    for parallelism in (2, 1):
        advance(runner(root, tmp_path / "other", NONE, parallelism=parallelism))
    assert check_new_host(root, tmp_path / "again", 1) == [3]
    assert copied == []


def test_each_file_of_a_base_is_fetched_once_per_shard(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_bases(root, tmp_path / "local", 2)
    for parallelism in (4, 1):
        advance(runner(root, tmp_path / "local", NONE, parallelism=parallelism))
    fetched: Counter[str] = Counter()
    inner = Repository.fetch

    def fetch(repository: Repository, ref: FileRef, target: Path) -> None:
        fetched[ref.path] += 1
        inner(repository, ref, target)

    monkeypatch.setattr(Repository, "fetch", fetch)
    check_new_host(root, tmp_path / "new", 1)
    repository, (shard,) = Repository(root), last_of(root).operators["tally"].shards
    found = shard_restore_plan(repository, "tally", shard, epochs_in(root) - 1)
    named = {ref.path for base in found.bases for ref in files_of(base)}
    assert len(found.bases) == 2
    assert fetched == dict.fromkeys(named, 1)
    assert shard.base is None


def test_key_groups_of_a_base_on_both_sides_of_others_are_one_download(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_bases(root, tmp_path / "local", 1)
    made = runner(root, tmp_path / "local", parallelism=4)
    own = [record for record in entries(99, 400, keys=400) if group_of(record) in (2, 3)]
    while not last_of(root).operators["tally"].shards[1:2] or not (
        last_of(root).operators["tally"].shards[1].base
    ):
        made.epoch({"records": own})
        assert uploader().drain(60)
    shards = last_of(root).operators["tally"].shards
    assert [shard.base is not None for shard in shards] == [False, True, False, False]
    links: list[Path] = []

    def link(source: Path, target: Path) -> None:
        links.append(target)
        link_database(source, target)

    monkeypatch.setattr("statekit.working_copy.restore.link_database", link)
    assert check_new_host(root, tmp_path / "new", 1) == [3]
    assert len(links) == 1
    advance(runner(root, tmp_path / "new", parallelism=1), 2)
    assert check_new_host(root, tmp_path / "newer", 1) == [3]


def group_of(record: Entry) -> int:
    return key_group(record.key, GROUPS)


def test_shards_of_a_host_share_the_tables_that_one_of_them_fetched(
    root: Path, tmp_path: Path
) -> None:
    on_bases(root, tmp_path / "local", 1)
    check_new_host(root, tmp_path / "new", 2)
    homes = [path.parent for path in (tmp_path / "new").rglob("clean")]
    one, other = ({path.stat().st_ino for path in home.rglob("*.sst")} for home in homes)
    assert one & other


def test_small_and_too_many_databases_are_copied_into_the_one_beside_them(
    root: Path, tmp_path: Path, copied: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_bases(root, tmp_path / "local", 4)
    monkeypatch.setattr(pieces, "FRAGMENTS_MAX", 3)
    assert check_new_host(root, tmp_path / "few", 1) == [3]
    assert len(copied) == 1
    monkeypatch.setattr(pieces, "COPIED_BYTES", 1 << 20)
    assert check_new_host(root, tmp_path / "one", 1) == [1]
    assert len(copied) == 4
    advance(runner(root, tmp_path / "one", parallelism=1))
    rows = comparable(copied_rows_of(root, tmp_path / "one", 1))
    assert rows == expected_after(epochs_in(root))


def copied_rows_of(root: Path, local: Path, parallelism: int) -> dict[str, dict[bytes, bytes]]:
    made = runner(root, local, parallelism=parallelism)
    return copied_rows(made.coordinator, made.copies)


def test_a_part_that_is_on_this_host_is_linked_and_the_others_are_fetched(
    root: Path, tmp_path: Path, copied: list[object]
) -> None:
    on_bases(root, tmp_path / "local", 3)
    checkpoint_id = next((tmp_path / "local").glob("*/tally")).parent.name
    shutil.rmtree(next((tmp_path / "local" / checkpoint_id / "tally").glob("0-*")))
    shutil.rmtree(next((tmp_path / "local" / checkpoint_id / "tally").glob("*-7")))
    assert check_new_host(root, tmp_path / "local", 1) == [3]
    assert copied == []


def test_a_base_is_taken_of_a_copy_that_was_cut_and_contains_no_other_rows(
    root: Path, tmp_path: Path
) -> None:
    on_bases(root, tmp_path / "local", 1)
    on_bases(root, tmp_path / "new", 2)
    repository, shards = Repository(root), last_of(root).operators["tally"].shards
    held = [
        {ref.path for ref in files_of(repository.sealed(BaseSnapshot, shard.base))}
        for shard in shards
        if shard.base is not None
    ]
    assert len(held) == 2
    assert not held[0] & held[1], "a base names no table that another shard brought"
    assert check_new_host(root, tmp_path / "newer", 2) == [1, 1]
    assert comparable(committed_rows(repository, GROUPS)) == expected_after(epochs_in(root))


def test_a_copy_keeps_no_rows_of_other_shards_once_it_has_a_base_of_its_own(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base_keeping, "SMALL_BYTES", 0)
    monkeypatch.setattr(base_options, "SMALL_BYTES", 0)
    runner(root, tmp_path / "local").epoch({"records": entries(0, 4_000, keys=4_000)})
    on_bases(root, tmp_path / "local", 1)
    whole = table_bytes(tmp_path / "local")
    check_new_host(root, tmp_path / "new", 4)
    assert table_bytes(tmp_path / "new") >= 0.9 * whole, "they share the tables of all"
    on_bases(root, tmp_path / "new", 4)
    fetched: list[str] = []
    inner = Repository.fetch

    def fetch(repository: Repository, ref: FileRef, target: Path) -> None:
        fetched.append(ref.path)
        inner(repository, ref, target)

    monkeypatch.setattr(Repository, "fetch", fetch)
    advance(runner(root, tmp_path / "new", NONE), 3, 20)
    assert not [path for path in fetched if path.endswith(".sst")], "they were on this host"
    for place in (tmp_path / "new").rglob("snapshots"):
        assert not list(place.iterdir())
    again = len(fetched)
    advance(runner(root, tmp_path / "new", NONE), 1, 20)
    assert len(fetched) == again, "once is enough"
    for copy in (tmp_path / "new").rglob("db"):
        assert table_bytes(copy) < 0.6 * whole
    rows = comparable(copied_rows_of(root, tmp_path / "new", 4))
    assert rows == comparable(committed_rows(Repository(root), GROUPS))


def table_bytes(place: Path) -> int:
    files = {path.stat().st_ino: path.stat().st_size for path in place.rglob("*.sst")}
    return sum(files.values())


# ---------------------------------------------------------------------------------- other states


@pytest.mark.parametrize(
    "states", [("total", "new"), ("parity", "seen", "total", "new", "newer"), ("seen",)]
)
def test_states_that_came_or_went_since_the_base_cost_no_copying(
    root: Path, tmp_path: Path, copied: list[object], states: tuple[str, ...]
) -> None:
    on_bases(root, tmp_path / "local", 2)
    made = runner(root, tmp_path / "new", parallelism=1)
    (plan,) = made.coordinator.plans("tally")
    copy = made.copies.obtain(plan, states, made.coordinator.repository)
    committed = committed_rows(Repository(root), GROUPS)
    assert rows_of(copy.backend, states) == {name: committed.get(name, {}) for name in states}
    copy.close_at(plan.base)
    copy = made.copies.obtain(plan, states, made.coordinator.repository)
    assert rows_of(copy.backend, states) == {name: committed.get(name, {}) for name in states}
    copy.abandon()
    assert copied == []
    assert committed_rows(Repository(root), GROUPS) == committed, "tables are shared, not changed"


def test_commands_read_shards_through_the_databases_of_their_bases(
    root: Path, tmp_path: Path, copied: list[object]
) -> None:
    on_bases(root, tmp_path / "local", 2)
    advance(runner(root, tmp_path / "local", NONE, parallelism=3))
    reader = CheckpointReader(root)
    sizes = counted_sizes(reader, "tally").states
    assert sizes["total"].rows == len(committed_rows(Repository(root), GROUPS)["total"])
    assert verify(Repository(root)).is_intact
    assert copied == []


# ----------------------------------------------------------------------------------------- damage


def lose(path: Path) -> None:
    path.unlink()


def cut_short(path: Path) -> None:
    os.truncate(path, 5)


def overwrite(path: Path) -> None:
    path.write_bytes(b"x" * path.stat().st_size)


@pytest.mark.parametrize(
    ("kind", "damage", "told"),
    [
        ("sst", lose, "is missing"),
        ("sst", overwrite, "truncated or altered"),
        ("rocksdb", cut_short, "truncated or altered"),
        ("base.json", lose, "is missing"),
        ("base.json", overwrite, "truncated or altered"),
    ],
)
def test_a_damaged_file_of_a_slices_base_is_named_and_no_epoch_is_committed(
    root: Path, tmp_path: Path, kind: str, damage: Callable[[Path], object], told: str
) -> None:
    on_bases(root, tmp_path / "local", 2)
    shutil.copytree(root, tmp_path / "backup")
    shard = last_of(root).operators["tally"].shards[1]
    assert shard.base is not None
    names = [ref.path for ref in files_of(Repository(root).sealed(BaseSnapshot, shard.base))]
    file = next(root / name for name in [*names, shard.base.path] if name.endswith(kind))
    epochs, content = epochs_in(root), file.read_bytes()
    file.unlink()  # the working copy has it as well
    file.write_bytes(content)
    damage(file)
    made = runner(root, tmp_path / "new", parallelism=3)
    with pytest.raises(CorruptCheckpointError, match=told) as raised:
        advance(made)
    assert file.name in str(raised.value)
    assert epochs_in(root) == epochs
    assert uploader().drain(60)
    shutil.rmtree(root)
    (tmp_path / "backup").rename(root)
    advance(runner(root, tmp_path / "new", parallelism=3))
    rows = comparable(copied_rows_of(root, tmp_path / "new", 3))
    assert rows == expected_after(epochs + 1)


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_table_that_is_damaged_on_this_host_fails_one_epoch_of_a_shard_and_is_fetched_again(
    root: Path, tmp_path: Path, parallelism: int
) -> None:
    runner(root, tmp_path / "local").epoch({"records": entries(0, 2_000, keys=2_000)})
    on_bases(root, tmp_path / "local", 1)
    with other_disk() as elsewhere:
        shutil.copytree(root, elsewhere / "c")
        caches = count(70_000)

        def epoch(keys: int) -> None:
            options = RocksOptions(block_cache_bytes=next(caches))  # a new one, with nothing in it
            copies = DiskCopies(tmp_path / "new", options, bases=NONE)
            checkpoint = Repository(elsewhere / "c")
            made = LocalRunner(
                tally_job(GROUPS).plan, checkpoint, copies, RunOptions(parallelism=parallelism)
            )
            made.epoch({"records": entries(made.coordinator.epoch, keys, keys=keys)})

        epoch(10)
        for table in {
            path.stat().st_ino: path for path in (tmp_path / "new").rglob("*.sst")
        }.values():
            spoil(table)
        told = [error_of(partial(epoch, 2_000)) for _ in range(parallelism + 1)]
        assert told[0] is not None
        assert told[-1] is None
        rows = copied_rows_of(elsewhere / "c", tmp_path / "new", parallelism)
        assert rows == committed_rows(Repository(elsewhere / "c"), GROUPS)


def spoil(table: Path) -> None:
    """Turn bytes where rows are, as a disk does it: nobody wrote the file."""
    before, content = table.stat(), bytearray(table.read_bytes())
    half = len(content) // 2
    content[: half // 2] = bytes(byte ^ 0xFF for byte in content[: half // 2])
    with table.open("r+b") as file:
        file.write(content)
    os.utime(table, ns=(before.st_atime_ns, before.st_mtime_ns))


@contextmanager
def other_disk() -> Iterator[Path]:
    """A directory whose files cannot be linked into the temporary one."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place:
        if os.stat(place).st_dev == os.stat(tempfile.gettempdir()).st_dev:
            pytest.skip("there is no other disk here")
        yield Path(place)


# ---------------------------------------------------------------------------------------- killed

INSTANTS = {
    "between two files": ("checkpoint.repository.Repository.fetch", False, 3),
    "before it is noted what was fetched": ("working_copy.base_snapshot.note_stored", True, 1),
    "after a database is cut": ("working_copy.clipping._trim", False, 1),
    "between two databases": ("working_copy.clipping._taken", False, 1),
    "after rows are copied": ("working_copy.clipping._copy", False, 1),
    "before change files are applied": ("working_copy.restore.assembled", False, 1),
    "when the second shard is": ("working_copy.restore.restored", False, 2),
}


def restore_and_die(root: str, local: str, instant: tuple[str, bool, int]) -> None:
    name, before, call = instant
    pieces.COPIED_BYTES, pieces.FRAGMENTS_MAX = 0, 1 if name == "working_copy.clipping._copy" else 8
    die_at(statekit, name, before=before, call=call)
    advance(runner(Path(root), Path(local), parallelism=2))


def test_who_is_killed_while_restoring_leaves_nothing_that_is_trusted(
    root: Path, tmp_path: Path
) -> None:
    on_bases(root, tmp_path / "local", 3)
    epochs, expected = epochs_in(root), expected_after(epochs_in(root) + 1)
    for number, instant in enumerate(INSTANTS.values()):
        checkpoint, local = tmp_path / f"c-{number}", tmp_path / f"new-{number}"
        shutil.copytree(root, checkpoint)
        assert exit_code(restore_and_die, str(checkpoint), str(local), instant) == -9, instant
        assert epochs_in(checkpoint) == epochs
        advance(runner(checkpoint, local, parallelism=2))
        assert comparable(copied_rows_of(checkpoint, local, 2)) == expected
        assert not list(local.rglob("pieces"))


# -------------------------------------------------------------------------------------- full disk


def test_a_full_disk_during_a_restore_is_an_error_and_nothing_is_lost(
    root: Path, tmp_path: Path
) -> None:
    made = runner(root, tmp_path / "local", parallelism=3)
    for seed in range(3):
        made.epoch({"records": entries(seed, 3_000, keys=3_000)})
        assert uploader().drain(60)
    assert all(shard.base for shard in last_of(root).operators["tally"].shards)
    epochs, failed = epochs_in(root), 0
    with small_disk(tmp_path / "disk") as disk:
        for leave in (0, 20_000, 60_000, 120_000, 200_000, 300_000):
            local = disk.path / f"{leave}"
            local.mkdir()
            disk.fill(leave)
            made = runner(root, local, parallelism=2)
            told = error_of(partial(copied_rows, made.coordinator, made.copies))
            failed += told is not None
            assert told is None or str(local) in told
            disk.make_space()
            assert epochs_in(root) == epochs
            found = copied_rows_of(root, local, 2)
            assert found == committed_rows(Repository(root), GROUPS)
            shutil.rmtree(local)
    assert failed >= 3


def test_a_disk_without_a_free_byte_is_an_error_for_every_write(root: Path, tmp_path: Path) -> None:
    """Where tables are linked, the first bytes written are notes of the copy's own."""
    made = runner(root, tmp_path / "local", parallelism=3)
    for seed in range(3):
        made.epoch({"records": entries(seed, 3_000, keys=3_000)})
        assert uploader().drain(60)
    epochs, failed, local = epochs_in(root), 0, tmp_path / "elsewhere"
    for parallelism, most in product((3, 2), (0, 100, 400, 1_000, 2_000, 5_000, 20_000)):
        made = runner(root, local, parallelism=parallelism)
        for home in homes(DiskCopies(local)) if local.exists() else ():
            shutil.rmtree(home)
        with files_of_at_most(most):
            told = error_of(partial(copied_rows, made.coordinator, made.copies))
        failed += told is not None
        assert told is None or str(local) in told
        assert copied_rows_of(root, local, parallelism) == committed_rows(Repository(root), GROUPS)
    assert failed >= 4
    assert epochs_in(root) == epochs


def error_of(work: Callable[[], object]) -> str | None:
    """What a `StorageError` says; None if there is none."""
    try:
        work()
    except StorageError as error:
        return str(error)
    return None


# ------------------------------------------------------------------------------------- everything


class Restores(RuleBasedStateMachine):
    """A job that is rescaled and moves to new hosts while bases come and go."""

    @initialize(pieces_max=st.integers(1, 4), copied=st.sampled_from([0, 0, 20_000]))
    def begin(self, pieces_max: int, copied: int) -> None:
        self.patched = pytest.MonkeyPatch()
        self.patched.setattr(pieces, "FRAGMENTS_MAX", pieces_max)
        self.patched.setattr(pieces, "COPIED_BYTES", copied)
        self.home = Path(tempfile.mkdtemp(prefix="statekit-restores-"))
        self.root = self.home / "c"
        self.hosts = 1
        self.parallelism = 1
        self.records: list[list[Entry]] = []

    @property
    def local(self) -> Path:
        return self.home / f"host-{self.hosts}"

    @rule(count=st.integers(1, 60), groups=st.sets(st.integers(0, GROUPS - 1), min_size=1))
    def run(self, count: int, groups: set[int]) -> None:
        """Records for some key groups, so that other shards stay what they are."""
        made = runner(self.root, self.local, parallelism=self.parallelism)
        seed = len(self.records)
        records = [r for r in entries(seed, count, keys=100) if group_of(r) in groups]
        made.epoch({"records": records})
        self.records.append(records)

    @rule()
    def upload(self) -> None:
        assert uploader().drain(60)

    @rule(parallelism=st.integers(1, 5))
    def rescale(self, parallelism: int) -> None:
        self.parallelism = parallelism

    @rule()
    def move_to_a_new_host(self) -> None:
        assert uploader().drain(60)
        self.hosts += 1

    @precondition(lambda self: self.records)
    @rule(parallelism=st.integers(1, 5))
    def restore(self, parallelism: int) -> None:
        new = self.home / "new"
        check_new_host(self.root, new, parallelism)
        found = copied_rows_of(self.root, new, parallelism)
        assert found == committed_rows(Repository(self.root), GROUPS), "the copies are trusted"
        shutil.rmtree(new)

    def teardown(self) -> None:
        self.upload()
        if self.records:
            reference = LocalRunner(tally_job(GROUPS).plan, Repository.in_memory(), MemoryCopies())
            for records in self.records:
                reference.epoch({"records": records})
            expected = comparable(committed_rows(reference.coordinator.repository, GROUPS))
            assert comparable(committed_rows(Repository(self.root), GROUPS)) == expected
            copied = copied_rows_of(self.root, self.local, self.parallelism)
            assert comparable(copied) == expected
        self.patched.undo()
        shutil.rmtree(self.home)


TestRestores = Restores.TestCase
TestRestores.settings = settings(max_examples=10, stateful_step_count=10, deadline=None)
