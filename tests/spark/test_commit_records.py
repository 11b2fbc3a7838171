"""Commit records: what tasks of Spark tell the driver by their end."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from statekit.checkpoint.manifest import IdleShards, ShardReport, ShardState
from statekit.spark.worker.commit_records import Reporter, Reports


def report(shard: int) -> ShardReport:
    return ShardReport(operator="count", shard=ShardState(first_group=shard, last_group=shard))


def run_tasks(
    spark: SparkSession, reporter: Reporter, shards: int, fails: int | None = None
) -> None:
    """Report shards, each from a task of its own."""

    def task(shard: int) -> None:
        reporter.report(report(shard))
        if shard == fails:
            raise ValueError("behind its report")

    spark.sparkContext.parallelize(range(shards), shards).foreach(task)


def groups(reports: Reports, reporter: Reporter) -> list[int]:
    of_shards = [each for each in reports.of(reporter) if isinstance(each, ShardReport)]
    return sorted(each.shard.first_group for each in of_shards)


def test_reports_of_all_tasks_are_there_when_the_action_has_returned(spark: SparkSession) -> None:
    reports = Reports(spark.sparkContext)
    for _ in range(3):
        reporter = reports.begin()
        run_tasks(spark, reporter, 5)
        assert groups(reports, reporter) == [0, 1, 2, 3, 4]
        assert report(3) in reports.of(reporter)


def test_shards_with_nothing_to_do_are_reported_together(spark: SparkSession) -> None:
    reports = Reports(spark.sparkContext)
    reporter, idle = reports.begin(), IdleShards.of("count", [3, 4, 5, 9], cpu_us=7)
    spark.sparkContext.parallelize([idle], 1).foreach(reporter.report)
    run_tasks(spark, reporter, 1)
    assert idle in reports.of(reporter)
    assert len(reports.of(reporter)) == 2
    assert [*idle.shards] == [3, 4, 5, 9]


def test_a_failed_task_reports_nothing(spark: SparkSession) -> None:
    reports = Reports(spark.sparkContext)
    reporter = reports.begin()
    with pytest.raises(Exception, match="behind its report"):
        run_tasks(spark, reporter, 1, fails=0)
    assert groups(reports, reporter) == []


def test_tasks_of_an_earlier_attempt_do_not_report_for_a_later_one(spark: SparkSession) -> None:
    reports = Reports(spark.sparkContext)
    earlier, later = reports.begin(), reports.begin()
    run_tasks(spark, later, 2)
    run_tasks(spark, earlier, 3)  # as if it had gone on meanwhile
    assert groups(reports, later) == [0, 1]


def test_two_queries_do_not_hear_each_other(spark: SparkSession) -> None:
    one, other = Reports(spark.sparkContext), Reports(spark.sparkContext)
    to_one, to_other = one.begin(), other.begin()
    run_tasks(spark, to_one, 2)
    run_tasks(spark, to_other, 1)
    assert groups(one, to_one) == [0, 1]
    assert groups(other, to_other) == [0]
