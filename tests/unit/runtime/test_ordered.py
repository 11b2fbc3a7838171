"""With `ordered=True` results do not depend on arrival, on epochs, on shards or on crashes."""

from __future__ import annotations

import datetime as dt
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import statekit as sk
from statekit.checkpoint.job_file import WAITING
from statekit.keygroup import key_group
from statekit.state import base
from statekit.state import event_time_buffer as ordered
from statekit.testing import Harness
from tests.support.instants import at

Backend = Literal["memory", "rocksdb"]
BACKENDS: list[Backend] = ["memory", "rocksdb"]
LATENESS = 10


class Event(NamedTuple):
    key: str
    at: dt.datetime
    value: int


class Seen(NamedTuple):
    key: str
    what: str
    seconds: int
    history: str
    watermark: int


def event(key: str, seconds: float, value: int = 0) -> Event:
    return Event(key, at(seconds), value)


@sk.process(key="key", event_time="at", lateness=dt.timedelta(seconds=LATENESS), ordered=True)
def follow(event: Event, ctx: sk.Context, history: sk.ValueState[str]) -> Iterator[Seen]:
    """Each output tells all that the key has seen so far, so any other order shows."""
    seconds = int(event.at.timestamp())
    history.update(f"{history.get() or ''} {seconds}:{event.value}")
    ctx.timers.set(event.at + dt.timedelta(seconds=event.value))
    if event.value == 7:
        ctx.timers.set(at(0), "past")
    yield Seen(event.key, "record", seconds, history.get() or "", int(ctx.watermark.timestamp()))


@follow.on_timer
def rang(timer: sk.Timer, ctx: sk.Context[str], history: sk.ValueState[str]) -> Iterator[Seen]:
    seconds = int(timer.at.timestamp())
    history.update(f"{history.get() or ''} !{seconds}")
    if seconds % 5 == 0:
        ctx.timers.set(timer.at + dt.timedelta(seconds=1), "next")
    yield Seen(ctx.key, timer.name, seconds, history.get() or "", int(ctx.watermark.timestamp()))


def expected(events: list[Event]) -> dict[str, list[tuple[str, int, str]]]:
    """The same over plain lists: sorted by time, timers first."""
    found: dict[str, list[tuple[str, int, str]]] = {}
    for key in {event.key for event in events}:
        records = sorted(
            (int(e.at.timestamp()), follow.ordered.encode(e), e)  # type: ignore[union-attr]
            for e in events
            if e.key == key
        )
        timers: set[tuple[int, str]] = set()
        history, out = "", []
        while records or timers:
            soonest = min(timers, default=None)
            if soonest is not None and (not records or soonest[0] <= records[0][0]):
                timers.remove(soonest)
                seconds, name = soonest
                history += f" !{seconds}"
                if seconds % 5 == 0:
                    timers.add((seconds + 1, "next"))
                out.append((name, seconds, history))
                continue
            seconds, _, record = records.pop(0)
            history += f" {seconds}:{record.value}"
            timers.add((seconds + record.value, "default"))
            if record.value == 7:
                timers.add((0, "past"))
            out.append(("record", seconds, history))
        found[key] = out
    return found


def by_key(outputs: list[Seen]) -> dict[str, list[tuple[str, int, str]]]:
    found: dict[str, list[tuple[str, int, str]]] = defaultdict(list)
    latest: dict[str, int] = defaultdict(int)
    for out in outputs:
        latest[out.key] = max(latest[out.key], out.seconds)
        assert out.watermark == latest[out.key], "time is that of what is handled"
        found[out.key].append((out.what, out.seconds, out.history))
    return dict(found)


EVENTS = st.lists(
    st.builds(event, st.sampled_from("abcd"), st.integers(1, 60), st.integers(0, 9)), max_size=25
)


class Arrival(NamedTuple):
    """How the same events come in: who is delayed how much, where epochs end, what happens."""

    delays: list[int]
    cuts: list[int]
    parallelism: int
    crashes: list[bool]


ARRIVALS = st.builds(
    Arrival,
    st.lists(st.integers(0, LATENESS - 1), min_size=25, max_size=25),
    st.lists(st.integers(1, 6), min_size=25, max_size=25),
    st.integers(1, 5),
    st.lists(st.booleans(), min_size=25, max_size=25),
)


def run(events: list[Event], arrival: Arrival, backend: Backend) -> list[Seen]:
    pairs = zip(events, arrival.delays, strict=False)
    delayed = [(e.at.timestamp() + delay, n, e) for n, (e, delay) in enumerate(pairs)]
    waiting = [e for _, _, e in sorted(delayed)]
    harness = Harness(follow, parallelism=arrival.parallelism, backend=backend)
    outputs: list[Seen] = []
    for size, crashes in zip(arrival.cuts, arrival.crashes, strict=True):
        outputs += harness.send(*waiting[:size])
        waiting = waiting[size:]
        if crashes:
            harness.crash()
    outputs += harness.send(*waiting)
    last = harness._runner.coordinator.last
    assert last is not None
    assert last.operators["follow"].late_so_far == 0
    outputs += harness.advance_watermark(at(1000))
    shards = harness._runner.coordinator.last.operators["follow"].shards  # type: ignore[union-attr]
    assert all(not shard.rows.get(name) for shard in shards for name in (WAITING, "_timers"))
    assert all(not shard.wake_us for shard in shards)
    return outputs


@settings(max_examples=60, deadline=None)
@given(EVENTS, ARRIVALS)
def test_results_are_those_of_plain_python_whatever_the_arrival(
    events: list[Event], arrival: Arrival
) -> None:
    assert by_key(run(events, arrival, "memory")) == expected(events)


@settings(max_examples=10, deadline=None)
@given(EVENTS, ARRIVALS)
def test_the_same_on_rocksdb(events: list[Event], arrival: Arrival) -> None:
    assert by_key(run(events, arrival, "rocksdb")) == expected(events)


@settings(max_examples=40, deadline=None)
@given(EVENTS, ARRIVALS, st.integers(2, 4))
def test_the_same_in_slices_and_batches_of_a_few_rows(
    events: list[Event], arrival: Arrival, size: int
) -> None:
    kept = ordered.DUE_MAX, base.PENDING_ROWS_MAX
    ordered.DUE_MAX, base.PENDING_ROWS_MAX = size, size
    try:
        assert by_key(run(events, arrival, "memory")) == expected(events)
    finally:
        ordered.DUE_MAX, base.PENDING_ROWS_MAX = kept


@pytest.mark.parametrize("backend", BACKENDS)
def test_buffered_records_survive_another_parallelism(backend: Backend, tmp_path: Path) -> None:
    events = [event(key, seconds, seconds % 4) for seconds in range(1, 9) for key in "abcdef"]
    harness = Harness(follow, parallelism=3, backend=backend)
    assert harness.send(*reversed(events)) == []
    harness.checkpoint(tmp_path / "checkpoint")
    for parallelism in (1, 5):
        restored = Harness.restore(
            follow, tmp_path / "checkpoint", parallelism=parallelism, backend=backend
        )
        assert by_key(restored.advance_watermark(at(100))) == expected(events)


def test_equal_records_are_all_handled() -> None:
    harness = Harness(follow)
    harness.send(event("a", 5, 1), event("a", 5, 1))
    harness.send(event("a", 5, 1))
    found = [out.what for out in harness.advance_watermark(at(5))]
    assert found == ["record"] * 3


def test_late_records_are_not_buffered() -> None:
    harness = Harness(follow)
    harness.send(event("a", 50))
    harness.send(event("a", 40), event("a", 41))
    assert [out.seconds for out in harness.advance_watermark(at(49))] == [41, 41]
    last = harness._runner.coordinator.last
    assert last is not None
    assert last.operators["follow"].late_so_far == 1
    assert sum(shard.rows[WAITING] for shard in last.operators["follow"].shards) == 1


def test_a_run_in_one_process_handles_all_records_in_order() -> None:
    job = sk.Job("ordered")
    job.source("events", Event).process(follow).sink("out")
    events = [event("a", seconds, seconds % 4) for seconds in (3, 1, 2, 9, 5)]
    for size in (1, 2, 5):
        out = job.run({"events": events}, epoch_size=size).outputs["out"]
        assert by_key(out) == expected(events)


def test_processing_time_timers_ring_beside_it() -> None:
    @sk.process(key="key", event_time="at", ordered=True)
    def both(event: Event, ctx: sk.Context, count: sk.ValueState[int]) -> Iterator[str]:
        count.update((count.get() or 0) + 1)
        ctx.timers.replace(ctx.processing_time + dt.timedelta(seconds=5), clock="processing")
        yield "record"

    @both.on_timer
    def ring(timer: sk.Timer, ctx: sk.Context, count: sk.ValueState[int]) -> Iterator[str]:
        if timer.name == "default":
            ctx.timers.set(ctx.watermark, "at-once")
        yield f"{timer.name} after {count.get()}"

    harness = Harness(both)
    harness.send(event("a", 1), event("a", 2))
    assert harness.advance_watermark(at(10)) == ["record", "record"]
    assert harness.advance_processing_time(at(4)) == []
    found = harness.advance_processing_time(at(5))
    assert found == ["default after 2", "at-once after 2"]
    assert harness.timers("a") == []


def test_a_timer_that_is_left_for_the_next_slice_belongs_to_its_own_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One key has a timer that is due behind the slice; the next one sets the same."""
    monkeypatch.setattr(ordered, "DUE_MAX", 2)

    @sk.process(key="key", event_time="at", ordered=True)
    def reminding(event: Event, ctx: sk.Context) -> Iterator[str]:
        if event.value:
            ctx.timers.set(at(event.value))
        yield from ()

    @reminding.on_timer
    def remind(timer: sk.Timer, ctx: sk.Context[str]) -> Iterator[str]:
        yield ctx.key

    first, second = sorted(_keys_of_one_group(2))
    harness = Harness(reminding)
    harness.send(event(first, 1, 5))
    assert harness.send(event(first, 2), event(second, 3, 5)) == []
    assert sorted(harness.advance_watermark(at(10))) == [first, second]


def _keys_of_one_group(count: int) -> list[str]:
    by_group: dict[int, list[str]] = defaultdict(list)
    for number in range(1000):
        keys = by_group[key_group(f"k{number:03d}")]
        keys.append(f"k{number:03d}")
        if len(keys) == count:
            return keys
    raise AssertionError("more keys than that are needed")


def test_records_that_cannot_be_buffered_are_refused() -> None:
    with pytest.raises(sk.StateTypeError, match="say which field has the event_time"):
        sk.process(key="key", ordered=True)
    with pytest.raises(sk.StateTypeError, match="dict does not declare their fields"):

        @sk.process(key="key", event_time="at", ordered=True)
        def plain(record: dict[str, Any]) -> None: ...

    harness = Harness(follow)
    with pytest.raises(sk.ProcessError, match="cannot be buffered in state"):
        harness.send(event("a", 1), event("a", 1, 2**80))
    assert harness.epoch is None


def test_buffered_records_of_another_type_are_refused_at_start() -> None:
    class Other(NamedTuple):
        key: str
        at: dt.datetime
        value: str

    @sk.process(key="key", event_time="at", ordered=True)
    def follow_other(event: Other) -> None: ...

    @sk.process(key="key", event_time="at")
    def unordered(event: Event) -> None: ...

    def job(declared: Any, record: type) -> sk.Job:
        made = sk.Job("waits")
        made.source("events", record).process(declared, name="op")
        return made

    @sk.process(key="key", event_time="at", ordered=True)
    def first(event: Event) -> None: ...

    with tempfile.TemporaryDirectory() as place:
        job(first, Event).run({"events": [event("a", 1)]}, checkpoint=place, drain=False)
        for declared, record, problem in (
            (follow_other, Other, "changed their type"),
            (unordered, Event, "no longer ordered"),
        ):
            with pytest.raises(sk.StateSchemaError, match=problem):
                job(declared, record).run({"events": []}, checkpoint=place)


def test_buffered_records_read_as_a_type_with_more_fields(tmp_path: Path) -> None:
    class More(NamedTuple):
        key: str
        at: dt.datetime
        value: float
        note: str = "none"

    def run(record: type, given: list[Any], *, drain: bool) -> list[Any]:
        def pass_on(event: Any) -> Iterator[Any]:
            yield event

        pass_on.__annotations__ = {"event": record, "return": Iterator[record]}  # type: ignore[valid-type]
        declared: Any = sk.process(key="key", event_time="at", ordered=True)(pass_on)
        job = sk.Job("waits")
        job.source("events", record).process(declared, name="op").sink("out")
        return job.run({"events": given}, checkpoint=tmp_path, drain=drain).outputs["out"]

    first = event("a", 1)
    assert run(Event, [first], drain=False) == []
    assert run(More, [first], drain=True) == [More("a", first.at, float(first.value))]


@sk.process(key="key", event_time="at", lateness=dt.timedelta(seconds=LATENESS), ordered=True)
def passed_on(event: Event) -> Iterator[str]:
    yield event.key


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("others", [[], [event("b", 100)]])
def test_a_record_at_the_first_instant_of_all_is_handled(
    parallelism: int, others: list[Event]
) -> None:
    first = Event("a", dt.datetime.min.replace(tzinfo=dt.UTC), 1)
    harness = Harness(passed_on, parallelism)
    emitted = harness.send(first, *others) + harness.send() + harness.advance_watermark(at(200))
    assert sorted(emitted) == sorted(["a", *(other.key for other in others)])
