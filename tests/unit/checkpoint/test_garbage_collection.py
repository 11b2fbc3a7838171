"""Garbage collection: what is kept can be read in full, whatever happens; the rest goes."""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import json
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

import statekit as sk
from statekit.checkpoint.gc.collector import BackgroundCollection, Collected, Collector
from statekit.checkpoint.object_store import LocalObjects, Objects
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.retention import STAGED_FOR, held, note_going_back
from statekit.checkpoint.rollback import plan as plan_rollback
from statekit.checkpoint.sealed_json import FileRef
from statekit.cli.gc import gc
from statekit.errors import CorruptCheckpointError, StateTypeError, StorageError
from statekit.maintenance.savepoint.write import write_savepoint
from statekit.query.rows.reader import CheckpointReader
from tests.support.checkpoint_ledger import OPERATOR, Ledger, Power, TimedRepository
from tests.support.command_line import statekit
from tests.support.counting_job import entries, plain_outputs, plain_state, tally_job
from tests.support.effort import SOAK
from tests.support.killable_processes import exit_code, start
from tests.support.sinks import ORDERS, spending_job
from tests.support.timeouts import PATIENCE_S

HOUR = dt.timedelta(hours=1)
NOTHING = dt.timedelta(0)
"""The grace where nothing is under way."""


def collect(
    repository: Repository,
    epochs: int,
    *,
    sweep: bool = True,
    grace: dt.timedelta = dt.timedelta(days=1),
    **options: Any,
) -> Collected:
    collector = Collector(repository, sk.Retention(epochs=epochs), grace=grace, **options)
    done = collector.collect(sweep=sweep)
    assert done is not None
    return done


def ledger_of(epochs: int, repository: Repository | None = None) -> tuple[Ledger, Iterator[str]]:
    """A ledger with so many epochs, in which both shards changed."""
    ledger = Ledger(TimedRepository.empty() if repository is None else repository)
    words = (f"w{number}" for number in itertools.count())
    for _ in range(epochs):
        ledger.epoch({0, 1}, words)
    return ledger, words


class Collections(RuleBasedStateMachine):
    """Epochs, bases, layouts, rollbacks, lost attempts, time, and collections that die."""

    def __init__(self) -> None:
        super().__init__()
        self.repository = TimedRepository.empty()
        self.ledger = Ledger(self.repository)
        self.words = (f"w{number}" for number in itertools.count())
        self.ledger.epoch({0, 1}, self.words)
        self.savepoints: set[str] = set()
        self.has_died = False

    @rule(changing=st.sets(st.integers(0, 3)), folded=st.booleans())
    def epoch(self, changing: set[int], folded: bool) -> None:
        self.ledger.epoch(changing, self.words, folded=folded)

    @rule(shard=st.integers(0, 3), compacted=st.booleans())
    def base(self, shard: int, compacted: bool) -> None:
        self.ledger.stage(shard, compacted=compacted)

    @rule(parallelism=st.integers(1, 4))
    def rescale(self, parallelism: int) -> None:
        self.ledger.parallelism = parallelism

    @rule()
    def lost_attempt(self) -> None:
        self.ledger.put("changes.arrow", ["lost"])

    @rule(version=st.integers(0, 2))
    def job_changes(self, version: int) -> None:
        self.ledger.job = self.ledger.job.model_copy(update={"name": f"ledger-{version}"})

    @rule(hours=st.sampled_from([1, 10, 11, 13, 100]))
    def time_passes(self, hours: int) -> None:
        self.repository.now += hours * HOUR

    @rule(data=st.data())
    def roll_back(self, data: st.DataObject) -> None:
        epochs = self.repository.epochs()
        if len(epochs) > 1:
            self.ledger.roll_back(data.draw(st.sampled_from(epochs[:-1])))
            last = self.ledger.last
            assert last is not None
            self.ledger.parallelism = last.parallelism

    @rule()
    def savepoint(self) -> None:
        path = f"savepoints/s{len(self.savepoints)}/savepoint.json"
        self.repository.create(path, b"{}")
        self.savepoints.add(path)

    @rule(
        epochs=st.integers(1, 5),
        hours=st.sampled_from([12, 24]),
        deletions=st.none() | st.integers(0, 12),
        sweep=st.booleans(),
    )
    def collection(self, epochs: int, hours: int, deletions: int | None, sweep: bool) -> None:
        before = self.repository.epochs()
        self.repository.deletions_left = deletions
        try:
            collect(self.repository, epochs, sweep=sweep, grace=hours * HOUR)
        except Power:
            self.has_died = True
        self.repository.deletions_left = None
        assert self.repository.epochs() == before[-len(self.repository.epochs()) :]
        assert len(self.repository.epochs()) >= min(epochs, len(before))

    @rule(epochs=st.integers(1, 5))
    def collection_while_nothing_is_under_way(self, epochs: int) -> None:
        foreseen = collect(self.repository, epochs, grace=NOTHING, dry_run=True)
        stored = set(self.repository.tree(""))
        done = collect(self.repository, epochs, grace=NOTHING)
        assert not self.ledger.unnamed()
        assert done == foreseen, "a dry run says what will be done"
        gone = stored - set(self.repository.tree(""))
        marks = {path for path in gone if path.endswith((".first", ".swept"))}
        counted = sum(size.files for size in done.deleted.values())
        # One that died deleted files of epochs whose manifests are still there.
        assert counted >= len(gone - marks) if self.has_died else counted == len(gone - marks)
        self.has_died = False
        left = {path.split("/")[-1] for path in self.repository.tree("epochs")}
        assert len([name for name in left if name.endswith(".first")]) <= 1
        assert len([name for name in left if name.endswith(".json")]) == done.kept

    @invariant()
    def every_kept_epoch_can_be_read(self) -> None:
        self.ledger.check_all()
        assert self.savepoints <= set(self.repository.tree("savepoints"))


def histories(examples: int) -> None:
    run_state_machine_as_test(
        Collections, settings=settings(max_examples=examples, stateful_step_count=25, deadline=None)
    )


def test_whatever_happens_every_kept_epoch_can_be_read_and_no_garbage_is_left() -> None:
    histories(20)


@pytest.mark.slow
def test_it_is_so_in_more_histories() -> None:
    histories(5_000 if SOAK else 25)


# ------------------------------------------------------------------------------- at the same time


BURSTS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 30)), max_size=30)
"""Who makes how many requests, one after the other."""


class Turns:
    """Several threads, one of which runs at a time, from request to request, in a given order."""

    def __init__(self, bursts: list[tuple[int, int]]) -> None:
        self._bursts = bursts
        self._actors: list[threading.Thread] = []
        self._current: threading.Thread | None = None
        self._changed = threading.Condition()
        self.failures: list[BaseException] = []

    def wait(self) -> None:
        """Called by an actor before each request: lets any of them go on."""
        if threading.current_thread() not in self._actors:
            return
        with self._changed:
            self._current = None
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._current is threading.current_thread())

    def add(self, act: Callable[[], object]) -> None:
        def acting() -> None:
            self.wait()
            try:
                act()
            except BaseException as error:  # noqa: BLE001 - the test looks at it
                self.failures.append(error)
            with self._changed:
                self._actors.remove(threading.current_thread())
                self._current = None
                self._changed.notify_all()

        self._actors.append(threading.Thread(target=acting, daemon=True))

    def run(self) -> None:
        for actor in list(self._actors):
            with self._changed:
                self._current = actor
            actor.start()
            with self._changed:
                assert self._changed.wait_for(lambda: self._current is None, PATIENCE_S)
        order = (who for who, steps in self._bursts for _ in range(steps))
        while self._actors:
            with self._changed:
                self._current = self._actors[next(order, 0) % len(self._actors)]
                self._changed.notify_all()
                assert self._changed.wait_for(lambda: self._current is None, PATIENCE_S)


@pytest.mark.slow
@settings(max_examples=5_000 if SOAK else 100, deadline=None)
@given(data=st.data())
def test_two_collectors_a_rollback_and_epochs_may_come_in_any_order(data: st.DataObject) -> None:
    _check_collectors_in_turns(
        compacted=data.draw(st.booleans(), label="compacted"),
        hours=[data.draw(st.sampled_from([0, 11, 13])) for _ in range(2)],
        to=data.draw(st.integers(0, 4), label="to"),
        keep=data.draw(st.integers(1, 3), label="epochs"),
        bursts=data.draw(BURSTS),
    )


def test_a_sweep_keeps_files_that_a_rollback_took_from_epochs_of_another_collector() -> None:
    _check_collectors_in_turns(False, hours=[13, 0], to=3, keep=2, bursts=[(1, 26), (2, 21)])


def test_an_epoch_may_be_rolled_back_and_collected_while_the_next_one_is_made() -> None:
    _check_collectors_in_turns(False, hours=[0, 0], to=0, keep=1, bursts=[(3, 2), (2, 14)])


def _check_collectors_in_turns(
    compacted: bool, hours: list[int], to: int, keep: int, bursts: list[tuple[int, int]]
) -> None:
    """Run two collectors, a rollback and an epoch, each so many steps at a time."""
    repository = TimedRepository.empty()
    ledger, words = ledger_of(3, repository)
    ledger.stage(0, compacted=False)
    ledger.epoch({0, 1}, words)
    ledger.stage(0, compacted=compacted)
    for passing in hours:
        ledger.epoch({1}, words)
        repository.now += passing * HOUR
    turns = Turns(bursts)
    repository.before = turns.wait
    turns.add(lambda: collect(repository, keep, sweep=False))
    turns.add(lambda: collect(repository, keep + 1, grace=STAGED_FOR))
    turns.add(lambda: ledger.roll_back(to))
    turns.add(lambda: ledger.epoch({0}, words))
    turns.run()
    repository.before = lambda: None
    for failure in turns.failures:
        assert isinstance(failure, sk.FencedError | sk.RestoreError), repr(failure)
    ledger.check_all()
    ledger.epoch({0, 1}, words)
    collect(repository, 1, grace=NOTHING)
    ledger.check_all()
    assert not ledger.unnamed()
    assert len(repository.epochs()) == 1


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_reader_beside_a_collector_reads_all_of_an_epoch_or_gets_an_error(
    data: st.DataObject,
) -> None:
    repository = TimedRepository.empty()
    ledger, words = ledger_of(2, repository)
    ledger.stage(0, compacted=True)
    for _ in range(3):
        ledger.epoch({0, 1}, words, folded=True)
    turns = Turns(data.draw(BURSTS))
    repository.before = turns.wait
    epoch = data.draw(st.integers(0, 3))
    outcomes: list[str] = []

    def read() -> None:
        try:
            ledger.check(epoch)
        except CorruptCheckpointError:
            outcomes.append("gone")

    def read_long() -> None:
        try:
            with held(repository, epoch):
                ledger.check(epoch)
        except sk.RestoreError:
            outcomes.append("refused")

    turns.add(read)
    turns.add(read_long)
    turns.add(lambda: collect(repository, 1, sweep=False))
    turns.run()
    assert not turns.failures, turns.failures
    repository.before = lambda: None
    assert all(repository.first_kept() > epoch for _ in outcomes)
    ledger.check_all()


def test_an_epoch_of_a_reader_is_kept_unless_the_reader_died() -> None:
    ledger, words = ledger_of(5, repository := TimedRepository.empty())
    with held(repository, 2):
        done = collect(repository, 1)
        assert done.held == {2: "a process reads it"}
        assert repository.epochs() == [4]
        ledger.check(2)
        repository.now += 25 * HOUR
        ledger.epoch({0}, words)
        assert not collect(repository, 1).held
        assert not repository.is_committed(2)


# --------------------------------------------------------------------------------- real processes


class DyingRepository(Repository):
    """Whose process dies, or is stopped, before its nth deletion."""

    deletions_left = 0
    signal = signal.SIGKILL

    def collect(self, paths: Iterable[str]) -> None:
        for path in paths:
            if not self.deletions_left:
                os.kill(os.getpid(), self.signal)
            self.deletions_left -= 1
            super().collect([path])


def collect_and_die(place: str, deletions: int, epochs: int, how: int, grace_s: int) -> None:
    repository = DyingRepository(place)
    repository.deletions_left, repository.signal = deletions, signal.Signals(how)
    collect(repository, epochs, grace=dt.timedelta(seconds=grace_s))


def test_a_collector_that_is_killed_anywhere_is_finished_by_the_next(tmp_path: Path) -> None:
    ledger, words = ledger_of(3, Repository(tmp_path))
    for shard in (0, 1):
        ledger.stage(shard, compacted=True)
    ledger.epoch({0, 1}, words)
    ledger.put("changes.arrow", ["lost"])
    stale = tmp_path / "data" / OPERATOR / "stale.changes.arrow#1"
    stale.write_text("cut")
    for deletions in (0, 1, 2, 4, 7):
        ledger.epoch({0, 1}, words, folded=True)
        ledger.epoch({0}, words)
        code = exit_code(collect_and_die, str(tmp_path), deletions, 2, signal.SIGKILL, 0)
        assert code == -signal.SIGKILL
        ledger.check_all()
    collect(Repository(tmp_path), 2, grace=NOTHING)
    ledger.check_all()
    assert len(ledger.repository.epochs()) == 2
    assert not ledger.unnamed()
    assert not stale.exists()
    assert not [path for path in (tmp_path / "tmp").rglob("*") if path.is_file()]


def test_a_collector_that_slept_deletes_no_newer_files(tmp_path: Path) -> None:
    ledger, words = ledger_of(2, Repository(tmp_path))
    for shard in (0, 1):
        ledger.stage(shard, compacted=True)
    for _ in range(4):
        ledger.epoch({0, 1}, words)
    ledger.stage(0, compacted=False)
    ledger.put("changes.arrow", ["lost"])
    day = int(dt.timedelta(days=1).total_seconds())
    sleeper = start(collect_and_die, str(tmp_path), 1, 4, signal.SIGSTOP, day)
    assert sleeper.pid is not None
    wait_until_stopped(sleeper.pid)
    with pytest.raises(sk.RestoreError, match=r"epoch 1 of .* was collected"):
        ledger.roll_back(1)
    ledger.epoch(
        {0, 1}, words
    )  # on the base that was staged, which shares a file with the one before
    adopted = ledger.repository.manifest(6).operators[OPERATOR].shards[0].base
    assert adopted == ledger.staged[-1][0]
    ledger.roll_back(2)
    ledger.epoch({1}, words)
    os.kill(sleeper.pid, signal.SIGCONT)
    sleeper.join(PATIENCE_S)
    assert sleeper.exitcode == 0
    assert ledger.repository.epochs() == [2, 3, 4, 5, 6, 7, 8]
    ledger.check_all()


def wait_until_stopped(pid: int) -> None:
    stat = Path(f"/proc/{pid}/stat")
    for _ in range(6000):
        if stat.read_text().rpartition(")")[2].split()[0] == "T":
            return
        threading.Event().wait(0.01)
    raise AssertionError("it never came as far")


def commit_for_long(place: str, epochs: int) -> None:
    ledger = Ledger(Repository(place))
    words = (f"w{number}" for number in itertools.count())
    for number in range(epochs):
        ledger.epoch({number % 2}, words, folded=number % 5 == 0)
        if number % 7 == 0:
            ledger.stage(number % 2, compacted=number % 3 == 0)
    ledger.check_all()


def collect_for_long(place: str, epochs: int) -> None:
    repository = Repository(place)
    while len(repository.epochs()) < epochs and repository.latest_epoch() != epochs - 1:
        Collector(repository, sk.Retention(epochs=3)).collect(sweep=None)


def test_two_collectors_run_beside_a_job_all_the_time(tmp_path: Path) -> None:
    collectors = [start(collect_for_long, str(tmp_path), 120) for _ in range(2)]
    assert exit_code(commit_for_long, str(tmp_path), 120) == 0
    for collector in collectors:
        collector.join(PATIENCE_S)
        assert collector.exitcode == 0
    repository = Repository(tmp_path)
    assert collect(repository, 3).first == 117
    assert repository.epochs() == [117, 118, 119]


# ------------------------------------------------------------------------ what is told, and to whom


def tallied(place: Path, epochs: int, **options: Any) -> list[Any]:
    given = [record for epoch in range(epochs) for record in entries(epoch, 5)]
    tally_job(8).run(
        {"records": given}, checkpoint=place, parallelism=2, epoch_size=5, drain=False, **options
    )
    return given


def test_a_job_keeps_the_declared_number_of_epochs_and_its_state(tmp_path: Path) -> None:
    given = tallied(tmp_path, 12, retention=sk.Retention(epochs=2))
    repository = Repository(tmp_path)
    assert collect(repository, 2).first == 10
    assert repository.epochs() == [10, 11]
    run = tally_job(8).run({"records": given}, checkpoint=tmp_path, drain=False)
    assert run.epochs == 0
    reader = CheckpointReader(tmp_path)
    found = plain_state(given)
    assert {key: reader.get("tally", "total", key) for key in found} == {
        key: held["total"] for key, held in found.items()
    }


def test_epochs_that_were_collected_are_named_in_errors(tmp_path: Path) -> None:
    tallied(tmp_path, 6, retention=None)
    repository = Repository(tmp_path)
    assert repository.epochs() == [0, 1, 2, 3, 4, 5]
    collect(repository, 2)
    told = "epoch 2 of .* was collected: its epochs are 4 to 5"
    with pytest.raises(sk.QueryError, match=told):
        CheckpointReader(tmp_path, epoch=2)
    with pytest.raises(sk.RestoreError, match=told):
        write_savepoint(repository, "old", epoch=2)
    with pytest.raises(sk.RestoreError, match=told):
        plan_rollback(repository, 2)
    with pytest.raises(sk.RestoreError, match=told):
        tallied(tmp_path, 6, from_epoch=2)
    with pytest.raises(sk.QueryError, match="has no epoch 9: it has 4 to 5"):
        CheckpointReader(tmp_path, epoch=9)


def test_a_rollback_is_finished_although_its_target_was_collected_since(tmp_path: Path) -> None:
    given = tallied(tmp_path, 4)
    plan_rollback(Repository(tmp_path), 1).carry_out()
    collect(Repository(tmp_path), 1)
    assert Repository(tmp_path).epochs() == [4]
    assert plan_rollback(Repository(tmp_path), 1).is_committed
    run = tally_job(8).run({"records": given}, checkpoint=tmp_path, from_epoch=1, epoch_size=5)
    assert sorted(run.outputs["outputs"]) == sorted(plain_outputs(given)[10:])


def test_a_rollback_that_was_begun_keeps_its_epoch_until_its_number_is_taken() -> None:
    ledger, words = ledger_of(5, repository := TimedRepository.empty())
    note_going_back(repository, 5, 1)
    assert collect(repository, 1).held == {1: "a rollback to it was begun, as epoch 5"}
    ledger.check(1)
    ledger.epoch({0}, words)
    assert not collect(repository, 1).held
    assert list(repository.tree("begun")) == []


def test_epochs_that_are_young_by_the_stores_clock_are_kept() -> None:
    ledger, words = ledger_of(2, repository := TimedRepository.empty())
    for _ in range(5):
        repository.now += HOUR
        ledger.epoch({0}, words)
    retention = sk.Retention(epochs=1, age="2 hours")
    done = Collector(repository, retention).collect(sweep=False)
    assert done is not None
    assert repository.epochs() == [4, 5, 6]


@pytest.mark.parametrize("wrong", [{"epochs": 0}, {"epochs": True}, {"age": "soon"}, {"age": 7}])
def test_a_retention_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(StateTypeError, match=next(iter(wrong))):
        sk.Retention(**wrong)


def test_options_that_cannot_be_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StateTypeError, match=r"retention=5: give statekit.Retention"):
        tallied(tmp_path, 1, retention=5)
    with pytest.raises(StateTypeError, match="up to 12 hours ago"):
        Collector(Repository(tmp_path), sk.Retention(), grace=HOUR)


def test_a_kept_epoch_that_cannot_be_read_stops_the_collection(tmp_path: Path) -> None:
    ledger, words = ledger_of(3, Repository(tmp_path))
    ledger.stage(0, compacted=True)
    ledger.epoch({0}, words)
    base = ledger.staged[0][0]
    ledger.epoch({0}, words)
    (tmp_path / base.path).write_bytes(b"altered")
    before = set(ledger.repository.tree("data"))
    with pytest.raises(CorruptCheckpointError, match=base.path):
        collect(ledger.repository, 1)
    assert set(ledger.repository.tree("data")) == before


def test_a_collection_without_the_job_file_changes_nothing(tmp_path: Path) -> None:
    ledger, _ = ledger_of(3, Repository(tmp_path))
    (tmp_path / "job.json").unlink()
    before = set(ledger.repository.tree(""))
    for grace in (NOTHING, 24 * HOUR):
        with pytest.raises(CorruptCheckpointError, match=r"job\.json is missing, .* epoch 2 needs"):
            collect(ledger.repository, 1, grace=grace)
    assert set(ledger.repository.tree("")) == before


class LosingEpochs:
    """The disk of a checkpoint, from which somebody removes `epochs/` before some request."""

    def __init__(self, inner: Objects, root: Path, requests: int) -> None:
        self.inner, self.root, self.requests = inner, root, requests

    def instead(self, _: Objects) -> Objects:
        return cast("Objects", self)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        return self._counted(found) if callable(found) else found

    def _counted(self, request: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any) -> Any:
            self.requests -= 1
            if self.requests == 0:
                (self.root / "epochs").rename(self.root / "hidden")
            return request(*args)

        return counted


@pytest.mark.parametrize("grace", [NOTHING, 24 * HOUR])
def test_epochs_that_are_removed_under_a_collection_end_it_with_an_error(
    tmp_path: Path, grace: dt.timedelta
) -> None:
    ledger, _ = ledger_of(4, Repository(tmp_path / "0"))
    refused = 0
    for requests in itertools.count(1):
        place = tmp_path / str(requests)
        shutil.copytree(tmp_path / "0", place)
        losing = LosingEpochs(LocalObjects(place), place, requests)
        repository = Repository(place).through(losing.instead)
        collector = Collector(repository, sk.Retention(epochs=2), grace=grace)
        try:
            collector.collect(sweep=True)
        except CorruptCheckpointError:
            refused += 1
        if losing.requests > 0:
            break
    assert refused > requests / 2
    ledger.check_all()


def test_epochs_that_are_removed_under_the_collection_of_a_job_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ledger_of(4, Repository(tmp_path))
    losing = LosingEpochs(LocalObjects(tmp_path), tmp_path, 6)
    repository = Repository(tmp_path).through(losing.instead)
    collection = BackgroundCollection(repository, sk.Retention(epochs=2))
    collection.committed(3)
    collection.close()
    assert losing.requests <= 0
    (told,) = [record for record in caplog.records if record.name == "statekit.collecting"]
    assert "was not collected" in told.getMessage()


def test_epochs_of_a_job_that_takes_less_than_a_second_are_collected_at_its_end(
    tmp_path: Path,
) -> None:
    ledger_of(4, Repository(tmp_path))
    collection = BackgroundCollection(Repository(tmp_path), sk.Retention(epochs=2))
    collection.committed(2)
    collection.committed(3)
    collection.close()
    assert Repository(tmp_path).epochs() == [2, 3]


@pytest.mark.parametrize("fails", [True, False])
def test_a_run_that_fails_collects_nothing_at_its_end(
    root: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    monkeypatch.setattr("statekit.checkpoint.gc.collector._PAUSE_S", 3600.0)

    def write(spent: object, epoch: int) -> None:
        if fails and epoch == 5:
            raise OSError("the disk is full")

    options: dict[str, Any] = {"epoch_size": 2, "retention": sk.Retention(epochs=1)}
    options |= {"outputs": {"spent": write}, "drain": False}
    with pytest.raises(sk.ProcessError) if fails else contextlib.nullcontext():
        spending_job().run({"orders": ORDERS}, checkpoint=root, **options)
    assert Repository(root).epochs() == ([0, 1, 2, 3, 4] if fails else [5])


def test_a_store_that_fails_ends_no_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise StorageError("the store is away: try again")

    monkeypatch.setattr(Repository, "collect", fail)
    tallied(tmp_path, 5, retention=sk.Retention(epochs=1))
    assert "was not collected: the store is away" in caplog.text
    monkeypatch.undo()
    assert collect(Repository(tmp_path), 1).kept == 1


def test_the_command_prints_its_plan_and_carries_it_out(tmp_path: Path) -> None:
    ledger, words = ledger_of(3, Repository(tmp_path / "c"))
    ledger.stage(0, compacted=True)
    ledger.stage(1, compacted=True)
    ledger.epoch({0, 1}, words)
    ledger.epoch({0}, words)
    ledger.put("changes.arrow", ["lost"])
    before = set(ledger.repository.tree(""))
    done = statekit("gc", tmp_path / "c", "--epochs", 1, "--dry-run")
    assert (done.returncode, done.stderr) == (0, "")
    assert "kept: epochs 4 to 4 (1)" in done.stdout
    assert "kept: 1 file of 4 bytes, unreferenced, stored less than 24 hours before" in done.stdout
    assert "dry run: nothing was changed" in done.stdout
    assert set(ledger.repository.tree("")) == before
    done = statekit("gc", tmp_path / "c", "--epochs", 1, "--grace", 0, "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["deleted"]["manifests"]["files"] == 4
    assert json.loads(done.stdout)["deleted"]["change files"]["files"] == 7
    assert not ledger.unnamed()
    ledger.check_all()
    for option in ("--age", "--grace"):
        done = statekit("gc", tmp_path / "c", option, "soon")
        assert done.returncode == 2
        assert f"{option} 'soon' is no duration" in done.stderr
        assert "timedelta" not in done.stderr
    done = statekit("gc", tmp_path / "c", "--grace", "1h")
    assert done.returncode == 1
    assert "up to 12 hours ago" in done.stderr


def test_a_checkpoint_without_epochs_has_no_garbage(tmp_path: Path) -> None:
    with pytest.raises(sk.RestoreError, match="there is no checkpoint at"):
        gc(str(tmp_path / "missing"))
    repository = Repository.in_memory()
    repository.create("data/count/x.changes.arrow", b"")
    assert Collector(repository, sk.Retention(), grace=NOTHING).collect(sweep=True) is None
    assert list(repository.tree("")) == ["data/count/x.changes.arrow"]


def base_of(ledger: Ledger, epoch: int) -> FileRef | None:
    return ledger.repository.manifest(epoch).operators[OPERATOR].shards[0].base


def test_a_base_staged_before_a_rollback_is_not_used_after_it() -> None:
    ledger, words = ledger_of(2, TimedRepository.empty())
    ledger.stage(0, compacted=True)
    ledger.epoch({0}, words)
    assert base_of(ledger, 2) == ledger.staged[0][0]
    ledger.roll_back(1)
    ledger.epoch({0}, words)
    assert base_of(ledger, 4) is None
    ledger.stage(0, compacted=True)
    ledger.epoch({0}, words)
    assert base_of(ledger, 5) == ledger.staged[1][0]


def test_a_base_staged_long_before_the_last_epoch_is_not_used() -> None:
    ledger, words = ledger_of(2, repository := TimedRepository.empty())
    ledger.stage(0, compacted=True)
    for hours in (11, 2):
        repository.now += hours * HOUR
        ledger.epoch({1}, words)
    ledger.epoch({0}, words)
    assert base_of(ledger, 4) is None


def test_a_base_that_shares_files_with_one_that_the_shard_has_left_is_not_adopted() -> None:
    ledger, words = ledger_of(2, repository := TimedRepository.empty())
    ledger.stage(0, compacted=True)
    ledger.epoch({0}, words)
    repository.now += 13 * HOUR
    ledger.epoch({0}, words)
    ledger.stage(0, compacted=False)  # shares a file of 13 hours before
    sharing = ledger.staged.pop()
    ledger.stage(0, compacted=True)
    ledger.epoch({0}, words)
    assert base_of(ledger, 4) == ledger.staged[-1][0]
    chain = ledger.repository.manifest(4).operators[OPERATOR].shards[0].files
    late = sharing[1].model_copy(update={"follows": chain[0].path})
    ledger.staged = [(sharing[0], late)]
    ledger.epoch({0}, words)
    assert base_of(ledger, 5) == base_of(ledger, 4)


def rescaled_twice() -> tuple[Ledger, Iterator[str]]:
    """Two shards that were one, which was two: each leads to all files of both."""
    ledger, words = ledger_of(1)
    for parallelism in (1, 2):
        ledger.parallelism = parallelism
        ledger.epoch({0, 1}, words)
    return ledger, words


@pytest.mark.parametrize("is_collected_before", [False, True])
def test_files_of_a_shard_that_was_divided_stay_while_one_part_leads_to_them(
    is_collected_before: bool,
) -> None:
    ledger, words = rescaled_twice()
    if is_collected_before:
        collect(ledger.repository, 1, sweep=False)
    ledger.stage(0, compacted=True)
    ledger.epoch({0}, words)
    assert base_of(ledger, 3) is not None
    for sweep in (False, True):
        collect(ledger.repository, 1, sweep=sweep)
        ledger.check_all()
    ledger.stage(1, compacted=True)
    ledger.epoch({1}, words)
    collect(ledger.repository, 1, grace=NOTHING)
    ledger.check_all()
    assert not ledger.unnamed()


def test_reads_follow_the_collected_epochs_and_not_the_size_of_the_checkpoint() -> None:
    repository = TimedRepository.empty()
    ledger, words = ledger_of(1, repository)
    ledger.parallelism = 8
    ledger.epoch(set(range(8)), words)
    for _ in range(30):
        ledger.epoch({0}, words)
    collect(repository, 2, sweep=False)
    for _ in range(3):
        ledger.epoch({0}, words)
    requests: list[int] = []
    repository.before = lambda: requests.append(1)
    done = collect(repository, 2, sweep=False)
    assert done.given_up == 3
    assert len(requests) < 25
