"""Aggregates by key that are emitted for each record, at a change, or at the end; and ranks."""

from __future__ import annotations

import dataclasses
import datetime as dt
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import statekit as sk
from statekit.checkpoint.repository import Repository
from statekit.errors import StateSchemaError, StateTypeError
from statekit.job.per_key import emission, ranked
from statekit.maintenance.rewrite import rewrite_checkpoint
from statekit.state.single_row_states import ReducingState
from statekit.testing import Harness, check
from tests.support.instants import at
from tests.unit.testing.test_oracles import only_here


class Bid(NamedTuple):
    auction: str
    bidder: str
    price: int | None
    at: dt.datetime


BIDS = st.builds(
    Bid,
    st.sampled_from("abc"),
    st.sampled_from("xyz"),
    st.none() | st.integers(0, 5),
    st.integers(0, 30).map(at),
)
EPOCHS = st.lists(st.lists(BIDS, max_size=10), min_size=1, max_size=4)
SHARDS = st.sampled_from([[1], [3], [2, 1, 4]])


def spread_of(values: list[int | None]) -> int:
    numbers = [value for value in values if value is not None]
    return max(numbers, default=0) - min(numbers, default=0)


SPREAD: sk.Aggregate[int | None, list[int | None], int] = sk.Aggregate(
    list, lambda held, value: [*held, value], spread_of
)
RESULTS: dict[str, Callable[[list[Bid]], Any]] = {
    "bids": len,
    "priced": lambda bids: len(prices(bids)),
    "total": lambda bids: sum(prices(bids)) if prices(bids) else None,
    "most": lambda bids: max(prices(bids), default=None),
    "mean": lambda bids: sum(prices(bids)) / len(prices(bids)) if prices(bids) else None,
    "best": lambda bids: sorted(bids, key=dearest_first)[:2],
    "spread": lambda bids: spread_of([bid.price for bid in bids]),
}
AGGREGATES: dict[str, sk.FieldAggregate] = {
    "bids": sk.Count(),
    "priced": sk.Count("price"),
    "total": sk.Sum("price"),
    "most": sk.Max("price"),
    "mean": sk.Mean("price"),
    "best": sk.Top(2, by="-price"),
    "spread": sk.OwnAggregate(SPREAD, field="price", accumulator=list[int | None], result=int),
}


def prices(bids: list[Bid]) -> list[int]:
    return [bid.price for bid in bids if bid.price is not None]


def dearest_first(bid: Bid) -> tuple[Any, ...]:
    return bid.price is None, -(bid.price or 0), bid.auction, bid.bidder, bid.at


def job_of(made: Callable[[sk.Stream[Bid]], sk.Stream[Any]]) -> sk.Job:
    job = sk.Job("bids")
    made(job.source("bids", Bid)).sink("out")
    return job


def aggregates(emit: str, names: tuple[str, ...] = tuple(AGGREGATES)) -> sk.Job:
    options: dict[str, Any] = {"emit": emit} | ({"event_time": "at"} if emit == "final" else {})
    chosen: dict[str, Any] = {name: AGGREGATES[name] for name in names}
    return job_of(lambda bids: bids.aggregate(key="auction", **options, **chosen))


def run(job: sk.Job, epochs: list[list[Bid]], shards: list[int], *, drain: bool) -> list[list[Any]]:
    """Return the results of each of several runs, which continue from each other."""
    checkpoint, found, given = Repository.in_memory(), list[list[Any]](), list[Bid]()
    for number, epoch in enumerate(epochs):
        given = [*given, *epoch]
        ended = job.run(
            {"bids": given},
            checkpoint=checkpoint,
            parallelism=shards[number % len(shards)],
            drain=drain and number == len(epochs) - 1,
        )
        found.append(ended.outputs["out"])
    return found


def result(auction: str, bids: list[Bid]) -> tuple[Any, ...]:
    return auction, *(of(bids) for of in RESULTS.values())


def of_auction(bids: list[Bid], auction: str) -> list[Bid]:
    return [bid for bid in bids if bid.auction == auction]


@settings(max_examples=30, deadline=None)
@given(EPOCHS, SHARDS)
def test_always_is_a_result_for_each_record_in_order_of_arrival(
    epochs: list[list[Bid]], shards: list[int]
) -> None:
    found = run(aggregates("always"), epochs, shards, drain=False)
    seen: list[Bid] = []
    for bids, results in zip(epochs, found, strict=True):
        for auction in "abc":
            expected, before = [], len(of_auction(seen, auction))
            own = of_auction([*seen, *bids], auction)
            expected = [result(auction, own[: end + 1]) for end in range(before, len(own))]
            assert [tuple(each) for each in results if each.auction == auction] == expected
        seen += bids


@settings(max_examples=30, deadline=None)
@given(EPOCHS, SHARDS)
@pytest.mark.parametrize("names", [("most",), ("mean", "best"), tuple(AGGREGATES)], ids=str)
def test_a_change_is_emitted_once_per_epoch(
    names: tuple[str, ...], epochs: list[list[Bid]], shards: list[int]
) -> None:
    found = run(aggregates("change", names), epochs, shards, drain=False)
    seen: list[Bid] = []
    for bids, results in zip(epochs, found, strict=True):
        expected = []
        for auction in "abc":
            before, now = of_auction(seen, auction), of_auction([*seen, *bids], auction)
            values = [RESULTS[name](now) for name in names] if now else []
            held = [RESULTS[name](before) for name in names] if before else [None] * len(names)
            if now and values != held:
                expected.append((auction, *values))
        assert sorted(map(tuple, results), key=lambda of: of[0]) == expected
        seen += bids


@settings(max_examples=30, deadline=None)
@given(EPOCHS, SHARDS)
def test_a_final_result_is_emitted_once_at_the_end(
    epochs: list[list[Bid]], shards: list[int]
) -> None:
    *before, last = run(aggregates("final"), epochs, shards, drain=True)
    bids = [bid for epoch in epochs for bid in epoch]
    assert not any(before)
    expected = [result(auction, of_auction(bids, auction)) for auction in "abc"]
    assert sorted(map(tuple, last), key=lambda of: of[0]) == [of for of in expected if of[1]]


def test_a_run_without_a_drain_has_no_final_result_and_the_state_has_it() -> None:
    job, checkpoint = aggregates("final", ("bids",)), Repository.in_memory()
    bids = [Bid("a", "x", 1, at(5)), Bid("a", "y", 2, at(3))]
    assert job.run({"bids": bids}, checkpoint=checkpoint, drain=False)["out"] == []
    assert job.run({"bids": bids}, checkpoint=checkpoint, drain=True)["out"] == [("a", 2)]


@pytest.mark.parametrize("emits", [("change", "final"), ("final", "epoch")])
def test_only_an_operator_without_state_begins_or_ceases_to_be_final(
    emits: tuple[str, str],
) -> None:
    checkpoint = Repository.in_memory()
    before, after = (aggregates(emit, ("bids",)) for emit in emits)
    before.run({"bids": [Bid("a", "x", 1, at(5))]}, checkpoint=checkpoint, drain=False)
    with pytest.raises(StateSchemaError, match="emit"):
        after.run({"bids": []}, checkpoint=checkpoint)


def test_final_results_are_emitted_after_the_key_groups_have_changed(tmp_path: Path) -> None:
    job, bids = aggregates("final", ("bids",)), [Bid("a", "x", 1, at(5)), Bid("b", "x", 1, at(5))]
    job.run({"bids": bids}, checkpoint=tmp_path, drain=False)
    rewrite_checkpoint(Repository(tmp_path), key_groups=64, parallelism=2)
    assert job.run({"bids": bids}, checkpoint=tmp_path, drain=False)["out"] == []
    bids = [*bids, Bid("b", "x", 1, at(9))]
    found = job.run({"bids": bids}, checkpoint=tmp_path, drain=True).outputs["out"]
    assert sorted(map(tuple, found)) == [("a", 1), ("b", 2)]


def test_a_key_that_has_expired_has_no_final_result() -> None:
    job = job_of(
        lambda bids: bids.count(on="auction", emit="final", event_time="at", ttl=sk.TTL("1 hour"))
    )
    checkpoint, hour_us = Repository.in_memory(), 3_600_000_000
    bids = [Bid("a", "x", 1, at(5)), Bid("b", "x", 1, at(5))]
    job.run({"bids": bids[:1]}, checkpoint=checkpoint, drain=False, clock=lambda: hour_us)
    found = job.run({"bids": bids}, checkpoint=checkpoint, drain=True, clock=lambda: 3 * hour_us)
    assert found["out"] == [("b", 1)]


def test_other_results_may_be_emitted_from_a_start_on() -> None:
    checkpoint, bids = Repository.in_memory(), [Bid("a", "x", 1, at(5))]
    for emit, expected in (("epoch", [("a", 1)]), ("always", [("a", 2), ("a", 3)]), ("change", [])):
        job = aggregates(emit, ("bids",))
        assert job.run({"bids": bids}, checkpoint=checkpoint, drain=False)["out"] == expected
        bids = [bids[0]] * 3


def test_final_results_are_records_of_the_next_operator() -> None:
    class Counted(NamedTuple):
        auction: str
        count: int  # type: ignore[assignment]

    job = job_of(
        lambda bids: bids.count(
            on="auction", emit="final", event_time="at", into=Counted
        ).aggregate(key="count", auctions=sk.Count())
    )
    bids = [Bid("a", "x", 1, at(5)), Bid("b", "y", 2, at(3)), Bid("a", "y", 2, at(1))]
    assert sorted(job.run({"bids": bids}).outputs["out"]) == [(1, 1), (2, 1)]


# ------------------------------------------------------------------------ first, last and top


@settings(max_examples=40, deadline=None)
@given(EPOCHS, SHARDS)
@pytest.mark.parametrize("which", ["first", "last"])
def test_the_record_at_an_end_is_emitted_when_it_changes(
    which: str, epochs: list[list[Bid]], shards: list[int]
) -> None:
    job = job_of(lambda bids: getattr(bids, which)(on="auction", by="at"))
    sign = 1 if which == "first" else -1

    def order(bid: Bid) -> tuple[Any, ...]:
        return sign * bid.at.timestamp(), bid.bidder, bid.price is None, bid.price or 0

    seen: list[Bid] = []
    for bids, results in zip(epochs, run(job, epochs, shards, drain=False), strict=True):
        expected = []
        for auction in "abc":
            now = min(of_auction([*seen, *bids], auction), key=order, default=None)
            if now != min(of_auction(seen, auction), key=order, default=None):
                expected.append(now)
        assert sorted(results) == expected
        seen += bids


@settings(max_examples=40, deadline=None)
@given(EPOCHS, SHARDS, st.integers(1, 3))
def test_the_places_that_change_are_emitted(
    epochs: list[list[Bid]], shards: list[int], count: int
) -> None:
    job = job_of(lambda bids: bids.top(count, by="-price", on="auction"))
    places: dict[tuple[str, int], Bid] = {}
    seen: list[Bid] = []
    for bids, results in zip(epochs, run(job, epochs, shards, drain=False), strict=True):
        for *bid, rank in results:
            place = (bid[0], rank)
            assert places.get(place) != Bid(*bid), "only places that have changed"
            places[place] = Bid(*bid)
        seen += bids
        for auction in "abc":
            expected = sorted(of_auction(seen, auction), key=dearest_first)[:count]
            assert [of for (own, _), of in sorted(places.items()) if own == auction] == expected


@dataclasses.dataclass
class Mutable:
    auction: str
    tags: list[str]
    price: int


def test_records_of_a_mutable_class_have_places() -> None:
    @dataclasses.dataclass
    class Placed:
        rank: int
        tags: list[str]

    stream = sk.Job("bids").source("bids", Mutable).top(2, "-price", on="auction", into=Placed)
    harness = Harness(stream)
    low, high = Mutable("a", ["x"], 1), Mutable("a", [], 9)
    assert harness.send(low) == [Placed(1, ["x"])]
    assert harness.send(high) == [Placed(1, []), Placed(2, ["x"])]
    assert harness.send(Mutable("a", [], 0)) == []
    assert harness.state("top", "a") == [high, low]


def test_nan_is_no_change_of_nan() -> None:
    class Level(NamedTuple):
        sensor: str
        level: float

    job = sk.Job("levels").source("levels", Level)
    harness = Harness(job.aggregate(key="sensor", most=sk.Max("level"), emit="change"))
    assert len(harness.send(Level("a", math.nan))) == 1
    assert harness.send(Level("a", math.nan)) == []
    assert harness.send(Level("a", 1.0)) == [("a", 1.0)]


def test_a_result_that_has_not_changed_is_not_written() -> None:
    harness = Harness(
        job_of(lambda bids: bids.last(on="auction", by="at")).plan.operators[0].declared
    )
    harness.send(Bid("a", "x", 1, at(9)))
    assert harness.send(Bid("a", "x", 1, at(5))) == []
    assert harness.state("last", "a") == Bid("a", "x", 1, at(9))


# ---------------------------------------------------------------------------------------- check

JOBS: dict[str, Callable[[], sk.Job]] = {
    "always": lambda: aggregates("always"),
    "change": lambda: aggregates("change"),
    "final": lambda: aggregates("final"),
    "last": lambda: job_of(lambda bids: bids.last(on="auction", by="at")),
    "first": lambda: job_of(lambda bids: bids.first(on="auction", by="price")),
    "top": lambda: job_of(lambda bids: bids.top(2, by=("-price", "at"), on="auction", ties=True)),
    "count": lambda: job_of(lambda bids: bids.count(on=("bidder", "auction"))),
    "ttl": lambda: job_of(
        lambda bids: bids.top(2, by="-price", on="auction", ttl=sk.TTL("15 minutes"))
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", JOBS)
def test_results_are_those_of_plain_python(name: str) -> None:
    check(JOBS[name](), holds=["plain Python", "parallelism"], depth="quick")


def too_many(*_: object) -> bool:
    return True


def one_less(fold: Any) -> Any:
    return lambda self, prefixes, values: fold(self, prefixes, [own[:-1] or own for own in values])


def without_first_place(was: Any, now: Any, places: list[int], records: list[Any]) -> None:
    places += range(2, len(now) + 1)
    records += now[1:]


FAULTS: dict[str, tuple[Any, str, Any]] = {
    "change": (emission, "_is_other", too_many),
    "always": (ReducingState, "_after_each", lambda self, current, values: list(values)),
    "final": (emission.AtEnd, "fire", lambda *_: iter(())),
    "top": (ranked, "_add_changed", without_first_place),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, function, spoilt = FAULTS[name]
    monkeypatch.setattr(owner, function, spoilt)
    job = aggregates("change", ("most",)) if name == "change" else JOBS[name]()
    if name in ("change", "always"):
        assert only_here(job, "plain Python")
        return
    # What a fold of this job calls is pickled with it, so that new processes have the fault, too.
    with pytest.raises(AssertionError, match="'plain Python' does not hold"):
        check(job, holds=["plain Python"], depth="quick")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"emit": "sometimes"}, 'use "epoch", "always", "change" or "final"'),
        ({"emit": "final"}, "say which field has the event_time"),
        ({"event_time": "at"}, 'belongs to emit="final"'),
        ({"emit": "always", "all": sk.Collect()}, "grows with each record"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], message: str) -> None:
    aggregate: Any = sk.Job("bids").source("bids", Bid).aggregate
    with pytest.raises(StateTypeError, match=message):
        aggregate(key="auction", bids=sk.Count(), **options)


def test_a_record_with_a_rank_is_refused() -> None:
    class Ranked(NamedTuple):
        auction: str
        rank: int

    with pytest.raises(StateTypeError, match="has a field 'rank'"):
        sk.Job("bids").source("bids", Ranked).top(2, "rank", on="auction")
