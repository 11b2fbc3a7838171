"""Readers' leases: a live reader finds its epochs, within the bound; a dead one keeps nothing."""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

import statekit as sk
from statekit.checkpoint import paths
from statekit.checkpoint.gc.collector import Collected, Collector
from statekit.checkpoint.gc.readers import readers_of
from statekit.checkpoint.leases import lease_files
from statekit.checkpoint.leases.lease_files import (
    LEASE_BYTES_MAX,
    SKEW,
    Holder,
    Lease,
    stored_leases,
)
from statekit.checkpoint.leases.reader_lease import ReaderLease, resync_error
from statekit.checkpoint.object_store import Objects
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.sealed_json import checksum_of
from statekit.clock import sleep_s
from statekit.errors import StatekitError
from statekit.maintenance.savepoint.write import write_savepoint
from statekit.maintenance.verify.repair import repair
from statekit.maintenance.verify.verify import verify
from tests.support import killable_processes
from tests.support.checkpoint_ledger import Ledger, Power, TimedRepository
from tests.support.counting_job import entries, tally_job
from tests.support.effort import SOAK
from tests.unit.checkpoint.test_garbage_collection import BURSTS, Turns, ledger_of

MINUTE = dt.timedelta(minutes=1)
TTL = 10 * MINUTE


@contextlib.contextmanager
def process(name: str) -> Iterator[None]:
    """Act as another process."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(lease_files, "_session", lambda _: checksum_of(name.encode()))
        yield


def collect(repository: Repository, epochs: int = 1, **options: Any) -> Collected:
    retention = sk.Retention(epochs=epochs, readers=options.pop("readers", "1 day"))
    done = Collector(repository, retention, **options).collect(sweep=False)
    assert done is not None
    return done


@pytest.fixture
def repository() -> TimedRepository:
    """Ten epochs, one a minute."""
    repository = TimedRepository.empty()
    ledger = Ledger(repository)
    words = (f"w{number}" for number in itertools.count())
    for _ in range(10):
        repository.now += MINUTE
        ledger.epoch({0, 1}, words)
    return repository


# ------------------------------------------------------------------------------- taking a lease


def test_a_reader_keeps_its_epoch_and_all_later_ones_until_it_moves_on(
    repository: TimedRepository,
) -> None:
    lease = ReaderLease.take(repository, "index", 4)
    collect(repository)
    assert repository.epochs() == [4, 5, 6, 7, 8, 9]
    lease.commit(7)
    collect(repository)
    assert (lease.epoch, repository.epochs()) == (7, [7, 8, 9])
    lease.delete()
    collect(repository)
    assert repository.epochs() == [9]
    assert not stored_leases(repository)[0]


def test_of_several_readers_the_one_furthest_behind_decides(repository: TimedRepository) -> None:
    behind, before = (ReaderLease.take(repository, name, n) for name, n in (("a", 3), ("b", 6)))
    collect(repository)
    assert repository.epochs()[0] == 3
    behind.commit(9)
    collect(repository)
    assert repository.epochs()[0] == before.epoch == 6


def test_a_lease_that_another_process_holds_is_refused_with_its_holder_and_expiry(
    repository: TimedRepository,
) -> None:
    ReaderLease.take(repository, "index", 4, ttl=TTL)
    with process("other"), pytest.raises(sk.FencedError) as refused:
        ReaderLease.take(repository, "index", 9)
    until = f"{repository.now + TTL:%Y-%m-%d %H:%M:%S} UTC"
    assert f"is process {os.getpid()} on " in str(refused.value)
    assert until in str(refused.value)
    collect(repository)
    assert repository.epochs()[0] == 4, "the refusal changed nothing"


def test_an_expired_lease_is_taken_over_and_its_holder_gets_an_error(
    repository: TimedRepository,
) -> None:
    first = ReaderLease.take(repository, "index", 4, ttl=TTL)
    repository.now += TTL
    with process("other"):
        with pytest.raises(sk.FencedError, match="its lease is valid until"):
            ReaderLease.take(repository, "index", 6)
        repository.now += dt.timedelta(seconds=1)
        assert collect(repository).first == 4, "a collector waits longer"
        second = ReaderLease.take(repository, "index", 6)
        for act in (first.renew, lambda: first.commit(9)):
            with pytest.raises(sk.FencedError, match="taken over by process"):
                act()
        first.release()
        second.commit(7)
    collect(repository)
    assert repository.epochs()[0] == 7, "the earlier holder released nothing"


def test_a_run_with_the_token_of_the_lease_or_in_the_same_process_takes_it_over_at_once(
    repository: TimedRepository,
) -> None:
    first = ReaderLease.take(repository, "index", 4, token="query-7")
    with process("other"):
        again = ReaderLease.take(repository, "index", 5, token=first.token)
        with pytest.raises(sk.FencedError, match="taken over"):
            first.commit(6)
        again.commit(6)
        third = ReaderLease.take(repository, "index", 6)
    with pytest.raises(sk.FencedError):
        again.renew()
    assert third.token != first.token


def test_a_lease_on_an_epoch_that_was_collected_is_refused_with_the_way_to_resynchronise(
    repository: TimedRepository,
) -> None:
    collect(repository, 3)
    with pytest.raises(sk.QueryError) as refused:
        ReaderLease.take(repository, "index", 4)
    assert "the epochs 7 to 9 are kept" in str(refused.value)
    assert "read the state at a kept epoch, such as 9, then take the changes" in str(refused.value)
    assert not list(repository.names(paths.READERS))
    assert resync_error(repository, 7) is None
    with pytest.raises(sk.QueryError, match="has no epoch 12"):
        ReaderLease.take(repository, "index", 12)
    assert not list(repository.names(paths.READERS))


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "../job"},
        {"name": ""},
        {"name": 7},
        {"name": "nul"},
        {"epoch": -1},
        {"epoch": True},
        {"ttl": "0 s"},
        {"ttl": "soon"},
        {"ttl": "9000 years"},
        {"token": ""},
        {"token": "a\x1b[2J"},
    ],
)
def test_arguments_that_cannot_be_are_refused_and_nothing_is_written(
    repository: TimedRepository, wrong: dict[str, Any]
) -> None:
    given: dict[str, Any] = {"name": "index", "epoch": 4, **wrong}
    with pytest.raises(sk.StateTypeError):
        ReaderLease.take(repository, given.pop("name"), given.pop("epoch"), **given)
    assert not list(repository.names(paths.READERS))


# ----------------------------------------------------------------------------- keeping and losing


def test_a_lease_is_committed_forwards_only(repository: TimedRepository) -> None:
    lease = ReaderLease.take(repository, "index", 4)
    for epoch, reason in ((3, "is before that"), (12, "has no epoch 12")):
        with pytest.raises(sk.QueryError, match=reason):
            lease.commit(epoch)
    assert stored_leases(repository)[0][0].lease.epoch == lease.epoch == 4


@pytest.mark.parametrize("readers", ["3 minutes", dt.timedelta(minutes=3)])
def test_a_reader_that_is_too_far_behind_loses_its_epochs_and_gets_an_error_at_once(
    repository: TimedRepository, readers: Any
) -> None:
    lease = ReaderLease.take(repository, "index", 2)
    collect(repository, readers=readers)
    assert repository.epochs() == [6, 7, 8, 9], "what was committed 3 minutes before the last"
    for act in (lease.renew, lambda: lease.commit(3)):
        with pytest.raises(sk.QueryError, match="To resynchronise"):
            act()


@pytest.mark.parametrize("readers", [None, 0 * MINUTE, "0 s"])
def test_readers_keep_nothing_if_the_retention_gives_them_nothing(
    repository: TimedRepository, readers: Any
) -> None:
    ReaderLease.take(repository, "index", 2)
    collect(repository, readers=readers)
    assert repository.epochs() == [9]


def test_a_reader_that_is_too_far_behind_may_move_on_to_what_is_left(
    repository: TimedRepository,
) -> None:
    lease = ReaderLease.take(repository, "index", 2)
    collect(repository, readers="3 minutes")
    lease.commit(7)
    collect(repository)
    assert repository.epochs()[0] == 7


def test_a_reader_that_died_keeps_its_epochs_until_its_lease_expires(
    repository: TimedRepository,
) -> None:
    ReaderLease.take(repository, "index", 4, ttl=TTL)
    repository.now += TTL + SKEW
    assert collect(repository).first == 4
    repository.now += MINUTE
    assert collect(repository).first == 9, "although nothing was committed since"


def test_a_lease_that_lapsed_is_renewed_while_its_epoch_exists(repository: TimedRepository) -> None:
    lease = ReaderLease.take(repository, "index", 4, ttl=TTL)
    repository.now += 100 * TTL
    lease.renew()
    collect(repository)
    assert repository.epochs()[0] == 4
    repository.now += 100 * TTL
    collect(repository)
    with pytest.raises(sk.QueryError, match="was collected"):
        lease.renew()


def test_a_lease_that_somebody_deleted_is_written_again(repository: TimedRepository) -> None:
    lease = ReaderLease.take(repository, "index", 4)
    repository.remove([paths.lease_path("index")])
    lease.commit(5)
    collect(repository)
    assert repository.epochs()[0] == 5


def test_a_lease_that_was_released_is_taken_at_once_and_keeps_its_epochs_until_it_expires(
    repository: TimedRepository,
) -> None:
    with ReaderLease.take(repository, "index", 4, ttl=TTL) as lease:
        lease.commit(5)
        repository.now += MINUTE
    repository.now += TTL
    assert collect(repository).first == 5
    with (
        process("other"),
        contextlib.suppress(ZeroDivisionError),
        ReaderLease.take(repository, "index", 5, ttl=TTL),
    ):
        raise ZeroDivisionError
    with process("third"):
        ReaderLease.take(repository, "index", 5, ttl=TTL).release()
    repository.now += TTL + SKEW + MINUTE
    assert collect(repository).first == 9


def test_a_reader_whose_lease_was_taken_over_releases_nothing(repository: TimedRepository) -> None:
    first = ReaderLease.take(repository, "index", 4)
    ReaderLease.take(repository, "index", 5)
    first.release()
    first.delete()
    (stored,) = stored_leases(repository)[0]
    assert (stored.lease.epoch, stored.lease.released) == (5, False)


def test_the_lease_of_a_killed_process_of_this_machine_is_taken_at_once(root: Path) -> None:
    repository = written(root)
    assert killable_processes.exit_code(_take_and_die, root) == -9
    (stored,) = stored_leases(repository)[0]
    assert stored.lease.holder.has_ended
    ReaderLease.take(repository, "index", 3)


def written(root: Path) -> Repository:
    """Five epochs on a disk."""
    tally_job().run({"records": entries(0, 15)}, checkpoint=root, epoch_size=3)
    return Repository(root)


def _take_and_die(root: Path) -> None:
    ReaderLease.take(Repository(root), "index", 2)
    killable_processes.die()


def test_the_lease_of_a_process_that_runs_is_refused_to_others_of_its_machine(root: Path) -> None:
    written(root)
    lease = ReaderLease.take(Repository(root), "index", 2)
    assert killable_processes.exit_code(_is_refused, root) == 0
    lease.commit(3)


def _is_refused(root: Path) -> None:
    with pytest.raises(sk.FencedError, match=r"reader 'index' of .* is process"):
        ReaderLease.take(Repository(root), "index", 2)


@pytest.mark.parametrize(
    ("changed", "has_ended"),
    [
        ({}, False),
        ({"started": 1}, True),  # the process id was used again
        ({"started": 0}, False),  # the system did not report it
        ({"process": 1 << 40}, True),
        ({"place": "another boot"}, False),
        ({"place": ""}, False),
    ],
)
def test_a_process_has_ended_only_if_this_machine_knows_it(
    changed: dict[str, Any], has_ended: bool
) -> None:
    holder = Holder.of_this_process().model_copy(update=changed)
    assert holder.has_ended == has_ended


def test_a_run_that_takes_over_a_valid_lease_is_not_refused_by_the_note_of_a_killed_collector(
    repository: TimedRepository,
) -> None:
    ReaderLease.take(repository, "index", 4, token="query")
    _killed_at(repository, "closed")
    with process("other"):
        lease = ReaderLease.take(repository, "index", 5, token="query")
        with pytest.raises(sk.QueryError, match="was collected"):
            ReaderLease.take(repository, "index", 3, token="query")
    assert collect(repository).first == 9, "the refused run has removed its lease"
    with pytest.raises(sk.QueryError, match="was collected"):
        lease.commit(6)


def test_a_reader_of_epochs_that_were_rolled_back_keeps_them() -> None:
    ledger, words = ledger_of(6, repository := TimedRepository.empty())
    ReaderLease.take(repository, "index", 4)
    ledger.roll_back(2)
    ledger.epoch({0}, words)
    collect(repository)
    assert repository.epochs() == [4, 5, 6, 7]
    ledger.check_all()


# ----------------------------------------------------------------------------- collectors beside it


def _prepared(kind: str) -> tuple[Ledger, TimedRepository, Callable[[], object]]:
    """Five epochs, and a reader that is about to take epoch 3, or to move its lease there."""
    ledger, _ = ledger_of(5, repository := TimedRepository.empty())
    if kind == "new":
        return ledger, repository, lambda: ReaderLease.take(repository, "index", 3)
    lease = ReaderLease.take(repository, "index", 1, ttl=TTL)
    if kind == "lapsed":
        repository.now += 2 * TTL
    if kind == "left behind":
        collect(repository, 3, readers=None)
    return ledger, repository, lambda: lease.commit(3)


def _met(kind: str, step: int, *, is_reader_first: bool) -> bool | None:
    """Do one of two things within the other, before its request of this number. Return whether the
    reader has its epochs; None if there was no such request.
    """
    ledger, repository, move = _prepared(kind)
    results: list[bool] = []
    left = itertools.count(step, -1)

    def read() -> None:
        with contextlib.suppress(sk.QueryError):
            move()
            results.append(True)

    both: list[Callable[[], object]] = [read, lambda: collect(repository)]
    outer, inner = both if is_reader_first else reversed(both)

    def meet() -> None:
        if next(left) == 1:
            repository.before = lambda: None
            inner()

    repository.before = meet
    outer()
    has_met, repository.before = repository.before is not meet, lambda: None
    if results:
        assert repository.first_kept() <= 3
        ledger.check(3)
    ledger.check_all()
    return bool(results) if has_met else None


@pytest.mark.parametrize("is_reader_first", [True, False])
@pytest.mark.parametrize("kind", ["new", "lapsed", "left behind", "valid"])
def test_wherever_a_reader_and_a_collection_meet_epochs_are_kept_or_the_reader_gets_an_error(
    kind: str, is_reader_first: bool
) -> None:
    steps = (_met(kind, step, is_reader_first=is_reader_first) for step in itertools.count(1))
    outcomes = set(itertools.takewhile(lambda outcome: outcome is not None, steps))
    assert outcomes == ({True} if kind == "valid" else {True, False})


@settings(max_examples=2_000 if SOAK else 60, deadline=None)
@given(bursts=BURSTS, epoch=st.integers(0, 5), keep=st.integers(1, 3))
def test_a_reader_beside_two_collectors_and_epochs_finds_all_it_has_a_lease_on(
    bursts: list[tuple[int, int]], epoch: int, keep: int
) -> None:
    ledger, words = ledger_of(6, repository := TimedRepository.empty())
    turns = Turns(bursts)
    repository.before = turns.wait
    outcomes: list[str] = []

    def follow() -> None:
        try:
            lease = ReaderLease.take(repository, "index", epoch)
        except sk.QueryError:
            outcomes.append("refused")
            return
        for number in (epoch, epoch + 1):
            if number <= max(ledger.held):
                lease.commit(number)
                for later in [n for n in sorted(ledger.held) if n >= number]:
                    ledger.check(later)
        outcomes.append("read")

    turns.add(follow)
    turns.add(lambda: collect(repository, keep))
    turns.add(lambda: collect(repository, keep + 1))
    turns.add(lambda: ledger.epoch({0}, words))
    turns.run()
    assert not turns.failures, turns.failures
    repository.before = lambda: None
    if outcomes == ["refused"]:
        assert repository.first_kept() > epoch
        assert not list(repository.names(paths.READERS))
    else:
        assert repository.first_kept() <= epoch + 1
    ledger.check_all()


class RemovingNotes:
    """A store in which another collector removes each note as soon as it is there."""

    def __init__(self, inner: Objects) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def create(self, path: str, data: bytes) -> None:
        self._inner.create(path, data)
        if path.endswith(".closed"):
            self._inner.delete([path])
            raise FileNotFoundError


def test_a_collector_whose_note_another_one_removes_at_once_continues() -> None:
    ledger, _ = ledger_of(5, Repository.in_memory())
    removing = ledger.repository.through(lambda objects: cast("Objects", RemovingNotes(objects)))
    assert collect(removing, 2).first == 3
    assert removing.epochs() == [3, 4]


def test_the_notes_of_a_killed_collector_refuse_new_leases_until_the_next_collection(
    repository: TimedRepository,
) -> None:
    before = ReaderLease.take(repository, "before", 3)
    _killed_at(repository, "closed")
    assert [name for name in repository.names("epochs") if name.endswith(".closed")]
    collect(repository)
    assert not [name for name in repository.names("epochs") if name.endswith(".closed")]
    before.commit(4)
    assert repository.epochs()[0] == 3


def _killed_at(repository: TimedRepository, ending: str) -> None:
    """Run a collection that is killed once it has written a file of such a name."""

    def cut() -> None:
        if any(path.endswith(ending) for path in Repository.names(repository, "epochs")):
            raise Power

    repository.before = cut
    with pytest.raises(Power):
        collect(repository, 1)
    repository.before = lambda: None


# --------------------------------------------------------------------------- any order of events


@dataclass
class Model:
    """What is known of the lease of a name."""

    lease: ReaderLease
    owner: str
    """The process that holds it; empty if it was released."""
    epoch: int
    written: dt.datetime
    ttl: dt.timedelta
    is_kept: bool = True
    """Whether its epochs are guaranteed: no collection ran that it was too late for."""


class Leases(RuleBasedStateMachine):
    """Epochs, readers of two processes that take, move, renew, release, delete and die, and
    collectors that are killed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.repository = TimedRepository.empty()
        self.ledger = Ledger(self.repository)
        self.words = (f"w{number}" for number in itertools.count())
        self.times: dict[int, dt.datetime] = {}
        self.models: dict[str, Model] = {}
        self.fenced: list[tuple[str, ReaderLease]] = []
        self.epoch({0}, 1)

    @rule(changing=st.sets(st.integers(0, 1)), minutes=st.sampled_from([1, 20, 300]))
    def epoch(self, changing: set[int], minutes: int) -> None:
        self.repository.now += minutes * MINUTE
        self.times[self.ledger.epoch(changing, self.words)] = self.repository.now

    @rule(minutes=st.sampled_from([1, 5, 11, 60]))
    def time_passes(self, minutes: int) -> None:
        self.repository.now += minutes * MINUTE

    @rule(back=st.integers(1, 3))
    def roll_back(self, back: int) -> None:
        epochs = self.repository.epochs()
        if len(epochs) > back:
            number = self.ledger.roll_back(epochs[-1 - back])
            self.times[number] = self.repository.now

    @rule(
        name=st.sampled_from("ab"),
        owner=st.sampled_from(["p", "q"]),
        back=st.integers(0, 5),
        minutes=st.sampled_from([2, 10, 90]),
    )
    def take(self, name: str, owner: str, back: int, minutes: int) -> None:
        epoch = max(0, max(self.times) - back)
        model = self.models.get(name)
        is_fenced = model is not None and model.owner not in (owner, "") and self._is_valid(model)
        is_closed = epoch < max(self._closed(), default=0) and not (
            model is not None
            and self._is_valid(model)
            and self.repository.epochs()[0] <= model.epoch <= epoch
        )
        with process(owner):
            try:
                lease = ReaderLease.take(self.repository, name, epoch, ttl=minutes * MINUTE)
            except sk.FencedError:
                assert is_fenced
                return
            except sk.QueryError:
                assert epoch < self.repository.epochs()[0] or (is_closed and not is_fenced)
                if epoch >= self.repository.epochs()[0]:
                    self._forget(name)
                return
        assert not is_fenced
        assert not is_closed
        self._forget(name)
        now = self.repository.now
        self.models[name] = Model(lease, owner, epoch, now, minutes * MINUTE)

    @rule(name=st.sampled_from("ab"), ahead=st.integers(0, 3))
    def commit(self, name: str, ahead: int) -> None:
        model = self.models.get(name)
        if model is None or not model.owner:
            return
        epoch = min(model.epoch + ahead, max(self.times))
        has_lapsed = not self._is_valid(model)
        try:
            model.lease.commit(epoch)
        except sk.QueryError:
            assert not model.is_kept or has_lapsed
            assert epoch < max([self.repository.epochs()[0], *self._closed()])
            if not list(self.repository.names(paths.READERS)) or not self._is_stored(name):
                del self.models[name]
            return
        model.epoch, model.written, model.is_kept = epoch, self.repository.now, True

    @rule(name=st.sampled_from("ab"))
    def release(self, name: str) -> None:
        model = self.models.get(name)
        if model is None or not model.owner:
            return
        model.lease.release()
        if self._is_stored(name):
            model.owner, model.written = "", self.repository.now
        else:
            assert not model.is_kept or not self._is_valid(model)
            del self.models[name]

    @rule(name=st.sampled_from("ab"))
    def delete(self, name: str) -> None:
        model = self.models.get(name)
        if model is not None and model.owner:
            model.lease.delete()
            assert not self._is_stored(name)
            del self.models[name]

    @rule()
    def earlier_holders_get_errors(self) -> None:
        for name, lease in self.fenced:
            if self._is_stored(name):
                with pytest.raises(sk.FencedError):
                    lease.renew()

    @rule(
        epochs=st.integers(1, 3),
        minutes=st.sampled_from([0, 30, 200, 3000]),
        requests=st.none() | st.integers(1, 25),
    )
    def collection(self, epochs: int, minutes: int, requests: int | None) -> None:
        before = self.repository.epochs()
        expected = self._expected(epochs, minutes * MINUTE)
        left = itertools.count(requests or 1, -1)

        def cut() -> None:
            if requests is not None and not next(left):
                raise Power

        self.repository.before = cut
        is_killed = False
        try:
            collect(self.repository, epochs, readers=minutes * MINUTE)
        except Power:
            is_killed = True
        self.repository.before = lambda: None
        first = self.repository.epochs()[0]
        assert first == expected or (is_killed and first == before[0])

    def _expected(self, epochs: int, bound: dt.timedelta) -> int:
        """The first epoch that a collection keeps. Note which readers are too late for it."""
        kept, now = self.repository.epochs(), self.repository.now
        last = self.repository.manifest(kept[-1])
        history = [number for number in kept if not last.has_abandoned(number)]
        oldest = min(n for n in kept if self.times[kept[-1]] - self.times[n] <= bound)
        first = history[-epochs:][0]
        for model in self.models.values():
            is_valid = now - model.written <= model.ttl + SKEW
            if bound and is_valid and model.epoch >= kept[0]:
                first = min(first, max(model.epoch, oldest))
            model.is_kept &= is_valid and bool(bound) and model.epoch >= oldest
        return first

    def _is_valid(self, model: Model, skew: dt.timedelta = dt.timedelta(0)) -> bool:
        return self.repository.now - model.written <= model.ttl + skew

    def _is_stored(self, name: str) -> bool:
        return paths.lease_path(name) in self.repository.names(paths.READERS)

    def _closed(self) -> list[int]:
        return list(self.repository.epoch_files().closed.values())

    def _forget(self, name: str) -> None:
        model = self.models.pop(name, None)
        if model is not None:
            self.fenced.append((name, model.lease))

    @invariant()
    def every_reader_with_a_lease_finds_its_epochs(self) -> None:
        self.ledger.check_all()
        kept = self.repository.epochs()
        for model in self.models.values():
            if model.is_kept:
                assert kept[0] <= model.epoch
                assert resync_error(self.repository, model.epoch) is None


def test_whatever_happens_a_reader_with_a_lease_finds_its_epochs_and_others_keep_nothing() -> None:
    run_state_machine_as_test(
        Leases,
        settings=settings(
            max_examples=1_000 if SOAK else 60, stateful_step_count=30, deadline=None
        ),
    )


def test_an_epoch_that_a_killed_collector_has_half_removed_is_refused_and_the_lease_stays() -> None:
    state = Leases()
    state.epoch(changing=set(), minutes=1)
    state.take(back=0, minutes=2, name="a", owner="q")
    state.collection(epochs=1, minutes=0, requests=5)
    assert state.repository.is_committed(0)
    assert state.repository.epochs() == [1]
    state.take(back=1, minutes=2, name="a", owner="q")  # is refused, as it knows
    (stored,) = stored_leases(state.repository)[0]
    assert stored.lease.epoch == 1


# ------------------------------------------------------------------------- files that are no leases


def test_files_that_are_no_leases_stop_neither_job_nor_collector_and_are_reported(
    tmp_path: Path,
) -> None:
    place = tmp_path / "c"
    tally_job().run({"records": entries(0, 15)}, checkpoint=place, epoch_size=3)
    repository = Repository(place)
    ReaderLease.take(repository, "other", 1).delete()
    intact = ReaderLease.take(repository, "intact", 2)
    lease = (place / "readers" / "intact.json").read_bytes()
    foreign = {
        "torn.json": lease[:-9],
        "empty.json": b"",
        "large.json": b" " * (LEASE_BYTES_MAX + 1),
        "renamed.json": lease,
        "notes.txt": b"x",
        "a b.json": lease,
    }
    for name, data in foreign.items():
        (place / "readers" / name).write_bytes(data)
    (place / "readers" / "outside.json").symlink_to(place / "job.json")
    found = verify(repository)
    damaged = {f"readers/{n}.json" for n in ("torn", "empty", "large", "renamed")}
    assert damaged <= {finding.path for finding in found.findings if finding.kind == "lease"}
    assert {finding.kind for finding in found.findings} == {"lease"}
    assert {"readers/notes.txt", "readers/a b.json"} <= {orphan.path for orphan in found.orphans}
    assert not found.is_damaged
    assert repair(repository, found) is None
    assert collect(repository).first == 2
    assert foreign.keys() <= {path.name for path in (place / "readers").iterdir()}
    job = tally_job()
    job.run({"records": entries(0, 15) + entries(1, 3)}, checkpoint=place, epoch_size=3)
    assert repository.epochs()[0] == intact.epoch
    ReaderLease.take(repository, "torn", 3).commit(4)  # a damaged lease is nobody's


def test_a_lease_of_a_newer_statekit_keeps_what_readers_can_keep_for_a_day(
    repository: TimedRepository,
) -> None:
    lease = ReaderLease.take(repository, "index", 4)
    stored = repository.read(paths.lease_path("index"))
    newer = stored.split(b',"checksum"')[0].replace(b'"format":3', b'"format":4')
    newer += f',"checksum":"{checksum_of(newer)}"}}'.encode()
    repository.replace(paths.lease_path("index"), newer)
    assert collect(repository, 3, readers="5 minutes").first == 4
    with pytest.raises(sk.RestoreError, match="upgrade statekit"):
        lease.renew()
    repository.now += dt.timedelta(days=1) + MINUTE
    assert collect(repository, 1).first == 9


@pytest.mark.parametrize("hours", [1, 30])
def test_a_sweep_removes_leases_that_expired_long_ago(
    repository: TimedRepository, hours: int
) -> None:
    ReaderLease.take(repository, "dead", 4, ttl=TTL)
    ReaderLease.take(repository, "patient", 4, ttl="7 days")
    repository.now += hours * 60 * MINUTE
    Collector(repository, sk.Retention()).collect(sweep=True)
    names = {lease.lease.name for lease in stored_leases(repository)[0]}
    assert names == ({"dead", "patient"} if hours == 1 else {"patient"})


def test_copies_and_savepoints_have_no_leases(tmp_path: Path) -> None:
    place = tmp_path / "c"
    tally_job().run({"records": entries(0, 15)}, checkpoint=place, epoch_size=3)
    repository, copy = Repository(place), Repository.in_memory()
    ReaderLease.take(repository, "index", 2)
    repository.copy_to(copy)
    write_savepoint(repository, "saved")
    assert copy.epochs() == repository.epochs()
    assert not [path for path in copy.tree("") if path.startswith("readers/")]
    assert not [path for path in repository.tree("savepoints") if "readers" in path]


# -------------------------------------------------------------------------------------- for people


def test_the_cost_of_a_reader_is_what_a_collection_without_it_deletes(
    repository: TimedRepository,
) -> None:
    ReaderLease.take(repository, "far", 2)
    ReaderLease.take(repository, "near", 5)
    ReaderLease.take(repository, "up-to-date", 9)
    collect(repository, 3)
    readers = readers_of(repository, sk.Retention(epochs=3)).readers
    assert [reader.status for reader in readers] == ["valid"] * 3
    far, near, fresh = (reader.extra for reader in readers)
    assert far is not None
    assert near is not None
    assert fresh is not None
    done = collect(repository, 3, readers=None)
    assert far.files == sum(size.files for size in done.deleted.values())
    assert far.bytes == sum(size.bytes for size in done.deleted.values())
    assert 0 == fresh.files < near.files < far.files


def test_a_collection_costs_few_requests_more_for_readers(repository: TimedRepository) -> None:
    def requests_of(act: Callable[[], object]) -> int:
        requests: list[int] = []
        repository.before = lambda: requests.append(1)
        act()
        repository.before = lambda: None
        return len(requests)

    without = requests_of(lambda: collect(repository, 9, readers=None))
    assert requests_of(lambda: collect(repository, 8)) <= without + 4
    ReaderLease.take(repository, "index", 9)
    assert requests_of(lambda: collect(repository, 7)) <= without + 6


def test_a_stored_lease_is_sealed_json(repository: TimedRepository) -> None:
    ReaderLease.take(repository, "index", 4, ttl=TTL, token="t")
    path = paths.lease_path("index")
    lease = Lease.from_bytes(repository.read(path), path)
    assert (lease.name, lease.epoch, lease.ttl_us, lease.token) == ("index", 4, 600_000_000, "t")
    assert lease.holder.process == os.getpid()


def test_a_reader_creates_nothing_where_a_checkpoint_was_before_it_was_moved(
    tmp_path: Path,
) -> None:
    home, away = tmp_path / "c", tmp_path / "away"
    tally_job().run({"records": entries(0, 5)}, checkpoint=home)
    repository, ended = Repository(home, create=False), threading.Event()

    def write() -> None:
        while not ended.is_set():
            with contextlib.suppress(StatekitError):
                repository.store_time()

    reader = threading.Thread(target=write)
    reader.start()
    try:
        for _ in range(400):
            home.rename(away)
            sleep_s(0.002)
            assert not home.exists()
            away.rename(home)
            sleep_s(0.001)
    finally:
        ended.set()
        reader.join()
    with ReaderLease.take(repository, "index", 0):
        assert [stored.lease.name for stored in stored_leases(repository)[0]] == ["index"]
