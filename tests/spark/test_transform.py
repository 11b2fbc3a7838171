"""A transformed checkpoint of a stream: Spark reads on right behind what is in the state."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest

import statekit as sk
from statekit.checkpoint.repository import Repository
from tests.support.spark_job import EVENT_SCHEMA, Event, by_word, counted, counting_job, events
from tests.support.spark_runs import Runs, parquet_rows, pieces, state_of

SIZE = 10


@sk.transform(counting_job)
def rewritten(old: sk.Transformation) -> None:
    for operator, states in old.operators.items():
        for state in states:
            if state == "seen":
                old.write(operator, state, old.read(operator, state))
            else:
                old.copy(operator, state)


@pytest.mark.slow
@pytest.mark.parametrize("epoch", [None, 3])
def test_a_stream_reads_on_after_the_epoch_that_was_transformed(
    runs: Runs, epoch: int | None
) -> None:
    given = events(seed=8, size=8 * SIZE)
    first, more = given[: 5 * SIZE], given[5 * SIZE :]

    def feed_and_finish(records: list[Event], checkpoint: str, out: str) -> None:
        for piece in pieces(records, SIZE):
            runs.feed("events", [event._asdict() for event in piece])
        runs.finish(
            counting_job(),
            {"events": runs.stream("events", EVENT_SCHEMA)},
            outputs={"counted": sk.sinks.parquet(runs.home / out)},
            checkpoint=runs.home / checkpoint,
            parallelism=2,
        )

    feed_and_finish(first, "checkpoint", "out")
    result = rewritten.run(runs.checkpoint, into=runs.home / "new", epoch=epoch)
    last = result.manifest.epoch
    assert last == (4 if epoch is None else epoch)
    feed_and_finish(more, "new", "new-out")
    assert Repository(runs.home / "new").epochs() == list(range(last, 8))
    expected, states = counted(given)
    before = [
        row
        for path in sorted((runs.home / "out").glob("*.parquet"))
        if int(path.name.split("-")[1]) <= last
        for row in pq.read_table(path).to_pylist()
    ]
    rows = [*before, *parquet_rows(runs.home / "new-out")]
    assert sorted((row["word"], row["number"]) for row in rows) == sorted(given)
    assert by_word(rows) == by_word(expected)
    for name in ("seen", "numbers", "most"):
        found = state_of(runs.home / "new", "count", name, runs.home / "unpacked")
        assert found == states[name]
