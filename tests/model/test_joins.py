"""Joins as process functions: what people who come from other stream processors expect.

The ids are those of the case collection: `B` Beam, `W` bytewax, `Q` quix. Those without an id are
what guides of Flink (`connect`) and Spark (stream-stream joins) promise.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Literal, NamedTuple

import pytest

import statekit as sk
from statekit.testing import Harness
from tests.support.instants import after, at

Backend = Literal["memory", "rocksdb"]
BACKENDS: list[Backend] = ["memory", "rocksdb"]


class Left(NamedTuple):
    key: str
    at: dt.datetime
    value: str


class Right(NamedTuple):
    key: str
    at: dt.datetime
    value: str


class Pair(NamedTuple):
    key: str
    left: str | None
    right: str | None


def left(key: str, seconds: float, value: str) -> Left:
    return Left(key, at(seconds), value)


def right(key: str, seconds: float, value: str) -> Right:
    return Right(key, at(seconds), value)


# ------------------------------------------------------------------------------------------ Beam


@sk.process(key="key", event_time="at")
def hash_join(
    record: Left | Right, ctx: sk.Context, waiting: sk.ValueState[str]
) -> Iterator[tuple[str, ...]]:
    found = waiting.get()
    if found is None:
        waiting.update(record.value)
        ctx.timers.set(at(100))
        return
    waiting.clear()
    ctx.timers.delete(at(100))
    yield record.key, found, record.value


@hash_join.on_timer
def unmatched(timer: sk.Timer, waiting: sk.ValueState[str]) -> Iterator[tuple[str, ...]]:
    found = waiting.get()
    assert found is not None
    waiting.clear()
    yield "unmatched", found


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_hash_join_pairs_records_and_a_timer_reports_those_without_a_match(
    backend: Backend, parallelism: int
) -> None:
    """B19: what is buffered is put out with what comes next, or alone when the watermark is 100."""
    harness = Harness(hash_join, parallelism=parallelism, backend=backend)
    found = harness.advance_watermark(at(10))
    found += harness.send(left("A", 11, "a"), left("B", 11, "b"))
    found += harness.send(right("A", 12, "aa"), left("C", 12, "c"))
    found += harness.advance_watermark(at(25))
    found += harness.send(left("A", 26, "aaa"), right("B", 26, "bb"))
    found += harness.send(left("D", 27, "d"), right("D", 27, "dd"), left("D", 27, "ddd"))
    found += harness.send(right("D", 28, "dddd"))
    found += harness.advance_watermark(at(125))
    found += harness.send(right("C", 126, "cc"))
    assert sorted(found) == [
        ("A", "a", "aa"),
        ("B", "b", "bb"),
        ("D", "d", "dd"),
        ("D", "ddd", "dddd"),
        ("unmatched", "aaa"),
        ("unmatched", "c"),
        ("unmatched", "cc"),
    ]


# --------------------------------------------------------------------------------------- bytewax


def join_of(
    keep: Literal["first", "last", "product"], emit: Literal["running", "final"]
) -> sk.Process[Left | Right, ..., Pair]:
    """One join for every way to keep what comes, and to put it out."""

    @sk.process(key="key", event_time="at")
    def joined(
        record: Left | Right, ctx: sk.Context, lefts: sk.ListState[str], rights: sk.ListState[str]
    ) -> Iterator[Pair]:
        side = lefts if isinstance(record, Left) else rights
        if keep == "last":
            side.update([record.value])
        elif keep == "product" or not len(side):
            side.append(record.value)
        if emit == "running":
            yield Pair(record.key, next(iter(lefts), None), next(iter(rights), None))
        else:
            ctx.timers.replace(record.at + after(3600))

    @joined.on_timer
    def final(
        timer: sk.Timer, ctx: sk.Context[str], lefts: sk.ListState[str], rights: sk.ListState[str]
    ) -> Iterator[Pair]:
        yield from (Pair(ctx.key, one, other) for one in lefts for other in rights)

    return joined


@pytest.mark.parametrize(
    ("keep", "emit", "lefts", "rights", "expected"),
    [
        ("last", "final", "1", "23", ["13"]),
        ("first", "final", "1", "23", ["12"]),
        ("last", "running", "1", "23", ["1-", "12", "13"]),
        ("product", "final", "12", "34", ["13", "14", "23", "24"]),
    ],
)
def test_a_join_keeps_and_emits_the_records_that_its_function_chooses(
    keep: Literal["first", "last", "product"],
    emit: Literal["running", "final"],
    lefts: str,
    rights: str,
    expected: list[str],
) -> None:
    """W15: the modes of a join are a few lines of a process function."""
    job = sk.Job("joins")
    union = job.source("left", Left).union(job.source("right", Right))
    union.process(join_of(keep, emit)).sink("out")
    done = job.run(
        {
            "left": [left("k", second, value) for second, value in enumerate(lefts)],
            "right": [right("k", second, value) for second, value in enumerate(rights)],
        }
    )
    assert [f"{pair.left or '-'}{pair.right or '-'}" for pair in done.outputs["out"]] == expected


# ------------------------------------------------------------------------------------------ quix


def as_of(how: Literal["inner", "left"], grace_s: float) -> sk.Process[Left | Right, ..., Pair]:
    """Each left record with the last right one that is not later."""

    @sk.process(key="key")
    def as_of(
        record: Left | Right, rights: sk.MapState[dt.datetime, str], latest: sk.ValueState[float]
    ) -> Iterator[Pair]:
        second = record.at.timestamp()
        if isinstance(record, Right):
            latest.update(max(second, latest.get() or second))
            oldest = at((latest.get() or second) - grace_s)
            if record.at >= oldest:
                rights[record.at] = record.value
            for expired in [time for time, _ in rights.scan(hi=oldest)]:
                del rights[expired]
            return
        found = [value for _, value in rights.scan(hi=record.at + dt.datetime.resolution)]
        if found or how == "left":
            yield Pair(record.key, record.value, found[-1] if found else None)

    return as_of


@pytest.mark.parametrize("how", ["inner", "left"])
def test_an_as_of_join_finds_the_last_record_before(how: Literal["inner", "left"]) -> None:
    """Q11: with the right one at 1 a left one at 2 is merged; without one, it depends on `how`."""
    harness = Harness(as_of(how, 10))
    assert harness.send(right("k", 1, "r2"), left("k", 2, "l")) == [Pair("k", "l", "r2")]
    alone = Harness(as_of(how, 10)).send(left("k", 2, "l"))
    assert alone == ([] if how == "inner" else [Pair("k", "l", None)])


def test_an_as_of_join_removes_records_older_than_its_grace() -> None:
    """Q11: grace 10, at 15: what is at 4 is not kept, what is at 5 is."""
    harness = Harness(as_of("left", 10))
    harness.send(right("k", 15, "r15"))
    harness.send(right("k", 4, "r4"), right("k", 5, "r5"))
    assert list(harness.state("rights", "k")) == [at(5), at(15)]
    assert harness.send(left("k", 4, "l4"), left("k", 5, "l5"), left("k", 15, "l15")) == [
        Pair("k", "l4", None),
        Pair("k", "l5", "r5"),
        Pair("k", "l15", "r15"),
    ]


# ---------------------------------------------------------------------------------- Flink, Spark


@sk.process(key="key")
def controlled(word: Left | Right, blocked: sk.ValueState[bool]) -> Iterator[str]:
    """The right stream says which words of the left one are blocked."""
    if isinstance(word, Right):
        blocked.update(word.value == "block")
    elif not blocked.get():
        yield word.value


def test_a_control_record_affects_later_records_of_its_own_key_only() -> None:
    harness = Harness(controlled, parallelism=3)
    assert harness.send(left("a", 1, "a1"), right("a", 1, "block"), left("a", 1, "a2")) == ["a1"]
    assert harness.send(left("a", 1, "a3"), left("b", 1, "b1")) == ["b1"]
    assert harness.send(right("a", 1, "free"), left("a", 1, "a4")) == ["a4"]


@sk.process(key="key")
def enriched(
    event: Left | Right, ride: sk.ValueState[str], fare: sk.ValueState[str]
) -> Iterator[Pair]:
    """One of each per key, and whichever comes first waits for the other."""
    mine, other = (ride, fare) if isinstance(event, Left) else (fare, ride)
    if other.get() is None:
        mine.update(event.value)
    else:
        yield Pair(
            event.key,
            event.value if mine is ride else ride.get(),
            event.value if mine is fare else fare.get(),
        )
        other.clear()


@pytest.mark.parametrize("backend", BACKENDS)
def test_rides_are_enriched_with_fares_whichever_comes_first(backend: Backend) -> None:
    harness = Harness(enriched, parallelism=2, backend=backend)
    assert harness.send(left("1", 0, "ride 1"), right("2", 0, "fare 2")) == []
    harness.crash()
    found = harness.send(right("1", 0, "fare 1"), left("2", 0, "ride 2"))
    assert sorted(found) == [Pair("1", "ride 1", "fare 1"), Pair("2", "ride 2", "fare 2")]
    assert [harness.state(name, key) for name in ("ride", "fare") for key in "12"] == [None] * 4


@sk.process(key="key", event_time="at", lateness="2 seconds")
def outer_join(
    record: Left | Right,
    ctx: sk.Context,
    lefts: sk.MapState[dt.datetime, str],
    rights: sk.MapState[dt.datetime, str],
) -> Iterator[Pair]:
    """LEFT OUTER JOIN … ON key AND right.at BETWEEN left.at AND left.at + 10 seconds."""
    if isinstance(record, Left):
        found = [value for _, value in rights.scan(record.at, record.at + after(10.000001))]
        yield from (Pair(record.key, record.value, other) for other in found)
        if not found:
            lefts[record.at] = record.value
            ctx.timers.set(record.at + after(10))
        return
    rights[record.at] = record.value
    ctx.timers.set(record.at + after(10), "forget")
    for time, value in list(lefts.scan(record.at - after(10), record.at + dt.datetime.resolution)):
        yield Pair(record.key, value, record.value)
        del lefts[time]


@outer_join.on_timer
def without_match(
    timer: sk.Timer, ctx: sk.Context[str], lefts: sk.MapState[dt.datetime, str]
) -> Iterator[Pair]:
    value = lefts.pop(timer.at - after(10), None)
    if value is not None:
        yield Pair(ctx.key, value, None)


@outer_join.on_timer("forget")
def forget(timer: sk.Timer, rights: sk.MapState[dt.datetime, str]) -> None:
    del rights[timer.at - after(10)]


def test_an_outer_join_emits_records_that_can_find_no_match_any_more() -> None:
    """Spark's advertisements and clicks: the null row comes once the watermark says so."""
    harness = Harness(outer_join, parallelism=2)
    assert harness.send(left("ad", 0, "shown"), left("ad", 100, "again")) == []
    found = harness.send(right("ad", 104, "clicked"), right("other", 99, "stray"))
    assert found == [Pair("ad", "again", "clicked"), Pair("ad", "shown", None)]
    assert harness.send(left("other", 98, "late")) == [], (
        "at the watermark of 104 less 2, or before"
    )
    assert harness.late == [left("other", 98, "late")]
    harness.advance_watermark(at(200))
    assert [harness.state("rights", key) for key in ("ad", "other")] == [{}, {}], "nothing is left"


def test_the_input_that_is_behind_decides_when_nothing_can_match_any_more() -> None:
    """As Spark's policy `min`, its default, for queries with several watermarks."""
    job = sk.Job("ads")
    union = job.source("shown", Left).union(job.source("clicked", Right))
    union.process(outer_join).sink("out")
    shown = [left("ad", 0, "one"), *(left("other", 100 + n, "more") for n in range(3))]
    clicked = [right("other", 1, "a"), right("other", 2, "b"), right("ad", 5, "c")]
    done = job.run({"shown": shown, "clicked": clicked}, epoch_size=1)
    assert Pair("ad", "one", "c") in done.outputs["out"], (
        "the click is in time, since clicks are behind"
    )
