"""Windows by count: a result after each number of records of a key."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import statekit as sk
from statekit.testing import Harness, check
from tests.support.instants import at

Backend = Literal["memory", "rocksdb"]


class Reading(NamedTuple):
    sensor: str
    level: int | None = None
    time: dt.datetime = at(0)


class Levels(NamedTuple):
    sensor: str
    level: list[int]


class Whole(NamedTuple):
    sensor: str
    level: int
    time: dt.datetime


SPREAD: sk.Aggregate[Any, tuple[int, ...], int] = sk.Aggregate(
    tuple, lambda held, level: (*held, level), lambda held: max(held) - min(held)
)
SEVERAL: dict[str, Any] = {
    "readings": sk.Count(),
    "total": sk.Sum("level"),
    "mean": sk.Mean("level"),
    "top": sk.Top(2, by="-level"),
    "levels": sk.Collect("level"),
    "all": sk.Collect(),
}


def windowed(size: int, every: int | None = None, **options: Any) -> sk.Windowed[Any]:
    readings = sk.Job("plant").source("readings", Reading)
    return readings.window(sk.count_windows(size, every=every), key="sensor", **options)


def levels(*values: int, sensor: str = "a") -> list[Reading]:
    return [Reading(sensor, value, at(value)) for value in values]


def test_a_window_fires_with_the_record_that_fills_it_and_the_rest_is_kept() -> None:
    harness = Harness(windowed(3).collect("level", into=Levels))
    assert harness.send(*levels(1, 2)) == []
    assert harness.send(*levels(3, 4), *levels(1, 2, sensor="b")) == [Levels("a", [1, 2, 3])]
    assert harness.send(*levels(5, 6)) == [Levels("a", [4, 5, 6])]
    assert harness.state("windows", "b") == {3: (1, [1, 2])}
    assert harness.state("windows", "a") == {}


@pytest.mark.parametrize(
    ("size", "every", "expected"),
    [
        (4, 2, [[1, 2], [1, 2, 3, 4], [3, 4, 5, 6]]),
        (3, 2, [[1, 2], [2, 3, 4], [4, 5, 6]]),
        (2, 1, [[1], [1, 2], [2, 3], [3, 4], [4, 5], [5, 6], [6, 7]]),
        (1, 1, [[1], [2], [3], [4], [5], [6], [7]]),
        (9, 7, [[1, 2, 3, 4, 5, 6, 7]]),
        (8, 8, []),
    ],
)
def test_sliding_windows_have_the_last_records_and_fewer_at_first(
    size: int, every: int, expected: list[list[int]]
) -> None:
    harness = Harness(windowed(size, every).collect("level"))
    assert [out.level for out in harness.send(*levels(*range(1, 8)))] == expected


def test_results_have_no_times_and_all_aggregates_of_one_operator() -> None:
    harness = Harness(windowed(2).aggregate(**SEVERAL))
    (found,) = harness.send(Reading("a", 5), Reading("a", None), Reading("a", 7))
    assert found._asdict() == {
        "sensor": "a",
        "readings": 2,
        "total": 5,
        "mean": 5.0,
        "top": [Reading("a", 5), Reading("a", None)],
        "levels": [5],
        "all": [Reading("a", 5), Reading("a", None)],
    }


def test_with_event_time_a_drain_fires_the_rest_and_without_it_the_rest_is_kept(
    tmp_path: Path,
) -> None:
    found: dict[str | None, list[Any]] = {}
    for event_time in ("time", None):
        job = sk.Job("plant")
        windows = job.source("readings", Reading).window(
            sk.count_windows(4, every=2), key="sensor", event_time=event_time
        )
        windows.collect("level").sink("out")
        given = [*levels(1, 2, 3), *levels(4, 5, sensor="b")]
        url = tmp_path / str(event_time)
        outs: list[Any] = job.run({"readings": given}, checkpoint=url).outputs["out"]
        found[event_time] = [out.level for out in outs]
        stored = sk.read(url, "collect_level_by_sensor", "windows").read_all()
        assert len(stored) == (0 if event_time else 3)
    assert sorted(found["time"]) == [[1, 2], [1, 2, 3], [4, 5]]
    assert sorted(found[None]) == [[1, 2], [4, 5]]


def test_with_event_time_late_records_are_counted_and_without_it_none_is_late() -> None:
    for event_time, expected in (("time", [[1, 9]]), (None, [[1, 9], [2, 10]])):
        harness = Harness(windowed(2, event_time=event_time).collect("level"))
        found = [harness.send(*levels(n)) for n in (1, 9, 2, 10)]
        assert [out.level for epoch in found for out in epoch] == expected


def test_ordered_windows_have_records_in_order_of_time() -> None:
    windows = windowed(2, event_time="time", lateness="10 s", ordered=True)
    harness = Harness(windows.collect("level"))
    harness.send(*levels(4, 3, 2, 1))
    assert [out.level for out in harness.advance_watermark(at(20))] == [[1, 2], [3, 4]]


OF_EPOCH = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9)), max_size=9)
EPOCHS = st.lists(OF_EPOCH, max_size=6)
SHARDS = st.lists(st.integers(1, 3), min_size=6, max_size=6)


@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
@pytest.mark.parametrize("event_time", [None, "time"])
@settings(max_examples=25, deadline=None)
@given(st.integers(1, 6), st.integers(0, 5), EPOCHS, SHARDS)
def test_any_epochs_and_parallelism_give_the_windows_of_plain_python(
    backend: Backend,
    event_time: str | None,
    size: int,
    less: int,
    epochs: list[list[tuple[str, int]]],
    parallelism: list[int],
) -> None:
    every = max(1, size - less)
    declared = windowed(size, every, event_time=event_time, lateness="1 h" if event_time else "0 s")
    harness = Harness(declared.collect("level"), backend=backend)
    found: dict[str, list[list[int]]] = {}
    for epoch, shards in zip(epochs, parallelism, strict=False):
        outs = harness.send(*[Reading(sensor, level, at(level)) for sensor, level in epoch])
        for out in outs:
            found.setdefault(out.sensor, []).append(out.level)
        harness.rescale(shards)
    expected: dict[str, list[list[int]]] = {}
    for sensor in "abc":
        own = [level for epoch in epochs for each, level in epoch if each == sensor]
        for end in range(every, len(own) + 1, every):
            expected.setdefault(sensor, []).append(own[max(0, end - size) : end])
    assert found == expected


@pytest.mark.parametrize(("size", "every"), [(3, 3), (5, 2)])
@pytest.mark.parametrize(
    "options",
    [{}, {"event_time": "time", "lateness": "20 s"}, {"event_time": "time", "ordered": True}],
    ids=["arrival", "timed", "ordered"],
)
def test_windows_are_what_plain_python_says(size: int, every: int, options: dict[str, Any]) -> None:
    spread = sk.OwnAggregate(SPREAD, accumulator=tuple[int, ...], result=int, field="level")
    job = sk.Job("plant")
    readings = job.source("readings", Whole)
    windows = readings.window(sk.count_windows(size, every=every), key="sensor", **options)
    windows.aggregate(**SEVERAL, spread=spread).sink("out")
    check(job, depth="quick")


def test_a_checkpoint_continues_with_the_same_windows_only(tmp_path: Path) -> None:
    def run(size: int, every: int, *values: int) -> list[Any]:
        job = sk.Job("plant")
        readings = job.source("readings", Reading)
        readings.window(sk.count_windows(size, every=every), key="sensor").count().sink("out")
        return job.run({"readings": levels(*values)}, checkpoint=tmp_path).outputs["out"]

    assert run(3, 3, 1, 2) == []
    assert [out.count for out in run(3, 3, 1, 2, 3, 4)] == [3]
    with pytest.raises(sk.StateSchemaError, match=r"window: 3 records in .* 3 records every 1"):
        run(3, 1, 1, 2, 3, 4, 5)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: sk.count_windows(0), "size=0: give a number of records, at least 1"),
        (lambda: sk.count_windows(2.5), "size=2.5: give a number"),  # type: ignore[arg-type]
        (lambda: sk.count_windows(2, every=0), "every=0: give a number"),
        (lambda: sk.count_windows(2, every=3), "some records would be in no window"),
        (lambda: sk.count_windows(10**6, every=1), "in 1,000,000 windows, and 10,000 is the limit"),
        (lambda: windowed(2, emit="change"), "emit= is for windows of time"),
        (lambda: windowed(2, allowed_lateness="1 h"), "allowed_lateness= is for windows of time"),
        (lambda: windowed(2, ordered=True), "ordered= needs event time"),
        (lambda: windowed(2, lateness="1 h"), "lateness= needs event time"),
        (lambda: windowed(2).last("level"), "say by= which field"),
    ],
)
def test_windows_that_cannot_be_are_refused(make: Any, problem: str) -> None:
    with pytest.raises(sk.StateTypeError, match=problem):
        make()


def test_windows_of_time_need_event_time() -> None:
    readings = sk.Job("plant").source("readings", Reading)
    with pytest.raises(sk.StateTypeError, match="tumbling 1:00:00: say which field has the event"):
        readings.window(sk.tumbling("1 hour"), key="sensor")
