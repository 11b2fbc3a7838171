"""Which operators share a shuffle, and what keeps others from it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

import statekit as sk
from statekit.job.chaining import chains, passes
from statekit.job.plan import Input
from statekit.records.union import records_of

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)


class Move(NamedTuple):
    player: str
    game: str
    points: int
    at: dt.datetime = NOON


@sk.process(key="player")
def total(move: Move, sum: sk.ValueState[int]) -> Iterator[Move]:
    sum.update((sum.get() or 0) + move.points)
    yield move._replace(points=sum.get() or 0)


@sk.process(key="player")
def best(move: Move, most: sk.ValueState[int]) -> Iterator[Move]:
    if move.points > (most.get() or 0):
        most.update(move.points)
        yield move


@sk.process(key="game")
def of_game(move: Move, moves: sk.ValueState[int]) -> Iterator[Move]:
    moves.update((moves.get() or 0) + 1)
    yield move


@sk.process(key="player", event_time="at")
def timed(move: Move, moves: sk.ValueState[int]) -> Iterator[Move]:
    yield move


@sk.process()
def dealt(move: Move) -> Iterator[Move]:
    yield move


def job() -> tuple[sk.Job, sk.Stream[Move]]:
    made = sk.Job("games")
    return made, made.source("moves", Move)


def names(made: sk.Job, *strayed: str) -> list[list[str]]:
    return [[operator.name for operator in each.operators] for each in chains(made.plan, strayed)]


def test_operators_that_follow_each_other_with_the_same_key_share_a_pass() -> None:
    made, moves = job()
    moves.process(total).process(best).process(timed).process(of_game).sink("out")
    assert names(made) == [["total", "best", "timed"], ["of_game"]]
    last = chains(made.plan)[-1]
    assert last.apart == "it is keyed by game, and timed by player"


def test_one_that_was_found_to_be_fed_with_other_keys_starts_a_pass_of_its_own() -> None:
    made, moves = job()
    moves.process(total).process(best).process(timed).sink("out")
    assert names(made, "best") == [["total"], ["best", "timed"]]


def _both_sink(total_of: sk.Stream[Move]) -> None:
    total_of.sink("totals")
    total_of.process(best).sink("out")


def _twice(total_of: sk.Stream[Move]) -> None:
    total_of.process(best).sink("out")
    total_of.process(best, name="again").sink("again")


def _late(total_of: sk.Stream[Move]) -> None:
    taken = total_of.process(timed)
    taken.sink("out")
    taken.late.sink("late")


def _union(total_of: sk.Stream[Move]) -> None:
    total_of.plan.sources.append(Input("more", records_of(Move, where="more")))
    more: sk.Stream[Move] = sk.Stream(total_of.plan, "more")
    total_of.union(more).process(best).sink("out")


@pytest.mark.parametrize(
    ("rest", "apart"),
    [
        (_both_sink, "total has other consumers"),
        (_twice, "total has other consumers"),
        (_late, "its late records are wanted"),
        (_union, "it is fed by several streams"),
        (lambda s: s.process(dealt).sink("out"), "it is keyed by nothing, and total by player"),
        (
            lambda s: s.aggregate(key="player", n=sk.Count()).sink("out"),
            "its records are combined before they are shuffled",
        ),
    ],
)
def test_others_run_apart_for_a_reason(rest: Callable[[Any], None], apart: str) -> None:
    made, moves = job()
    rest(moves.process(total))
    assert chains(made.plan)[1].apart == apart
    assert chains(made.plan)[0].apart is None


def of_passes(made: sk.Job, **given: Any) -> list[list[str]]:
    return [[operator.name for operator in each.operators] for each in passes(made.plan, **given)]


def test_operators_of_one_stream_and_one_key_share_a_pass_with_those_that_they_feed() -> None:
    made, moves = job()
    moves.process(of_game).sink("games")
    moves.process(total).process(best).sink("best")
    moves.process(timed).sink("timed")
    assert of_passes(made) == [["of_game"], ["total", "best", "timed"]]


def test_an_operator_of_the_outputs_that_another_one_reads_has_a_pass_of_its_own() -> None:
    made, moves = job()
    totals = moves.process(total)
    totals.process(best).sink("best")
    totals.process(timed).sink("timed")
    assert of_passes(made) == [["total"], ["best", "timed"]]


def test_combined_records_and_round_robin_and_several_streams_are_not_shared() -> None:
    made, moves = job()
    others = made.source("others", Move)
    moves.aggregate(key="player", n=sk.Count()).sink("counted")
    moves.process(dealt).sink("dealt")
    moves.union(others).process(best).sink("best")
    moves.process(timed).sink("timed")
    found = of_passes(made)
    assert sorted(found) == [["aggregate_by_player"], ["best"], ["dealt"], ["timed"]]


def test_an_operator_with_rows_of_its_own_shares_none() -> None:
    made, moves = job()
    for function in (total, best, timed):
        moves.process(function).sink(f"of_{function.name}")
    assert of_passes(made) == [["total", "best", "timed"]]
    assert of_passes(made, alone={"total"}) == [["total"], ["best", "timed"]]
    assert of_passes(made, alone={"best"}) == [["total", "timed"], ["best"]]


# ------------------------------------------------------------------------------------- explained


def test_explain_says_what_shares_a_pass_and_what_comes_after_it() -> None:
    made, moves = job()
    moves.process(timed)
    moves.process(total).process(of_game).sink("games")
    assert (
        made.explain()
        == """job games
pass 1, fed by moves
    reads player, game, points, at of moves, and nothing else
    shuffled once, by the key group of player
    timed: called for each record
    total: called for each record, over the same rows as timed
pass 2, fed by total, after pass 1
    reads player, game, points, at of total, and nothing else
    shuffled once, by the key group of game
    a pass of its own: it is keyed by game, and total by player
    of_game: called for each record"""
    )


def test_explain_describes_a_job_with_reasons() -> None:
    made, moves = job()
    whole = moves.process(total).process(best)
    whole.aggregate(key="player", moves=sk.Count(), mean=sk.Mean("points")).sink("players")
    made.source("rows", dict).process(undeclared).sink("rest")
    assert (
        made.explain()
        == """job games
pass 1, fed by moves
    reads player, game, points, at of moves, and nothing else
    shuffled once, by the key group of player
    total: called for each record
    best: called for each record, in the same tasks as total
pass 2, fed by best, after pass 1
    reads player, points of best, and nothing else
    shuffled once, by the key group of player
    a pass of its own: its records are combined before they are shuffled
    aggregate_by_player: count, sum of points, count of points, combined before the \
shuffle, kept for many keys at a time
pass 3, fed by rows
    reads all columns of rows: a dict does not say which
    distributed round robin over the shards, as there is no key
    undeclared: called for each record"""
    )


@sk.process()
def undeclared(row: dict[str, Any]) -> Iterator[int]:
    yield len(row)
