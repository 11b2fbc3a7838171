"""Aggregates, rankings and windows over all records: without a key."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import statekit as sk
from statekit.errors import StateTypeError
from statekit.records.partial_aggregate import PartialAggregate
from statekit.records.preaggregate import Combiner
from statekit.records.record_type import RecordType
from statekit.testing import Harness, check
from tests.support.instants import at
from tests.unit.job.test_emission import BIDS, EPOCHS, SHARDS, Bid, dearest_first, run
from tests.unit.testing.test_oracles import only_here

MINUTE: dict[str, Any] = {"event_time": "at", "lateness": "1 minute"}


def job_of(made: Callable[[sk.Stream[Bid]], sk.Stream[Any]]) -> sk.Job:
    job = sk.Job("bids")
    made(job.source("bids", Bid)).sink("out")
    return job


@settings(max_examples=30, deadline=None)
@given(EPOCHS, SHARDS)
def test_aggregates_are_of_all_records(epochs: list[list[Bid]], shards: list[int]) -> None:
    job = job_of(lambda bids: bids.aggregate(key=(), bids=sk.Count(), best=sk.Top(2, by="-price")))
    seen: list[Bid] = []
    for bids, results in zip(epochs, run(job, epochs, shards, drain=False), strict=True):
        seen += bids
        best = sorted(seen, key=dearest_first)[:2]
        assert results == ([(len(seen), best)] if bids else [])


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(EPOCHS, SHARDS)
def test_windows_are_of_all_records(epochs: list[list[Bid]], shards: list[int]) -> None:
    job = job_of(
        lambda bids: bids.window(sk.tumbling("10 s"), key=(), **MINUTE).aggregate(
            bids=sk.Count(), best=sk.Top(1, by="-price"), all=sk.Collect("bidder")
        )
    )
    found = [each for results in run(job, epochs, shards, drain=True) for each in results]
    windows: dict[int, list[Bid]] = {}
    for bid in (bid for epoch in epochs for bid in epoch):
        windows.setdefault(int(bid.at.timestamp()) // 10, []).append(bid)
    expected = [
        (at(10 * n), at(10 * n + 10), len(own), sorted(own, key=dearest_first)[:1], len(own))
        for n, own in sorted(windows.items())
    ]
    assert sorted((*each[:4], len(each.all)) for each in found) == expected


@settings(max_examples=20, deadline=None)
@given(st.lists(BIDS, max_size=20))
def test_sessions_are_of_all_records(bids: list[Bid]) -> None:
    made = job_of(lambda bids: bids.window(sk.session("3 s"), key=(), **MINUTE).count())
    times = sorted(bid.at for bid in bids)
    gaps = sum(after - before >= dt.timedelta(seconds=3) for before, after in pairwise(times))
    assert len(run(made, [bids], [2], drain=True)[0]) == (gaps + 1 if bids else 0)


JOBS: dict[str, Callable[[], sk.Job]] = {
    "count": lambda: job_of(lambda bids: bids.count()),
    "always": lambda: job_of(lambda bids: bids.count(emit="always")),
    "final": lambda: job_of(lambda bids: bids.count(emit="final", event_time="at")),
    "last": lambda: job_of(lambda bids: bids.last(by="at")),
    "top": lambda: job_of(lambda bids: bids.top(3, by="-price")),
    "windows": lambda: job_of(
        lambda bids: bids.window(sk.sliding("1 hour", "20 minutes"), key=(), **MINUTE).top(2, "at")
    ),
    "sessions": lambda: job_of(
        lambda bids: bids.window(sk.session("5 minutes"), key=(), **MINUTE).max("price")
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", JOBS)
def test_results_are_those_of_plain_python(name: str) -> None:
    check(JOBS[name](), holds=["plain Python", "parallelism", "rescaling"], depth="quick")


@pytest.mark.slow
def test_a_record_that_is_not_combined_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    combined = Combiner.combine
    monkeypatch.setattr(
        Combiner, "combine", lambda self, of, *late, **how: combined(self, of[:1], *late, **how)
    )
    assert only_here(JOBS["count"](), "plain Python")


def test_the_state_is_at_the_key_true() -> None:
    harness = Harness(job_of(lambda bids: bids.top(2, by="-price")).plan.operators[0].declared)
    harness.send(*(Bid("a", "x", price, at(0)) for price in (3, 9, 5)))
    assert [bid.price for bid in harness.state("top", True)] == [9, 5]


def test_a_field_may_have_the_name_of_the_key() -> None:
    class Named(NamedTuple):
        everything: int

    record = RecordType.of(Named, where="example")
    combiner = Combiner(record, (), [PartialAggregate("sum", "everything")])
    (row,) = combiner.combine([Named(2), Named(3)])
    assert (row.everything_, row.number, row.part_1) == (True, 2, 5)


def test_records_that_cannot_be_combined_have_no_windows_of_all() -> None:
    windows = sk.Job("bids").source("bids", Bid).window
    with pytest.raises(StateTypeError, match="windows over all records are combined"):
        windows(sk.tumbling("1 s"), key=(), event_time="at", ordered=True).count()
