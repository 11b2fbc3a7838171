"""Functions that take all records of a key at once, on Spark: one call per key and micro-batch."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa

import statekit as sk
from tests.support.spark_runs import Runs

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
SCHEMA = "player string, points long, at timestamp"


class Move(NamedTuple):
    player: str
    points: int
    at: dt.datetime


class Told(NamedTuple):
    player: str
    moves: int
    points: int
    latest: dt.datetime


class Scored(NamedTuple):
    player: str
    calls: int
    moves: int


@sk.process(key="player", event_time="at", lateness="1 day")
def told(moves: Iterator[Move], ctx: sk.Context[str], held: sk.ValueState[int]) -> Iterator[Told]:
    points = held.get() or 0
    count = 0
    for move in moves:
        points += move.points
        count += 1
    held.update(points)
    yield Told(ctx.key, count, points, ctx.event_time)


@sk.process(key="player")
def scored(
    found: Iterator[Told], calls: sk.ValueState[int], moves: sk.ValueState[int]
) -> Iterator[Scored]:
    calls.update((calls.get() or 0) + 1)
    for each in found:
        moves.update((moves.get() or 0) + each.moves)
        yield Scored(each.player, calls.get() or 0, moves.get() or 0)


def games() -> sk.Job:
    job = sk.Job("games")
    of_players = job.source("moves", Move).process(told)
    of_players.sink("told")
    of_players.process(scored).sink("scored")
    return job


def moves(number: int) -> list[Move]:
    """Those of a micro-batch: some players have more than a batch of Arrow holds."""
    players = ["many"] * 12_000 + ["more"] * 11_000 + [f"p{n}" for n in range(50)]
    return [
        Move(player, n % 7, NOON + dt.timedelta(seconds=number * 100 + n % 90))
        for n, player in enumerate(players)
    ]


def test_a_key_is_called_for_once_however_many_batches_its_records_come_in(runs: Runs) -> None:
    given = [moves(number) for number in range(3)]
    outputs = {name: sk.sinks.parquet(runs.home / name) for name in ("told", "scored")}
    for number, batch in enumerate(given):
        columns = dict(zip(Move._fields, zip(*batch, strict=True), strict=True))
        runs.feed("moves", pa.table(columns))
        runs.finish(
            games(),
            {"moves": runs.stream("moves", SCHEMA)},
            outputs=outputs,
            parallelism=(2, 3, 1)[number],
        )
    expected = games().run(
        {"moves": [move for batch in given for move in batch]}, epoch_size=len(given[0])
    )
    assert sorted(tuple(row.values()) for row in runs.parquet("told")) == sorted(
        expected.outputs["told"]
    )
    assert sorted(tuple(row.values()) for row in runs.parquet("scored")) == sorted(
        expected.outputs["scored"]
    )
    assert Counter(each.calls for each in expected.outputs["scored"]) == {1: 52, 2: 52, 3: 52}
    assert runs.state("scored", "moves")["many"] == 36_000
