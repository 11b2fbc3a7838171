"""Event time: watermarks, late records, and what other systems' users expect of timers.

The ids are those of the case collection: `SP` Spark, `B` Beam.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pydantic
import pytest

import statekit as sk
from statekit.checkpoint.repository import Repository
from statekit.runtime.coordinator import Coordinator
from statekit.runtime.local import LocalRunner
from statekit.testing import Harness
from statekit.timestamp import MAX_MICROS
from statekit.watermark import BEGINNING, END, advanced, is_late
from statekit.working_copy.copies import MemoryCopies
from tests.support.instants import after, at

Backend = Literal["memory", "rocksdb"]
BACKENDS: list[Backend] = ["memory", "rocksdb"]


class Event(NamedTuple):
    key: str
    at: dt.datetime
    value: str = ""


def event(key: str, seconds: float, value: str = "") -> Event:
    return Event(key, at(seconds), value)


def watermark(harness: Harness, operator: str) -> dt.datetime:
    last = harness._runner.coordinator.last
    assert last is not None
    micros = last.operators[operator].watermark_us
    assert micros is not None
    return at(micros / 1_000_000)


def late(harness: Harness, operator: str) -> int:
    last = harness._runner.coordinator.last
    assert last is not None
    return last.operators[operator].late_so_far


# ------------------------------------------------------------------------------------ watermark


def test_the_watermark_is_the_largest_event_time_less_the_lateness_and_never_goes_back() -> None:
    assert advanced(BEGINNING, None, 5) == BEGINNING
    assert advanced(BEGINNING, 100, 5) == 95
    assert advanced(95, 90, 5) == 95
    assert advanced(95, END, 5) == END
    assert advanced(95, MAX_MICROS, 5) == MAX_MICROS - 5, "a record at the last instant is no end"
    assert [is_late(time, 95) for time in (94, 95, 96)] == [True, True, False]


@sk.process(key="key", event_time="at", lateness="10 seconds")
def seen(event: Event, ctx: sk.Context, count: sk.ValueState[int]) -> Iterator[tuple[str, float]]:
    count.update((count.get() or 0) + 1)
    yield event.key, ctx.watermark.timestamp()


def test_the_watermark_follows_from_the_epochs_before_and_is_the_same_for_all_shards() -> None:
    harness = Harness(seen, parallelism=4)
    beginning = dt.datetime.min.replace(tzinfo=dt.UTC).timestamp()
    assert {mark for _, mark in harness.send(event("a", 20), event("b", 99))} == {beginning}
    found = harness.send(*(event(key, 100) for key in "abcdefgh"))
    assert {mark for _, mark in found} == {89}
    assert harness.send(event("a", 91)) == [("a", 90)]
    assert harness.send(event("a", 95)) == [("a", 90)], "it does not go back"


def test_a_record_at_the_watermark_is_late_and_counted() -> None:
    harness = Harness(seen)
    harness.send(event("a", 100))
    assert harness.send(event("a", 90), event("a", 89), event("b", 90.000001)) == [("b", 90)]
    assert late(harness, "seen") == 2
    assert harness.state("count", "a") == 1
    harness.send(event("a", 1))
    assert late(harness, "seen") == 3


def test_the_watermark_survives_a_crash_and_another_parallelism(tmp_path: Path) -> None:
    harness = Harness(seen, parallelism=2)
    harness.send(event("a", 100))
    harness.send()
    harness.crash()
    assert harness.send(event("a", 90), event("a", 91)) == [("a", 90)]
    harness.checkpoint(tmp_path / "checkpoint")
    restored = Harness.restore(seen, tmp_path / "checkpoint", parallelism=5)
    assert restored.send(event("a", 90), event("a", 92)) == [("a", 90)]
    assert late(restored, "seen") == 2


def test_years_one_and_9999_and_times_before_1970_are_times_like_others() -> None:
    @sk.process(key="key", event_time="at")
    def times(event: Event, ctx: sk.Context) -> Iterator[str]:
        ctx.timers.set(event.at)
        yield "record"

    @times.on_timer
    def ring(timer: sk.Timer, ctx: sk.Context) -> Iterator[str]:
        yield timer.at.isoformat()

    harness = Harness(times)
    first = dt.datetime.min.replace(tzinfo=dt.UTC)
    last = dt.datetime.max.replace(tzinfo=dt.UTC)
    assert harness.send(Event("a", first)) == ["record", first.isoformat()], "nothing is late yet"
    assert harness.send(Event("a", at(-1.5))) == ["record"]
    assert harness.send(Event("a", last)) == ["record", "1969-12-31T23:59:58.500000+00:00"]
    assert harness.send() == [last.isoformat()]


@pytest.mark.parametrize("lateness", [0, 30])
def test_a_record_at_the_last_instant_there_is_is_not_the_end(
    lateness: float, tmp_path: Path
) -> None:
    """It makes late what comes after it, like any other that is far ahead, and nothing more."""
    last = dt.datetime.max.replace(tzinfo=dt.UTC)

    @sk.process(key="key", event_time="at", lateness=after(lateness))
    def first(event: Event, ctx: sk.Context) -> Iterator[Event]:
        ctx.timers.set(event.at)
        yield event

    @first.on_timer
    def ring(timer: sk.Timer, ctx: sk.Context) -> None: ...

    @sk.process(key="key", event_time="at", lateness="1 second")
    def second(event: Event, ctx: sk.Context) -> Iterator[str]:
        ctx.timers.set(event.at)
        yield f"got {event.value}"

    @second.on_timer
    def closed(timer: sk.Timer, ctx: sk.Context) -> Iterator[str]:
        yield f"closed {timer.at:%Y %f}"

    job = sk.Job("ahead")
    stream = job.source("events", Event).process(first)
    stream.late.sink("late")
    stream.process(second).sink("out")
    runner = LocalRunner(job.plan, Repository(tmp_path / "c"), MemoryCopies())
    assert runner.epoch({"events": [Event("a", last, "far")]})["out"] == ["got far"]
    in_time = [event("b", 5, "near")] * 2
    found = runner.epoch({"events": in_time})
    assert (found["out"], found["late"]) == ([], in_time), "behind the watermark: late, and counted"
    runner.epoch({"events": []})
    coordinator = runner.coordinator
    assert coordinator.watermarks_us["first"] == MAX_MICROS - lateness * 1_000_000
    assert coordinator.watermarks_us["second"] == MAX_MICROS - (lateness + 1) * 1_000_000
    assert not coordinator.is_drained, "no drain was asked for, so the job goes on"

    run = job.run({"events": []}, checkpoint=tmp_path / "c")
    assert run.outputs["out"] == ["closed 9999 999999"], "timers fire once, at the real end"
    assert Coordinator.open(job.plan, Repository(tmp_path / "c")).is_drained


def test_event_times_that_are_no_instants_are_refused_and_nothing_is_lost() -> None:
    harness = Harness(seen)
    harness.send(event("a", 1))
    for wrong in (dt.datetime(2026, 1, 1), None, "2026-01-01"):
        with pytest.raises(sk.ProcessError, match=r"event time 'at' of .* is no instant"):
            harness.send(event("a", 2), Event("a", wrong))  # type: ignore[arg-type]
    assert harness.state("count", "a") == 1
    assert late(harness, "seen") == 0


def test_an_event_time_in_another_zone_is_the_same_instant() -> None:
    harness = Harness(seen)
    zone = dt.timezone(dt.timedelta(hours=-5))
    harness.send(event("a", 100), Event("b", at(50).astimezone(zone)))
    assert harness.send(Event("a", at(90).astimezone(zone))) == []


# ---------------------------------------------------------------------------------- declarations


def test_wrong_declarations_of_time_fail_at_import() -> None:
    with pytest.raises(sk.StateTypeError, match="event_time='when' is not a field of Event"):

        @sk.process(key="key", event_time="when")
        def missing(event: Event) -> None: ...

    with pytest.raises(sk.StateTypeError, match="event_time='value' is str: it must be a datetime"):

        @sk.process(key="key", event_time="value")
        def no_time(event: Event) -> None: ...

    with pytest.raises(sk.StateTypeError, match="say which field has the event_time"):
        sk.process(key="key", lateness="1 second")
    for wrong in ("soon", "1 fortnight", "-1 second", "", dt.timedelta(-1), 5):
        with pytest.raises(sk.StateTypeError, match="lateness="):
            sk.process(key="key", event_time="at", lateness=wrong)  # type: ignore[arg-type]


class AwareModel(pydantic.BaseModel):
    key: str
    at: pydantic.AwareDatetime
    before: pydantic.AwareDatetime | None = None


@dataclasses.dataclass
class AwareClass:
    key: str
    at: pydantic.AwareDatetime
    before: pydantic.AwareDatetime | None = None


class AwareTuple(NamedTuple):
    key: str
    at: pydantic.AwareDatetime
    before: pydantic.AwareDatetime | None = None


@pytest.mark.parametrize("record_type", [AwareModel, AwareClass, AwareTuple])
@pytest.mark.parametrize("ordered", [False, True])
def test_an_aware_datetime_of_pydantic_is_a_datetime(record_type: Any, ordered: bool) -> None:
    def reads(event, last, times):  # type: ignore[no-untyped-def]
        times.append(event.at)
        last.update(record_type(key=event.key, at=event.at, before=times[0]))
        yield last.get()

    reads.__annotations__ = {
        "event": record_type,
        "last": sk.ValueState[record_type],
        "times": sk.ListState[pydantic.AwareDatetime],
        "return": Iterator[record_type],
    }
    declared: Any = sk.process(key="key", event_time="at", ordered=ordered)(reads)
    job = sk.Job("aware")
    job.source("events", record_type).process(declared).sink("out")
    zone = dt.timezone(dt.timedelta(hours=-5))
    given = [{"key": "a", "at": at(seconds).astimezone(zone)} for seconds in (1, 2)]
    found = job.run({"events": given}).outputs["out"]
    assert found == [record_type(key="a", at=at(s), before=at(1)) for s in (1, 2)]
    batch = declared.output_type.to_batch(found)
    assert declared.record_type.reader(batch.schema).read(batch) == found
    with pytest.raises(sk.ProcessError, match=r"timezone|no instant|`tz`"):
        job.run({"events": [{"key": "a", "at": dt.datetime(2026, 1, 1)}]})


def test_a_naive_datetime_of_pydantic_is_refused_as_an_event_time() -> None:
    class Naive(NamedTuple):
        key: str
        at: pydantic.NaiveDatetime

    with pytest.raises(sk.StateTypeError, match=r"NaiveDatetime is not supported: .*AwareDatetime"):

        @sk.process(key="key", event_time="at")
        def naive(event: Naive) -> None: ...


def test_wrong_callbacks_fail_at_import() -> None:
    @sk.process(key="key", event_time="at")
    def base(event: Event, total: sk.ValueState[int]) -> Iterator[int]:
        yield 1

    with pytest.raises(sk.StateTypeError, match="'event': the first parameter takes the timer"):

        @base.on_timer  # type: ignore[arg-type]
        def no_timer(event: Event) -> None: ...

    with pytest.raises(sk.StateTypeError, match="'other': base has no such state"):

        @base.on_timer
        def unknown(timer: sk.Timer, other: sk.ValueState[int]) -> None: ...

    with pytest.raises(sk.StateTypeError, match="'total': base declares"):

        @base.on_timer
        def another(timer: sk.Timer, total: sk.ValueState[str]) -> None: ...

    with pytest.raises(sk.StateTypeError, match="it yields str, and base int"):

        @base.on_timer  # type: ignore[arg-type]
        def yields_text(timer: sk.Timer) -> Iterator[str]:
            yield ""

    # mypy lets this pass, since each bool is an int; a column of integers would not.
    with pytest.raises(sk.StateTypeError, match="it yields bool, and base int: yield the same"):

        @base.on_timer
        def yields_bool(timer: sk.Timer) -> Iterator[bool]:
            yield True

    @base.on_timer("one")
    def one(timer: sk.Timer) -> None: ...

    with pytest.raises(sk.StateTypeError, match="one handles timers named 'one' of base already"):

        @base.on_timer("one")
        def again(timer: sk.Timer) -> None: ...

    with pytest.raises(sk.StateTypeError, match="decorates a function"):
        base.on_timer(5)  # type: ignore[call-overload]


def test_a_callback_is_the_function_it_was() -> None:
    @seen.on_timer("never")
    def double(timer: sk.Timer) -> Iterator[tuple[str, float]]:
        yield timer.name, 2 * timer.at.timestamp()

    assert list(double(sk.Timer(at(5), "never"))) == [("never", 10)]


@sk.process(key="key", event_time="at")
def commanded(event: Event, ctx: sk.Context) -> Iterator[str]:
    """Runs what the record says against its context."""
    yield str(eval(event.value, {"ctx": ctx, "at": at, "dt": dt}))  # noqa: S307


@commanded.on_timer("known")
def known(timer: sk.Timer, ctx: sk.Context) -> Iterator[str]:
    yield f"{timer.name} {timer.at.timestamp():g}"


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("ctx.timers.set(dt.datetime(2026, 1, 1), 'known')", "has no timezone"),
        ("ctx.timers.set(5, 'known')", "is a datetime, not 5"),
        ("ctx.timers.set(at(5))", "no function handles timers named 'default'"),
        ("ctx.timers.set(at(5), 'other')", "no function handles timers named 'other'"),
        ("ctx.timers.set(at(5), 'known', 'wall')", "clock='wall'"),
        ("ctx.timers.set(at(5), 5)", "the name of a timer is a str, not 5"),
        ("ctx.timers.delete('known')", "the time of a timer is a datetime, not 'known'"),
        ("ctx.timers.delete(dt.datetime(2026, 1, 1), 'known')", "has no timezone"),
    ],
)
def test_wrong_timers_are_refused_and_nothing_is_committed(command: str, problem: str) -> None:
    harness = Harness(commanded)
    with pytest.raises(sk.StateTypeError, match=problem) as caught:
        harness.send(
            Event("a", at(1), "ctx.timers.set(at(2), 'known')"), Event("a", at(1), command)
        )
    assert "operator 'commanded' at key 'a' in epoch 0" in str(caught.value)
    assert harness.timers("a") == []
    assert harness.epoch is None


def test_timers_and_time_need_a_declaration() -> None:
    """SP19: without time, advancing and registering are errors and change nothing."""

    @sk.process(key="key")
    def timeless(event: Event, ctx: sk.Context, count: sk.ValueState[int]) -> Iterator[str]:
        count.update(1)
        yield str(eval(event.value, {"ctx": ctx, "at": at}))  # noqa: S307

    harness = Harness(timeless)
    with pytest.raises(sk.StateTypeError, match="declare @process\\(event_time="):
        harness.advance_watermark(at(5))
    with pytest.raises(sk.StateTypeError, match="handles no timers"):
        harness.send(Event("a", at(1), "ctx.timers.set(at(5))"))
    with pytest.raises(sk.StateTypeError, match="has no event time"):
        harness.send(Event("a", at(1), "ctx.event_time"))
    assert harness.state("count", "a") is None

    @timeless.on_timer
    def ring(timer: sk.Timer) -> None: ...

    harness = Harness(timeless)
    with pytest.raises(sk.StateTypeError, match='use clock="processing"'):
        harness.send(Event("a", at(1), "ctx.timers.set(at(5))"))
    harness.send(Event("a", at(1), "ctx.timers.set(at(5), clock='processing')"))


def test_clocks_only_go_forward() -> None:
    """SP19: watermark and processing time must strictly increase."""
    harness = Harness(seen)
    harness.advance_watermark(at(10))
    for wrong in (at(10), at(9)):
        with pytest.raises(sk.StateTypeError, match="is not later"):
            harness.advance_watermark(wrong)
    harness.send(event("a", 100))
    with pytest.raises(sk.StateTypeError, match=r"1970-01-01 00:01:30.* is not later"):
        harness.advance_watermark(at(89))
    harness.advance_watermark(at(90))  # what the next epoch has anyway, and the last one had not
    with pytest.raises(sk.StateTypeError, match=r"1970-01-01 00:01:30.* is not later"):
        harness.advance_watermark(at(90))
    harness.advance_processing_time(at(10))
    with pytest.raises(sk.StateTypeError, match="is not later"):
        harness.advance_processing_time(at(10))


# ---------------------------------------------------------------------------------------- Spark


def sessions(gap: float, lateness: float = 0) -> sk.Process[Event, ..., tuple[str, float]]:
    @sk.process(key="key", event_time="at", lateness=after(lateness))
    def session(
        event: Event, ctx: sk.Context, last: sk.ValueState[float]
    ) -> Iterator[tuple[str, float]]:
        held = last.get()
        if held is not None:
            ctx.timers.delete(at(held) + after(gap))
        last.update(event.at.timestamp())
        ctx.timers.set(event.at + after(gap))
        yield f"received:{event.value}", event.at.timestamp()

    @session.on_timer
    def expire(
        timer: sk.Timer, ctx: sk.Context, last: sk.ValueState[float]
    ) -> Iterator[tuple[str, float]]:
        last.clear()
        yield f"expired:{ctx.key}", timer.at.timestamp()

    return session


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("parallelism", [1, 3])
def test_sessions_expire_when_the_watermark_passes_them(backend: Backend, parallelism: int) -> None:
    """SP15: delay 2; k1@10, k2@12, k3@20 bring the watermark to 18, so k1 and k2 expire."""
    harness = Harness(sessions(5, lateness=2), parallelism=parallelism, backend=backend)
    harness.send(event("k1", 10), event("k2", 12))
    assert harness.send(event("k3", 20)) == [("received:", 20)]
    assert sorted(harness.send()) == [("expired:k1", 15), ("expired:k2", 17)]
    assert watermark(harness, "session") == at(18)
    assert [harness.state("last", key) for key in ("k1", "k2", "k3")] == [None, None, 20]
    assert harness.timers("k3") == [sk.Timer(at(25))]
    assert harness.timers("k1") == []


def test_a_record_exactly_at_the_watermark_is_late_other_than_in_spark() -> None:
    """SP17: delay 1; [5, 6, 7] count 3; of [4, 5, 6, 8] only 8 is not late, 6 is at the mark."""

    @sk.process(key="key", event_time="at", lateness="1 second")
    def counted(event: Event, count: sk.ValueState[int]) -> Iterator[int]:
        count.update((count.get() or 0) + 1)
        yield count.get() or 0

    harness = Harness(counted)
    assert harness.send(*(event("k", s) for s in (5, 6, 7))) == [1, 2, 3]
    assert harness.send(*(event("k", s) for s in (4, 5, 6, 8))) == [4]
    assert late(harness, "counted") == 3


def test_a_timer_at_the_current_watermark_fires_in_the_same_epoch() -> None:
    """SP21: delay 10, each record sets a timer at the watermark it sees."""

    @sk.process(key="key", event_time="at", lateness="10 seconds")
    def newest(
        event: Event, ctx: sk.Context, most: sk.ValueState[float]
    ) -> Iterator[tuple[str, float]]:
        most.update(max(most.get() or 0, event.at.timestamp()))
        ctx.timers.set(ctx.watermark)
        yield "a", most.get() or 0

    @newest.on_timer
    def expired(timer: sk.Timer, ctx: sk.Context) -> Iterator[tuple[str, float]]:
        yield "a-expired", timer.at.timestamp()

    harness = Harness(newest)
    never = dt.datetime.min.replace(tzinfo=dt.UTC).timestamp()
    assert harness.send(event("a", 20)) == [("a", 20), ("a-expired", never)]
    assert harness.send(event("a", 4)) == []
    assert late(harness, "newest") == 1
    found = harness.send(*(event("a", s) for s in (2, 11, 13, 15)))
    assert found == [("a", 20), ("a", 20), ("a", 20), ("a-expired", 10)]
    assert late(harness, "newest") == 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_processing_time_sessions(backend: Backend) -> None:
    """Spark's SessionTimeout: a timer ten seconds on, moved by every record."""

    @sk.process(key="key")
    def session(event: Event, ctx: sk.Context, last: sk.ValueState[dt.datetime]) -> Iterator[str]:
        ctx.timers.replace(ctx.processing_time + after(10), clock="processing")
        last.update(ctx.processing_time)
        yield f"received:{event.value}"

    @session.on_timer
    def expire(timer: sk.Timer, last: sk.ValueState[dt.datetime]) -> Iterator[str]:
        last.clear()
        yield "session-expired"

    harness = Harness(session, backend=backend)
    harness.advance_processing_time(at(100))
    assert harness.send(event("k", 0, "a")) == ["received:a"]
    assert harness.advance_processing_time(at(109)) == []
    assert harness.send(event("k", 0, "b")) == ["received:b"]
    assert harness.timers("k") == [sk.Timer(at(119), clock="processing")]
    assert harness.advance_processing_time(at(118.999999)) == []
    assert harness.advance_processing_time(at(119)) == ["session-expired"]
    assert harness.state("last", "k") is None
    assert harness.advance_processing_time(at(1000)) == []


def test_a_wall_clock_that_is_set_back_does_not_set_processing_time_back() -> None:
    now = [50_000_000]

    @sk.process(key="key")
    def when(event: Event, ctx: sk.Context) -> Iterator[float]:
        yield ctx.processing_time.timestamp()

    job = sk.Job("clocks")
    job.source("events", Event).process(when).sink("out")

    def clock() -> int:
        now[0] += {50_000_000: 5_000_000}.get(now[0], -20_000_000)
        return now[0]

    found = job.run({"events": [event("a", 0)] * 4}, epoch_size=1, clock=clock)
    assert found.outputs["out"] == [55, 55, 55, 55]


def test_a_replayed_epoch_takes_place_at_the_same_instant(tmp_path: Path) -> None:
    @sk.process(key="key")
    def when(event: Event, ctx: sk.Context) -> Iterator[float]:
        yield ctx.processing_time.timestamp()

    job = sk.Job("clocks")
    job.source("events", Event).process(when).sink("out")
    given = {"events": [event("a", 0), event("a", 1)]}
    told: list[tuple[int, list[float]]] = []

    def dies(records: list[float], epoch: int) -> None:
        told.append((epoch, records))
        if epoch == 1:
            raise OSError("the power is out")

    options: dict[str, Any] = {"checkpoint": tmp_path / "c", "epoch_size": 1}
    with pytest.raises(sk.ProcessError, match="OSError: the power is out"):
        job.run(given, outputs={"out": dies}, clock=lambda: 5_000_000, **options)
    assert len(list((tmp_path / "c" / "begun").iterdir())) == 1
    job.run(
        given,
        outputs={"out": lambda records, epoch: told.append((epoch, records))},
        clock=lambda: 99_000_000,
        **options,
    )
    assert told == [(0, [5]), (1, [5]), (1, [5])]
    assert not list((tmp_path / "c" / "begun").iterdir())


# ----------------------------------------------------------------------------------------- Beam


class Buffer(NamedTuple):
    key: str
    at: dt.datetime
    value: int


def numbers(seconds: float, *values: int) -> list[Buffer]:
    return [Buffer("k", at(seconds), value) for value in values]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_timer_in_the_past_fires_at_once(backend: Backend) -> None:
    """B1: buffer, timer at 20: at 25 it emits what there is; then each record makes it fire."""

    @sk.process(key="key", event_time="at")
    def buffer(
        record: Buffer, ctx: sk.Context, held: sk.ListState[int]
    ) -> Iterator[tuple[int, ...]]:
        held.append(record.value)
        ctx.timers.set(at(20))
        yield from ()

    @buffer.on_timer
    def emit(timer: sk.Timer, held: sk.ListState[int]) -> Iterator[tuple[int, ...]]:
        yield tuple(held)

    harness = Harness(buffer, backend=backend)
    harness.advance_watermark(at(10))
    assert harness.send(*numbers(11, 1, 2)) == []
    assert harness.send(*numbers(12, 3)) == []
    assert harness.advance_watermark(at(25)) == [(1, 2, 3)]
    assert harness.send(*numbers(26, 4)) == [(1, 2, 3, 4)]


def firing(*timers: tuple[float, str], clear: dict[int, tuple[float, str]] | None = None) -> Any:
    """A process that sets these timers at each record and tells which fire."""

    @sk.process(key="key", event_time="at")
    def sets(record: Buffer, ctx: sk.Context, value: sk.ValueState[int]) -> Iterator[str]:
        value.update(record.value)
        for seconds, name in timers if record.value >= 0 else ():
            ctx.timers.set(at(seconds), name)
        for seconds, name in (clear or {}).values() if record.value < 0 else ():
            ctx.timers.delete(at(seconds), name)
        yield from ()

    @sets.on_timer
    def fires(timer: sk.Timer, value: sk.ValueState[int]) -> Iterator[str]:
        yield f"{timer.name}@{timer.at.timestamp():g}={value.get()}"

    return sets


def test_two_timers_of_one_callback_fire_twice() -> None:
    """B3."""
    harness = Harness(firing((100, "default"), (1000, "default")))
    harness.send(*numbers(1, 7))
    assert harness.advance_watermark(at(2000)) == ["default@100=7", "default@1000=7"]


def test_each_tag_fires_once_unless_it_was_cleared() -> None:
    """B15: tags at 10, 20, 30; the third is cleared when the watermark is at 10."""
    tags = [(10.0, "emit1"), (20.0, "emit2"), (30.0, "emit3")]
    harness = Harness(firing(*tags))
    harness.send(*numbers(1, 7))
    assert harness.advance_watermark(at(40)) == ["emit1@10=7", "emit2@20=7", "emit3@30=7"]
    harness = Harness(firing(*tags, clear={3: tags[2]}))
    harness.send(*numbers(1, 7))
    assert harness.advance_watermark(at(10)) == ["emit1@10=7"]
    harness.send(*numbers(11, -1))
    assert harness.advance_watermark(at(40)) == ["emit2@20=-1"]


def test_families_of_timers_are_independent() -> None:
    """B17: two families of three tags and a plain one: seven firings, in order of time."""
    timers = [(10.0 * (tag + 1), f"{family}/{tag}") for family in "xy" for tag in range(3)]
    harness = Harness(firing(*timers, (40.0, "gc")))
    harness.send(*numbers(1, 7))
    found = [out.split("=")[0] for out in harness.advance_watermark(at(50))]
    assert found == ["x/0@10", "y/0@10", "x/1@20", "y/1@20", "x/2@30", "y/2@30", "gc@40"]


def test_a_timer_that_is_set_and_deleted_in_one_call_never_fires() -> None:
    """B21."""

    @sk.process(key="key", event_time="at")
    def both(record: Buffer, ctx: sk.Context) -> Iterator[str]:
        ctx.timers.set(at(20), "first")
        ctx.timers.set(at(20), "second")
        ctx.timers.delete(at(20), "first")
        yield from ()

    @both.on_timer
    def fires(timer: sk.Timer, ctx: sk.Context) -> Iterator[str]:
        yield timer.name

    harness = Harness(both)
    harness.send(*numbers(1, 1))
    assert harness.timers("k") == [sk.Timer(at(20), "second")]
    assert harness.advance_watermark(at(30)) == ["second"]


def test_a_callback_may_take_back_a_timer_that_is_due() -> None:
    @sk.process(key="key", event_time="at")
    def three(record: Buffer, ctx: sk.Context) -> Iterator[str]:
        for name in ("a", "b", "c"):
            ctx.timers.set(at(20), name)
        yield from ()

    @three.on_timer
    def fires(timer: sk.Timer, ctx: sk.Context) -> Iterator[str]:
        if timer.name == "a":
            ctx.timers.delete(at(20), "b")
        yield timer.name

    harness = Harness(three)
    harness.send(*numbers(1, 1))
    assert harness.advance_watermark(at(30)) == ["a", "c"]


def setting_itself_again(times: int) -> Any:
    """A process whose timers are set again so often while they fire, each by the other."""

    @sk.process(key="key", event_time="at")
    def starts(record: Event, ctx: sk.Context, fired: sk.ValueState[int]) -> Iterator[int]:
        fired.update(0)
        ctx.timers.set(record.at, "one")
        yield from ()

    @starts.on_timer("one")
    def first(timer: sk.Timer, ctx: sk.Context, fired: sk.ValueState[int]) -> Iterator[int]:
        fired.update((fired.get() or 0) + 1)
        if (fired.get() or 0) <= times:
            ctx.timers.set(timer.at - after(1), "other")
        yield fired.get() or 0

    @starts.on_timer("other")
    def second(timer: sk.Timer, ctx: sk.Context) -> None:
        ctx.timers.set(timer.at + after(1), "one")

    return starts


def test_a_timer_that_is_set_again_whenever_it_fires_is_an_error() -> None:
    harness = Harness(setting_itself_again(1_000_000))
    harness.send(event("k", 1))
    with pytest.raises(sk.ProcessError, match=r"does not end at key 'k' in epoch 1: its callback"):
        harness.advance_watermark(at(2))
    assert harness.timers("k") == [sk.Timer(at(1), "one")]
    assert harness.state("fired", "k") == 0


def test_timers_that_end_are_no_error() -> None:
    harness = Harness(setting_itself_again(5_000))
    harness.send(event("k", 1))
    assert harness.advance_watermark(at(2)) == list(range(1, 5_002))
    harness.send(event("k", 3))
    assert harness.advance_watermark(at(4)) == list(range(1, 5_002))


@pytest.mark.parametrize("ordered", [False, True])
def test_a_timer_may_be_set_again_for_each_record(ordered: bool) -> None:
    @sk.process(key="key", event_time="at", ordered=ordered)
    def overdue(record: Event, ctx: sk.Context) -> Iterator[str]:
        ctx.timers.set(at(0))
        yield record.value

    @overdue.on_timer
    def fires(timer: sk.Timer) -> Iterator[str]:
        yield "fired"

    harness = Harness(overdue)
    harness.advance_watermark(at(0))
    out = harness.send(*(event("k", 1, "record") for _ in range(11_000)))
    out += harness.advance_watermark(at(1))
    assert out.count("record") == 11_000
    assert out.count("fired") == (11_000 if ordered else 1)


def test_a_callback_may_set_many_timers_for_its_own_time() -> None:
    @sk.process(key="key", event_time="at")
    def starts(record: Event, ctx: sk.Context) -> Iterator[str]:
        ctx.timers.set(record.at, "all")
        yield from ()

    @starts.on_timer("all")
    def every(timer: sk.Timer, ctx: sk.Context) -> None:
        for number in range(11_000):
            ctx.timers.set(timer.at, f"{number}")
            ctx.timers.set(timer.at, "again and again")

    @starts.on_timer
    def one(timer: sk.Timer) -> Iterator[str]:
        yield timer.name

    harness = Harness(starts)
    harness.send(event("k", 1))
    fired = harness.advance_watermark(at(2))
    assert len(fired) == len(set(fired)) == 11_001


def test_a_timer_may_replace_a_value() -> None:
    """B7: at 100 the set is cleared and filled with another value, at 1000 it is emitted."""

    @sk.process(key="key", event_time="at")
    def held(record: Event, ctx: sk.Context, values: sk.MapState[str, None]) -> Iterator[list[str]]:
        values[record.value] = None
        ctx.timers.set(at(100), "replace")
        ctx.timers.set(at(1000), "emit")
        yield from ()

    @held.on_timer("replace")
    def replace(timer: sk.Timer, values: sk.MapState[str, None]) -> None:
        values.clear()
        values["different-value"] = None

    @held.on_timer("emit")
    def emit(timer: sk.Timer, values: sk.MapState[str, None]) -> Iterator[list[str]]:
        yield list(values)

    harness = Harness(held)
    harness.send(event("k", 1, "value1"))
    assert harness.advance_watermark(at(2000)) == [["different-value"]]


def test_a_processing_time_timer_has_no_event_time() -> None:
    @sk.process(key="key", event_time="at")
    def asks(record: Event, ctx: sk.Context) -> Iterator[str]:
        ctx.timers.set(at(5), clock="processing")
        yield f"{ctx.event_time.timestamp():g}"

    @asks.on_timer
    def ring(timer: sk.Timer, ctx: sk.Context) -> Iterator[str]:
        yield f"{ctx.event_time}"

    harness = Harness(asks)
    assert harness.send(event("a", 3)) == ["3"]
    with pytest.raises(sk.StateTypeError, match="no event time here"):
        harness.advance_processing_time(at(5))
    assert harness.send(event("b", 4)) == ["4"], "the clock stands where it stood before the error"


# ---------------------------------------------------------------------------- bounded runs, jobs


def session_job() -> sk.Job:
    job = sk.Job("sessions")
    sessions_ = job.source("events", Event).process(sessions(5, lateness=2))
    sessions_.sink("out")
    sessions_.late.sink("late")
    return job


def test_a_bounded_run_ends_with_all_timers_fired_unless_later_runs_continue(
    tmp_path: Path,
) -> None:
    given = [event("a", 10), event("b", 12), event("a", 30), event("c", 3)]
    run = session_job().run({"events": given}, epoch_size=2)
    assert sorted(run.outputs["out"])[:2] == [("expired:a", 35), ("expired:b", 17)]
    assert run.outputs["late"] == [event("c", 3)]

    kept = session_job().run(
        {"events": given[:2]}, epoch_size=2, checkpoint=tmp_path / "c", drain=False
    )
    assert kept.outputs["out"] == [("received:", 10), ("received:", 12)]
    rest = session_job().run({"events": given}, epoch_size=2, checkpoint=tmp_path / "c")
    assert sorted(kept.outputs["out"] + rest.outputs["out"]) == sorted(run.outputs["out"])
    again = session_job().run({"events": given}, epoch_size=2, checkpoint=tmp_path / "c")
    assert again.epochs == 0, "nothing is left to do"
    with pytest.raises(sk.RestoreError, match=r"was drained in epoch .* drain=False"):
        session_job().run({"events": [*given, event("d", 50)]}, checkpoint=tmp_path / "c")


def test_a_run_without_records_leaves_a_checkpoint_open(tmp_path: Path) -> None:
    assert session_job().run({"events": []}, checkpoint=tmp_path / "c").epochs == 0
    given = [event("a", 10)]
    assert session_job().run({"events": given}, checkpoint=tmp_path / "c").outputs["out"]


def test_a_drain_that_died_is_finished_by_the_next_run(tmp_path: Path) -> None:
    def dies(records: list[Any], epoch: int) -> None:
        if epoch == 1:
            raise OSError("the power is out")

    given = {"events": [event("a", 10), event("b", 12)]}
    kept: list[Any] = []
    with pytest.raises(sk.ProcessError, match="OSError: the power is out"):
        session_job().run(
            given, checkpoint=tmp_path / "c", outputs={"out": dies, "late": dies}, drain=True
        )
    rest = session_job().run(given, checkpoint=tmp_path / "c")
    assert sorted(kept + rest.outputs["out"]) == [("expired:a", 15), ("expired:b", 17)]


def test_late_records_of_a_drain_are_in_time_for_who_takes_them() -> None:
    """The first operator's timers put out, at its end, what is late for the second."""

    class Past(NamedTuple):
        key: str
        at: dt.datetime

    @sk.process(key="key", event_time="at")
    def first(record: Event, ctx: sk.Context) -> Iterator[Past]:
        ctx.timers.set(record.at + after(1))
        yield Past(record.key, record.at)

    @first.on_timer
    def echo(timer: sk.Timer, ctx: sk.Context) -> Iterator[Past]:
        yield Past(f"echo of {ctx.key}", timer.at - after(1000))

    @sk.process(key="key", event_time="at")
    def second(record: Past) -> None: ...

    @sk.process(key="key", event_time="at", lateness="1 day")
    def third(record: Past) -> Iterator[str]:
        yield record.key

    job = sk.Job("late")
    behind = job.source("events", Event).process(first).process(second)
    behind.late.process(third).sink("out")
    given = [event("a", 5000), event("b", 9000)]
    assert job.run({"events": given}, epoch_size=1).outputs["out"] == ["echo of a"]


def test_late_records_can_be_processed_further() -> None:
    @sk.process(key="key")
    def counts(record: Event, count: sk.ValueState[int]) -> Iterator[tuple[str, int]]:
        count.update((count.get() or 0) + 1)
        yield record.key, count.get() or 0

    job = sk.Job("late")
    seen_ = job.source("events", Event).process(seen)
    seen_.late.process(counts).sink("late counts".replace(" ", "-"))
    given = [event("a", 100), event("a", 50), event("b", 50), event("a", 90), event("a", 91)]
    run = job.run({"events": given}, epoch_size=1)
    assert run.outputs["late-counts"] == [("a", 1), ("b", 1), ("a", 2)]
    assert "late records of seen" in str(job)


def test_only_operators_with_event_time_have_late_records() -> None:
    @sk.process(key="key")
    def timeless(record: Event) -> Iterator[int]:
        yield 1

    stream = sk.Job("late").source("events", Event)
    for wrong in (stream, stream.process(timeless)):
        with pytest.raises(sk.StateTypeError, match="has no late records"):
            _ = wrong.late


def test_no_output_is_late_for_the_next_operator() -> None:
    """What timers of the first put out belongs to the past, and is in time for the second."""

    class Expired(NamedTuple):
        key: str
        at: dt.datetime

    @sk.process(key="key", event_time="at")
    def first(record: Event, ctx: sk.Context) -> Iterator[Expired]:
        ctx.timers.set(record.at + after(5))
        yield from ()

    @first.on_timer
    def expire(timer: sk.Timer, ctx: sk.Context[str]) -> Iterator[Expired]:
        yield Expired(ctx.key, timer.at)

    @sk.process(key="key", event_time="at")
    def second(record: Expired, ctx: sk.Context, count: sk.ValueState[int]) -> Iterator[str]:
        ctx.timers.set(record.at)
        yield f"got {record.key}@{record.at.timestamp():g}"

    @second.on_timer
    def closed(timer: sk.Timer, ctx: sk.Context) -> Iterator[str]:
        yield f"closed {ctx.key}@{timer.at.timestamp():g}"

    job = sk.Job("chain")
    job.source("events", Event).process(first).process(second).sink("out")
    given = [event("a", 1), event("b", 7), event("c", 30), event("d", 31), event("e", 60)]
    for size in (1, 2, 5):
        out = job.run({"events": given}, epoch_size=size, parallelism=2).outputs["out"]
        times = [("a", 6), ("b", 12), ("c", 35), ("d", 36), ("e", 65)]
        assert sorted(out) == sorted(
            f"{what} {key}@{time}" for key, time in times for what in ("got", "closed")
        ), size
