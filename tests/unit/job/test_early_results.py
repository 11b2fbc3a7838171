"""Early results of windows: every so often, for windows that have changed."""

from __future__ import annotations

import datetime as dt
from typing import Any, Literal, NamedTuple

import pytest

import statekit as sk
from statekit.testing import Harness, check
from tests.support.effort import SOAK
from tests.support.instants import at

Backend = Literal["memory", "rocksdb"]


class Event(NamedTuple):
    key: str
    at: dt.datetime
    value: int


def event(second: float, value: int = 1, key: str = "k") -> Event:
    return Event(key, at(second), value)


def windowed(window: Any, **options: Any) -> sk.Windowed[Any]:
    source = sk.Job("early").source("events", Event)
    return source.window(window, **{"key": "key", "event_time": "at", **options})


def seen(outputs: list[Any]) -> list[tuple[Any, ...]]:
    return sorted((out.key, out.start.timestamp(), out[-2], out.is_final) for out in outputs)


MINUTE = sk.tumbling("60 s")


def test_windows_that_have_changed_fire_when_the_watermark_passes_a_multiple_of_the_time() -> None:
    harness = Harness(windowed(MINUTE, early="10 s", lateness="100 s").sum("value"))
    harness.send(event(61, 1), event(61, 5, "other"))
    assert seen(harness.advance_watermark(at(5))) == [("k", 60, 1, False), ("other", 60, 5, False)]
    assert harness.send(event(62, 2)) == []
    assert harness.advance_watermark(at(9)) == []
    assert seen(harness.advance_watermark(at(12))) == [("k", 60, 3, False)]
    assert harness.advance_watermark(at(50)) == [], "nothing has changed"
    harness.send(event(63, 4))
    assert seen(harness.advance_watermark(at(120))) == [("k", 60, 7, True), ("other", 60, 5, True)]


def test_early_results_by_processing_time_need_no_records() -> None:
    windows = windowed(MINUTE, early="10 s", early_clock="processing")
    harness = Harness(windows.sum("value"))
    assert harness.send(event(1, 1)) == []
    assert seen(harness.advance_processing_time(at(10))) == [("k", 0, 1, False)]
    assert harness.advance_processing_time(at(60)) == []
    harness.send(event(2, 2))
    assert seen(harness.advance_processing_time(at(75))) == [("k", 0, 3, False)]
    assert seen(harness.advance_watermark(at(60))) == [("k", 0, 3, True)]
    assert harness.state("windows", "k") == harness.state("changed", "k") == {}
    assert not harness.timers("k")


def test_a_session_that_merges_has_one_early_result() -> None:
    windows = windowed(sk.session("10 s"), early="5 s", lateness="1 h")
    harness = Harness(windows.collect("value"))
    harness.send(event(1, 1), event(15, 2))
    assert seen(harness.send(event(8, 3))) == [("k", 1, [1, 3, 2], False)]
    assert harness.advance_watermark(at(5)) == []
    assert seen(harness.advance_watermark(at(30))) == [("k", 1, [1, 3, 2], True)]


def test_a_window_that_closes_in_the_same_epoch_has_its_last_result_only() -> None:
    harness = Harness(windowed(MINUTE, early="10 s", lateness="100 s").count())
    harness.send(event(1), event(70))
    assert seen(harness.advance_watermark(at(60))) == [("k", 0, 1, True), ("k", 60, 1, False)]


def test_late_records_of_a_window_that_has_fired_make_final_results() -> None:
    windows = windowed(MINUTE, early="10 s", allowed_lateness="1 h")
    harness = Harness(windows.count())
    harness.send(event(1))
    assert seen(harness.advance_watermark(at(60) - dt.timedelta(hours=1))) == [("k", 0, 1, True)]
    assert seen(harness.send(event(2))) == [("k", 0, 2, True)]
    assert harness.advance_watermark(at(30)) == []


def test_a_class_of_the_user_may_leave_out_the_mark() -> None:
    class Total(NamedTuple):
        key: str
        value: int

    class Marked(NamedTuple):
        is_final: bool
        value: int

    for into, expected in ((Total, Total("k", 1)), (Marked, Marked(False, 1))):
        harness = Harness(windowed(MINUTE, early="10 s").sum("value", into=into))
        harness.send(event(21))
        assert harness.send() == [expected]


def test_an_ordered_window_has_the_same_early_results_in_any_order_of_arrival() -> None:
    made = windowed(MINUTE, early="10 s", ordered=True, lateness="1 h").sum("value")
    expected = [("k", 0, 3, False), ("k", 0, 7, True)]
    for given in ([event(1, 1), event(3, 2), event(51, 4)], [event(51, 4), event(3, 2), event(1)]):
        harness = Harness(made)
        harness.send(*given)
        assert seen(harness.advance_watermark(at(60))) == expected


@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
def test_early_results_survive_another_parallelism(backend: Backend) -> None:
    windows = windowed(MINUTE, early="10 s", lateness="100 s")
    harness = Harness(windows.count(), parallelism=1, backend=backend)
    harness.send(*(event(1, 1, str(n)) for n in range(20)))
    harness.rescale(3)
    assert len(harness.advance_watermark(at(0))) == 20
    harness.send(*(event(2, 1, str(n)) for n in range(5)))
    harness.rescale(2)
    harness.crash()
    assert [out[1:] for out in seen(harness.advance_watermark(at(10)))] == [(0, 2, False)] * 5


WINDOWS = [
    sk.tumbling("30 s"),
    sk.sliding("60 s", every="20 s"),
    sk.session("10 s"),
    sk.session("10 s", at_most="25 s"),
    sk.tumbling("1 hour", zone="Asia/Kathmandu"),
]


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("clock", ["event", "processing"])
def test_early_results_are_what_plain_python_says(window: Any, clock: Any) -> None:
    job = sk.Job("early")
    windows = job.source("events", Event).window(
        window,
        key="key",
        event_time="at",
        lateness="20 s",
        early="7 s" if clock == "event" else "11 minutes",
        early_clock=clock,
    )
    windows.aggregate(n=sk.Count(), values=sk.Collect("value")).sink("out")
    check(job, holds=None if SOAK else ["plain Python", "leftovers"], depth="quick")
    combined = sk.Job("early")
    windows = combined.source("events", Event).window(
        window, key="key", event_time="at", lateness="20 s", early="7 s", early_clock=clock
    )
    windows.sum("value").sink("out")
    check(combined, holds=["plain Python"], depth="quick")


@pytest.mark.slow
def test_all_properties_hold_for_early_results() -> None:
    job = sk.Job("early")
    times: dict[str, Any] = {"key": "key", "event_time": "at", "lateness": "20 s"}
    windows = job.source("events", Event).window(sk.session("10 s"), early="7 s", **times)
    windows.aggregate(n=sk.Count(), values=sk.Collect("value")).sink("out")
    check(job, depth="quick")


@pytest.mark.parametrize("options", [{"ordered": True}, {"allowed_lateness": "15 s"}], ids=str)
def test_early_results_with_other_options_are_what_plain_python_says(options: Any) -> None:
    for window in (sk.sliding("60 s", every="20 s"), sk.session("10 s")):
        job = sk.Job("early")
        times: dict[str, Any] = {"key": "key", "event_time": "at", "lateness": "20 s"}
        windows = job.source("events", Event).window(window, early="7 s", **times, **options)
        windows.sum("value").sink("out")
        check(job, holds=["plain Python"], depth="quick")


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: windowed(MINUTE, early="0 s"), "early='0 s': give more than nothing"),
        (lambda: windowed(MINUTE, early="9 s", early_clock="wall"), "early_clock='wall': use"),
        (lambda: windowed(MINUTE, early="9 s", emit="change"), "early= has no effect with emit"),
        (lambda: windowed(sk.count_windows(3), early="9 s"), "early= is for windows of time"),
    ],
)
def test_early_results_that_cannot_be_are_refused(make: Any, problem: str) -> None:
    with pytest.raises(sk.StateTypeError, match=problem):
        make()
