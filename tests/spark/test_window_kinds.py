"""Sessions of a maximum length, windows by count, early results and processing time on Spark."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from time import sleep
from typing import Any, NamedTuple

import pytest

import statekit as sk
from tests.support.spark_runs import Runs, pieces

SCHEMA = "key string, at timestamp, value bigint"
BEGIN = dt.datetime(2026, 5, 1, tzinfo=dt.UTC)
TIMED: dict[str, Any] = {"key": "key", "event_time": "at", "lateness": "1 hour"}


class Event(NamedTuple):
    key: str
    at: dt.datetime
    value: int


RECORDS = [
    Event("abc"[n % 3], BEGIN + dt.timedelta(minutes=7 * n - 40 * (n % 5 == 0)), n)
    for n in range(300)
]


def job() -> sk.Job:
    made = sk.Job("kinds")
    source = made.source("events", Event)
    kinds = {
        "cut-sessions": source.window(sk.session("25 minutes", at_most="2 hours"), **TIMED),
        "by-count": source.window(sk.count_windows(7, every=3), ordered=True, **TIMED),
        "early": source.window(sk.tumbling("4 hours"), early="1 hour", ordered=True, **TIMED),
    }
    for name, windows in kinds.items():
        windows.aggregate(number=sk.Count(), value=sk.Sum("value"), name=name).sink(name)
    return made


@pytest.mark.slow
def test_windows_of_event_time_are_those_of_one_process(runs: Runs) -> None:
    made = job()
    outputs = {sink.name: sk.sinks.parquet(runs.home / sink.name) for sink in made.plan.sinks}
    for piece in pieces(RECORDS, 75):
        runs.feed("events", [record._asdict() for record in piece])
    inputs = {"events": runs.stream("events", SCHEMA).repartition(3)}
    runs.finish(made, inputs, outputs=outputs, parallelism=2, drain=True)
    here = job().run({"events": RECORDS}, epoch_size=75, drain=True)
    for name in outputs:
        found = sorted(tuple(row.values()) for row in runs.parquet(name))
        assert found == sorted(map(tuple, here.outputs[name])) != []
    is_final = Counter(result[-1] for result in here.outputs["early"])
    assert is_final[False] > is_final[True] > 0


@pytest.mark.slow
def test_a_window_of_processing_time_fires_in_the_next_run_with_all_records(runs: Runs) -> None:
    made = sk.Job("clock")
    windows = made.source("events", Event).window(
        sk.tumbling("2 seconds"), key="key", clock="processing"
    )
    windows.sum("value").sink("sums")
    outputs = {"sums": sk.sinks.parquet(runs.home / "sums")}
    runs.feed("events", [record._asdict() for record in RECORDS])
    inputs = {"events": runs.stream("events", SCHEMA)}
    runs.finish(made, inputs, outputs=outputs, parallelism=2)
    sleep(2)  # until every window that is open now is over
    runs.feed("events", [Event("d", BEGIN, 0)._asdict()])
    runs.finish(made, inputs, outputs=outputs, parallelism=3)
    sums = Counter[str]()
    for row in runs.parquet("sums"):
        assert row["end"] - row["start"] == dt.timedelta(seconds=2)
        sums[row["key"]] += row["value"]
    assert sums == Counter({key: sum(e.value for e in RECORDS if e.key == key) for key in "abc"})
