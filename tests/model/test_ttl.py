"""State expires on time for every reader, and leaves no row behind."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, run_state_machine_as_test

import statekit as sk
from statekit.checkpoint.era import Era
from statekit.errors import StateSchemaError, StateTypeError
from statekit.query.rows.reader import CheckpointReader
from statekit.state import base
from statekit.state import ttl as expiry
from statekit.testing import Harness
from statekit.testing.histories import Epochs, Generated
from statekit.testing.machines import JobMachine
from statekit.testing.process_model import ProcessModel
from tests.support.instants import after, at
from tests.support.ttl_driver import (
    LATENESS,
    TTL_SECONDS,
    WHATS,
    Do,
    Op,
    Saw,
    by_key,
    do,
    rows_left,
    states_that_expire,
)

Backend = Literal["memory", "rocksdb"]
BACKENDS: list[Backend] = ["memory", "rocksdb"]
HOUR = dt.timedelta(hours=1)

# ------------------------------------------------------------------------------ against a model


def ops() -> st.SearchStrategy[Op]:
    number = st.integers(0, 3)

    def of(state: str) -> st.SearchStrategy[Op]:
        return st.builds(Op, st.just(state), st.sampled_from(WHATS[state]), number, number)

    return st.sampled_from(sorted(WHATS)).flatmap(of)


OPS = st.lists(ops(), max_size=6).map(tuple)
Emitted = dict[str, list[Any]]


class ExpiryMachine(JobMachine):
    """States of every kind that expire, in epochs with crashes between."""

    epochs = Epochs(
        {"records": [Generated(Do, ("key",), "at", after(LATENESS), {"ops": OPS})]}, keys=["a", "b"]
    )
    unit = after(1)

    def make_model(self) -> ProcessModel:
        (function,) = self.subject.functions
        return ProcessModel(function)

    def check(self, emitted: Emitted, expected: Emitted) -> None:
        assert by_key(emitted["outputs"]) == by_key(expected["outputs"])

    @invariant()
    def sizes_are_what_is_held(self) -> None:
        if hasattr(self, "harness") and self.harness.epoch is not None:
            rows_left(self.harness)

    def teardown(self) -> None:
        if not hasattr(self, "harness") or self.harness.epoch is None:
            return
        begin = self.harness.watermark or self.reached.begin
        for hours in (1, 2):
            self.harness.advance_watermark(begin + hours * HOUR)
            self.harness.advance_processing_time(self.now + hours * HOUR)
        assert set(rows_left(self.harness)) <= {"kept"}


@pytest.mark.parametrize(("backend", "examples", "steps"), [("memory", 20, 12), ("rocksdb", 4, 8)])
@pytest.mark.parametrize("refresh", ["write", "read"])
@pytest.mark.parametrize("clock", ["event", "processing"])
def test_states_expire_as_plain_python_values_would(
    clock: Literal["event", "processing"],
    refresh: Literal["write", "read"],
    backend: Backend,
    examples: int,
    steps: int,
) -> None:
    job = states_that_expire(sk.TTL(after(TTL_SECONDS), clock, refresh))
    attributes = {"job": job, "epochs": ExpiryMachine.epochs, "backend": backend}
    machine: type[ExpiryMachine] = type("OfClock", (ExpiryMachine,), attributes)
    given = settings(machine.TestCase.settings, max_examples=examples, stateful_step_count=steps)
    run_state_machine_as_test(machine, settings=given)


def test_a_value_that_was_cleared_is_written_at_the_time_of_its_next_write() -> None:
    update, clear = Op("value", "update", 1), Op("value", "clear")
    sent = [do("a", 52, update), do("a", 52, clear), do("a", 50, update)]
    for cut in (1, 2, 3):
        harness = Harness(states_that_expire(sk.TTL(after(TTL_SECONDS), "event")))
        harness.send(*sent[:cut])
        harness.send(*sent[cut:])
        harness.advance_watermark(at(50 + TTL_SECONDS))
        assert harness.state("value", "a") is None, f"with an epoch of {cut} records"


@settings(max_examples=150, deadline=None)
@given(
    arrived=st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 30), OPS), max_size=12),
    cuts=st.lists(st.integers(1, 4), max_size=12),
    refresh=st.sampled_from(["write", "read"]),
    shards=st.integers(1, 3),
)
def test_in_order_of_time_state_expires_between_two_records_of_one_epoch(
    arrived: list[tuple[str, int, tuple[Op, ...]]],
    cuts: list[int],
    refresh: Literal["write", "read"],
    shards: int,
) -> None:
    function = states_that_expire(sk.TTL(after(TTL_SECONDS), "event", refresh), ordered=True)
    # Different times, so that the order is told.
    sent = [do(key, 7 * place + s % 7, *ops) for place, (key, s, ops) in enumerate(arrived)]
    harness, out = Harness(function, parallelism=shards), list[Saw]()
    waiting = sent[:]
    for cut in [*cuts, len(sent)]:
        piece, waiting = waiting[:cut], waiting[cut:]
        out += harness.send(*piece)
    out += harness.advance_watermark(at(10_000))
    model = ProcessModel(function)
    expected = model.send(records=sent)["outputs"] + model.advance_watermark(at(10_000))["outputs"]
    assert by_key(out) == by_key(expected)


# ------------------------------------------------------------------------------------ the rules


class Seen(NamedTuple):
    user: str
    at: dt.datetime
    page: str = "/"


def seen(user: str, hours: float, page: str = "/") -> Seen:
    return Seen(user, at(3600 * hours), page)


def visits(option: sk.TTL | None, *, lateness: str = "0 s") -> sk.Process[Any, Any, Any]:
    """Counts the visits of a user, with a TTL or without."""

    def count(record: Seen, visits: sk.ValueState[int]) -> Iterator[int]:
        visits.update((visits.get() or 0) + 1)
        yield visits.get() or 0

    if option is not None:
        count.__annotations__["visits"] = Annotated[sk.ValueState[int], option]
    declared: sk.Process[Any, Any, Any] = sk.process(
        key="user", event_time="at", lateness=lateness
    )(count)
    return declared


def restarted(harness: Harness, option: sk.TTL | None, tmp_path: Path, shards: int = 2) -> Harness:
    """A run with another TTL over the same checkpoint."""
    place = tmp_path / str(len(list(tmp_path.iterdir())))
    harness.checkpoint(place)
    made = Harness.restore(visits(option), place, parallelism=shards)
    last = made._runner.coordinator.last
    assert last is not None
    made._now_us = last.processing_time_us
    return made


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_value_expires_exactly_when_written_plus_ttl_is_not_later_than_now(
    backend: Backend,
) -> None:
    harness = Harness(visits(sk.TTL("1 hour")), backend=backend)
    assert harness.send(seen("ada", 0), seen("ada", 0)) == [1, 2]
    assert harness.advance_processing_time(at(3600) - dt.timedelta(microseconds=1)) == []
    assert harness.state("visits", "ada") == 2
    harness.advance_processing_time(at(3600))
    assert harness.state("visits", "ada") is None
    assert harness.send(seen("ada", 1)) == [1]


def test_a_write_restarts_the_ttl_and_a_read_only_if_declared() -> None:
    def look(
        record: Seen, here: Annotated[sk.ValueState[int], sk.TTL("1 hour", refresh="read")]
    ) -> Iterator[int | None]:
        if record.page == "write":
            here.update(7)
        yield here.get() if record.page != "exists" else int(here.exists())

    harness = Harness(sk.process(key="user")(look))
    harness.send(seen("ada", 0, "write"))
    for minutes in (50, 100, 150):
        harness.advance_processing_time(at(60 * minutes))
        assert harness.send(seen("ada", 0, "read")) == [7]
    harness.advance_processing_time(at(60 * 200))
    assert harness.send(seen("ada", 0, "exists")) == [1], "which is no read"
    harness.advance_processing_time(at(60 * 210))
    assert harness.send(seen("ada", 0, "read")) == [None]


def test_in_event_time_something_is_written_at_the_time_of_the_latest_record_that_wrote_it() -> (
    None
):
    harness = Harness(visits(sk.TTL("10 hours", clock="event"), lateness="5 hours"))
    assert harness.send(seen("ada", 20), seen("ada", 16)) == [1, 2]
    harness.advance_watermark(at(3600 * 29))
    assert harness.state("visits", "ada") == 2, "written at 20, not at 16"
    harness.advance_watermark(at(3600 * 30))
    assert harness.state("visits", "ada") is None


def test_a_write_without_a_read_keeps_the_later_time_that_is_stored() -> None:
    def keep(
        record: Seen,
        last: Annotated[sk.ValueState[str], sk.TTL("10 hours", clock="event")],
        times: Annotated[sk.MapState[str, str], sk.TTL("10 hours", clock="event")],
    ) -> None:
        last.update(record.page)
        times["page"] = record.page

    harness = Harness(sk.process(key="user", event_time="at", lateness="5 hours")(keep))
    harness.send(seen("ada", 20, "/a"))
    harness.send(seen("ada", 16, "/b"))
    harness.advance_watermark(at(3600 * 29))
    assert harness.state("last", "ada") == "/b"
    assert harness.state("times", "ada") == {"page": "/b"}
    harness.advance_watermark(at(3600 * 30))
    assert harness.state("last", "ada") is None
    assert harness.state("times", "ada") == {}


def test_timers_at_the_end_of_event_time_read_the_same_state_as_earlier() -> None:
    def visit(
        record: Seen,
        ctx: sk.Context,
        page: Annotated[sk.ValueState[str], sk.TTL("2 hours", clock="event")],
    ) -> Iterator[str]:
        page.update(record.page)
        ctx.timers.set(record.at + HOUR)
        ctx.timers.set(record.at + 2 * HOUR)
        yield from ()

    declared: sk.Process[Any, Any, Any] = sk.process(key="user", event_time="at")(visit)

    @declared.on_timer
    def gone(
        timer: sk.Timer, page: Annotated[sk.ValueState[str], sk.TTL("2 hours", clock="event")]
    ) -> Iterator[str]:
        yield f"{timer.at.hour} {page.get()}"

    job = sk.Job("drained")
    job.source("seen", Seen).process(declared).sink("out")
    assert job.run({"seen": [seen("ada", 0, "/a")]}).outputs["out"] == ["1 /a", "2 None"]


class Chained(NamedTuple):
    """What a callback saw, and when."""

    timer: str
    seen: str | None


def relays(ttl: str, *, ordered: bool = False) -> sk.Process[Any, Any, Any]:
    """Timers that hand a value on to the next one, through state that expires."""

    def visit(
        record: Seen,
        ctx: sk.Context,
        page: Annotated[sk.ValueState[str], sk.TTL(ttl, clock="event")],
    ) -> Iterator[Chained]:
        page.update(record.page)
        for minutes in (10, 20, 30, 50):
            ctx.timers.set(record.at + dt.timedelta(minutes=minutes))
        ctx.timers.set(ctx.processing_time + HOUR, clock="processing")
        yield from ()

    declared: sk.Process[Any, Any, Any] = sk.process(key="user", event_time="at", ordered=ordered)(
        visit
    )

    @declared.on_timer
    def ring(
        timer: sk.Timer, page: Annotated[sk.ValueState[str], sk.TTL(ttl, clock="event")]
    ) -> Iterator[Chained]:
        before = page.get()
        if timer.clock == "event" and timer.at.minute < 40:
            page.update(f"{timer.at:%M}")
        yield Chained(timer.clock if timer.clock == "processing" else f"{timer.at:%M}", before)

    return declared


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("step", [1, 7, 25, 600], ids=str)
def test_a_callback_finds_the_same_however_far_the_watermark_jumps(
    step: int, ordered: bool
) -> None:
    harness = Harness(relays("15 minutes", ordered=ordered))
    found = harness.send(seen("ada", 0, "/a"))
    for minutes in range(step, 700, step):
        found += harness.advance_watermark(at(60 * minutes))
    assert found == [
        Chained("10", "/a"),
        Chained("20", "10"),
        Chained("30", "20"),
        Chained("50", None),
    ]


def test_a_callback_on_the_wall_clock_finds_state_also_when_event_time_comes_to_its_end() -> None:
    job = sk.Job("drained")
    job.source("seen", Seen).process(relays("10 days")).sink("out")
    now = iter(range(0, 10**12, 4_000_000_000))
    run = job.run({"seen": [seen("ada", 0, "/a")]}, clock=lambda: next(now))
    assert (
        Chained("processing", "/a") in run.outputs["out"]
        or Chained("processing", "30") in run.outputs["out"]
    )
    assert not [rang for rang in run.outputs["out"] if rang.seen is None]


def test_values_written_before_event_time_starts_do_not_expire_at_its_start() -> None:
    def visit(
        record: Seen,
        ctx: sk.Context,
        page: Annotated[sk.ValueState[str], sk.TTL("1 hour", clock="event")],
    ) -> Iterator[str | None]:
        ctx.timers.set(ctx.processing_time, clock="processing")
        yield page.get()

    declared: sk.Process[Any, Any, Any] = sk.process(key="user", event_time="at")(visit)

    @declared.on_timer
    def ring(
        timer: sk.Timer, page: Annotated[sk.ValueState[str], sk.TTL("1 hour", clock="event")]
    ) -> None:
        page.update("rung")

    harness = Harness(declared)
    assert harness.send(seen("ada", 1000)) == [None]
    assert harness.send(seen("ada", 1000.5)) == ["rung"]


def test_time_does_not_go_back_for_a_timer_in_the_past() -> None:
    def visit(
        record: Seen,
        ctx: sk.Context,
        pages: Annotated[sk.MapState[str, int], sk.TTL("10 hours", clock="event")],
    ) -> Iterator[tuple[float, dict[str, int]]]:
        if record.page == "/set":
            pages["a"] = 1
        elif record.page == "/past":
            ctx.timers.set(at(3600))
        yield ctx.watermark.timestamp() / 3600, dict(pages)

    declared: sk.Process[Any, Any, Any] = sk.process(key="user", event_time="at", ordered=True)(
        visit
    )

    @declared.on_timer
    def ring(
        timer: sk.Timer,
        ctx: sk.Context,
        pages: Annotated[sk.MapState[str, int], sk.TTL("10 hours", clock="event")],
    ) -> Iterator[tuple[float, dict[str, int]]]:
        yield ctx.watermark.timestamp() / 3600, dict(pages)

    for cut in (1, 2, 3):
        harness = Harness(declared)
        sent = [seen("ada", 0, "/set"), seen("ada", 30, "/look"), seen("ada", 40, "/past")]
        found = harness.send(*sent[:cut]) + harness.send(*sent[cut:])
        found += harness.advance_watermark(at(3600 * 50))
        assert found == [(0, {"a": 1}), (30, {}), (40, {}), (40, {})]


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_only_elements_that_are_handed_out_are_refreshed(cut: int) -> None:
    def keep(
        record: Seen,
        pages: Annotated[sk.ListState[str], sk.TTL("10 hours", clock="event", refresh="read")],
    ) -> Iterator[list[str]]:
        if record.page == "/first":
            yield [pages[0]]
        elif record.page == "/all":
            yield list(pages)
        else:
            pages.append(record.page)

    harness = Harness(sk.process(key="user", event_time="at", ordered=True)(keep))
    sent = [seen("ada", 0, "a"), seen("ada", 1, "b"), seen("ada", 8, "/first")]
    found = harness.send(*sent[:cut])
    found += harness.send(*sent[cut:], seen("ada", 12, "/all"))
    found += harness.advance_watermark(at(3600 * 20))
    assert found == [["a"], ["a"]]


LIST_READS: list[tuple[str, Callable[[Any], Any], str]] = [
    ("get", lambda pages: pages.get(), "abcde"),
    ("index", lambda pages: pages.index("b"), "abcde"),
    ("count", lambda pages: pages.count("b"), "abcde"),
    ("first two", lambda pages: list(islice(pages, 2)), "ab"),
    ("last two", lambda pages: list(islice(reversed(pages), 2)), "de"),
    ("in", lambda pages: "b" in pages, "ab"),
    ("not in", lambda pages: "z" in pages, "abcde"),
    ("[1]", lambda pages: pages[1], "ab"),
    ("[-2]", lambda pages: pages[-2], "de"),
    ("[1:3]", lambda pages: pages[1:3], "abc"),
    ("[0:4:2]", lambda pages: pages[0:4:2], "abcd"),
    ("[3:]", lambda pages: pages[3:], "abcde"),
    ("[-2:]", lambda pages: pages[-2:], "abcde"),
    ("[:-4]", lambda pages: pages[:-4], "abcde"),
    ("[2::-1]", lambda pages: pages[2::-1], "abcde"),
    ("len", len, ""),
    ("bool", bool, ""),
]


@pytest.mark.parametrize(
    ("read", "left"), [each[1:] for each in LIST_READS], ids=[each[0] for each in LIST_READS]
)
def test_reads_of_a_list_refresh_the_elements_that_the_table_of_docs_names(
    read: Callable[[Any], Any], left: str
) -> None:
    @sk.process(key="user")
    def keep(
        record: Seen, pages: Annotated[sk.ListState[str], sk.TTL("10 hours", refresh="read")]
    ) -> None:
        if record.page == "/add":
            pages.extend("abcde")
        else:
            read(pages)

    harness = Harness(keep)
    harness.send(seen("ada", 0, "/add"))
    harness.advance_processing_time(at(3600 * 9))
    harness.send(seen("ada", 0, "/read"))
    harness.advance_processing_time(at(3600 * 18))
    assert "".join(harness.state("pages", "ada") or ()) == left


@pytest.mark.parametrize("reading", [iter, reversed])
@pytest.mark.parametrize("taken", [0, 1])
def test_who_iterates_over_new_elements_sees_the_list_as_it_was(reading: Any, taken: int) -> None:
    @sk.process(key="user", event_time="at")
    def replace(
        record: Seen,
        pages: Annotated[sk.ListState[str], sk.TTL("10 hours", clock="event", refresh="read")],
    ) -> Iterator[list[str]]:
        pages.extend(["a", "b", "c"])
        found = reading(pages)
        seen = list(islice(found, taken))
        pages.update(["d"])
        yield sorted(seen + list(found))
        yield list(pages)

    assert Harness(replace).send(seen("ada", 0, "/")) == [["a", "b", "c"], ["d"]]


def test_state_without_a_ttl_of_the_same_function_stays() -> None:
    harness = Harness(states_that_expire(sk.TTL("1 minute")))
    harness.send(do("a", 0, Op("value", "update", 1), Op("items", "append", 1)))
    harness.advance_processing_time(at(3600))
    assert rows_left(harness) == {"kept": 1}
    assert harness.state("kept", "a") == 1


# ------------------------------------------------------------------------------------- removal


def test_a_key_without_further_records_is_removed_in_an_idle_epoch() -> None:
    harness = Harness(visits(sk.TTL("1 hour")), parallelism=3)
    harness.send(*(seen(f"user {number}", 0) for number in range(50)))
    assert rows_left(harness)["visits"] == 50
    harness.advance_processing_time(at(2 * 3600))
    assert rows_left(harness) == {}


def test_removal_is_bounded_per_epoch_and_continues_in_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(base, "SWEPT_MIN", 10)
    harness = Harness(visits(sk.TTL("1 hour")))
    harness.send(*(seen(f"user {number}", 0) for number in range(35)))
    left = []
    for seconds in range(4):
        harness.advance_processing_time(at(2 * 3600 + seconds))
        left.append(rows_left(harness).get("visits", 0))
        assert harness.state("visits", "user 34") is None, "whether it is removed or not"
    assert left == [25, 15, 5, 0]


def test_expired_rows_are_removed_as_fast_as_they_arrive_in_every_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(base, "SWEPT_MIN", 10)
    harness = Harness(states_that_expire(sk.TTL("16 s")))
    append = [Op("items", "append", number) for number in range(20)]
    held = []
    for second in range(60):
        harness.advance_processing_time(at(second))
        harness.send(
            *(do(f"{second} {n}", second, *append, Op("value", "update", n)) for n in range(5))
        )
        left = rows_left(harness)
        held.append((left["items"], left["value"]))
    assert max(items for items, _ in held) <= 100 * 18
    assert max(values for _, values in held) <= 5 * 18


def test_a_drained_job_has_no_state_left_that_expires_by_event_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "SWEPT_AT_END", 10)
    job = sk.Job("drained")
    job.source("seen", Seen).process(visits(sk.TTL("1 hour", clock="event"))).sink("out")
    job.run({"seen": [seen(f"user {n}", 0) for n in range(95)]}, checkpoint=tmp_path)
    manifest = CheckpointReader(tmp_path).manifest
    (shard,) = manifest.operators["count"].shards
    assert shard.rows == {"visits": 0}
    assert not shard.wake_us


def rows_changed(harness: Harness) -> int:
    """How many mutations all epochs have committed."""
    last = harness._runner.coordinator.last
    return 0 if last is None else last.operators["count"].shards[0].chain.rows


def test_a_row_that_is_written_all_the_time_costs_one_look_per_ttl() -> None:
    harness = Harness(visits(sk.TTL("16 minutes")))
    changes = 0
    for second in range(0, 48 * 60, 60):
        harness.advance_processing_time(at(second + 1))
        before = rows_changed(harness)
        harness.send(seen("ada", second))
        changes += rows_changed(harness) - before
    assert changes == 48 + 1, "sweeps are in epochs of their own"
    assert rows_left(harness) == {"visits": 1, "_expiry": 1}


def test_cleared_rows_leave_the_index_too() -> None:
    harness = Harness(states_that_expire(sk.TTL("1 hour")))
    written = [Op("value", "update", 1), Op("items", "append", 1), Op("entries", "put", 1, 1)]
    harness.send(do("a", 0, *written, Op("total", "add", 2)))
    cleared = [Op(state, "clear") for state in ("value", "items", "entries", "total")]
    for _ in range(3):
        harness.send(do("a", 0, *cleared))
        harness.send(do("a", 0, *written, *cleared))
    assert rows_left(harness) == {"kept": 1}


def test_a_list_that_is_replaced_again_and_again_has_as_many_index_rows_as_elements() -> None:
    harness = Harness(states_that_expire(sk.TTL("30 days")))
    for second in range(50):
        harness.advance_processing_time(at(3600 * (second + 1)))
        harness.send(do("a", second, Op("items", "replace", 1, 2)))
    assert rows_left(harness) == {"kept": 1, "items": 2, "_expiry": 2}


def test_an_entry_that_was_cleared_and_set_again_is_removed_and_counted_once() -> None:
    harness = Harness(states_that_expire(sk.TTL("20 s", clock="event")))
    harness.send(do("a", 0, Op("entries", "put", 0, 0)))
    harness.send(do("a", 5, Op("entries", "put", 0, 0)))
    harness.send(do("a", 9, Op("entries", "clear"), Op("entries", "put", 0, 0)))
    assert rows_left(harness) == {"kept": 1, "entries": 1, "_expiry": 2}
    harness.advance_watermark(at(100))
    assert rows_left(harness) == {"kept": 1}


@pytest.mark.parametrize("what", ["items", "entries"])
def test_a_key_with_many_rows_is_refreshed_while_it_is_iterated(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("statekit.state.base.PENDING_ROWS_MAX", 8)
    monkeypatch.setattr("statekit.backend.mutation.BATCH_ROWS_MAX", 16)
    harness = Harness(states_that_expire(sk.TTL("1 hour", refresh="read")))
    put = "append" if what == "items" else "put"
    harness.send(do("a", 0, *(Op(what, put, number, number) for number in range(40))))
    harness.advance_processing_time(at(1800))
    harness.send(do("a", 0, Op(what, "all" if what == "items" else "items"), Op(what, "clear")))
    assert rows_left(harness).keys() <= {"kept", "_expiry"}
    harness.send(do("a", 0, *(Op(what, put, number, number) for number in range(40))))
    harness.advance_processing_time(at(5000))
    read = Op(what, "all" if what == "items" else "items")
    (before,) = harness.send(do("a", 0, read))
    harness.advance_processing_time(at(6000))
    (after,) = harness.send(do("a", 0, read))
    assert before.seen == after.seen
    assert len(harness.state(what, "a")) == 40


# ------------------------------------------------------------------ turned on, off, or changed


def test_rows_that_are_there_when_a_ttl_is_turned_on_expire_one_ttl_after_that(
    tmp_path: Path,
) -> None:
    harness = Harness(visits(None))
    harness.send(seen("ada", 0), seen("bob", 0))
    harness = restarted(harness, sk.TTL("1 hour"), tmp_path)
    harness.advance_processing_time(at(1800))
    assert harness.send(seen("ada", 1)) == [2]
    harness.advance_processing_time(at(1800 + 3599))
    assert (harness.state("visits", "ada"), harness.state("visits", "bob")) == (2, 1)
    harness.advance_processing_time(at(1800 + 3600))
    assert (harness.state("visits", "ada"), harness.state("visits", "bob")) == (None, None)
    harness.advance_processing_time(at(3 * 3600))
    assert rows_left(harness) == {}


def test_existing_rows_stay_when_a_ttl_is_turned_off(tmp_path: Path) -> None:
    harness = Harness(visits(sk.TTL("1 hour")))
    harness.send(seen("ada", 0), seen("bob", 0))
    harness = restarted(harness, None, tmp_path)
    harness.advance_processing_time(at(3600 * 100))
    assert harness.send(seen("ada", 100)) == [2]
    assert harness.state("visits", "bob") == 1
    assert rows_left(harness) == {"visits": 2}, "and nothing in the index"


def test_a_ttl_that_is_turned_off_and_on_again_begins_anew_for_all_rows(tmp_path: Path) -> None:
    harness = Harness(visits(sk.TTL("1 hour")))
    harness.send(seen("ada", 0), seen("bob", 0))
    harness = restarted(harness, None, tmp_path)
    harness.send(seen("ada", 1))
    harness.advance_processing_time(at(3600 * 100))
    harness = restarted(harness, sk.TTL("1 hour"), tmp_path)
    assert harness.send(seen("bob", 100)) == [2]
    harness.advance_processing_time(at(3600 * 101 - 1))
    assert (harness.state("visits", "ada"), harness.state("visits", "bob")) == (2, 2)
    harness.advance_processing_time(at(3600 * 101))
    assert (harness.state("visits", "ada"), harness.state("visits", "bob")) == (None, None)
    harness.advance_processing_time(at(3600 * 102))
    assert rows_left(harness) == {}


@pytest.mark.parametrize(("changed", "expires"), [("10 minutes", 600), ("30 hours", 108_000)])
def test_a_changed_ttl_applies_to_existing_rows(changed: str, expires: int, tmp_path: Path) -> None:
    harness = Harness(visits(sk.TTL("1 hour")))
    harness.send(seen("ada", 0))
    harness = restarted(harness, sk.TTL(changed), tmp_path)
    harness.advance_processing_time(at(expires - 1))
    assert harness.state("visits", "ada") == 1
    harness.advance_processing_time(at(expires))
    assert harness.state("visits", "ada") is None
    harness.advance_processing_time(at(expires + 3 * 3600))
    assert rows_left(harness) == {}


def test_a_ttl_that_moves_to_another_clock_begins_anew_for_all_rows(tmp_path: Path) -> None:
    harness = Harness(visits(sk.TTL("1 hour")))
    harness.send(seen("ada", 0), seen("bob", 0))
    harness = restarted(harness, sk.TTL("1 hour", clock="event"), tmp_path)
    assert harness.send(seen("ada", 0.5)) == [2]
    harness.advance_watermark(at(3600 - 1))
    assert (harness.state("visits", "ada"), harness.state("visits", "bob")) == (2, 1)
    harness.advance_watermark(at(3600))
    assert (harness.state("visits", "ada"), harness.state("visits", "bob")) == (2, None)


def test_the_index_of_the_former_clock_goes(tmp_path: Path) -> None:
    harness = Harness(visits(sk.TTL("1 hour", clock="event")))
    harness.send(seen("ada", 24 * 365 * 30), seen("bob", 24 * 365 * 30))
    harness = restarted(harness, sk.TTL("1 hour"), tmp_path)
    assert harness.send(seen("ada", 24 * 365 * 30 + 1)) == [2]
    harness.advance_processing_time(at(3 * 3600))
    harness.advance_processing_time(at(6 * 3600))
    assert rows_left(harness) == {}


def test_a_row_that_both_indexes_know_is_counted_once_when_it_goes(tmp_path: Path) -> None:
    harness = Harness(visits(sk.TTL("1 hour", clock="event")))
    harness.send(seen("ada", 24 * 365 * 30), seen("bob", 24 * 365 * 30))
    harness = restarted(harness, sk.TTL("1 hour"), tmp_path, shards=1)
    harness.send(seen("ada", 24 * 365 * 30 + 1))
    harness.advance_processing_time(at(3 * 3600))
    assert rows_left(harness) == {}


def test_the_same_rows_expire_after_a_change_of_parallelism(tmp_path: Path) -> None:
    harness = Harness(visits(sk.TTL("1 hour")), parallelism=2)
    harness.send(*(seen(f"user {number}", 0) for number in range(20)))
    harness = restarted(harness, sk.TTL("1 hour"), tmp_path, shards=5)
    harness.advance_processing_time(at(1800))
    assert harness.send(seen("user 3", 1)) == [2]
    harness.advance_processing_time(at(4000))
    assert [harness.state("visits", f"user {number}") for number in (3, 4)] == [2, None]
    assert rows_left(harness) == {"visits": 1, "_expiry": 1}


def test_a_changed_type_is_refused_with_or_without_a_ttl(tmp_path: Path) -> None:
    harness = Harness(visits(sk.TTL("1 hour")))
    harness.send(seen("ada", 0))
    harness.checkpoint(tmp_path / "checkpoint")
    declared = visits(None)
    declared.fn.__annotations__["visits"] = sk.ValueState[str]
    other: sk.Process[Any, Any, Any] = sk.process(key="user", event_time="at")(declared.fn)
    with pytest.raises(StateSchemaError, match="changed its type"):
        Harness.restore(other, tmp_path / "checkpoint")


# ------------------------------------------------------------------------------------- readers


def test_external_readers_see_the_rows_that_had_not_expired_in_the_epoch(tmp_path: Path) -> None:
    def keep(
        record: Seen,
        last: Annotated[sk.ValueState[str], sk.TTL("3 hours", clock="event")],
        pages: Annotated[sk.ListState[str], sk.TTL("3 hours", clock="event")],
        times: Annotated[sk.MapState[str, int], sk.TTL("3 hours", clock="event")],
    ) -> None:
        last.update(record.page)
        pages.append(record.page)
        times[record.page] = times.get(record.page, 0) + 1

    harness = Harness(sk.process(key="user", event_time="at")(keep), checkpoint=tmp_path)
    harness.send(seen("ada", 0, "/a"), seen("bob", 0, "/a"))
    harness.send(seen("ada", 2, "/b"))
    harness.advance_watermark(at(3600 * 3))
    reader = CheckpointReader(tmp_path)
    assert reader.get("keep", "last", "ada") == "/b"
    assert reader.get("keep", "pages", "ada") == ["/b"]
    assert reader.get("keep", "times", "ada") == {"/b": 1}
    assert reader.get("keep", "last", "bob") is None
    assert dict(reader.rows("keep", "pages", tmp_path / "scratch")) == {"ada": ["/b"]}
    before = CheckpointReader(tmp_path, epoch=1)
    assert before.get("keep", "pages", "ada") == ["/a", "/b"]


def test_inspect_shows_when_state_expires(tmp_path: Path) -> None:
    harness = Harness(visits(sk.TTL("90 minutes")), checkpoint=tmp_path)
    harness.send(seen("ada", 0))
    (state,) = CheckpointReader(tmp_path).operator("count").states
    assert state.ttl == sk.TTL("90 minutes").record
    job = sk.Job("shown")
    job.source("seen", Seen).process(visits(sk.TTL("90 minutes", clock="event", refresh="read")))
    assert "expires 1:30:00 after the last read or write in event time" in str(job)


# --------------------------------------------------------------------------------- declarations


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sk.TTL("0 s"), "would keep nothing"),
        (lambda: sk.TTL("soon"), "give a timedelta or a text"),
        (lambda: sk.TTL(dt.timedelta(seconds=-1)), "from 0 to 9998 years"),
        (lambda: sk.TTL("1 h", clock="wall"), 'use "processing" or "event"'),  # type: ignore[arg-type]
        (lambda: sk.TTL("1 h", refresh="always"), 'use "write" or "read"'),  # type: ignore[arg-type]
    ],
)
def test_a_ttl_that_cannot_be_is_refused_where_it_is_written(
    make: Callable[[], sk.TTL], message: str
) -> None:
    with pytest.raises(StateTypeError, match=message):
        make()


def test_expiry_in_event_time_needs_an_event_time() -> None:
    with pytest.raises(StateTypeError, match=r"parameter 'visits': there is no event time"):

        @sk.process(key="user")
        def count(
            record: Seen, visits: Annotated[sk.ValueState[int], sk.TTL("1 hour", clock="event")]
        ) -> None: ...


def test_an_epoch_that_is_run_again_finds_the_same_expired(tmp_path: Path) -> None:
    """The instant is noted before the epoch runs, so a failed attempt and its successor agree."""
    job = sk.Job("again")
    job.source("seen", Seen).process(visits(sk.TTL("1 hour"))).sink("out")
    clock = [0]
    inputs = {"seen": [seen("ada", 0), seen("ada", 1)]}

    def fails(records: list[Any], epoch: int) -> None:
        if epoch == 1:
            raise RuntimeError("the sink is down")
        clock[0] = 3_599_000_000

    def run(output: Callable[[list[Any], int], None]) -> None:
        job.run(
            inputs,
            outputs={"out": output},
            checkpoint=tmp_path,
            epoch_size=1,
            drain=False,
            clock=lambda: clock[0],
        )

    with pytest.raises(sk.ProcessError, match="RuntimeError"):
        run(fails)
    clock[0] = 3_700_000_000
    collected: list[Any] = []
    run(lambda records, epoch: collected.extend(records))
    assert collected == [2]


def test_a_stamp_that_is_cut_short_is_found() -> None:
    with pytest.raises(sk.CorruptCheckpointError, match="cut short within its stamp"):
        expiry.unstamped(b"\xc1\x01\x00", Era(1))


@pytest.mark.parametrize("seconds", [-62_135_596_800, -1, 253_402_300_799])
def test_the_first_and_the_last_instants_can_be_times_of_writing(seconds: int) -> None:
    harness = Harness(visits(sk.TTL("9000 days", clock="event"), lateness="9000 weeks"))
    harness.send(Seen("ada", at(0) + dt.timedelta(seconds=seconds)))
    assert harness.state("visits", "ada") == 1
    harness.send(Seen("ada", at(0) + dt.timedelta(seconds=seconds)))
    assert rows_left(harness)["visits"] == 1
