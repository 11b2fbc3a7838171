"""Reports of tasks through the checkpoint, as over Spark Connect."""

from __future__ import annotations

import pickle
from pathlib import Path

from statekit.checkpoint.manifest import IdleShards, ShardReport, ShardState
from statekit.checkpoint.repository import Repository
from statekit.spark.worker.commit_records import Reporter, Reports


def report(shard: int) -> ShardReport:
    return ShardReport(operator="count", shard=ShardState(first_group=shard, last_group=shard))


def run_task(reporter: Reporter, *shards: int, ends: bool = True) -> None:
    """Report shards as a task does that has received its step from the driver."""
    own: Reporter = pickle.loads(pickle.dumps(reporter))
    for shard in shards:
        own.report(report(shard))
    if ends:
        own.send()


def test_reports_of_all_tasks_arrive_when_they_are_sent(root: Path) -> None:
    reports = Reports(Repository(root))
    reporter = reports.begin()
    assert reports.of(reporter) == []
    run_task(reporter, 0, 1)
    run_task(reporter, 2, ends=False)
    run_task(reporter)
    assert sorted(reports.of(reporter), key=str) == [report(0), report(1)]
    run_task(reporter, 2)
    idle = IdleShards.of("count", [3, 4], cpu_us=7)
    reporter.report(idle)
    reporter.send()
    assert len(reports.of(reporter)) == 4
    assert idle in reports.of(reporter)


def test_tasks_of_an_earlier_attempt_and_of_another_driver_do_not_report_for_a_later_one(
    root: Path,
) -> None:
    reports, others = Reports(Repository(root)), Reports(Repository(root))
    earlier, other = reports.begin(), others.begin()
    run_task(earlier, 0)
    assert len(reports.of(earlier)) == 1
    later = reports.begin()
    run_task(later, 1)
    run_task(earlier, 2)
    run_task(other, 3)
    assert reports.of(later) == [report(1)]
    assert others.of(other) == [report(3)]


def test_the_driver_deletes_what_it_has_read(root: Path) -> None:
    repository = Repository(root)
    reports = Reports(repository)
    for _ in range(3):
        reporter = reports.begin()
        run_task(reporter, 0)
        run_task(reporter, 1)
        assert len(reports.of(reporter)) == 2
        assert len([*repository.names("tmp")]) == 2
    reports.close()
    assert [*repository.names("tmp")] == []
