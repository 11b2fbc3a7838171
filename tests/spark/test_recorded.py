"""What workers of Spark record runs again without Spark, as it ran there."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import pytest

import statekit as sk
from statekit.testing import Replay, replay
from tests.support.spark_runs import Runs, pieces

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
SCHEMA = "player string, points long, at timestamp"


class Move(NamedTuple):
    player: str
    points: int
    at: dt.datetime


@sk.process(key="player", event_time="at", lateness="10 minutes")
def total(move: Move, ctx: sk.Context, sum: sk.ValueState[int]) -> Iterator[Move]:
    sum.update((sum.get() or 0) + 100 // move.points)
    ctx.timers.replace(move.at + dt.timedelta(minutes=30))
    yield move._replace(points=sum.get() or 0)


@total.on_timer
def closed(timer: sk.Timer, ctx: sk.Context[str], sum: sk.ValueState[int]) -> Iterator[Move]:
    yield Move(ctx.key, -(sum.get() or 0), timer.at)
    sum.clear()


@sk.process(key="player")
def rising(move: Move, last: sk.ValueState[int]) -> Iterator[Move]:
    if move.points > (last.get() or 0):
        last.update(move.points)
        yield move


def games() -> sk.Job:
    """Two operators in a chain, and sums that Spark combines in part."""
    job = sk.Job("games")
    moves = job.source("moves", Move)
    moves.process(total).process(rising).sink("rising")
    sums = moves.window(sk.tumbling("10 minutes"), key="player", event_time="at").sum("points")
    sums.sink("sums")
    moves.aggregate(key="player", most=sk.Max("points"), name="most").sink("most")
    return job


OPERATORS = {"rising": "rising", "sums": "sum_points_by_player", "most": "most"}


def moves() -> list[Move]:
    return [Move(f"p{n % 7}", 1 + (n * 37) % 11, NOON + dt.timedelta(minutes=n)) for n in range(90)]


def feed(runs: Runs, given: list[Move]) -> None:
    for piece in pieces(given, 30):
        runs.feed("moves", [move._asdict() for move in piece])


def emitted(runs: Runs, sink: str, epoch: int) -> Counter[str]:
    """What a sink has of an epoch."""
    rows: list[dict[str, Any]] = []
    for path in (runs.home / sink).glob(f"epoch-{epoch:020d}-*.parquet"):
        rows += pq.read_table(path).to_pylist()
    return shown(tuple(row.values()) for row in rows)


def shown(records: Iterable[tuple[Any, ...]]) -> Counter[str]:
    """The records, however their time zone is called."""
    return Counter(
        repr([v.isoformat() if isinstance(v, dt.datetime) else v for v in record])
        for record in records
    )


def test_epochs_of_spark_run_again_without_it(runs: Runs) -> None:
    feed(runs, moves())
    recorder = sk.Recorder(runs.home / "records")
    sinks = {name: sk.sinks.parquet(runs.home / name) for name in OPERATORS}
    stream = runs.stream("moves", SCHEMA)
    runs.finish(games(), {"moves": stream}, outputs=sinks, drain=True, record=recorder)
    replayed = 0
    for epoch in runs.epochs():
        for sink, operator in OPERATORS.items():
            if not (runs.home / "records" / f"{epoch:020d}" / operator).exists():
                assert not emitted(runs, sink, epoch), "nothing to do, nothing emitted"
                continue
            again = replay(
                games(), runs.checkpoint, epoch=epoch, recorded_at=recorder, operator=operator
            )
            assert shown(again) == emitted(runs, sink, epoch)
            replayed += 1
    assert replayed >= 9


def test_what_fails_on_spark_fails_again_without_it(runs: Runs) -> None:
    wrong = Move("p3", 0, NOON + dt.timedelta(minutes=40))
    feed(runs, [*moves()[:45], wrong, *moves()[45:59]])
    recorder = sk.Recorder(runs.home / "records")
    query = runs.start(
        games(),
        {"moves": runs.stream("moves", SCHEMA)},
        outputs={name: sk.sinks.parquet(runs.home / name) for name in OPERATORS},
        trigger={"availableNow": True},
        record=recorder,
    )
    with pytest.raises(sk.ProcessError, match="ZeroDivisionError"):
        query.await_termination(60)
    again = Replay(
        games(), runs.checkpoint, epoch=1, recorded_at=recorder, operator="total", key="p3"
    )
    assert wrong in again.records
    assert again.before("p3")["sum"] > 0
    with pytest.raises(sk.ProcessError, match=r"at key 'p3' in epoch 1 with ZeroDivisionError"):
        again.run()
