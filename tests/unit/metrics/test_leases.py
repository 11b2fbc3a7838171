"""Metrics of leases: how far named readers are from losing their epochs."""

from __future__ import annotations

import datetime as dt
import itertools
from pathlib import Path

import pytest

import statekit as sk
from statekit.checkpoint.gc.collector import Collector
from statekit.checkpoint.gc.readers import LeaseHeadroom
from statekit.checkpoint.leases.reader_lease import ReaderLease
from statekit.checkpoint.repository import Repository
from statekit.job.options import RunOptions
from statekit.metrics.run_metrics import RunMetrics
from statekit.runtime.local import LocalRunner
from statekit.working_copy.copies import MemoryCopies
from tests.support.checkpoint_ledger import Ledger, TimedRepository
from tests.support.counting_job import entries, tally_job

MINUTE = dt.timedelta(minutes=1)


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


def leases(repository: Repository, readers: str | None = "5 minutes") -> list[LeaseHeadroom]:
    """The leases that a collection reads."""
    collector = Collector(repository, sk.Retention(epochs=1, readers=readers))
    collector.collect(sweep=False)
    return collector.leases


def test_headroom_is_what_is_left_of_the_bound_for_readers(repository: TimedRepository) -> None:
    ReaderLease.take(repository, "index", 6, ttl="10 minutes")
    assert leases(repository) == [LeaseHeadroom("index", 6, 120.0, 2, 600.0)]


def test_a_reader_behind_the_bound_has_no_headroom(repository: TimedRepository) -> None:
    ReaderLease.take(repository, "slow", 2, ttl="10 minutes")
    for _ in range(2):  # the second time, its epoch was collected
        assert leases(repository) == [LeaseHeadroom("slow", 2, 0.0, 0, 600.0)]
    assert min(repository.epochs()) > 2


def test_a_lease_that_has_expired_or_was_deleted_has_no_metrics(
    repository: TimedRepository,
) -> None:
    repository.now -= 8 * MINUTE
    ReaderLease.take(repository, "dead", 8, ttl="2 minutes")
    repository.now += 8 * MINUTE
    ReaderLease.take(repository, "gone", 8).delete()
    assert leases(repository) == []


def test_leases_that_keep_nothing_are_not_read(repository: TimedRepository) -> None:
    ReaderLease.take(repository, "index", 6)
    assert leases(repository, readers=None) == []


def test_a_job_reports_the_leases_that_its_garbage_collection_has_read(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    options = RunOptions(retention=sk.Retention(epochs=2))
    runner = LocalRunner(tally_job().plan, repository, MemoryCopies(), options)
    runner.epoch({"records": entries(0, 5)})
    with ReaderLease.take(repository, "index", 0, ttl="10 minutes"):
        for epoch in range(1, 6):
            runner.epoch({"records": entries(epoch, 5)})
            runner.coordinator.close()  # waits for the collection
        values = runner.coordinator.metrics.values()
    of = '{reader="index"}'
    assert values[f"statekit_lease_epochs_behind{of}"] == 5
    assert values[f"statekit_lease_headroom_epochs{of}"] > 1000
    assert 86_000 < values[f"statekit_lease_headroom_seconds{of}"] <= 86_400
    assert 500 < values[f"statekit_lease_expiry_seconds{of}"] <= 600


def test_many_readers_do_not_make_many_series() -> None:
    every = [LeaseHeadroom(f"r{n}", n, float(n), n, 1.0) for n in range(200)]
    runner = LocalRunner(tally_job().plan, Repository.in_memory(), MemoryCopies())
    runner.epoch({"records": entries(0, 5)})
    metrics = RunMetrics("tally", runner.coordinator.last, lambda: 0, lambda: every[::-1])
    labels = {labels for metric, labels, _ in metrics.samples() if "reader" in metric.labels}
    assert labels == {("tally", f"r{n}") for n in range(50)}  # those with the least headroom
