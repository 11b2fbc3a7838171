"""Nexmark's joins: queries 3, 4, 8 and 9.

What lives here: records, functions and jobs as a user would write them. What does not: what they
are given (`queries`).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import NamedTuple

import statekit as sk
from tests.bench.nexmark.bids import LATENESS, WINDOW, Bid

__all__ = ["query_3", "query_4", "query_8", "query_9"]

# ------------------------------------------------- 3: who sells in category 10 in three states?


class Seller(NamedTuple):
    seller: int
    name: str
    city: str
    state: str


class Offer(NamedTuple):
    seller: int
    auction: int


class LocalItem(NamedTuple):
    name: str
    city: str
    state: str
    auction: int


def query_3() -> sk.Job:
    job = sk.Job("nexmark-q3")
    sellers, offers = job.source("sellers", Seller), job.source("offers", Offer)
    sellers.join(offers, on="seller", into=LocalItem).sink("out")
    return job


# --------------------------- 9: which bid wins an auction? 4: what do auctions of a category bring?


class Auction(NamedTuple):
    auction: int
    category: int
    seller: int
    at: dt.datetime
    expires: dt.datetime


class Offered(NamedTuple):
    """A bid on an auction that has not ended."""

    auction: int
    category: int
    seller: int
    bidder: int
    price: int
    at: dt.datetime
    expires: dt.datetime


class Best(NamedTuple):
    records: list[Offered]


class Won(NamedTuple):
    auction: int
    category: int
    seller: int
    bidder: int
    price: int
    at: dt.datetime


class Average(NamedTuple):
    category: int
    price: float


def winner(best: Best) -> Iterator[Won]:
    yield from (Won(*offered[:-1]) for offered in best.records)


def _won(job: sk.Job) -> sk.Stream[Won]:
    """The best bid of each auction, when it ends."""
    auctions, bids = job.source("auctions", Auction), job.source("bids", Bid)
    offered = auctions.join(
        bids,
        on="auction",
        within=("0 s", "expires"),
        event_time="at",
        lateness=LATENESS,
        into=Offered,
        fields={"at": "right.at"},
    )
    ends = offered.window(sk.tumbling("1 us"), key="auction", event_time="expires")
    return ends.top(1, by=("-price", "at"), into=Best).flat_map(winner)


def query_9() -> sk.Job:
    job = sk.Job("nexmark-q9")
    _won(job).sink("out")
    return job


def query_4() -> sk.Job:
    job = sk.Job("nexmark-q4")
    averages = _won(job).aggregate(key="category", price=sk.Mean("price"), into=Average)
    averages.sink("out")
    return job


# ------------------------------------- 8: who sells within the ten seconds in which they came?


class Came(NamedTuple):
    seller: int
    name: str
    at: dt.datetime


class Sells(NamedTuple):
    seller: int
    at: dt.datetime


class NewSeller(NamedTuple):
    seller: int
    name: str
    end: dt.datetime


def query_8() -> sk.Job:
    job = sk.Job("nexmark-q8")
    came, sells = job.source("persons", Came), job.source("auctions", Sells)
    new = came.join(
        sells,
        on="seller",
        how="semi",
        window=sk.tumbling(WINDOW),
        event_time="at",
        lateness=LATENESS,
        into=NewSeller,
    )
    new.sink("out")
    return job
