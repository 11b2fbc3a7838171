"""Nexmark's queries as jobs come to what plain SQL says, in epochs and shards, out of order."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from statekit.checkpoint.repository import Repository
from tests.bench.nexmark.bids import LATENESS
from tests.bench.nexmark.events import Events
from tests.bench.nexmark.queries import QUERIES
from tests.bench.nexmark.sql import answers
from tests.support.effort import SOAK

COUNT, EPOCHS = 4_000, 4
RATE = 100  # events per second: 40 seconds in all; auctions last up to 33

# Arrive within less than the lateness of each other, and across the ends of epochs.
GROUP = 97


def test_the_events_arrive_out_of_order_and_within_the_lateness() -> None:
    times = Events(1, RATE, GROUP).tables(0, COUNT).bids["at"].to_pylist()
    behind = [max(times[:number]) - time for number, time in enumerate(times[1:500], 1)]
    assert 0.5 < max(behind).total_seconds() < float(LATENESS.split()[0])


def test_events_do_not_depend_on_how_they_are_cut() -> None:
    made = Events(7, group=1000)
    pieces = pa.concat_tables([made.table(first, 250) for first in range(0, 3_000, 250)])
    assert pieces.to_pylist() == made.table(0, 3_000).to_pylist()
    assert pieces.to_pylist() != Events(8, group=1000).table(0, 3_000).to_pylist()


def test_events_are_in_the_proportions_of_the_benchmark() -> None:
    made = Events(1).tables(0, 50_000)
    persons, auctions, bids = made.persons, made.auctions, made.bids
    assert (persons.num_rows, auctions.num_rows, bids.num_rows) == (1_000, 3_000, 46_000)
    assert persons["id"].to_pylist() == list(range(1000, 2000))
    assert auctions["id"].to_pylist() == list(range(1000, 4000))
    hot = [number for number in bids["auction"].to_pylist() if number % 100 == 0]
    assert 0.49 < len(hot) / bids.num_rows < 0.53
    hot = [number for number in bids["bidder"].to_pylist() if number % 100 == 1]
    assert 0.74 < len(hot) / bids.num_rows < 0.78
    prices = sorted(bids["price"].to_pylist())
    assert 100 <= prices[0] < 110 < 90_000 < prices[23_000] < 110_000 < 90_000_000 < prices[-1]


def found(
    number: int, seed: int, shards: Sequence[int], checkpoint: Repository | None = None
) -> list[Any]:
    """What a query's job puts out, in several runs that go on from each other.

    Parameters:
        shards: of the runs, one after the other and again.
    """
    checkpoint = checkpoint or Repository.in_memory()
    query, made = QUERIES[number], Events(seed, RATE, GROUP)
    per_kind = {name: f"{front.kind}s" for name, front in query.fronts.items()}
    results: list[Any] = []
    for epoch in range(EPOCHS):
        # Runs are given all of their input again, and skip what they have read.
        so_far = made.tables(0, COUNT * (epoch + 1) // EPOCHS)
        inputs = {
            name: front.of_table(getattr(so_far, per_kind[name]))
            for name, front in query.fronts.items()
        }
        run = query.job().run(
            inputs,
            checkpoint=checkpoint,
            parallelism=shards[epoch % len(shards)],
            epoch_size=COUNT,
            drain=epoch == EPOCHS - 1,
        )
        results += run.outputs["out"]
    if not query.updates:
        return results
    last = {tuple(getattr(row, name) for name in query.updates): row for row in results}
    assert len(last) < len(results), "some result takes the place of another"
    return list(last.values())


def values(row: Any) -> tuple[Any, ...]:
    """The fields of a result."""
    return row if isinstance(row, tuple) else dataclasses.astuple(row)


@pytest.mark.parametrize("number", QUERIES)
@pytest.mark.parametrize(
    ("seed", "shards"), [(1, (1,)), (1, (3,)), (2, (1,)), (2, (3, 1))] if SOAK else [(2, (3, 1))]
)
def test_a_query_has_the_result_of_sql(number: int, seed: int, shards: Sequence[int]) -> None:
    rows = sorted(values(row) for row in found(number, seed, shards))
    expected = sorted(answers(number, Events(seed, RATE, GROUP).tables(0, COUNT)))
    assert len(expected) >= 5
    if number == 4:  # floats, of which SQL need not have the last digits
        assert rows == [pytest.approx(row) for row in expected]
    else:
        assert rows == expected


def test_an_unbounded_join_finds_sellers_that_arrive_after_their_auctions() -> None:
    query, tables = QUERIES[3], Events(1, RATE).tables(0, COUNT)
    sellers = query.fronts["sellers"].of_table(tables.persons)
    offers = query.fronts["offers"].of_table(tables.auctions)
    checkpoint = Repository.in_memory()
    first = query.job().run({"sellers": [], "offers": offers}, checkpoint=checkpoint, parallelism=2)
    assert first.outputs["out"] == []
    then = query.job().run({"sellers": sellers, "offers": offers}, checkpoint=checkpoint)
    assert sorted(then.outputs["out"]) == sorted(answers(3, tables))


@pytest.mark.parametrize(("number", "operators"), [(5, 2), (7, 1), (8, 1), (9, 2), (11, 1)])
def test_a_query_with_an_end_has_forgotten_all_when_event_time_is_over(
    number: int, operators: int
) -> None:
    checkpoint = Repository.in_memory()
    assert found(number, 1, (3,), checkpoint)
    last = checkpoint.latest_epoch()
    assert last is not None
    held = checkpoint.manifest(last).operators
    assert [sum(each.rows.values()) for each in held.values()] == [0] * operators
    assert max(
        sum(each.rows.values())
        for epoch in checkpoint.epochs()
        for each in checkpoint.manifest(epoch).operators.values()
    )
