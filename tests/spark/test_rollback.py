"""A stream that was rolled back ends as one that never went on from there."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

import statekit as sk
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.rollback import plan
from tests.support.effort import SOAK
from tests.support.spark_job import EVENT_SCHEMA, Event, by_word, counted, counting_job, events
from tests.support.spark_runs import Runs, pieces

SIZE = 6
BATCHES = 13
"""Spark compacts the log of a file source with the tenth file."""

GIVEN = events(seed=3, size=(BATCHES + 2) * SIZE)


@pytest.fixture(scope="module")
def ended(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """A stream that has read all of its files so far, one per micro-batch. To be copied."""
    runs = Runs(spark, tmp_path_factory.mktemp("ended"))
    _feed(runs, GIVEN[: BATCHES * SIZE])
    _run(runs)
    assert runs.epochs() == list(range(BATCHES))
    assert (runs.checkpoint / "spark" / "sources" / "0" / "9.compact").exists()
    return runs


@pytest.fixture
def stream(ended: Runs) -> Iterator[Runs]:
    """The same stream, at the same place, to go on from: paths are in Spark's log."""
    kept = ended.home.with_name("kept")
    shutil.copytree(ended.home, kept)
    yield ended
    shutil.rmtree(ended.home)
    kept.rename(ended.home)
    ended._files = BATCHES


def _feed(runs: Runs, given: list[Event]) -> None:
    for piece in pieces(given, SIZE):
        runs.feed("events", [event._asdict() for event in piece])


def _run(runs: Runs, **options: Any) -> list[tuple[int, int | None, int]]:
    """Run until everything is read: epoch, micro-batch and records of each epoch."""
    query = runs.finish(
        counting_job(),
        {"events": runs.stream("events", EVENT_SCHEMA)},
        outputs={"counted": sk.sinks.parquet(runs.home / "out")},
        parallelism=2,
        **options,
    )
    return [(made.epoch, made.batch, made.records_in) for made in query.progress]


def _check(runs: Runs, given: list[Event]) -> None:
    """Nothing tells the stream from one that read `given` and never went back."""
    expected, states = counted(given)
    assert by_word(runs.parquet("out")) == by_word(expected)
    for name, held in states.items():
        assert runs.state("count", name) == held, name


def _repository(runs: Runs) -> Repository:
    return Repository(runs.checkpoint, create=False)


@pytest.mark.parametrize("to", [BATCHES - 2, 9, 8, 3, 0] if SOAK else [9, 0])
def test_a_stream_reads_rolled_back_input_again_one_file_per_batch(stream: Runs, to: int) -> None:
    plan(_repository(stream), to).carry_out()
    _feed(stream, GIVEN[BATCHES * SIZE :])
    made = _run(stream)
    first = BATCHES + 1  # behind the epoch of the rollback
    batches = range(to + 1, BATCHES + 2)
    assert made == [(first + n, batch, SIZE) for n, batch in enumerate(batches)]
    _check(stream, GIVEN)


@pytest.mark.slow
def test_a_start_after_a_killed_rollback_sets_spark_back_first(stream: Runs) -> None:
    """Right behind the commit, among the commits and offsets, and within the log of files."""
    repository = _repository(stream)
    remove = Repository.remove
    for left in (0, 5, 30, 45):
        found = plan(repository, 4)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Repository, "remove", _at_most(left, remove))
            with pytest.raises(KeyboardInterrupt):
                found.carry_out()
        made = _run(stream)
        first = found.manifest.epoch + 1
        assert made == [(first + n, 5 + n, SIZE) for n in range(BATCHES - 5)], left
        _check(stream, GIVEN[: BATCHES * SIZE])


def _at_most(left: int, remove: Any) -> Any:
    counted = iter(range(left))

    def removed(self: Repository, paths: Iterable[str]) -> None:
        for path in paths:
            if path.startswith("spark/") and next(counted, None) is None:
                raise KeyboardInterrupt
            remove(self, [path])

    return removed


def test_from_epoch_rolls_back_and_starts(stream: Runs) -> None:
    made = _run(stream, from_epoch=10)
    assert [batch for _, batch, _ in made] == [11, 12]
    _check(stream, GIVEN[: BATCHES * SIZE])
    with pytest.raises(sk.RestoreError, match="continued to epoch 15"):
        _run(stream, from_epoch=10)
    assert _run(stream) == []


def test_a_log_whose_early_entries_spark_has_deleted_is_restored(stream: Runs) -> None:
    log = stream.checkpoint / "spark" / "sources" / "0"
    for number in range(9):
        for path in (log / str(number), log / f".{number}.crc"):
            path.unlink()
    made = _run(stream, from_epoch=5)
    assert made == [(BATCHES + 1 + n, 6 + n, SIZE) for n in range(BATCHES - 6)]
    _feed(stream, GIVEN[BATCHES * SIZE :])
    assert [batch for _, batch, _ in _run(stream)] == [BATCHES, BATCHES + 1]
    _check(stream, GIVEN)


def test_offsets_that_are_gone_are_refused_and_nothing_is_changed(stream: Runs) -> None:
    for folder in ("offsets", "commits"):
        for path in (stream.checkpoint / "spark" / folder).glob("[0-4]"):
            path.unlink()
    with pytest.raises(sk.RestoreError, match="Go back to one from 6 to 11"):
        _run(stream, from_epoch=5)
    assert stream.epochs() == list(range(BATCHES))
    assert [batch for _, batch, _ in _run(stream, from_epoch=6)] == list(range(7, BATCHES))
    _check(stream, GIVEN[: BATCHES * SIZE])


def test_outputs_under_the_number_that_the_rollback_took_are_taken_back(stream: Runs) -> None:
    """A run was killed between its sink and its commit, then the checkpoint was rolled back."""
    name = "epoch-{:020d}-00000.parquet"
    written = stream.home / "out" / name.format(BATCHES)
    shutil.copy(stream.home / "out" / name.format(3), written)
    plan(_repository(stream), 8).carry_out()
    _run(stream)
    assert not written.exists()
    _check(stream, GIVEN[: BATCHES * SIZE])


def test_a_stream_that_still_runs_is_fenced_by_a_rollback(stream: Runs) -> None:
    running = stream.start(
        counting_job(),
        {"events": stream.stream("events", EVENT_SCHEMA)},
        outputs={"counted": sk.sinks.parquet(stream.home / "out")},
        parallelism=2,
    )
    _feed(stream, GIVEN[BATCHES * SIZE : -SIZE])
    end = time.monotonic() + 60
    while running.epoch != BATCHES and time.monotonic() < end:
        time.sleep(0.05)
    plan(_repository(stream), 7).carry_out()
    _feed(stream, GIVEN[-SIZE:])
    with pytest.raises(sk.FencedError):
        running.await_termination(60)
    made = _run(stream)
    assert [batch for _, batch, _ in made] == list(range(8, BATCHES + 2))
    _check(stream, GIVEN)


def test_a_job_over_frames_that_end_is_rolled_back_without_spark_knowing(runs: Runs) -> None:
    out = sk.sinks.parquet(runs.home / "out")
    for piece in pieces(GIVEN, 5 * SIZE):
        frame = runs.spark.createDataFrame(list(piece), EVENT_SCHEMA)
        runs.finish(counting_job(), {"events": frame}, outputs={"counted": out}, parallelism=2)
    assert runs.epochs() == [0, 1, 2]
    again = runs.spark.createDataFrame(list(GIVEN[5 * SIZE :]), EVENT_SCHEMA)
    runs.finish(counting_job(), {"events": again}, outputs={"counted": out}, from_epoch=0)
    _check(runs, GIVEN)
