"""Windows of processing time: they have the records of their epochs, and close with the clock."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import pytest

import statekit as sk
from statekit.testing import Harness, JobHarness, check
from tests.support.instants import at

Backend = Literal["memory", "rocksdb"]


class Page(NamedTuple):
    path: str
    size: int


def windowed(window: Any, **options: Any) -> sk.Windowed[Any]:
    pages = sk.Job("load").source("pages", Page)
    return pages.window(window, **{"key": "path", "clock": "processing", **options})


def seen(outputs: list[Any]) -> list[tuple[Any, ...]]:
    return sorted((out.path, out.start.timestamp(), out.end.timestamp(), out[3]) for out in outputs)


@pytest.mark.parametrize("result", ["sum", "collect"])
def test_a_window_closes_when_the_clock_passes_its_end_without_records(result: str) -> None:
    harness = Harness(getattr(windowed(sk.tumbling("10 s")), result)("size"))
    assert harness.send(Page("/", 1), Page("/a", 2)) == []
    assert harness.advance_processing_time(at(9.999999)) == []
    assert harness.send(Page("/", 4)) == []
    expected = [("/", 0, 10, 5), ("/a", 0, 10, 2)]
    if result == "collect":
        expected = [("/", 0, 10, [1, 4]), ("/a", 0, 10, [2])]  # type: ignore[list-item]
    assert seen(harness.advance_processing_time(at(10))) == expected
    assert harness.state("windows", "/") == {}
    assert not harness.timers("/")


def test_records_at_the_end_of_a_window_are_in_the_next_one() -> None:
    harness = Harness(windowed(sk.tumbling("10 s")).sum("size"))
    harness.send(Page("/", 1))
    harness.set_clock(at(10))
    assert seen(harness.send(Page("/", 2))) == [("/", 0, 10, 1)]
    assert seen(harness.advance_processing_time(at(25))) == [("/", 10, 20, 2)]


def test_sessions_end_after_a_silence_or_with_their_maximum_length() -> None:
    harness = Harness(windowed(sk.session("10 s", at_most="15 s")).sum("size"))
    found = []
    for second in (0, 8, 14, 16, 40):
        harness.set_clock(at(second))
        found += harness.send(Page("/", 1))
    assert seen(found) == [("/", 0, 15, 3), ("/", 16, 26, 1)]


def test_a_drain_fires_nothing_and_a_later_epoch_does() -> None:
    harness = Harness(windowed(sk.tumbling("10 s")).count())
    harness.send(Page("/", 1))
    harness.crash()
    assert seen(harness.advance_processing_time(at(1000))) == [("/", 0, 10, 1)]


@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
def test_open_windows_survive_another_parallelism(backend: Backend) -> None:
    made = windowed(sk.sliding("20 s", "10 s")).count()
    harness = Harness(made, parallelism=1, backend=backend)
    harness.send(*(Page(str(n), 1) for n in range(20)))
    harness.rescale(3)
    harness.send(*(Page(str(n), 1) for n in range(5)))
    harness.crash()
    found = seen(harness.advance_processing_time(at(10)))
    assert sorted(out[1:] for out in found) == [(-10, 10, 1)] * 15 + [(-10, 10, 2)] * 5
    harness.rescale(2)
    assert len(harness.advance_processing_time(at(20))) == 20


def test_early_results_and_results_at_each_record() -> None:
    harness = Harness(windowed(sk.tumbling("60 s"), early="10 s").sum("size"))
    harness.send(Page("/", 1))
    assert [out[3:] for out in harness.advance_processing_time(at(10))] == [(1, False)]
    assert harness.advance_processing_time(at(30)) == []
    assert [out[3:] for out in harness.advance_processing_time(at(60))] == [(1, True)]
    changes = Harness(windowed(sk.tumbling("60 s"), emit="change").sum("size"))
    assert [out.size for out in changes.send(Page("/", 1), Page("/", 2))] == [1, 3]
    assert changes.advance_processing_time(at(60)) == []
    assert changes.state("windows", "/") == {}


def test_windows_of_all_records() -> None:
    made = windowed(sk.tumbling("10 s"), key=()).sum("size")
    harness = Harness(made, parallelism=2)
    harness.send(Page("/", 1), Page("/a", 2))
    (found,) = harness.advance_processing_time(at(10))
    assert found[2:] == (3,)


def test_results_have_the_times_of_the_clock_for_the_next_windows() -> None:
    job = sk.Job("load")
    pages = job.source("pages", Page)
    tens = pages.window(sk.tumbling("10 s"), key="path", clock="processing").sum("size")
    tens.window(sk.tumbling("60 s"), key="path", event_time="end").max("size").sink("out")
    harness = JobHarness(job)
    for second in (0, 5, 30, 70, 130, 200, 300):
        harness.set_clock(at(second))
        found = harness.send(pages=[Page("/", second + 1)])["out"]
        if found:
            break
    assert [out.size for out in found] == [31]


WINDOWS = [
    sk.tumbling("15 minutes"),
    sk.sliding("30 minutes", every="10 minutes"),
    sk.session("12 minutes"),
    sk.session("12 minutes", at_most="25 minutes"),
    sk.tumbling("1 hour", zone="Asia/Kathmandu"),
]


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("options", [{}, {"early": "4 minutes"}, {"emit": "change"}], ids=str)
def test_windows_are_what_plain_python_says(window: Any, options: dict[str, Any]) -> None:
    for result in ("sum", "collect"):
        job = sk.Job("load")
        pages = job.source("pages", Page)
        windows = pages.window(window, key="path", clock="processing", **options)
        getattr(windows, result)("size").sink("out")
        check(job, holds=["plain Python", "leftovers", "restarts"], depth="quick")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"clock": "wall"}, "clock='wall': use"),
        ({"event_time": "size"}, 'event_time= has no effect with clock="processing"'),
        ({"lateness": "1 s"}, "lateness= is about event time"),
        ({"allowed_lateness": "1 s"}, "allowed_lateness= is about event time"),
        ({"ordered": True}, "ordered= is about event time"),
        ({"early": "1 s", "early_clock": "event"}, "early_clock= is about event time"),
        ({"window": sk.count_windows(3)}, "clock= is for windows of time"),
    ],
    ids=str,
)
def test_options_of_event_time_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(sk.StateTypeError, match=problem):
        windowed(**{"window": sk.tumbling("10 s"), **options})
