"""Windows: what is in them, when they come out, and that nothing of them stays.

The ids are those of the case collection: `B` Beam, `W` bytewax.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict, cast

import cloudpickle
import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import statekit as sk
from statekit.job.stream import Windowed
from statekit.job.windows.sessions import Session
from statekit.job.windows.sliding import Sliding
from statekit.job.windows.window_kind import Window
from statekit.testing import Harness
from tests.support.instants import after, at

Backend = Literal["memory", "rocksdb"]
BACKENDS: list[Backend] = ["memory", "rocksdb"]
FIRST = dt.datetime.min.replace(tzinfo=dt.UTC)
LAST = dt.datetime.max.replace(tzinfo=dt.UTC)
LATENESS = 10


class Event(NamedTuple):
    key: str
    at: dt.datetime
    value: int = 0


def event(seconds: float, value: int = 0, key: str = "k") -> Event:
    return Event(key, at(seconds), value)


def events(*seconds: float) -> list[Event]:
    """Records of one key, each with its time as its value."""
    return [event(second, int(second)) for second in seconds]


def windowed(window: Window, record: type[Any] = Event, **options: Any) -> Windowed[Any]:
    options = {"key": "key", "event_time": "at", **options}
    return sk.Job("windows").source("events", record).window(window, **options)


def process_of(stream: sk.Stream[Any]) -> sk.Process[Any, Any, Any]:
    """The process function that a result is made by."""
    return stream.plan.operators[-1].declared


Found = tuple[float, float, Any]


def seen(outputs: list[Any]) -> list[Found]:
    """Start, end and result of each output."""
    return [(out.start.timestamp(), out.end.timestamp(), out[-1]) for out in outputs]


def is_empty(harness: Harness) -> bool:
    """Whether no row of any state, and no timer, is left."""
    last = harness._runner.coordinator.last
    assert last is not None
    operator = last.operators[harness.process.name]
    return not any(operator.rows.values()) and not any(s.wake_us for s in operator.shards)


def late(harness: Harness) -> int:
    last = harness._runner.coordinator.last
    assert last is not None
    return last.operators[harness.process.name].late_so_far


def collected(window: Window, **options: Any) -> Harness:
    return Harness(process_of(windowed(window, **options).collect("value")))


# ------------------------------------------------------------------- what other systems' users know


def test_fixed_windows_have_the_records_between_their_bounds() -> None:
    """B27: fixed(10) over 1, 2, 3, 10, 11."""
    harness = collected(sk.tumbling("10 s"))
    assert harness.send(*events(1, 2, 3, 10, 11)) == []
    assert seen(harness.advance_watermark(at(25))) == [(0, 10, [1, 2, 3]), (10, 20, [10, 11])]
    assert is_empty(harness)


def test_an_element_is_in_the_window_that_begins_with_it() -> None:
    """B13: fixed(5), an element at 10 is in the window from 10 to 15."""
    harness = collected(sk.tumbling("5 s"))
    harness.send(*events(10))
    assert seen(harness.advance_watermark(at(20))) == [(10, 15, [10])]


def test_windows_that_stay_take_late_records_and_those_that_went_do_not() -> None:
    """B29: fixed(10), kept for 20 s more: at 100, what is of [0, 20) is late, and 82 is not."""
    harness = collected(sk.tumbling("10 s"), allowed_lateness="20 s")
    harness.send(*events(1, 2, 10, 11, 80, 81))
    found = harness.send(event(100, 100, "other"))
    assert seen(found) == [(0, 10, [1, 2]), (10, 20, [10, 11])]
    assert seen(harness.send()) == [(80, 90, [80, 81])]
    assert harness.send(*events(7, 8, 17, 18)) == []
    assert late(harness) == 4
    assert seen(harness.send(*events(82))) == [(80, 90, [80, 81, 82])]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([2], [(2, 12)]),
        ([2, 19], [(2, 12), (19, 29)]),
        ([2, 9], [(2, 19)]),
        ([9, 2], [(2, 19)]),
        ([2, 9, 19], [(2, 19), (19, 29)]),
        ([19, 9, 2], [(2, 19), (19, 29)]),
        ([2, 15, 10], [(2, 25)]),
    ],
)
@pytest.mark.parametrize("size", [1, 3])
def test_sessions_merge_when_less_than_the_gap_is_between_them(
    given: list[int], expected: list[tuple[float, float]], size: int
) -> None:
    """B25: a gap of exactly ten seconds is the end of a session."""
    job = sk.Job("sessions")
    windows = job.source("events", Event).window(
        sk.session("10 s"), key="key", event_time="at", lateness="30 s"
    )
    windows.count().sink("out")
    run = job.run({"events": events(*given)}, epoch_size=size)
    assert [found[:2] for found in seen(run["out"])] == expected
    assert sum(found[2] for found in seen(run["out"])) == len(given)


def test_late_records_merge_sessions_that_have_fired() -> None:
    """B33: a late record between two sessions that have closed makes one of them."""
    windows = windowed(sk.session("10 s"), Letter, lateness="30 s", allowed_lateness="200 s")
    harness = Harness(process_of(windows.collect("value")))

    def letters(*given: tuple[float, str]) -> list[Found]:
        outputs = harness.send(*(Letter("k", at(s), letter) for s, letter in given))
        return [(start, end, "".join(letters)) for start, end, letters in seen(outputs)]

    assert letters((1, "a"), (15, "b"), (7, "c"), (30, "d")) == []
    harness.advance_watermark(at(100 - 200))
    assert letters((1, "x"), (2, "y")) == [(1, 25, "axycb")]
    assert letters((21, "z")) == [(1, 40, "axycbzd")]
    assert letters() == []
    assert harness.advance_watermark(at(40)) == []
    assert is_empty(harness)


class Letter(NamedTuple):
    key: str
    at: dt.datetime
    value: str


def test_late_records_of_a_closed_session_come_out_once_per_epoch() -> None:
    harness = collected(sk.session("10 s"), allowed_lateness="200 s")
    harness.send(*events(1, 7, 15, 30))
    found = harness.advance_watermark(at(100 - 200))
    assert seen(found) == [(1, 25, [1, 7, 15]), (30, 40, [30])]
    assert seen(harness.send(*events(2, 3))) == [(1, 25, [1, 2, 3, 7, 15])]
    assert seen(harness.send(*events(21, 33))) == [(1, 43, [1, 2, 3, 7, 15, 21, 30, 33])]
    assert harness.send() == []


def test_tumbling_counts_by_kind() -> None:
    """W11: tumbling 10 over login at 0 and posts at 4, 8, 16."""
    windows = windowed(sk.tumbling("10 s"), key=("key", "value"))
    harness = Harness(process_of(windows.count()), parallelism=2)
    login, post = 0, 1
    harness.send(event(0, login), event(4, post), event(8, post), event(16, post))
    found = harness.advance_watermark(at(30))
    assert sorted((out.start.timestamp() // 10, out.value, out.count) for out in found) == [
        (0, login, 1),
        (0, post, 2),
        (1, post, 1),
    ]


def test_sliding_windows_share_their_elements() -> None:
    """W13: length 10, one every 5: a1 b4 c8 d12 e13 f14 g16, and h1, which is late."""
    windows = windowed(sk.sliding("10 s", every="5 s"), Letter)
    harness = Harness(process_of(windows.collect("value")))
    times = zip([1, 4, 8, 12, 13, 14, 16], "abcdefg", strict=True)
    harness.send(*(Letter("k", at(seconds), letter) for seconds, letter in times))
    found = harness.send(Letter("k", at(1), "h"))
    found += harness.advance_watermark(at(100))
    assert [(start // 5, "".join(letters)) for start, _, letters in seen(found)] == [
        (-1, "ab"),
        (0, "abc"),
        (1, "cdef"),
        (2, "defg"),
        (3, "g"),
    ]
    assert late(harness) == 1
    assert is_empty(harness)


@pytest.mark.parametrize("by_parity", [False, True])
def test_batches_of_at_most_three_have_every_element_once(by_parity: bool) -> None:
    """B23: a user's own buffer, flushed when it is full or by a timer; no batch mixes windows."""

    @sk.process(key=("key", "value") if by_parity else "key", event_time="at")
    def batches(letter: Event, ctx: sk.Context, held: sk.ListState[int]) -> Iterator[list[int]]:
        if not held:
            ctx.timers.set(letter.at + after(5))
        held.append(int(letter.at.timestamp()))
        if len(held) == 3:
            yield list(held)
            held.clear()

    @batches.on_timer
    def flush(timer: sk.Timer, held: sk.ListState[int]) -> Iterator[list[int]]:
        if held:
            yield list(held)
            held.clear()

    for size in (1, 3, 8):
        job = sk.Job("batches")
        job.source("events", Event).process(batches).sink("out")
        given = [event(n, n % 2) for n in range(1, 9)]
        found = job.run({"events": given}, epoch_size=size).outputs["out"]
        assert sorted(n for batch in found for n in batch) == list(range(1, 9))
        assert all(1 <= len(batch) <= 3 for batch in found)
        if by_parity:
            assert all(len({n % 2 for n in batch}) == 1 for batch in found)


# --------------------------------------------------------------------- any windows, against a model


def in_windows(window: Window, seconds: list[int]) -> dict[tuple[int, int], list[int]]:
    """Which of these times are in which window, in plain Python. Times may come twice."""
    found: dict[tuple[int, int], list[int]] = defaultdict(list)
    if isinstance(window, Session):
        gap = int(window.gap.total_seconds())
        most = 10**9 if window.at_most is None else int(window.at_most.total_seconds())
        groups: list[list[int]] = []
        for second in sorted(seconds):
            if not groups or second - groups[-1][-1] >= gap or second - groups[-1][0] >= most:
                groups.append([])
            groups[-1].append(second)
        return {(g[0], min(g[-1] + gap, g[0] + most)): g for g in groups}
    assert isinstance(window, Sliding)
    size, every = int(window.size.total_seconds()), int(window.every.total_seconds())
    offset = int(window.offset.total_seconds())
    for second in sorted(seconds):
        for start in range(second - size + 1, second + 1):
            if (start - offset) % every == 0:
                found[start, start + size].append(second)
    return dict(found)


WINDOWS = st.one_of(
    st.builds(
        lambda size, offset: sk.tumbling(after(size), after(offset)),
        st.integers(1, 20),
        st.integers(0, 30),
    ),
    st.builds(
        lambda every, more, offset: sk.sliding(after(every + more), after(every), after(offset)),
        st.integers(1, 10),
        st.integers(0, 15),
        st.integers(0, 30),
    ),
    st.builds(lambda gap: sk.session(after(gap)), st.integers(1, 12)),
)
SHORT_SESSIONS = st.builds(
    lambda gap, more: sk.session(after(gap), at_most=after(gap + more)),
    st.integers(1, 12),
    st.integers(0, 20),
)
GIVEN = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(-20, 60), st.integers(0, 9)), max_size=25
)


class Arrival(NamedTuple):
    """Who is delayed how much, where epochs end, and after which of them the machine dies."""

    delays: list[int]
    cuts: list[int]
    crashes: list[bool]
    parallelism: int


ARRIVALS = st.builds(
    Arrival,
    st.lists(st.integers(0, LATENESS - 1), min_size=25, max_size=25),
    st.lists(st.integers(1, 6), min_size=25, max_size=25),
    st.lists(st.booleans(), min_size=25, max_size=25),
    st.integers(1, 3),
)

OF_LIST: dict[str, Callable[[list[int]], Any]] = {
    "count": len,
    "sum": sum,
    "min": min,
    "max": max,
    "mean": lambda values: sum(values) / len(values),
    "collect": sorted,
    "aggregate": lambda values: f"{sum(values)}/{len(values)}",
}


def mean_text() -> sk.Aggregate[Any, Any, Any]:
    return sk.Aggregate(
        create=lambda: [0, 0],
        add=lambda held, added: [held[0] + added, held[1] + 1],
        result=lambda held: f"{held[0]}/{held[1]}",
        merge=lambda one, other: [one[0] + other[0], one[1] + other[1]],
    )


def result_of(windows: Windowed[Any], how: str) -> sk.Stream[Any]:
    if how == "count":
        return windows.count()
    if how == "aggregate":
        return windows.aggregate(
            mean=sk.OwnAggregate(mean_text(), accumulator=list[int], result=str, field="value"),
            name="mean",
        )
    made: sk.Stream[Any] = getattr(windows, how)("value")
    return made


def arriving(given: list[tuple[str, int, int]], arrival: Arrival) -> list[list[Event]]:
    """The records of each epoch."""
    pairs = zip(given, arrival.delays, strict=False)
    delayed = sorted((second + delay, n) for n, ((_, second, _), delay) in enumerate(pairs))
    waiting = [Event(given[n][0], at(given[n][1]), given[n][2]) for _, n in delayed]
    epochs = []
    for size in arrival.cuts:
        epochs.append(waiting[:size])
        waiting = waiting[size:]
    return [*epochs, waiting]


def run(harness: Harness, epochs: list[list[Event]], arrival: Arrival) -> list[list[Any]]:
    """What each epoch puts out; at the end nothing can be left."""
    outputs = []
    for records, crashes in zip(epochs, [*arrival.crashes, False], strict=True):
        outputs.append(harness.send(*records))
        if crashes:
            harness.crash()
    assert late(harness) == 0
    outputs.append(harness.advance_watermark(LAST))
    assert is_empty(harness)
    return outputs


def expected(window: Window, given: list[tuple[str, int, int]], how: str) -> dict[Any, Any]:
    """The result of each window by key, start and end."""
    found = {}
    for key in {key for key, _, _ in given}:
        mine = [(second, value) for k, second, value in given if k == key]
        for (start, end), times in in_windows(window, [second for second, _ in mine]).items():
            values = [value for second, value in mine if second in times]
            found[key, start, end] = OF_LIST[how](values)
    return found


def by_window(outputs: list[Any], how: str) -> list[tuple[tuple[str, float, float], Any]]:
    return [
        (
            (out.key, out.start.timestamp(), out.end.timestamp()),
            sorted(out[-1]) if how == "collect" else out[-1],
        )
        for out in outputs
    ]


@settings(max_examples=35, deadline=None)
@given(WINDOWS | SHORT_SESSIONS, GIVEN, ARRIVALS, st.sampled_from(sorted(OF_LIST)), st.booleans())
def test_each_window_fires_once_with_the_result_of_plain_python(
    window: Window, given: list[tuple[str, int, int]], arrival: Arrival, how: str, ordered: bool
) -> None:
    windows = windowed(window, lateness=after(LATENESS), ordered=ordered)
    harness = Harness(process_of(result_of(windows, how)), parallelism=arrival.parallelism)
    outputs = run(harness, arriving(given, arrival), arrival)
    found = by_window([out for epoch in outputs for out in epoch], how)
    assert len(found) == len(dict(found)), "once"
    assert dict(found) == expected(window, given, how)


@settings(max_examples=35, deadline=None)
@given(WINDOWS, GIVEN, ARRIVALS, st.sampled_from(sorted(OF_LIST)), st.integers(1, LATENESS))
def test_with_allowed_lateness_the_last_result_is_that_of_plain_python(
    window: Window, given: list[tuple[str, int, int]], arrival: Arrival, how: str, allowed: int
) -> None:
    windows = windowed(window, lateness=after(LATENESS - allowed), allowed_lateness=after(allowed))
    harness = Harness(process_of(result_of(windows, how)), parallelism=arrival.parallelism)
    outputs = run(harness, arriving(given, arrival), arrival)
    for epoch in outputs:
        found = by_window(epoch, how)
        assert len(found) == len(dict(found)), "once per epoch"
    last = dict(by_window([out for epoch in outputs for out in epoch], how))
    wanted = expected(window, given, how)
    assert {place: last.get(place) for place in wanted} == wanted
    if isinstance(window, Sliding):
        assert last == wanted


@settings(max_examples=35, deadline=None)
@given(WINDOWS, GIVEN, ARRIVALS, st.sampled_from(sorted(OF_LIST)))
def test_on_change_every_record_puts_out_its_windows_as_they_are(
    window: Window, given: list[tuple[str, int, int]], arrival: Arrival, how: str
) -> None:
    windows = windowed(window, lateness=after(LATENESS), emit="change")
    harness = Harness(process_of(result_of(windows, how)), parallelism=arrival.parallelism)
    epochs = arriving(given, arrival)
    outputs = run(harness, epochs, arrival)
    last = dict(by_window([out for epoch in outputs for out in epoch], how))
    wanted = expected(window, given, how)
    assert {place: last.get(place) for place in wanted} == wanted
    so_far: list[tuple[str, int, int]] = []
    for records, found in zip(epochs, outputs, strict=False):
        so_far += [(e.key, int(e.at.timestamp()), e.value) for e in records]
        now = expected(window, so_far, how)
        for (key, second, _), place in (
            ((e.key, int(e.at.timestamp()), e.value), place) for e in records for place in now
        ):
            if place[0] == key and place[1] <= second < place[2]:
                assert place in dict(by_window(found, how)), "each touched window comes out"
        assert (
            dict(by_window(found, how)).items()
            >= {place: now[place] for place in now if place in dict(by_window(found, how))}.items()
        )
    assert outputs[-1] == [], "nothing comes at the end"


@settings(max_examples=15, deadline=None)
@given(WINDOWS | SHORT_SESSIONS, GIVEN, ARRIVALS, st.sampled_from(sorted(OF_LIST)))
def test_the_same_on_rocksdb(
    window: Window, given: list[tuple[str, int, int]], arrival: Arrival, how: str
) -> None:
    windows = windowed(window, lateness=after(LATENESS))
    declared = process_of(result_of(windows, how))
    harness = Harness(declared, parallelism=arrival.parallelism, backend="rocksdb")
    outputs = run(harness, arriving(given, arrival), arrival)
    found = by_window([out for epoch in outputs for out in epoch], how)
    assert sorted(found) == sorted(expected(window, given, how).items())


@pytest.mark.parametrize("given", [[1, 4, 7, 10, 13], [13, 7, 1, 10, 4], [13, 10, 7, 4, 1]])
def test_a_session_ends_with_its_maximum_length_in_any_order_of_arrival(given: list[int]) -> None:
    harness = collected(sk.session("5 s", at_most="9 s"), lateness="20 s")
    harness.send(*events(*given))
    assert seen(harness.advance_watermark(at(9.9))) == []
    assert seen(harness.advance_watermark(at(10))) == [(1, 10, [1, 4, 7])]
    assert seen(harness.advance_watermark(at(18))) == [(10, 18, [10, 13])]
    assert is_empty(harness)


def test_a_record_that_joins_two_sessions_makes_them_no_longer_than_the_maximum() -> None:
    harness = collected(sk.session("5 s", at_most="9 s"), lateness="20 s")
    harness.send(*events(1, 4), *events(11, 14))
    harness.send(*events(8))
    assert seen(harness.advance_watermark(at(30))) == [(1, 10, [1, 4, 8]), (11, 19, [11, 14])]


def test_a_session_without_end_fires_each_time_that_it_has_its_maximum_length() -> None:
    harness = collected(sk.session("2 s", at_most="4 s"))
    found = [out for n in range(12) for out in harness.send(event(n, n))]
    assert seen(found) == [(0, 4, [0, 1, 2, 3]), (4, 8, [4, 5, 6, 7])]


# ------------------------------------------------------------------------------- when they come out


def test_a_window_closes_when_no_record_of_it_can_come() -> None:
    """A record at its last microsecond is in it; behind that, nothing is waited for."""
    harness = collected(sk.tumbling("10 s"))
    harness.send(event(1, 1))
    assert harness.advance_watermark(at(9.999998)) == []
    harness.send(event(9.999999, 2))
    assert seen(harness.send()) == [(0, 10, [1, 2])]
    assert is_empty(harness)


@pytest.mark.parametrize(("epoch_size", "fired"), [(100, []), (3, [0, 10])])
def test_a_run_that_does_not_drain_leaves_the_windows_that_its_last_epoch_completes(
    epoch_size: int, fired: list[int], tmp_path: Path
) -> None:
    def run(*seconds: float, **options: Any) -> list[float]:
        job = sk.Job("runs")
        windows = job.source("events", Event).window(
            sk.tumbling("10 s"), key="key", event_time="at"
        )
        windows.count().sink("out")
        made = job.run({"events": events(*seconds)}, checkpoint=tmp_path, **options)
        return [start for start, _, _ in seen(made["out"])]

    given = (1, 11, 21, 31, 32)
    assert run(*given, epoch_size=epoch_size, drain=False) == fired
    assert run(*given, drain=False) == []
    assert run(*given, 33, drain=False) == [start for start in (0, 10, 20) if start not in fired]
    assert run(*given, 33, drain=True) == [30]


def test_a_session_does_not_close_early_when_it_grows() -> None:
    harness = collected(sk.session("10 s"))
    harness.send(*events(1))
    harness.send(*events(4))
    assert harness.state("windows", "k") == {at(10): (at(1), at(14), None)}, "its row stays"
    harness.send(*events(10.5))
    assert harness.advance_watermark(at(15)) == []
    assert harness.advance_watermark(at(20.499998)) == []
    assert seen(harness.advance_watermark(at(20.499999))) == [(1, 20.5, [1, 4, 10])]
    assert is_empty(harness)


def test_a_window_that_may_fire_again_has_one_timer_however_many_records_come() -> None:
    harness = collected(sk.tumbling("10 s"), lateness="100 s", allowed_lateness="1 s")
    for _ in range(3):
        harness.send(*events(1, 2, 3, 4))
    close, forget = harness.timers("k")
    assert (close, forget.name) == (sk.Timer(at(8.999999), "close"), "forget")


@pytest.mark.parametrize("window", [sk.tumbling("10 s"), sk.session("5 s")])
def test_collected_windows_of_many_keys_fire_together_however_few_are_read_at_once(
    monkeypatch: pytest.MonkeyPatch, window: Window
) -> None:
    monkeypatch.setattr("statekit.job.windows.window_columns.ROWS_AT_ONCE", 3)
    harness = Harness(process_of(windowed(window).collect("value")), 2)
    keys = [f"k{number}" for number in range(20)]
    harness.send(*(Event(key, at(second), second) for second in (1, 12, 2) for key in keys))
    found = harness.send()
    assert sorted(map(tuple, found)) == [
        (key, at(0 if "tumbling" in str(window) else 1), found[0].end, [1, 2])
        for key in sorted(keys)
    ]
    assert not any(harness.timers(key) for key in keys)
    assert harness.state("elements", "k0") == {(at(12), 2): 12}, "only those of its window are gone"
    assert harness.state("number", "k0") == 3
    assert len(harness.advance_watermark(at(30))) == len(keys)
    assert is_empty(harness)


def test_a_late_update_comes_once_per_epoch_and_the_window_then_goes() -> None:
    harness = Harness(
        process_of(windowed(sk.tumbling("10 s"), allowed_lateness="5 s").sum("value"))
    )
    harness.send(event(1, 1), event(2, 2))
    harness.send(event(15, 0))
    assert seen(harness.send(event(10.5, 0))) == [(0, 10, 3)]
    assert late(harness) == 0, "the watermark is at 10, and 10.5 is not late"

    harness = Harness(
        process_of(windowed(sk.tumbling("10 s"), allowed_lateness="8 s").sum("value"))
    )
    harness.send(event(1, 1), event(13, 0))
    assert seen(harness.send(event(6, 5), event(7, 5), event(8, 5))) == [(0, 10, 16)]
    assert seen(harness.send(event(9, 1), event(5, 1))) == [(0, 10, 17)], "5 is at the watermark"
    assert late(harness) == 1
    assert harness.send() == []
    assert harness.advance_watermark(at(9.999999)) == []
    assert harness.state("windows", "k") == {at(10): 0}, "the first window is gone"


def test_a_window_that_closed_in_an_epoch_before_takes_late_records_in_the_next() -> None:
    """The watermark is exactly where the window closed, and has not moved since."""
    for window in (sk.tumbling("10 s"), sk.session("8 s")):
        harness = collected(window, lateness="30 s", allowed_lateness="8 s")
        harness.send(*events(2))
        assert seen(harness.advance_watermark(at(1.999999))) == [(*bounds(window), [2])]
        assert [out.value for out in harness.send(*events(2))] == [[2, 2]]


def bounds(window: Window) -> tuple[float, float]:
    return (2, 10) if isinstance(window, Session) else (0, 10)


def test_a_window_whose_first_record_is_late_fires_at_once() -> None:
    harness = collected(sk.tumbling("10 s"), allowed_lateness="50 s")
    harness.send(event(55, 55, "other"))
    assert seen(harness.send(*events(6, 7))) == [(0, 10, [6, 7])]
    assert seen(harness.send(*events(8))) == [(0, 10, [6, 7, 8])]


def test_records_later_than_allowed_are_a_stream() -> None:
    job = sk.Job("late")
    windows = job.source("events", Event).window(
        sk.tumbling("10 s"), key="key", event_time="at", lateness="2 s", allowed_lateness="3 s"
    )
    counts = windows.count(name="counts")
    counts.sink("out")
    counts.late.sink("late")
    run_ = job.run({"events": events(1, 20, 15, 16)}, epoch_size=1)
    assert run_.outputs["late"] == events(15)
    assert seen(run_.outputs["out"]) == [(0, 10, 1), (10, 20, 1), (20, 30, 1)]


def test_windows_come_out_of_results_of_windows() -> None:
    """Minutes of seconds: what a window puts out is in time for the next, by its end."""
    job = sk.Job("chain")
    seconds = job.source("events", Event).window(
        sk.tumbling("10 s"), key="key", event_time="at", lateness="5 s"
    )
    totals = seconds.sum("value", into=Total)
    totals.window(sk.tumbling("60 s"), key="key", event_time="start", lateness="10 s").max(
        "value"
    ).sink("out")
    totals.window(sk.tumbling("60 s"), key="key", event_time="end").count().sink("by-end")
    given = [event(n, n) for n in range(1, 150)]
    for size in (1, 7, 1000):
        found = job.run({"events": given}, epoch_size=size, parallelism=2)
        assert seen(found.outputs["out"]) == [(0, 60, 545), (60, 120, 1145), (120, 180, 1445)]
        assert seen(found.outputs["by-end"]) == [(0, 60, 5), (60, 120, 6), (120, 180, 4)]


class Total(NamedTuple):
    key: str
    start: dt.datetime
    end: dt.datetime
    value: int


def test_ordered_windows_show_each_record_in_order_of_time() -> None:
    windows = windowed(sk.tumbling("10 s"), lateness="20 s", emit="change", ordered=True)
    harness = Harness(process_of(windows.collect("value")))
    assert harness.send(*events(7, 3, 12, 5)) == []
    assert [out.value for out in harness.advance_watermark(at(30))] == [
        [3],
        [3, 5],
        [3, 5, 7],
        [12],
    ]
    assert is_empty(harness)


@pytest.mark.parametrize("window", [sk.tumbling("10 s"), sk.session("10 s")], ids=["fixed", "gap"])
def test_ordered_windows_include_their_last_microsecond(window: Window) -> None:
    harness = collected(window, ordered=True)
    harness.send(event(0, 1), event(9.999999, 2), event(30, 0))
    found = harness.advance_watermark(at(40))
    assert [out.value for out in found] == [[1, 2], [0]]


# ------------------------------------------------------------------------------------ ends of time


def test_windows_at_the_minimum_timestamp_fire_when_they_are_complete() -> None:
    harness = collected(sk.tumbling("1 h"), lateness="1 day", allowed_lateness="30 days")
    assert harness.send(Event("k", FIRST + after(1), 1)) == []
    assert harness.send(Event("k", FIRST + after(2), 2)) == []
    found = harness.send(Event("k", FIRST + dt.timedelta(40), 3)) + harness.send()
    assert [(out.start, out.value) for out in found] == [(FIRST, [1, 2])]


@pytest.mark.parametrize(
    "window",
    [
        sk.tumbling("1 week"),
        sk.tumbling("1 h", "30 min"),
        sk.sliding("3 days", "1 day"),
        sk.session("1 day"),
    ],
    ids=["week", "hour", "sliding", "session"],
)
@pytest.mark.parametrize("allowed", ["0 s", "1 s", "30 days"])
def test_the_first_and_the_last_instant_are_in_windows(window: Window, allowed: str) -> None:
    harness = collected(window, allowed_lateness=allowed)
    found = harness.send(Event("k", FIRST, 1), Event("k", FIRST + after(1), 2))
    found += harness.send(Event("k", at(-1.5), 3))
    found += harness.send(Event("k", LAST - after(1), 4))
    found += harness.send(Event("k", LAST, 5))
    found += harness.send() if allowed == "0 s" else harness.advance_watermark(LAST)
    assert is_empty(harness)
    assert [out.value for out in found if out.start == FIRST] == [[1, 2]]
    assert [out.value for out in found if out.end == LAST][-1][-1] == 5
    assert [4, 5] in [out.value for out in found]
    once = {(out.start, out.end): out.value for out in found}
    assert {n for value in once.values() for n in value} == {1, 2, 3, 4, 5}
    assert len(once) == len(found)


@pytest.mark.parametrize(
    "window", [sk.tumbling("1 week"), sk.session("1 day")], ids=["week", "session"]
)
def test_the_last_windows_fire_at_the_last_instant(window: Window) -> None:
    harness = collected(window)
    harness.send(Event("k", LAST - after(1), 1))
    assert harness.advance_watermark(LAST - dt.timedelta(microseconds=1)) == []
    harness.send(Event("k", LAST, 2))
    assert [out.value for out in harness.send()] == [[1, 2]]


def test_the_last_session_has_a_row_of_its_own() -> None:
    harness = collected(sk.session("1 day"))
    harness.send(Event("k", LAST - after(36 * 3600), 1), Event("k", LAST - after(11 * 3600), 2))
    found = harness.advance_watermark(LAST)
    assert [(out.end, out.value) for out in found] == [(LAST - after(12 * 3600), [1]), (LAST, [2])]


def test_of_sliding_windows_that_would_begin_before_the_year_one_the_latest_is_cut_off() -> None:
    harness = collected(sk.sliding("3 days", "1 day"))
    harness.send(Event("k", FIRST + after(3600), 1))
    found = harness.advance_watermark(at(0))
    assert [(out.start, out.end) for out in found] == [(FIRST, FIRST + dt.timedelta(3))]
    harness = collected(sk.sliding("14 days", "7 days"))  # 1970 did not begin on a Monday
    harness.send(Event("k", FIRST, 1), Event("k", FIRST + dt.timedelta(8), 2))
    found = harness.advance_watermark(at(0))
    third = FIRST + dt.timedelta(3)
    assert [(out.start, out.end, out.value) for out in found] == [
        (FIRST, FIRST + dt.timedelta(10), [1, 2]),
        (third, third + dt.timedelta(14), [2]),
    ]


def test_windows_before_1970_begin_at_or_before_their_records() -> None:
    harness = collected(sk.tumbling("10 s"))
    harness.send(*events(-15, -10, -1), event(-0.5, 7))
    assert seen(harness.advance_watermark(at(0))) == [(-20, -10, [-15]), (-10, 0, [-10, -1, 7])]


def test_an_offset_moves_the_windows() -> None:
    harness = collected(sk.tumbling("1 day", offset="30 h"))
    harness.send(*events(6 * 3600, 6 * 3600 - 1))
    found = harness.advance_watermark(at(10**6))
    assert [(start / 3600, end / 3600) for start, end, _ in seen(found)] == [(-18, 6), (6, 30)]
    assert sk.tumbling("1 day", offset="500000 weeks") != sk.tumbling("1 day")
    harness = collected(sk.tumbling("1 day", offset="500000 weeks 6 h"), emit="change")
    assert seen(harness.send(*events(7 * 3600))) == [(6 * 3600, 30 * 3600, [7 * 3600])]


def test_windows_of_times_in_other_zones_are_in_utc() -> None:
    zone = dt.timezone(dt.timedelta(hours=-5))
    harness = collected(sk.tumbling("1 day"), emit="change")
    (found,) = harness.send(Event("k", dt.datetime(2026, 3, 7, 20, tzinfo=zone), 1))
    assert repr(found.start) == repr(dt.datetime(2026, 3, 8, tzinfo=dt.UTC))


# ----------------------------------------------------------------------------------------- results


@dataclasses.dataclass
class Reading:
    room: str
    floor: int
    at: dt.datetime
    celsius: float | None = None
    price: decimal.Decimal = decimal.Decimal("0.10")
    took: dt.timedelta = dt.timedelta(seconds=1)
    seen_on: dt.date = dt.date(2026, 1, 1)
    name: str = "x"
    good: bool = True


def readings(how: str, field: str, given: list[Reading], window: Window) -> list[Any]:
    options = {"key": ("room", "floor"), "lateness": "100 s"}
    stream = getattr(windowed(window, Reading, **options), how)(field)
    harness = Harness(process_of(stream), parallelism=2)
    harness.send(*given)
    harness.send(*given[:0])
    return harness.advance_watermark(at(1000))


@pytest.mark.parametrize("window", [sk.tumbling("10 s"), sk.session("5 s")], ids=["fixed", "gap"])
def test_none_is_passed_over_and_a_window_of_nothing_else_has_none(window: Window) -> None:
    given = [
        Reading("a", 1, at(1), None),
        Reading("a", 1, at(2), 20.5),
        Reading("a", 1, at(3), None),
        Reading("a", 1, at(4), 0.5),
        Reading("a", 1, at(11), None),
        Reading("a", 2, at(1), 7.0),
    ]
    for how, results in (
        ("sum", [21.0, None, 7.0]),
        ("min", [0.5, None, 7.0]),
        ("max", [20.5, None, 7.0]),
        ("mean", [10.5, None, 7.0]),
        ("collect", [[20.5, 0.5], [], [7.0]]),
    ):
        found = readings(how, "celsius", given, window)
        found.sort(key=lambda out: (out.floor, out.start))
        assert [out.celsius for out in found] == results


def test_sums_and_extremes_of_every_type_keep_it() -> None:
    one = Reading("a", 1, at(1))
    two = Reading(
        "a",
        1,
        at(2),
        1.0,
        decimal.Decimal("0.20"),
        dt.timedelta(seconds=2),
        dt.date(2026, 1, 2),
        "y",
        False,
    )
    window = sk.tumbling("10 s")
    sums = {"price": decimal.Decimal("0.30"), "took": dt.timedelta(seconds=3), "floor": 2}
    for field, wanted in sums.items():
        if field != "floor":
            (out,) = readings("sum", field, [one, two], window)
            assert getattr(out, field) == wanted
    (out,) = readings("mean", "price", [one, two], window)
    assert out.price == decimal.Decimal("0.15")
    assert type(out.price) is decimal.Decimal
    for field in ("price", "took", "seen_on", "name", "good", "at"):
        values = [getattr(one, field), getattr(two, field)]
        for how, extreme in (("min", min), ("max", max)):
            (out,) = readings(how, field, [one, two], window)
            assert getattr(out, field) == extreme(values)


def test_results_have_columns_of_the_right_types() -> None:
    windows = windowed(sk.tumbling("10 s"), Reading, key=("room", "floor"))
    cases: list[tuple[Callable[[], sk.Stream[Any]], str]] = [
        (lambda: windows.sum("celsius"), "celsius: double"),
        (lambda: windows.max("price"), "price: decimal128(38, 18) not null"),
        (lambda: windows.mean("celsius"), "celsius: double"),
        (lambda: windows.mean("price"), "price: decimal128(38, 18) not null"),
        (lambda: windows.count(), "count: int64 not null"),
        (lambda: windows.collect("celsius"), "celsius: list<element: double not null> not null"),
    ]
    for stream, columns in cases:
        output = process_of(stream()).output_type
        assert output is not None
        text = output.arrow_schema.to_string()
        assert text.splitlines()[:4] == [
            "room: string not null",
            "floor: int64 not null",
            "start: timestamp[us, tz=UTC] not null",
            "end: timestamp[us, tz=UTC] not null",
        ]
        assert text.splitlines()[4] == columns


def test_default_names_of_operators_describe_them() -> None:
    windows = windowed(sk.tumbling("10 s"), Reading, key=("room", "floor"))
    made = [windows.count(), windows.sum("celsius"), windows.collect(), windows.collect("name")]
    assert [stream.name for stream in made] == [
        "count_by_room_floor",
        "sum_celsius_by_room_floor",
        "collect_by_room_floor",
        "collect_name_by_room_floor",
    ]
    assert windows.max("celsius", name="hottest").name == "hottest"
    with pytest.raises(sk.StateTypeError, match="same name as operator 'count_by_room_floor'"):
        windows.count()


def test_records_are_collected_in_order_of_time() -> None:
    harness = Harness(process_of(windowed(sk.tumbling("10 s")).collect()))
    harness.send(event(5, 1), event(2, 2), event(5, 3))
    (found,) = harness.advance_watermark(at(20))
    assert found.records == [event(2, 2), event(5, 1), event(5, 3)]
    assert is_empty(harness)


class Totals(TypedDict):
    key: str
    start: dt.datetime
    value: int


class Struct(msgspec.Struct, kw_only=True):
    value: float | None
    key: str


class Model(pydantic.BaseModel):
    end: dt.datetime
    value: int
    note: str = "none"


@pytest.mark.parametrize(
    ("into", "wanted"),
    [
        (Total, Total("k", at(0), at(10), 7)),
        (Totals, {"key": "k", "start": at(0), "value": 7}),
        (Struct, Struct(value=7, key="k")),
        (Model, Model(end=at(10), value=7)),
    ],
)
def test_results_are_records_of_the_class_that_is_given(into: Any, wanted: Any) -> None:
    harness = Harness(process_of(windowed(sk.tumbling("10 s")).sum("value", into=into)))
    harness.send(event(1, 3), event(2, 4))
    assert harness.advance_watermark(at(10)) == [wanted]


def test_typed_results_are_processed_further() -> None:
    @sk.process(key="key")
    def most(total: Total, best: sk.ValueState[int]) -> Iterator[str]:
        if total.value > (best.get() or 0):
            best.update(total.value)
            yield f"{total.key} has {total.value}"

    job = sk.Job("further")
    windows = job.source("events", Event).window(sk.tumbling("10 s"), key="key", event_time="at")
    windows.sum("value", into=Total).process(most).sink("out")
    given = [event(1, 3), event(11, 2), event(21, 4)]
    assert job.run({"events": given}).outputs["out"] == ["k has 3", "k has 4"]


class Absent(TypedDict, total=False):
    key: str
    at: dt.datetime
    value: int


def test_a_key_that_a_dict_does_not_have_is_none() -> None:
    harness = Harness(process_of(windowed(sk.tumbling("10 s"), Absent).sum("value")))
    harness.send({"key": "k", "at": at(1)}, {"key": "k", "at": at(2), "value": 5})
    assert seen(harness.advance_watermark(at(20))) == [(0, 10, 5)]


@pytest.mark.parametrize("window", [sk.tumbling("10 s"), sk.session("5 s")], ids=["fixed", "gap"])
@pytest.mark.parametrize("how", ["count", "collect", "aggregate"])
def test_a_pickled_window_has_the_same_results(window: Window, how: str) -> None:
    declared = process_of(result_of(windowed(window), how))
    copy = cloudpickle.loads(cloudpickle.dumps(declared))
    outputs = []
    for process in (declared, copy):
        harness = Harness(process)
        harness.send(event(1, 3), event(2, 4))
        outputs.append([tuple(out) for out in harness.advance_watermark(at(20))])
    assert outputs[0] == outputs[1] != []


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "window", [sk.sliding("10 s", "4 s"), sk.session("5 s")], ids=["at", "gap"]
)
def test_open_windows_survive_another_parallelism(
    window: Window, backend: Backend, tmp_path: Path
) -> None:
    declared = process_of(windowed(window, lateness="20 s").collect("value"))
    given = [event(n, n, key) for n in (1, 9, 3, 14) for key in "abcdef"]
    harness = Harness(declared, parallelism=3, backend=backend)
    harness.send(*given[:12])
    harness.crash()
    harness.send(*given[12:])
    harness.checkpoint(tmp_path / "checkpoint")
    wanted = sorted(harness.advance_watermark(at(100)))
    assert len(wanted) > 6
    for parallelism in (1, 5):
        restored = Harness.restore(
            declared, tmp_path / "checkpoint", parallelism=parallelism, backend=backend
        )
        assert sorted(restored.advance_watermark(at(100))) == wanted
        assert is_empty(restored)


# ---------------------------------------------------------------------------------------- refusals


def test_windows_that_cannot_be_are_refused() -> None:
    for make, problem in (
        (lambda: sk.tumbling("0 s"), "size='0 s': give more than nothing"),
        (lambda: sk.tumbling("often"), "size='often': give a timedelta or a text"),
        (lambda: sk.tumbling("1 h", offset="-1 h"), "offset='-1 h'"),
        (lambda: sk.sliding("1 h", "0 s"), "every='0 s': give more than nothing"),
        (lambda: sk.sliding("1 h", "2 h"), "every='2 h' is more than size='1 h'"),
        (lambda: sk.sliding("285 weeks", "1 s"), r"would be in 172,368,000 windows, and 10,000"),
        (lambda: sk.session("0 s"), "gap='0 s': give more than nothing"),
        (lambda: sk.session(dt.timedelta(-1)), "gap="),
        (lambda: sk.session("1 h", at_most="59 min"), "each session would end before its gap"),
        (lambda: sk.session("1 h", at_most="0 s"), "at_most='0 s': give more than nothing"),
    ):
        with pytest.raises(sk.StateTypeError, match=problem):
            make()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"window": "1 h"}, "'1 h' is no window: give tumbling"),
        ({"emit": "often"}, 'emit=\'often\': use "close" or "change"'),
        ({"key": "other"}, r"'other' is not a field of Event \(it has key, at, value\)"),
        ({"key": (), "ordered": True}, "windows over all records are combined"),
        ({"key": ("key", "key")}, "must name different fields"),
        ({"event_time": "when"}, "'when' is not a field of Event"),
        ({"event_time": "value"}, "it must be a datetime"),
        ({"lateness": "-1 s"}, "lateness='-1 s'"),
        ({"allowed_lateness": "x"}, "allowed_lateness='x'"),
        ({"allowed_lateness": dt.timedelta(365_001)}, "from 0 to 285 years"),
        ({"allowed_lateness": dt.timedelta.max}, "from 0 to 285 years"),
        ({"lateness": "110000 days"}, "'110000 days': give a duration from 0 to 285 years"),
        ({"lateness": "9999999999 days"}, "from 0 to 285 years"),
        ({"ordered": True, "allowed_lateness": "1 s"}, "has no effect: add it to lateness="),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(sk.StateTypeError, match=problem):
        windowed(options.pop("window", sk.tumbling("1 h")), **options).count()


class Start(NamedTuple):
    key: str
    at: dt.datetime
    start: int
    odd: int | str


class Wrong(NamedTuple):
    key: str
    start: dt.datetime
    value: str


class Warm(NamedTuple):
    room: str
    celsius: float


class More(NamedTuple):
    key: str
    weight: float


@pytest.mark.parametrize(
    ("ask", "problem"),
    [
        (lambda w: w.sum("other"), "'other' is not a field of Event"),
        (lambda w: w.sum("key"), r"sum\('key'\): the field is str: give one that is int, float"),
        (lambda w: w.sum("value", into=Wrong), "its field 'value' is str, and gets int"),
        (lambda w: w.sum("value", into=More), "there is nothing for its field 'weight'"),
        (lambda w: w.sum("value", into=dict), "into=dict has no fields"),
        (lambda w: w.sum("value", into=int), "int is not a record type"),
        (
            lambda w: w.aggregate(
                result=sk.OwnAggregate(cast("Any", sum), accumulator=int, result=int)
            ),
            "takes an Aggregate",
        ),
        (
            lambda w: w.aggregate(
                result=sk.OwnAggregate(
                    sk.Aggregate(int, max, int), accumulator=int, result=int, field="value"
                )
            ),
            r"sessions merge .*: give Aggregate\(\.\.\., merge=\.\.\.\)",
        ),
        (
            lambda w: w.aggregate(
                result=sk.OwnAggregate(mean_text(), accumulator=object, result=str, field="value")
            ),
            "aggregate_by_key, parameter 'windows'",
        ),
        (
            lambda w: w.aggregate(
                **{"a-b": sk.OwnAggregate(mean_text(), accumulator=list[int], result=str)},
                name="a-b",
            ),
            "cannot emit a NamedTuple",
        ),
    ],
)
def test_results_that_cannot_be_are_refused(
    ask: Callable[[Windowed[Any]], Any], problem: str
) -> None:
    with pytest.raises(sk.StateTypeError, match=problem):
        ask(windowed(sk.session("1 h")))


def test_records_without_the_right_fields_are_refused() -> None:
    with pytest.raises(sk.StateTypeError, match="annotate the source with a NamedTuple"):
        windowed(sk.tumbling("1 h"), dict)
    with pytest.raises(sk.StateTypeError, match=r"'celsius' is float, and gets float \| None"):
        windowed(sk.tumbling("1 h"), Reading, key="room").sum("celsius", into=Warm)
    windows = windowed(sk.tumbling("1 h"), Start)
    with pytest.raises(
        sk.StateTypeError, match=r"two of them with one name: give .*, or rename the field of Start"
    ):
        windows.sum("start")
    with pytest.raises(sk.StateTypeError, match=r"the field is int \| str"):
        windows.max("odd")

    @sk.process(key="key")
    def numbers(event: Event) -> Iterator[int]:
        yield 1

    stream = sk.Job("none").source("events", Event).process(numbers)
    with pytest.raises(sk.StateTypeError, match=r"has int, which is not .*: there is nothing to w"):
        stream.window(sk.tumbling("1 h"), key="key", event_time="at")
    with pytest.raises(sk.StateTypeError, match=r"has int, .*: there is nothing to aggregate"):
        stream.aggregate(key="key", events=sk.Count())


# ----------------------------------------------------------------------------------- redefinition


def sales(window: Window, **options: Any) -> sk.Stream[Any]:
    windowed = (
        sk.Job("sales")
        .source("events", Event)
        .window(window, key="key", event_time="at", **options)
    )
    return windowed.sum("value", name="sales")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (lambda: sales(sk.tumbling("1 day")), r"window: tumbling 1:00:00 in .* tumbling 1 day"),
        (lambda: sales(sk.tumbling("1 h", "15 min")), "offset 0:15:00"),
        (lambda: sales(sk.sliding("1 h", "30 min")), "sliding 1:00:00 every 0:30:00"),
        (lambda: sales(sk.session("1 h")), "session 1:00:00"),
        (lambda: sales(sk.tumbling("1 h"), ordered=True), "ordered: False in"),
        (lambda: sales(sk.tumbling("1 h"), allowed_lateness="1 h"), "allowed_lateness: 0:00:00"),
        (lambda: sales(sk.tumbling("1 h"), emit="change"), "emit: close in"),
    ],
)
def test_windows_of_a_checkpoint_cannot_be_declared_in_another_way(
    changed: Callable[[], sk.Stream[Any]], said: str, tmp_path: Path
) -> None:
    harness = Harness(sales(sk.tumbling("1 h")))
    harness.send(Event("k", at(1), 5))
    harness.checkpoint(tmp_path / "checkpoint")
    with pytest.raises(sk.StateSchemaError, match=said):
        Harness.restore(changed(), tmp_path / "checkpoint")
    same = Harness.restore(sales(sk.tumbling("1 h"), lateness="5 min"), tmp_path / "checkpoint")
    assert [out.value for out in same.advance_watermark(at(3600))] == [5]


def test_a_sum_is_not_taken_for_a_maximum(tmp_path: Path) -> None:
    def run(what: str) -> None:
        job = sk.Job("sales")
        hours = job.source("events", Event).window(sk.tumbling("1 h"), key="key", event_time="at")
        getattr(hours, what)("value", name="hourly").sink("out")
        job.run({"events": [Event("k", at(1), 5)]}, checkpoint=tmp_path, drain=False)

    run("sum")
    with pytest.raises(sk.StateSchemaError, match=r"result: sum_value in .* max_value in the"):
        run("max")


def test_a_harness_takes_the_operator_of_a_window_and_nothing_that_is_none() -> None:
    harness = Harness(sales(sk.tumbling("1 h")), parallelism=2)
    assert harness.send(Event("k", at(1), 5), Event("k", at(2), 6)) == []
    assert [out.value for out in harness.advance_watermark(at(3600))] == [11]
    source = sk.Job("none").source("events", Event)
    for wrong in (source, sk.Job("none")):
        with pytest.raises(sk.StateTypeError, match="a Harness drives a function decorated"):
            Harness(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("window", [sk.tumbling("10 s"), sk.session("5 s")], ids=["fixed", "gap"])
def test_an_error_of_a_result_names_the_key(window: Window) -> None:
    failing: sk.Aggregate[int, list[int], int] = sk.Aggregate(
        list,
        lambda held, value: [*held, value],
        lambda held: 10 // held[0],
        lambda one, other: one + other,
    )
    stream = windowed(window).aggregate(
        result=sk.OwnAggregate(failing, accumulator=list[int], result=int, field="value")
    )
    harness = Harness(process_of(stream))
    harness.send(*(Event(key, at(1), value) for key, value in (("a", 1), ("b", 0), ("c", 2))))
    with pytest.raises(sk.ProcessError, match=r"at key 'b'.*ZeroDivisionError.*of many keys"):
        harness.advance_watermark(at(100))
