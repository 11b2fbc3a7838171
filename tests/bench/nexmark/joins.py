"""Nexmark's joins: queries 3, 4, 8 and 9, each a process function over a union.

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


def better(bid: Bid, than: Bid | None) -> bool:
    """Whether a bid is higher, or as high and earlier."""
    return than is None or (-bid.price, bid.at) < (-than.price, than.at)


@sk.process(key="auction", event_time="at", lateness=LATENESS)
def winning(
    event: Auction | Bid,
    ctx: sk.Context,
    sold: sk.ValueState[Auction],
    best: sk.ValueState[Bid],
    early: sk.ListState[Bid],
) -> Iterator[Won]:
    """Keeps the best bid until nothing before the auction's end can follow."""
    auction = event if isinstance(event, Auction) else sold.get()
    if auction is None:
        assert isinstance(event, Bid)
        early.append(event)
        ctx.timers.set(event.at, "early")
        return
    bids = [event] if isinstance(event, Bid) else list(early)
    if isinstance(event, Auction):
        sold.update(event)
        early.clear()
        ctx.timers.set(event.expires)
    for bid in bids:
        if auction.at <= bid.at <= auction.expires and better(bid, best.get()):
            best.update(bid)
    yield from ()


@winning.on_timer("early")
def not_for_sale(timer: sk.Timer, early: sk.ListState[Bid]) -> None:
    """Forgets bids that no auction can follow: it has ended, or there is none."""
    early.update([bid for bid in early if bid.at > timer.at])


@winning.on_timer
def expired(
    timer: sk.Timer, sold: sk.ValueState[Auction], best: sk.ValueState[Bid]
) -> Iterator[Won]:
    auction, bid = sold.get(), best.get()
    if auction is not None and bid is not None:
        yield Won(bid.auction, auction.category, auction.seller, bid.bidder, bid.price, bid.at)
    sold.clear()
    best.clear()


def _won(job: sk.Job) -> sk.Stream[Won]:
    auctions, bids = job.source("auctions", Auction), job.source("bids", Bid)
    return auctions.union(bids).process(winning)


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
