"""The input that the event time of an operator waits for is named wherever time is shown."""

from __future__ import annotations

import datetime as dt
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import statekit as sk
from statekit.checkpoint.manifest import HeldBack
from statekit.checkpoint.repository import Repository
from statekit.metrics.definitions import INPUT_WAIT
from statekit.metrics.epoch_metrics import EpochMetrics
from tests.support.instants import at
from tests.support.invoked import invoked

MINUTE = 60_000_000


class Event(NamedTuple):
    key: str
    at: dt.datetime


def passed(event: Event) -> Iterator[Event]:
    yield event


def step(*, ordered: bool = True) -> Any:
    return sk.process(key="key", event_time="at", ordered=ordered)(passed)


def chain(**idle: str) -> sk.Job:
    """`second` has the outputs of `first`, which reads `a` and `b`, and reads `c`."""
    job = sk.Job("chain")
    a, b, c = (job.source(name, Event, idle_after=idle.get(name)) for name in "abc")
    first = a.union(b).process(step(), name="first")
    shown = first.map(lambda event: event, into=Event, name="shown")
    shown.union(c).process(step(), name="second").sink("out")
    return job


def run(
    job: sk.Job, home: Path | Repository, minute: int, **seconds: list[int]
) -> dict[str, HeldBack | None]:
    """Run an epoch over all records so far, and return what each operator waits for then."""
    records = {name: [Event("k", at(second)) for second in some] for name, some in seconds.items()}
    job.run(
        {source.name: records.get(source.name, []) for source in job.plan.sources},
        checkpoint=home,
        clock=lambda: minute * MINUTE,
        drain=False,
    )
    repository = home if isinstance(home, Repository) else Repository(home)
    last = repository.latest_epoch()
    assert last is not None
    return {
        name: operator.held_back for name, operator in repository.manifest(last).operators.items()
    }


def sources(held: dict[str, HeldBack | None]) -> dict[str, str | None]:
    return {name: None if each is None else each.source for name, each in held.items()}


def test_an_input_that_never_had_a_record_holds_back_its_operator_and_those_after_it(
    tmp_path: Path,
) -> None:
    held = run(chain(), tmp_path, 0, a=[10, 20], c=[5])
    assert sources(held) == {"first": "b", "second": "b"}
    assert held["first"] is not None
    assert (held["first"].at_us, held["first"].since_us) == (None, 0)
    held = run(chain(), tmp_path, 7, a=[10, 20, 30], c=[5])
    assert held["first"] is not None
    assert held["first"].since_us == 0, "since the first epoch at which it was there"


def test_the_source_that_is_behind_is_named_and_its_wait_begins_anew_with_each_progress(
    tmp_path: Path,
) -> None:
    held = run(chain(), tmp_path, 0, a=[10, 20], b=[15], c=[500])
    assert sources(held) == {"first": "b", "second": "b"}
    assert held["first"] is not None
    assert held["first"].at_us == 15_000_000
    held = run(chain(), tmp_path, 3, a=[10, 20, 30], b=[15, 25], c=[500])
    assert held["first"] is not None
    assert (held["first"].at_us, held["first"].since_us) == (25_000_000, 3 * MINUTE)
    held = run(chain(), tmp_path, 4, a=[10, 20, 30], b=[15, 25, 99], c=[500])
    assert sources(held) == {"first": "a", "second": "a"}


def test_an_operator_waits_for_none_if_its_inputs_are_as_far_or_it_has_one() -> None:
    job = chain()
    held = run(job, Repository.in_memory(), 0, a=[10], b=[10])
    assert held["first"] is None
    single = sk.Job("single")
    single.source("a", Event).process(step(), name="only").sink("out")
    assert run(single, Repository.in_memory(), 0, a=[10]) == {"only": None}


def test_an_input_that_is_idle_holds_nothing_back(tmp_path: Path) -> None:
    job = chain(b="5 minutes")
    assert sources(run(job, tmp_path, 0, a=[10]))["first"] == "b"
    assert sources(run(job, tmp_path, 4, a=[10, 20]))["first"] == "b"
    assert sources(run(job, tmp_path, 5, a=[10, 20, 30]))["first"] is None


def test_a_store_names_the_stream_of_requests_that_it_waits_for() -> None:
    job = sk.Job("shop")
    store = job.add(sk.KVStore("store", key=str, value=dt.datetime, event_time="at"))
    store.put(job.source("puts", Event), key="key", value="at")
    store.get(job.source("gets", Event), key="key").sink("got")
    held = run(job, Repository.in_memory(), 0, puts=[10, 20])
    assert sources(held) == {"store": "gets"}


def test_a_warning_is_logged_once_after_some_minutes_and_again_for_another_wait(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "statekit.watermark")
    minutes = iter([0, 3, 6, 9, 12])
    records = {"a": [Event("k", at(second)) for second in range(0, 50, 10)], "b": [], "c": []}
    chain().run(
        records,
        checkpoint=tmp_path,
        clock=lambda: next(minutes) * MINUTE,
        epoch_size=1,
        drain=False,
    )
    first, second = (record.getMessage() for record in caplog.records)
    assert first.startswith(
        "job 'chain': operator 'first' has not advanced for 0:06:00: it waits for source 'b', "
        "which has had no record, since 1970-01-01 00:00:00."
    )
    assert "job.source('b', ..., idle_after='5 minutes')" in first
    assert "operator 'second'" in second


def test_explain_inspect_and_metrics_name_the_source(tmp_path: Path) -> None:
    run(chain(), tmp_path, 0, a=[10, 20])
    waits = "waits for source 'b', which has had no record, since 1970-01-01 00:00:00"
    assert f"    first {waits}" in chain().explain(tmp_path)
    shown = invoked("inspect", tmp_path)
    assert "waits for source 'b'" in " ".join(shown.output.split())
    shown = invoked("inspect", tmp_path, "--json")
    first, _ = json.loads(shown.output)["operators"]
    assert first["event_time"]["waits_for"] == {
        "source": "b",
        "input": "b",
        "at": None,
        "since": "1970-01-01T00:00:00+00:00",
    }
    samples = EpochMetrics("chain", Repository(tmp_path).manifest(0)).samples(4 * MINUTE)
    waits_s = {sample.labels: sample.value for sample in samples if sample.metric is INPUT_WAIT}
    assert waits_s == {("chain", "first", "b"): 240.0, ("chain", "second", "b"): 240.0}
