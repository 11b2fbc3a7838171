"""Operators in one pass: the results of running apart, in half as many tasks."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame

import statekit as sk
from tests.support.effort import SOAK
from tests.support.spark_runs import Runs, pieces

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
SCHEMA = "player string, points long, at timestamp"


class Move(NamedTuple):
    player: str
    points: int
    at: dt.datetime


class Told(NamedTuple):
    player: str
    points: int
    at: dt.datetime
    task: int
    before: int


def task() -> int:
    """The task of Spark that this runs in; 0 without Spark."""
    context = TaskContext.get()
    return 0 if context is None else context.taskAttemptId()


@sk.process(key="player", event_time="at", lateness="10 minutes")
def total(
    move: Move, ctx: sk.Context, sum: sk.ValueState[int], all: sk.ListState[int]
) -> Iterator[Told]:
    sum.update((sum.get() or 0) + move.points)
    all.append(move.points)
    ctx.timers.set(move.at + dt.timedelta(hours=1))
    yield Told(move.player, sum.get() or 0, move.at, task(), 0)


@total.on_timer
def closed(timer: sk.Timer, ctx: sk.Context[str], all: sk.ListState[int]) -> Iterator[Told]:
    yield Told(ctx.key, -len(all), timer.at, task(), 0)


@sk.process(key="player", event_time="at")
def rising(told: Told, ctx: sk.Context, last: sk.ValueState[int]) -> Iterator[Told]:
    if told.points > (last.get() or 0) or told.points < 0:
        last.update(told.points)
        yield told._replace(task=task(), before=told.task)


@sk.process(key="player")
def renamed(move: Move, n: sk.ValueState[int]) -> Iterator[Move]:
    n.update((n.get() or 0) + 1)
    yield move._replace(player=move.player + "'" * (n.get() or 0))


@sk.process(key="player")
def counted(move: Move, n: sk.ValueState[int]) -> Iterator[Told]:
    n.update((n.get() or 0) + 1)
    yield Told(move.player, n.get() or 0, move.at, task(), 0)


def moves() -> list[Move]:
    return [
        Move(f"p{n % 7}", (n * 37) % 11, NOON + dt.timedelta(minutes=n * 5 % 97)) for n in range(90)
    ]


def rising_totals() -> sk.Job:
    job = sk.Job("games")
    job.source("moves", Move).process(total).process(rising).sink("out")
    return job


def feed(runs: Runs, given: list[Move]) -> None:
    for piece in pieces(given, 30):
        runs.feed("moves", [move._asdict() for move in piece])


def found(runs: Runs) -> list[Told]:
    return [Told(**row) for row in runs.parquet("out")]


def comparable(told: list[Told]) -> list[tuple[str, int, dt.datetime]]:
    return sorted(found[:3] for found in told)


@pytest.mark.soak
@pytest.mark.parametrize("callback", [False, True] if SOAK else [False])
def test_chained_operators_have_the_same_results_and_run_in_the_same_tasks(
    runs: Runs, callback: bool
) -> None:
    given, collected = moves(), list[Told]()

    def collect(df: DataFrame, epoch: int) -> None:
        rows = [Told(*row) for row in df.collect()]
        collected.extend(told._replace(at=told.at.replace(tzinfo=dt.UTC)) for told in rows)

    feed(runs, given)
    sink = collect if callback else sk.sinks.parquet(runs.home / "out")
    stream = runs.stream("moves", SCHEMA)
    runs.finish(rising_totals(), {"moves": stream}, outputs={"out": sink}, drain=True)
    told = collected if callback else found(runs)
    expected = rising_totals().run({"moves": given}, epoch_size=30).outputs["out"]
    assert comparable(told) == comparable(expected)
    assert any(each.points < 0 for each in told), "timers of the first one fed the second"
    assert all(each.task == each.before for each in told)
    held = {each.player: each.points for each in expected}
    assert runs.state("rising", "last") == held


LISTED: sk.Aggregate[int, list[int], list[int]] = sk.Aggregate(
    list, lambda held, points: [*held, points], sorted
)


def points_of_hours(own: bool) -> sk.Job:
    """A job with `collect`, or with an aggregate of its own."""
    job = sk.Job("games")
    totals = job.source("moves", Move).process(total)
    hours = totals.window(sk.tumbling("1 hour"), key="player", event_time="at")
    if own:
        types: dict[str, Any] = {"accumulator": list[int], "result": list[int]}
        hours.aggregate(
            listed=sk.OwnAggregate(LISTED, **types, field="points"), name="listed"
        ).sink("out")
    else:
        hours.collect("points").sink("out")
    return job


@pytest.mark.parametrize(
    ("own", "called"),
    [
        (False, "added to windows and fired for many keys at a time, in the same tasks as total"),
        (True, "called with the records of a key together, in the same tasks as total"),
    ],
)
def test_windows_take_records_together_where_they_are_made(
    runs: Runs, own: bool, called: str
) -> None:
    """Those of its timers come behind those of all keys, and so a second time."""
    given = moves()
    feed(runs, given)
    sink = sk.sinks.parquet(runs.home / "out")
    stream = runs.stream("moves", SCHEMA)
    assert points_of_hours(own).explain().endswith(called)
    runs.finish(points_of_hours(own), {"moves": stream}, outputs={"out": sink}, drain=True)
    found = sorted(tuple(row.values()) for row in runs.parquet("out"))
    expected = points_of_hours(own).run({"moves": given}, epoch_size=30).outputs["out"]
    assert found == sorted(map(tuple, expected))
    assert any(points < 0 for row in found for points in row[3]), "timers of the first fed windows"


def test_records_of_other_shards_part_them_and_nothing_is_lost(runs: Runs) -> None:
    def job() -> sk.Job:
        made = sk.Job("games")
        made.source("moves", Move).process(renamed).process(counted).sink("out")
        return made

    given = moves()
    feed(runs, given)
    sink = sk.sinks.parquet(runs.home / "out")
    runs.finish(job(), {"moves": runs.stream("moves", SCHEMA)}, outputs={"out": sink})
    expected = job().run({"moves": given}, epoch_size=30).outputs["out"]
    assert comparable(found(runs)) == comparable(expected)
