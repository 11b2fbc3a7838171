"""Offsets and tasks of a stream of changes, as Spark asks for them, without Spark."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles

import statekit as sk
from statekit.spark.sources.changes_source import ChangesSource
from statekit.spark.sources.changes_stream import ChangesStream
from statekit.testing import Harness
from tests.support.counting_job import Entry, tally

ALL = ReadAllAvailable()


class Job:
    """A job whose changes are read."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._harness = Harness(tally, checkpoint=root, parallelism=2)

    def run(self, epochs: int) -> None:
        for n in range(epochs):
            self._harness.send(Entry("a", n), Entry("b", n))

    def stream(self, **options: Any) -> ChangesStream:
        """A reader in a process of its own."""
        given = {"path": self.root, "operator": "tally", "state": "total", **options}
        source = ChangesSource({name.lower(): str(value) for name, value in given.items()})
        schema = source.schema()
        reader = pickle.loads(pickle.dumps(source)).streamReader(schema)
        assert isinstance(reader, ChangesStream)
        return reader


@pytest.fixture
def job(root: Path) -> Job:
    job = Job(root)
    job.run(3)
    return job


def epochs_of(partitions: list[InputPartition]) -> list[int]:
    return sorted({piece.facts.epoch for each in partitions for piece in each.value})


def through_spark(offset: dict[str, Any]) -> dict[str, Any]:
    """Spark keeps an offset as JSON."""
    stored: dict[str, Any] = json.loads(json.dumps(offset))
    return stored


def test_the_initial_offset_is_the_same_each_time_that_spark_asks(job: Job) -> None:
    stream = job.stream()
    initial = stream.initialOffset()
    job.run(2)
    assert stream.initialOffset() == initial
    assert stream.latestOffset(through_spark(initial), ALL)["epoch"] == 4


@pytest.mark.parametrize("options", [{}, {"reader": "mirror"}])
def test_a_first_micro_batch_that_runs_again_reads_the_same_epochs(
    job: Job, options: dict[str, Any]
) -> None:
    stream = job.stream(**options)
    begin = through_spark(stream.initialOffset())
    job.run(2)
    end = through_spark(stream.latestOffset(begin, ALL))
    planned = epochs_of([*stream.partitions(begin, end)])
    stream.stop()
    job.run(2)
    again = job.stream(**options)
    assert epochs_of([*again.partitions(again.initialOffset(), end)]) == planned == [2, 3, 4]
    again.stop()


def test_a_limit_is_obeyed_and_all_available_ignores_the_option(job: Job) -> None:
    stream = job.stream(startingEpoch="earliest", maxEpochsPerTrigger=2)
    begin = stream.initialOffset()
    assert stream.getDefaultReadLimit() == ReadMaxFiles(2)
    first = stream.latestOffset(begin, ReadMaxFiles(2))
    assert first["epoch"] == 1, "the snapshot counts as an epoch"
    assert stream.latestOffset(begin, ALL)["epoch"] == 2
    last = stream.latestOffset(first, ReadMaxFiles(2))
    assert epochs_of([*stream.partitions(first, last)]) == [2]
    assert stream.latestOffset(last, ReadMaxFiles(2)) == last, "there is nothing to read"


def test_what_is_available_now_does_not_grow(job: Job) -> None:
    stream = job.stream()
    stream.prepareForTriggerAvailableNow()
    job.run(2)
    end = stream.latestOffset(stream.initialOffset(), ALL)
    assert end["epoch"] == 2
    assert stream.latestOffset(end, ALL) == end


def test_epochs_without_changes_have_a_task_without_pieces(job: Job) -> None:
    stream = job.stream()
    begin = stream.latestOffset(stream.initialOffset(), ALL)
    job._harness.send()
    end = stream.latestOffset(begin, ALL)
    assert [each.value for each in stream.partitions(begin, end)] == [()]
    assert list(stream.read(InputPartition(()))) == []


def test_a_checkpoint_that_a_backup_replaced_is_not_read_on(job: Job, tmp_path: Path) -> None:
    shutil.copytree(job.root, tmp_path / "backup")
    job.run(1)
    stream = job.stream()
    offset = stream.latestOffset(stream.initialOffset(), ALL)
    shutil.rmtree(job.root)
    shutil.move(tmp_path / "backup", job.root)
    Job(job.root).run(2)
    with pytest.raises(sk.QueryError, match="was replaced"):
        job.stream().latestOffset(offset, ALL)


def test_what_workers_get_is_small(job: Job) -> None:
    stream = job.stream()
    begin = stream.initialOffset()
    partitions = stream.partitions(begin, stream.latestOffset(begin, ALL))
    assert len(pickle.dumps(stream)) < 4_000
    assert all(len(pickle.dumps(partition)) < 2_000 for partition in partitions)
