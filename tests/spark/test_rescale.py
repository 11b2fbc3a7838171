"""Another parallelism at every start of a stream, and drivers that are killed in between."""

from __future__ import annotations

import signal
from collections.abc import Sequence

import pytest

import statekit as sk
from statekit.checkpoint.repository import Repository
from statekit.errors import RestoreError
from statekit.maintenance.rescale.offline import rescale_offline
from tests.support import spark_driver
from tests.support.spark_drivers import KillableProcess
from tests.support.spark_job import EVENT_SCHEMA, Event, by_word, counted, counting_job, events
from tests.support.spark_runs import Runs, pieces

BEFORE_FILES, BEFORE_SINK, IN_SINK, BEFORE_MANIFEST, AFTER_MANIFEST = spark_driver.POINTS


def feed(runs: Runs, given: Sequence[Event], size: int) -> None:
    for piece in pieces(given, size):
        runs.feed("events", [event._asdict() for event in piece])


def finish(runs: Runs, parallelism: int | None) -> None:
    runs.finish(
        counting_job(),
        {"events": runs.stream("events", EVENT_SCHEMA)},
        outputs={"counted": sk.sinks.parquet(runs.home / "out")},
        parallelism=parallelism,
    )


def check(runs: Runs, given: list[Event]) -> None:
    """Each record once, in outputs and state."""
    rows = runs.parquet("out")
    assert sorted(Event(row["word"], row["number"]) for row in rows) == sorted(given)
    expected, states = counted(given)
    assert by_word(rows) == by_word(expected)
    for name in ("seen", "numbers", "most"):
        assert runs.state("count", name) == states[name], name


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.usefixtures("class_archive")
def test_a_killed_schedule_continues_with_other_shards(runs: Runs) -> None:
    """2 -> 4 -> 3 shards, and each change finds an epoch that was begun and not committed."""
    given = events(seed=7, size=6 * 15)
    feed(runs, given, 15)
    kills = [(2, BEFORE_MANIFEST, 1), (4, IN_SINK, 2), (3, BEFORE_MANIFEST, 3), (4, BEFORE_SINK, 4)]
    for parallelism, point, epoch in kills:
        arguments = ("local[2]", runs.home, "--die", point, epoch, "--parallelism", parallelism)
        with KillableProcess("spark_driver.py", *arguments, log=runs.home / "log") as victim:
            assert victim.wait() == -signal.SIGKILL, victim.log()
        assert runs.epochs() == list(range(epoch)), "the epoch that was begun kept its number"
        with pytest.raises(RestoreError, match=f"was begun as 'batch {epoch}'"):
            rescale_offline(Repository(runs.checkpoint), 5)
    finish(runs, 3)
    check(runs, given)
    assert runs.epochs() == list(range(6)), "one epoch per micro-batch, none for rescaling"


@pytest.mark.soak
def test_a_stream_continues_after_it_was_rescaled_offline(runs: Runs) -> None:
    given = events(seed=8, size=90)
    for number, parallelism in enumerate((2, 4, 3)):
        feed(runs, given[30 * number : 30 * number + 30], 15)
        finish(runs, None if number else parallelism)
        last = Repository(runs.checkpoint).manifest(runs.epochs()[-1])
        assert (last.parallelism, last.batch) == (parallelism, 2 * number + 1)
        if number < 2:
            rescale_offline(Repository(runs.checkpoint), (4, 3)[number])
    check(runs, given)
    assert len(runs.epochs()) == 6 + 2
