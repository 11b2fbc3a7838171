"""First and last records, by key and by window, are those of a sorted list."""

from __future__ import annotations

import dataclasses
import datetime as dt
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import statekit as sk
from statekit.testing import Harness
from tests.support.instants import after, at
from tests.unit.job.test_windows import LAST
from tests.unit.job.test_windows_combined import WINDOWS, process_of


class Bid(NamedTuple):
    auction: str
    at: dt.datetime
    price: int | None
    bidder: str


BIDS = st.builds(
    Bid,
    st.sampled_from("abc"),
    st.integers(0, 60).map(at),
    st.none() | st.integers(0, 4),
    st.sampled_from("xyz"),
)
EPOCHS = st.lists(st.lists(BIDS, max_size=12), min_size=1, max_size=4)


def dearest_first(bid: Bid) -> tuple[Any, ...]:
    return bid.price is None, -(bid.price or 0), bid.at, bid.auction, bid.bidder


def ranked(bids: list[Bid], count: int, *, ties: bool) -> list[Bid]:
    """The dearest, and of these the earliest."""
    ordered = sorted(bids, key=dearest_first)
    if not ties:
        return ordered[:count]
    orders = [dearest_first(bid)[:3] for bid in ordered]
    return [bid for bid, own in zip(ordered, orders, strict=True) if orders.index(own) < count]


def newest(bids: list[Bid]) -> Bid:
    return min(bids, key=lambda bid: (-bid.at.timestamp(), *dearest_last(bid), bid.bidder))


def dearest_last(bid: Bid) -> tuple[bool, int]:
    return bid.price is None, bid.price or 0


def stream_of(record: Any, **aggregates: sk.FieldAggregate) -> sk.Stream[Any]:
    aggregate: Any = sk.Job("bids").source("bids", record).aggregate
    made: sk.Stream[Any] = aggregate(key="auction", **aggregates)
    return made


# ------------------------------------------------------------------------------------------ by key


@settings(max_examples=40, deadline=None)
@given(EPOCHS, st.integers(1, 3), st.booleans(), st.sampled_from([1, 3]))
@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
def test_a_key_has_the_first_of_all_its_records(
    backend: Any, epochs: list[list[Bid]], count: int, ties: bool, parallelism: int
) -> None:
    found = stream_of(
        Bid,
        best=sk.Top(count, by=("-price", "at"), ties=ties),
        newest=sk.Last(by="at"),
        price=sk.Last("price", by="at"),
        bids=sk.Count(),
    )
    harness = Harness(found, parallelism, backend=backend)
    seen: dict[str, list[Bid]] = {}
    for bids in epochs:
        for bid in bids:
            seen.setdefault(bid.auction, []).append(bid)
        wanted = []
        for auction in sorted({bid.auction for bid in bids}):
            own = seen[auction]
            best, last = ranked(own, count, ties=ties), newest(own)
            wanted.append((auction, best, last, last.price, len(own)))
        assert sorted(map(tuple, harness.send(*bids)), key=lambda out: out[0]) == wanted


def test_the_state_is_the_records_and_a_job_continues_with_them(tmp_path: Path) -> None:
    harness = Harness(stream_of(Bid, best=sk.Top(2, by="-price")))
    bids = [Bid("a", at(n), price, "x") for n, price in enumerate((3, 1, 5))]
    harness.send(*bids)
    assert harness.state("best", "a") == [bids[2], bids[0]]
    harness.checkpoint(tmp_path / "checkpoint")
    restored = Harness.restore(harness.process, tmp_path / "checkpoint", parallelism=3)
    (out,) = restored.send(Bid("a", at(9), 4, "y"))
    assert out.best == [bids[2], Bid("a", at(9), 4, "y")]


@dataclasses.dataclass
class Changing:
    auction: str
    price: int


class Model(pydantic.BaseModel):
    auction: str
    price: int

    @pydantic.field_validator("price")
    @classmethod
    def doubled(cls, price: int) -> int:
        return price


class Named(TypedDict):
    auction: str
    price: int


@pytest.mark.parametrize("record", [Changing, Model, Named])
def test_records_may_be_of_any_class(record: Any) -> None:
    made = [record(auction="a", price=price) for price in (2, 7, 5)]
    harness = Harness(stream_of(record, best=sk.Top(2, by="-price"), first=sk.Last(by="price")))
    for one in made:
        (out,) = harness.send(one)
    assert out.best == [made[1], made[2]]
    assert out.first == made[1]


# --------------------------------------------------------------------------------------- by window


def of_lists(windows: Any, count: int, *, ties: bool) -> sk.Stream[Any]:
    """The same, of all records of a window."""
    gathered: sk.Aggregate[Bid, list[Bid], list[Bid]] = sk.Aggregate(
        list,
        lambda held, bid: [*held, bid],
        lambda held: ranked(held, count, ties=ties),
        lambda one, other: one + other,
    )
    made: sk.Stream[Any] = windows.aggregate(
        records=sk.OwnAggregate(gathered, accumulator=list[Bid], result=list[Bid]), name="records"
    )
    return made


@settings(max_examples=50, deadline=None)
@given(WINDOWS, EPOCHS, st.integers(1, 3), st.booleans(), st.integers(0, 20))
@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_window_has_the_first_of_its_records(
    parallelism: int, window: Any, epochs: list[list[Bid]], count: int, ties: bool, lateness: int
) -> None:
    def windows() -> Any:
        bids = sk.Job("bids").source("bids", Bid)
        return bids.window(window, key="auction", event_time="at", lateness=after(lateness))

    order = ("-price", "at")
    made = [
        Harness(windows().top(count, by=order, ties=ties), parallelism),
        Harness(of_lists(windows(), count, ties=ties), parallelism),
    ]
    for bids in [*epochs, []]:
        found, wanted = (sorted(map(tuple, each.send(*bids)), key=repr) for each in made)
        assert found == wanted
    found, wanted = (sorted(map(tuple, each.advance_watermark(LAST)), key=repr) for each in made)
    assert found == wanted


@pytest.mark.parametrize(
    "window", [sk.tumbling("10 s"), sk.sliding("100 s", "5 s"), sk.session("10 s")], ids=str
)
def test_the_last_record_of_a_window_is_that_with_the_largest_time(window: Any) -> None:
    windows = sk.Job("bids").source("bids", Bid).window(window, key="auction", event_time="at")
    bids = [Bid("a", at(n), price, "x") for n, price in ((1, 5), (4, 2), (3, 9))]
    for stream, name, wanted in (
        (windows.last(), "record", bids[1]),
        (windows.last("price"), "price", 2),
        (windows.last(by="price", name="by_price"), "record", bids[2]),
    ):
        harness = Harness(stream)
        harness.send(*bids)
        outputs = harness.advance_watermark(at(500))
        assert wanted in [getattr(out, name) for out in outputs]
        assert all(getattr(out, name) is not None for out in outputs)


def test_another_order_of_the_same_window_is_refused(tmp_path: Path) -> None:
    def top(by: str) -> Any:
        bids = sk.Job("bids").source("bids", Bid)
        return process_of(
            bids.window(sk.tumbling("10 s"), key="auction", event_time="at").top(2, by=by)
        )

    harness = Harness(top("price"))
    harness.send(Bid("a", at(1), 1, "x"))
    harness.checkpoint(tmp_path / "checkpoint")
    with pytest.raises(sk.StateSchemaError):
        Harness.restore(top("-price"), tmp_path / "checkpoint")


# ---------------------------------------------------------------------------------------- refusals


class Odd(NamedTuple):
    auction: str
    tags: list[str]


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: sk.Top(0, by="price"), "at least 1"),
        (lambda: sk.Top(2, by=()), "name at least one field"),
        (lambda: stream_of(Bid, best=sk.Top(2, by="-cost")), "'cost' is not a field of Bid"),
        (lambda: stream_of(Bid, last=sk.Last("cost", by="at")), "'cost' is not a field of Bid"),
        (lambda: stream_of(Odd, best=sk.Top(2, by="tags")), "top.'tags'.: the field is list"),
        (lambda: stream_of(dict, best=sk.Top(2, by="price")), "a dict has no declared fields"),
    ],
)
def test_orders_that_cannot_be_are_refused(make: Any, problem: str) -> None:
    with pytest.raises(sk.StateTypeError, match=problem):
        make()


@dataclasses.dataclass
class _Hidden:
    customer: str
    _cents: int


def test_a_field_whose_name_begins_with_an_underscore_is_aggregated() -> None:
    job = sk.Job("shop")
    job.source("orders", _Hidden).aggregate(
        key="customer",
        most=sk.Top(1, by="-_cents"),
        last=sk.Last("_cents", by="_cents"),
        total=sk.Sum("_cents"),
        all=sk.Collect("_cents"),
    ).sink("out")
    results: list[Any] = job.run({"orders": [_Hidden("ann", 1), _Hidden("ann", 2)]})["out"]
    (result,) = results
    assert result == ("ann", [_Hidden("ann", 2)], 2, 3, [1, 2])
