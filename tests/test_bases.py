"""Shards on bases, while whole jobs run."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import statekit as sk
from statekit import base_keeping, merging
from statekit.backend import MemoryBackend
from statekit.base_options import BaseOptions
from statekit.lineage import lineage_of, load, local_rows
from statekit.local import LocalRunner
from statekit.manifest import EpochManifest, ShardReport
from statekit.references import References, base_snapshot
from statekit.repository import Repository
from statekit.rollback import plan
from statekit.testing import Harness
from statekit.uploader import _in_process, uploader
from statekit.working_copy import DiskCopies, MemoryCopies, WorkingCopies
from tests.children import start
from tests.tally import (
    STATES,
    Entry,
    committed_rows,
    comparable,
    copied_rows,
    entries,
    plain_state,
    rows_of,
    state_of,
    tally,
    tally_job,
)

GROUPS = 8
EAGER = BaseOptions(replay_seconds=0, uploaded_per_changed=100)
"""A base as soon as one was uploaded."""

MERGING = BaseOptions(replay_seconds=0, uploaded_per_changed=100, bases=False)


def runner(root: Path, copies: WorkingCopies, **options: Any) -> LocalRunner:
    return LocalRunner(tally_job(GROUPS), Repository(root), copies, **options)


def advance(made: LocalRunner, epochs: int, count: int = 40) -> None:
    for _ in range(epochs):
        made.epoch({"records": entries(made.coordinator.epoch, count)})


def uploaded() -> None:
    assert uploader().drain(60)


def bases_in(manifest: EpochManifest) -> list[str]:
    shards = manifest.operators["tally"].shards
    return [shard.base.path for shard in shards if shard.base is not None]


def last_of(root: Path) -> EpochManifest:
    repository = Repository(root)
    epoch = repository.latest_epoch()
    assert epoch is not None
    return repository.manifest(epoch)


def expected_after(epochs: int, count: int = 40) -> dict[str, Any]:
    made = LocalRunner(tally_job(GROUPS), Repository.in_memory(), MemoryCopies())
    advance(made, epochs, count)
    return comparable(committed_rows(made.coordinator.repository, GROUPS))


def keep_only_what_is_named(root: Path) -> None:
    """Remove every file that the last manifest does not lead to."""
    repository, last = Repository(root), last_of(root)
    named = {ref.path for ref in References(repository).of_manifest(last)}
    for path in list(repository.tree("data")):
        if path not in named:
            (root / path).unlink()
    for manifest in (root / "epochs").iterdir():
        if int(manifest.stem) != last.epoch:
            manifest.unlink()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "c"


@pytest.fixture
def copies(tmp_path: Path) -> DiskCopies:
    return DiskCopies(tmp_path / "local", bases=EAGER)


def test_a_shard_names_a_base_once_it_is_uploaded_and_drops_what_is_in_it(
    root: Path, copies: DiskCopies
) -> None:
    made = runner(root, copies, parallelism=2)
    advance(made, 12)
    uploaded()
    advance(made, 1)
    last = last_of(root)
    assert len(bases_in(last)) == 2
    for shard in last.operators["tally"].shards:
        assert shard.base is not None
        assert shard.history is None
        base = base_snapshot(made.coordinator.repository, shard.base)
        assert base.epoch <= 11
        assert base.states == STATES
        assert len(shard.files) == shard.chain.files
        assert shard.chain.files <= 13 - base.epoch
    keep_only_what_is_named(root)
    assert comparable(committed_rows(Repository(root), GROUPS)) == expected_after(13)


def test_a_new_host_starts_from_the_base_and_reads_no_older_file(
    root: Path, copies: DiskCopies
) -> None:
    made = runner(root, copies, parallelism=2)
    advance(made, 6)
    uploaded()
    advance(made, 2)
    uploaded()
    keep_only_what_is_named(root)
    other = DiskCopies(copies.root.with_name("other"), bases=EAGER)
    elsewhere = runner(root, other)
    expected = committed_rows(Repository(root), GROUPS)
    assert copied_rows(elsewhere.coordinator, other) == expected
    advance(elsewhere, 2)
    assert comparable(committed_rows(Repository(root), GROUPS)) == expected_after(10)


def test_a_host_with_an_old_copy_catches_up_through_a_base(root: Path, copies: DiskCopies) -> None:
    advance(runner(root, copies), 3)
    other = DiskCopies(copies.root.with_name("other"), bases=EAGER)
    elsewhere = runner(root, other)
    for _ in range(4):
        advance(elsewhere, 1)
        uploaded()
    advance(elsewhere, 1)
    keep_only_what_is_named(root)
    assert copied_rows(runner(root, copies).coordinator, copies) == committed_rows(
        Repository(root), GROUPS
    )


class Word(NamedTuple):
    word: str


@sk.process(key="word")
def seen_words(
    word: Word,
    count: sk.ValueState[int],
    log: Annotated[sk.OperatorListState[str], sk.Redistribute("union")],
) -> None:
    count.update((count.get() or 0) + 1)
    log.append(word.word)


def words_in(root: Path) -> list[list[str]]:
    """What each shard has in its log, read without any database."""
    repository, last = Repository(root), last_of(root)
    stored, _ = repository.job_file(last.job_file.path) or (None, None)
    assert stored is not None
    operator = stored.operator("seen_words")
    assert operator is not None
    found = local_rows(repository, operator, last)["log"]
    return [[msgspec.msgpack.decode(row) for _, row in rows] for rows in found]


def test_state_of_shards_is_read_from_a_base_without_its_database(
    root: Path, copies: DiskCopies
) -> None:
    job = sk.Job("words", key_groups=GROUPS)
    job.source("words", Word).process(seen_words)
    given = [f"w{number}" for number in range(60)]
    for start_at in range(0, 60, 10):
        made = LocalRunner(job, Repository(root), copies, parallelism=2)
        made.epoch({"words": [{"word": word} for word in given[start_at : start_at + 10]]})
        uploaded()
    (shards,) = (operator.shards for operator in last_of(root).operators.values())
    assert all(shard.base is not None for shard in shards)
    keep_only_what_is_named(root)
    for table in (root / "data").rglob("*.sst"):
        table.rename(table.with_suffix(".hidden"))
    assert sorted(word for words in words_in(root) for word in words) == sorted(given)
    for hidden in (root / "data").rglob("*.hidden"):
        hidden.rename(hidden.with_suffix(".sst"))
    shutil.rmtree(copies.root)
    made = LocalRunner(job, Repository(root), copies, parallelism=1)
    made.epoch({"words": [{"word": "last"}]})
    (held,) = words_in(root)
    assert sorted(held) == sorted([*given, "last"])


def test_an_idle_shard_stays_what_it_is(root: Path, copies: DiskCopies) -> None:
    made = runner(root, copies, parallelism=2)
    advance(made, 3)
    uploaded()
    before = last_of(root).operators["tally"].shards
    made.epoch({"records": []})
    assert last_of(root).operators["tally"].shards == before


def test_bases_can_be_turned_off(root: Path, tmp_path: Path) -> None:
    none = BaseOptions(replay_seconds=0, bases=False, merges=False)
    made = runner(root, DiskCopies(tmp_path / "local", bases=none))
    advance(made, 12)
    uploaded()
    advance(made, 1)
    assert bases_in(last_of(root)) == []
    assert not list((root / "data").rglob("*.sst"))


def test_many_small_files_are_merged_where_there_is_no_base(root: Path, tmp_path: Path) -> None:
    merges = BaseOptions(replay_seconds=0, bases=False)
    made = runner(root, DiskCopies(tmp_path / "local", bases=merges))
    for _ in range(5):
        advance(made, 16, 3)
        uploaded()
    (shard,) = last_of(root).operators["tally"].shards
    found = lineage_of(Repository(root), "tally", shard, 79)
    assert len(found.files) == shard.chain.files < 60
    keep_only_what_is_named(root)
    assert comparable(committed_rows(Repository(root), GROUPS)) == expected_after(80, 3)


def test_an_upload_that_fails_is_told_and_tried_again_and_no_epoch_fails(
    root: Path, copies: DiskCopies, caplog: pytest.LogCaptureFixture
) -> None:
    made = runner(root, copies)
    uploader().close()  # what is staged waits
    advance(made, 1)
    _in_process.clear()
    (staged,) = copies.root.rglob("staged.json")
    tables = {path: path.rename(path.with_suffix(".gone")) for path in _tables(staged.parent)}
    for current in staged.parent.rglob("CURRENT"):
        current.rename(current.with_name("hidden"))
    advance(made, 1)
    uploaded()
    assert uploader().failed == 1
    assert "failed and is tried again with a later epoch" in caplog.text
    for path, hidden in tables.items():
        hidden.rename(path)
    for hidden in staged.parent.rglob("hidden"):
        hidden.rename(hidden.with_name("CURRENT"))
    advance(made, 1)
    uploaded()
    advance(made, 1)
    assert len(bases_in(last_of(root))) == 1
    assert comparable(committed_rows(Repository(root), GROUPS)) == expected_after(4)


def _tables(place: Path) -> list[Path]:
    return list(place.rglob("*.sst"))


def test_a_base_survives_the_checkpoint_being_rolled_back(root: Path, copies: DiskCopies) -> None:
    made = runner(root, copies)
    for _ in range(6):
        advance(made, 1)
        uploaded()
    made = runner(root, copies, from_epoch=2)
    made.epoch({"records": []})
    assert comparable(committed_rows(Repository(root), GROUPS)) == expected_after(3)
    made.epoch({"records": entries(3, 40)})
    uploaded()
    made.epoch({"records": entries(4, 40)})
    assert comparable(committed_rows(Repository(root), GROUPS)) == expected_after(5)


# ---------------------------------------------------------------------------------------- killed


@pytest.mark.parametrize(
    ("options", "before", "behind"), [(EAGER, 5, 4), (MERGING, 14, 0)], ids=["bases", "merging"]
)
def test_two_attempts_are_one_although_only_one_of_them_found_something_to_stand_on(
    root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: BaseOptions,
    before: int,
    behind: int,
) -> None:
    monkeypatch.setattr(base_keeping, "MERGED_AT_A_TIME", 3)
    monkeypatch.setattr(merging, "MERGED_AT_A_TIME", 3)
    elsewhere = DiskCopies(tmp_path / "elsewhere", bases=BaseOptions(bases=False, merges=False))
    here = DiskCopies(tmp_path / "here", bases=options)
    advance(runner(root, elsewhere), before, 3)
    advance(runner(root, here), 1, 3)
    uploaded()
    advance(runner(root, elsewhere), behind, 3)
    epoch = before + 1 + behind
    coordinator = runner(root, elsewhere).coordinator
    coordinator.begin()
    records = {"records": entries(epoch, 3)}
    reports = [one_attempt(runner(root, host), records) for host in (elsewhere, here)]
    first, second = (report.shard for report in reports)
    assert (first.base, first.history) != (second.base, second.history)
    coordinator.commit(reports)
    assert comparable(committed_rows(Repository(root), GROUPS)) == expected_after(epoch + 1, 3)


def one_attempt(made: LocalRunner, records: dict[str, list[Entry]]) -> ShardReport:
    """What the only shard tells of the next epoch, which is not committed."""
    told: list[ShardReport] = []
    made.coordinator.commit = lambda reports, **_: told.extend(reports)  # type: ignore[assignment,method-assign]
    made.epoch(records)
    [report] = told
    return report


def run_until_killed(root: str, local: str) -> None:
    made = runner(Path(root), DiskCopies(local, bases=EAGER), parallelism=2)
    while True:
        advance(made, 1)


def test_whoever_is_killed_when_bases_and_files_lead_to_what_was_committed(
    root: Path, tmp_path: Path
) -> None:
    with_bases = 0
    for number in range(4):
        local = tmp_path / f"local-{number % 2}"  # two hosts in turn
        process = start(run_until_killed, str(root), str(local))
        seen = len(list((root / "epochs").glob("*.json"))) if root.exists() else 0
        deadline = time.monotonic() + 60
        while not root.exists() or len(list((root / "epochs").glob("*.json"))) < seen + 4 + number:
            assert time.monotonic() < deadline, "no epoch was committed"
            time.sleep(0.005)
        process.kill()
        process.join()
        last = last_of(root)
        with_bases += len(bases_in(last))
        keep_only_what_is_named(root)
        rows = comparable(committed_rows(Repository(root), GROUPS))
        assert rows == expected_after(last.epoch + 1)
    assert with_bases


# ------------------------------------------------------------------------------------- everything


class Bases(RuleBasedStateMachine):
    """Epochs on two hosts, in any number of shards, forth and back, while bases come and go."""

    @initialize()
    def begin(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="statekit-bases-"))
        self.root = self.home / "c"
        self.parallelism = 1
        self.records: list[list[Entry]] = []
        self.standing: dict[int, int] = {}
        """How many of the records are in the state after each epoch that can be gone back to."""
        self.uploads = True

    def copies(self, host: int) -> DiskCopies:
        return DiskCopies(self.home / f"host-{host}", bases=EAGER)

    @rule(host=st.integers(0, 1), count=st.integers(1, 30), epochs=st.integers(1, 3))
    def run(self, host: int, count: int, epochs: int) -> None:
        made = runner(self.root, self.copies(host), parallelism=self.parallelism)
        for _ in range(epochs):
            records = entries(len(self.records) + 1000 * made.coordinator.epoch, count)
            made.epoch({"records": records})
            self.records.append(records)
            assert made.coordinator.last is not None
            self.standing[made.coordinator.last.epoch] = len(self.records)

    @rule()
    def upload(self) -> None:
        uploaded()

    @rule(parallelism=st.integers(1, 4))
    def rescale(self, parallelism: int) -> None:
        self.parallelism = parallelism

    @rule(host=st.integers(0, 1))
    def lose_what_was_staged(self, host: int) -> None:
        uploaded()
        for kind in ("snapshots", "merges"):
            for place in (self.home / f"host-{host}").rglob(kind):
                shutil.rmtree(place)

    @rule(host=st.integers(0, 1))
    def lose_a_host(self, host: int) -> None:
        uploaded()
        shutil.rmtree(self.home / f"host-{host}", ignore_errors=True)

    @rule()
    def kill_the_uploader(self) -> None:
        """What is staged from now on waits for another process."""
        uploader().close()

    @rule()
    def start_another_uploader(self) -> None:
        uploader().close()
        _in_process.clear()

    @precondition(lambda self: len(self.standing) > 1)
    @rule(data=st.data())
    def roll_back(self, data: st.DataObject) -> None:
        epoch = data.draw(st.sampled_from(sorted(self.standing)[:-1]))
        plan(Repository(self.root), epoch).carry_out()
        count = self.standing[epoch]
        self.records = self.records[:count]
        self.standing = {e: n for e, n in self.standing.items() if e <= epoch}
        self.standing[last_of(self.root).epoch] = count

    @precondition(lambda self: self.standing)
    @rule()
    def collect(self) -> None:
        """As if a day had passed: what nobody names is gone, and nobody relies on it."""
        uploaded()
        for host in (0, 1):
            self.lose_what_was_staged(host)
        keep_only_what_is_named(self.root)
        self.standing = {last: self.standing[last] for last in [max(self.standing)]}

    @precondition(lambda self: self.standing)
    @rule()
    def the_checkpoint_holds_what_was_committed(self) -> None:
        last = last_of(self.root)
        backend = MemoryBackend(STATES)
        load(Repository(self.root), backend, "tally", 0, GROUPS - 1, last.epoch)
        reference = LocalRunner(tally_job(GROUPS), Repository.in_memory(), MemoryCopies())
        for records in self.records:
            reference.epoch({"records": records})
        expected = comparable(committed_rows(reference.coordinator.repository, GROUPS))
        assert comparable(rows_of(backend)) == expected

    def teardown(self) -> None:
        self.start_another_uploader()
        if self.standing:
            records = [record for epoch in self.records for record in epoch]
            plain = plain_state(records)
            assert state_of(Harness(tally, checkpoint=self.root), plain) == plain
        shutil.rmtree(self.home)


TestBases = Bases.TestCase
TestBases.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
