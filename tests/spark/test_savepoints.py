"""Savepoints of streams: Spark reads on right behind what is in the state, and nothing twice."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pyarrow.parquet as pq
from pyspark.sql import functions as F

import statekit as sk
from statekit.checkpoint.repository import Repository
from statekit.job.progress import RunningJob
from statekit.maintenance.rewrite import rewrite_checkpoint
from statekit.maintenance.savepoint.write import write_savepoint
from tests.support.spark_job import EVENT_SCHEMA, Event, by_word, counted, counting_job, events
from tests.support.spark_runs import Runs, parquet_rows, pieces, state_of
from tests.support.timeouts import PATIENCE_S

SIZE = 10


def feed(runs: Runs, given: Sequence[Event]) -> None:
    """Files of so many records, each of which is a micro-batch."""
    for piece in pieces(given, SIZE):
        runs.feed("events", [event._asdict() for event in piece])


def finish(runs: Runs, checkpoint: str = "checkpoint", out: str = "out", **options: object) -> None:
    runs.finish(
        counting_job(),
        {"events": runs.stream("events", EVENT_SCHEMA)},
        outputs={"counted": sk.sinks.parquet(runs.home / out)},
        checkpoint=runs.home / checkpoint,
        **options,
    )


def check(
    runs: Runs, checkpoint: str, given: list[Event], outs: list[list[dict[str, object]]]
) -> None:
    """Each record was handled once: in the outputs, taken together, and in the state."""
    expected, states = counted(given)
    rows = [row for out in outs for row in out]
    assert sorted((row["word"], row["number"]) for row in rows) == sorted(given)
    assert by_word(rows) == by_word(expected)
    for name in ("seen", "numbers", "most"):
        assert (
            state_of(runs.home / checkpoint, "count", name, runs.home / "unpacked") == states[name]
        )


def until_epoch(query: RunningJob, epoch: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while (query.epoch or 0) < epoch:
        assert query.is_active
        assert time.monotonic() < deadline, "the stream stands still"
        time.sleep(0.05)


def test_a_stream_reads_on_after_the_saved_batch(runs: Runs) -> None:
    """By then Spark had seen all files, and had merged its log of them after ten."""
    given = events(seed=3, size=12 * SIZE)
    feed(runs, given)
    finish(runs, parallelism=2)
    for batch in (8, 10):
        name = f"behind-{batch}"
        write_savepoint(Repository(runs.checkpoint), name, epoch=batch)
        url = str(runs.checkpoint / "savepoints" / name)
        finish(runs, name, f"{name}-out", from_savepoint=url, parallelism=3)
        check(runs, name, given, [_first(runs, batch), parquet_rows(runs.home / f"{name}-out")])
        assert Repository(runs.home / name).epochs() == list(range(batch, 12))


def _first(runs: Runs, epoch: int) -> list[dict[str, object]]:
    """The outputs of all epochs up to one."""
    paths = sorted((runs.home / "out").glob("*.parquet"))
    until = [path for path in paths if int(path.name.split("-")[1]) <= epoch]
    return [row for path in until for row in pq.read_table(path).to_pylist()]


def test_a_running_stream_is_saved_and_continues_beside_the_one_that_starts_from_the_savepoint(
    runs: Runs,
) -> None:
    given = events(seed=4, size=9 * SIZE)
    feed(runs, given[: 4 * SIZE])
    query = runs.start(
        counting_job(),
        {"events": runs.stream("events", EVENT_SCHEMA)},
        outputs={"counted": sk.sinks.parquet(runs.home / "out")},
        parallelism=2,
        trigger="0 seconds",
    )
    until_epoch(query, 2)
    url = query.savepoint("half-way")
    feed(runs, given[4 * SIZE :])
    finish(runs, "new", "new-out", from_savepoint=url, parallelism=5)
    assert query.is_active, "another query of the same id would have ended it"
    until_epoch(query, 8)
    query.stop()
    saved = min(Repository(runs.home / "new").epochs())
    check(runs, "checkpoint", given, [parquet_rows(runs.home / "out")])
    check(runs, "new", given, [_first(runs, saved), parquet_rows(runs.home / "new-out")])


def test_a_batch_whose_end_spark_had_not_noted_is_not_handled_again(runs: Runs) -> None:
    given = events(seed=5, size=6 * SIZE)
    feed(runs, given[: 4 * SIZE])
    finish(runs, parallelism=2)
    for name in ("3", ".3.crc"):
        (runs.checkpoint / "spark/commits" / name).unlink()
    write_savepoint(Repository(runs.checkpoint), "s")
    feed(runs, given[4 * SIZE :])
    finish(runs, "new", "new-out", from_savepoint=str(runs.checkpoint / "savepoints/s"))
    outs = [parquet_rows(runs.home / name) for name in ("out", "new-out")]
    check(runs, "new", given, outs)


def test_a_stream_that_is_started_again_with_the_same_arguments_continues(runs: Runs) -> None:
    given = events(seed=6, size=6 * SIZE)
    feed(runs, given[: 2 * SIZE])
    finish(runs)
    write_savepoint(Repository(runs.checkpoint), "s")
    url = runs.checkpoint / "savepoints/s"
    for number in (2, 4):
        feed(runs, given[number * SIZE : (number + 2) * SIZE])
        finish(runs, "new", "new-out", from_savepoint=url)
    outs = [parquet_rows(runs.home / name) for name in ("out", "new-out")]
    check(runs, "new", given, outs)


def test_a_stream_continues_in_other_key_groups(runs: Runs) -> None:
    given = events(seed=7, size=6 * SIZE)
    feed(runs, given[: 3 * SIZE])
    finish(runs, parallelism=2)
    rewrite_checkpoint(Repository(runs.checkpoint), parallelism=3, key_groups=1000)
    feed(runs, given[3 * SIZE :])
    finish(runs, parallelism=4)
    check(runs, "checkpoint", given, [parquet_rows(runs.home / "out")])


def test_spark_reads_the_tables_of_a_savepoint(runs: Runs) -> None:
    given = events(seed=8, size=3 * SIZE)
    feed(runs, given)
    finish(runs)
    made = write_savepoint(Repository(runs.checkpoint), "s")
    tables = runs.checkpoint / f"savepoints/s/state.{made.id}" / "count"
    frame = runs.spark.read.parquet(str(tables / "numbers"))
    found = frame.groupBy("word").agg(F.sort_array(F.collect_list(F.struct("position", "value"))))
    _, states = counted(given)
    assert {row[0]: [element["value"] for element in row[1]] for row in found.collect()} == states[
        "numbers"
    ]
    digits = runs.spark.read.parquet(str(tables / "digits")).select("word", "map_key", "value")
    assert sum(row["value"] for row in digits.collect()) == len(given)
