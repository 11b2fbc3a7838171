"""Mirrors beside jobs on Spark: the tables equal the states when the job has ended."""

from __future__ import annotations

from pathlib import Path

import pytest

import statekit as sk
from tests.support.mirrors import delta_rows, shown, state_rows
from tests.support.spark_job import EVENT_SCHEMA, counting_job, events
from tests.support.spark_runs import Runs, pieces

pytestmark = pytest.mark.slow


def check(runs: Runs, table: Path) -> None:
    expected = state_rows(runs.checkpoint, "count", "numbers", None)
    assert shown(delta_rows(table), expected) == shown(expected, expected)
    assert expected.num_rows


@pytest.mark.parametrize("is_streaming", [True, False])
def test_a_table_equals_its_state_when_the_job_has_ended(runs: Runs, is_streaming: bool) -> None:
    table = runs.home / "numbers"
    for piece in pieces(events(seed=1, size=60), 20):
        runs.feed("events", [event._asdict() for event in piece])
    given = runs.stream("events", EVENT_SCHEMA)
    if not is_streaming:
        rows = [event._asdict() for event in events(seed=1, size=60)]
        given = runs.spark.createDataFrame(rows, EVENT_SCHEMA)
    query = counting_job().start(
        runs.spark,
        {"events": given},
        {"counted": lambda df, epoch: None},
        checkpoint=runs.checkpoint,
        mirror=sk.MirrorOptions(
            {"count.numbers": sk.sinks.delta(table)}, catch_up_within="5 minutes"
        ),
        trigger={"availableNow": True} if is_streaming else None,
    )
    query.await_termination()
    (mirror,) = query.mirrors
    assert (mirror.epoch, mirror.is_running, mirror.error) == (query.epoch, False, None)
    check(runs, table)
