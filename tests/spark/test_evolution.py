"""Hooks run in Spark's workers, and a migrated checkpoint goes on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import statekit as sk
from statekit.maintenance.migrate import Migration
from tests.support.spark_job import EVENT_SCHEMA, Event, events
from tests.support.spark_runs import Runs


def summing(of: Any, **options: Any) -> sk.Job:
    """A job that adds up numbers per word, in a state of some type."""

    def total(event: Event, sum_: Any) -> Iterator[tuple[str, str]]:
        sum_.update(of(int(sum_.get() or 0) + event.number))
        yield event.word, repr(sum_.get())

    total.__annotations__["sum_"] = sk.ValueState[of]
    job = sk.Job("sums")
    declared: Any = sk.process(key="word", **options)(total)
    job.source("events", Event).process(declared).sink("out")
    return job


def totals(given: list[Event]) -> dict[str, int]:
    found: dict[str, int] = {}
    for event in given:
        found[event.word] = found.get(event.word, 0) + event.number
    return found


def text_of(number: int) -> str:
    return str(number)


def test_a_hook_runs_in_a_worker_and_a_migrated_stream_continues(runs: Runs) -> None:
    given = events(seed=3, size=90)
    sink = sk.sinks.parquet(runs.home / "out")
    hooked = summing(str, migrate={"sum_": text_of})
    stages = [(summing(int), None), (hooked, None), (summing(str), hooked)]
    for stage, (job, migrated) in enumerate(stages):
        if migrated is not None:
            made = Migration(migrated, runs.home / "checkpoint").run(lambda *_: None)
            assert made is not None
            assert made.batch == stage - 1
        piece = given[30 * stage : 30 * (stage + 1)]
        runs.feed("events", [event._asdict() for event in piece])
        runs.finish(job, {"events": runs.stream("events", EVENT_SCHEMA)}, outputs={"out": sink})
    found = {word: int(held) for word, held in runs.state("total", "sum_").items()}
    assert found == totals(given)
    assert len(runs.parquet("out")) == len(given)
