"""Leases of streaming queries: taken over after a kill, renewed, and never moved back."""

from __future__ import annotations

from multiprocessing.connection import Connection
from pathlib import Path

import pytest

import statekit as sk
from statekit.checkpoint.gc.collector import Collector
from statekit.checkpoint.leases.lease_files import lease_of
from statekit.checkpoint.leases.reader_lease import ReaderLease
from statekit.checkpoint.repository import Repository
from statekit.clock import sleep_s, stopwatch_s
from statekit.spark.sources.changes_request import Start
from statekit.spark.sources.stream_lease import StreamLease
from statekit.testing import Harness
from tests.support import killable_processes
from tests.support.counting_job import Entry, tally
from tests.support.timeouts import PATIENCE_S


@pytest.fixture
def repository(root: Path) -> Repository:
    harness = Harness(tally, checkpoint=root)
    for n in range(6):
        harness.send(Entry("a", n))
    return Repository(root)


def take_and_die(root: Path) -> None:
    StreamLease(Repository(root), "mirror", "10 minutes").hold(2)
    killable_processes.die()


def test_a_query_takes_over_the_lease_of_its_killed_run_at_once(
    repository: Repository, root: Path
) -> None:
    assert killable_processes.exit_code(take_and_die, root) == -9
    lease = StreamLease(repository, "mirror", "10 minutes")
    assert lease.held_epoch == 2
    lease.hold(2)
    lease.commit(4)
    lease.stop()
    Collector(repository, sk.Retention(epochs=1)).collect(sweep=False)
    assert repository.epochs() == [4, 5], "a stopped query keeps its epochs until the lease expires"


def test_a_lease_of_another_kind_of_reader_is_left_alone(
    repository: Repository, root: Path
) -> None:
    ours, theirs = killable_processes.pipe()
    other = killable_processes.start(_take_as_other, root, theirs)
    assert ours.poll(PATIENCE_S)
    lease = StreamLease(repository, "mirror", "10 minutes")
    assert lease.held_epoch is None
    with pytest.raises(sk.FencedError, match="reader 'mirror'"):
        lease.pin(lambda: Start(3, is_snapshot=True))
    other.kill()


def _take_as_other(root: Path, end: Connection) -> None:
    ReaderLease.take(Repository(root), "mirror", 1)
    end.send("taken")
    end.recv()


def test_a_new_query_chooses_another_epoch_if_its_first_was_just_collected(
    repository: Repository,
) -> None:
    lease = StreamLease(repository, "mirror", "10 minutes")
    asked = []

    def begin() -> Start:
        asked.append(repository.first_kept())
        if len(asked) == 1:
            Collector(repository, sk.Retention(epochs=2)).collect(sweep=False)
        return Start(asked[-1], is_snapshot=True)

    assert lease.pin(begin) == Start(4, is_snapshot=True)
    assert asked == [0, 4]
    lease.stop()


def test_a_lease_is_renewed_while_spark_is_busy(repository: Repository) -> None:
    lease = StreamLease(repository, "mirror", "30 milliseconds")
    lease.hold(1)
    first = lease_of(repository, "mirror")
    assert first is not None
    end = stopwatch_s() + PATIENCE_S
    while (found := lease_of(repository, "mirror")) is None or found.written == first.written:
        assert stopwatch_s() < end
        sleep_s(0.01)
    lease.stop()


def test_a_query_whose_lease_was_taken_is_told_at_its_next_call(repository: Repository) -> None:
    lease = StreamLease(repository, "mirror", "10 minutes")
    lease.hold(1)
    other = ReaderLease.take(repository, "mirror", 3)
    with pytest.raises(sk.FencedError, match="was taken over"):
        lease.commit(4)
    lease.stop()
    other.commit(4)
