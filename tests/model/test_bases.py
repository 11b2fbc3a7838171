"""Shards on bases, while whole jobs run."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import statekit as sk
from statekit.backend.interface import MemoryBackend
from statekit.backend.rocksdb_options import RocksOptions
from statekit.checkpoint.era import Era
from statekit.checkpoint.gc.collector import Collector
from statekit.checkpoint.job_file import TtlRecord
from statekit.checkpoint.manifest import EpochManifest, Report, ShardReport
from statekit.checkpoint.references import named_by
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.restore_plan import RestorePlan, apply_plan, local_rows
from statekit.checkpoint.rollback import plan
from statekit.checkpoint.shard_contents import BaseSnapshot
from statekit.errors import CorruptCheckpointError
from statekit.job.options import RunOptions
from statekit.maintenance.verify.verify import verify
from statekit.query.rows.reader import CheckpointReader
from statekit.runtime.local import LocalRunner
from statekit.state.ttl import index_entry
from statekit.testing import Harness
from statekit.working_copy.base_options import BaseOptions
from statekit.working_copy.base_snapshot import StagedSnapshot
from statekit.working_copy.copies import DiskCopies
from statekit.working_copy.uploader import _in_process, uploader
from tests.support.counting_job import ALL_KEYS, STATES, Entry, committed_rows, comparable, entries
from tests.support.counting_job_runs import (
    EAGER,
    GROUPS,
    advance,
    check_rows,
    last_of,
    records_of,
    rows_after,
    runner,
    uploaded,
)
from tests.support.effort import SOAK
from tests.support.killable_processes import start


def bases_in(manifest: EpochManifest) -> list[str]:
    shards = manifest.operators["tally"].shards
    return [shard.base.path for shard in shards if shard.base is not None]


def keep_only_what_is_named(root: Path) -> None:
    """Remove every file that the last manifest does not lead to."""
    repository, last = Repository(root), last_of(root)
    named = {ref.path for ref in named_by(repository, last, set())}
    for path in list(repository.tree("data")):
        if path not in named:
            (root / path).unlink()
    for manifest in (root / "epochs").iterdir():
        if int(manifest.stem) != last.epoch:
            manifest.unlink()


@pytest.fixture
def copies(tmp_path: Path) -> DiskCopies:
    return DiskCopies(tmp_path / "local", bases=EAGER)


def test_a_shard_names_a_base_once_it_is_uploaded_and_drops_the_change_files_in_it(
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
        base = made.coordinator.repository.sealed(BaseSnapshot, shard.base)
        assert base.epoch <= 11
        assert base.states == STATES
        assert len(shard.files) == shard.chain.files
        assert shard.chain.files <= 13 - base.epoch
    keep_only_what_is_named(root)
    assert comparable(committed_rows(Repository(root), GROUPS)) == rows_after(13)


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
    check_rows(elsewhere)
    advance(elsewhere, 2)
    assert comparable(committed_rows(Repository(root), GROUPS)) == rows_after(10)


def test_a_host_with_an_old_copy_catches_up_through_a_base(root: Path, copies: DiskCopies) -> None:
    advance(runner(root, copies), 3)
    other = DiskCopies(copies.root.with_name("other"), bases=EAGER)
    elsewhere = runner(root, other)
    for _ in range(4):
        advance(elsewhere, 1)
        uploaded()
    advance(elsewhere, 1)
    keep_only_what_is_named(root)
    check_rows(runner(root, copies))


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
    operator = repository.job_file(last.job_file.path).operator("seen_words")
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
        made = LocalRunner(job.plan, Repository(root), copies, RunOptions(parallelism=2))
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
    made = LocalRunner(job.plan, Repository(root), copies, RunOptions(parallelism=1))
    made.epoch({"words": [{"word": "last"}]})
    (held,) = words_in(root)
    assert sorted(held) == sorted([*given, "last"])


def test_an_idle_shard_does_not_change(root: Path, copies: DiskCopies) -> None:
    made = runner(root, copies, parallelism=2)
    advance(made, 3)
    uploaded()
    before = last_of(root).operators["tally"].shards
    made.epoch({"records": []})
    assert last_of(root).operators["tally"].shards == before


def test_bases_can_be_turned_off(root: Path, tmp_path: Path) -> None:
    none = BaseOptions(replay_seconds=0, bases=False)
    made = runner(root, DiskCopies(tmp_path / "local", bases=none))
    advance(made, 12)
    uploaded()
    advance(made, 1)
    assert bases_in(last_of(root)) == []
    assert not list((root / "data").rglob("*.sst"))


def test_a_failed_upload_is_reported_and_retried_and_no_epoch_fails(
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
    assert caplog.text.count("failed and is tried again with a later epoch") == 1
    for path, hidden in tables.items():
        hidden.rename(path)
    for hidden in staged.parent.rglob("hidden"):
        hidden.rename(hidden.with_name("CURRENT"))
    advance(made, 1)
    uploaded()
    advance(made, 1)
    assert len(bases_in(last_of(root))) == 1
    assert comparable(committed_rows(Repository(root), GROUPS)) == rows_after(4)


def _tables(place: Path) -> list[Path]:
    return list(place.rglob("*.sst"))


def test_a_base_survives_the_checkpoint_being_rolled_back(root: Path, copies: DiskCopies) -> None:
    made = runner(root, copies)
    for _ in range(6):
        advance(made, 1)
        uploaded()
    made = runner(root, copies, from_epoch=2)
    made.epoch({"records": []})
    assert comparable(committed_rows(Repository(root), GROUPS)) == rows_after(3)
    made.epoch({"records": records_of(3)})
    uploaded()
    made.epoch({"records": records_of(4)})
    assert comparable(committed_rows(Repository(root), GROUPS)) == rows_after(5)


# ---------------------------------------------------------------------------------------- killed


def test_two_attempts_are_one_although_only_one_of_them_found_a_base(
    root: Path, tmp_path: Path
) -> None:
    before, behind = 5, 4
    elsewhere = DiskCopies(tmp_path / "elsewhere", bases=BaseOptions(bases=False))
    here = DiskCopies(tmp_path / "here", bases=EAGER)
    advance(runner(root, elsewhere), before, 3)
    advance(runner(root, here), 1, 3)
    uploaded()
    advance(runner(root, elsewhere), behind, 3)
    epoch = before + 1 + behind
    coordinator = runner(root, elsewhere).coordinator
    coordinator.begin()
    records = {"records": records_of(epoch, 3)}
    reports = [one_attempt(runner(root, host), records) for host in (elsewhere, here)]
    first, second = (report.shard for report in reports)
    assert (first.base, first.history) != (second.base, second.history)
    coordinator.commit(reports)
    assert comparable(committed_rows(Repository(root), GROUPS)) == rows_after(epoch + 1, 3)


def one_attempt(made: LocalRunner, records: dict[str, list[Entry]]) -> ShardReport:
    """What the only shard tells of the next epoch, which is not committed."""
    told: list[ShardReport] = []

    def commit(reports: Sequence[Report], **_: Any) -> EpochManifest:
        told.extend(report for report in reports if isinstance(report, ShardReport))
        assert made.coordinator.last is not None
        return made.coordinator.last

    made.coordinator.commit = commit  # type: ignore[assignment,method-assign]
    made.epoch(records)
    [report] = told
    return report


def run_until_killed(root: str, local: str) -> None:
    made = runner(Path(root), DiskCopies(local, bases=EAGER), parallelism=2)
    while True:
        advance(made, 1)


def test_after_a_kill_at_any_time_bases_and_files_restore_the_committed_state(
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
        assert rows == rows_after(last.epoch + 1)
    assert with_bases


# ------------------------------------------------------------------------------------- everything

TTL_US = 160_000_000
START_US = 1_400_000_000_000_000
Lately = Annotated[sk.MapState[int, int], sk.TTL("160 seconds")]


@sk.process(key="key")
def visits(
    entry: Entry,
    total: sk.ValueState[int],
    seen: sk.ListState[int],
    lately: Lately,
    log: Annotated[sk.OperatorListState[int], sk.Redistribute("even")],
) -> None:
    total.update((total.get() or 0) + entry.n)
    seen.append(entry.n)
    if entry.n % 7 == 0:
        seen.clear()
    lately[entry.n] = (lately.get(entry.n) or 0) + 1
    log.append(entry.n)


def visits_job() -> sk.Job:
    job = sk.Job("visits", key_groups=GROUPS)
    job.source("records", Entry).process(visits)
    return job


class Given(NamedTuple):
    """What an epoch was given."""

    at_us: int
    records: list[Entry]


def held_after(given: Sequence[Given], now_us: int) -> dict[str, dict[str, Any]]:
    """What has to be there for each key, by plain Python."""
    keys: dict[str, dict[str, Any]] = {}
    written: dict[tuple[str, int], int] = {}
    for at_us, records in given:
        for key, n in (vars(record).values() for record in records):
            found = keys.setdefault(key, {"total": 0, "seen": [], "lately": {}})
            found["total"] += n
            found["seen"] = [] if n % 7 == 0 else [*found["seen"], n]
            if written.get((key, n), at_us) + TTL_US <= at_us:
                del found["lately"][n]
            found["lately"][n] = found["lately"].get(n, 0) + 1
            written[key, n] = at_us
    for key, found in keys.items():
        lately = found["lately"].items()
        found["lately"] = {n: k for n, k in lately if written[key, n] + TTL_US > now_us}
    return keys


MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Where files are synced at once: there is no power loss here, and there are many examples."""


class Cut(Exception):
    """The process that uploads dies."""


class Bases(RuleBasedStateMachine):
    """Epochs on two hosts, in any number of shards, forth and back, while bases come and go."""

    @initialize()
    def begin(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="statekit-bases-", dir=MEMORY))
        self.root = self.home / "c"
        self.patched = pytest.MonkeyPatch()
        self.patched.setattr("statekit.state.base.SWEPT_MIN", 1)  # so that what has expired waits
        self.parallelism = 1
        self.given: list[Given] = []
        self.standing: dict[int, int] = {}
        """How many epochs' records are in the state after each epoch that can be gone back to."""
        self.now_us = START_US
        self.times_us: dict[int, int] = {}
        self.looked_at: set[str] = set()

    def copies(self, host: int) -> DiskCopies:
        return DiskCopies(self.home / f"host-{host}", bases=EAGER)

    @rule(
        host=st.integers(0, 1),
        count=st.integers(0, 20),
        epochs=st.integers(1, 4),
        seconds=st.sampled_from([1, 30, 170]),
        waits=st.booleans(),
    )
    def run(self, host: int, count: int, epochs: int, seconds: int, waits: bool) -> None:
        self.one_run(host, count=count, epochs=epochs, seconds=seconds, waits=waits)

    def one_run(
        self, host: int, *, count: int, epochs: int, seconds: int, waits: bool = False
    ) -> None:
        repository = Repository(self.root)
        made = LocalRunner(
            visits_job().plan,
            repository,
            self.copies(host),
            RunOptions(parallelism=self.parallelism),
        )
        for _ in range(epochs):
            self.now_us += seconds * 1_000_000
            epoch = made.coordinator.epoch
            given = Given(self.now_us, entries(epoch, count))
            made.epoch({"records": given.records}, at_us=self.now_us)
            self.given.append(given)
            self.standing[epoch], self.times_us[epoch] = len(self.given), self.now_us
            if waits:
                self.upload()

    def upload(self) -> None:
        uploaded()
        self.no_base_has_what_was_to_be_removed()

    @rule(parallelism=st.integers(1, 4))
    def rescale(self, parallelism: int) -> None:
        self.parallelism = parallelism

    def lose_what_was_staged(self, host: int) -> None:
        uploaded()
        for place in (self.home / f"host-{host}").rglob("snapshots"):
            shutil.rmtree(place)

    def lose_a_host(self, host: int) -> None:
        uploaded()
        shutil.rmtree(self.home / f"host-{host}", ignore_errors=True)

    def kill_the_uploader(self, _: int = 0) -> None:
        """What is staged from now on waits for another process."""
        uploader().close()

    def start_another_uploader(self, _: int = 0) -> None:
        uploader().close()
        _in_process.clear()

    @rule(
        what=st.sampled_from(
            [lose_what_was_staged, lose_a_host, kill_the_uploader, start_another_uploader]
        ),
        host=st.integers(0, 1),
    )
    def trouble(self, what: Callable[[Bases, int], None], host: int) -> None:
        what(self, host)

    @rule(host=st.integers(0, 1), steps=st.integers(0, 15))
    def upload_and_die(self, host: int, steps: int) -> None:
        """Some files of what is staged get to the store, and nobody is told."""
        self.kill_the_uploader()
        self.one_run(host, count=5, epochs=1, seconds=1)
        left = [steps]

        def going() -> None:
            left[0] -= 1
            if left[0] < 0:
                raise Cut

        for note in (self.home / f"host-{host}").rglob("staged.json"):
            with contextlib.suppress(Cut):
                StagedSnapshot(note.parent).upload(Repository(self.root), RocksOptions(), going)
        self.start_another_uploader()

    @precondition(lambda self: len(self.standing) > 1)
    @rule(data=st.data())
    def roll_back(self, data: st.DataObject) -> None:
        epoch = data.draw(st.sampled_from(sorted(self.standing)[:-1]))
        plan(Repository(self.root), epoch).carry_out()
        count = self.standing[epoch]
        self.given = self.given[:count]
        self.standing = {e: n for e, n in self.standing.items() if e <= epoch}
        self.standing[last_of(self.root).epoch] = count

    @rule(hours=st.sampled_from([1, 11, 13, 25]))
    def time_passes(self, hours: int) -> None:
        """By the store's clock."""
        for path in self.root.rglob("*"):
            with contextlib.suppress(FileNotFoundError):  # a draft of the uploader
                at = path.stat().st_mtime - 3600 * hours
                os.utime(path, (at, at))

    @precondition(lambda self: self.standing)
    @rule(epochs=st.integers(1, 3), grace_h=st.sampled_from([0, 12, 24]))
    def collect(self, epochs: int, grace_h: int) -> None:
        """The hosts are not told, and still have what they staged."""
        self.upload()
        repository = Repository(self.root)
        grace = dt.timedelta(hours=grace_h)
        Collector(repository, sk.Retention(epochs=epochs), grace=grace).collect(sweep=True)
        kept = repository.epochs()
        assert set(sorted(self.standing)[-epochs:]) <= set(kept)
        self.standing = {e: n for e, n in self.standing.items() if e in kept}

    @precondition(lambda self: self.standing)
    @rule()
    def the_checkpoint_holds_what_was_committed(self) -> None:
        now_us = last_of(self.root).processing_time_us
        harness, expected = Harness(visits, checkpoint=self.root), held_after(self.given, now_us)
        for key, states in expected.items():
            assert {name: harness.state(name, key) for name in states} == states
        log = sorted(record.n for epoch in self.given for record in epoch.records)
        without_databases = CheckpointReader(self.root).operator_state("visits", "log")
        for parts in (harness.operator_state("log"), without_databases):
            assert sorted(n for part in parts for n in part) == log

    def no_base_has_what_was_to_be_removed(self) -> None:
        repository = Repository(self.root)
        for path in (self.root / "data").rglob("*.base.json"):
            if path.name in self.looked_at:
                continue
            self.looked_at.add(path.name)
            base = BaseSnapshot.from_bytes(path.read_bytes(), path.name)
            backend = MemoryBackend(["lately"])
            with contextlib.suppress(CorruptCheckpointError):  # collected in part, never named
                apply_plan(repository, backend, RestorePlan(*base.shard, base=base))
            ttl = TtlRecord(duration_us=TTL_US, clock="processing", refresh="write")
            for row_key, row in backend.scan("lately", *ALL_KEYS):
                indexed = index_entry("lately", ttl, Era(1), row_key, row)
                assert indexed is not None
                assert indexed[1] > self.times_us[base.epoch], "it has expired, and is in a base"

    def teardown(self) -> None:
        try:
            self.upload()
            self.start_another_uploader()
            if self.standing:
                self.the_checkpoint_holds_what_was_committed()
                assert verify(Repository(self.root)).is_intact
        finally:
            self.patched.undo()
            shutil.rmtree(self.home)


TestBases = Bases.TestCase
TestBases.settings = settings(
    max_examples=1_000 if SOAK else 25, stateful_step_count=20, deadline=None
)
