"""Jobs of several operators: shared rows, passes and sinks beside each other, inputs read once."""

from __future__ import annotations

import datetime as dt
import itertools
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame

import statekit as sk
from tests.support.spark_runs import Runs, pieces

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
SCHEMA = "player string, points long, game string, at timestamp"
PATIENCE_S = 60


class Move(NamedTuple):
    player: str
    points: int
    game: str
    at: dt.datetime


class Points(NamedTuple):
    """A part of a move."""

    points: int
    player: str


class Found(NamedTuple):
    player: str
    value: int
    task: int


def task() -> int:
    """The task of Spark that this runs in; 0 without Spark."""
    context = TaskContext.get()
    return 0 if context is None else context.taskAttemptId()


@sk.process(key="player", event_time="at", lateness="10 minutes")
def total(move: Move, ctx: sk.Context, sum: sk.ValueState[int]) -> Iterator[Found]:
    sum.update((sum.get() or 0) + move.points)
    ctx.timers.set(move.at + dt.timedelta(hours=1))
    yield Found(move.player, sum.get() or 0, task())


@total.on_timer
def closed(timer: sk.Timer, ctx: sk.Context[str], sum: sk.ValueState[int]) -> Iterator[Found]:
    yield Found(ctx.key, -(sum.get() or 0), task())


@sk.process(key="player", event_time="at", lateness="10 minutes", ordered=True)
def in_order(move: Move, log: sk.ListState[int]) -> Iterator[Found]:
    log.append(move.points)
    yield Found(move.player, len(log), task())


@sk.process(key="player")
def highest(points: Points, most: sk.ValueState[int]) -> Iterator[Found]:
    if points.points > (most.get() or -1):
        most.update(points.points)
        yield Found(points.player, points.points, task())


@sk.process(key="player")
def silent(moves: Iterator[Move], count: sk.ValueState[int]) -> None:
    count.update((count.get() or 0) + sum(1 for _ in moves))


@sk.process(key="player")
def rows(row: dict[str, Any], games: sk.MapState[str, int]) -> Iterator[Found]:
    games[row["game"]] = games.get(row["game"], 0) + 1
    yield Found(row["player"], games[row["game"]], task())


@sk.process(key="player")
def best(found: Found, most: sk.ValueState[int]) -> Iterator[Found]:
    if found.value > (most.get() or 0):
        most.update(found.value)
        yield found._replace(task=task())


def all_of_players() -> sk.Job:
    job = sk.Job("games")
    moves = job.source("moves", Move)
    totals = moves.process(total)
    totals.late.sink("late")
    totals.sink("totals")
    moves.process(in_order).process(best).sink("best")
    moves.process(silent)
    return job


def any_type_of_players() -> sk.Job:
    job = sk.Job("games")
    moves = job.source("moves", dict)
    moves.process(rows).sink("rows")
    moves.map(lambda row: Points(row["points"], row["player"]), into=Points, name="points").process(
        highest
    ).sink("high")
    return job


def moves() -> list[Move]:
    return [
        Move(f"p{n % 7}", (n * 37) % 11, f"g{n % 3}", NOON + dt.timedelta(minutes=n * 5 % 97))
        for n in range(90)
    ]


def feed(runs: Runs, given: list[Move]) -> DataFrame:
    for piece in pieces(given, 30):
        runs.feed("moves", [move._asdict() for move in piece])
    return runs.stream("moves", SCHEMA)


def run(
    runs: Runs, job: sk.Job, stream: DataFrame, **options: Any
) -> dict[str, list[dict[str, Any]]]:
    names = [sink.name for sink in job.plan.sinks]
    outputs = {name: sk.sinks.parquet(runs.home / name) for name in names}
    runs.finish(job, {"moves": stream}, outputs=outputs, **options)
    return {name: runs.parquet(name) for name in names}


def comparable(rows: Iterable[Any]) -> list[tuple[Any, ...]]:
    given = [row if isinstance(row, dict) else row._asdict() for row in rows]
    return sorted(tuple(value for name, value in row.items() if name != "task") for row in given)


def test_operators_that_share_rows_have_the_same_results_in_the_same_tasks(runs: Runs) -> None:
    given, job = moves(), all_of_players()
    assert job.explain().count("shuffled once") == 1
    found = run(runs, job, feed(runs, given), drain=True, parallelism=3)
    expected = all_of_players().run({"moves": given}, epoch_size=30)
    for name in ("totals", "best", "late"):
        assert comparable(found[name]) == comparable(expected[name]), name
    assert found["late"], "some were late"
    tasks = [{row["task"] for row in found[name]} for name in ("totals", "best")]
    assert tasks[1]
    assert tasks[1] <= tasks[0]
    counts = {player: sum(move.player == player for move in given) for player, *_ in given}
    assert runs.state("silent", "count") == counts


def test_operators_that_transforms_feed_share_rows_with_others(runs: Runs) -> None:
    given, job = moves(), any_type_of_players()
    assert job.explain().count("shuffled once") == 1
    found = run(runs, job, feed(runs, given), parallelism=2)
    dicts = [move._asdict() for move in given]
    expected = any_type_of_players().run({"moves": dicts}, epoch_size=30)
    for name in ("rows", "high"):
        assert comparable(found[name]) == comparable(expected[name]), name


@sk.process(key="player")
def renamed(move: Move, n: sk.ValueState[int]) -> Iterator[Move]:
    n.update((n.get() or 0) + 1)
    yield move._replace(player=move.player + "'" * (n.get() or 0))


def test_records_of_other_shards_leave_a_shared_pass_and_nothing_is_lost(runs: Runs) -> None:
    def job() -> sk.Job:
        made = sk.Job("games")
        moves = made.source("moves", Move)
        moves.process(total).sink("totals")
        moves.process(renamed).process(silent)
        return made

    given = moves()
    found = run(runs, job(), feed(runs, given), parallelism=3)
    expected = job().run({"moves": given}, epoch_size=30, drain=False)
    assert comparable(found["totals"]) == comparable(expected["totals"])
    assert sum(runs.state("silent", "count").values()) == len(given)


@sk.process(key="player")
def slow(move: Move, n: sk.ValueState[int]) -> Iterator[Found]:
    until = time.process_time() + 0.01
    while time.process_time() < until:
        pass
    yield Found(move.player, 1, task())


@sk.process(key="player")
def quick(found: Found, n: sk.ValueState[int]) -> Iterator[Found]:
    yield found


def test_the_cpu_of_each_operator_is_measured_by_itself_and_explained(runs: Runs) -> None:
    def job() -> sk.Job:
        made = sk.Job("games")
        moves = made.source("moves", Move)
        moves.process(silent)
        moves.process(slow).process(quick).sink("out")
        return made

    given = moves()[:30]
    with pytest.raises(sk.RestoreError, match="there is no checkpoint"):
        job().explain(runs.checkpoint)
    stream = feed(runs, given)
    outputs = {"out": sk.sinks.parquet(runs.home / "out")}
    query = runs.finish(job(), {"moves": stream}, outputs=outputs, parallelism=2)
    assert query.last_progress is not None
    spent = query.last_progress.cpu_seconds
    assert spent["slow"] >= 0.3
    assert 0 < spent["quick"] < 0.3
    assert 0 < spent["silent"] < 0.3
    explained = job().explain(runs.checkpoint)
    assert explained.startswith(job().explain())
    (total, first, *_) = explained.removeprefix(job().explain()).strip().splitlines()
    assert total == f"epoch 0, {sum(spent.values()):.2f} s of CPU in workers"
    assert first.strip().startswith(f"slow: {spent['slow']:.2f} s (")
    assert first.endswith("for 30 records, 2 shards")


# ------------------------------------------------------------------------ beside each other


def meet(home: str, own: str, other: str) -> None:
    """Wait for another action that runs at the same time."""
    Path(home, own).touch()
    deadline = time.monotonic() + PATIENCE_S
    while not Path(home, other).exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{other} does not run while {own} does")
        time.sleep(0.01)


class Place(NamedTuple):
    home: str
    key: int
    other: int


@sk.process(key="key")
def one(place: Place, n: sk.ValueState[int]) -> Iterator[Place]:
    meet(place.home, "one", "other")
    yield place


@sk.process(key="other")
def other(place: Place, n: sk.ValueState[int]) -> Iterator[Place]:
    meet(place.home, "other", "one")
    yield place


def meeting() -> sk.Job:
    job = sk.Job("meeting")
    places = job.source("places", Place)
    places.process(one).sink("ones")
    places.process(other).sink("others")
    return job


def test_passes_that_do_not_need_each_other_run_at_the_same_time(runs: Runs) -> None:
    runs.feed("places", [{"home": str(runs.home), "key": 1, "other": 1}])
    stream = runs.stream("places", "home string, key long, other long")
    outputs = {name: sk.sinks.writer("noop") for name in ("ones", "others")}
    query = runs.finish(meeting(), {"places": stream}, outputs=outputs, parallelism=1)
    assert query.epoch == 0


class Calls:
    """Callbacks, and how many ran at a time."""

    def __init__(self) -> None:
        self.running: set[str] = set()
        self.together: set[frozenset[str]] = set()

    def of(self, name: str, *expected: str) -> Any:
        def call(df: DataFrame, epoch: int) -> None:
            self.running.add(name)
            deadline = time.monotonic() + PATIENCE_S
            while not {*expected} <= self.running and time.monotonic() < deadline:
                time.sleep(0.01)
            self.together.add(frozenset(self.running))
            time.sleep(0.1)
            self.running.discard(name)

        return call


@pytest.mark.parametrize("concurrent", [False, True])
def test_a_callback_runs_alone_unless_it_may_run_beside_others(
    runs: Runs, concurrent: bool
) -> None:
    calls, names = Calls(), ("rows", "high")
    expected = names if concurrent else ()
    outputs = {
        name: sk.sinks.callback(calls.of(name, *expected), concurrent=concurrent) for name in names
    }
    runs.finish(any_type_of_players(), {"moves": feed(runs, moves()[:30])}, outputs=outputs)
    assert (frozenset(names) in calls.together) == concurrent
    if not concurrent:
        assert calls.together == {frozenset({name}) for name in names}


def test_an_input_that_several_passes_and_sinks_read_is_computed_once(runs: Runs) -> None:
    log = runs.home / "computed"

    def noted(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            with log.open("a") as file:
                file.write("x" * batch.num_rows)
            yield batch

    def job() -> sk.Job:
        made = sk.Job("games")
        moves = made.source("moves", Move)
        totals = moves.process(total)
        totals.sink("totals")
        totals.late.sink("late")
        moves.aggregate(key="game", moves=sk.Count()).sink("games")
        return made

    given = moves()
    stream = feed(runs, given).mapInArrow(noted, SCHEMA)
    run(runs, job(), stream)
    assert len(log.read_text()) == len(given)


def test_microseconds_stay_in_all_files_that_are_written_at_the_same_time(runs: Runs) -> None:
    class At(NamedTuple):
        player: str
        at: dt.datetime

    def instant(move: Move) -> At:
        return At(move.player, move.at + dt.timedelta(microseconds=1))

    job = sk.Job("games")
    stream = job.source("moves", Move)
    for number in range(6):
        stream.map(instant, into=At, name=f"instants{number}").sink(f"out{number}")
    stream.process(silent)
    found = run(runs, job, feed(runs, moves()[:30]))
    instants = {row["at"].microsecond for rows in found.values() for row in rows}
    assert instants == {1}
    assert runs.spark.conf.get("spark.sql.parquet.outputTimestampType") == "INT96"
    assert len(list(itertools.chain(*found.values()))) == 180
