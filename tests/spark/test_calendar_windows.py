"""Calendar windows on Spark: the windows of one process, whatever the zone of the session."""

from __future__ import annotations

import datetime as dt
import logging
from typing import Any, NamedTuple

import pytest

import statekit as sk
from tests.support.spark_runs import Runs, pieces

SCHEMA = "key string, at timestamp, value bigint"
# A week before summer time ends, to a week after.
BEGIN = dt.datetime(2026, 10, 18, 5, tzinfo=dt.UTC)


class Event(NamedTuple):
    key: str
    at: dt.datetime
    value: int


def job() -> sk.Job:
    made = sk.Job("calendar")
    source = made.source("events", Event)
    options: dict[str, Any] = {"key": "key", "event_time": "at", "lateness": "1 day"}
    for size in ("1 day", "1 month"):
        windows = source.window(sk.tumbling(size, zone="Europe/Berlin"), **options)
        name = size.removeprefix("1 ")
        windows.aggregate(number=sk.Count(), value=sk.Sum("value"), name=f"{name}-in-jvm").sink(
            f"{name}-in-jvm"
        )
        windows.aggregate(
            mean=sk.Mean("value"), each=sk.Collect("value"), name=f"{name}-in-arrow"
        ).sink(f"{name}-in-arrow")
    return made


@pytest.mark.slow
def test_they_are_those_of_one_process(runs: Runs, caplog: pytest.LogCaptureFixture) -> None:
    records = [
        Event("abc"[n % 3], BEGIN + dt.timedelta(minutes=47 * n - 600 * (n % 5 == 0)), n)
        for n in range(450)
    ]
    made = job()
    outputs = {sink.name: sk.sinks.parquet(runs.home / sink.name) for sink in made.plan.sinks}
    for piece in pieces(records, 225):
        runs.feed("events", [record._asdict() for record in piece])
    inputs = {"events": runs.stream("events", SCHEMA).repartition(3)}
    with caplog.at_level(logging.WARNING, "statekit.combining"):
        runs.finish(made, inputs, outputs=outputs, parallelism=2, drain=True)
    assert "no access" not in caplog.text  # records are combined in the JVM
    here = job().run({"events": records}, epoch_size=225)
    for name in outputs:
        found = sorted(tuple(row.values()) for row in runs.parquet(name))
        assert found == sorted(map(tuple, here.outputs[name])) != []
